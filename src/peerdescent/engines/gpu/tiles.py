"""The code inside one thread block of the GPU kernel: gradients and the seven verbs on tiles (nodes, columns)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from peerdescent.engines.outline import Either, Gradient, flat
from peerdescent.keys import scaled
from peerdescent.problems.linear_models import LinearModel
from peerdescent.threefry import words

WHOLE = 128
"""The most columns of a vector that is one tile and stays in registers."""

COLUMNS = 64
"""Columns of a tile of wider vectors."""

TOGETHER, TOGETHER_IN_MEMORY = 4, 8
"""Samples of a minibatch whose rows are read together, so that their memory latencies overlap."""


class World(NamedTuple):
    """What a block has access to: arrays in memory, scalars, and the shapes of tiles."""

    rows: Any
    """All rows, (n m, columns)."""
    weights: jax.Array
    """W (nodes, nodes), zero for nodes that are padding."""
    size: Any
    """The number of rows of each node (nodes,)."""
    strength: jax.Array
    scratch: Any
    """Memory for gradients (1, slots, nodes, columns)."""
    leaves: list[Any]
    """The state, (1, nodes, columns) each."""
    keys: dict[int, jax.Array]
    """The first word of a node's key minus the node's number, by call."""
    model: LinearModel
    nodes: int
    held: int
    barrier: Callable[[], None]
    """Makes what a thread wrote visible to all threads of the block."""

    @property
    def tall(self) -> int:
        """Rows of a tile: the nodes, and padding."""
        return int(self.size.shape[0])

    @property
    def blocks(self) -> int:
        """The number of tiles of a vector."""
        return int(self.rows.shape[1]) // self.wide

    @property
    def wide(self) -> int:
        """Columns of a tile."""
        return tile_width(int(self.rows.shape[1]))


def tile_width(width: int) -> int:
    """Columns of a tile, for vectors of this width; a power of two."""
    return width if width <= WHOLE else COLUMNS


def columns(world: World, block: Any) -> Any:
    """The columns of a block."""
    return pl.ds(block * world.wide, world.wide)


def fetch(world: World, t: jax.Array, asked: list[Any]) -> None:
    """Compute the gradients of an iteration into scratch memory, those on the same sample together."""
    for together in _groups(asked):
        if isinstance(together, Either):
            due = together.when.due(jnp, None, t)
            pl.when(due)(partial(fetch, world, t, together.then))
            pl.when(jnp.logical_not(due))(partial(fetch, world, t, together.otherwise))
        elif together[0].sample is None:
            _into_memory(world, t, together, TOGETHER_IN_MEMORY)
        else:
            one = together[0].sample.batch == 1
            pl.when(one)(partial(_into_memory, world, t, together, 1))
            pl.when(jnp.logical_not(one))(
                partial(_into_memory, world, t, together, TOGETHER_IN_MEMORY)
            )


def fetched(
    world: World, t: jax.Array, asked: list[Any], state: list[jax.Array]
) -> dict[int, jax.Array]:
    """The gradients of an iteration by slot, for vectors of one tile: state and gradients are in registers."""
    found: dict[int, jax.Array] = {}
    for together in _groups(asked):
        if isinstance(together, Either):
            sides = [together.then, together.otherwise]
            slots = sorted(
                {
                    event.slot
                    for side in sides
                    for event in flat(side)
                    if isinstance(event, Gradient)
                }
            )

            def one_side(side: list[Any], slots: list[int] = slots) -> list[jax.Array]:
                own = fetched(world, t, side, state)
                return [own.get(slot, jnp.zeros_like(state[0])) for slot in slots]

            values = lax.cond(
                together.when.due(jnp, None, t), *(partial(one_side, side) for side in sides)
            )
        else:
            slots = [asked.slot for asked in together]
            points = [state[int(asked.leaf or 0)] for asked in together]
            one, some = (
                partial(_in_registers, world, t, together, points, u) for u in (1, TOGETHER)
            )
            sample = together[0].sample
            values = some() if sample is None else lax.cond(sample.batch == 1, one, some)
        found |= dict(zip(slots, values, strict=True))
    return found


def _groups(asked: list[Any]) -> Iterator[Any]:
    """The events in groups: gradients on the same sample are one group, and each `Either` is one of its own."""
    waiting: list[Any] = [event for event in asked if isinstance(event, Gradient | Either)]
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, Either):
            yield first
            continue
        together = [first]
        while waiting and isinstance(waiting[0], Gradient) and waiting[0].sample is first.sample:
            together.append(waiting.pop(0))
        yield together


class Rows(NamedTuple):
    """The rows that a gradient averages over."""

    count: Any
    """The largest number of rows of a node."""
    row: Callable[[jax.Array], jax.Array]
    """From j, the numbers of the rows that are sample j of each node (nodes,)."""
    slope: Callable[[jax.Array, jax.Array], jax.Array]
    """From j and margins, the slopes of the loss at sample j (nodes,), divided by the count; zero past the last one."""


def _drawn(world: World, t: jax.Array, sample: Any) -> Rows:
    """The rows of a minibatch, or all rows."""
    node = lax.broadcasted_iota(jnp.int32, (world.tall,), 0)
    real, size = node < world.nodes, world.size[...]
    start = jnp.where(real, node, 0) * world.held
    exact = sample is None
    own = size if exact else jnp.full((world.tall,), sample.batch)
    share = jnp.where(real, 1 / own.astype(jnp.float32), 0.0)

    def row(j: jax.Array) -> jax.Array:
        if exact:
            return start + jnp.minimum(j, size - 1)
        first = world.keys[sample.call] + node.astype(jnp.uint32)
        second = jnp.full((world.tall,), t.astype(jnp.uint32))
        return start + scaled(
            words(first, second, jnp.full((world.tall,), j.astype(jnp.uint32))), size
        )

    def slope(j: jax.Array, margin: jax.Array) -> jax.Array:
        return jnp.where(j < own, world.model.loss.slope(margin) * share, 0.0)

    return Rows(world.held if exact else sample.batch, row, slope)


def _in_registers(
    world: World, t: jax.Array, together: list[Gradient], points: list[jax.Array], some: int
) -> list[jax.Array]:
    """Gradients for vectors of one tile, `some` samples at a time. Each row is read once."""
    drawn = _drawn(world, t, together[0].sample)

    def add(q: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
        numbers = [q * some + u for u in range(some)]
        rows = [world.rows[index, :] for index in [drawn.row(j) for j in numbers]]
        for j, row in zip(numbers, rows, strict=True):
            slopes = [drawn.slope(j, jnp.sum(row * x, axis=1)) for x in points]
            sums = [g + s[:, None] * row for g, s in zip(sums, slopes, strict=True)]
        return sums

    return list(
        lax.fori_loop(0, (drawn.count + some - 1) // some, add, [jnp.zeros_like(x) for x in points])
    )


def _into_memory(world: World, t: jax.Array, together: list[Gradient], some: int) -> None:
    """Gradients for vectors of several tiles: first the slopes of `some` samples, then their sum in each tile."""
    drawn = _drawn(world, t, together[0].sample)

    def add(q: jax.Array, _: Any) -> None:
        numbers = [q * some + u for u in range(some)]
        indices = [drawn.row(j) for j in numbers]

        def measure(k: jax.Array, margins: Any) -> Any:
            at = columns(world, k)
            rows = [world.rows[index, at] for index in indices]
            points = [world.leaves[int(asked.leaf or 0)][0, :, at] for asked in together]
            return [
                [m + jnp.sum(row * x, axis=1) for m, x in zip(own, points, strict=True)]
                for own, row in zip(margins, rows, strict=True)
            ]

        nothing = [[jnp.zeros((world.tall,), jnp.float32) for _ in together] for _ in numbers]
        margins = lax.fori_loop(0, world.blocks, measure, nothing)
        slopes = [[drawn.slope(j, m) for m in own] for j, own in zip(numbers, margins, strict=True)]

        def put(k: jax.Array, _: Any) -> None:
            at = columns(world, k)
            rows = [world.rows[index, at] for index in indices]
            for a, asked in enumerate(together):
                total = jnp.where(q > 0, world.scratch[0, asked.slot, :, at], 0.0)
                for row, own in zip(rows, slopes, strict=True):
                    total = total + own[a][:, None] * row
                world.scratch[0, asked.slot, :, at] = total

        lax.fori_loop(0, world.blocks, put, None)
        world.barrier()

    lax.fori_loop(0, (drawn.count + some - 1) // some, add, None)


class Net:
    """The verbs of the kernel in iteration t, on a tile (nodes, columns). Gradients are already computed, by slot."""

    def __init__(
        self, world: World, block: Any, t: jax.Array, found: dict[int, jax.Array] | None = None
    ) -> None:
        self.world, self.block, self.t, self.found, self.slot = world, block, t, found, 0

    def sample(self, batch: Any) -> None:
        """None: samples are drawn when gradients are computed."""

    def grad(self, x: jax.Array, sample: Any) -> jax.Array:
        """The gradient of the data term, computed before, plus that of the regulariser."""
        world, slot = self.world, self.slot
        self.slot += 1
        found = (
            self.found[slot]
            if self.found
            else world.scratch[0, slot, :, columns(world, self.block)]
        )
        if world.model.regulariser is None:
            return found
        return found + world.strength[:, None] * world.model.regulariser(x)[1]

    def mix(self, x: jax.Array) -> jax.Array:
        """W x, in full float32 precision."""
        return jnp.dot(self.world.weights, x, precision=lax.Precision.HIGHEST)

    push = mix

    def disagree(self, x: jax.Array) -> jax.Array:
        """x - W x, relative to node 0, so that rounding is that of the differences; 0 in rows that are padding."""
        row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
        first = jnp.sum(jnp.where(row == 0, x, 0.0), axis=0)
        apart = jnp.where(row < self.world.nodes, x - first[None, :], 0.0)
        return apart - self.mix(apart)

    def full_grad(self, x: jax.Array) -> jax.Array:
        """As `grad`: the gradients are computed before."""
        return self.grad(x, None)

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """One branch or the other; both use the same slots."""
        slot, ends = self.slot, []

        def side(thunk: Callable[[], Any]) -> Any:
            self.slot = slot
            value = thunk()
            ends.append(self.slot)
            return value

        value = lax.cond(self.t % period == 0, lambda: side(then), lambda: side(otherwise))
        self.slot = max(ends)
        return value
