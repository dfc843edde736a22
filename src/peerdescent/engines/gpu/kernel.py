"""Sweeps on a GPU: one thread block per configuration, one kernel for all steps between two records.

When XLA runs a step it launches a dozen kernels, and the work of a small configuration takes less
time than a launch. Here a thread block runs all iterations of its configuration. Sizes, periods and
seeds are data, so all configurations of a method share one program, and none waits for another. The
method's own code is traced into the kernel. Vectors are tiles (nodes, columns).

An iteration has two phases: first the gradients, then the rest of the method. The method's outline
says at which vectors of its state it takes gradients, and on which samples. If vectors are one tile
each, the state stays in registers from step to step. Wider vectors are in memory and processed one
block of columns at a time, which is correct since the rest of a method treats all columns alike.

The kernel is for linear models of moderate size over a static network; `supports` checks that.
`fleet.Fleet` runs everything else, and is the reference that the kernel is tested against.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from peerdescent.engines.fleet import Fleet, Member, Seen
from peerdescent.engines.gpu.speeds import plain_is_faster
from peerdescent.engines.gpu.tiles import Net, World, columns, fetch, fetched, tile_width
from peerdescent.engines.outline import Leaf, outline, recorded
from peerdescent.keys import node_keys
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.linear_models import LinearModel, model_of
from peerdescent.problems.losses import Logistic
from peerdescent.problems.problem import Problem
from peerdescent.problems.rows import Nonzeros

MOST_NODES, MOST_COLUMNS = 64, 1024
"""Beyond these the plain program is faster: a tile does not fit into registers, or a vector takes many tiles."""

AT_ONCE, FEW = 8192, 64
"""The most configurations of a piece, if memory allows, and the size of a small piece. Pieces are padded to one of
these, since each size is compiled separately."""

PARTS, LAUNCH = 1024, 1.0
"""The way to the next mark is divided into so many parts, and a launch is as many of them as take so many seconds.
Between launches, progress is reported, the state can be stored, and an interruption takes effect."""


def supports(method: Method, problem: Problem, network: Network, dtype: Any) -> bool:
    """Whether the kernel can run the method: a linear model of moderate size, and gradients at vectors of the state."""
    fits = (
        problem.nodes <= MOST_NODES
        and problem.dimension <= MOST_COLUMNS
        and network.is_plain
        and network.is_static
    )
    model = model_of(problem)
    known = model is not None and isinstance(model.loss, Logistic) and not model.intercept
    dense = known and not isinstance(problem.data.rows, Nonzeros)
    if not (fits and dense and dtype == np.float32 and method.parts) or method.schedules:
        return False
    # Sizes are data in the kernel, so it cannot run a method that uses them for anything but
    # samples.
    open_sizes = {name: INTEGER for name, value in method.sizes.items() if value is not None}
    try:
        does = outline(method.replace(**open_sizes))
    except ValueError:
        return False
    known = all(
        g.leaf is not None and (g.sample is None or g.sample.batch is INTEGER)
        for g in does.gradients
    )
    return known and not (does.has_numbers or does.has_arrays or does.verbs)


class Shape(NamedTuple):
    """What determines the compiled kernel, besides the shapes of its arguments."""

    method: Method
    model: LinearModel
    structure: Any
    aliases: tuple[int, ...]
    calls: tuple[int, ...]
    slots: int
    nodes: int
    held: int
    interpreted: bool
    code: str
    """A checksum of a user's own code in the method, with the values that it reads."""


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=7)
def _launch(
    shape: Shape,
    start: bool,
    ints: Any,
    floats: Any,
    rows: Any,
    weights: Any,
    held: Any,
    leaves: list[jax.Array],
) -> list[jax.Array]:
    """Run each configuration from its step to its next mark, or iteration 0; `leaves` are (c, nodes, columns)."""
    count, tall, width = leaves[0].shape
    distinct = sorted(set(shape.aliases))
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
        by_leaf = [outs[distinct.index(alias)] for alias in shape.aliases]
        world = World(
            rows, weights[...], size, strength[...], scratch, by_leaf, keys, shape.model, shape.nodes, shape.held,
            (lambda: None) if shape.interpreted else triton.debug_barrier,
        )  # fmt: skip
        act = method.init if start else method.step
        # In iteration 0 there is one vector, x_0, in the place of x.
        given = (
            Leaf(0)
            if start
            else jax.tree.unflatten(shape.structure, [Leaf(k) for k in shape.aliases])
        )
        asked = recorded(act, given)[0].events

        def after(tiles: list[jax.Array], net: Any) -> list[jax.Array]:
            state = act(tiles[0] if start else jax.tree.unflatten(shape.structure, tiles), net)
            return [jax.tree.leaves(state)[leaf] for leaf in distinct]

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
            own = tiles[:1] if start else [tiles[distinct.index(alias)] for alias in shape.aliases]
            return after(own, Net(world, 0, t, fetched(world, t, asked, own)))

        if world.blocks > 1:
            lax.fori_loop(first, last, in_memory, None)
        else:
            for ref, tile in zip(
                outs, lax.fori_loop(first, last, in_registers, [o[0] for o in outs]), strict=True
            ):
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
    """Warps per block: one per 16 x 32 numbers of a tile, and at most 8, so that threads have enough registers."""
    return 8 if tile_width(width) < width else int(np.clip(tall * width // 512, 1, 8))


INTEGER, REAL = object(), object()
"""Placeholders for a number of that kind."""


def _open(method: Method) -> dict[str, Any]:
    """Placeholders for the hyperparameters that are data in the kernel."""
    return {
        name: value
        for name, value in method.parameters.items()
        if value is INTEGER or value is REAL
    }


def _names(pattern: Method) -> tuple[list[str], list[str]]:
    """The names of those that are whole numbers, and of the others, in the order of the kernel's arguments."""
    kinds = _open(pattern)
    whole, real = (
        sorted(name for name, v in kinds.items() if v is kind) for kind in (INTEGER, REAL)
    )
    return whole, real


def _pattern(method: Method) -> Method:
    """The method without its numbers and sizes. Methods with equal patterns share one kernel."""
    kinds = {name: INTEGER if method.declared[name].is_whole else REAL for name in method.numbers}
    return method.replace(
        **kinds, **{name: INTEGER for name, value in method.sizes.items() if value is not None}
    )


class Kernel(Fleet):
    """A fleet whose members run independently: each has its own sizes, steps and seed."""

    def __init__(
        self, members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any
    ) -> None:
        super().__init__(members, problem, network, x0, dtype)
        n, m, p = problem.data.rows.shape
        tall, width = max(16, _power(n)), max(16, _power(p))
        rows = (
            jnp.zeros((n, m, width), dtype).at[:, :, :p].set(self.data.rows).reshape(n * m, width)
        )
        weights = jnp.zeros((tall, tall), dtype).at[:n, :n].set(jnp.asarray(network.W, dtype))
        size = jnp.ones(tall, jnp.int32).at[:n].set(self.data.size)
        strength = jnp.zeros(tall, dtype).at[:n].set(self.data.numbers.strength)
        self.common = rows, weights, (size, strength)
        # The named methods need at most five vectors of state and three of gradients.
        memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 1 << 33)
        self.capacity = int(
            np.clip(memory // 2 // (8 * tall * width * np.dtype(dtype).itemsize), 1, AT_ONCE)
        )
        self.start = jnp.zeros((tall, width), dtype).at[:n, :p].set(self.x0)
        self.plain: set[int] = set()
        """The numbers of the members that the plain program runs."""

    def pieces(self, workers: int = 1) -> list[np.ndarray]:
        """Pieces as large as memory allows, the longest runs first; for the kernel or for the faster plain program."""
        # Thousands of members have few patterns, so the kernel's patterns are computed once for
        # each of those.
        by_pattern: dict[Method, list[int]] = {}
        for k, member in enumerate(self.members):
            by_pattern.setdefault(member.method.pattern, []).append(k)
        alike: dict[Method, list[int]] = {}
        plain: list[int] = []
        for numbers in by_pattern.values():
            method, steps = (
                self.members[numbers[0]].method,
                [self.members[k].marks[-1] for k in numbers],
            )
            does = outline(method)
            batch = max((batch for _, batch in does.requests), default=1)
            periods = [_period(self.members[k].method) for k in numbers] if does.periods else []
            if plain_is_faster(self.problem.dimension, batch, steps, periods):
                plain += numbers
            else:
                alike.setdefault(_pattern(method), []).extend(numbers)
        found = (
            [piece for piece in super().pieces(workers) if piece[0, 0] in set(plain)]
            if plain
            else []
        )
        self.plain = {int(k) for piece in found for k in piece.ravel()}
        for numbers in alike.values():
            numbers.sort(key=lambda k: -self.members[k].marks[-1])
            found += [
                np.array([numbers[k : k + self.capacity]])
                for k in range(0, len(numbers), self.capacity)
            ]
        return found

    def follow(
        self, piece: np.ndarray, alive: np.ndarray, since: tuple[int, Sequence[Any]] | None = None
    ) -> Iterator[Seen]:
        """Run a piece from mark to mark, or from an earlier `Seen`, whose step is a number of parts.

        Members that are no longer alive are not advanced.
        """
        if piece[0, 0] in self.plain:
            yield from super().follow(piece, alive, since)
            return
        size = FEW if len(piece[0]) <= FEW else self.capacity
        real = np.arange(max(size, len(piece[0]))) < len(piece[0])
        own = np.where(real, np.resize(piece[0], len(real)), piece[0][0])
        members = [self.members[k] for k in own]
        method = members[0].method
        does = outline(method)
        calls = tuple(sorted({g.sample.call for g in does.gradients if g.sample}))
        n, p, model = self.problem.nodes, self.problem.dimension, model_of(self.problem)
        assert model is not None
        shape = Shape(
            _pattern(method), model, does.structure, does.aliases, calls, does.slots, n,
            self.problem.data.rows.shape[1], jax.default_backend() == "cpu", does.code,
        )  # fmt: skip
        names = _names(shape.method)
        seeds = jnp.array([member.seed for member in members], jnp.uint32)
        keys = [_first_words(seeds, call) for call in shape.calls]
        ints = [[member.method.parameters[name] for member in members] for name in names[0]]
        floats = [[member.method.parameters[name] for member in members] for name in names[1]]
        fixed = np.stack(
            [np.asarray(k).view(np.int32) for k in keys] + [np.array(v, np.int32) for v in ints],
            axis=1,
        )
        reals = jnp.asarray(np.array(floats or [[0.0] * len(members)]).T, self.dtype)
        marks = np.maximum([member.marks for member in members], 1)

        def launch(
            start: bool, since: np.ndarray, until: np.ndarray, leaves: list[jax.Array]
        ) -> list[jax.Array]:
            clock = np.stack([since, until], axis=1).astype(np.int32)
            return _launch(
                shape,
                start,
                jnp.asarray(np.concatenate([clock, fixed], axis=1)),
                reals,
                *self.common,
                leaves,
            )

        def reached(part: int) -> np.ndarray:
            """The step of each member after so many parts."""
            mark, rest = divmod(part, PARTS)
            begun = marks[:, mark - 1] if mark else np.ones(len(members), int)
            return begun if not rest else begun + (marks[:, mark] - begun) * rest // PARTS

        leaves = [jnp.tile(self.start, (len(members), 1, 1)) for _ in set(does.aliases)]
        part = 0
        if since is None:
            leaves = launch(True, 0 * real, real.astype(int), leaves)
        else:
            part = since[0]
            leaves = [
                _placed(leaf, jnp.asarray(known))
                for leaf, known in zip(leaves, since[1], strict=True)
            ]
        steps, width = np.where(real, reached(part), 0), PARTS // 8
        nothing = np.zeros(0, dtype=np.int64)
        while part < PARTS * marks.shape[1]:
            lives = alive[own] & real
            if not lives.any():
                return
            mark, clock = part // PARTS, time.monotonic()
            part = min(part + width, (mark + 1) * PARTS)
            until = np.where(lives, reached(part), steps)
            leaves = launch(False, steps, until, leaves)
            jax.block_until_ready(leaves)
            steps = until
            self.reached[piece[0]] = steps[real]
            width = int(np.clip(width * min(2, LAUNCH / (time.monotonic() - clock)), 1, PARTS // 8))
            state = [leaf[: len(piece[0]), :n, :p] for leaf in leaves]
            if part % PARTS:
                yield Seen(nothing, nothing, nothing, part, state)
            else:
                yield Seen(
                    piece[0],
                    np.full(len(piece[0]), mark),
                    np.asarray(_means(leaves[0], n, p))[real],
                    part,
                    state,
                )

    def kind(self, piece: np.ndarray) -> str:
        """What computes a piece, whose checkpoints nothing else understands."""
        return super().kind(piece) if piece[0, 0] in self.plain else f"kernel, {PARTS} parts"


@partial(jax.jit, donate_argnums=0)
def _placed(leaf: jax.Array, known: jax.Array) -> jax.Array:
    """The padded form of a stored vector of the state; `leaf` gives the shape."""
    c, n, p = known.shape
    return jnp.zeros_like(leaf).at[:c, :n, :p].set(known)


def _period(method: Method) -> int:
    """The smallest whole number that a method with restarts takes as data: its period."""
    return min(
        int(value) for name, value in method.numbers.items() if method.declared[name].is_whole
    )


@partial(jax.jit, static_argnums=(1, 2))
def _means(x: jax.Array, nodes: int, columns: int) -> jax.Array:
    return x[:, :nodes, :columns].mean(axis=1)


@partial(jax.jit, static_argnums=1)
def _first_words(seeds: jax.Array, call: int) -> jax.Array:
    """The first word of the keys of `node_keys`, without the node's number."""
    zero = jnp.zeros((), jnp.int32)
    return jax.vmap(lambda seed: jax.random.key_data(node_keys(seed, zero, zero, call))[0])(seeds)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()
