"""What a report finds in a folder: its runs, those that differ only in seed together, and its sweeps.

All is read from `trace.csv`, `summary.json`, `optimum.json`, `sweep.csv` and `sweep.json`, and made small here: lines
of at most 400 points, heat maps instead of tables, numbers as JSON has them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdescent.errors import require

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

AXES = {
    "epoch": "epochs",
    "rounds": "rounds of communication",
    "bytes": "bytes sent by a node, on average",
    "seconds": "seconds",
    "step": "steps",
}
QUANTITIES = {
    "loss": "loss F(x̄)",
    "gap": "gap F(x̄) − F*",
    "grad_norm": "gradient norm ‖∇F(x̄)‖",
    "consensus": "consensus error",
}
POINTS = 400  # of a line; more could not be seen
LEVELS = 40  # of a hyperparameter in a heat map; more are taken together with their neighbours


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its place beneath the report's, its name if `reproduce` gave it one, and what is in it."""

    place: str
    name: str | None
    summary: dict[str, Any]
    table: pd.DataFrame

    @property
    def home(self) -> str:
        """The folder it shares with the runs that differ in seed."""
        return Path(self.place).parent.as_posix()


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in seed."""

    label: str
    runs: list[Run]

    @property
    def method(self) -> str:
        """The selector."""
        return str(self.runs[0].summary["method"])

    @property
    def problem(self) -> str:
        """Its name."""
        return str(self.runs[0].summary["problem"])

    @property
    def network(self) -> str:
        """The network, as it prints."""
        return str(self.runs[0].summary["network"])

    @property
    def diverged(self) -> int:
        """How many runs did."""
        return sum(run.summary["status"] == "diverged" for run in self.runs)

    def final(self, column: str) -> np.ndarray:
        """The last record of each seed."""
        import numpy as np

        return np.array([run.table[column].iloc[-1] for run in self.runs], float)

    def lines(self) -> dict[str, dict[str, Any]]:
        """For each axis the places `x` and, for each quantity, its mean over seeds there, the smallest and the largest.

        A line ends where the first of its seeds does: a mean over fewer from there on would jump.
        """
        import numpy as np

        found: dict[str, dict[str, Any]] = {}
        for x in AXES:
            tables = [run.table[np.isfinite(run.table[x])].sort_values(x, kind="stable") for run in self.runs]
            if any(table.empty for table in tables):
                continue
            first, last = max(table[x].iloc[0] for table in tables), min(table[x].iloc[-1] for table in tables)
            grid = np.unique(np.concatenate([table[x] for table in tables]))
            grid = grid[(first <= grid) & (grid <= last)]
            if not len(grid):
                continue
            grid = grid[np.unique(np.linspace(0, len(grid) - 1, POINTS).round().astype(int))]
            found[x] = {"x": _numbers(grid)}
            for y in QUANTITIES:
                columns = [table[y].where(np.isfinite(table[y])) for table in tables]
                values = np.stack([np.interp(grid, t[x], c) for t, c in zip(tables, columns, strict=True)])
                if np.isfinite(values).any():
                    found[x][y] = {"mid": _numbers(values.mean(axis=0))}
                    if len(tables) > 1:
                        found[x][y] |= {"low": _numbers(values.min(axis=0)), "high": _numbers(values.max(axis=0))}
        return found


def best(groups: Iterable[Group]) -> Group | None:
    """The group with the smallest mean loss at its end, of those that did not diverge."""
    whole = [group for group in groups if not group.diverged and math.isfinite(group.final("loss").mean())]
    return min(whole, key=lambda group: float(group.final("loss").mean()), default=None)


def runs(folder: Path) -> list[Run]:
    """The run folders in a folder and beneath it."""
    places = sorted(file.parent for file in folder.rglob("trace.csv") if (file.parent / "summary.json").is_file())
    return [_run(folder, place) for place in places]


def _run(folder: Path, place: Path) -> Run:
    import pandas as pd

    summary = _json(place / "summary.json", ("method", "problem", "network", "seed", "status"))
    try:
        table = pd.read_csv(place / "trace.csv").reindex(columns=[*AXES, *QUANTITIES]).astype(float)
    except ValueError as error:
        raise ValueError(f"{place / 'trace.csv'} is not the table of a trace: {error}") from error
    require(len(table) > 0, f"{place / 'trace.csv'} has no rows: run it again, or move it elsewhere")
    inner = place.relative_to(folder)
    optimum = next((file for file in _upwards(folder, inner, "optimum.json") if file.is_file()), None)
    if optimum is not None:
        value = _json(optimum, ("value",))["value"]
        require(isinstance(value, int | float), f"value is {value!r} in {optimum}: must be a number")
        table["gap"] = table["loss"] - value
    parts = place.resolve().parts
    named = parts[-3:-2] == ("runs",) and re.fullmatch(r"seed-\d+", parts[-1])
    return Run(inner.as_posix(), parts[-2] if named else None, summary, table)


def _upwards(folder: Path, inner: Path, name: str) -> list[Path]:
    """Where a file that is about a run may be: beside it, above it, in the report's folder at last."""
    return [folder.joinpath(*inner.parts[:depth], name) for depth in range(len(inner.parts), -1, -1)]


def _json(file: Path, keys: Collection[str] = ()) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    require(isinstance(found, dict), f"{file} holds no table of names and values: write it again, or move it elsewhere")
    missing = ", ".join(key for key in keys if key not in found)
    require(not missing, f"{file} lacks {missing}: write it again, or move it elsewhere")
    return dict(found)


def grouped(found: Iterable[Run]) -> list[Group]:
    """Runs that differ only in seed together, under labels that differ."""
    same = ("method", "problem", "network", "nodes", "dimension", "precision", "engine")
    families: dict[Any, list[Run]] = defaultdict(list)
    for run in found:
        families[run.home, *(run.summary.get(key) for key in same)].append(run)
    groups: list[list[Run]] = []
    for family in families.values():
        # The same seed twice is no family of seeds: something else differs, such as the length.
        alone = len({run.summary["seed"] for run in family}) < len(family)
        groups += [[run] for run in family] if alone else [family]
    names = [str(group[0].name or group[0].summary["method"]) for group in groups]
    labels = names
    longer: tuple[Callable[[Run], str], ...] = (lambda run: run.home, lambda run: run.place)
    for where in longer:
        shared = Counter(labels)
        labels = [
            label if shared[label] == 1 else f"{name} ({where(group[0])})"
            for label, name, group in zip(labels, names, groups, strict=True)
        ]
    return [Group(label, group) for label, group in zip(labels, groups, strict=True)]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: what it was about, its best configuration, None if there is none, and its heat map, if it has one."""

    place: str
    method: str
    problem: str
    budget: str
    seeds: int
    configurations: int
    rows: int
    """One for each configuration and seed, and again where the grid has a configuration twice."""
    diverged: int
    best: dict[str, Any] | None
    loss: float
    heat: dict[str, Any] | None


def sweeps(folder: Path) -> list[Sweep]:
    """The sweeps in a folder and beneath it."""
    return [_sweep(folder, file) for file in sorted(folder.rglob("sweep.csv"))]


def _sweep(folder: Path, file: Path) -> Sweep:
    import pandas as pd

    from peerdescent.sweeps.sweeping import best as best_configuration

    try:
        table = pd.read_csv(file)
    except ValueError as error:
        raise ValueError(f"{file} is not the table of a sweep: {error}") from error
    missing = ", ".join(name for name in ("seed", "loss", "status", "method") if name not in table.columns)
    require(not missing, f"{file} is not the table of a sweep: it lacks {missing}; move it elsewhere")
    require(len(table) > 0, f"{file} has no rows: run the sweep again, or move it elsewhere")
    described = file.with_name("sweep.json")
    about = _json(described) if described.is_file() else {}
    parameters = list(table.columns[: table.columns.get_loc("seed")])
    rows = len(table)
    table = table.drop_duplicates([*parameters, "seed"])
    # As `sweep.best` has it, a configuration is its mean over seeds, and counts if it is done for every one of them.
    keys = [table[name] for name in parameters] or [pd.Series(0, table.index)]
    marked = table.assign(gone=table["status"] == "diverged", done=table["status"] == "done")
    groups = marked.groupby(keys, dropna=False, sort=False)
    each = groups.agg(loss=("loss", "mean"), gone=("gone", "any"), done=("done", "sum")).reset_index()
    each["done"] = each["done"] == table["seed"].nunique()
    finished = each.loc[each["done"], "loss"]
    return Sweep(
        place=file.parent.relative_to(folder).as_posix(),
        method=str(about.get("method", table["method"].iloc[0])).split("[")[0],
        problem=str(about.get("problem", "")),
        budget=str(about.get("budget", "")),
        seeds=table["seed"].nunique(),
        configurations=len(each),
        rows=rows,
        diverged=int(each["gone"].sum()),
        best=best_configuration(table) if len(finished) else None,
        loss=float(finished.min()),
        heat=_heat(each, parameters),
    )


def _heat(each: pd.DataFrame, parameters: Sequence[str]) -> dict[str, Any] | None:
    """The smallest loss for every two values of every two hyperparameters, those that vary before others."""
    import numpy as np

    varied = [name for name in parameters if each[name].nunique(dropna=False) > 1]
    shown = (varied + [name for name in parameters if name not in varied])[: max(2, len(varied))]
    if len(shown) < 2 or not varied:
        return None
    axes = [_levels(each[name]) for name in shown]
    done, gone, losses = (each[name].to_numpy() for name in ("done", "gone", "loss"))
    cells = {}
    for j, (columns, right) in enumerate(axes):
        for i, (rows, left) in enumerate(axes[:j]):
            smallest = np.full((len(left), len(right)), np.inf)
            np.minimum.at(smallest, (rows[done], columns[done]), losses[done])
            lost = np.full(smallest.shape, None, object)
            lost[rows[gone], columns[gone]] = "diverged"
            cells[f"{i},{j}"] = [
                [value if value is not None else other for value, other in zip(_numbers(line), others, strict=True)]
                for line, others in zip(smallest, lost.tolist(), strict=True)
            ]
    named = [{"name": name, "levels": names} for name, (_, names) in zip(shown, axes, strict=True)]
    return {"parameters": named, "cells": cells}


def _levels(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The level of each row, and what the levels are called."""
    import numpy as np
    import pandas as pd

    codes, values = pd.factorize(column, sort=True, use_na_sentinel=False)
    names = [short(value) for value in values]
    if len(names) <= LEVELS:
        return codes, names
    bins = np.arange(len(names)) * LEVELS // len(names)
    ends = [np.flatnonzero(bins == level)[[0, -1]] for level in range(LEVELS)]
    return bins[codes], [names[a] if a == b else f"{names[a]}–{names[b]}" for a, b in ends]


def short(value: Any) -> str:
    """A hyperparameter as short as it can be told from others; an empty cell is none."""
    if value is None or value != value:
        return "none"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _numbers(values: np.ndarray) -> list[float | None]:
    """As JSON has them; seven digits are more than a screen shows."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]
