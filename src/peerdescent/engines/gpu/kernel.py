"""Sweeps on a GPU: one thread block a configuration, one kernel for all steps between two records.

A step launches a dozen kernels when XLA runs it, and a small configuration keeps a GPU busy for less time than a launch
takes. Here a block runs its configuration's iterations by itself, with sizes, periods and seeds as data, so that all
configurations of a method share one program and none waits for another. The method's own text is traced into the
kernel, as into any other engine's program; vectors are tiles (nodes, columns).

An iteration has two phases. First the gradients: the method's outline says at which vectors of its state it will ask
for gradients, and on which samples. Then the method itself. A state whose vectors are
one tile each stays in registers from step to step; wider ones are in memory and done a block of columns at a time,
which is sound since all else that a method does is the same for every column.

It is for linear models of moderate size over a network that does not change; `supports` says so. `fleet.Fleet` does
the rest, and is the reference this one is tested against.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from peerdescent.engines.fleet import Fleet, Member, Seen
from peerdescent.engines.gpu.speeds import LARGE, PROGRAMS, plain_is_faster
from peerdescent.engines.gpu.tiles import Net, World, columns, fetch, fetched, tile_width
from peerdescent.engines.outline import Leaf, outline, recorded
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.keys import node_keys
from peerdescent.problems.problem import Problem
from peerdescent.problems.regression import Logistic, Nonzeros

MOST_NODES, MOST_COLUMNS = 64, 1024
"""Beyond these the plain program is the better one: a tile outgrows registers, or a vector takes many of them."""

AT_ONCE, FEW = 8192, 64
"""Configurations of a piece, where memory allows; a smaller one is filled up to one of these, since each size is
compiled by itself."""

SLICES = 8
"""Launches between two marks: in between, progress is told and a stop is seen."""


def supports(method: Method, problem: Problem, network: Network, dtype: Any) -> bool:
    """Whether this engine can run the method: a linear model of moderate size, and gradients asked for at its state."""
    fits = problem.nodes <= MOST_NODES and problem.dimension <= MOST_COLUMNS and network.period == 1
    dense = isinstance(problem.oracle, Logistic) and not isinstance(problem.data.rows, Nonzeros)
    if not (fits and dense and dtype == np.float32 and method.parts):
        return False
    # Sizes are data in the kernel: a method that does more with them than ask for samples cannot have it.
    open_sizes = {name: INTEGER for name, value in method.sizes.items() if value is not None}
    try:
        does = outline(method.replace(**open_sizes))
    except ValueError:
        return False
    known = all(g.leaf is not None and (g.sample is None or g.sample.batch is INTEGER) for g in does.gradients)
    return known and not does.has_numbers


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
    count, tall, width = leaves[0].shape
    kept = sorted(set(shape.twins))
    whole_numbers, reals = _names(shape.method)

    def kernel(*refs: Any) -> None:
        ints, floats, rows, weights, size, strength = refs[:6]
        *outs, scratch = refs[6 + len(leaves) :]
        c = pl.program_id(0)
        first, last = ints[c, 0], ints[c, 1]
        values = {name: ints[c, 2 + len(shape.calls) + k] for k, name in enumerate(whole_numbers)}
        values |= {name: floats[c, k] for k, name in enumerate(reals)}
        method = shape.method.replace(**values)
        keys = {call: ints[c, 2 + k].astype(jnp.uint32) for k, call in enumerate(shape.calls)}
        by_leaf = [outs[kept.index(twin)] for twin in shape.twins]
        world = World(
            rows, weights[...], size, strength[...], scratch, by_leaf, keys, shape.oracle, shape.nodes, shape.held,
            (lambda: None) if shape.interpreted else triton.debug_barrier,
        )  # fmt: skip
        act = method.init if start else method.step
        # At the start there is one vector, x_0, which lies where x will.
        given = Leaf(0) if start else jax.tree.unflatten(shape.structure, [Leaf(k) for k in shape.twins])
        asked = recorded(act, given)[0].events

        def after(tiles: list[jax.Array], net: Net) -> list[jax.Array]:
            state = act(tiles[0] if start else jax.tree.unflatten(shape.structure, tiles), net)
            return [jax.tree.leaves(state)[leaf] for leaf in kept]

        def in_memory(t: jax.Array, _: Any) -> None:
            fetch(world, t, asked)
            world.barrier()

            def block(k: jax.Array, _: Any) -> None:
                tiles = [ref[0, :, columns(world, k)] for ref in ([outs[0]] if start else by_leaf)]
                found = after(tiles, Net(world, k, t))
                world.barrier()
                for ref, tile in zip(outs, found, strict=True):
                    ref[0, :, columns(world, k)] = tile

            lax.fori_loop(0, world.blocks, block, None)
            world.barrier()

        def in_registers(t: jax.Array, tiles: list[jax.Array]) -> list[jax.Array]:
            own = tiles[:1] if start else [tiles[kept.index(twin)] for twin in shape.twins]
            return after(own, Net(world, 0, t, fetched(world, t, asked, own)))

        if world.blocks > 1:
            lax.fori_loop(first, last, in_memory, None)
        else:
            for ref, tile in zip(outs, lax.fori_loop(first, last, in_registers, [o[0] for o in outs]), strict=True):
                ref[0] = tile

    def whole(a: Any) -> pl.BlockSpec:
        return pl.BlockSpec(a.shape, lambda c: (0,) * a.ndim)

    own = pl.BlockSpec((1, tall, width), lambda c: (c, 0, 0))
    aside = pl.BlockSpec((1, shape.slots, tall, width), lambda c: (c, 0, 0, 0))
    common = ints, floats, rows, weights, *held
    compiled = triton.CompilerParams(num_warps=_warps(tall, width), num_stages=1)
    *found, _ = pl.pallas_call(
        kernel,
        grid=(count,),
        in_specs=[*map(whole, common), *[own] * len(leaves)],
        out_specs=[*[own] * len(leaves), aside],
        out_shape=[
            *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves),
            jax.ShapeDtypeStruct((count, shape.slots, tall, width), leaves[0].dtype),
        ],
        input_output_aliases={len(common) + k: k for k in range(len(leaves))},
        interpret=shape.interpreted,
        compiler_params=None if shape.interpreted else compiled,
    )(*common, *leaves)
    return found


def _warps(tall: int, width: int) -> int:
    """Warps of a block: 16 numbers of a tile for each thread, and at most 8, so that each has registers enough."""
    return 8 if tile_width(width) < width else int(np.clip(tall * width // 512, 1, 8))


INTEGER, REAL = object(), object()
"""Stand where a number of that kind is still to be filled in."""


def _open(method: Method) -> dict[str, Any]:
    """The hyperparameters left open in the kernel's method, with their kinds."""
    return {name: value for name, value in method.parameters.items() if value is INTEGER or value is REAL}


def _names(pattern: Method) -> tuple[list[str], list[str]]:
    """Which of them are whole numbers, and which are not, in the order in which the kernel gets them."""
    kinds = _open(pattern)
    whole, real = (sorted(name for name, v in kinds.items() if v is kind) for kind in (INTEGER, REAL))
    return whole, real


def _pattern(method: Method) -> Method:
    """The method with its numbers and its sizes left open: what all configurations of one kernel share."""
    kinds = {name: INTEGER if method.declared[name].is_whole else REAL for name in method.numbers}
    return method.replace(**kinds, **{name: INTEGER for name, value in method.sizes.items() if value is not None})


class Kernel(Fleet):
    """A fleet whose members need not march in step: each has its own sizes, steps and seed."""

    def __init__(self, members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any) -> None:
        super().__init__(members, problem, network, x0, dtype)
        n, m, p = problem.data.rows.shape
        tall, width = max(16, _power(n)), max(16, _power(p))
        rows = jnp.zeros((n, m, width), dtype).at[:, :, :p].set(self.data.rows).reshape(n * m, width)
        weights = jnp.zeros((tall, tall), dtype).at[:n, :n].set(jnp.asarray(network.W, dtype))
        size = jnp.ones(tall, jnp.int32).at[:n].set(self.data.size)
        strength = jnp.zeros(tall, dtype).at[:n].set(self.data.numbers)
        self.common = rows, weights, (size, strength)
        # Five vectors of state and three of gradients are the most that a method of ours needs.
        memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 1 << 33)
        self.room = int(np.clip(memory // 2 // (8 * tall * width * np.dtype(dtype).itemsize), 1, AT_ONCE))
        self.start = jnp.zeros((tall, width), dtype).at[:n, :p].set(self.x0)
        self.plain: set[int] = set()
        """The members that the plain program runs."""

    def pieces(self, workers: int = 1) -> list[np.ndarray]:
        """As many together as memory allows, the longest first; those that the plain program runs faster are its."""
        # Thousands of members have few patterns, and the kernel's are made from those.
        by_pattern: dict[Method, list[int]] = {}
        for k, member in enumerate(self.members):
            by_pattern.setdefault(member.method.pattern, []).append(k)
        alike: dict[Method, list[int]] = {}
        plain: list[int] = []
        for numbers in by_pattern.values():
            method, steps = self.members[numbers[0]].method, [self.members[k].marks[-1] for k in numbers]
            does = outline(method)
            batch = max((batch for _, batch in does.requests), default=1)
            if does.periods:
                faster = len(by_pattern) <= PROGRAMS and batch >= LARGE
            else:
                faster = plain_is_faster(self.problem.dimension, batch, steps)
            if faster:
                plain += numbers
            else:
                alike.setdefault(_pattern(method), []).extend(numbers)
        found = [piece for piece in super().pieces(workers) if piece[0, 0] in set(plain)] if plain else []
        self.plain = {int(k) for piece in found for k in piece.ravel()}
        for numbers in alike.values():
            numbers.sort(key=lambda k: -self.members[k].marks[-1])
            found += [np.array([numbers[k : k + self.room]]) for k in range(0, len(numbers), self.room)]
        return found

    def follow(self, piece: np.ndarray, alive: np.ndarray) -> Iterator[Seen]:
        """Run a piece from mark to mark; members that are no longer alive stand still."""
        if piece[0, 0] in self.plain:
            yield from super().follow(piece, alive)
            return
        size = FEW if len(piece[0]) <= FEW else self.room
        real = np.arange(max(size, len(piece[0]))) < len(piece[0])
        own = np.where(real, np.resize(piece[0], len(real)), piece[0][0])
        members = [self.members[k] for k in own]
        method = members[0].method
        does = outline(method)
        calls = tuple(sorted({g.sample.call for g in does.gradients if g.sample}))
        assert isinstance(self.problem.oracle, Logistic)
        n, p = self.problem.nodes, self.problem.dimension
        shape = Shape(
            _pattern(method), self.problem.oracle, does.structure, does.twins, calls, does.slots, n,
            self.problem.data.rows.shape[1], jax.default_backend() == "cpu",
        )  # fmt: skip
        names = _names(shape.method)
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

        steps = real.astype(int)
        leaves = [jnp.tile(self.start, (len(members), 1, 1)) for _ in set(does.twins)]
        leaves = launch(True, 0 * steps, steps, leaves)
        for mark in range(marks.shape[1]):
            since = steps
            for part in range(1, SLICES + 1):
                lives = alive[own] & real
                if not lives.any():
                    return
                until = np.where(lives, since + np.maximum(marks[:, mark] - since, 0) * part // SLICES, steps)
                leaves = launch(False, steps, until, leaves)
                jax.block_until_ready(leaves)
                steps = until
                self.reached[piece[0]] = steps[real]
            yield Seen(piece[0], np.full(len(piece[0]), mark), np.asarray(_means(leaves[0], n, p))[real])


@partial(jax.jit, static_argnums=(1, 2))
def _means(x: jax.Array, nodes: int, columns: int) -> jax.Array:
    return x[:, :nodes, :columns].mean(axis=1)


@partial(jax.jit, static_argnums=1)
def _first_words(seeds: jax.Array, call: int) -> jax.Array:
    """What `node_keys` adds a node's number to."""
    zero = jnp.zeros((), jnp.int32)
    return jax.vmap(lambda seed: jax.random.key_data(node_keys(seed, zero, zero, call))[0])(seeds)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()
