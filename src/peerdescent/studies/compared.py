"""The result of a comparison: the traces of every method, as a table, a figure, a folder and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from peerdescent import figures, report
from peerdescent.errors import require, unknown
from peerdescent.files import alone, claim, write
from peerdescent.report.findings import GIVEN, INDEX, is_page
from peerdescent.runs.bands import reached
from peerdescent.runs.cells import Cell, cell
from peerdescent.runs.labels import counted, slugs
from peerdescent.runs.metrics import METRICS, Metric
from peerdescent.runs.statistics import deviation, difference, leading, mean, middle, ranking
from peerdescent.runs.trace import DRAWN, Status, Trace, have_ended
from peerdescent.runs.traces import Traces, place
from peerdescent.studies import tables
from peerdescent.sweeps.tuning import Tuned

COSTS = ("epoch", "gradients", "rounds", "bytes", "seconds", "clock")
"""The columns of what it costs to reach a target."""
MANY = 5
"""From so many seeds on, interquartile means stand beside means."""
TEXTS = ("selector", "seeds", "configurations", "status")
"""Columns of the table that are no metrics."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Traces]):
    """The result of `compare`: the `Traces` of every method by name, and what they show together.

    Traces of different problems, networks, starting points, precisions, clocks or seeds are
    refused.
    """

    traces: Mapping[str, Traces]
    how: Mapping[str, str] = field(default_factory=dict)
    """How hyperparameters were chosen, by the name of the method; "given" if all were given."""
    missing: tuple[str, ...] = ()
    """The methods that were not run, since the comparison was interrupted."""
    by: str = "loss"
    """The column that methods are compared in."""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """What `tune` found in this call, by the name of the method."""
    configurations: Mapping[str, int] = field(default_factory=dict)
    """How many configurations were tried, by the name of the method, for those that were tuned."""

    def __post_init__(self) -> None:
        require(bool(self.traces or self.missing), "no methods to compare: give at least one")
        for one, other in combinations(self.traces, 2):
            self._check_alike(one, other)

    def _check_alike(self, one: str, other: str) -> None:
        """Refuse two methods that were not run on the same problem and network, with the same options and seeds."""
        first, second = self.traces[one], self.traces[other]
        common = [(first.of(seed), second.of(seed)) for seed in first.seeds if seed in second.seeds]
        for here, there in (
            [_setting(trace) for trace in pair] for pair in common or [(first[0], second[0])]
        ):
            for fact in dict.fromkeys([*here, *there]):
                mine, theirs = here.get(fact), there.get(fact)
                require(
                    mine == theirs,
                    f"{fact} is {mine!r} for {one} and {theirs!r} for {other}; give runs of one problem and one "
                    "network, with the same options",
                )
        for pair in common or [(first[0], second[0])]:
            engines, values = zip(
                *((trace.identity.engine, trace.identity.values) for trace in pair), strict=True
            )
            require(  # of several processes each knows its own data
                len(set(engines)) > 1 or len(set(values)) == 1,
                f"the data, the weights or x_0 are not the same for {one} and for {other}, whose facts are: they were "
                "changed in between; run both again",
            )
        require(
            self.is_interrupted or set(first.seeds) == set(second.seeds),
            f"the seeds are {_listed(first.seeds)} for {one} and {_listed(second.seeds)} for {other}: give runs of the "
            "same seeds, or finish the comparison",
        )
        codes = {metric.name: metric.code for metric in first[0].metrics}
        for metric in second[0].metrics:
            require(
                codes.get(metric.name, metric.code) == metric.code,
                f"metric {metric.name!r} computes something else for {other} than for {one}: rename it",
            )

    def __getitem__(self, name: str) -> Traces:
        if name not in self.traces:
            raise KeyError(str(unknown("method", name, self.traces)))
        return self.traces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def __contains__(self, name: object) -> bool:
        return name in self.traces

    def __repr__(self) -> str:
        left = f"; not run: {', '.join(self.missing)}" if self.missing else ""
        if not self.traces:
            return f"Comparison(interrupted{left})"
        ends = zip(self, self.table[self.by], self.table[f"{self.by}_deviation"], strict=True)
        values = ", ".join(f"{name} {cell(self.metrics[self.by], *end)}" for name, *end in ends)
        return f"Comparison({counted(len(self), 'method')}, {counted(self._seeds, 'seed')}, {self.by}: {values}{left})"

    def _repr_html_(self) -> str | None:
        return self.table.to_html() if self.traces else None

    @property
    def is_interrupted(self) -> bool:
        """Whether methods are missing, or runs were interrupted."""
        statuses = [trace.status for traces in self.traces.values() for trace in traces]
        return bool(self.missing) or Status.interrupted in statuses

    @property
    def _seeds(self) -> int:
        return max((len(own) for own in self.traces.values()), default=0)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of its columns by name, the user's own among them."""
        own = (
            metric
            for traces in self.traces.values()
            for trace in traces
            for metric in trace.metrics
        )
        return {**METRICS, **{metric.name: metric for metric in own}}

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method: the means over seeds of its last records.

        `method` is the name, `selector` the method with all its hyperparameters, and `status` how
        its runs ended. Metrics have a sample deviation beside them, such as `loss_deviation`; it is
        empty for one seed. So have costs, which differ between seeds if runs stop by a rule, or a
        method throws coins. A mean is over all seeds or there is none: if a run diverged or was
        interrupted, or runs are done at different steps, those of several seeds are empty. From
        five seeds on, `loss_middle` is the interquartile mean (of `by` in its place). `leads` is
        whether a method is the best one, or level with it.
        """
        rows = []
        for name, traces in self.traces.items():
            ended = len(traces) == 1 or have_ended(traces)
            selector = traces[0].identity.method
            if (
                name in self.tuned and "[" not in selector
            ):  # of a method by hand, which knows no hyperparameters
                selector = self.tuned[name].selector
            row: dict[str, Any] = {"method": name, "selector": selector, "seeds": len(traces)}
            if self.configurations:
                row["configurations"] = self.configurations.get(name, 0)
            for column in self.metrics:
                last = [
                    trace.table[column].iloc[-1] if column in trace.table else float("nan")
                    for trace in traces
                ]
                row[column] = float(mean(last)) if ended else float("nan")
                row[f"{column}_deviation"] = float(deviation(last)) if ended else float("nan")
            if ended and len(traces) >= MANY:
                row[self._middle] = middle(self._ends(name))
            row["compile_seconds"] = max(trace.compile_seconds for trace in traces)
            rows.append(row | {"leads": name in self._leading, "status": traces.ended})
        return pd.DataFrame(rows)

    def _ends(self, name: str, column: str | None = None) -> np.ndarray:
        """The last value of a column for each seed, in the order of the seeds."""
        traces = sorted(self.traces[name], key=lambda trace: trace.identity.seed)
        return np.array([trace.table[column or self.by].iloc[-1] for trace in traces], dtype=float)

    @property
    def best(self) -> str | None:
        """The method with the best mean, of those of which all runs came to their end; None without any."""
        return next(
            (
                list(self)[place]
                for place in ranking([mean(one) for one in self._values], self._ended)
            ),
            None,
        )

    @property
    def _middle(self) -> str:
        """The column of interquartile means."""
        return f"{self.by}_middle"

    @property
    def _values(self) -> list[np.ndarray]:
        """For each method the last values of its seeds, of which the smallest are the best."""
        sign = -1.0 if self.metrics[self.by].rising else 1.0
        return [sign * self._ends(name) for name in self]

    @property
    def _ended(self) -> list[bool]:
        return [have_ended(traces) for traces in self.traces.values()]

    @cached_property
    def _leading(self) -> list[str]:
        """The best method, and those that are level with it; none with a single seed."""
        return [list(self)[place] for place in leading(self._values, self._ended)]

    @property
    def differences(self) -> pd.DataFrame:
        """How far each method ends from the best one, over the same seeds, whose samples they share.

        The mean of the paired differences with Student's 95 % interval, `low` to `high`; where it
        holds zero, the two are `level`. It is empty for one seed, and for methods of which a run
        did not come to its end.
        """
        rows = []
        for name, ended in zip(self, self._ended, strict=True):
            row: dict[str, Any] = {
                "method": name,
                "difference": math.nan,
                "low": math.nan,
                "high": math.nan,
            }
            if (
                self.best is not None
                and ended
                and set(self[name].seeds) == set(self[self.best].seeds)
            ):
                found = difference(self._ends(name), self._ends(self.best))
                row |= dict(zip(("difference", "low", "high"), found, strict=True))
            rows.append(row | {"level": name in self._leading})
        return pd.DataFrame(rows)

    @property
    def verdict(self) -> str:
        """The comparison in a sentence.

        Which method ends best, and which are level with it.
        """
        rest = [name for name, ended in zip(self, self._ended, strict=True) if not ended] + list(
            self.missing
        )
        without = f"; without a result: {', '.join(rest)}" if rest else ""
        if self.best is None:
            return f"no method came to its end with every seed{without}"
        if self._seeds < 2:
            return f"{self.best} ends best; one seed gives no verdict: give several{without}"
        level = [name for name in self._leading if name != self.best]
        others = f"; level with it: {', '.join(level)}" if level else "; no other is level"
        return f"{self.best} ends best{others if sum(self._ended) > 1 else ''}{without}"

    def to_reach(self, **target: float) -> pd.DataFrame:
        """The cost to a target, such as `to_reach(loss=0.33)`: epochs, gradients, rounds, bytes and seconds.

        One row per method: the mean over the seeds that reach the target, interpolated linearly
        between records, and their share `reached`. `clock` is the simulated time, where runs have a
        clock.
        """
        require(len(target) == 1, f"{target}: give one target, as in to_reach(loss=0.33)")
        ((name, level),) = target.items()
        if name not in self.metrics:
            raise unknown("metric", name, self.metrics)
        sign, rows = -1.0 if self.metrics[name].rising else 1.0, []
        for method, traces in self.traces.items():
            found = []
            for trace in traces:
                values = sign * trace.table[name].to_numpy(float)
                found.append(
                    {
                        cost: reached(trace.table[cost].to_numpy(float), values, sign * level)
                        for cost in COSTS
                    }
                )
            there = [one for one in found if one["gradients"] == one["gradients"]]
            means = {
                cost: float(np.mean([one[cost] for one in there])) if there else math.nan
                for cost in COSTS
            }
            rows.append({"method": method, "reached": len(there) / len(found), **means})
        return pd.DataFrame(rows)

    def protocol(self) -> str:
        """How the comparison was made, in a paragraph: problem, network, seeds, what was tuned, and on what budget."""
        first = next(iter(self.traces.values()), None)
        if first is None:
            return "Nothing was run."
        facts = first[0].identity
        word = "seed" if len(first) == 1 else "seeds"
        said = [
            f"{counted(len(self), 'method')} on {facts.problem} over {facts.network}, with {word} "
            f"{_listed(first.seeds)}, whose samples all methods share, precision {facts.precision}, compared by the "
            f"{self.by} of the last record."
        ]
        if "clock" in facts.facts:
            said.append(f"Seconds are simulated, with {facts.facts['clock']}.")
        for name, traces in self.traces.items():
            last = traces[0].table.iloc[-1]
            length = counted(int(last["step"]), "step")
            if math.isfinite(last["epoch"]):
                length += f" ({last['epoch']:.3g} epochs)"
            how = self.how.get(name, GIVEN)
            chosen = f", tuned: {how}" if name in self.configurations else f" ({how})"
            said.append(f"{name} ran {length} of {traces[0].identity.method}{chosen}.")
        if self.configurations:
            said.append(
                f"Tuning ranked configurations by the mean over seeds of the worst {self.by} in the last fifth."
            )
        if len(first) > 1:
            said.append(
                "Methods are level where Student's 95 % interval of their paired differences holds zero."
            )
        return " ".join(said)

    def to_markdown(self, columns: Sequence[str] = ()) -> str:
        """The table in Markdown, with means ± deviations.

        The best mean is in bold, and so are those of all methods that are level with it: the 95 %
        interval of the paired differences holds zero. One seed gives no bold. `columns` are names
        of metrics, "status", "seeds" or "selector"; by default the loss, the disagreement of nodes,
        metrics of your own, and the costs.
        """
        return tables.markdown(*self._rows(columns))

    def to_latex(self, columns: Sequence[str] = ()) -> str:
        """The same as `to_markdown` as a LaTeX table, which needs the package booktabs."""
        return tables.latex(*self._rows(columns))

    def _rows(self, columns: Sequence[str]) -> tuple[list[str], list[list[str | Cell]]]:
        """The head and the rows of a table as text."""
        require(
            bool(self.traces),
            f"nothing was run yet of {', '.join(self.missing)}: start the comparison again",
        )
        metrics, table = self.metrics, self.table
        for name in columns:
            if name not in metrics and name not in TEXTS:
                raise unknown("metric", name, [*metrics, *TEXTS])
        own = [name for name in metrics if name not in METRICS]
        usual = [
            "configurations",
            self.by,
            self._middle,
            "loss",
            "consensus",
            *own,
            "epoch",
            "rounds",
            "bytes",
            "clock",
        ]
        shown = list(columns) or [
            name for name in dict.fromkeys(usual) if name in table and table[name].notna().any()
        ]
        said = "status" not in shown and not (table["status"] == Status.done).all()
        rows: list[list[str | Cell]] = []
        for row in table.to_dict("records"):
            cells: list[str | Cell] = [str(row["method"])]
            for name in shown:
                if name == self._middle:
                    cells.append(cell(metrics[self.by], row[name], math.nan))
                    continue
                if name not in metrics:
                    cells.append(str(row[name]))
                    continue
                best = name == self.by and row["method"] in self._leading
                cells.append(
                    cell(metrics[name], row[name], row.get(f"{name}_deviation", float("nan")), best)
                )
            rows.append([*cells, *[str(row["status"])] * said])
        return ["method", *(name.replace("_", " ") for name in shown), *["status"] * said], rows

    def figure(
        self, panels: Sequence[tuple[str, str]] = (), optimum: float | None = None, ax: Any = None
    ) -> Figure:
        """Curves of all methods, with bands over seeds; arguments are as for `peer.figures.comparison`."""
        return figures.comparison(self.traces, ax, panels, optimum)

    def save(self, folder: str | Path, force: bool = False) -> Path:
        """Write a folder: comparison.csv, comparison.png, and a run folder for each method and seed.

        Other runs in these folders are refused, unless `force` replaces them; see `Trace.save`. A
        page of `report` that is there is written anew.
        """
        home = claim(Path(folder))
        with alone(home):
            index = Index.of(home, [*self.traces, *self.missing])
            for name, traces in self.traces.items():
                traces.check_folder(home / index.folders[name], force)
            for name, traces in self.traces.items():
                for seed in traces.seeds:
                    claim(place(home / index.folders[name], seed))
                traces.save(home / index.folders[name], force)
                index.known[name] |= {"by": self.by} | (
                    {"how": self.how[name]} if name in self.how else {}
                )
                index.known[name] |= (
                    {"configurations": self.configurations[name]}
                    if name in self.configurations
                    else {}
                )
            index.save()
            if not self.traces:
                return home
            write(home / "comparison.csv", self.table.to_csv(index=False).encode())
            figures.save(self.figure(), home / "comparison.png", force=True)
            if is_page(home / "report.html"):
                report.write(home)
        return home

    @staticmethod
    def load(folder: str | Path) -> Comparison:
        """The comparison in a folder of `save` or `compare(out=...)`."""
        home = Path(folder)
        known = _read(home)
        by = next((one["by"] for one in known.values() if "by" in one), "loss")
        require(len(known) > 0, f"{home} has no comparison: it has no {INDEX}")
        begun = {
            name: where
            for name, where in homes(home).items()
            if any(where.glob("seed-*/checkpoint/**/step-*"))
        }
        require(len(begun) > 0, f"{home} has no runs yet: start the comparison again")
        traces = {name: Traces.load(where) for name, where in begun.items()}
        how = {name: one["how"] for name, one in known.items() if one.get("how")}
        counts = {
            name: one["configurations"] for name, one in known.items() if "configurations" in one
        }
        return Comparison(
            traces, how, tuple(name for name in known if name not in traces), by, {}, counts
        )

    def report(self, folder: str | Path) -> Path:
        """Write the folder of `save`, and an interactive HTML page about it, whose path is returned."""
        return report.write(self.save(folder))


def _setting(trace: Trace) -> dict[str, Any]:
    """What methods of a comparison have in common for a seed: problem, network, x_0, precision and clock."""
    seeds: dict[str, Any] = {name: trace.identity.drawn.get(name) for name in DRAWN}
    known = seeds | trace.identity.experiment
    return {
        name: value
        for name, value in known.items()
        if name not in ("method", "computes", "engine", "values")
    }


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def folders(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """A folder name for each method: its name, without parameters unless two methods share it.

    >>> folders(["dsgd[alpha=1]", "gt-hsgd[beta=0.1]", "gt-hsgd"])
    ['dsgd', 'gt-hsgd-beta=0.1', 'gt-hsgd']
    """
    heads = [name.partition("[")[0].strip() for name in names]
    short = [
        head if heads.count(head) == 1 else name for head, name in zip(heads, names, strict=True)
    ]
    return slugs([*taken, *short])[len(taken) :]


class Index:
    """The methods in a comparison's folder, by name: the folder of each, and how its parameters were chosen."""

    def __init__(self, folder: Path | None, known: dict[str, dict[str, Any]]) -> None:
        self.folder, self.known = folder, known

    @staticmethod
    def of(folder: Path | None, names: Sequence[str], read: bool = True) -> Index:
        """That of a folder, which may have fewer methods, but no others; not `read`, one that begins anew."""
        known = _read(folder) if folder is not None and read else {}
        require(
            set(known) <= set(names),
            f"{folder} holds a comparison of {', '.join(known)}, and what was asked for is {', '.join(names)}: name "
            "all that it holds, or give another folder",
        )
        new = [name for name in names if name not in known]
        taken = [one["folder"] for one in known.values()]
        found = dict(zip(new, folders(new, taken), strict=True))
        return Index(folder, {name: known.get(name) or {"folder": found[name]} for name in names})

    @property
    def folders(self) -> dict[str, str]:
        """The folder of each method, in that of the comparison."""
        return {name: one["folder"] for name, one in self.known.items()}

    def recall(
        self, name: str, about: Mapping[str, Any], compared: Sequence[int]
    ) -> dict[str, Any] | None:
        """The values that a search for another length of runs chose, on seeds that are not compared; None without."""
        earlier = self.known[name].get("tuned") or {}
        if not earlier:
            return None
        for fact, value in about.items():
            require(
                fact in ("seeds", "length") or earlier.get(fact) == value,
                f"{self.folder} has {name} as it was tuned with another {fact}: {earlier.get(fact)}, and here {value}; "
                "give another folder",
            )
        if earlier["length"] == about["length"] or set(earlier["seeds"]) & set(compared):
            return None
        return dict(earlier["values"])

    def save(self) -> None:
        """Write it, if there is a folder."""
        if self.folder is not None:
            write(
                self.folder / INDEX, (json.dumps({"methods": self.known}, indent=2) + "\n").encode()
            )


def homes(folder: Path) -> dict[str, Path]:
    """The folders of the methods in a comparison's folder, by name."""
    return {name: folder / one["folder"] for name, one in _read(folder).items()}


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """The methods in a folder of a comparison; none if it has none."""
    file = folder / INDEX
    if not file.is_file():
        return {}
    try:
        known: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["methods"]
        good = all(isinstance(one["folder"], str) for one in known.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    require(good, f"{file} is not the index of a comparison: remove it")
    return known
