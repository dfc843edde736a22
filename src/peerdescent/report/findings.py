"""The runs and sweeps in a folder, for a report. Runs that differ only in seed are one group.

They are read from the checkpoints of run folders, `optimum.json`, `sweep.csv` and `sweep.json`, and
reduced to what a page shows: lines of at most 400 points, heat maps instead of tables, numbers for
JSON.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerdescent.errors import require
from peerdescent.runs import checkpoint
from peerdescent.runs.bands import HORIZONTAL, VERTICAL, add_gap, band, quantities
from peerdescent.runs.labels import told_apart
from peerdescent.runs.metrics import METRICS, Metric
from peerdescent.runs.statistics import leading, mean, ranking
from peerdescent.runs.trace import Trace
from peerdescent.sweeps import seeds
from peerdescent.sweeps.sweeping import UNFINISHED

INDEX = "comparison.json"
"""The file in the folder of a comparison with the names of its methods, their folders, and how they were chosen."""
GIVEN = "given"
"""How the parameters of a method were chosen if all were given."""
GENERATOR = b'<meta name="generator" content="peerdescent">'
"""The mark of a page of a report; a file without it is not replaced."""
POINTS = 400  # the most points of a line; more could not be seen
LEVELS = (
    40  # the most levels of a hyperparameter in a heat map; more are merged with their neighbours
)


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its path relative to the report's folder, its name if `reproduce` gave one, and its content."""

    place: str
    name: str | None
    summary: dict[str, Any]
    table: pd.DataFrame
    metrics: dict[str, Metric]
    """The metrics that can be drawn, by column."""
    experiment: dict[str, Any] = field(default_factory=dict)
    """All that defines the run but its seeds, by name."""

    @property
    def home(self) -> str:
        """The parent folder, which it shares with runs that differ in seed."""
        return Path(self.place).parent.as_posix()


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in seed."""

    label: str
    runs: list[Run]
    problem: str = ""
    """The name of the problem, with what distinguishes it from others of the same name."""

    @property
    def method(self) -> str:
        """The selector of the method."""
        return str(self.runs[0].summary["method"])

    @property
    def network(self) -> str:
        """The network's `repr`."""
        return str(self.runs[0].summary["network"])

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(run.summary["status"] == "diverged" for run in self.runs)

    @property
    def ended(self) -> bool:
        """Whether all runs came to their end."""
        return all(run.summary["status"] in ("done", "stopped") for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """The seed of each run."""
        return [run.summary["seed"] for run in self.runs]

    def final(self, column: str) -> np.ndarray:
        """The last value of a column for each seed; NaN if a run has no such column."""

        # Of several seeds, one that was interrupted has no last value to be averaged with theirs.
        def last(run: Run) -> float:
            cut = len(self.runs) > 1 and run.summary["status"] == "interrupted"
            return math.nan if cut or column not in run.table else float(run.table[column].iloc[-1])

        return np.array([last(run) for run in self.runs], float)

    def lines(self) -> dict[str, dict[str, Any]]:
        """For each horizontal axis the points `x`, and for each metric the mean there and the edges of its band.

        A line ends where the first of its runs does.
        """
        tables, found = [run.table for run in self.runs], {}
        for x in HORIZONTAL:
            bands = {
                y: band(tables, x, y)
                for y in self.runs[0].metrics
                if all(y in table for table in tables)
            }
            points = bands["loss"].x
            if not len(points):
                continue
            shown = np.unique(np.linspace(0, len(points) - 1, POINTS).round().astype(int))
            lines = {}
            for y, common in bands.items():
                if np.isfinite(common.values).any():
                    lines[y] = {"mid": _numbers(common.mean[shown])}
                    if len(tables) > 1:
                        low, high = common.edges(self.runs[0].metrics[y].log)
                        lines[y] |= {"low": _numbers(low[shown]), "high": _numbers(high[shown])}
            found[x] = {"x": _numbers(points[shown]), "y": lines}
        return found


def smallest(groups: Iterable[Group]) -> Group | None:
    """The group with the smallest mean of the last loss, of those that ended."""
    known = list(groups)
    order = ranking(
        [mean(group.final("loss")) for group in known], [group.ended for group in known]
    )
    return known[order[0]] if order else None


def leaders(groups: Iterable[Group]) -> list[Group]:
    """The smallest group, and those of the same seeds that are level with it; none with a single seed."""
    known = list(groups)
    first = smallest(known)
    rivals = [group for group in known if first and sorted(group.seeds) == sorted(first.seeds)]
    ends = [group.final("loss")[np.argsort(group.seeds)] for group in rivals]
    return [rivals[place] for place in leading(ends, [group.ended for group in rivals])]


def is_page(file: Path) -> bool:
    """Whether a file is the page of a report."""
    return file.is_file() and GENERATOR in file.read_bytes()[:4096]


def runs(folder: Path) -> list[Run]:
    """The run folders in a folder and its subfolders. What only looks like one is left out, with a warning."""
    found = []
    for place in sorted(_places(folder), key=_rank):
        try:
            trace = _trace(place)
        except ValueError as error:
            warnings.warn(f"{place} is left out: {error}", stacklevel=2)
        else:
            found.append(_run(folder, place, trace))
    return found


def _places(folder: Path) -> set[Path]:
    """The folders that hold checkpoints, or what looks like the summary of a run."""
    stored = {
        file.parent for file in folder.rglob("step-*.safetensors") if UNFINISHED not in file.parts
    }
    homes = {
        inner.parent.parent if inner.name.startswith("rank-") else inner.parent for inner in stored
    }
    return homes | {file.parent for file in folder.rglob("summary.json")}


def _rank(place: Path) -> Path:
    """Where a run folder stands among others: those of a comparison in its order, and the others by their names."""
    home, root = place.parent.name, place.parent.parent
    known = (
        [one.get("folder") for one in _methods(root).values()] if (root / INDEX).is_file() else []
    )
    return root / f"{known.index(home):09}" / place.name if home in known else place


def _trace(place: Path) -> Trace:
    known = checkpoint.newest(place / "checkpoint") or checkpoint.newest(
        place / "checkpoint" / "rank-0"
    )
    require(known is not None, "it has no checkpoint that is whole")
    assert known is not None
    return Trace.from_checkpoint(*known)


def _run(folder: Path, place: Path, trace: Trace) -> Run:
    own = [str(name) for name in trace.table if name not in METRICS and name not in VERTICAL]
    table = trace.table.reindex(columns=[*METRICS, *own]).astype(float)
    inner = place.relative_to(folder)
    optimum = next(
        (found for found in _upwards(folder, inner, "optimum.json") if found.is_file()), None
    )
    if optimum is not None:
        value = _json(optimum, ("value",))["value"]
        require(
            isinstance(value, int | float), f"value is {value!r} in {optimum}: must be a number"
        )
        table = add_gap(table, value)
    return Run(
        inner.as_posix(), _named(place), trace.summary(), table, quantities(own, trace.metrics),
        trace.identity.experiment | ({} if trace.asked is None else {"steps": trace.asked}),
    )  # fmt: skip


def _named(place: Path) -> str | None:
    """The name of the method of a run folder, if a study or a comparison gave it one."""
    home, root = place.resolve().parent, place.resolve().parent.parent
    if not re.fullmatch(r"seed-\d+", place.name):
        return None
    if (root / INDEX).is_file():
        return next(
            (str(name) for name, one in _methods(root).items() if one.get("folder") == home.name),
            None,
        )
    return home.name if root.name == "runs" else None


def _methods(root: Path) -> dict[str, Any]:
    """What the index in the folder of a comparison has of each method, by name."""
    methods = _json(root / INDEX, ("methods",))["methods"]
    require(
        isinstance(methods, dict), f"{root / INDEX} is not the index of a comparison: remove it"
    )
    return dict(methods)


def chosen(folder: Path) -> dict[str, str]:
    """How parameters that were not given were chosen, by method, in all comparisons of a folder and its subfolders."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob(INDEX)):
        methods = _methods(file.parent)
        found |= {
            name: one["how"]
            for name, one in methods.items()
            if one.get("how") not in (None, "", GIVEN)
        }
    return found


def _upwards(folder: Path, inner: Path, name: str) -> list[Path]:
    """The places for a file about a run: its folder, then the parents of that up to the report's folder."""
    return [
        folder.joinpath(*inner.parts[:depth], name) for depth in range(len(inner.parts), -1, -1)
    ]


def _json(file: Path, keys: Collection[str] = ()) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    require(
        isinstance(found, dict),
        f"{file} holds no table of names and values: write it again, or move it elsewhere",
    )
    missing = ", ".join(key for key in keys if key not in found)
    require(not missing, f"{file} lacks {missing}: write it again, or move it elsewhere")
    return dict(found)


def grouped(found: Iterable[Run]) -> list[Group]:
    """Group runs that differ only in seeds, with distinct labels that say what else differs."""
    families: dict[Any, list[Run]] = defaultdict(list)
    for run in found:
        families[run.home, json.dumps(run.experiment, sort_keys=True)].append(run)
    groups: list[list[Run]] = []
    for family in families.values():
        # If a seed is there twice, something else differs as well, such as the length: do not group
        # these runs.
        alone = len({run.summary["seed"] for run in family}) < len(family)
        groups += [[run] for run in family] if alone else [family]
    firsts = [group[0] for group in groups]
    names = [str(run.name or run.summary["method"]) for run in firsts]
    labels = _told_apart(names, [run.experiment for run in firsts])
    for where in ("home", "place"):
        shared = Counter(labels)
        labels = [
            label if shared[label] == 1 else f"{name} ({getattr(run, where)})"
            for label, name, run in zip(labels, names, firsts, strict=True)
        ]
    problems = [str(run.summary["problem"]) for run in firsts]
    problems = _told_apart(problems, [_of_problem(run) for run in firsts])
    return [Group(*each) for each in zip(labels, groups, problems, strict=True)]


def _told_apart(names: list[str], facts: list[dict[str, Any]]) -> list[str]:
    """The names with the facts that differ. Checksums say less, so they are added only where others do not suffice."""
    return told_apart(told_apart(names, facts), facts, silent=())


def _of_problem(run: Run) -> dict[str, Any]:
    """What defines the problem of a run."""
    others = (
        "method",
        "computes",
        "network",
        "weights",
        "precision",
        "engine",
        "x_0",
        "steps",
        "clock",
    )
    return {name: value for name, value in run.experiment.items() if name not in others}


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: its facts, the best configuration or None, and the heat map or None."""

    place: str
    method: str
    problem: str
    budget: str
    seeds: int
    configurations: int
    rows: int
    """The number of rows, one per configuration and seed; a configuration that is in the grid twice has more."""
    diverged: int
    best: dict[str, Any] | None
    loss: float
    heat: dict[str, Any] | None


def sweeps(folder: Path) -> list[Sweep]:
    """The sweeps in a folder and its subfolders."""
    return [_sweep(folder, file) for file in sorted(folder.rglob("sweep.csv"))]


def _sweep(folder: Path, file: Path) -> Sweep:
    try:
        table = pd.read_csv(file)
    except ValueError as error:
        raise ValueError(f"{file} is not the table of a sweep: {error}") from error
    missing = ", ".join(
        name for name in ("seed", "loss", "status", "method") if name not in table.columns
    )
    require(
        not missing, f"{file} is not the table of a sweep: it lacks {missing}; move it elsewhere"
    )
    require(len(table) > 0, f"{file} has no rows: run the sweep again, or move it elsewhere")
    described = file.with_name("sweep.json")
    about = _json(described) if described.is_file() else {}
    each = seeds.summary(table)
    first = next(iter(seeds.ranked(each)), None)
    return Sweep(
        place=file.parent.relative_to(folder).as_posix(),
        method=str(about.get("method", table["method"].iloc[0])).split("[")[0],
        problem=str(about.get("problem", "")),
        budget=str(about.get("budget", "")),
        seeds=table["seed"].nunique(),
        configurations=len(each),
        rows=len(table),
        diverged=int(each["diverged"].sum()),
        best=None if first is None else seeds.configuration(each, first),
        loss=math.nan if first is None else float(each["loss"].iloc[first]),
        heat=_heat(each, seeds.parameters(table), first),
    )


def _heat(each: pd.DataFrame, parameters: Sequence[str], best: int | None) -> dict[str, Any] | None:
    """The smallest loss for all pairs of values of all pairs of hyperparameters; those that vary come first.

    `best` is the row of the best configuration, whose levels are marked.
    """
    varied = [name for name in parameters if each[name].nunique(dropna=False) > 1]
    shown = (varied + [name for name in parameters if name not in varied])[: max(2, len(varied))]
    if len(shown) < 2 or not varied:
        return None
    axes = [_levels(each[name]) for name in shown]
    cells = {}
    for j, (columns, right) in enumerate(axes):
        for i, (rows, left) in enumerate(axes[:j]):
            losses, diverged = seeds.smallest(each, "loss", rows, columns, (len(left), len(right)))
            cells[f"{i},{j}"] = [
                [
                    "diverged" if gone else loss
                    for loss, gone in zip(_numbers(line), lost, strict=True)
                ]
                for line, lost in zip(losses, diverged.tolist(), strict=True)
            ]
    named = [
        {"name": name, "levels": names, "best": None if best is None else int(places[best])}
        for name, (places, names) in zip(shown, axes, strict=True)
    ]
    return {"parameters": named, "cells": cells}


def _levels(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The level of each row, and the labels of the levels. If there are too many, neighbours share a level."""
    places, names = seeds.levels(column)
    if len(names) <= LEVELS:
        return places, names
    bins = np.arange(len(names)) * LEVELS // len(names)
    ends = [np.flatnonzero(bins == level)[[0, -1]] for level in range(LEVELS)]
    return bins[places], [names[a] if a == b else f"{names[a]}–{names[b]}" for a, b in ends]


def short(value: Any) -> str:
    """A hyperparameter as short text; "none" for an empty cell."""
    if value is None or value != value:
        return "none"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, rounded to seven digits; None for those that are not finite."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]
