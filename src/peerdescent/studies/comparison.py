"""All named methods, tuned on one problem and run at the same cost: the tables and figures of the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from peerdescent import figures
from peerdescent.errors import require, unknown
from peerdescent.methods.named import METHODS
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.runs.bands import add_gap, band
from peerdescent.runs.checks import check
from peerdescent.runs.labels import counted
from peerdescent.runs.statistics import deviation, mean
from peerdescent.runs.store import Store, key_of
from peerdescent.runs.trace import Status
from peerdescent.studies.paper import How, Study, Work, begin, smallest

LENGTH = 30.0
"""Epochs of the runs."""
SEEDS = 3
POINTS = 50
"""The most points of a curve in the table."""


def zoo(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] | None = None,
    draw: bool = True,
    **how: Unpack[How],
) -> Study:
    """Every named method on the paper's exponential graph: tuned over the grid it declares, then run with three seeds.

    All have the same budget of gradients; where a coin takes a run over it, its records are read at
    the budget. Methods that compress have their default compressor, top-k(0.1). Methods that cannot
    run here are left out, with a note.

    The folder gets zoo.csv (how each method ends), curves.csv (means over seeds), a figure for each
    method, which shows it in front of all others, and all.png. Methods of earlier calls with the
    same folder are kept, so that several processes may each compute some of them: let them not
    draw, and call it once more without `methods` in the end.

    Args:
        data: The name of a data set, or a file.
        scale: "tiny", "quick" or "full": the grid of the tuning, and the seeds.
        out: A folder for all results; by default runs/zoo- and the name of the data. Results in it
            are used again.
        methods: The methods; by default all that have a name.
        draw: Whether to draw.
        how: Options that all studies share; see `How`.

    Returns:
        The table, the traces, and the smallest F found.
    """
    work = begin("zoo", data, scale, out, **how)
    size = work.scale._replace(
        length=min(LENGTH, work.scale.length), seeds=min(SEEDS, work.scale.seeds)
    )
    work = replace(work, scale=size)
    for name in methods or ():
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    problem, network = work.experiment()
    best = smallest(problem, size.starts, work.folder, work.note)
    traces, selectors = {}, {}
    for name in methods or METHODS:
        try:
            check(METHODS[name].build(), problem, network)
        except ValueError as error:
            work.note(f"{name} is left out: {error}")
            continue
        selectors[name] = work.tuned(name, problem, network, name)
        traces[name] = work.runs(selectors[name], problem, network, name)
    require(
        bool(traces),
        f"none of these methods can run on {network.name}: {', '.join(methods or METHODS)}",
    )
    about = {
        "problem": problem.name, "data": digest(problem.definition), "network": str(network),
        "grid": size.grid or "search",
        "tuning": size.tuning, "epochs": size.length, "seeds": size.seeds, "smallest": best,
    }  # fmt: skip
    ends, points = (
        Store(work.folder, "zoo", about, ["line"]),
        Store(work.folder, "curves", about, ["line", "point"]),
    )
    for name, own in traces.items():
        tables = [_within(trace.table, size.length) for trace in own]
        diverged = sum(trace.status == Status.diverged for trace in own)
        ends.add(_end(name, selectors[name], tables, diverged, problem, best))
        for row in _curve(name, tables, best):
            points.add(row)
    order = list(METHODS)
    ends.save(key_of([name]) for name in order)
    points.save(key_of([name, point]) for name in order for point in range(POINTS + 1))
    if draw:
        _draw(work, problem)
    return Study(pd.read_csv(work.folder / "zoo.csv"), traces, best, work.folder)


def _within(table: pd.DataFrame, epochs: float) -> pd.DataFrame:
    """A run up to its budget, at which its records are interpolated; where a coin decides, a run may go over it.

    >>> _within(pd.DataFrame({"epoch": [0, 2, 4], "loss": [9, 5, 1], "rounds": 0, "bytes": 0}), 3.0)["loss"].tolist()
    [9.0, 5.0, 3.0]
    """
    table = table[["epoch", "loss", "rounds", "bytes"]]
    if not table["epoch"].iloc[-1] > epochs:
        return table
    end = {column: [float(np.interp(epochs, table["epoch"], table[column]))] for column in table}
    return pd.concat([table[table["epoch"] < epochs], pd.DataFrame(end)], ignore_index=True)


def _end(
    name: str,
    selector: str,
    tables: Sequence[pd.DataFrame],
    diverged: int,
    problem: Problem,
    best: float,
) -> dict[str, Any]:
    """The row of a method in zoo.csv: what it was tuned to, and where its runs end."""
    last = [table.iloc[-1] for table in tables]
    gaps = [row["loss"] - best for row in last]
    row: dict[str, Any] = {
        "line": name, "purpose": METHODS[name].purpose, "method": selector,
        "seeds": len(tables), "diverged": diverged,
        "gap": float("nan") if diverged else float(mean(gaps)),
        "deviation": float("nan") if diverged else float(deviation(gaps)),
    }  # fmt: skip
    return row | {
        column: float(mean([one[column] for one in last]))
        for column in ("epoch", "rounds", "bytes")
    }


def _curve(name: str, tables: Sequence[pd.DataFrame], best: float) -> list[dict[str, Any]]:
    """The rows of a method in curves.csv: the mean gap over seeds at common epochs, and its range."""
    tables = [add_gap(table, best) for table in tables]
    gaps = band(tables, "epoch", "gap")
    costs = {column: band(tables, "epoch", column).mean for column in ("rounds", "bytes")}
    step = max(1, -(-(len(gaps.x) - 1) // POINTS))
    chosen = sorted({*range(0, len(gaps.x), step), len(gaps.x) - 1})
    return [
        {
            "line": name, "point": point, "epoch": _short(gaps.x[k]),
            **{column: _short(values[k]) for column, values in costs.items()},
            "gap": _short(gaps.mean[k]), "low": _short(gaps.low[k]), "high": _short(gaps.high[k]),
        }
        for point, k in enumerate(chosen)
    ]  # fmt: skip


def _short(value: float) -> float:
    """A number with six digits, for a small table."""
    return float(f"{value:.6g}")


def _draw(work: Work, problem: Problem) -> None:
    """The figures, from the tables."""
    ends, curves = (pd.read_csv(work.folder / f"{name}.csv") for name in ("zoo", "curves"))
    title = f"{problem.name}, n = {problem.nodes}, exponential graph, mean of {counted(work.scale.seeds, 'seed')}"
    figures.save(
        figures.ranked(curves, ends.set_index("line")["purpose"], title),
        work.folder / "all.png",
        force=True,
    )
    for name in ends["line"]:
        figures.save(figures.highlighted(curves, name), work.folder / f"{name}.png", force=True)
    work.note(
        f"written to {work.folder}: zoo.csv, curves.csv, all.png, and a figure for each of {len(ends)} methods"
    )
