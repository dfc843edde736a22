"""One iteration in JAX: the verbs on vectors (n, p), or (n, c, p) for c configurations at once.

With a configuration axis, the method's code is the same: its numbers are arrays (c, 1), which
broadcast. All configurations share their samples, so a minibatch gradient is one matrix product for
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from peerdescent.compressors import Compressor
from peerdescent.engines.contract import Running
from peerdescent.engines.convolutions import by_products
from peerdescent.engines.devices import on_gpu
from peerdescent.engines.mixing import AXIS, Turn, Weights
from peerdescent.engines.parts import Parts, is_vector, joined, split
from peerdescent.engines.products import by_three
from peerdescent.errors import require
from peerdescent.keys import node_keys
from peerdescent.methods.contract import Calls, Method
from peerdescent.problems.problem import Oracle
from peerdescent.threefry import COMPRESSION, coin, source

MERGED_FROM = 8
"""From this batch size on, gradients at several points on one sample are one product. Below, joining is slower."""

BLOCK = 16
"""Iterations between two questions of a GPU whether to go on."""

RESTARTED_TOGETHER = 8
"""How many configurations compute their restarts at once."""


class Program(NamedTuple):
    """What determines a compiled program, besides the shapes of its arguments. Equal programs are compiled once."""

    method: Method
    oracle: Oracle
    aliases: tuple[int, ...]
    """For each leaf of the state, the first leaf that is always equal to it. The loop carries only that one."""
    many: bool = False
    """Whether vectors have a configuration axis, and arguments a seed axis."""
    code: str = ""
    """A checksum of a user's own code in the method, with the values that it takes from around it."""
    rounds: tuple[int, ...] = ()
    """The numbers of the rounds of communication in every iteration."""
    penalty: Any = None
    """The problem's non-smooth term."""
    parts: tuple[int, ...] = ()
    """The sizes of the parts in which steps keep their vectors; empty if they are single arrays."""
    mesh: Mesh | None = None
    """The devices that share the nodes; each runs this program for its own nodes."""

    @property
    def axis(self) -> str | None:
        """The name of the mesh axis, if there is a mesh."""
        return None if self.mesh is None else AXIS


class Sample(NamedTuple):
    """The samples of all nodes, and their size."""

    drawn: Any
    batch: int


class Pending:
    """A gradient that is computed on first use, so that gradients on the same sample can share one product."""

    __array_ufunc__ = None  # NumPy's arrays leave the arithmetic to this class

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
        return self.value * settled(other)

    def __truediv__(self, other: Any) -> Any:
        return self.value / settled(other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.value

    def __pow__(self, other: Any) -> Any:
        return self.value**other

    def __neg__(self) -> Any:
        return -self.value

    __radd__, __rmul__ = __add__, __mul__


def settled(tree: Any) -> Any:
    """The same tree with every pending gradient computed."""
    return jax.tree.map(
        lambda a: a.value if isinstance(a, Pending) else a, tree, is_leaf=_is_pending
    )


def _is_pending(a: Any) -> bool:
    return isinstance(a, Pending)


class Net:
    """The verbs in iteration t."""

    def __init__(
        self,
        program: Program,
        data: Any,
        turn: Turn,
        seed: Any,
        t: Any,
        drawn: dict[tuple[int, int], Any],
    ) -> None:
        self.program, self.data, self.turn, self.seed, self.t, self.drawn = (
            program,
            data,
            turn,
            seed,
            t,
            drawn,
        )
        self.calls = Calls()
        self.rare = False
        self.due: Any = (
            None  # inside `then` of an `every`: the configurations that take it, unless all do
        )
        self.pending: list[Pending] = []

    def sample(self, batch: int) -> Sample:
        """A sample that was drawn ahead, else a new one."""
        request = self.calls.take("sample"), batch
        if request in self.drawn and not self.rare:
            return Sample(self.drawn[request], batch)
        program = self.program
        return Sample(
            draw(program.oracle, self.data, self.seed, self.t, *request, program.axis), batch
        )

    def grad(self, x: Any, sample: Sample) -> Any:
        """Every node's minibatch gradient."""
        x = settled(x)
        if isinstance(x, Parts):
            return Parts(jax.vmap(_precise(self._oracle.grad))(x.arrays, sample.drawn, self.data))
        if not self.program.many:
            return jax.vmap(self._oracle.grad)(x, sample.drawn, self.data)
        if self.due is not None or sample.batch < MERGED_FROM:
            return self._where_due(partial(self._gradients, sample=sample), x)
        self.pending.append(Pending(self, x, sample))
        return self.pending[-1]

    def full_grad(self, x: Any) -> Any:
        """Every node's exact gradient."""
        x, exact = settled(x), with_products(self.program.oracle).exact
        if isinstance(x, Parts):
            return Parts(jax.vmap(_precise(exact))(x.arrays, self.data)[1])
        if not self.program.many:
            return jax.vmap(exact)(x, self.data)[1]
        return self._where_due(lambda x: jax.vmap(jax.vmap(exact, (0, None)))(x, self.data)[1], x)

    def mix(self, x: Any) -> Any:
        """One round of communication."""
        return jax.tree.map(partial(self.turn.mix, self.calls.take("round")), settled(x))

    def disagree(self, x: Any) -> Any:
        """One round of communication, for the difference to what was mixed."""
        return jax.tree.map(partial(self.turn.disagree, self.calls.take("round")), settled(x))

    def push(self, x: Any, w: Any = None) -> Any:
        """One round of communication, with weights whose columns sum to 1; of a number behind the vector, too."""
        push = partial(self.turn.push, self.calls.take("round"))
        if w is None:
            return jax.tree.map(push, settled(x))
        x = settled(x)
        whole, parts = joined(x), self.program.parts if is_vector(x) else ()
        numbers = jnp.broadcast_to(w, (*whole.shape[:-1], 1)).astype(whole.dtype)
        both = push(jnp.concatenate([whole, numbers], axis=-1))
        return split(both[..., :-1], parts), both[..., -1:]

    def compress(self, x: Any, operator: Compressor) -> jax.Array:
        """C(x), with draws of each node's own."""
        x, number = settled(x), self.calls.take("compression")
        draw = source(jnp, self.seed, self.t, COMPRESSION, number)
        found: jax.Array = operator.apply(x, draw.of(_nodes(len(x), self.program.axis)))
        require(
            found.shape == x.shape,
            f"{operator} makes vectors of shape {found.shape} of {x.shape}: keep it, and draw by draw.uniform_like(x)",
        )
        return found

    def prox(self, x: Any, step: Any) -> jax.Array:
        """The proximal operator of the problem's non-smooth term."""
        penalty, x = self.program.penalty, settled(x)
        found: jax.Array = x if penalty is None else penalty.prox(x, step)
        return found

    def dot(self, x: Any, y: Any) -> jax.Array:
        """Every node's inner product, with a last axis of length 1."""
        products = jax.tree.leaves(settled(x) * settled(y))
        return reduce(add, (a.sum(axis=-1, keepdims=True) for a in products))

    def every(
        self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any], phase: Any = 0
    ) -> Any:
        """One of the two, by the iteration."""
        return self._either((self.t - phase) % period == 0, then, otherwise)

    def chance(
        self, probability: Any, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """One of the two, by a coin."""
        return self._either(
            coin(jnp, self.seed, self.t, self.calls.take("coin"), probability), then, otherwise
        )

    def _either(self, due: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Compute only the branch that is taken. If configurations differ, only those that take `then` compute it, and
        the other branch is for all, unless nobody takes it."""
        self.settle()
        call, rare, outer = self.calls.next, self.rare, self.due

        def side(thunk: Callable[[], Any], is_rare: bool) -> Any:
            self.rare = is_rare
            with self.calls.inside(call):
                value = settled(thunk())
            self.pending.clear()  # a gradient that this branch did not use must not be computed outside of it
            return value

        if jnp.ndim(due) == 0:
            value = lax.cond(due, lambda: side(then, True), lambda: side(otherwise, rare))
        else:
            nothing = jax.eval_shape(lambda: side(otherwise, rare))
            nobody = (due[:, 0] if outer is None else due[:, 0] | ~outer).all()
            zeros = partial(jax.tree.map, lambda a: jnp.zeros(a.shape, a.dtype), nothing)
            ordinary = lax.cond(nobody, zeros, lambda: side(otherwise, rare))
            self.due = due[:, 0] if outer is None else due[:, 0] & outer

            def some() -> Any:
                return jax.tree.map(lambda a, b: jnp.where(due, a, b), side(then, True), ordinary)

            value = lax.cond(self.due.any(), some, lambda: ordinary)
        self.rare, self.due = rare, outer
        return value

    def settle(self) -> None:
        """Compute all pending gradients, those on the same sample together."""
        while self.pending:
            sample = self.pending[0].sample
            together = [p for p in self.pending if p.sample is sample]
            self.pending = [p for p in self.pending if p.sample is not sample]
            joined = self._gradients(jnp.concatenate([p.x for p in together], axis=1), sample)
            for p, value in zip(together, jnp.split(joined, len(together), axis=1), strict=True):
                p.found = value

    @property
    def _oracle(self) -> Oracle:
        """The oracle for minibatches of these nodes."""
        return with_products(
            self.program.oracle, several=jax.tree.leaves(self.data)[0].shape[0] > 1
        )

    def _gradients(self, x: jax.Array, sample: Sample) -> jax.Array:
        """The gradients of all configurations (n, c, p) on one sample."""
        local = jax.vmap(self._oracle.grad, (0, None, None))
        return jax.vmap(local)(x, sample.drawn, self.data)

    def _where_due(self, gradients: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """The gradients of the configurations that take this branch, a few at a time, and zeros for the others."""
        if self.due is None:
            return gradients(x)
        size = min(RESTARTED_TOGETHER, x.shape[1])
        first = jnp.argsort(~self.due, stable=True)
        first = jnp.concatenate([first, first[:size]])

        def block(k: jax.Array, found: jax.Array) -> jax.Array:
            which = lax.dynamic_slice(first, (k * size,), (size,))
            return found.at[:, which].set(gradients(x[:, which]))

        return lax.fori_loop(0, (self.due.sum() + size - 1) // size, block, jnp.zeros_like(x))


def _precise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of deep models, with products as a GPU computes them best in full precision."""
    return by_three(function) if on_gpu() else function


def with_products(oracle: Oracle, several: bool = False) -> Oracle:
    """The oracle, with convolutions as products where these are faster.

    On a CPU they are always, since XLA has no fast convolutions inside of loops there. On a GPU
    they are for minibatches of several nodes; patches of all rows would need much of its memory.
    """
    return by_products(oracle) if several or not on_gpu() else oracle


def draw(
    oracle: Oracle, data: Any, seed: Any, t: Any, call: int, batch: int, axis: str | None = None
) -> Any:
    """The samples of all nodes in iteration t; with a mesh axis, of the nodes on this device."""
    nodes = _nodes(jax.tree.leaves(data)[0].shape[0], axis)
    return jax.vmap(partial(oracle.draw, batch=batch))(node_keys(seed, nodes, t, call), data)


def _nodes(count: int, axis: str | None) -> jax.Array:
    """The numbers of all nodes; with a mesh axis, of those on this device."""
    nodes = jnp.arange(count)
    return nodes if axis is None else nodes + lax.axis_index(axis) * count


def begin(
    program: Program,
    numbers: Any,
    data: Any,
    weights: Weights,
    seed: Any,
    ahead: Any,
    x0: jax.Array,
) -> Any:
    """The state after iteration 0; `ahead` has samples from iteration 0 on."""
    memory = weights.begin(seed)
    net = Net(
        program, data, weights.at(seed, 0, memory), seed, 0, jax.tree.map(lambda a: a[0], ahead)
    )
    state = settled(program.method.replace(**numbers).at(jnp.int32(0)).init(x0, net))
    # Python numbers in the state of a custom method become arrays of a fixed type, as they are when
    # read from a file.
    return Running.of(
        jax.tree.map(lambda a: lax.convert_element_type(a, jnp.result_type(a)), state), memory
    )


def interval(
    program: Program,
    numbers: Any,
    data: Any,
    weights: Weights,
    seed: Any,
    ahead: Any,
    state: Any,
    clock: jax.Array,
) -> Any:
    """The state after some more iterations.

    `clock` is (first, skip, count): the iterations are first + skip, ..., first + skip + count - 1,
    and `ahead` has the samples from iteration `first` on.
    """
    first, skip, count = clock
    method = program.method.replace(**numbers)
    state, memory = Running.parts(state)
    structure, distinct = jax.tree.structure(state), sorted(set(program.aliases))

    def whole(leaves: list[Any]) -> Any:
        return jax.tree.unflatten(
            structure, [leaves[distinct.index(alias)] for alias in program.aliases]
        )

    def carried(state: Any) -> list[Any]:
        leaves = jax.tree.leaves(state, is_leaf=is_vector)
        return [leaves[k] for k in distinct]

    def coming(t: jax.Array, memory: Any) -> tuple[Any, Any]:
        """The memory of links in iteration t, and what is computed ahead for it."""
        memory = weights.later(seed, t, memory)
        return memory, weights.ahead(seed, t, memory, program.rounds)

    def body(i: jax.Array, now: Any) -> Any:
        leaves, _, (memory, links) = now
        turn, drawn = (
            weights.at(seed, first + i, memory, links),
            jax.tree.map(lambda a: a[i], ahead),
        )
        net = Net(program, data, turn, seed, first + i, drawn)
        after = settled(method.at(first + i).step(whole(leaves), net))
        return turn.kept(carried(after), leaves), memory, coming(first + i + 1, memory)

    # The number of iterations is an argument, so intervals of all lengths share one program.
    begun = [split(a, program.parts) for a in carried(state)], memory, coming(first + skip, memory)
    leaves, memory, _ = _repeated(body, skip, count, begun)
    return Running.of(whole([joined(a) for a in leaves]), memory)


def _repeated(body: Callable[[Any, Any], Any], skip: Any, count: Any, begun: Any) -> Any:
    """What `body(i, state)` gives for i = skip, ..., skip + count - 1.

    On a GPU, in blocks of iterations, whose number the compiler knows: otherwise the GPU waits
    after each one until it is told to go on. And two at a time: what one writes, the other reads,
    so that nothing is copied back.
    """
    if not on_gpu():
        return lax.fori_loop(skip, skip + count, body, begun)
    blocks = count // BLOCK

    def pair(i: Any, state: Any) -> Any:
        return body(i + 1, body(i, state))

    def block(k: Any, state: Any) -> Any:
        return lax.fori_loop(
            0, BLOCK // 2, lambda j, state: pair(skip + k * BLOCK + 2 * j, state), state
        )

    return lax.fori_loop(
        skip + blocks * BLOCK, skip + count, body, lax.fori_loop(0, blocks, block, begun)
    )


def number(value: Any, dtype: Any) -> jax.Array:
    """A hyperparameter, or a list of its values, as an argument of the program."""
    value = np.asarray(value)
    return jnp.asarray(value, jnp.int32 if np.issubdtype(value.dtype, np.integer) else dtype)
