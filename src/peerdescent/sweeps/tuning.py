"""Tuning: search a grid of configurations, then run the winner on samples that did not choose it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from peerdescent.errors import require, unknown, whole
from peerdescent.files import write
from peerdescent.methods.selectors import split
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.trace import Status
from peerdescent.sweeps.grids import configurations_of, tuning_grid
from peerdescent.sweeps.seeds import best
from peerdescent.sweeps.sweeping import sweep

SEARCHES = ("grid", "halving")
KEPT = 3
"""Halving keeps one in so many of its configurations, and gives them as many times the epochs."""
RUNGS = 3
JUDGES = 1001
"""What is added to the seed for those that choose between finalists, so that they are not among the fresh ones."""


class Tuned(NamedTuple):
    """What `tune` found."""

    selector: str
    """The winner, as `name[parameter=value,...]`."""
    best: dict[str, Any]
    """Its hyperparameters."""
    loss: float
    """Its loss in the search."""
    table: pd.DataFrame
    """The table of `sweep`, all configurations; after halving, each with the epochs it was given."""
    fresh: pd.DataFrame
    """The winner on fresh seeds, a row a seed."""


def tune(
    method: str,
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
    precision: int | str = 32,
    progress: Any = None,
    out: str | Path | None = None,
) -> Tuned:
    """The configuration of a method with the smallest loss after `epochs`, found with `seed`.

    `method` is a name such as "gt-hsgd"; parameters that are given, as in "gt-hsgd[batch=1]", are not tuned. `grid` is
    "paper", "medium" or "small", or whatever `sweep` takes. `search` is "grid", which gives every configuration all
    epochs, or "halving": a ninth of the epochs for all, a third for the best third, all of them for the best ninth.
    The winner is then run on `seeds` other seeds, since the one that chose it flatters it. With `finalists` above 1 so
    many of the best are first run on five more seeds, and the one with the smallest mean wins: one seed favours
    methods with large grids, and lucky last steps.

    `out` is a folder for the tables; an interrupted search is continued from there. Ctrl-C raises KeyboardInterrupt,
    after what is finished has been saved.

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
    name, fixed = split(method)
    seeds, finalists = whole("seeds", seeds, 0), whole("finalists", finalists, 1)
    if isinstance(grid, str):
        configurations: list[dict[str, Any]] = tuning_grid(name, problem.samples, grid, **fixed)
    else:
        configurations = _given(grid, fixed)
    folder = None if out is None else Path(out)
    common: dict[str, Any] = {"precision": precision, "progress": progress}

    def swept(left: list[Any], epochs: float, marks: Sequence[float], seeds: Any, place: Path | None) -> pd.DataFrame:
        found = sweep(name, left, problem, network, epochs=epochs, at=marks, seed=seeds, out=place, **common)
        if (found["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        return found

    def searched(left: list[dict[str, Any]], epochs: float, place: Path | None) -> pd.DataFrame:
        return swept(left, epochs, [a for a in at if a < epochs], seed, place)

    if search == "grid":
        table = last = searched(configurations, epochs, folder)
    else:
        table, last, configurations = _halving(configurations, epochs, searched, folder)
    done = last[last["status"] == Status.done].drop_duplicates("method")
    require(len(done) > 0, "every configuration diverged: give smaller step sizes")
    left = done.nsmallest(finalists, "loss")
    some = [configurations[k] for k in left.index]
    winner = some[0]
    if finalists > 1:
        place = None if folder is None else folder / "finalists"
        more = [seed + JUDGES + k for k in range(5)]
        winner = best(swept(some, epochs, [], more, place))
    selector = f"{name}[{','.join(f'{k}={v}' for k, v in winner.items())}]"
    loss = float(left["loss"].iloc[some.index(winner)])
    fresh = table.iloc[:0]
    if seeds:
        others = [seed + 1 + k for k in range(seeds)]
        place = None if folder is None else folder / "winner"
        fresh = swept([winner], epochs, list(at), others, place)
    if folder is not None:
        summary = {
            "method": selector, "loss": loss, "seed": seed, "epochs": epochs, "search": search,
            "configurations": len(table), "fresh_losses": fresh["loss"].tolist(),
        }  # fmt: skip
        write(folder / "tuned.json", (json.dumps(summary, indent=2) + "\n").encode())
    return Tuned(selector, winner, loss, table, fresh)


def _given(grid: Any, fixed: dict[str, Any]) -> list[dict[str, Any]]:
    found = configurations_of(grid)
    for name in fixed:
        require(name not in found[0], f"{name} is in the grid and fixed by the method: leave it out of one of them")
    return [{**one, **fixed} for one in found]


def _halving(
    configurations: list[dict[str, Any]], epochs: float, searched: Any, folder: Path | None
) -> tuple[pd.DataFrame, pd.DataFrame, list[dict[str, Any]]]:
    """The table of all, that of the last rung, and who was on it."""
    left = configurations
    tables: list[pd.DataFrame] = []
    for rung in range(RUNGS):
        share = epochs / KEPT ** (RUNGS - 1 - rung)
        last = searched(left, share, None if folder is None else folder / f"rung-{rung + 1}")
        last["rung"] = rung + 1
        if rung == RUNGS - 1:
            return pd.concat([last, *tables[::-1]], ignore_index=True), last, left
        ranked = last[last["status"] == Status.done].drop_duplicates("method").sort_values("loss", kind="stable")
        require(len(ranked) > 0, "every configuration diverged: give smaller step sizes")
        kept = ranked.index[: math.ceil(len(left) / KEPT)]
        tables.append(last.drop(kept))
        left = [left[k] for k in kept]
    raise AssertionError("there is a last rung")
