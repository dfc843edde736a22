"""The time of one GT-HSGD step: one configuration and a sweep of 32, against the same method written by hand in NumPy.

All are float32, draw their own samples, and take turns in one process, so that a noisy machine disturbs all alike.
It prints which ratios to NumPy are below those in `benchmarks/results/step.json`, and writes that file and `step.md`
anew: commit them to make them the reference.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from baselines import (
    ALPHA,
    BETA,
    STRENGTH,
    Floor,
    InNumpy,
    PerNode,
    Rates,
    TunedNumpy,
    Vectors,
    floor,
)
from common import (
    RESULTS,
    Times,
    alternate,
    copy_bandwidth,
    machine,
    matrix_rate,
    seconds,
    table,
    verdict,
    write,
)

import peerdescent as peer
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.engines.program import draw
from peerdescent.engines.stacked import Stacked
from peerdescent.problems import Problem

NODES, FEATURES, SAMPLES = 20, 123, 2442
ALPHAS, BETAS = [2.0**k for k in range(-6, 2)], [0.003, 0.01, 0.03, 0.1]
REPEATS = 15

# Iterations timed at once: of NumPy and of the loop over nodes, and how often ours use up the samples drawn ahead.
LENGTHS = {1: (1024, 50, 4, 1), 32: (256, 50, 1, 1), 1024: (24, 12, 1, 1)}

TARGETS = {
    1: {"one": 6.0, "sweep": 12.0},
    32: {"one": 3.0, "sweep": 12.0},
    1024: {"one": 4.0, "sweep": 20.0},
}
"""How many times faster than `InNumpy` we want to be, by batch."""

LABELS = {
    "numpy": "NumPy, stacked, as written",
    "tuned": "NumPy, stacked, tuned",
    "loop": "NumPy, loop over nodes",
    "one": "peerdescent, one configuration",
    "sweep": f"peerdescent, sweep of {len(ALPHAS) * len(BETAS)}",
}

HEADER = (
    "batch",
    "",
    "us a step and configuration",
    "times faster than NumPy as written",
    "target",
    "than NumPy tuned",
    "than the loop",
    "multiples of the floor",
)

LEAST = 0.9
"""The share of the earlier ratio below which a program counts as slower. Ratios are those of best times, since other
programs only ever add time."""


def gt_hsgd(batch: int, alpha: float = ALPHA, beta: float = BETA) -> peer.Method:
    """The method that is timed."""
    return peer.methods.gt_hsgd(alpha=alpha, beta=beta, batch=batch)


def check_equal(problem: Problem, network: peer.Network, batch: int) -> None:
    """Ours and all baselines must compute the same step, on the same rows, before any is timed."""
    engine = Stacked(gt_hsgd(batch), problem, network, 0, np.float32)
    state = engine.advance(engine.start(np.zeros((NODES, FEATURES), np.float32)), 1, 3)
    vectors = Vectors(
        *(np.array(a) for a in (state.x, state.estimator.x, state.estimator.v, state.fusion.y))
    )
    index = np.asarray(draw(problem.oracle, engine.data, engine.seed, 3, 0, batch))
    ours = np.asarray(engine.advance(state, 3, 4).x)
    stacked = InNumpy(problem.data.rows, network.W, batch, vectors)
    stacked.step(index)
    tuned = TunedNumpy(problem.data.rows, network.W, batch, vectors)
    tuned.step(index + tuned.offset)
    loop = PerNode(problem.data.rows, network.W, batch, vectors)
    loop.step(list(index))
    for name, theirs in (
        ("stacked", stacked.state.x),
        ("tuned", tuned.state.x),
        ("loop", loop.state.x),
    ):
        apart = np.abs(ours - theirs).max() / np.abs(ours).max()
        if not apart < 1e-5:
            raise AssertionError(
                f"batch {batch}: ours and {name} NumPy differ by {apart:.1e} after the same step"
            )


def one(problem: Problem, network: peer.Network, batch: int, chunks: int) -> Callable[[], float]:
    """A measurement of `advance`: seconds a step."""
    engine = Stacked(gt_hsgd(batch), problem, network, 0, np.float32)
    x0 = np.zeros((NODES, FEATURES), np.float32)
    engine.warm_up(x0, 1)
    # Whole chunks of samples, and time goes on, so that each measurement pays for all the samples it uses.
    state, t, steps = engine.start(x0), 1, chunks * engine.chunk

    def advance() -> None:
        nonlocal state, t
        state, t = engine.advance(state, t, t + steps), t + steps

    advance()
    return lambda: seconds(advance) / steps


class Sweep:
    """The stepping of a sweep, driven as `peer.sweep` does: its pieces side by side in threads."""

    def __init__(self, problem: Problem, network: peer.Network, batch: int, chunks: int) -> None:
        self.steps = chunks * Stacked(gt_hsgd(batch), problem, network, 0, np.float32).chunk
        # The first mark is the start line: what a piece does before it, once, is measured apart.
        pairs, marks = itertools.product(ALPHAS, BETAS), (1, 1 + self.steps)
        members = [Member(gt_hsgd(batch, *pair), 0, marks) for pair in pairs]
        self.workers, self.alive = os.cpu_count() or 1, np.ones(len(members), dtype=bool)
        with jax.default_matmul_precision("highest"):
            self.fleet = Fleet(
                members, problem, network, np.zeros((NODES, FEATURES), np.float32), np.float32
            )
        self.pieces = self.fleet.pieces(self.workers)
        self.starting: list[float] = []
        self()

    @property
    def together(self) -> int:
        """How many configurations share the rows they read."""
        return min(piece.shape[1] for piece in self.pieces)

    def __call__(self) -> float:
        """Seconds a step and configuration."""
        runs = [self.fleet.follow(piece, self.alive) for piece in self.pieces]

        def to_next_mark(run: Iterator[Any]) -> None:
            with jax.default_matmul_precision("highest"):
                while not len(next(run).member):  # between two marks
                    pass

        with ThreadPoolExecutor(self.workers) as pool:
            self.starting.append(seconds(lambda: list(pool.map(to_next_mark, runs))))
            return (
                seconds(lambda: list(pool.map(to_next_mark, runs))) / self.steps / len(self.alive)
            )


def contenders(
    problem: Problem, network: peer.Network, batch: int
) -> tuple[dict[str, Callable[[], float]], Sweep]:
    """What is measured at a batch, by name; and the sweep among it."""
    check_equal(problem, network, batch)
    stacked_steps, loop_steps, one_chunks, sweep_chunks = LENGTHS[batch]
    stacked, tuned = (
        InNumpy(problem.data.rows, network.W, batch),
        TunedNumpy(problem.data.rows, network.W, batch),
    )
    loop = PerNode(problem.data.rows, network.W, batch)
    sweep = Sweep(problem, network, batch, sweep_chunks)
    measured: dict[str, Callable[[], float]] = {
        "numpy": lambda: seconds(lambda: stacked.run(stacked_steps)) / stacked_steps,
        "tuned": lambda: seconds(lambda: tuned.run(stacked_steps)) / stacked_steps,
        "loop": lambda: seconds(lambda: loop.run(loop_steps)) / loop_steps,
        "one": one(problem, network, batch, one_chunks),
        "sweep": sweep,
    }
    return measured, sweep


def setting() -> tuple[Problem, peer.Network]:
    """Data of the shape of a9a on 20 nodes."""
    data = peer.datasets.synthetic(NODES * SAMPLES, FEATURES, seed=0)
    problem = peer.problems.logistic(data.partition(NODES), strength=STRENGTH)
    return problem, peer.Network(peer.topology.exponential(NODES))


def summary(times: dict[str, Times], floors: dict[str, Floor], batch: int) -> dict[str, Any]:
    """All that is known of a batch, for the file of results."""
    found: dict[str, Any] = {}
    for name, values in times.items():
        to_numpy, to_loop = times["numpy"].over(values), times["loop"].over(values)
        found[name] = {
            "seconds": values.summary(),
            "faster_than_numpy": to_numpy.summary()
            | {"of_best_times": times["numpy"].best / values.best},
            "faster_than_tuned": times["tuned"].over(values).summary(),
            "faster_than_loop": to_loop.summary(),
            "floor": floors[name]._asdict(),
            "times_floor": values.median / floors[name].seconds,
        }
        if name in TARGETS[batch]:
            target = TARGETS[batch][name]
            found[name] |= {"target": target, "met": to_numpy.median >= target}
    return found


def line(batch: int, name: str, times: dict[str, Times], found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    target = f"{found['target']:g}: {verdict(found['met'])}" if "target" in found else ""
    return [
        str(batch),
        LABELS[name],
        times[name].text(1e6),
        times["numpy"].over(times[name]).text() if "target" in found else "",
        target,
        f"{found['faster_than_tuned']['median']:.1f}" if "target" in found else "",
        f"{found['faster_than_loop']['median']:.1f}" if name != "loop" else "",
        f"{found['times_floor']:.1f}",
    ]


def measure() -> None:
    """Measure everything, print, write, and compare with what was measured before."""
    problem, network = setting()
    cases: dict[str, Any] = {}
    rows = []
    rates, cached = Rates(copy_bandwidth(), matrix_rate()), copy_bandwidth(0.5)
    for batch in TARGETS:
        measured, sweep = contenders(problem, network, batch)
        times = alternate(measured, REPEATS)
        nonzeros = network.matrices[0].nnz
        floors = dict.fromkeys(times, floor(NODES, FEATURES, batch, nonzeros, rates))
        floors["sweep"] = floor(NODES, FEATURES, batch, nonzeros, rates, sweep.together)
        found = summary(times, floors, batch)
        found["sweep"]["starting_seconds"] = Times(tuple(sweep.starting[1:])).summary()
        cases[str(batch)] = found
        rows += [line(batch, name, times, found[name]) for name in times]
    starting = max(1e3 * found["sweep"]["starting_seconds"]["median"] for found in cases.values())
    lines = [
        f"GT-HSGD, logistic regression, n = {NODES}, p = {FEATURES}, m = {SAMPLES}, exponential graph, float32.",
        "Included in all: sampling, gathering rows, both gradients, both mixes. Not included: compilation, records.",
        f"Median (range) of {REPEATS} repeats that take turns in one process; ratios are taken in each repeat.",
        f"{machine()}.",
        f"Floor: bytes at {rates.bandwidth / 1e9:.1f} GB/s (a copy of 256 MiB) or operations at "
        f"{rates.operations / 1e9:.0f} GFLOP/s (a float32 matrix product), whichever takes longer; vectors that stay "
        f"in a core's cache may beat it (a copy of 0.5 MiB runs at {cached / 1e9:.0f} GB/s).",
        f"Starting the pieces of a sweep, once, takes {starting:.0f} ms more, which is not included either.",
        "",
        *table(HEADER, rows),
    ]
    path = "benchmarks/results/step.json"
    committed = json.loads(
        subprocess.check_output(["git", "show", f"HEAD:{path}"], cwd=RESULTS.parent.parent)
    )
    about = {"machine": machine(), "repeats": REPEATS, "rates": rates._asdict()}
    write("step", about | {"batches": cases}, lines)
    changes = slower(cases, committed["batches"]) or ["nothing is slower"]
    print("", f"Compared with the table of {committed['machine']}:", *changes, sep="\n")


def slower(cases: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """A line for each program whose ratio to NumPy has fallen; both are `batches` of a file of results."""
    lines = []
    for batch, name in ((str(batch), name) for batch, names in TARGETS.items() for name in names):
        now, then = (
            each[batch][name]["faster_than_numpy"]["of_best_times"] for each in (cases, before)
        )
        if now < LEAST * then:
            lines.append(
                f"slower: batch {batch}, {LABELS[name]}: {now:.2f} times faster than NumPy, was {then:.2f}"
            )
    return lines


if __name__ == "__main__":
    measure()
