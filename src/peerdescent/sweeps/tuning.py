"""Tuning: search for hyperparameters that suit a problem, on some seeds, and run the winner on others."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from peerdescent.engines.compiled import forget
from peerdescent.errors import require, unknown
from peerdescent.files import claim, write
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.parameters import Kind, Parameter
from peerdescent.methods.selectors import method_of, split
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import check_kinds, check_seeds, starting_point, total_steps
from peerdescent.runs.costs import Costs
from peerdescent.runs.labels import counted, slugs
from peerdescent.runs.loop import run
from peerdescent.runs.metrics import METRICS, Metric, own_metrics
from peerdescent.runs.progress import Share, choose
from peerdescent.runs.trace import Status
from peerdescent.sweeps.grids import builder, configurations_of, grid_of, make, short
from peerdescent.sweeps.search import Axis, Found, Point, search
from peerdescent.sweeps.sweeping import sweep

SEARCHED, FRESH = range(100, 103), range(5)
"""The seeds of the search, and those that its winner is run with."""
CONFIGURATIONS = 150
"""How many configurations the default budget allows."""
LATE = (0.8, 0.85, 0.9, 0.95)
"""The parts of a run at which its loss counts, besides its end."""
BULK = 0.95
"""The share of a bar that the search takes; the fresh runs take the rest."""
EPOCHS = 30.0
SHARE = 0.25
"""The most of a run's gradients that one batch may take."""

Given = Callable[..., Method] | str
"""A name, a selector whose parameters are kept, or a function that makes a method."""
Grid = str | Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]
"""The values to try: "paper" for all that the method declares, or a grid as for `sweep`."""


class DivergedError(ValueError):
    """Every configuration of a search diverged."""


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The result of `tune` for one method."""

    name: str
    """The name, or the selector without what was tuned."""
    method: Method
    """The winner."""
    best: dict[str, Any]
    """Its hyperparameters that were tuned."""
    score: float
    """Its score in the search: the mean over seeds of the worst value of `by` in the last fifth of a run."""
    by: str
    table: pd.DataFrame
    """One row for each configuration and seed of the search, with its `score` over the seeds."""
    fresh: pd.DataFrame
    """The winner with the fresh seeds, one row for each."""
    how: str
    """How it was found, in a sentence."""

    @property
    def selector(self) -> str:
        """The winner as text."""
        name, fixed = split(self.name)
        values = ",".join(f"{key}={_shown(value)}" for key, value in {**fixed, **self.best}.items())
        return f"{name}[{values}]" if values else name

    @property
    def configurations(self) -> int:
        """How many configurations were tried."""
        return len(self.table) // max(1, self.table["seed"].nunique())

    def __repr__(self) -> str:
        return f"Tuned({self.selector}, {self.by} {self.score:.6g} in the search; {self.how})"


def tune(
    methods: Given | list[Given | tuple[Given, Grid]],
    problem: Problem,
    network: Network,
    *,
    grid: Grid | None = None,
    budget: float | None = None,
    by: str = "loss",
    seed: int | Iterable[int] = SEARCHED,
    fresh: int | Iterable[int] = FRESH,
    steps: int | None = None,
    epochs: float | None = None,
    x0: Any = None,
    metrics: Sequence[Any] = (),
    precision: int | str = 32,
    progress: Any = None,
    out: str | Path | None = None,
) -> Any:
    """Find hyperparameters that suit a problem, at a cost that is the same for every method.

    A configuration counts with its worst record in the last fifth of each run, averaged over the
    seeds of the search; one that diverges for a seed is last. So a run that is about to diverge
    does not win. The search begins with values far apart of every hyperparameter that a method
    declares as tuned, refines where the best are close, and goes on past every edge, until the
    winner lies inside, an end of its range is reached, or the budget is spent. Which of these it
    was, `how` says. The winner is then run with fresh seeds, since the choice favours its score.

    Ctrl-C raises KeyboardInterrupt. With `out`, finished configurations are kept, and the same call
    continues.

    Args:
        methods: A name such as "gt-hsgd", a selector such as "gt-hsgd[batch=1]", whose parameters
            are kept, or a function such as `peer.methods.gt_hsgd`, or one of yours; or a list of
            these, in which a pair is a method and its grid.
        problem: The problem.
        network: The network.
        grid: The values to try, in place of a search: a grid as for `sweep`, or "paper" for all
            combinations of the values that the method declares, which are the paper's.
        budget: The gradients of the search of each method, in passes over the local data, summed
            over configurations and seeds. By default what 150 configurations take. A grid takes
            what it takes.
        by: What configurations are ranked by: a column of a trace, such as "loss", "grad_norm", or
            a metric of your own, whose smallest value wins unless `peer.metric(..., rising=True)`
            made it. By another column than the loss, configurations run one after the other, which
            is slower, and are not stored.
        seed: The seeds of the search.
        fresh: The seeds that the winner is run with; empty for none.
        steps: The length of a run in iterations. Give `steps` or `epochs`, or neither for 30
            epochs.
        epochs: The length as a budget of gradients, in passes over the local data.
        x0: The starting point, as for `run`.
        metrics: Metrics of your own, as for `run`.
        precision: As for `run`.
        progress: As for `run`.
        out: A folder for the tables; with several methods, a folder in it for each.

    Returns:
        The winner with its table, or a list of these for a list of methods.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> found = tune("gt-dsgd[batch=1]", problem, network, epochs=2, fresh=range(2))
    >>> found.selector, found.fresh["seed"].tolist()
    ('gt-dsgd[batch=1,alpha=4]', [0, 1])
    """
    check_kinds(problem, network)
    searched, others = check_seeds(seed), [] if np.size(fresh) == 0 else check_seeds(fresh)  # type: ignore[arg-type]
    both = sorted(set(searched) & set(others))
    require(
        not both,
        f"seed {both}: searched and evaluated, which favours what is lucky: give other seeds",
    )
    if steps is None and epochs is None:
        epochs = EPOCHS
    most, ranked = affordable(budget, searched, epochs), ranked_by(by, metrics)
    work = _Work(
        problem, network, steps, epochs, searched, ranked, tuple(metrics), x0, precision, progress
    )
    several = isinstance(methods, list)
    listed: list[Any] = methods if isinstance(methods, list) else [methods]
    entries = [one if isinstance(one, tuple) else (one, grid) for one in listed]
    makers = [searchable(method, values) for method, values in entries]
    places = slugs([maker.name for maker in makers])
    found, bar = [], choose(progress)
    try:
        for k, (maker, (_, values), place) in enumerate(zip(makers, entries, places, strict=True)):
            folder = None if out is None else Path(out) / (place if several else "")
            part = Share(bar, k / len(makers), (k + 1) / len(makers), f"tuning {maker.name}")
            found.append(work._replace(progress=part).tuned(maker, values, most, others, folder))
            forget()
    finally:
        bar.end()
    return found if several else found[0]


def first(method: Any, grid: Grid | None) -> Method:
    """One of the methods to try: with the defaults, or the first of a grid of values."""
    if grid is None or isinstance(grid, str):
        return method_of(method)
    build, values = builder(method), configurations_of(grid)[0]
    known = inspect.signature(build).parameters
    for name in values:
        if name.partition(".")[0] not in known and not any(
            p.kind is p.VAR_KEYWORD for p in known.values()
        ):
            raise unknown(f"parameter of {_name(method)}", name, known)
    return make(build, values)


def is_open(method: Given) -> bool:
    """Whether a method leaves hyperparameters to `tune`.

    >>> is_open("dsgd"), is_open("dsgd[alpha=0.5,batch=1]")
    (True, False)
    """
    maker = _Maker.of(method)
    return bool(maker.tuned or maker.silent)


def searchable(method: Given, grid: Grid | None) -> _Maker:
    """What makes the configurations of a method, if it is known which these are."""
    maker = _Maker.of(method, grid)
    require(
        grid is not None or not maker.silent,
        f"{maker.name} does not say over which values {' and '.join(maker.silent)} are tuned: give a grid, as in "
        f"({maker.name}, {{'{[*maker.silent, ''][0]}': [...]}}), or {maker.name}() for its defaults",
    )
    return maker


def ranked_by(by: str, metrics: Sequence[Any]) -> Metric:
    """The metric of a column."""
    known = {**METRICS, **{one.name: one for one in own_metrics(metrics)}}
    if by not in known:
        raise unknown("metric", by, known)
    return known[by]


def affordable(budget: float | None, seeds: Sequence[int], epochs: float | None) -> int:
    """How many configurations a budget allows."""
    if budget is None:
        return CONFIGURATIONS
    require(
        epochs is not None,
        f"budget = {budget}: it counts passes over the local data: give epochs, not steps",
    )
    assert epochs is not None
    each = len(seeds) * epochs
    require(
        each <= budget < math.inf,
        f"budget = {budget:g}: must be finite; one configuration takes {each:g} passes",
    )
    return int(budget // each)


def _name(method: Given) -> str:
    return method if isinstance(method, str) else getattr(method, "__name__", "custom")


class _Maker(NamedTuple):
    """What makes the configurations of a method."""

    name: str
    build: Callable[..., Method]
    tuned: dict[str, Parameter]
    """The declarations of what is tuned, the step size first."""
    fixed: dict[str, Any]
    base: Method
    """The method with its defaults, and with what is fixed."""
    silent: tuple[str, ...]
    """The arguments of a function that makes a method by hand, of which none has a declaration."""

    @staticmethod
    def of(method: Given, grid: Grid | None = None) -> _Maker:
        require(
            not isinstance(method, Method),
            f"{method} has all its hyperparameters: give a name, a selector such as 'gt-hsgd[batch=4]', or a function",
        )
        build = builder(method)
        fixed: dict[str, Any] = {}
        silent: tuple[str, ...] = ()
        named = next((name for name, one in METHODS.items() if one.build is build), method)
        base = first(method, grid)
        if isinstance(named, str):
            name, fixed = split(named)
            known = METHODS[name].parameters if name in METHODS else list(base.declared)
            fixed = {key: value for key, value in fixed.items() if key.partition(".")[0] in known}
        else:
            every = inspect.signature(build).parameters
            known = [name for name in every if name in base.declared]
            silent = () if known else tuple(every)
        given = {key.partition(".")[0] for key in fixed}
        tuned = {
            name: base.declared[name]
            for name in known
            if base.declared[name].tuned and name not in given
        }
        order = sorted(
            tuned, key=lambda name: (tuned[name].role == "", tuned[name].kind == Kind.size)
        )
        return _Maker(_name(named), build, {key: tuned[key] for key in order}, fixed, base, silent)

    def axes(self, most: float) -> list[Axis]:
        """What is searched, with batches of at most so many samples."""
        found = []
        for name, p in self.tuned.items():
            high = min(p.high, max(1, most)) if p.kind == Kind.size else p.high
            values = tuple(value for value in p.tuned if value <= high) or (1,)
            low, is_whole = (0.0, False) if p.scaled else (p.low, p.is_whole)
            found.append(
                Axis(name, values, low, math.inf if p.scaled else high, is_whole, p.role != "")
            )
        return found

    def configuration(self, values: Mapping[str, Any], samples: float) -> dict[str, Any]:
        """The hyperparameters of a point, where some are relative to others or to the data."""
        row = dict(values)
        every = {**self.base.parameters, **row}
        return row | {
            name: p.scaled(row[name], every, samples) for name, p in self.tuned.items() if p.scaled
        }


class _Work(NamedTuple):
    """On what methods are tuned, and how they are ranked."""

    problem: Problem
    network: Network
    steps: int | None
    epochs: float | None
    seeds: list[int]
    ranked: Metric
    """What configurations are ranked by."""
    metrics: tuple[Any, ...]
    x0: Any
    precision: int | str
    progress: Any

    @property
    def _sign(self) -> float:
        return -1.0 if self.ranked.rising else 1.0

    @property
    def _first(self) -> str:
        return "largest" if self.ranked.rising else "smallest"

    @property
    def length(self) -> dict[str, Any]:
        """The length of a run, as arguments of `run`."""
        return {"steps": self.steps, "epochs": self.epochs}

    def tuned(
        self, maker: _Maker, grid: Grid | None, allowed: int, fresh: list[int], folder: Path | None
    ) -> Tuned:
        """The winner of a search of so many configurations at most, or of a grid."""
        costs = Costs.of(maker.base, self.problem, self.network)
        gradients = float(
            costs.gradients(total_steps(costs, self.problem, self.steps, self.epochs))
        )
        samples = (
            self.problem.samples or gradients / 20
        )  # of a stream, a pass is a twentieth of a run
        if self.epochs is not None:  # whatever the first iteration of the defaults costs
            gradients = self.epochs * samples
        tables: list[pd.DataFrame] = []

        def scores(rows: list[dict[str, Any]], tried: int = 0, of: int = 0) -> list[float]:
            whole = (of or len(rows)) / BULK
            part = Share(self.progress, tried / whole, (tried + len(rows)) / whole)
            table, found = self._replace(progress=part).scored(maker, rows, folder)
            tables.append(table)
            return found

        most, over = 0, ""
        if grid is None and maker.tuned:
            most = allowed
            axes = maker.axes(SHARE * gradients)
            names = [axis.name for axis in axes]

            def row(point: Point) -> dict[str, Any]:
                return maker.configuration(dict(zip(names, point, strict=True)), samples)

            def trial(points: list[Point]) -> list[float]:
                return scores(
                    [row(point) for point in points], sum(map(len, tables)) // len(self.seeds), most
                )

            def meaning(point: Point) -> Hashable:
                return tuple(row(point).values())

            result = search(axes, trial, most, self._start(), meaning)
            best = row(result.best)
            score, said = result.scores[result.best], _limits(axes, result, meaning)
            over = ", over " + ", ".join(
                f"{a.name} {short(a.values[0])} to {short(a.values[-1])}" for a in axes
            )
            over += " and beyond"
        else:
            rows = self._rows(maker, grid)
            found = scores(rows)
            place = int(np.argmin(found))
            best, score, said = rows[place], found[place], _edges(rows, rows[place])
        table = pd.concat(tables, ignore_index=True)
        if not math.isfinite(score):
            own = self.ranked.name
            ended = (table["status"] == Status.done).any()
            require(
                not ended,
                f"by = {own!r}: it is empty or not a number at the end of every run: give another column",
            )
            raise DivergedError(
                f"{maker.name}: every configuration diverged: give smaller step sizes"
            )
        others = table.iloc[:0]
        if fresh:
            last = self._replace(progress=Share(self.progress, BULK, 1.0))
            if self.ranked.name == "loss":
                others = last._swept(
                    maker, [best], fresh, None if folder is None else folder / "fresh"
                )
            else:
                others = last._replace(seeds=fresh)._run(maker, [best])
        of = counted(len(table) // len(self.seeds), "configuration") + (
            f" (at most {most})" if most else ""
        )
        span = (
            counted(self.steps, "step")
            if self.steps is not None
            else f"{short(self.epochs)} epochs"
        )
        by = "" if self.ranked.name == "loss" else f", by the {self._first} {self.ranked.name}"
        seeds = ", ".join(map(str, self.seeds))
        how = f"{_told(best)}: the best of {of} of {span}{over}, on seeds {seeds}{by}{said}"
        winner = Tuned(
            maker.name,
            make(maker.build, best),
            best,
            self._sign * score,
            self.ranked.name,
            table,
            others,
            how,
        )
        if folder is not None:
            claim(folder)
            about = {
                "method": winner.selector,
                "by": self.ranked.name,
                "score": winner.score,
                "how": how,
            }
            write(folder / "tuned.json", (json.dumps(about, indent=2) + "\n").encode())
        return winner

    def _start(self) -> float:
        """The score of staying at the starting point."""
        if self.ranked.name != "loss" or self.problem.streams is not None:
            return math.inf
        return float(self.problem.loss(starting_point(self.x0, self.problem, float).mean(axis=0)))

    def _rows(self, maker: _Maker, grid: Grid | None) -> list[dict[str, Any]]:
        """The configurations of a grid."""
        if grid is None:
            return [{}]
        if isinstance(grid, str):
            require(
                grid == "paper", f"grid = {grid!r}: must be 'paper', or values by hyperparameter"
            )
            rows = grid_of(maker.base.declared, self.problem.samples, maker.fixed, maker.tuned)
            return [{name: row[name] for name in maker.tuned} for row in rows]
        found = configurations_of(grid)
        for name in maker.fixed:
            require(
                name not in found[0],
                f"{name} is in the grid and fixed by the method: leave it out of one of them",
            )
        return found

    def scored(
        self, maker: _Maker, rows: list[dict[str, Any]], folder: Path | None
    ) -> tuple[pd.DataFrame, list[float]]:
        """The table of configurations, and the score of each, of which the smallest is the best."""
        if self.ranked.name == "loss":
            table = self._swept(maker, rows, self.seeds, folder)
            losses = table[[name for name in table if str(name).startswith("loss")]]
            worst = losses.max(axis=1, skipna=False).where(table["status"] == Status.done, math.inf)
        else:
            table = self._run(maker, rows)
            worst = self._sign * table["worst"].where(table["status"] == Status.done)
            worst = worst.fillna(math.inf)
        scores = worst.to_numpy(float).reshape(len(rows), len(self.seeds)).mean(axis=1)
        return table.assign(score=np.repeat(self._sign * scores, len(self.seeds))), scores.tolist()

    def _swept(
        self, maker: _Maker, rows: list[dict[str, Any]], seeds: list[int], folder: Path | None
    ) -> pd.DataFrame:
        at: list[float] = [float(f"{part * (self.epochs or 0):.6g}") for part in LATE]
        if self.steps is not None:
            at = sorted({max(1, round(part * self.steps)) for part in LATE} - {self.steps})
        found = sweep(
            maker.build, rows, self.problem, self.network, **self.length, at=at, seed=seeds, x0=self.x0,
            precision=self.precision, progress=self.progress, out=folder,
        )  # fmt: skip
        if (found["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        return found

    def _run(self, maker: _Maker, rows: list[dict[str, Any]]) -> pd.DataFrame:
        """The same by another column, whose records a sweep has not."""
        found = []
        for k, row in enumerate(rows):
            part = Share(self.progress, k / len(rows), (k + 1) / len(rows))
            traces = run(
                make(maker.build, row),
                self.problem, self.network, **self.length, seed=self.seeds, x0=self.x0, precision=self.precision,
                metrics=self.metrics, record=20, progress=part,
            )  # fmt: skip
            for trace in traces:
                if trace.status == Status.interrupted:
                    raise KeyboardInterrupt
                own, last = self.ranked.name, trace.table.iloc[-1]
                late = trace.table.loc[trace.table["step"] >= LATE[0] * last["step"], own].to_numpy(
                    float
                )
                worst = late.min() if self.ranked.rising else late.max()
                ends = {
                    "loss": last["loss"],
                    own: last[own],
                    "worst": worst,
                    "status": trace.status,
                }
                found.append({**row, "seed": trace.identity.seed, **ends})
        return pd.DataFrame(found)


def _limits(axes: Sequence[Axis], found: Found, meaning: Callable[[Point], Hashable]) -> str:
    """What ended a search, besides that the winner lies inside."""
    ends, best = [], found.best
    for k, axis in enumerate(axes):
        less = axis.moved(best[k], 0.5)
        if less is None or meaning((*best[:k], less, *best[k + 1 :])) == meaning(best):
            ends.append(f"{axis.name} is at its smallest")
        ends += [f"{axis.name} is at its largest"] if axis.moved(best[k], 2.0) is None else []
    ends += ["the budget is spent"] if found.spent else []
    return f"; {', '.join(ends)}" if ends else ""


def _edges(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    """The hyperparameters for which the winner is at an edge of a grid."""
    ends = []
    for name, value in best.items():
        tried = {row[name] for row in rows if isinstance(row[name], int | float)}
        if len(tried) > 1 and value in (min(tried), max(tried)):
            ends.append(f"{name} = {_shown(value)} is at an edge of the grid")
    return f"; {', '.join(ends)}" if ends else ""


def _told(best: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name} = {_shown(value)}" for name, value in best.items()) or "nothing to tune"
    )


def _shown(value: Any) -> str:
    return (
        short(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )
