"""Sweeps on a GPU: comparison of the kernel with the plain program, the time of a step, and the paper's tuning.

    python benchmarks/gpu_sweep.py step                  the check, then microseconds per step and configuration
    python benchmarks/gpu_sweep.py restarts              the same for methods with restarts, and what compilation takes
    python benchmarks/gpu_sweep.py protocol a9a ...      the whole tuning of five methods on these data, timed by parts
                                                         (--out FOLDER keeps the tables of all configurations)

Each part writes a file in `benchmarks/results`: `gpu_step.md`, `gpu_restarts.md`, and `gpu_protocol_<data>.md` with the
best of each method. a9a and covertype are read from PEERDESCENT_DATA; the others are synthetic, of the shapes in
their names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from common import table, verdict, write

import peerdescent as peer
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.engines.gpu import kernel
from peerdescent.engines.gpu.kernel import Kernel
from peerdescent.problems import Problem
from peerdescent.sweeps import best, tuning_grid

NODES, EPOCHS = 20, 30
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gt-hsgd-strict": ("gt-hsgd", {"batch": 1}),
    **{name: (name, {}) for name in ("gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo")},
}
DATA: dict[str, Callable[[], Any]] = {
    "a9a": lambda: peer.datasets.load("a9a"),
    "covertype": lambda: peer.datasets.load("covertype", rows=100_000),
    "synthetic-75000x477": lambda: peer.datasets.synthetic(75_000, 477, seed=0),
    "synthetic-100000x50": lambda: peer.datasets.synthetic(100_000, 50, seed=0),
}
SINGLE = np.dtype("float32")
REPEATS = 5


def setting(samples: int, features: int) -> tuple[Problem, peer.Network]:
    """Logistic regression of that shape on the paper's network."""
    data = peer.datasets.synthetic(NODES * samples, features, seed=0)
    return peer.problems.logistic(data.partition(NODES)), peer.Network(
        peer.topology.exponential(NODES)
    )


def follow(
    kind: type[Fleet], members: list[Member], problem: Problem, network: peer.Network
) -> tuple[Any, list[float]]:
    """The mean iterates at every mark, and the seconds that each took."""
    x0 = np.zeros((NODES, problem.dimension), np.float32)
    with jax.default_matmul_precision("highest"):
        fleet = kind(members, problem, network, x0, SINGLE)
        alive, seconds = np.ones(len(members), dtype=bool), []
        found: dict[tuple[int, int], Any] = {}
        for piece in fleet.pieces():
            clock = time.perf_counter()
            for seen in fleet.follow(piece, alive):
                if not len(seen.member):  # between two marks
                    continue
                seconds.append(time.perf_counter() - clock)
                found |= {(int(k), int(m)): x for k, m, x in zip(*seen[:3], strict=True)}
                clock = time.perf_counter()
    return found, seconds


AGREE = 1e-4
"""The largest relative difference allowed."""


def check() -> list[str]:
    """The largest relative difference between the kernel and the plain program, one line per method and width."""
    lines, worst = [], 0.0
    several = {
        "gt-hsgd": [{"batch": b, "initial_batch": 20} for b in (1, 3, 40)],
        "d-get": [
            {"period": q, "batch": b, "large_batch": c}
            for q in (2, 5)
            for b in (1, 9)
            for c in (4, 33)
        ],
        "d-spider-sfo": [{"period": q} for q in (2, 5)],
        "gt-sarah": [{"period": q} for q in (7, 50)],
        "gt-dsgd": [{"batch": b} for b in (1, 64)],
    }
    for features in (123, 477):  # one tile in registers, several in memory
        problem, network = setting(2442, features)
        for name, entry in peer.methods.METHODS.items():
            build, sizes = entry.build, several.get(name, [{}])
            if not kernel.supports(build(), problem, network, SINGLE):
                continue
            members = [
                Member(build(alpha=0.3, **own), seed, (30, 110)) for own in sizes for seed in (0, 5)
            ]
            plain, ours = (follow(kind, members, problem, network)[0] for kind in (Fleet, Kernel))
            apart = max(np.abs(ours[key] - x).max() / np.abs(x).max() for key, x in plain.items())
            lines.append(f"{name}, p = {features}: {apart:.1e}")
            print(lines[-1], flush=True)
            worst = max(worst, apart)
    assert worst < AGREE, (
        f"the kernel and the plain program differ by {worst:.1e}, more than {AGREE}"
    )
    return lines


def step() -> None:
    """Measure microseconds per step and configuration, by the kernel and by the plain program."""
    checked = check()
    rows, values = [], {}
    for features, samples, batch, configurations, steps in [
        (123, 2442, 1, 1024, 1100), (123, 2442, 1, 4096, 1100), (123, 2442, 32, 1024, 100), (123, 2442, 256, 1024, 20),
        (477, 3750, 1, 1024, 200), (477, 3750, 256, 1024, 4), (54, 5000, 1, 1024, 1100),
    ]:  # fmt: skip
        problem, network = setting(samples, features)
        alphas = np.linspace(0.01, 0.2, configurations)
        marks = tuple(2 + k * steps for k in range(REPEATS + 1))
        members = [Member(peer.methods.gt_hsgd(float(a), 0.1, batch), 0, marks) for a in alphas]
        found, cells = {}, []
        for name, kind in (("kernel", Kernel), ("plain", Fleet)):
            # The time to the first mark includes compilation.
            seconds = np.array(follow(kind, members, problem, network)[1][1:])
            found[name] = times = sorted((seconds / steps / configurations * 1e6).tolist())
            cells.append(f"{times[REPEATS // 2]:.4f} ({times[0]:.4f} to {times[-1]:.4f})")
        ratio = found["plain"][REPEATS // 2] / found["kernel"][REPEATS // 2]
        wanted = (features, batch) == (123, 1)
        target = f"0.05: {verdict(found['kernel'][REPEATS // 2] <= 0.05)}" if wanted else ""
        rows.append(
            [str(features), str(batch), f"{configurations:,}", *cells, f"{ratio:.2f}", target]
        )
        values[f"p={features} batch={batch} configurations={configurations}"] = found
        print(rows[-1], flush=True)
    lines = [
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; GT-HSGD, n = {NODES}, exponential graph, float32 with "
        f"no reduced-precision matrix units; microseconds a step and configuration, median (and range) of {REPEATS}. "
        "The kernel draws its samples in each step; the plain program draws those of up to 1,024 steps beforehand, "
        "which the clock sees in the first two rows and the last.",
        "",
        *table(
            ("p", "batch", "configurations", "kernel", "plain program", "ratio", "target"), rows
        ),
        "",
        "Largest relative difference between the two in the mean iterate after 110 steps: "
        + "; ".join(checked)
        + ".",
    ]
    write("gpu_step", values, lines)


def restarts() -> None:
    """Measure d-get and d-spider-sfo by the kernel and by the plain program, and the seconds to the first mark."""
    kernel.plain_is_faster = lambda *_: False  # type: ignore[attr-defined]  # so that `Kernel` routes nothing to the plain program
    cases: list[tuple[str, int, int, int, int]] = [
        (method, p, batch, period, count)
        for method, p, count in (
            ("d-get", 123, 1024), ("d-get", 123, 64), ("d-get", 477, 1024), ("d-get", 477, 64),
            ("d-spider-sfo", 123, 1024), ("d-spider-sfo", 477, 1024),
        )
        for batch in (1, 16, 256)
        for period in (64, 4, 0)
    ]  # fmt: skip
    rows, values = [], {}
    for method, p, batch, period, count in cases:
        samples = {123: 2442, 477: 3750}[p]
        problem, network = setting(samples, p)
        parts = (
            *(1 / k for k in range(20, 0, -1)),
            *range(2, 21),
        )  # the paper's periods, in epochs
        paper = [max(1, round(parts[k % len(parts)] * samples / batch)) for k in range(count)]
        steps = {1: 1024, 16: 512, 256: 128}[batch] * (4 if count == 64 else 1)
        build, marks = peer.methods.METHODS[method].build, (2, 2 + steps, 2 + 2 * steps)
        members = [
            Member(
                build(alpha=float(a), period=period or q, batch=batch, large_batch=512), 0, marks
            )
            for a, q in zip(np.linspace(0.01, 0.2, count), paper, strict=True)
        ]
        found, cells, first = {}, [], []
        for kind in (Kernel, Fleet):
            found[kind], seconds = follow(kind, members, problem, network)
            times = sorted((np.array(seconds[1:]) / steps / count * 1e6).tolist())
            cells.append(f"{np.mean(times):.4f} ({times[0]:.4f} to {times[-1]:.4f})")
            first.append(f"{seconds[0]:.1f}")
        apart = max(
            np.abs(found[Kernel][key] - x).max() / np.abs(x).max()
            for key, x in found[Fleet].items()
        )
        shown = [
            method,
            str(p),
            str(batch),
            str(period or "grid"),
            f"{count:,}",
            f"2 x {steps:,}",
            *cells,
        ]
        rows.append([*shown, *first, f"{apart:.1e}"])
        values[" ".join(map(str, shown[:5]))] = cells
        print(rows[-1], flush=True)
    lines = [
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; n = {NODES}, exponential graph, float32 with no "
        "reduced-precision matrix units, large batch 512, synthetic data; microseconds a step and configuration, mean "
        "(and range) of 2. Period *grid*: the paper's 39 periods in turn. *First*: seconds to the first mark, with "
        "compilation if no earlier row had the same program. *Apart*: largest relative difference of mean iterates.",
        "",
        *table(
            ("method", "p", "batch", "period", "configurations", "steps", "kernel", "plain program", "first, kernel",
             "first, plain", "apart"), rows,
        ),
    ]  # fmt: skip
    write("gpu_restarts", values, lines)


def protocol(name: str, out: str | None = None) -> None:
    """Run and time the paper's tuning on one data set."""
    begun = time.perf_counter()
    data = DATA[name]()
    problem, network = (
        peer.problems.logistic(data.partition(NODES)),
        peer.Network(peer.topology.exponential(NODES)),
    )
    assert problem.samples is not None
    rows, values = [], {"loading": time.perf_counter() - begun}
    for method, (kind, fixed) in METHODS.items():
        clock = time.perf_counter()
        grid = tuning_grid(kind, problem.samples, **fixed)
        folder = None if out is None else f"{out}/{name}/{method}"
        found = peer.sweep(
            kind, grid, problem, network, epochs=EPOCHS, at=[5, 10], out=folder, progress=False
        )
        seconds = time.perf_counter() - clock
        winner = best(found)
        loss, counts = (
            found.loc[found["status"] == "done", "loss"].min(),
            found["status"].value_counts(),
        )
        chosen = ", ".join(f"{k} = {v:g}" for k, v in winner.items())
        states = ", ".join(f"{count} {status}" for status, count in counts.items())
        rows.append([method, f"{len(found):,}", states, f"{seconds:.1f}", f"{loss:.6f}", chosen])
        values[method] = seconds
        print(rows[-1], flush=True)
    total = time.perf_counter() - begun
    lines = [
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; {name}, n = {NODES}, m = {problem.samples:g}, "
        f"p = {problem.dimension}, {EPOCHS} epochs, {found['precision'].iloc[0]}; {total:.1f} s in all, of which "
        f"{values['loading']:.1f} s to load the data; compilation is in the time of each method.",
        "",
        *table(("method", "configurations", "ended", "seconds", "least loss", "with"), rows),
    ]
    write(f"gpu_protocol_{name}", values | {"total": total}, lines)


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("check", "step", "restarts", "protocol"))
    parser.add_argument("data", nargs="*", help=f"of {', '.join(DATA)}; all where none is named")
    parser.add_argument("--out", help="folder for the tables of the protocol")
    given = parser.parse_args()
    if jax.devices()[0].platform == "cpu":
        sys.exit("JAX sees no GPU here: nothing to measure")
    if given.part == "check":
        check()
    elif given.part == "step":
        step()
    elif given.part == "restarts":
        restarts()
    else:
        for name in given.data or DATA:
            protocol(name, given.out)


if __name__ == "__main__":
    main()
