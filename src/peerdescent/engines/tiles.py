"""What happens inside one block of the GPU kernel: vectors are tiles (nodes, columns), and here are their verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from peerdescent.engines.plan import Asked, Either, slots_of
from peerdescent.method import Calls
from peerdescent.problems.keys import scaled, words
from peerdescent.problems.logistic import Logistic

COLUMNS = 128
"""Columns of a tile."""

FEW = 8
"""The largest minibatch of which a tile holds one sample of every node; beyond, it holds many samples of one node."""

ROWS = 32
"""Samples of a tile, where one node's minibatch is large."""


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
    slopes: Any
    """The slope of the loss at each sample of a large minibatch (1, slots, samples)."""
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


def columns(world: World, block: Any) -> Any:
    """The columns of a block."""
    return pl.ds(block * world.wide, world.wide)


def fetch(world: World, t: jax.Array, asked: list[Any]) -> None:
    """Compute the gradients that an iteration needs, those on one sample together, into scratch memory."""
    for together in _groups(asked):
        if isinstance(together, Either):
            due = t % together.period == 0
            pl.when(due)(partial(fetch, world, t, together.then))
            pl.when(jnp.logical_not(due))(partial(fetch, world, t, together.otherwise))
        elif together[0].batch is None:
            _by_node(world, t, together)
        else:
            few = together[0].batch <= FEW
            pl.when(few)(partial(_by_sample, world, t, together))
            pl.when(jnp.logical_not(few))(partial(_by_node, world, t, together))


def fetched(world: World, t: jax.Array, asked: list[Any], state: list[jax.Array]) -> dict[int, jax.Array]:
    """The same where a vector is one tile: the state is in registers, and so are the gradients, by slot."""
    found: dict[int, jax.Array] = {}
    for together in _groups(asked):
        if isinstance(together, Either):
            sides = [together.then, together.otherwise]
            slots = sorted({slot for side in sides for slot in slots_of(side)})

            def one_side(side: list[Any], slots: list[int] = slots) -> list[jax.Array]:
                own = fetched(world, t, side, state)
                return [own.get(slot, jnp.zeros_like(state[0])) for slot in slots]

            values = lax.cond(t % together.period == 0, *(partial(one_side, side) for side in sides))
        else:
            slots = [asked.slot for asked in together]
            points = [state[asked.leaf] for asked in together]
            many = partial(_through_memory, world, t, together, points)
            few = partial(_of_samples, world, t, together[0].call, together[0].batch, points)
            values = many() if together[0].batch is None else lax.cond(together[0].batch <= FEW, few, many)
        found |= dict(zip(slots, values, strict=True))
    return found


def _groups(asked: list[Any]) -> Iterator[Any]:
    """Gradients on one sample together, and what depends on the iteration by itself."""
    waiting = list(asked)
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, Either):
            yield first
            continue
        together = [first]
        while waiting and isinstance(waiting[0], Asked) and waiting[0][2:] == first[2:]:
            together.append(waiting.pop(0))
        yield together


def _through_memory(world: World, t: jax.Array, together: list[Asked], points: list[jax.Array]) -> list[jax.Array]:
    """Large minibatches are computed a node at a time, which needs the points in memory."""
    for asked, x in zip(together, points, strict=True):
        world.leaves[asked.leaf][0] = x
    world.barrier()
    _by_node(world, t, together)
    return [world.scratch[0, asked.slot] for asked in together]


def _indices(world: World, t: jax.Array, call: int) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Which nodes are not padding, and the rows that all nodes draw as their sample number j."""
    node = lax.broadcasted_iota(jnp.int32, (world.tall,), 0)
    real = node < world.nodes
    held, size = jnp.where(real, node, 0) * world.held, world.size[...]
    first, second = world.keys[call] + node.astype(jnp.uint32), jnp.full((world.tall,), t.astype(jnp.uint32))
    return real, lambda j: held + scaled(words(first, second, jnp.full((world.tall,), j.astype(jnp.uint32))), size)


def _of_samples(world: World, t: jax.Array, call: int, batch: Any, points: list[jax.Array]) -> list[jax.Array]:
    """Small minibatches where a vector is one tile: rows are read once, sums stay in registers."""
    real, index_of = _indices(world, t, call)

    def add(j: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
        rows = world.rows[index_of(j), :]
        slopes = [jnp.where(real, world.oracle.slope(jnp.sum(rows * x, axis=1)), 0.0) for x in points]
        return [g + s[:, None] * rows for g, s in zip(sums, slopes, strict=True)]

    share = 1 / batch.astype(jnp.float32)
    return [g * share for g in lax.fori_loop(0, batch, add, [jnp.zeros_like(x) for x in points])]


def _by_sample(world: World, t: jax.Array, together: list[Asked]) -> None:
    """Small minibatches: a tile is one sample of every node."""
    batch, share = together[0].batch, 1 / together[0].batch.astype(jnp.float32)
    real, index_of = _indices(world, t, together[0].call)

    def one(j: jax.Array, _: Any) -> None:
        index = index_of(j)

        def add(k: jax.Array, margins: Any) -> Any:
            rows, at = world.rows[index, columns(world, k)], columns(world, k)
            leaves = [world.leaves[asked.leaf][0, :, at] for asked in together]
            return tuple(m + jnp.sum(rows * x, axis=1) for m, x in zip(margins, leaves, strict=True))

        margins = lax.fori_loop(0, world.blocks, add, tuple(jnp.zeros((world.tall,), jnp.float32) for _ in together))
        slopes = [jnp.where(real, world.oracle.slope(margin), 0.0)[:, None] * share for margin in margins]

        def put(k: jax.Array, _: Any) -> None:
            rows, at = world.rows[index, columns(world, k)], columns(world, k)
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

        chunks = (count + ROWS - 1) // ROWS

        def index_of(q: jax.Array) -> tuple[jax.Array, jax.Array]:
            j = q * ROWS + lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
            drawn = j if exact else scaled(words(key, times, j.astype(jnp.uint32)), jnp.full((ROWS,), size))
            return j, i * world.held + jnp.minimum(drawn, size - 1)

        def slope(q: jax.Array, _: Any) -> None:
            j, index = index_of(q)

            def add(k: jax.Array, margins: Any) -> Any:
                rows, at = world.rows[index, columns(world, k)], columns(world, k)
                points = [world.leaves[asked.leaf][0, i, at] for asked in together]
                return tuple(m + jnp.sum(rows * x[None, :], axis=1) for m, x in zip(margins, points, strict=True))

            margins = lax.fori_loop(0, world.blocks, add, tuple(jnp.zeros((ROWS,), jnp.float32) for _ in together))
            for asked, margin in zip(together, margins, strict=True):
                found = jnp.where(j < count, world.oracle.slope(margin), 0.0) * share
                world.slopes[0, asked.slot, pl.ds(q * ROWS, ROWS)] = found

        def total(k: jax.Array, _: Any) -> None:
            def add(q: jax.Array, sums: Any) -> Any:
                rows = world.rows[index_of(q)[1], columns(world, k)]
                slopes = [world.slopes[0, asked.slot, pl.ds(q * ROWS, ROWS)] for asked in together]
                return tuple(g + s[:, None] * rows for g, s in zip(sums, slopes, strict=True))

            nothing = tuple(jnp.zeros((ROWS, world.wide), jnp.float32) for _ in together)
            # Tiles are summed first and their rows last: only the latter needs other threads.
            for asked, sums in zip(together, lax.fori_loop(0, chunks, add, nothing), strict=True):
                world.scratch[0, asked.slot, i, columns(world, k)] = jnp.sum(sums, axis=0)

        lax.fori_loop(0, chunks, slope, None)
        world.barrier()
        lax.fori_loop(0, world.blocks, total, None)
        world.barrier()

    lax.fori_loop(0, world.tall, node, None)


class Net:
    """The five verbs in iteration t over a tile (nodes, columns), where gradients are there already, by slot."""

    def __init__(self, world: World, block: Any, t: jax.Array, found: dict[int, jax.Array] | None = None) -> None:
        self.world, self.block, self.t, self.found, self.slots = world, block, t, found, Calls()

    def sample(self, batch: Any) -> None:
        """Drawn already."""

    def grad(self, x: jax.Array, sample: Any) -> jax.Array:
        """The part of the data, fetched, and that of the regulariser."""
        world, slot = self.world, self.slots.take()
        found = self.found[slot] if self.found else world.scratch[0, slot, :, columns(world, self.block)]
        if world.oracle.regulariser is None:
            return found
        return found + world.strength[:, None] * world.oracle.regulariser(x)[1]

    def mix(self, x: jax.Array) -> jax.Array:
        """W x, in float32 proper."""
        return jnp.dot(self.world.weights, x, precision=lax.Precision.HIGHEST)

    def full_grad(self, x: jax.Array) -> jax.Array:
        """Fetched in the same way."""
        return self.grad(x, None)

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """One side or the other; they share their slots."""
        slot, ends = self.slots.next, []

        def side(thunk: Callable[[], Any]) -> Any:
            self.slots.next = slot
            value = thunk()
            ends.append(self.slots.next)
            return value

        value = lax.cond(self.t % period == 0, lambda: side(then), lambda: side(otherwise))
        self.slots.next = max(ends)
        return value
