"""What happens inside one block of the GPU kernel: vectors are tiles (nodes, columns), and here are their verbs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from peerdescent.engines.plan import Asked, Either, Foreseeing
from peerdescent.problems.keys import scaled, words
from peerdescent.problems.logistic import Logistic

COLUMNS = 128
"""Columns of a tile."""

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
    waiting = list(asked)
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, Either):
            due = t % first.period == 0
            pl.when(due)(partial(fetch, world, t, first.then))
            pl.when(jnp.logical_not(due))(partial(fetch, world, t, first.otherwise))
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

    def index_of(j: jax.Array) -> jax.Array:
        return held + scaled(words(first, second, jnp.full((world.tall,), j.astype(jnp.uint32))), size)

    if world.blocks == 1:
        points = [world.leaves[asked.leaf][0] for asked in together]

        def add_one(j: jax.Array, sums: Any) -> Any:
            rows = world.rows[index_of(j), :]
            slopes = [jnp.where(real, world.oracle.slope(jnp.sum(rows * x, axis=1)), 0.0) for x in points]
            return tuple(g + s[:, None] * rows for g, s in zip(sums, slopes, strict=True))

        nothing = tuple(jnp.zeros((world.tall, world.wide), jnp.float32) for _ in together)
        for asked, total in zip(together, lax.fori_loop(0, batch, add_one, nothing), strict=True):
            world.scratch[0, asked.slot] = total * share
        return

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


class Net(Foreseeing):
    """The verbs over a tile (nodes, columns)."""

    def __init__(self, world: World, block: Any, t: jax.Array) -> None:
        super().__init__(t)
        self.world, self.block = world, block

    def grad(self, x: jax.Array, sample: Any) -> jax.Array:
        """The part of the data, fetched, and that of the regulariser."""
        world = self.world
        found = world.scratch[0, self.slots.take(), :, columns(world, self.block)]
        if world.oracle.regulariser is None:
            return found
        return found + world.strength[:, None] * world.oracle.regulariser(x)[1]

    def mix(self, x: jax.Array) -> jax.Array:
        """W x, in float32 proper."""
        return jnp.dot(self.world.weights, x, precision=lax.Precision.HIGHEST)
