"""The simulator: nodes are the leading axis of one array, and an interval of iterations is one compiled program.

The method's numbers, the data and the weights are arguments of the program, never constants in it, so another step
size, seed, strength or interval length runs the program there is. Samples for many iterations are drawn ahead in one
go; restarts draw theirs when they happen.
"""

from __future__ import annotations

import weakref
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peerdescent.engines.program import Program, begin, draw, interval, number, weights_of
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Oracle, Problem, cast
from peerdescent.runs.record import Books, metrics

DRAWN_AHEAD = 1 << 22
"""Bytes of samples drawn ahead at once."""

SMALL = 1 << 18
"""Multiply-adds of a step up to which it is better compiled as one function than spread over library calls."""

WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Compiler option: matrix products by plain loops, since a loop that calls the library is not made one function."""

EVALUATED_AT_ONCE = 1 << 24
"""Numbers (a node's samples x points) held at once while metrics are evaluated."""


class Stacked:
    """The engine: `start` performs iteration 0, `advance` later ones, `evaluate` measures."""

    axis: str | None = None
    weights: Any

    def __init__(self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> None:
        self.numbers = {name: number(value, dtype) for name, value in method.numbers.items()}
        self.seed, books = jnp.uint32(seed), Books(method, problem.samples, [0.0])
        self.place(problem, network, dtype)
        self.program = Program(method.pattern, problem.oracle, books.twins, axis=self.axis)
        self.requests = books.requests
        self.chunk = chunk_of(problem.oracle, self.data, self.requests)
        self.drawn: tuple[int, Any] | None = None
        self.small = is_small(problem, self.weights.width, self.requests)

    def place(self, problem: Problem, network: Network, dtype: Any) -> None:
        """Put the nodes' data and the weights where they are used."""
        self.data, self.weights = on_device(problem, dtype), weights_of(network, dtype)

    def warm_up(self, x0: np.ndarray, stationarity: bool = True) -> None:
        """Start, advance by nothing and evaluate: the programs are then compiled."""
        jax.block_until_ready(self._advance(self.start(x0), 1, 0, *self._ahead(1)))
        self.evaluate(x0, stationarity)

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

    def evaluate(self, x: Any, stationarity: bool = True) -> dict[str, float]:
        """The metrics that need the problem, at iterates x (n, p)."""
        found = _evaluate(self.program.oracle, stationarity, jnp.asarray(x), self.data)
        return {k: float(v) for k, v in found.items()}

    def gather(self, state: Any) -> Any:
        """A copy in NumPy arrays (n, p)."""
        return jax.tree.map(np.array, state)

    def scatter(self, kept: Any) -> Any:
        """A copy on the device, since `advance` consumes it."""
        return jax.tree.map(jnp.array, kept)

    def _ahead(self, t: int) -> tuple[int, Any]:
        """The samples drawn ahead that cover iteration t, and the iteration they begin with; kept between intervals."""
        if self.drawn is None or not 0 <= t - self.drawn[0] < self.chunk:
            self.drawn = t, {request: self._draw(*request, np.int32(t)) for request in self.requests}
        return self.drawn

    def _draw(self, call: int, batch: int, t: np.int32) -> Any:
        return draw_ahead(self.program.oracle, call, batch, self.chunk, self.data, self.seed, t)

    def _advance(self, state: Any, t: int, count: int, first: int, ahead: Any) -> Any:
        values = self.numbers, self.data, self.weights, self.seed, ahead
        advance = _advance_small if self.small else _advance
        return advance(self.program, *values, state, np.array([first, t - first, count], np.int32))


_start = jax.jit(begin, static_argnums=0)
_advance = jax.jit(interval, static_argnums=0, donate_argnums=6)
_advance_small = jax.jit(interval, static_argnums=0, donate_argnums=6, compiler_options=WITHOUT_LIBRARY)


# A program of its own, since all methods that ask for the same samples share it.
@partial(jax.jit, static_argnums=(0, 1, 2, 3), static_argnames="axis")
def draw_ahead(
    oracle: Oracle, call: int, batch: int, chunk: int, data: Any, seed: Any, t: Any, axis: str | None = None
) -> Any:
    """The samples of iterations t, ..., t + chunk - 1."""
    return jax.vmap(lambda s: draw(oracle, data, seed, s, call, batch, axis))(t + jnp.arange(chunk))


def is_small(problem: Problem, width: int, requests: tuple[tuple[int, int], ...]) -> bool:
    """Whether a step is better compiled as one function: it is tiny, and the compiler can be told so."""
    # A gradient uses every parameter about once a sample, and a mix once a neighbour.
    work = problem.nodes * problem.dimension * (width + sum(batch for _, batch in requests))
    return work <= SMALL and _small_is_known()


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


@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(oracle: Oracle, stationarity: bool, x: jax.Array, data: Any) -> dict[str, jax.Array]:
    return measured(oracle, stationarity, x, data)


def measured(
    oracle: Oracle, stationarity: bool, x: jax.Array, data: Any, axis: str | None = None
) -> dict[str, jax.Array]:
    """The metrics at iterates x (n, p) of all nodes; `data` are of all, or of those on this device of a mesh."""
    points = x.mean(axis=0, keepdims=True)
    if stationarity:
        points = jnp.concatenate([points, x])
    found = everywhere(oracle, points, data)
    return metrics(x, *(found if axis is None else lax.pmean(found, axis)))


def everywhere(oracle: Oracle, points: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    """F (k,) and its gradients (k, p) at points (k, p)."""
    sizes = jax.tree.leaves(data)[0].shape
    held = max(int(np.prod(leaf.shape[1:2])) for leaf in jax.tree.leaves(data))

    def some(points: jax.Array) -> tuple[jax.Array, jax.Array]:
        # A node after the other: memory is linear in points and in nodes, and a node's rows stay in the cache.
        def node(total: Any, own: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.vmap(oracle.exact, (0, None))(points, own)), None

        nothing = jnp.zeros(points.shape[0], points.dtype), jnp.zeros_like(points)
        values, grads = lax.scan(node, nothing, data)[0]
        return values / sizes[0], grads / sizes[0]

    at_once = max(1, EVALUATED_AT_ONCE // max(held, points.shape[1]))
    if len(points) <= at_once:
        return some(points)
    padded = jnp.pad(points, ((0, -len(points) % at_once), (0, 0)), mode="edge").reshape(-1, at_once, points.shape[1])
    values, grads = lax.map(some, padded)
    return values.ravel()[: len(points)], grads.reshape(-1, points.shape[1])[: len(points)]


def chunk_of(oracle: Oracle, data: Any, requests: tuple[tuple[int, int], ...]) -> int:
    """How many iterations' samples are drawn at once."""
    drawn = jax.eval_shape(lambda: [draw(oracle, data, jnp.uint32(0), jnp.int32(1), *r) for r in requests])
    a_step = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))
    return int(np.clip(DRAWN_AHEAD // max(1, a_step), 1, 1024))


_PLACED: weakref.WeakKeyDictionary[Problem, dict[str, Any]] = weakref.WeakKeyDictionary()


def on_device(problem: Problem, dtype: Any) -> Any:
    """The problem's data on the device, copied once however many runs use it."""
    placed = _PLACED.setdefault(problem, {})
    name = np.dtype(dtype).name
    if name not in placed:
        placed[name] = cast(problem.data, dtype)
    return placed[name]
