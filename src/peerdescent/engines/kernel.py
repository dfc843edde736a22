"""Sweeps on a GPU: one thread block a configuration, one kernel for all steps between two records.

A step launches a dozen kernels when XLA runs it, and a small configuration keeps a GPU busy for less time than a launch
takes. Here a block runs its configuration's iterations by itself, with sizes, periods and seeds as data, so that all
configurations of a method share one program and none waits for another. The method's own text is traced into the
kernel, as into any other engine's program; vectors are tiles (nodes, columns).

An iteration has two phases. First the gradients: `Plan` runs the method on vectors that hold nothing to learn at which
vectors of its state it will ask for gradients, and on which samples. Then the method itself, a block of columns at a
time, which is sound since all else that it does is the same for every column.

It is for linear models of moderate size over a network that does not change; `supports` says so. `fleet.Fleet` does
the rest, and is the reference this one is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from peerdescent.engines.fleet import Fleet, Member, Seen
from peerdescent.method import Calls, Method
from peerdescent.network import Network
from peerdescent.problems.keys import node_keys, scaled, words
from peerdescent.problems.logistic import Logistic, Nonzeros
from peerdescent.problems.problem import Problem
from peerdescent.record import Blank, Books

COLUMNS = 128
"""Columns of a tile."""

ROWS = 32
"""Samples of a tile, where one node's minibatch is large."""

MOST_NODES, MOST_COLUMNS = 64, 1024
"""Beyond these a tile or its gradients no longer fit into registers."""

AT_ONCE = 8192
"""Configurations of a piece."""


def supports(method: Method, problem: Problem, network: Network, dtype: Any) -> bool:
    """Whether this engine can run the method: a linear model of moderate size, and gradients asked for at its state."""
    fits = problem.nodes <= MOST_NODES and problem.dimension <= MOST_COLUMNS and network.period == 1
    dense = isinstance(problem.oracle, Logistic) and not isinstance(problem.data.rows, Nonzeros)
    if not (fits and dense and dtype == np.float32 and method.parts):
        return False
    try:
        _calls(method)
    except Unforeseen:
        return False
    return True


class Unforeseen(Exception):
    """A gradient is asked for at a vector that is computed in the same iteration."""


class Leaf(Blank):
    """A vector of the state, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Asked(NamedTuple):
    """A gradient the method will ask for: where its result goes, at which vector of the state, on which sample."""

    slot: int
    leaf: int
    call: int
    batch: Any
    """None for the exact gradient."""


class Either(NamedTuple):
    """What it will ask for on each side of an `every`."""

    period: Any
    then: list[Any]
    otherwise: list[Any]


class Plan:
    """The five verbs over vectors that hold nothing: they note which gradients an iteration needs."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.calls, self.slots = Calls(), Calls()

    def sample(self, batch: Any) -> tuple[int, Any]:
        """Its number and size."""
        return self.calls.take(), batch

    def grad(self, x: Any, sample: tuple[int, Any]) -> Blank:
        """Noted."""
        if not isinstance(x, Leaf):
            raise Unforeseen
        self.asked.append(Asked(self.slots.take(), x.number, *sample))
        return Blank()

    def full_grad(self, x: Any) -> Blank:
        """Noted."""
        return self.grad(x, (0, None))

    def mix(self, x: Any) -> Blank:
        """Nothing to note."""
        return Blank()

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Both sides, which share their slots."""
        before, call, slot = self.asked, self.calls.next, self.slots.next
        sides, ends = [], []
        for thunk in (then, otherwise):
            self.asked, self.slots.next = [], slot
            with self.calls.inside(call):
                value = thunk()
            sides.append(self.asked)
            ends.append(self.slots.next)
        self.asked, self.slots.next = [*before, Either(period, *sides)], max(ends)
        return jax.tree.map(lambda a: Blank() if isinstance(a, Blank) else a, value)


def _foreseen(act: Callable[[Any, Any], Any], state: Any) -> Plan:
    plan = Plan()
    leaves, structure = jax.tree.flatten(state)
    act(jax.tree.unflatten(structure, [Leaf(k) for k in range(len(leaves))]), plan)
    return plan


def _calls(method: Method) -> tuple[int, ...]:
    """The numbers of the samples that a method draws, at the start and later."""

    def numbers(asked: list[Any]) -> set[int]:
        found: set[int] = set()
        for one in asked:
            found |= {one.call} if isinstance(one, Asked) else numbers(one.then) | numbers(one.otherwise)
        return found

    first = Plan()
    state = method.init(Leaf(0), first)
    return tuple(sorted(numbers(first.asked) | numbers(_foreseen(method.step, state).asked)))


class World(NamedTuple):
    """What a block has at hand: arrays in memory, scalars, and the shapes of tiles."""

    rows: Any
    """All rows, (n m, columns)."""
    weights: jax.Array
    """W (nodes, nodes), zero where nodes are padding."""
    size: Any
    """How many rows each node holds (nodes,)."""
    strength: jax.Array
    scratch: Any
    """Gradients (1, slots, nodes, columns)."""
    leaves: list[Any]
    """The state, (1, nodes, columns) each."""
    keys: dict[int, jax.Array]
    """The first word of a node's key less its number, by call."""
    oracle: Logistic
    nodes: int
    held: int
    barrier: Callable[[], None]
    """All threads of the block see what the others wrote."""

    @property
    def tall(self) -> int:
        """Nodes of a tile, some of them padding."""
        return int(self.size.shape[0])

    @property
    def blocks(self) -> int:
        """How many tiles side by side make a vector."""
        return int(self.rows.shape[1]) // self.wide

    @property
    def wide(self) -> int:
        """Columns of a tile."""
        return min(COLUMNS, int(self.rows.shape[1]))


def _columns(world: World, block: Any) -> Any:
    return pl.ds(block * world.wide, world.wide)


def _fetch(world: World, t: jax.Array, asked: list[Any]) -> None:
    """Compute the gradients that an iteration needs, those on one sample together, into scratch memory."""
    waiting = list(asked)
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, Either):
            due = t % first.period == 0
            pl.when(due)(partial(_fetch, world, t, first.then))
            pl.when(jnp.logical_not(due))(partial(_fetch, world, t, first.otherwise))
            continue
        together = [first]
        while waiting and isinstance(waiting[0], Asked) and waiting[0][2:] == first[2:]:
            together.append(waiting.pop(0))
        if first.batch is None:
            _by_node(world, t, together)
        else:
            few = first.batch <= ROWS // 4
            pl.when(few)(partial(_by_sample, world, t, together))
            pl.when(jnp.logical_not(few))(partial(_by_node, world, t, together))


def _by_sample(world: World, t: jax.Array, together: list[Asked]) -> None:
    """Small minibatches: a tile is one sample of every node."""
    node = lax.broadcasted_iota(jnp.int32, (world.tall,), 0)
    real = node < world.nodes
    held = jnp.where(real, node, 0) * world.held
    size, key, batch = world.size[...], world.keys[together[0].call], together[0].batch
    first, second = key + node.astype(jnp.uint32), jnp.full((world.tall,), t.astype(jnp.uint32))
    share = 1 / batch.astype(jnp.float32)

    def one(j: jax.Array, _: Any) -> None:
        index = held + scaled(words(first, second, jnp.full((world.tall,), j.astype(jnp.uint32))), size)

        def add(k: jax.Array, margins: Any) -> Any:
            rows, at = world.rows[index, _columns(world, k)], _columns(world, k)
            leaves = [world.leaves[asked.leaf][0, :, at] for asked in together]
            return tuple(m + jnp.sum(rows * x, axis=1) for m, x in zip(margins, leaves, strict=True))

        margins = lax.fori_loop(0, world.blocks, add, tuple(jnp.zeros((world.tall,), jnp.float32) for _ in together))
        slopes = [jnp.where(real, world.oracle.slope(margin), 0.0)[:, None] * share for margin in margins]

        def put(k: jax.Array, _: Any) -> None:
            rows, at = world.rows[index, _columns(world, k)], _columns(world, k)
            for asked, slope in zip(together, slopes, strict=True):
                before = jnp.where(j > 0, world.scratch[0, asked.slot, :, at], 0.0)
                world.scratch[0, asked.slot, :, at] = before + slope * rows

        lax.fori_loop(0, world.blocks, put, None)
        world.barrier()

    lax.fori_loop(0, batch, one, None)


def _by_node(world: World, t: jax.Array, together: list[Asked]) -> None:
    """Large minibatches and exact gradients: a tile is some samples of one node."""
    exact, times = together[0].batch is None, jnp.full((ROWS,), t.astype(jnp.uint32))

    def node(i: jax.Array, _: Any) -> None:
        size = world.size[i]
        # Nodes that are padding have no samples; their gradients must still be written, as zeros.
        count = jnp.where(i < world.nodes, size if exact else together[0].batch, 0)
        share = 1 / jnp.maximum(count, 1).astype(jnp.float32)
        key = jnp.full((ROWS,), world.keys[together[0].call] + i.astype(jnp.uint32))

        def some(q: jax.Array, _: Any) -> None:
            j = q * ROWS + lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
            drawn = j if exact else scaled(words(key, times, j.astype(jnp.uint32)), jnp.full((ROWS,), size))
            index = i * world.held + jnp.minimum(drawn, size - 1)

            def add(k: jax.Array, margins: Any) -> Any:
                rows, at = world.rows[index, _columns(world, k)], _columns(world, k)
                points = [world.leaves[asked.leaf][0, i, at] for asked in together]
                return tuple(m + jnp.sum(rows * x[None, :], axis=1) for m, x in zip(margins, points, strict=True))

            margins = lax.fori_loop(0, world.blocks, add, tuple(jnp.zeros((ROWS,), jnp.float32) for _ in together))
            slopes = [jnp.where(j < count, world.oracle.slope(margin), 0.0)[:, None] * share for margin in margins]

            def put(k: jax.Array, _: Any) -> None:
                rows, at = world.rows[index, _columns(world, k)], _columns(world, k)
                for asked, slope in zip(together, slopes, strict=True):
                    before = jnp.where(q > 0, world.scratch[0, asked.slot, i, at], 0.0)
                    world.scratch[0, asked.slot, i, at] = before + jnp.sum(slope * rows, axis=0)

            lax.fori_loop(0, world.blocks, put, None)
            world.barrier()

        lax.fori_loop(0, jnp.maximum(1, (count + ROWS - 1) // ROWS), some, None)

    lax.fori_loop(0, world.tall, node, None)


class Net:
    """The five verbs in iteration t over a tile (nodes, columns); gradients are there already."""

    def __init__(self, world: World, block: Any, t: jax.Array) -> None:
        self.world, self.block, self.t = world, block, t
        self.slots = Calls()

    def sample(self, batch: Any) -> None:
        """Drawn already."""

    def grad(self, x: jax.Array, sample: Any) -> jax.Array:
        """The part of the data, fetched, and that of the regulariser."""
        world = self.world
        found = world.scratch[0, self.slots.take(), :, _columns(world, self.block)]
        if world.oracle.regulariser is None:
            return found
        return found + world.strength[:, None] * world.oracle.regulariser(x)[1]

    def full_grad(self, x: jax.Array) -> jax.Array:
        """Fetched in the same way."""
        return self.grad(x, None)

    def mix(self, x: jax.Array) -> jax.Array:
        """W x, in float32 proper."""
        return jnp.dot(self.world.weights, x, precision=lax.Precision.HIGHEST)

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """One side or the other."""
        slot, ends = self.slots.next, []

        def side(thunk: Callable[[], Any]) -> Any:
            self.slots.next = slot
            value = thunk()
            ends.append(self.slots.next)
            return value

        value = lax.cond(self.t % period == 0, lambda: side(then), lambda: side(otherwise))
        self.slots.next = max(ends)
        return value


class Shape(NamedTuple):
    """All that shapes the kernel, with the shapes of its arguments."""

    method: Method
    oracle: Logistic
    structure: Any
    twins: tuple[int, ...]
    calls: tuple[int, ...]
    slots: int
    nodes: int
    held: int
    interpreted: bool


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=7)
def _launch(
    shape: Shape, start: bool, ints: Any, floats: Any, rows: Any, weights: Any, held: Any, leaves: list[jax.Array]
) -> list[jax.Array]:
    """Run each configuration from its step to its next mark, or its iteration 0; `leaves` are (c, nodes, columns)."""
    count, tall, columns = leaves[0].shape
    kept = sorted(set(shape.twins))
    names = [sorted(name for name, v in _open(shape.method).items() if v is kind) for kind in (INTEGER, REAL)]

    def kernel(*refs: Any) -> None:
        ints, floats, rows, weights, size, strength = refs[:6]
        outs = list(refs[6 + len(leaves) :])
        scratch = outs.pop()
        c = pl.program_id(0)
        first, last = ints[c, 0], ints[c, 1]
        values = {name: ints[c, 2 + len(shape.calls) + k] for k, name in enumerate(names[0])}
        values |= {name: floats[c, k] for k, name in enumerate(names[1])}
        method = shape.method.replace(**values)
        keys = {call: ints[c, 2 + k].astype(jnp.uint32) for k, call in enumerate(shape.calls)}
        by_leaf = [outs[kept.index(twin)] for twin in shape.twins]
        world = World(
            rows, weights[...], size, strength[...], scratch, by_leaf, keys, shape.oracle, shape.nodes, shape.held,
            (lambda: None) if shape.interpreted else triton.debug_barrier,
        )  # fmt: skip
        act = method.init if start else method.step
        # At the start there is one vector, x_0, which lies where x will.
        given = Leaf(0) if start else jax.tree.unflatten(shape.structure, [Leaf(k) for k in range(len(shape.twins))])
        asked = _foreseen(act, given).asked

        def iteration(t: jax.Array, _: Any) -> None:
            _fetch(world, t, asked)
            world.barrier()

            def block(k: jax.Array, _: Any) -> None:
                tiles = [ref[0, :, _columns(world, k)] for ref in ([outs[0]] if start else by_leaf)]
                state = act(tiles[0] if start else jax.tree.unflatten(shape.structure, tiles), Net(world, k, t))
                found = jax.tree.leaves(state)
                world.barrier()
                for ref, leaf in zip(outs, kept, strict=True):
                    ref[0, :, _columns(world, k)] = found[leaf]

            lax.fori_loop(0, world.blocks, block, None)
            world.barrier()

        lax.fori_loop(first, last, iteration, None)

    def whole(a: Any) -> pl.BlockSpec:
        return pl.BlockSpec(a.shape, lambda c: (0,) * a.ndim)

    own = pl.BlockSpec((1, tall, columns), lambda c: (c, 0, 0))
    aside = pl.BlockSpec((1, shape.slots, tall, columns), lambda c: (c, 0, 0, 0))
    common = ints, floats, rows, weights, *held
    *found, _ = pl.pallas_call(
        kernel,
        grid=(count,),
        in_specs=[*map(whole, common), *[own] * len(leaves)],
        out_specs=[*[own] * len(leaves), aside],
        out_shape=[
            *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves),
            jax.ShapeDtypeStruct((count, shape.slots, tall, columns), leaves[0].dtype),
        ],
        input_output_aliases={len(common) + k: k for k in range(len(leaves))},
        interpret=shape.interpreted,
        compiler_params=None if shape.interpreted else triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )(*common, *leaves)
    return found


WARPS = 8
"""Warps of a block."""
INTEGER, REAL = object(), object()
"""Stand where a number of that kind is still to be filled in."""


def _open(method: Method) -> dict[str, Any]:
    """The hyperparameters left open in the kernel's method, with their kinds."""
    return {name: value for name, value in method.parameters.items() if value is INTEGER or value is REAL}


def _pattern(method: Method) -> Method:
    """The method with its numbers and its sizes left open: what all configurations of one kernel share."""
    numbers = method.numbers
    kinds = {
        name: INTEGER if isinstance(numbers.get(name, value), int) else REAL
        for name, value in method.parameters.items()
        if not isinstance(value, bool | str) and value is not None
    }
    return method.replace(**kinds)


class Kernel(Fleet):
    """A fleet whose members need not march in step: each has its own sizes, steps and seed."""

    def __init__(self, members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any) -> None:
        super().__init__(members, problem, network, x0, dtype)
        n, m, p = problem.data.rows.shape
        tall, columns = max(16, _power(n)), max(16, _power(p))
        rows = jnp.zeros((n, m, columns), dtype).at[:, :, :p].set(self.data.rows).reshape(n * m, columns)
        weights = jnp.zeros((tall, tall), dtype).at[:n, :n].set(jnp.asarray(network.W, dtype))
        size = jnp.ones(tall, jnp.int32).at[:n].set(self.data.size)
        strength = jnp.zeros(tall, dtype).at[:n].set(self.data.numbers)
        self.common = rows, weights, (size, strength)
        self.start = jnp.zeros((tall, columns), dtype).at[:n, :p].set(self.x0)

    def pieces(self, workers: int = 1) -> list[np.ndarray]:
        """As many together as memory allows, the longest first."""
        alike: dict[Method, list[int]] = {}
        for k, member in enumerate(self.members):
            alike.setdefault(_pattern(member.method), []).append(k)
        found = []
        for numbers in alike.values():
            numbers.sort(key=lambda k: -self.members[k].marks[-1])
            found += [np.array([numbers[k : k + AT_ONCE]]) for k in range(0, len(numbers), AT_ONCE)]
        return found

    def follow(self, piece: np.ndarray, alive: np.ndarray) -> Iterator[Seen]:
        """Run a piece from mark to mark; members that are no longer alive stand still."""
        members = [self.members[k] for k in piece[0]]
        method = members[0].method
        first = Plan()
        state = method.init(Leaf(0), first)
        slots = max(1, first.slots.next, _foreseen(method.step, state).slots.next)
        twins = Books(method, self.problem.samples, [0.0]).twins
        assert isinstance(self.problem.oracle, Logistic)
        n, p = self.problem.nodes, self.problem.dimension
        shape = Shape(
            _pattern(method), self.problem.oracle, jax.tree.structure(state), twins, _calls(method), slots, n,
            self.problem.data.rows.shape[1], jax.default_backend() == "cpu",
        )  # fmt: skip
        kinds = _open(shape.method)
        names = [sorted(name for name, v in kinds.items() if v is kind) for kind in (INTEGER, REAL)]
        seeds = jnp.array([member.seed for member in members], jnp.uint32)
        keys = [_first_words(seeds, call) for call in shape.calls]
        ints = [[member.method.parameters[name] for member in members] for name in names[0]]
        floats = [[member.method.parameters[name] for member in members] for name in names[1]]
        fixed = np.stack([np.asarray(k).view(np.int32) for k in keys] + [np.array(v, np.int32) for v in ints], axis=1)
        reals = jnp.asarray(np.array(floats or [[0.0] * len(members)]).T, self.dtype)
        marks = np.array([member.marks for member in members])

        def launch(start: bool, since: np.ndarray, until: np.ndarray, leaves: list[jax.Array]) -> list[jax.Array]:
            clock = np.stack([since, until], axis=1).astype(np.int32)
            return _launch(
                shape, start, jnp.asarray(np.concatenate([clock, fixed], axis=1)), reals, *self.common, leaves
            )

        everyone = np.ones(len(members), dtype=int)
        leaves = [jnp.tile(self.start, (len(members), 1, 1)) for _ in set(twins)]
        leaves = launch(True, 0 * everyone, everyone, leaves)
        steps = everyone
        for mark in range(marks.shape[1]):
            lives = alive[piece[0]]
            if not lives.any():
                return
            until = np.where(lives, marks[:, mark], steps)
            leaves = launch(False, steps, until, leaves)
            steps = np.maximum(until, steps)
            means = np.asarray(leaves[0][:, :n, :p].mean(axis=1))
            yield Seen(piece[0], np.full(len(members), mark), means)


@partial(jax.jit, static_argnums=1)
def _first_words(seeds: jax.Array, call: int) -> jax.Array:
    """What `node_keys` adds a node's number to."""
    zero = jnp.zeros((), jnp.int32)
    return jax.vmap(lambda seed: jax.random.key_data(node_keys(seed, zero, zero, call))[0])(seeds)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()
