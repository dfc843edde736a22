"""The simulator: nodes are the leading axis of one array, and an interval of iterations is one compiled program.

The method's numbers, the data and the weights are arguments of the program, never constants in it, so another step
size, seed, strength or interval length runs the program there is. Samples for many iterations are drawn ahead in one
go; restarts draw theirs when they happen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, partial
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peerdescent.method import Calls, Method
from peerdescent.network import Network
from peerdescent.problems.keys import node_keys
from peerdescent.problems.problem import Oracle, Problem, cast
from peerdescent.record import Books, metrics

DRAWN_AHEAD = 1 << 22
"""Bytes of samples drawn ahead at once."""

SMALL = 1 << 18
"""Multiply-adds of a step up to which it is better compiled as one function than spread over library calls."""

WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Compiler option: matrix products by plain loops, since a loop that calls the library is not made one function."""

EVALUATED_AT_ONCE = 1 << 26
"""Numbers (samples x points) held at once while metrics are evaluated."""


class Program(NamedTuple):
    """All that shapes the compiled program, with the shapes of its arguments; equal programs are compiled once."""

    method: Method
    oracle: Oracle


class Dense(NamedTuple):
    """Weights (period, n, n)."""

    matrices: Any

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.matrices.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """W_t x."""
        return lax.dot(_turn(self.matrices, t), x, precision=lax.Precision.HIGHEST)


class Gather(NamedTuple):
    """The nodes that each node hears (period, n, d) and their weights (period, n, d), padded with weight zero."""

    neighbours: Any
    weights: Any

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.weights.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """sum_j w_ij x_j over the neighbours of i, one neighbour at a time."""
        neighbours, weights = _turn(self.neighbours, t), _turn(self.weights, t)
        heard = (weights[:, k, None] * x[neighbours[:, k]] for k in range(neighbours.shape[1]))
        return sum(heard, start=jnp.zeros_like(x))


class Net:
    """The five verbs in iteration t, over vectors (n, p)."""

    def __init__(
        self, program: Program, data: Any, weights: Dense | Gather, seed: Any, t: Any, drawn: dict[tuple[int, int], Any]
    ) -> None:
        self.program, self.data, self.weights, self.seed, self.t, self.drawn = program, data, weights, seed, t, drawn
        self.calls = Calls()
        self.rare = False

    def sample(self, batch: int) -> Any:
        """From those drawn ahead, or drawn now."""
        request = self.calls.take(), batch
        if request in self.drawn and not self.rare:
            return self.drawn[request]
        return draw(self.program.oracle, self.data, self.seed, self.t, *request)

    def grad(self, x: jax.Array, sample: Any) -> jax.Array:
        """Every node's minibatch gradient."""
        return jax.vmap(self.program.oracle.grad)(x, sample, self.data)

    def full_grad(self, x: jax.Array) -> jax.Array:
        """Every node's exact gradient."""
        return jax.vmap(self.program.oracle.exact)(x, self.data)[1]

    def mix(self, x: jax.Array) -> jax.Array:
        """One round."""
        return self.weights.mix(self.t, x)

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Only the side that is due is computed."""
        call, rare = self.calls.next, self.rare

        def side(thunk: Callable[[], Any], is_rare: bool) -> Any:
            self.rare = is_rare
            with self.calls.inside(call):
                return thunk()

        value = lax.cond(self.t % period == 0, lambda: side(then, True), lambda: side(otherwise, rare))
        self.rare = rare
        return value


def draw(oracle: Oracle, data: Any, seed: Any, t: Any, call: int, batch: int) -> Any:
    """The samples of all nodes in iteration t."""
    nodes = jnp.arange(jax.tree.leaves(data)[0].shape[0])
    return jax.vmap(partial(oracle.draw, batch=batch))(node_keys(seed, nodes, t, call), data)


class Stacked:
    """The engine: `start` performs iteration 0, `advance` later ones, `evaluate` measures."""

    def __init__(self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> None:
        self.numbers = {name: _number(value, dtype) for name, value in method.numbers.items()}
        self.data, self.seed = _on_device(problem, dtype), jnp.uint32(seed)
        self.weights = _weights(network, dtype)
        self.program = Program(method.pattern, problem.oracle)
        self.requests = Books(method, problem.samples, [0.0]).requests
        self.chunk = _chunk(problem.oracle, self.data, self.requests)
        self.drawn: tuple[int, Any] | None = None
        # A gradient uses every parameter about once a sample, and a mix once a neighbour.
        work = problem.nodes * problem.dimension * (self.weights.width + sum(batch for _, batch in self.requests))
        self.step = _advance_small if work <= SMALL and _small_is_known() else _advance

    def warm_up(self, x0: np.ndarray) -> None:
        """Start, advance by nothing and evaluate: the programs are then compiled."""
        jax.block_until_ready(self._advance(self.start(x0), 1, 0, *self._ahead(1)))
        self.evaluate(x0)

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0."""
        return _start(self.program, self.numbers, self.data, self.weights, self.seed, jnp.asarray(x0))

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1; it consumes `state`."""
        while t < until:
            first, ahead = self._ahead(t)
            count = min(until, first + self.chunk) - t
            state = self._advance(state, t, count, first, ahead)
            t += count
        return jax.block_until_ready(state)

    def evaluate(self, x: Any) -> dict[str, float]:
        """The metrics that need the problem, at iterates x (n, p)."""
        return {k: float(v) for k, v in _evaluate(self.program.oracle, jnp.asarray(x), self.data).items()}

    def _ahead(self, t: int) -> tuple[int, Any]:
        """The samples drawn ahead that cover iteration t, and the iteration they begin with; kept between intervals."""
        if self.drawn is None or not 0 <= t - self.drawn[0] < self.chunk:
            draws = {
                request: _draw_ahead(self.program.oracle, *request, self.chunk, self.data, self.seed, np.int32(t))
                for request in self.requests
            }
            self.drawn = t, draws
        return self.drawn

    def _advance(self, state: Any, t: int, count: int, first: int, ahead: Any) -> Any:
        values = self.numbers, self.data, self.weights, self.seed, ahead
        return self.step(self.program, *values, state, np.array([first, t - first, count], np.int32))


@partial(jax.jit, static_argnums=0)
def _start(program: Program, numbers: Any, data: Any, weights: Any, seed: Any, x0: jax.Array) -> Any:
    state = program.method.replace(**numbers).init(x0, Net(program, data, weights, seed, 0, {}))
    # Python numbers in a state made by hand get a type of their own, so that a state read back is of the same type.
    return jax.tree.map(lambda a: lax.convert_element_type(a, jnp.result_type(a)), state)


# A program of its own, since all methods that ask for the same samples share it.
@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _draw_ahead(oracle: Oracle, call: int, batch: int, chunk: int, data: Any, seed: Any, t: jax.Array) -> Any:
    return jax.vmap(lambda s: draw(oracle, data, seed, s, call, batch))(t + jnp.arange(chunk))


def _interval(
    program: Program,
    numbers: Any,
    data: Any,
    weights: Any,
    seed: Any,
    ahead: Any,
    state: Any,
    clock: jax.Array,
) -> Any:
    """`clock` is (first, skip, count): iterations first + skip and so on, where `ahead` has samples from `first` on."""
    first, skip, count = clock
    method = program.method.replace(**numbers)

    def body(i: jax.Array, state: Any) -> Any:
        drawn = jax.tree.map(lambda a: a[i], ahead)
        return method.step(state, Net(program, data, weights, seed, first + i, drawn))

    # The number of iterations is an argument, so that intervals of all lengths share one program.
    return lax.fori_loop(skip, skip + count, body, state)


_advance = jax.jit(_interval, static_argnums=0, donate_argnums=6)
_advance_small = jax.jit(_interval, static_argnums=0, donate_argnums=6, compiler_options=WITHOUT_LIBRARY)


@cache
def _small_is_known() -> bool:
    """Whether steps run on the CPU and its compiler knows the option; both are so in the versions tested."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda x: x + 1, compiler_options=WITHOUT_LIBRARY)(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


@partial(jax.jit, static_argnums=0)
def _evaluate(oracle: Oracle, x: jax.Array, data: Any) -> dict[str, jax.Array]:
    held = max(np.prod(leaf.shape[:2], dtype=int) for leaf in jax.tree.leaves(data))

    def everywhere(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, grad = jax.vmap(oracle.exact, in_axes=(None, 0))(point, data)
        return value.mean(), grad.mean(axis=0)

    points = jnp.concatenate([x.mean(axis=0, keepdims=True), x])
    at_once = max(1, min(len(points), EVALUATED_AT_ONCE // int(held)))
    values, grads = lax.map(everywhere, points, batch_size=at_once)
    return metrics(x, values, grads)


def _turn(a: jax.Array, t: Any) -> jax.Array:
    return a[0] if a.shape[0] == 1 else a[t % a.shape[0]]


def _number(value: Any, dtype: Any) -> jax.Array:
    return jnp.asarray(value, jnp.int32 if isinstance(value, Integral) else dtype)


def _chunk(oracle: Oracle, data: Any, requests: tuple[tuple[int, int], ...]) -> int:
    """How many iterations' samples are drawn at once."""
    drawn = jax.eval_shape(lambda: [draw(oracle, data, jnp.uint32(0), jnp.int32(1), *r) for r in requests])
    a_step = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))
    return int(np.clip(DRAWN_AHEAD // max(1, a_step), 1, 1024))


def _weights(network: Network, dtype: Any) -> Dense | Gather:
    heard = [np.diff(matrix.indptr) for matrix in network.matrices]
    widest = max(int(h.max()) for h in heard)
    # Measured on a CPU, n = 20 to 1,024: a gather wins where W is less than a quarter full. For GPUs 8 is a guess.
    if network.n <= (4 if jax.default_backend() == "cpu" else 8) * widest:
        return Dense(jnp.asarray(np.stack([matrix.toarray() for matrix in network.matrices]), dtype))
    neighbours = np.zeros((network.period, network.n, widest), dtype=np.int32)
    weights = np.zeros((network.period, network.n, widest))
    for turn, (matrix, counts) in enumerate(zip(network.matrices, heard, strict=True)):
        row = np.repeat(np.arange(network.n), counts)
        slot = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
        neighbours[turn, row, slot], weights[turn, row, slot] = matrix.indices, matrix.data
    return Gather(jnp.asarray(neighbours), jnp.asarray(weights, dtype))


_PLACED: weakref.WeakKeyDictionary[Problem, dict[str, Any]] = weakref.WeakKeyDictionary()


def _on_device(problem: Problem, dtype: Any) -> Any:
    """The problem's data on the device, copied once however many runs use it."""
    placed = _PLACED.setdefault(problem, {})
    name = np.dtype(dtype).name
    if name not in placed:
        placed[name] = cast(problem.data, dtype)
    return placed[name]
