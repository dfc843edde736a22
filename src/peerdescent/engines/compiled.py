"""The compiled loop: start, draw samples ahead, advance by any number of iterations, evaluate.

The same functions serve a single run (`stacked`), many configurations and seeds at once (`fleet`)
and nodes on the devices of a mesh (`sharded`); `Program` says which. The method's numbers, the data
and the weights are arguments, not constants, so another step size, seed, strength or interval
length needs no compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from peerdescent.engines.contract import Running
from peerdescent.engines.devices import on_gpu
from peerdescent.engines.feeding import Chunk, Feed
from peerdescent.engines.mixing import AXIS, FIRST, SAME, SECOND, Fixed
from peerdescent.engines.outline import outline
from peerdescent.engines.program import Program, begin, draw, interval, with_products
from peerdescent.methods.contract import Method
from peerdescent.problems.problem import Oracle, Problem

DRAWN_AHEAD = 1 << 22
"""Bytes of samples that one call draws ahead."""

SMALL = 1 << 18
"""Multiply-adds of a step up to which one compiled function is faster than a sequence of library calls."""

WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Compiler option: matrix products by plain loops. XLA does not make one function of a loop with library calls."""

EVALUATED_AT_ONCE = 1 << 24
"""Numbers (samples of a node x points) in memory at once while F is evaluated."""


class Loop:
    """Runs the iterations of a program, on samples that are drawn ahead."""

    def __init__(
        self,
        program: Program,
        method: Method,
        problem: Problem,
        numbers: Any,
        data: Any,
        weights: Any,
        seed: Any,
        feed: Feed | None = None,
    ) -> None:
        self.program, self.numbers, self.data, self.weights, self.seed = (
            program,
            numbers,
            data,
            weights,
            seed,
        )
        self.later = program._replace(method=method.later)
        does = outline(method)
        self.requests, self.first_requests = does.requests, does.first_requests
        if does.has_arrays:
            _meet_arrays_anew()
        self.feed = feed
        if feed is None:
            self.chunk = max(
                1, _chunk(problem.oracle, data, self.requests) // max(1, np.size(seed))
            )
        self.small = _is_small(problem, weights.width, self.requests)
        if program.many:
            # For many configurations the library's products with a minibatch are faster; batch 1
            # has no such products.
            self.small = self.small and all(batch == 1 for _, batch in self.requests)
        self.drawn = Chunk(0, 0, {})

    def start(self, x0: Any) -> Any:
        """The state after iteration 0."""
        return self._start(self._first(), x0)

    def some(self, state: Any, t: int, until: int) -> tuple[Any, int]:
        """The state after iterations from t on, as many as there are samples for, and the next t. Consumes `state`."""
        ahead = self._ahead(t)
        count = min(until, ahead.first + ahead.length) - t
        return self._advance(state, t, count, ahead), t + count

    def compile(self, x0: Any) -> None:
        """Compile the programs, by a start and an interval of 0 iterations."""
        if self.feed is None:
            state, ahead = self.start(x0), self._ahead(1)
        else:
            state, ahead = self._start(self.feed.blank(0).samples, x0), self.feed.blank(1)
        jax.block_until_ready(self._advance(state, 1, 0, ahead))

    def _first(self) -> Any:
        """The samples of iteration 0."""
        if self.feed is not None:
            return self.feed.take(0).samples
        # Most methods draw in iteration 0 as in later ones, and then one program serves for both.
        shared = set(self.requests) & set(self.first_requests)
        ahead = self._ahead(0).samples if shared else {}
        return {
            one: ahead[one] if one in shared else self._draw(one, 1, 0)
            for one in self.first_requests
        }

    def _ahead(self, t: int) -> Chunk:
        """The chunk that contains iteration t, with the samples drawn ahead."""
        if self.feed is not None:
            return self.feed.take(t)
        if not self.drawn.has(t):
            samples = {request: self._draw(request, self.chunk, t) for request in self.requests}
            self.drawn = Chunk(t, self.chunk, samples)
        return self.drawn

    def _draw(self, request: tuple[int, int], chunk: int, t: int) -> Any:
        """The samples of a request in iterations t, ..., t + chunk - 1."""
        return _draw(
            self.program.oracle,
            self.program.mesh,
            *request,
            chunk,
            self.data,
            self.seed,
            np.int32(t),
        )

    def _start(self, samples: Any, x0: Any) -> Any:
        return _start(self.program, self.numbers, self.data, self.weights, self.seed, samples, x0)

    def _advance(self, state: Any, t: int, count: int, ahead: Chunk) -> Any:
        advance = _advance_small if self.small else _advance
        values = self.numbers, self.data, self.weights, self.seed, ahead.samples
        return advance(
            self.later, *values, state, np.array([ahead.first, t - ahead.first, count], np.int32)
        )


_met: set[Any] = set()
"""The precision in which methods' own NumPy arrays were last compiled."""


def _meet_arrays_anew() -> None:
    """Drop compiled programs where the precision changed: JAX 0.10 keeps an array in that in which it first met it."""
    now = {jax.dtypes.canonicalize_dtype("float64")}
    if _met and _met != now:
        jax.clear_caches()
    _met.clear()
    _met.update(now)


class Alike(Fixed):
    """The identity as weights, to find the structure of a state."""

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """x itself."""
        return x

    def disagree(self, t: Any, x: jax.Array) -> jax.Array:
        """Zeros."""
        return 0 * x


def _lifted(
    act: Callable[..., Any],
    seed: Any,
    mesh: Mesh | None,
    seeds: tuple[Any, ...],
    cuts: tuple[Any, ...],
    out: Any,
) -> Any:
    """`act` mapped over seeds if there is an array of them, or over the devices of a mesh, or unchanged.

    `seeds` are the axes of the arguments that differ between seeds. `cuts` and `out` are the
    sharding of arguments and results on the mesh.
    """
    if jnp.ndim(seed):
        return partial(_by_seed, act, seeds)
    if mesh is not None:
        # JAX's check of replication is off: it rejects a scan whose carry starts as zeros, as in an
        # evaluation.
        return jax.shard_map(act, mesh=mesh, in_specs=cuts, out_specs=out, check_vma=False)
    return act


def _by_seed(act: Callable[..., Any], seeds: tuple[Any, ...], *values: Any) -> Any:
    """`act` mapped over seeds. A single one is not mapped, since both sides of a branch by a coin would be computed."""
    count = {
        len(leaf)
        for axis, tree in zip(seeds, values, strict=True)
        if axis == 0
        for leaf in jax.tree.leaves(tree)
    }
    if count != {1}:
        return jax.vmap(act, in_axes=seeds)(*values)
    pairs = zip(seeds, values, strict=True)
    alone = [tree if axis is None else jax.tree.map(lambda a: a[0], tree) for axis, tree in pairs]
    return jax.tree.map(lambda a: a[None], act(*alone))


def cuts_of(state: Any) -> Any:
    """The sharding of a state: vectors are sharded by node; single numbers and the memory of links are replicated."""
    own, memory = Running.parts(state)
    return Running.of(
        jax.tree.map(lambda a: FIRST if np.ndim(a) else SAME, own),
        jax.tree.map(lambda _: SAME, memory),
    )


@partial(jax.jit, static_argnums=0)
def _start(
    program: Program, numbers: Any, data: Any, weights: Any, seed: Any, ahead: Any, x0: Any
) -> Any:
    out = None
    if program.mesh is not None:
        alone = partial(begin, program._replace(mesh=None), weights=Alike())
        own = jax.eval_shape(partial(alone, numbers, data, seed=seed, ahead=ahead, x0=x0))
        out = cuts_of(Running.of(own, jax.eval_shape(weights.begin, seed)))
    seeds, cuts = (None, None, None, 0, 0, None), (SAME, FIRST, weights.cut, SAME, SECOND, FIRST)
    act = _lifted(partial(begin, program), seed, program.mesh, seeds, cuts, out)
    return act(numbers, data, weights, seed, ahead, x0)


def _interval(
    program: Program,
    numbers: Any,
    data: Any,
    weights: Any,
    seed: Any,
    ahead: Any,
    state: Any,
    clock: Any,
) -> Any:
    cut = cuts_of(state)
    seeds, cuts = (
        (None, None, None, 0, 0, 0, None),
        (SAME, FIRST, weights.cut, SAME, SECOND, cut, SAME),
    )
    act = _lifted(partial(interval, program), seed, program.mesh, seeds, cuts, cut)
    return act(numbers, data, weights, seed, ahead, state, clock)


_advance = jax.jit(_interval, static_argnums=0, donate_argnums=6)
_advance_small = jax.jit(
    _interval, static_argnums=0, donate_argnums=6, compiler_options=WITHOUT_LIBRARY
)


# Compiled separately, since all methods that draw the same samples share it.
@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _draw(
    oracle: Oracle,
    mesh: Mesh | None,
    call: int,
    batch: int,
    chunk: int,
    data: Any,
    seed: Any,
    t: Any,
) -> Any:
    """The samples of iterations t, ..., t + chunk - 1."""
    axis = None if mesh is None else AXIS

    def ahead(data: Any, seed: Any, t: Any) -> Any:
        return jax.vmap(lambda s: draw(oracle, data, seed, s, call, batch, axis))(
            t + jnp.arange(chunk)
        )

    return _lifted(ahead, seed, mesh, (None, 0, None), (FIRST, SAME, SAME), SECOND)(data, seed, t)


def forget() -> None:
    """Drop compiled programs, of which a process can hold a few hundred before the system refuses it more memory maps.

    The cache on disk keeps them.
    """
    programs: list[Any] = [_start, _advance, _advance_small, _draw]
    for one in programs:
        one.clear_cache()


@partial(jax.jit, static_argnums=(0, 1))
def evaluate(
    oracle: Oracle, mesh: Mesh | None, points: jax.Array, data: Any
) -> tuple[jax.Array, jax.Array]:
    """F (k,) and its gradients (k, p) at points (k, p). On a mesh, each device computes the part of its own nodes."""

    def share(points: jax.Array, data: Any) -> Any:
        found = _average(oracle, points, data)
        return found if mesh is None else lax.pmean(found, AXIS)

    found: tuple[jax.Array, jax.Array] = _lifted(share, 0, mesh, (), (SAME, FIRST), SAME)(
        points, data
    )
    return found


def _average(oracle: Oracle, points: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    """The mean over the nodes in `data` of f_i (k,) and of its gradients (k, p) at points (k, p)."""
    sizes, exact = jax.tree.leaves(data)[0].shape, with_products(oracle).exact
    held = max(int(np.prod(leaf.shape[1:2])) for leaf in jax.tree.leaves(data))

    def some(points: jax.Array) -> tuple[jax.Array, jax.Array]:
        # One node after the other, so that the rows of a node stay in the cache.
        def node(total: Any, own: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.vmap(exact, (0, None))(points, own)), None

        nothing = jnp.zeros(points.shape[0], points.dtype), jnp.zeros_like(points)
        values, grads = lax.scan(node, nothing, data)[0]
        return values / sizes[0], grads / sizes[0]

    at_once = max(1, EVALUATED_AT_ONCE // max(held, points.shape[1]))
    if len(points) <= at_once:
        return some(points)
    padded = jnp.pad(points, ((0, -len(points) % at_once), (0, 0)), mode="edge").reshape(
        -1, at_once, points.shape[1]
    )
    values, grads = lax.map(some, padded)
    return values.ravel()[: len(points)], grads.reshape(-1, points.shape[1])[: len(points)]


def _is_small(problem: Problem, width: int, requests: tuple[tuple[int, int], ...]) -> bool:
    """Whether a step should be compiled as one function: it is small, and the compiler has the option."""
    # A gradient takes about one multiply-add per parameter and sample, and a mix one per parameter
    # and neighbour.
    work = problem.nodes * problem.dimension * (width + sum(batch for _, batch in requests))
    return work <= SMALL and not on_gpu() and _small_is_known()


@cache
def _small_is_known() -> bool:
    """Whether the compiler for the CPU knows the option, as in the versions tested."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=WITHOUT_LIBRARY)(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _chunk(oracle: Oracle, data: Any, requests: tuple[tuple[int, int], ...]) -> int:
    """For how many iterations samples are drawn at once."""
    drawn = jax.eval_shape(
        lambda: [draw(oracle, data, jnp.uint32(0), jnp.int32(1), *r) for r in requests]
    )
    a_step = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))
    return int(np.clip(DRAWN_AHEAD // max(1, a_step), 1, 1024))
