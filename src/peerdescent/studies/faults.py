"""Studies of networks as they are: which methods survive which faults, and when fewer rounds beat fewer gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from peerdescent import figures
from peerdescent.errors import require
from peerdescent.files import write
from peerdescent.methods.named import METHODS
from peerdescent.methods.selectors import parse
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import check
from peerdescent.runs.clocks import Clock, clock
from peerdescent.runs.labels import counted
from peerdescent.runs.statistics import deviation, mean
from peerdescent.runs.trace import Status, Trace
from peerdescent.studies.paper import How, Study, Work, begin, smallest

FAULTS: Mapping[str, tuple[str, ...]] = {
    "ideal": (),
    "drop 0.1": ("drop=0.1",),
    "drop 0.3": ("drop=0.3",),
    "drop 0.6": ("drop=0.6",),
    "one way 0.1": ("drop=0.1,one-way",),
    "inactive 0.2": ("inactive=0.2",),
    "noise 0.001": ("noise=0.001",),
    "4 bits": ("quantize=4",),
}
"""What goes wrong in each part of the study."""
LENGTH = 30.0
"""Epochs of the runs."""
MACHINES = clock("campus", compute=1e-6)
"""Machines of a campus, with the time of a gradient of a linear model."""
LATENCIES = tuple(float(latency) for latency in np.geomspace(1e-6, 1e-1, 11))
BATCHES = (1, 8, 64)
COMPUTE = 1e-6
"""Seconds a gradient, in the study of the clock."""


def faults(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] = tuple(METHODS),
    **how: Unpack[How],
) -> dict[str, Study]:
    """All named methods, tuned on the ideal exponential graph, and run with the same numbers under each of the faults.

    A run is as long in expected gradients of a node whatever the fault. Methods that a fault does
    not allow, as those that compress and 4 bits, are left out there, with a note.

    Args:
        data: The name of a data set, or a file.
        scale: "tiny", "quick" or "full": the grid of the tuning, and the seeds.
        out: A folder for all results; by default runs/faults- and the name of the data. Results in
            it are used again.
        methods: The methods.
        how: Options that all studies share; see `How`.

    Returns:
        One `Study` per fault, by name.
    """
    work = begin("faults", data, scale, out, **how)
    work = replace(work, scale=work.scale._replace(length=min(LENGTH, work.scale.length)))
    problem, ideal = work.experiment()
    best = smallest(problem, work.scale.starts, work.folder, work.note)
    selectors = {name: work.tuned(name, problem, ideal, name) for name in methods}
    parts: dict[str, dict[str, list[Trace]]] = {}
    for what, words in FAULTS.items():
        own = work.on(fault=words or None)
        network = own.experiment()[1]
        parts[what] = {}
        for name, selector in selectors.items():
            try:
                check(parse(selector), problem, network)
            except ValueError as error:
                work.note(f"{name} is left out: {error}")
                continue
            parts[what][name] = own.runs(selector, problem, network, f"{what}/{name}", MACHINES)
    return {
        what: _written(work, what, traces, parts, selectors, problem, best)
        for what, traces in parts.items()
    }


def _written(
    work: Work,
    what: str,
    traces: dict[str, list[Trace]],
    parts: Mapping[str, Mapping[str, list[Trace]]],
    selectors: Mapping[str, str],
    problem: Problem,
    best: float,
) -> Study:
    """The table and the figure of one fault."""
    rows = []
    for name, own in traces.items():
        gaps, ideal = _gaps(own, best), mean(_gaps(parts["ideal"][name], best))
        last = [trace.table.iloc[-1] for trace in own]
        rows.append(
            {
                "line": name, "method": selectors[name], "seeds": len(own),
                "diverged": sum(trace.status == Status.diverged for trace in own),
                "gap": mean(gaps), "deviation": deviation(gaps), "times the ideal gap": mean(gaps) / ideal,
                "tracking": mean([row["tracking"] for row in last]),
                "epochs": mean([row["epoch"] for row in last]), "bytes": mean([row["bytes"] for row in last]),
                "clock": mean([row["clock"] for row in last]),
            }
        )  # fmt: skip
    table, slug = pd.DataFrame(rows), what.replace(" ", "-")
    write(work.folder / f"{slug}.csv", table.to_csv(index=False).encode())
    title = (
        f"{what}: {problem.name}, n = {problem.nodes}, mean of {counted(work.scale.seeds, 'seed')}"
    )
    figure = figures.curves(
        traces, (("epoch", "gap"), ("bytes", "gap"), ("clock", "gap")), best, title
    )
    figures.save(figure, work.folder / f"{slug}.png", force=True)
    work.note(f"written to {work.folder}: {slug}.csv, {slug}.png")
    return Study(table, traces, best, work.folder)


def _gaps(traces: Sequence[Trace], best: float) -> list[float]:
    """The last gap of each run, infinite for one that diverged."""
    return [
        math.inf if one.status == Status.diverged else float(one.table["loss"].iloc[-1]) - best
        for one in traces
    ]


def latency(
    data: str = "a9a", scale: str = "quick", out: str | Path | None = None, **how: Unpack[How]
) -> Study:
    """The simulated time to a target loss as latency grows, for methods of one round or two, and three batch sizes.

    dsgd (one round a step), gt-dsgd and gt-hsgd (two) are tuned for each of the batches 1, 8 and
    64: a larger batch has fewer rounds for as many gradients. One gradient takes a microsecond. The
    clock is applied to the finished runs, once for each latency. The target is the largest gap that
    one of the runs has at its end.

    Arguments are as for `faults`.
    """
    work = begin("clock", data, scale, out, **how)
    work = replace(work, scale=work.scale._replace(length=min(LENGTH, work.scale.length)))
    problem, network = work.experiment()
    best = smallest(problem, work.scale.starts, work.folder, work.note)
    lines, selectors = {}, {}
    for name in ("dsgd", "gt-dsgd", "gt-hsgd"):
        for batch in BATCHES:
            label = f"{name}, batch {batch}"
            selectors[label] = work.tuned(f"{name}[batch={batch}]", problem, network, label)
            lines[label] = work.runs(selectors[label], problem, network, label)
    target = max(gap for traces in lines.values() for gap in _gaps(traces, best))
    require(math.isfinite(target), "a run has diverged: tune for longer")
    rows = []
    for label, traces in lines.items():
        method = parse(selectors[label])
        for seconds in LATENCIES:
            own = Clock(compute=COMPUTE, latency=seconds, bandwidth=1e8)
            needed = [
                _reached(own.apply(trace, method, problem, network), best + target)
                for trace in traces
            ]
            rows.append({"line": label, "method": selectors[label], "latency": seconds, "target gap": target,
                         "seconds": mean(needed), "deviation": deviation(needed)})  # fmt: skip
    table = pd.DataFrame(rows)
    write(work.folder / "clock.csv", table.to_csv(index=False).encode())
    title = (
        f"{problem.name}, n = {problem.nodes}, gap {target:.1e}, {COMPUTE * 1e6:g} µs a gradient"
    )
    for suffix in ("png", "pdf", "svg"):
        figures.save(figures.latencies(table, title), work.folder / f"clock.{suffix}", force=True)
    work.note(f"written to {work.folder}: clock.csv, clock.png")
    wide = table.pivot(index="line", columns="latency", values="seconds").reindex(list(lines))
    wide.columns = [f"{seconds:.1g} s" for seconds in wide.columns]
    return Study(wide.reset_index(), lines, best, work.folder)


def _reached(trace: Trace, loss: float) -> float:
    """The simulated time at which the loss is first reached, by linear interpolation between records."""
    values, times = trace.table["loss"].to_numpy(), trace.table["clock"].to_numpy()
    below = np.flatnonzero(values <= loss * (1 + 1e-12))
    if len(below) == 0:
        return math.nan
    k = int(below[0])
    if k == 0:
        return 0.0
    share = (values[k - 1] - loss) / (values[k - 1] - values[k])
    return float(times[k - 1] + min(max(share, 0.0), 1.0) * (times[k] - times[k - 1]))
