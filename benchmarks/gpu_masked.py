"""Sweeps on a GPU: does the plain program, with batch sizes as data, make the hand-written kernel unnecessary?

    python benchmarks/gpu_masked.py                     measure, and extrapolate to the paper's whole tuning
    python benchmarks/gpu_masked.py --seconds 520       stop measuring after so many seconds
    python benchmarks/gpu_masked.py --again FILE.json   the tables again, from measurements there are
    python benchmarks/gpu_masked.py --tiny              small sizes, for a test on a CPU

Three programs are compared, in microseconds a step and configuration:

- *static*: `Fleet`, a program for each combination of sizes;
- *masked*: `Masked` below, a program for all batch sizes up to a largest one, which have weight zero beyond their own;
- *kernel*: `Kernel`, the hand-written one.

Results go to the folder named by the variable OUT, or else to `benchmarks/results`: gpu_masked.md and gpu_masked.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, table
from jax import lax

import peerdescent as peer
from peerdescent.engines import stacked
from peerdescent.engines.fleet import Fleet, Member, Seen
from peerdescent.engines.gpu.kernel import Kernel
from peerdescent.engines.program import MERGED_FROM, Gather, Net, Pending, Program, number, settled
from peerdescent.methods import METHODS
from peerdescent.methods.contract import Method
from peerdescent.problems.problem import Problem
from peerdescent.runs.record import Books
from peerdescent.sweeps.sweeping import BATCHES, tuning_grid

NODES, EPOCHS, ROOM, KERNEL_ROOM = 20, 30, 4096, 8192
SHAPES = {"a9a": (48_840, 123), "covertype": (100_000, 54), "kdd98": (75_000, 477), "miniboone": (100_000, 50)}
"""Rows and columns of the paper's four data sets."""
PROTOCOL: dict[str, tuple[str, dict[str, Any]]] = {
    "gt-hsgd-strict": ("gt-hsgd", {"batch": 1}),
    **{name: (name, {}) for name in ("gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo")},
}
BUCKETS = {
    "ten buckets": BATCHES,
    "six buckets": (1, 4, 16, 64, 256, 1024),
    "three buckets": (1, 32, 1024),
    "one bucket": (1024,),
}
"""The largest batches of the masked programs."""
LARGEST = 1024
SINGLE = np.dtype("float32")
AGREE, REPEATS = 1e-4, 3


# ---------------------------------------------------------------------------------------------------------------------
# The plain program with batch sizes as data.


class Sized(NamedTuple):
    """A batch size of many configurations: the largest, which shapes the program, and their own (c,) as data."""

    most: int
    own: Any


class MaskedSample(NamedTuple):
    """The largest minibatch of every node, and how much of it each configuration uses."""

    drawn: Any
    batch: int
    own: Any


class Layout(NamedTuple):
    """All that shapes the masked program beside the shapes of its arguments."""

    program: Program
    most: tuple[tuple[str, int], ...]
    """The largest value of each size, by name."""
    together: int
    """Configurations whose restarts are computed in one go."""
    inner: int
    """Iterations of an inner loop of fixed length, whose end the host need not ask for; 1 for none."""


class MaskedNet(Net):
    """The verbs over vectors (n, c, p), where a batch size is a `Sized`.

    Draw j of a minibatch depends on the key and j alone, so the first b of the largest minibatch are the minibatch of
    size b. Samples beyond a configuration's own have weight zero.
    """

    def __init__(self, layout: Layout, data: Any, weights: Any, seed: Any, t: Any, drawn: Any) -> None:
        super().__init__(layout.program, data, weights, seed, t, drawn)
        self.together = layout.together

    def sample(self, batch: Any) -> Any:
        """The largest minibatch."""
        return MaskedSample(*super().sample(batch.most), batch.own)

    def grad(self, x: Any, sample: Any) -> Any:
        """Joined with others on the same sample where that pays, and only for those that are due at a restart."""
        x = settled(x)
        if self.due is not None:
            return self._restarted(x, sample)
        if sample.batch < MERGED_FROM:
            return self._gradients(x, sample)
        self.pending.append(Pending(self, x, sample))
        return self.pending[-1]

    def _gradients(self, x: jax.Array, sample: Any) -> jax.Array:
        oracle, data = self.program.oracle, self.data
        own = jnp.tile(sample.own, x.shape[1] // len(sample.own))[:, None]
        weights = jnp.where(jnp.arange(sample.batch) < own, 1 / own.astype(x.dtype), 0)

        def node(x: Any, sample: Any, data: Any) -> Any:
            rows = data.rows.at[sample].get(mode="promise_in_bounds")
            one = jax.vmap(lambda x, w: oracle.value_and_grad(x, rows, w, data.numbers)[1])  # type: ignore[attr-defined]
            return one(x, weights)

        return jax.vmap(node)(x, sample.drawn, data)

    def _restarted(self, x: jax.Array, sample: Any) -> jax.Array:
        """Gradients of the configurations that are due, put side by side and done a block at a time."""
        count, size = x.shape[1], min(self.together, x.shape[1])
        due = self.due
        # The place of each configuration when those that are due come first.
        place = jnp.where(due, jnp.cumsum(due) - 1, due.sum() + jnp.cumsum(~due) - 1)
        first = jnp.zeros(count, place.dtype).at[place].set(jnp.arange(count), unique_indices=True)

        def block(k: jax.Array, found: jax.Array) -> jax.Array:
            which = lax.dynamic_slice(first, (k * size,), (size,))  # the last block moves back to fit, below as well
            value = self._gradients(x[:, which], sample._replace(own=sample.own[which]))
            return lax.dynamic_update_slice(found, value, (0, k * size, 0))

        found = lax.fori_loop(0, (due.sum() + size - 1) // size, block, jnp.zeros_like(x))
        return found[:, place]


def _method(layout: Layout, numbers: Any, sizes: Any) -> Method:
    return layout.program.method.replace(**numbers, **{name: Sized(most, sizes[name]) for name, most in layout.most})


@partial(jax.jit, static_argnums=0)
def _start(layout: Layout, numbers: Any, sizes: Any, data: Any, weights: Any, seed: Any, x0: jax.Array) -> Any:
    return settled(_method(layout, numbers, sizes).init(x0, MaskedNet(layout, data, weights, seed, 0, {})))


def _interval(
    layout: Layout, numbers: Any, sizes: Any, data: Any, weights: Any, seed: Any, ahead: Any, state: Any, clock: Any
) -> Any:
    """As `program.interval`, over (n, c, p) with one seed."""
    begun, skip, count = clock
    method, twins = _method(layout, numbers, sizes), layout.program.twins
    structure, kept = jax.tree.structure(state), sorted(set(twins))

    def whole(leaves: list[Any]) -> Any:
        return jax.tree.unflatten(structure, [leaves[kept.index(twin)] for twin in twins])

    def body(i: jax.Array, leaves: list[Any]) -> list[Any]:
        drawn = jax.tree.map(lambda a: a[i], ahead)
        net = MaskedNet(layout, data, weights, seed, begun + i, drawn)
        after = jax.tree.leaves(settled(method.step(whole(leaves), net)))
        return [after[k] for k in kept]

    leaves = jax.tree.leaves(state)
    leaves, inner = [leaves[k] for k in kept], layout.inner
    if inner > 1:

        def block(b: jax.Array, leaves: list[Any]) -> list[Any]:
            start = skip + b * inner
            return list(lax.fori_loop(0, inner, lambda j, leaves: body(start + j, leaves), leaves))

        leaves = lax.fori_loop(0, count // inner, block, leaves)
    done = count // inner * inner if inner > 1 else 0
    return whole(lax.fori_loop(skip + done, skip + count, body, leaves))


_advance = jax.jit(_interval, static_argnums=0, donate_argnums=7)
GRAPHS = {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,WHILE,CONDITIONAL"}
_advance_graphs = jax.jit(_interval, static_argnums=0, donate_argnums=7, compiler_options=GRAPHS)


class Way(NamedTuple):
    """How the masked program is compiled."""

    inner: int = 1
    gather: bool = False
    """Mix by lists of neighbours instead of a matrix."""
    graphs: bool = False
    """Whole loops as CUDA graphs, if the compiler can."""

    def __str__(self) -> str:
        mix = "neighbours" if self.gather else "matrix"
        return f"{mix}, inner loop {self.inner}{', graphs' if self.graphs else ''}"


class Masked(Fleet):
    """A fleet whose configurations differ in their batch sizes too; a piece has one seed."""

    way = Way()

    def __init__(self, members: Any, problem: Problem, network: peer.Network, x0: np.ndarray, dtype: Any) -> None:
        super().__init__(members, problem, network, x0, dtype)
        if self.way.gather:
            heard = network.W != 0
            width = int(heard.sum(axis=1).max())
            order = np.argsort(~heard, axis=1, kind="stable")[:, :width]
            own = np.take_along_axis(network.W, order, axis=1)
            self.weights = Gather(jnp.asarray(order[None], jnp.int32), jnp.asarray(own[None], dtype))

    def pieces(self, workers: int = 1) -> list[np.ndarray]:
        """All configurations of one seed, the method's sizes up to the largest there."""
        seeds = sorted({member.seed for member in self.members})
        return [np.array([[k for k, member in enumerate(self.members) if member.seed == seed]]) for seed in seeds]

    def follow(self, piece: np.ndarray, alive: np.ndarray) -> Iterator[Seen]:
        """As `Fleet.follow`."""
        members = [self.members[k] for k in piece[0]]
        sizes = {name: [m.method.parameters[name] for m in members] for name in sizes_of(members[0].method)}
        # The smaller buckets are for what every step needs; the start and restarts are rarer, and have one.
        most = {name: bucket(max(own)) if name == "batch" else LARGEST for name, own in sizes.items()}
        method = members[0].method.replace(**most)
        books = Books(method, self.problem.samples, [0.0])
        program = Program(method.pattern, self.problem.oracle, books.twins, many=True)
        together = int(np.clip(16 * max(batch for _, batch in books.requests), 8, 1024))
        layout = Layout(program, tuple(most.items()), together, self.way.inner)
        each = [m.method.numbers for m in members]
        numbers = {name: number([own[name] for own in each], self.dtype)[:, None] for name in each[0]}
        seed = jnp.uint32(members[0].seed)
        common = (
            layout,
            numbers,
            {k: jnp.asarray(v, jnp.int32) for k, v in sizes.items()},
            self.data,
            self.weights,
            seed,
        )
        chunk = stacked.chunk_of(self.problem.oracle, self.data, books.requests)
        x0 = jnp.broadcast_to(self.x0[:, None], (self.x0.shape[0], len(members), self.x0.shape[1]))
        marks = np.array([m.marks for m in members])
        advance = _advance_graphs if self.way.graphs else _advance
        state, t, covered, ahead = _start(*common, x0), 1, 1, {}
        for stop in np.unique(marks).tolist():
            while t < stop:
                if t >= covered:
                    ahead = {
                        request: stacked.draw_ahead(program.oracle, *request, chunk, self.data, seed, np.int32(t))
                        for request in books.requests
                    }
                    begun, covered = t, t + chunk
                count = min(stop, covered) - t
                state = advance(*common, ahead, state, np.array([begun, t - begun, count], np.int32))
                t += count
                jax.block_until_ready(state)
            column, mark = np.nonzero(marks == stop)
            yield Seen(piece[0, column], mark, np.asarray(state.x.mean(axis=0))[column])


def sizes_of(method: Method) -> list[str]:
    """The parameters that are batch sizes."""
    return [
        k
        for k, v in method.parameters.items()
        if k not in method.numbers and isinstance(v, Integral) and not isinstance(v, bool)
    ]


def bucket(batch: int, among: tuple[int, ...] = BATCHES) -> int:
    """The smallest of these that holds the batch."""
    return min(b for b in among if b >= batch)


# ---------------------------------------------------------------------------------------------------------------------
# Measuring.

KINDS = {"static": Fleet, "masked": Masked, "kernel": Kernel}


class Case(NamedTuple):
    """One measurement."""

    kind: str
    method: str
    p: int
    batch: int
    """For all, or the largest of the masked."""
    configurations: int
    way: Way = Way()


class Found(NamedTuple):
    """Microseconds a step and configuration, each repeat's; seconds to compile; whether nothing else compiled then."""

    times: tuple[float, ...]
    compiling: float
    alone: bool
    steps: int

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.times) if self.times else float("nan")


class Clock:
    """The seconds that compilation took in this thread, as JAX tells them."""

    def __init__(self) -> None:
        self.own = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self.heard)

    def heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """A part of a compilation has ended."""
        if event.startswith("/jax/core/compile/"):
            self.own.total = getattr(self.own, "total", 0.0) + duration_secs

    def take(self) -> float:
        """Since the last time."""
        total, self.own.total = getattr(self.own, "total", 0.0), 0.0
        return float(total)


@cache
def setting(p: int, tiny: bool) -> tuple[Problem, peer.Network]:
    """Logistic regression of that width on the paper's network."""
    rows = {own: rows for rows, own in SHAPES.values()}[p]
    data = peer.datasets.synthetic(NODES * 60 if tiny else rows, p, seed=0)
    return peer.problems.logistic(data.partition(NODES)), peer.Network(peer.topology.exponential(NODES))


def methods_of(case: Case, samples: float) -> list[Method]:
    """The configurations of a case; where sizes are data they differ."""
    c, rng = case.configurations, np.random.default_rng(0)
    alphas = np.linspace(0.01, 0.2, c).tolist()
    build = METHODS[case.method].build
    batches = [b for b in BATCHES if b <= case.batch] if case.kind == "masked" else [case.batch]
    if case.method == "d-get":  # real ones, spread over the paper's periods and large batches
        rows = [row for row in tuning_grid("d-get", samples) if row["batch"] == case.batch]
        chosen = rng.choice(len(rows), c, replace=c > len(rows))
        return [build(**(rows[k] | {"alpha": a})) for k, a in zip(chosen, alphas, strict=True)]
    rest: dict[str, Any] = {"beta": 0.1, "initial_batch": 64} if case.method == "gt-hsgd" else {}
    return [build(alpha=a, batch=batches[k % len(batches)], **rest) for k, a in enumerate(alphas)]


def steps_of(case: Case, tiny: bool) -> int:
    """Iterations of one repeat: about a third of a second, by a guess from earlier measurements."""
    if tiny:
        return 5
    scale = case.p / 123
    one = scale * (0.035 + 0.012 * case.batch if case.kind == "kernel" else 0.06 + 0.0015 * case.batch)
    if case.method == "d-get":
        one *= 2
    floor = 8 * case.batch if case.kind == "kernel" else 50  # microseconds of a step of few configurations
    return int(np.clip(0.3e6 / max(case.configurations * one, floor), 8, 2000))


class Bench:
    """All measurements so far, and the time there is."""

    def __init__(self, seconds: float, tiny: bool) -> None:
        self.begun, self.seconds, self.tiny = time.perf_counter(), seconds, tiny
        self.found: dict[Case, Found] = {}
        self.checked: list[str] = []
        self.clock = Clock()

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.perf_counter() - self.begun)

    def say(self, text: str) -> None:
        """A line with the time."""
        print(f"[{time.perf_counter() - self.begun:6.1f} s] {text}", flush=True)

    def follow(self, case: Case) -> Iterator[Seen]:
        """Start a case; the first mark has compiled all."""
        problem, network = setting(case.p, self.tiny)
        assert problem.samples is not None
        steps = steps_of(case, self.tiny)
        marks = tuple(2 + k * steps for k in range(REPEATS + 1))
        members = [Member(method, 0, marks) for method in methods_of(case, problem.samples)]
        kind = type("Masked", (Masked,), {"way": case.way}) if case.kind == "masked" else KINDS[case.kind]
        ship = kind(members, problem, network, np.zeros((NODES, case.p), np.float32), SINGLE)
        if self.tiny and isinstance(ship, Kernel):
            ship.room = len(members)
        return ship.follow(np.arange(len(members))[None], np.ones(len(members), dtype=bool))

    def compiled(self, case: Case) -> float | None:
        """Compile a case; the seconds, or None where it failed or time is up."""
        if self.left < 0:
            return None
        try:
            self.clock.take()
            seen = self.follow(case)
            next(seen)
            seen.close()  # type: ignore[attr-defined]
            return self.clock.take()
        except Exception as error:
            self.say(f"FAILED {case}: {type(error).__name__}: {str(error)[:300]}")
            if self.tiny:
                traceback.print_exc()
            return None

    def measure(self, cases: list[Case], workers: int = 8) -> None:
        """Compile these side by side, then measure one after the other."""
        cases = [case for case in dict.fromkeys(cases) if case not in self.found]
        for p in {case.p for case in cases}:
            setting(p, self.tiny)
        with ThreadPoolExecutor(workers) as pool:
            compiling = dict(zip(cases, pool.map(self.compiled, cases), strict=True))
        self.say(f"compiled {sum(v is not None for v in compiling.values())} of {len(cases)}")
        for case in cases:
            seconds = compiling[case]
            if seconds is None or self.left < 0:
                continue
            steps, times = steps_of(case, self.tiny), []
            try:
                seen = self.follow(case)
                next(seen)
                clock = time.perf_counter()
                for _ in seen:
                    times.append((time.perf_counter() - clock) / steps / case.configurations * 1e6)
                    if self.left < -15:
                        break
                    clock = time.perf_counter()
            except Exception as error:
                self.say(f"FAILED {case}: {type(error).__name__}: {str(error)[:300]}")
                continue
            self.found[case] = Found(tuple(times), seconds, workers == 1, steps)
            self.say(
                f"{case.kind:7s} {case.method:8s} p {case.p:3d} batch {case.batch:4d} c {case.configurations:4d} "
                f"[{case.way if case.kind == 'masked' else ''}]: {self.found[case].median:.4f} us, "
                f"{steps} steps, compiled in {seconds:.1f} s"
            )

    def check(self, job: tuple[str, int]) -> None:
        """That the three agree on the mean iterate of a few configurations."""
        name, p = job
        if self.left < 0:
            return
        problem, network = setting(p, self.tiny)
        build = METHODS[name].build
        sizes: list[dict[str, Any]] = [{"batch": b} for b in (1, 3, 40)]
        if name == "gt-hsgd":
            sizes = [own | {"initial_batch": i} for own, i in zip(sizes, (1, 20, 7), strict=True)]
        if name == "d-get":
            sizes = [
                own | {"period": q, "large_batch": large}
                for own, q, large in zip(sizes, (7, 2, 5), (33, 4, 64), strict=True)
            ]
        last = 20 if self.tiny else 300
        members = [Member(build(alpha=0.3, **own), 0, (last // 2, last)) for own in sizes]
        results: dict[str, dict[tuple[int, int], Any]] = {}
        for kind, make in KINDS.items():
            ship = make(members, problem, network, np.zeros((NODES, p), np.float32), SINGLE)
            if self.tiny and isinstance(ship, Kernel):
                ship.room = len(members)
            alive = np.ones(len(members), dtype=bool)
            own = results.setdefault(kind, {})
            for piece in ship.pieces():
                for seen in ship.follow(piece, alive):
                    own |= {(int(k), int(m)): x for k, m, x in zip(*seen, strict=True)}
        assert results["static"].keys() == results["masked"].keys() == results["kernel"].keys()
        apart = {
            kind: max(
                float(np.abs(results[kind][key] - x).max() / np.abs(x).max()) for key, x in results["static"].items()
            )
            for kind in ("masked", "kernel")
        }
        good = all(value < AGREE for value in apart.values())
        line = f"{name}, p = {p}, {last} steps: masked {apart['masked']:.1e}, kernel {apart['kernel']:.1e}"
        self.checked.append(f"{line}{'' if good else ' (NOT within 1e-4)'}")
        self.say(self.checked[-1])

    def checks(self, jobs: list[tuple[str, int]]) -> None:
        """Several of those side by side."""
        for _, p in jobs:
            setting(p, self.tiny)
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(self.check, job) for job in jobs]:
                try:
                    future.result()
                except Exception as error:
                    self.checked.append(f"FAILED: {type(error).__name__}: {str(error)[:300]}")
                    self.say(self.checked[-1])
                    if self.tiny:
                        traceback.print_exc()


def measure_all(bench: Bench, write: Callable[[], None]) -> None:
    """Everything, the important first; `write` after every part."""
    widths = [123, 477, 54, 50]
    batches, counts = [1, 4, 16, 64, 256, 1024], [100, 1000, 4096]
    if bench.tiny:
        batches, counts = [1, 16], [3, 6]
    some, many = counts[-2:]
    few = counts[0]

    # 1. The target, 0.05 at p = 123 and batch 1, compiled one at a time: the ways to compile the masked program.
    ways = [Way(), Way(32), Way(32, gather=True), Way(32, graphs=True)]
    target = [Case("kernel", "gt-hsgd", 123, 1, some), Case("static", "gt-hsgd", 123, 1, some)]
    target += [Case("masked", "gt-hsgd", 123, 1, some, way) for way in ways]
    bench.measure(target, workers=1)
    bench.measure([case._replace(configurations=many) for case in target])
    write()
    tried = [
        way
        for way in ways
        if all(c in bench.found for c in (Case("masked", "gt-hsgd", 123, 1, n, way) for n in (some, many)))
    ]
    if not tried:
        return
    way = min(
        tried, key=lambda w: sum(bench.found[Case("masked", "gt-hsgd", 123, 1, n, w)].median for n in (some, many))
    )
    bench.say(f"masked from here on: {way}")

    def cases(kind: str, method: str, p: int, batches: list[int], counts: list[int]) -> list[Case]:
        own = way if kind == "masked" else Way()
        return [Case(kind, method, p, b, c, own) for b, c in itertools.product(batches, counts)]

    def kernels(method: str, p: int) -> list[Case]:
        # Many blocks for small batches; where batches are large, a thousand blocks keep the GPU as busy.
        return cases("kernel", method, p, batches, [few, some]) + cases("kernel", method, p, batches[:3], [many])

    # 2. Agreement.
    bench.checks([(name, p) for p in (123, 477) for name in ("gt-hsgd", "d-get", "gt-dsgd")][: 3 if bench.tiny else 6])
    write()
    # 3. All batches on the two widest sets.
    for p in (123, 477):
        bench.measure([*cases("kernel", "gt-hsgd", p, [1], [some])], workers=1)
        bench.measure([*kernels("gt-hsgd", p), *cases("masked", "gt-hsgd", p, batches, [some, many])])
        write()
        bench.measure(cases("static", "gt-hsgd", p, batches, [few]))
        write()
    # 4. Restarts: real configurations of d-get.
    restarts = batches[:2] if bench.tiny else [1, 16, 256, 1024]
    for p in (123, 477):
        bench.measure([*cases("kernel", "d-get", p, restarts, [many]), *cases("masked", "d-get", p, restarts, [many])])
        write()
    # 5. What is left: the narrow sets, static programs of more configurations, the other method.
    bench.measure([*kernels("gt-hsgd", 54), *cases("masked", "gt-hsgd", 54, batches, [many])])
    write()
    bench.measure([*cases("kernel", "d-get", 54, restarts, [many]), *cases("masked", "d-get", 54, restarts, [many])])
    for p in (477, 123):
        bench.measure(cases("static", "gt-hsgd", p, batches, [some, many]))
        write()
    bench.measure([*cases("static", "gt-hsgd", 54, batches, [few]), *cases("masked", "gt-hsgd", 54, batches, [some])])
    for p in (123, 477):
        bench.measure([
            *cases("kernel", "gt-dsgd", p, batches, [few, some]), *cases("masked", "gt-dsgd", p, batches, [few, some]),
            *cases("static", "gt-dsgd", p, batches, [few]),
        ])  # fmt: skip
        write()
    bench.measure(
        [*cases("kernel", "gt-hsgd", widths[-1], [1], [some]), *cases("masked", "gt-hsgd", widths[-1], [1], [many])]
    )


# ---------------------------------------------------------------------------------------------------------------------
# The paper's whole tuning, from what was measured.


class Work(NamedTuple):
    """Configurations that differ in their numbers alone."""

    batch: int
    start: int
    """The batch at t = 0 or at restarts; 1 where there is none."""
    period: int
    """Of restarts; 0 where there are none."""
    steps: int
    many: int


@cache
def work_of(kind: str, samples: float, strict: bool) -> tuple[Work, ...]:
    """The configurations of the paper's grid, equal ones once, with their steps in 30 epochs; the longest first."""
    rows = {
        tuple(row.items()) for row in (tuning_grid(kind, samples, batch=1) if strict else tuning_grid(kind, samples))
    }
    alike = Counter(tuple((k, v) for k, v in row if k not in ("alpha", "beta")) for row in rows)
    found = []
    for row, count in alike.items():
        own = dict(row)
        steps = Books(METHODS[kind].build(**own), samples, [0.0]).steps_within(EPOCHS * samples)
        start = own.get("initial_batch", own.get("large_batch", 1))
        found.append(Work(own["batch"], start, own.get("period", 0), steps, count))
    return tuple(sorted(found, key=lambda work: -work.steps))


def cut(works: list[Work], room: int) -> Iterator[tuple[int, list[Work]]]:
    """Pieces of even size, at most `room` wide, in the order given: their width and what they hold."""
    total = sum(work.many for work in works)
    width = -(-total // -(-total // room))
    piece: list[Work] = []
    held = 0
    for work in works:
        left = work.many
        while left:
            taken = min(left, width - held)
            piece.append(work._replace(many=taken))
            held, left = held + taken, left - taken
            if held == width:
                yield held, piece
                piece, held = [], 0
    if piece:
        yield held, piece


class Rates:
    """Microseconds a step and configuration for any batch and number of configurations, between those measured."""

    def __init__(self, found: dict[Case, Found]) -> None:
        self.points: dict[tuple[str, str, int], dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for case, value in found.items():
            if value.times:
                row = self.points[case.kind, case.method, case.p][case.configurations]
                row[case.batch] = min(value.median, row.get(case.batch, float("inf")))
        self.factors = {
            (kind, p, batch): row[batch] / self._model(kind, p, batch, count)
            for (kind, method, p), rows in list(self.points.items())
            if method == "d-get"
            for count, row in rows.items()
            for batch in row
        }
        """What restarts of real configurations took beside what is reckoned from steps without restarts."""

    def step(self, kind: str, method: str, p: int, batch: int, count: int) -> float:
        """A step without a restart."""
        if p == 50:  # the same tiles and nearly the same work
            p = 54
        if (kind, method, p) not in self.points:
            if method == "gt-dsgd":  # one gradient instead of two
                one, most = (self.step(kind, "gt-hsgd", p, b, count) for b in (1, batch))
                return one + (most - one) / 2
            method = "gt-hsgd"
        rows = self.points.get((kind, method, p), {})
        rows = {c: row for c, row in rows.items() if max(row) >= batch} or rows
        if not rows:
            return float("nan")
        counts = sorted(rows)
        times = [self._batch(rows[c], batch) for c in counts]
        if count < counts[0]:  # a step of so few takes as long as of those
            return times[0] * counts[0] / count
        return float(np.exp(np.interp(np.log(count), np.log(counts), np.log(times))))

    def spider(self, kind: str, p: int, work: Work, count: int) -> float:
        """The mean step of a method with restarts; the masked program computes both sides unless all restart."""
        share = 1 / work.period
        restart = self.step(kind, "gt-dsgd", p, work.start, count)
        ordinary = self.step(kind, "gt-hsgd", p, work.batch, count)
        if work.period == 1:
            return restart
        return share * restart + ((1 - share) if kind == "kernel" else 1) * ordinary

    def factor(self, kind: str, p: int, batch: int) -> float:
        """What to multiply it by."""
        own = {b: value for (k, width, b), value in self.factors.items() if (k, width) == (kind, 54 if p == 50 else p)}
        return self._batch(own, min(batch, max(own))) if own else 1.0

    def _model(self, kind: str, p: int, batch: int, count: int) -> float:
        """The mean step of the configurations that were measured: all steps equally often, large batches masked."""
        samples = next(rows for rows, width in SHAPES.values() if width == p) / NODES
        works = [work for work in work_of("d-get", samples, False) if work.batch == batch]
        if kind == "masked":  # which takes the ordinary side for all there
            works = [work._replace(start=LARGEST) for work in works]
            extra = sum(w.many for w in works if w.period == 1) / sum(w.many for w in works)
            extra *= self.step(kind, "gt-hsgd", p, batch, count)
        else:
            extra = 0.0
        total = sum(w.many * self.spider(kind, p, w, count) for w in works)
        return total / sum(w.many for w in works) + extra

    @staticmethod
    def _batch(row: dict[int, float], batch: int) -> float:
        batches = sorted(row)
        if batch > batches[-1]:  # not measured: in proportion
            return row[batches[-1]] * batch / batches[-1]
        return float(np.exp(np.interp(np.log(batch), np.log(batches), np.log([row[b] for b in batches]))))


def static_cost(rates: Rates, method: str, p: int, works: list[Work]) -> tuple[float, int]:
    """Seconds and programs of `Fleet`: a piece runs as long as its longest member. Restarts are not in it."""
    groups: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for work in works:
        groups[work.batch, work.start].append(work)
    total, programs = 0.0, 0
    for (batch, _), own in groups.items():
        pieces = list(cut(own, ROOM))
        total += sum(c * piece[0].steps * rates.step("static", method, p, batch, c) for c, piece in pieces)
        programs += len({c for c, _ in pieces})
    return total / 1e6, programs


def masked_cost(
    rates: Rates, method: str, p: int, works: list[Work], among: tuple[int, ...]
) -> tuple[float, float, int]:
    """Seconds of `Masked`, if a piece runs as long as its longest, or if the finished left it; and programs.

    Restarts are in buckets too. Configurations that restart in every step are a group of their own.
    """
    groups: dict[tuple[int, int, bool], list[Work]] = defaultdict(list)
    for work in works:
        start = bucket(work.start, among) if work.period else LARGEST
        groups[bucket(work.batch, among) if work.period != 1 else 1, start, work.period == 1].append(work)
    total, least, programs = 0.0, 0.0, 0
    for (most, start, _), own in groups.items():
        pieces = list(cut(own, ROOM))
        for c, piece in pieces:
            longest = piece[0].steps
            if piece[0].period:
                ones = [rates.spider("masked", p, w._replace(batch=most, start=start), c) for w in piece]
                ones = [one * rates.factor("masked", p, w.batch) for one, w in zip(ones, piece, strict=True)]
            else:
                ones = [rates.step("masked", method, p, most, c)] * len(piece)
            total += sum(w.many * longest * one for w, one in zip(piece, ones, strict=True))
            least += sum(w.many * w.steps * one for w, one in zip(piece, ones, strict=True))
        programs += len({c for c, _ in pieces})
    return total / 1e6, least / 1e6, programs


def kernel_cost(rates: Rates, method: str, p: int, works: list[Work]) -> float:
    """Seconds of `Kernel`: all blocks together, but no less than the longest configuration takes alone."""

    def one(work: Work, count: int) -> float:
        if work.period:
            return rates.spider("kernel", p, work, count) * rates.factor("kernel", p, work.batch)
        return rates.step("kernel", method, p, work.batch, count)

    total = 0.0
    for c, piece in cut(works, KERNEL_ROOM):
        together = sum(w.many * w.steps * one(w, c) for w in piece)
        total += max(together, *(w.steps * 100 * one(w, 100) for w in piece))
    return total / 1e6


SCHEMES = [*BUCKETS, *(f"{name}, finished leave" for name in BUCKETS)]
MIXED = {"static": "best of static and kernel", "masked": "best of masked and kernel"}


def protocol(found: dict[Case, Found]) -> tuple[list[str], dict[str, Any]]:
    """The tables of the whole tuning."""
    rates = Rates(found)
    alone: dict[str, float] = {}
    for kind in KINDS:
        own = [v.compiling for case, v in found.items() if case.kind == kind and v.alone]
        alone[kind] = statistics.median(own) if own else float("nan")
    names = ["static", *SCHEMES, "kernel", *MIXED.values()]
    steps: dict[str, dict[str, float]] = {name: dict.fromkeys(SHAPES, 0.0) for name in names}
    compiling, programs = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    routes: dict[str, dict[str, list[int]]] = {other: defaultdict(list) for other in MIXED}
    detail = []

    def enter(name: str, data: str, seconds: float, kinds: dict[str, int]) -> None:
        steps[name][data] += seconds
        programs[name] += sum(kinds.values())
        compiling[name] += sum(count * alone[kind] for kind, count in kinds.items())

    for data, (rows, p) in SHAPES.items():
        for label, (kind, fixed) in PROTOCOL.items():
            method = "d-get" if kind == "d-spider-sfo" else kind  # the same estimator and costs
            works = list(work_of(method, rows / NODES, bool(fixed)))
            seconds, count = static_cost(rates, method, p, works)
            enter("static", data, seconds, {"static": count})
            cells = [seconds]
            for name, among in BUCKETS.items():
                seconds, least, count = masked_cost(rates, method, p, works, among)
                enter(name, data, seconds, {"masked": count})
                enter(f"{name}, finished leave", data, least, {"masked": count})
                cells += [seconds, least]
            cells.append(kernel_cost(rates, method, p, works))
            enter("kernel", data, cells[-1], {"kernel": 1})
            # By batch: the faster of two, compilation counted.
            for other, name in MIXED.items():
                by_kernel = False
                for batch in sorted({w.batch for w in works}):
                    part = [w for w in works if w.batch == batch]
                    ours = kernel_cost(rates, method, p, part)
                    if other == "static":
                        theirs, count = static_cost(rates, method, p, part)
                    else:
                        schemes = [masked_cost(rates, method, p, part, among)[::2] for among in BUCKETS.values()]
                        theirs, count = min(schemes, key=lambda found: found[0] + found[1] * alone["masked"])
                    if theirs + count * alone[other] < ours:
                        enter(name, data, theirs, {other: count})
                        routes[other][f"{label}, p = {p}"].append(batch)
                    else:
                        enter(name, data, ours, {})
                        by_kernel = True
                enter(name, data, 0.0, {"kernel": int(by_kernel)})
            work = f"{sum(w.many * w.steps for w in works):.2e}"
            total = f"{sum(w.many for w in works):,}"
            detail.append([data, label, total, work, *(f"{cell:.1f}" for cell in cells)])
    lines, totals = [], {}
    for name in names:
        own_steps = sum(steps[name].values())
        whole = own_steps + compiling[name]
        totals[name] = {"seconds": steps[name], "programs": programs[name], "with compilation": whole}
        by_data = [f"{steps[name][data]:.1f}" for data in SHAPES]
        verdict = "yes" if whole <= 900 else "no"
        lines.append([name, *by_data, f"{own_steps:.1f}", str(programs[name]), f"{whole:.0f}", verdict])
    heads = [head for name in BUCKETS for head in (name, "finished leave")]
    factors = ", ".join(f"{k} p = {p} batch {b}: {v:.2f}" for (k, p, b), v in sorted(rates.factors.items()))
    text = [
        "## The paper's whole tuning, extrapolated",
        "",
        "Seconds of steps by data set, from the grid's own configurations (equal ones once) and their steps in 30 "
        "epochs. Neither loading, preparation in Python nor evaluation is in it. Compilation is the number of programs "
        "times " + ", ".join(f"{value:.1f} s ({kind})" for kind, value in alone.items()) + ", medians of those "
        "compiled alone. A piece of the masked program runs as long as its longest member; *finished leave* is what "
        "it would take if finished members cost nothing. Restarts are reckoned from steps without restarts, times the "
        f"ratio to measured steps of d-get ({factors or 'not measured'}); d-get stands for d-spider-sfo. Restarts "
        "are not in the static times, which are therefore a lower bound.",
        "",
        *table(("program", *SHAPES, "all", "programs", "with compilation", "15 minutes"), lines),
        "",
        "In seconds, without compilation:",
        "",
        *table(("data", "method", "configurations", "times steps", "static", *heads, "kernel"), detail),
    ]
    for other, by_set in routes.items():
        shown = "; ".join(f"{name}: {', '.join(map(str, batches))}" for name, batches in by_set.items())
        text += [
            "",
            f"Batches faster by the {other} program than by the kernel, compilation counted: {shown or 'none'}.",
        ]
    return text, {"totals": totals, "routes": routes, "compile alone": alone}


def measured(found: dict[Case, Found], checked: list[str], device: str) -> list[str]:
    """The tables of what was measured."""
    best: dict[tuple[str, int, int, int], dict[str, Found]] = defaultdict(dict)
    for case, value in found.items():
        own = best[case.method, case.p, case.batch, case.configurations]
        if value.times and (case.kind not in own or value.median < own[case.kind].median):
            own[case.kind] = value
    rows = []
    for (method, p, batch, count), own in sorted(best.items()):
        fastest = min(own, key=lambda kind: own[kind].median)
        cells = [
            f"{own[k].median:.4f} ({min(own[k].times):.4f} to {max(own[k].times):.4f})" if k in own else ""
            for k in KINDS
        ]
        seconds = [f"{own[k].compiling:.1f}{'*' if own[k].alone else ''}" if k in own else "" for k in KINDS]
        rows.append(
            [method, str(p), str(batch), f"{count:,}", *cells, fastest if len(own) > 1 else "", " / ".join(seconds)]
        )
    ways = [
        [str(case.way), f"{case.configurations:,}", f"{value.median:.4f}", f"{value.compiling:.1f}"]
        for case, value in found.items()
        if (case.kind, case.method, case.p, case.batch) == ("masked", "gt-hsgd", 123, 1)
    ]
    return [
        f"{device}; n = {NODES}, exponential graph, float32 with no reduced-precision matrix units; microseconds a "
        f"step and configuration, median (and range) of {REPEATS}. Static: `Fleet`, one batch size. Masked: batch "
        "sizes up to the one given, as data. Kernel: one batch size here, though it is data too. Compilation in "
        "seconds, in the order of the columns; * alone, else beside seven others. d-get: periods and large batches of "
        "the paper's grid, large ones masked to 1,024.",
        "",
        *table(("method", "p", "batch", "configurations", *KINDS, "fastest", "compilation"), rows),
        "",
        "Ways to compile the masked program, gt-hsgd, p = 123, batch 1:",
        "",
        *table(("way", "configurations", "us", "compilation"), ways),
        "",
        f"Largest relative difference to the static program: {'; '.join(checked) or 'not checked'}.",
        "",
    ]


def save(folder: Path, found: dict[Case, Found], checked: list[str], device: str, last: bool = True) -> list[str]:
    """Write both files; the lines of the first. The extrapolation takes a while, and is done `last`."""
    lines, more = measured(found, checked, device), dict[str, Any]()
    try:
        if last:
            text, more = protocol(found)
            lines += text
    except Exception as error:  # what was measured must not be lost
        lines += [f"No extrapolation: {type(error).__name__}: {error}"]
        traceback.print_exc()
    kept = [case._asdict() | {"way": case.way._asdict()} | value._asdict() for case, value in found.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_masked.json").write_text(
        json.dumps({"device": device, "cases": kept, "checked": checked} | more, indent=1)
    )
    (folder / "gpu_masked.md").write_text("\n".join(lines) + "\n")
    return lines


def main() -> None:
    """Measure and write, or write again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=520, help="stop measuring after these")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a test on a CPU")
    parser.add_argument("--again", type=Path, help="a gpu_masked.json: the tables without measuring")
    given = parser.parse_args()
    folder = Path(os.environ.get("OUT", RESULTS))
    if given.again:
        kept = json.loads(given.again.read_text())
        found = {}
        for own in kept["cases"]:
            case = Case(**{k: own[k] for k in Case._fields if k != "way"}, way=Way(**own["way"]))
            found[case] = Found(tuple(own["times"]), own["compiling"], own["alone"], own["steps"])
        print("\n".join(save(folder, found, kept["checked"], kept["device"])))
        return
    # For all threads; the context manager would hold in one only.
    jax.config.update("jax_default_matmul_precision", "highest")
    device = f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
    bench = Bench(given.seconds, given.tiny)
    bench.say(device)

    def write() -> None:
        save(folder, bench.found, bench.checked, device, last=False)

    measure_all(bench, write)
    bench.say(f"measured {len(bench.found)} cases")
    print("\n".join(save(folder, bench.found, bench.checked, device)), flush=True)


if __name__ == "__main__":
    main()
