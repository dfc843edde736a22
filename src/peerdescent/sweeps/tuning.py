"""Tuning: search a grid of configurations, then run the winner with other seeds."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from peerdescent import display
from peerdescent.errors import require, unknown, whole
from peerdescent.files import write
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.selectors import method_of, split
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.cells import over_seeds
from peerdescent.runs.checks import check_kinds
from peerdescent.runs.metrics import METRICS
from peerdescent.runs.statistics import ranking
from peerdescent.runs.trace import Status
from peerdescent.runs.traces import Traces
from peerdescent.sweeps.grids import builder, configurations_of, tuning_grid
from peerdescent.sweeps.recording import Curve, labelled, record
from peerdescent.sweeps.seeds import best
from peerdescent.sweeps.sweeping import sweep

SEARCHES = ("grid", "halving")
KEPT = 3
"""The factor of successive halving: each rung has 1/3 of the configurations of the rung before, with 3 times the
epochs."""
RUNGS = 3
JUDGES = 1001
"""Offset of the seeds that choose between finalists, so that they differ from those on which the winner is run."""


class Tuned(NamedTuple):
    """The result of `tune`."""

    selector: str
    """The winner, as `name[parameter=value,...]`."""
    best: dict[str, Any]
    """Its hyperparameters."""
    loss: float
    """Its loss in the search."""
    table: pd.DataFrame
    """The table of `sweep` for all configurations; after halving, each with the epochs of its last rung."""
    fresh: pd.DataFrame
    """The winner with other seeds, one row per seed."""
    curves: Mapping[str, Traces] = MappingProxyType({})
    """The traces of the winner and of others of the best, if they were asked for, by a label that figures show."""

    def __repr__(self) -> str:
        fresh = f", with {len(self.fresh)} other seeds {self._fresh}" if len(self.fresh) else ""
        return f"Tuned({self.selector}, best of {len(self.table)} with loss {self.loss:.6g}{fresh})"

    @property
    def _fresh(self) -> str:
        """The mean loss with other seeds, and its deviation."""
        return over_seeds(METRICS["loss"], self.fresh["loss"])

    def _repr_html_(self) -> str:
        """The winner, and the ten best of the search; after halving, of its last rung."""
        about = {
            "winner": self.selector,
            "loss in the search": f"{self.loss:.6g}",
            f"with {len(self.fresh)} other seeds": self._fresh if len(self.fresh) else None,
            "configurations": f"{len(self.table):,}",
            "of them diverged": int((self.table["status"] == Status.diverged).sum()) or None,
        }
        columns = [*self.best, "epoch", "loss"]
        found = self.table.iloc[_ranked(self.table)]
        if "rung" in found:  # losses after fewer epochs cannot be compared
            found = found[found["rung"] == found["rung"].max()]
        rows = found[columns][:10].to_dict("records")
        shown = [[f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in rows]
        name = self.selector.partition("[")[0]
        return display.card(f"Tuned: {name}", display.facts(about), display.table(columns, shown))


def tune(
    method: Callable[..., Method] | str,
    problem: Problem,
    network: Network,
    *,
    grid: str | Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] = "small",
    search: str = "grid",
    epochs: float = 30.0,
    at: Sequence[float] = (),
    seed: int = 0,
    seeds: int = 5,
    finalists: int = 1,
    curves: int = 0,
    precision: int | str = 32,
    progress: Any = None,
    out: str | Path | None = None,
) -> Tuned:
    """Find the configuration of a method with the smallest loss after `epochs`.

    The search uses one seed. The winner is then run with other seeds, since its loss in the search is biased by the
    choice. Ctrl-C raises KeyboardInterrupt, after finished configurations have been saved.

    Args:
        method: A name such as "gt-hsgd"; a selector such as "gt-hsgd[batch=1]", whose parameters are not tuned; or a
            function such as `peer.methods.gt_hsgd`, or one of yours whose arguments have defaults.
        problem: The problem.
        network: The network.
        grid: "paper", "medium" or "small" for a grid that the method declares, or a grid as for `sweep`.
        search: "grid" runs every configuration for all epochs. "halving" runs all for a ninth of the epochs, the best
            third for a third, and the best ninth for all.
        epochs: The length of a run as a budget of gradients, in passes over the local data.
        at: Epochs at which the loss is recorded as well.
        seed: The seed of the search.
        seeds: With how many other seeds the winner is run.
        finalists: If above 1, so many of the best are run with five more seeds, and the smallest mean wins. A single
            seed favours large grids and lucky last steps.
        curves: How many of the best, of which the winner is the first, are run once more with all records, on the other
            seeds.
        precision: As for `sweep`.
        progress: As for `sweep`.
        out: A folder for the tables. An interrupted search there is continued.

    Returns:
        The winner, the table of the search, the winner's results with the other seeds, and the curves.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> tuned = tune("gt-hsgd[batch=1]", problem, network, epochs=2, seeds=2)
    >>> len(tuned.table), tuned.selector
    (12, 'gt-hsgd[alpha=16.0,beta=0.1,batch=1,initial_batch=64]')
    >>> tuned.fresh["seed"].tolist()
    [1, 2]
    """
    if search not in SEARCHES:
        raise unknown("search", search, SEARCHES)
    require(
        not isinstance(method, Method),
        f"{method} has all its hyperparameters: give a name, a selector such as 'gt-hsgd[batch=4]', or a function",
    )
    build = builder(method)
    check_kinds(problem, network)
    named = next((name for name, one in METHODS.items() if one.build is build), method)
    name, fixed = split(named) if isinstance(named, str) else (named.__name__, {})
    which = name if isinstance(named, str) else build
    if name in METHODS:  # what its function does not take, such as a switch, is what it is, or refused here
        method_of(method)
        fixed = {key: value for key, value in fixed.items() if key in METHODS[name].parameters}
    seed = whole("seed", seed, 0)
    require(np.ndim(seeds) == 0, f"seeds = {seeds}: give how many other seeds the winner is run with, as in seeds=2")
    seeds, finalists, curves = whole("seeds", seeds, 0), whole("finalists", finalists, 1), whole("curves", curves, 0)
    if isinstance(grid, str):
        configurations: list[dict[str, Any]] = tuning_grid(
            build if which is build else name, problem.samples, grid, **fixed
        )
    else:
        configurations = _given(grid, fixed)
    folder, every = None if out is None else Path(out), configurations
    common: dict[str, Any] = {"precision": precision, "progress": progress}

    def swept(left: list[Any], epochs: float, marks: Sequence[float], seeds: Any, place: Path | None) -> pd.DataFrame:
        found = sweep(which, left, problem, network, epochs=epochs, at=marks, seed=seeds, out=place, **common)
        if (found["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        return found

    def searched(left: list[dict[str, Any]], epochs: float, place: Path | None) -> pd.DataFrame:
        return swept(left, epochs, [a for a in at if a < epochs], seed, place)

    if search == "grid":
        table = last = searched(configurations, epochs, folder)
    else:
        table, last, configurations = _halving(configurations, epochs, searched, folder)
    order = _ranked(last)
    left = last.iloc[order[:finalists]]
    some = [configurations[k] for k in left.index]
    winner = some[0]
    if finalists > 1:
        place = None if folder is None else folder / "finalists"
        more = [seed + JUDGES + k for k in range(5)]
        winner = best(swept(some, epochs, [], more, place))
    selector = f"{name}[{','.join(f'{k}={v}' for k, v in winner.items())}]"
    loss = float(left["loss"].iloc[some.index(winner)])
    fresh, others = table.iloc[:0], [seed + 1 + k for k in range(seeds)]
    if seeds:
        place = None if folder is None else folder / "winner"
        fresh = swept([winner], epochs, list(at), others, place)
        _check_descent(selector, problem, loss, fresh)
    if folder is not None:
        summary = {
            "method": selector, "loss": loss, "seed": seed, "epochs": epochs, "search": search,
            "configurations": len(table), "fresh_losses": fresh["loss"].tolist(),
        }  # fmt: skip
        write(folder / "tuned.json", (json.dumps(summary, indent=2) + "\n").encode())
    following = [winner, *(one for one in (configurations[k] for k in order) if one != winner)][:curves]
    chosen = [Curve(labelled(values, every), values, problem, network, folder) for values in following]
    recorded = record(chosen, builder(which), others or [seed], epochs=epochs, **common)
    statuses = [trace.status for traces in recorded.values() for trace in traces]
    if len(recorded) < len(chosen) or Status.interrupted in statuses:
        raise KeyboardInterrupt
    return Tuned(selector, winner, loss, table, fresh, recorded)


def _check_descent(selector: str, problem: Problem, loss: float, fresh: pd.DataFrame) -> None:
    """Warn of a winner that ends above the start with other seeds."""
    if problem.streams is not None:
        return
    start = problem.loss(np.zeros(problem.dimension) if problem.start is None else problem.start)
    above = int((~(fresh["loss"] <= start)).sum())
    if above:
        ends = f"{above} of {len(fresh)} other seeds end above the loss of the start, {start:.4g}, or diverge"
        remedy = "give smaller step sizes, or choose between several, as with finalists=5"
        warnings.warn(f"{selector}: {ends}; the search ended at {loss:.4g}: {remedy}", stacklevel=3)


def _given(grid: Any, fixed: dict[str, Any]) -> list[dict[str, Any]]:
    found = configurations_of(grid)
    for name in fixed:
        require(name not in found[0], f"{name} is in the grid and fixed by the method: leave it out of one of them")
    return [{**one, **fixed} for one in found]


def _ranked(table: pd.DataFrame) -> list[int]:
    """The rows of a table of one seed, the best first; of equal configurations the first."""
    # Different methods may have one text, as two functions of t have.
    found = ranking(table["loss"], (table["status"] == Status.done) & ~table.duplicated(["method", "loss"]))
    require(len(found) > 0, "every configuration diverged: give smaller step sizes")
    return found


def _halving(
    configurations: list[dict[str, Any]], epochs: float, searched: Any, folder: Path | None
) -> tuple[pd.DataFrame, pd.DataFrame, list[dict[str, Any]]]:
    """Successive halving: the table of all configurations, that of the last rung, and the configurations on it."""
    left = configurations
    tables: list[pd.DataFrame] = []
    for rung in range(RUNGS):
        share = epochs / KEPT ** (RUNGS - 1 - rung)
        last = searched(left, share, None if folder is None else folder / f"rung-{rung + 1}")
        last["rung"] = rung + 1
        if rung == RUNGS - 1:
            return pd.concat([last, *tables[::-1]], ignore_index=True), last, left
        kept = _ranked(last)[: math.ceil(len(left) / KEPT)]
        tables.append(last.drop(kept))
        left = [left[k] for k in kept]
    raise AssertionError("there is a last rung")
