"""A fleet: many configurations of one method at once, for `sweep`. It is the simulator with a configuration axis.

Configurations with equal programs (the same sizes; numbers and periods may differ) advance
together, step by step, on the same samples. Seeds are another axis, along which samples differ. A
fleet is divided into pieces that fit the cache of a core, or the memory of a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.engines.compiled import Loop, evaluate
from peerdescent.engines.devices import memory
from peerdescent.engines.feeding import refuse
from peerdescent.engines.mixing import weights_of
from peerdescent.engines.outline import Chance, outline
from peerdescent.engines.program import Program, number
from peerdescent.engines.stacked import on_device
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem

CACHED = 1 << 18
"""Bytes of one vector of all configurations of a piece on a CPU, such that all vectors stay in a core's cache."""

WIDE_FROM = 256
"""From this batch size on, a piece on a CPU has twice the capacity, and a group is not divided among threads."""

PADDED = 64
"""Up to this number of configurations a piece has as many as the next power of two, so that programs are shared."""

LARGEST = 4096
"""The most configurations of a piece on a GPU; memory may allow fewer."""


class Member(NamedTuple):
    """One configuration: a method, a seed, and its marks: the steps at which its mean iterate is needed, in order."""

    method: Method
    seed: int
    marks: tuple[int, ...]


class Seen(NamedTuple):
    """The mean iterates (k, p) of some members, each at one of its marks; of none where a piece is between marks."""

    member: np.ndarray
    mark: np.ndarray
    x: np.ndarray
    step: int
    """How far the piece is: a number that increases, and from which it can be continued."""
    leaves: Sequence[Any]
    """The state there, until the piece goes on."""


class Fleet:
    """Runs many configurations: `pieces` says which run together, and `follow` runs one piece."""

    def __init__(
        self,
        members: Sequence[Member],
        problem: Problem,
        network: Network,
        x0: np.ndarray,
        dtype: Any,
    ) -> None:
        refuse(problem, "a sweep")
        self.members, self.problem, self.dtype = members, problem, dtype
        self.data, self.weights = on_device(problem, dtype), weights_of(network, dtype)
        self.x0 = jnp.asarray(x0)
        self.reached = np.zeros(len(members), dtype=np.int64)
        """The step that each member has reached."""

    def pieces(self, workers: int = 1) -> list[np.ndarray]:
        """The members that run together: arrays (seeds, configurations) of their numbers, the longest runs first."""
        groups: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for k, member in enumerate(self.members):
            groups[member.method.pattern][member.seed].append(k)
        on_cpu = jax.default_backend() == "cpu"
        wholes: list[tuple[np.ndarray, int, int]] = []
        for by_seed in groups.values():
            method = self.members[next(iter(by_seed.values()))[0]].method
            does, capacity = outline(method), self._capacity(method)
            # On a CPU, one seed after the other is faster. On a GPU, seeds share a piece where they
            # have the same configurations, unless they toss their own coins: then all would compute
            # both sides.
            apart = on_cpu or any(isinstance(when, Chance) for when in does.branches)
            alike: dict[Any, list[list[int]]] = defaultdict(list)
            for seed, members in by_seed.items():
                for near in self._by_length(members):
                    numbers = tuple(repr(self.members[k].method.numbers) for k in near)
                    alike[seed if apart else None, numbers].append(near)
            # Products with a large minibatch use all cores already, and are faster the wider they
            # are.
            alone = on_cpu and max((batch for _, batch in does.requests), default=1) >= WIDE_FROM
            most = 2 * capacity if alone and capacity > 1 else capacity
            wholes += [(np.array(some), most, 1 if alone else workers) for some in alike.values()]
        # Every shape of a piece is compiled, and many pieces keep all workers busy as they are.
        few = len(wholes) < 2 * workers
        found = [
            piece for some, most, share in wholes for piece in _cut(some, most, share if few else 1)
        ]
        return sorted(found, key=lambda piece: -max(self.members[k].marks[-1] for k in piece[0]))

    def follow(
        self, piece: np.ndarray, alive: np.ndarray, since: tuple[int, Sequence[Any]] | None = None
    ) -> Iterator[Seen]:
        """Run a piece from mark to mark, or from the step and leaves of an earlier `Seen`.

        It ends early once `alive` is false for all its members.
        """
        first = [self.members[k] for k in piece[0]]
        method = first[0].method
        does = outline(method)
        many = not does.has_arrays
        program = Program(
            method.pattern,
            self.problem.oracle,
            does.aliases,
            many,
            does.code,
            does.rounds,
            self.problem.penalty,
        )
        # As many as a power of two share a program; those in excess repeat the last one.
        count = 1 << (len(first) - 1).bit_length() if many and len(first) <= PADDED else len(first)
        each = [m.method.numbers for m in [*first, *[first[-1]] * (count - len(first))]]
        lists = {name: [own[name] for own in each] for name in each[0]}
        values = {name: number(each, self.dtype) for name, each in lists.items()}
        numbers = {name: each[:, None] if many else each[0] for name, each in values.items()}
        seeds = jnp.array([self.members[row[0]].seed for row in piece], jnp.uint32)
        loop = Loop(program, method, self.problem, numbers, self.data, self.weights, seeds)
        x0 = self.x0
        if many:
            x0 = jnp.broadcast_to(x0[:, None], (x0.shape[0], count, x0.shape[1]))
        marks = np.array([m.marks for m in first])
        state, t = loop.start(x0), 1
        if since is not None:
            t = since[0]
            state = jax.tree.unflatten(
                jax.tree.structure(state), [jnp.asarray(leaf) for leaf in since[1]]
            )
        nothing = np.zeros(0, dtype=np.int64)
        for stop in (stop for stop in np.unique(marks).tolist() if since is None or stop > t):
            while t < stop:
                if not alive[piece].any():
                    return
                state, t = loop.some(state, t, stop)
                # Wait, so that progress is exact and an interruption takes effect. A chunk is long
                # enough that this costs no time.
                jax.block_until_ready(state)
                self.reached[piece] = np.minimum(t, marks[:, -1])
                if t < stop:
                    yield Seen(nothing, nothing, nothing, t, jax.tree.leaves(state))
            column, mark = np.nonzero(marks == stop)
            means = np.asarray(_means(state.x))
            means = means[:, column] if many else means[:, None]
            means = np.broadcast_to(means, (len(piece), *means.shape[1:]))
            members, marked = piece[:, column], np.broadcast_to(mark, (len(piece), len(mark)))
            x = means.reshape(-1, means.shape[-1])
            yield Seen(members.ravel(), marked.ravel(), x, t, jax.tree.leaves(state))

    def _by_length(self, members: list[int]) -> Iterator[list[int]]:
        """Members whose lengths differ by a factor of at most two.

        At equal cost a short run has costly steps, and all members of a piece go on until the
        longest ends.
        """
        members = sorted(members, key=lambda k: self.members[k].marks[::-1])
        while members:
            limit = 2 * self.members[members[0]].marks[-1]
            some = [k for k in members if self.members[k].marks[-1] <= limit]
            yield some
            members = members[len(some) :]

    def kind(self, piece: np.ndarray) -> str:
        """What computes a piece, whose checkpoints nothing else understands."""
        return f"plain, {jax.default_backend()}"

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F and the norm of its gradient at points (k, p)."""
        # Each shape is compiled, so round up to a power of two.
        size = 1 << (len(points) - 1).bit_length()
        padded = np.concatenate([points, np.repeat(points[:1], size - len(points), axis=0)])
        with jax.default_matmul_precision("highest"):  # also if steps may use reduced precision
            values, grads = evaluate(
                self.problem.oracle, None, jnp.asarray(padded, self.dtype), self.data
            )
        with np.errstate(over="ignore"):  # of configurations that diverge
            known = np.asarray(values)[: len(points)], np.asarray(grads)[: len(points)]
            found, mappings = self.problem.penalised(points, *known)
            return found, np.linalg.norm(mappings, axis=1)

    def _capacity(self, method: Method) -> int:
        """How many configurations may run together."""
        if outline(method).has_arrays:
            return 1
        if jax.default_backend() == "cpu":
            return max(
                1,
                CACHED
                // (self.problem.nodes * self.problem.dimension * np.dtype(self.dtype).itemsize),
            )
        return int(np.clip(memory() // 4 // needed(method, self.problem, self.dtype), 1, LARGEST))


def needed(method: Method, problem: Problem, dtype: Any) -> int:
    """The bytes that one configuration and seed needs, about: sixteen vectors of all nodes, and its minibatches."""
    # An exact gradient needs as much memory as a minibatch of all samples.
    held = max(leaf.shape[1] if leaf.ndim > 1 else 1 for leaf in jax.tree.leaves(problem.data))
    largest = max(
        [
            1,
            held if outline(method).takes_exact else 1,
            *(size for size in method.sizes.values() if size),
        ]
    )
    return int((16 * problem.dimension + 4 * largest) * problem.nodes * np.dtype(dtype).itemsize)


def _even(length: int, most: int) -> int:
    """The size of the parts when `length` is divided evenly into as few parts of at most `most` as possible."""
    return -(-length // -(-length // most))


def _cut(members: np.ndarray, capacity: int, workers: int) -> Iterator[np.ndarray]:
    """Pieces (seeds, configurations) of even size; if there are enough configurations, at least one per worker."""
    seeds, configurations = members.shape
    wide = _even(configurations, min(capacity, -(-configurations // workers)))
    tall = _even(seeds, max(1, capacity // wide))
    for top in range(0, seeds, tall):
        for left in range(0, configurations, wide):
            yield members[top : top + tall, left : left + wide]


@jax.jit
def _means(x: jax.Array) -> jax.Array:
    return x.mean(axis=1)
