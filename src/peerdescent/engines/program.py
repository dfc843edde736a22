"""One iteration as JAX sees it: the five verbs over vectors (n, p), or (n, c, p) for c configurations at once.

A configuration axis changes nothing for a method: its numbers become columns (c, 1), which its arithmetic broadcasts.
Configurations share their samples, so a minibatch gradient is one matrix product for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from peerdescent.methods.contract import Calls, Method
from peerdescent.problems.keys import node_keys
from peerdescent.problems.problem import Oracle

MERGED_FROM = 8
"""The batch from which gradients at several points on one sample are one product; below, joining points costs more."""

RESTARTED_TOGETHER = 8
"""Configurations whose restarts are computed in one go."""

AXIS = "nodes"
"""The axis of a mesh."""


class Program(NamedTuple):
    """All that shapes the compiled program, with the shapes of its arguments; equal programs are compiled once."""

    method: Method
    oracle: Oracle
    twins: tuple[int, ...]
    """For each leaf of the state, the first one that is always equal to it; only that one is carried."""
    many: bool = False
    """Whether vectors have a configuration axis, and there are several seeds."""
    mesh: Mesh | None = None
    """The devices over which nodes lie, each of which runs this program for its own nodes."""

    @property
    def axis(self) -> str | None:
        """The axis of the mesh, if there is one."""
        return None if self.mesh is None else AXIS


class Sample(NamedTuple):
    """What was drawn at every node, and how much."""

    drawn: Any
    batch: int


class Pending:
    """A gradient asked for and computed when first used, so that others on the same sample join it in one product."""

    def __init__(self, net: Net, x: jax.Array, sample: Sample) -> None:
        self.net, self.x, self.sample = net, x, sample
        self.found: jax.Array | None = None

    @property
    def value(self) -> Any:
        """The gradient."""
        if self.found is None:
            self.net.settle()
        return self.found

    def __add__(self, other: Any) -> Any:
        return self.value + settled(other)

    def __sub__(self, other: Any) -> Any:
        return self.value - settled(other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.value

    def __mul__(self, other: Any) -> Any:
        return self.value * other

    def __truediv__(self, other: Any) -> Any:
        return self.value / other

    def __neg__(self) -> Any:
        return -self.value

    __radd__, __rmul__ = __add__, __mul__


def settled(tree: Any) -> Any:
    """The same tree with every pending gradient computed."""
    return jax.tree.map(lambda a: a.value if isinstance(a, Pending) else a, tree, is_leaf=_is_pending)


def _is_pending(a: Any) -> bool:
    return isinstance(a, Pending)


class Net:
    """The five verbs in iteration t."""

    def __init__(
        self, program: Program, data: Any, weights: Any, seed: Any, t: Any, drawn: dict[tuple[int, int], Any]
    ) -> None:
        self.program, self.data, self.weights, self.seed, self.t, self.drawn = program, data, weights, seed, t, drawn
        self.calls = Calls()
        self.rare = False
        self.due: Any = None  # on the rare side of `every`: which configurations are there, where not all are
        self.pending: list[Pending] = []

    def sample(self, batch: int) -> Sample:
        """From those drawn ahead, or drawn now."""
        request = self.calls.take(), batch
        if request in self.drawn and not self.rare:
            return Sample(self.drawn[request], batch)
        program = self.program
        return Sample(draw(program.oracle, self.data, self.seed, self.t, *request, program.axis), batch)

    def grad(self, x: Any, sample: Sample) -> Any:
        """Every node's minibatch gradient."""
        x, oracle = settled(x), self.program.oracle
        if not self.program.many:
            return jax.vmap(oracle.grad)(x, sample.drawn, self.data)
        if self.due is not None or sample.batch < MERGED_FROM:
            return self._where_due(partial(self._gradients, sample=sample), x)
        self.pending.append(Pending(self, x, sample))
        return self.pending[-1]

    def full_grad(self, x: Any) -> jax.Array:
        """Every node's exact gradient."""
        x, exact = settled(x), self.program.oracle.exact
        if not self.program.many:
            return jax.vmap(exact)(x, self.data)[1]
        return self._where_due(lambda x: jax.vmap(jax.vmap(exact, (0, None)))(x, self.data)[1], x)

    def mix(self, x: Any) -> jax.Array:
        """One round."""
        return self.weights.mix(self.t, settled(x))

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Only the side that is due is computed; where configurations differ, restarts only for those that are due."""
        self.settle()
        call, rare, outer = self.calls.next, self.rare, self.due
        due = self.t % period == 0

        def side(thunk: Callable[[], Any], is_rare: bool) -> Any:
            self.rare = is_rare
            with self.calls.inside(call):
                value = settled(thunk())
            self.pending.clear()  # what this side asked for and did not use must not be computed outside of it
            return value

        if jnp.ndim(due) == 0:
            value = lax.cond(due, lambda: side(then, True), lambda: side(otherwise, rare))
        else:
            ordinary = side(otherwise, rare)
            self.due = due[:, 0] if outer is None else due[:, 0] & outer

            def some() -> Any:
                return jax.tree.map(lambda a, b: jnp.where(due, a, b), side(then, True), ordinary)

            value = lax.cond(self.due.any(), some, lambda: ordinary)
        self.rare, self.due = rare, outer
        return value

    def settle(self) -> None:
        """Compute all gradients that are pending, those on one sample together."""
        while self.pending:
            sample = self.pending[0].sample
            together = [p for p in self.pending if p.sample is sample]
            self.pending = [p for p in self.pending if p.sample is not sample]
            joined = self._gradients(jnp.concatenate([p.x for p in together], axis=1), sample)
            for p, value in zip(together, jnp.split(joined, len(together), axis=1), strict=True):
                p.found = value

    def _gradients(self, x: jax.Array, sample: Sample) -> jax.Array:
        """The gradients of all configurations (n, c, p) on one sample."""
        local = jax.vmap(self.program.oracle.grad, (0, None, None))
        return jax.vmap(local)(x, sample.drawn, self.data)

    def _where_due(self, gradients: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """Gradients of the configurations that are due, a few at a time, and zeros for the others."""
        if self.due is None:
            return gradients(x)
        size = min(RESTARTED_TOGETHER, x.shape[1])
        first = jnp.argsort(~self.due, stable=True)
        first = jnp.concatenate([first, first[:size]])

        def block(k: jax.Array, found: jax.Array) -> jax.Array:
            which = lax.dynamic_slice(first, (k * size,), (size,))
            return found.at[:, which].set(gradients(x[:, which]))

        return lax.fori_loop(0, (self.due.sum() + size - 1) // size, block, jnp.zeros_like(x))


def draw(oracle: Oracle, data: Any, seed: Any, t: Any, call: int, batch: int, axis: str | None = None) -> Any:
    """The samples of all nodes in iteration t, or of those on this device of a mesh with that axis."""
    nodes = jnp.arange(jax.tree.leaves(data)[0].shape[0])
    if axis is not None:
        nodes += lax.axis_index(axis) * len(nodes)
    return jax.vmap(partial(oracle.draw, batch=batch))(node_keys(seed, nodes, t, call), data)


def begin(program: Program, numbers: Any, data: Any, weights: Any, seed: Any, x0: jax.Array) -> Any:
    """The state after iteration 0."""
    state = settled(program.method.replace(**numbers).init(x0, Net(program, data, weights, seed, 0, {})))
    # Python numbers in a state made by hand get a type of their own, so that a state read back is of the same type.
    return jax.tree.map(lambda a: lax.convert_element_type(a, jnp.result_type(a)), state)


def interval(
    program: Program, numbers: Any, data: Any, weights: Any, seed: Any, ahead: Any, state: Any, clock: jax.Array
) -> Any:
    """The state some iterations later.

    `clock` is (first, skip, count): iterations first + skip and so on, where `ahead` has samples from `first` on.
    """
    first, skip, count = clock
    method = program.method.replace(**numbers)
    structure, kept = jax.tree.structure(state), sorted(set(program.twins))

    def whole(leaves: list[Any]) -> Any:
        return jax.tree.unflatten(structure, [leaves[kept.index(twin)] for twin in program.twins])

    def carried(state: Any) -> list[Any]:
        leaves = jax.tree.leaves(state)
        return [leaves[k] for k in kept]

    def body(i: jax.Array, leaves: list[Any]) -> list[Any]:
        drawn = jax.tree.map(lambda a: a[i], ahead)
        return carried(settled(method.step(whole(leaves), Net(program, data, weights, seed, first + i, drawn))))

    # The number of iterations is an argument, so that intervals of all lengths share one program.
    return whole(lax.fori_loop(skip, skip + count, body, carried(state)))


def number(value: Any, dtype: Any) -> jax.Array:
    """A hyperparameter, or a list of its values, as an argument of the program."""
    value = np.asarray(value)
    return jnp.asarray(value, jnp.int32 if np.issubdtype(value.dtype, np.integer) else dtype)
