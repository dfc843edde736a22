"""Hyperparameters that suit a problem, by a short search: what `compare` uses where a user gives none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from peerdescent.errors import require, whole
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.parameters import Kind, Parameter
from peerdescent.methods.selectors import method_of, split
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import check_kinds
from peerdescent.runs.trace import Status
from peerdescent.sweeps.grids import builder, grid_of, make
from peerdescent.sweeps.seeds import configuration, parameters, ranked, summary
from peerdescent.sweeps.sweeping import sweep

FIRST, SEEDS = 1001, 3
"""The first seed of the search, and how many: with one, a step size that is too large may be lucky."""
GRADIENTS = 25_000
"""The most gradients per node of a run of the search, so that it takes seconds also on large data."""
SHIFTS = 4
"""How often the grid is shifted if it does not reach far enough."""
FINER = 2
"""The factor to both sides of the best step size that is tried at last: the grid has one of four."""


class Chosen(NamedTuple):
    """The result of `quick_tune`."""

    method: Method
    """The method with the hyperparameters that were found."""
    values: dict[str, Any]
    """Those that were chosen; empty if there was nothing to choose, or nothing stable."""
    how: str
    """A sentence that says which they are, and how they were found; empty if there was nothing to choose."""
    table: pd.DataFrame | None
    """The table of `sweep` for all settings that were tried."""


def quick_tune(
    method: Callable[..., Method] | str,
    problem: Problem,
    network: Network,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    x0: Any = None,
    apart: Collection[int] = (),
    precision: int | str = 32,
    progress: Any = None,
) -> Chosen:
    """Choose the hyperparameters that are not given, by a short search for the smallest loss in the end.

    All combinations of the small grid that the method declares for its numbers are run with three seeds, of which the
    worst counts; batches and other sizes have the first value of the grid. A run has the length that is asked for, but
    at most 25,000 gradients per node: shorter runs favour step sizes that are too large in the end. If the best step
    size is the smallest or the largest that was tried, or all diverged, the grid is shifted beyond, up to four times.
    In the end half and twice the best step size are tried, with the other numbers as they were found.

    Args:
        method: A name such as "gt-hsgd", a selector such as "gt-hsgd[batch=4]" whose parameters are kept, or a function
            whose arguments have defaults.
        problem: The problem.
        network: The network.
        steps: The length in iterations of the runs for which to choose. Give either `steps` or `epochs`.
        epochs: Their length as a budget of gradients, in passes over the local data.
        x0: Their starting point.
        apart: Seeds that the search may not use, since results are reported for them.
        precision: As for `sweep`.
        progress: As for `sweep`.

    Returns:
        The method with these hyperparameters, a sentence about them, and the table of the search.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> found = quick_tune("gt-dsgd", problem, peer.Network(peer.topology.ring(4)), epochs=2)
    >>> print(found.method)
    gt-dsgd[batch=1,alpha=4.0,atc=True]
    >>> found.how
    'alpha = 4 by a quick tune: 6 settings of 2 epochs, seeds 1001, 1002, 1003'
    """
    check_kinds(problem, network)
    space = _Space.of(method, problem.samples)
    block = space.block
    if len(space.rows(block)) < 2:
        return Chosen(space.base, {}, "", None)
    length = _length(problem, steps, epochs)
    seeds = seeds_of(apart)
    tables: list[pd.DataFrame] = []

    def search(rows: list[dict[str, Any]]) -> tuple[pd.DataFrame, int, dict[str, Any] | None]:
        """Run settings: the table of all so far, how many there are, and the best of them."""
        swept = sweep(
            method, rows, problem, network, **length, x0=x0, seed=seeds, precision=precision, progress=progress
        )
        if (swept["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        tables.append(swept)
        table = pd.concat(tables, ignore_index=True)
        # A mean of three would hide a run that is about to diverge.
        worst = table.groupby(parameters(table))["loss"].transform("max")
        each = summary(table.assign(loss=worst))
        return table, len(each), next((configuration(each, place) for place in ranked(each)), None)

    while block is not None or not tables:
        table, count, winner = search(space.rows(block))
        if block is not None and space.step is not None:
            found = None if winner is None else winner[space.step]
            block = None if len(tables) > SHIFTS else _shifted(block, table[space.step], found)
    if winner is not None and space.step is not None:
        between = [winner[space.step] * factor for factor in (1 / FINER, FINER)]
        new = [value for value in between if not np.isclose(table[space.step], value, atol=0).any()]
        if new:
            table, count, winner = search([{**winner, space.step: value} for value in new])
    settings = f"{count} settings of {_said(length)}, seeds {', '.join(map(str, seeds))}"
    if winner is None:
        return Chosen(space.base, {}, f"the defaults, since a quick tune found nothing stable: {settings}", table)
    said = [name for name in winner if table[name].nunique() > 1 or winner[name] != space.base.parameters[name]]
    values = ", ".join(f"{name} = {winner[name]:.4g}" for name in said)
    return Chosen(make(space.build, winner), winner, f"{values} by a quick tune: {settings}", table)


def seeds_of(apart: Collection[int]) -> list[int]:
    """The seeds of a search that may not use those in `apart`."""
    return [seed for seed in range(FIRST, FIRST + SEEDS + len(apart)) if seed not in apart][:SEEDS]


def is_open(method: Callable[..., Method] | str, problem: Problem) -> bool:
    """Whether a method leaves hyperparameters to `quick_tune`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> is_open("dsgd", problem), is_open("dsgd[alpha=0.5]", problem)
    (True, False)
    """
    space = _Space.of(method, problem.samples)
    return len(space.rows(space.block)) > 1


class _Space(NamedTuple):
    """What a search chooses from."""

    build: Callable[..., Method]
    base: Method
    """The method with its defaults, and with what is given."""
    declared: Mapping[str, Parameter]
    given: Mapping[str, Any]
    step: str | None
    """The step size, if it is not given."""
    samples: float | None

    @staticmethod
    def of(method: Callable[..., Method] | str, samples: float | None) -> _Space:
        build = builder(method)
        given: dict[str, Any] = {}
        if isinstance(method, str):
            name, values = split(method)
            base = build()
            known = METHODS[name].parameters if name in METHODS else list(base.declared)
            given = {key.partition(".")[0]: value for key, value in values.items()}
        else:
            base = method_of(build)
            known = [name for name in inspect.signature(build).parameters if name in base.declared]
        step = base.step_size if base.step_size in known and base.step_size not in given else None
        declared = {key: base.declared[key] for key in known}
        return _Space(build, base, declared, {key: given[key] for key in known if key in given}, step, samples)

    @property
    def block(self) -> list[float] | None:
        """The first step sizes to try."""
        return None if self.step is None else list(self.declared[self.step].tuned["small"])

    def rows(self, block: list[float] | None) -> list[dict[str, Any]]:
        """The settings with step sizes of a block, without what is given. Sizes have their first value."""
        firsts = {name: p.tuned["small"][0] for name, p in self.declared.items() if p.kind == Kind.size and p.tuned}
        kept: dict[str, Any] = {**firsts, **self.given}
        steps: list[dict[str, Any]] = [{str(self.step): value} for value in block or ()] or [{}]
        declared = self.declared
        try:
            rows = [row for one in steps for row in grid_of(declared, self.samples, "small", {**kept, **one})]
        except ValueError:  # values relative to an epoch, which a stream has not, or to a schedule
            declared = {name: p for name, p in declared.items() if p.scaled is None or name in kept}
            rows = [row for one in steps for row in grid_of(declared, self.samples, "small", {**kept, **one})]
        return [{name: value for name, value in row.items() if name not in self.given} for row in rows]


def _shifted(block: list[float], tried: pd.Series, found: float | None) -> list[float] | None:
    """The next block of step sizes, if the best one is at an edge of those that were tried, or all diverged."""
    low, high = min(block), max(block)
    ratio = (high / low) ** (1 / max(1, len(block) - 1))
    if found is None or found == tried.min():
        return [value * tried.min() / (high * ratio) for value in block]
    if found == tried.max():
        return [value * tried.max() * ratio / low for value in block]
    return None


def _length(problem: Problem, steps: int | None, epochs: float | None) -> dict[str, Any]:
    """The length of a run of the search, as an argument of `sweep`."""
    require((steps is None) != (epochs is None), f"steps = {steps}, epochs = {epochs}: give exactly one of them")
    if steps is not None:
        return {"steps": min(whole("steps", steps, 1), GRADIENTS)}
    assert epochs is not None
    most = epochs if problem.samples is None else float(f"{GRADIENTS / problem.samples:.2g}")
    return {"epochs": min(epochs, most)}


def _said(length: Mapping[str, Any]) -> str:
    return " ".join(f"{value:g} {name}" for name, value in length.items())
