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
from peerdescent.runs.checks import check_kinds, starting_point
from peerdescent.runs.costs import Costs
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
SHARE = 0.05
"""The most of a run's gradients that its first iteration may take: in a short run, the first batch is smaller."""
LATE = (0.8, 0.9)
"""The parts of a run after which losses count as well: a run that is about to diverge has large ones there."""
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
    worst counts, and of its losses in the last fifth the largest. Batches and other sizes have the first value of the
    grid, or a smaller one where the first iteration would take more than a twentieth of the run. A run has the length
    that is asked for, but at most 25,000 gradients per node: shorter runs favour step sizes that are too large in the
    end. If the best step size is the smallest or the largest that was tried, the grid is shifted beyond, up to four
    times, and to smaller ones if all ended above the start. In the end half and twice the best step size are tried,
    with the other numbers as they were found.

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
    space, seeds = space.within(length, problem, network), seeds_of(apart)
    limit = next(iter(length.values()))
    marks = sorted({max(1, round(part * limit)) if "steps" in length else part * limit for part in LATE} - {limit})
    start = problem.loss(starting_point(x0, problem, float).mean(axis=0))
    tables: list[pd.DataFrame] = []

    def search(rows: list[dict[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any] | None]:
        """Run settings: the summary of all so far, by their worst loss, and the best that ends below the start."""
        swept = sweep(
            method,
            rows,
            problem,
            network,
            **length,
            at=marks,
            x0=x0,
            seed=seeds,
            precision=precision,
            progress=progress,
        )
        if (swept["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        tables.append(swept)
        table = pd.concat(tables, ignore_index=True)
        # A mean of three would hide a run that is about to diverge.
        losses = [name for name in table.columns if name.startswith("loss")]
        worst = table.assign(loss=table[losses].max(axis=1)).groupby(parameters(table))["loss"].transform("max")
        each = summary(table.assign(loss=worst))
        each["done"] &= each["loss"] < start
        return each, next((configuration(each, place) for place in ranked(each)), None)

    while block is not None or not tables:
        each, winner = search(space.rows(block))
        if block is not None and space.step is not None:
            found = None if winner is None else winner[space.step]
            block = None if len(tables) > SHIFTS else _shifted(block, each[space.step], found)
    if winner is not None and space.step is not None:
        between = [winner[space.step] * factor for factor in (1 / FINER, FINER)]
        new = [value for value in between if not np.isclose(each[space.step], value, atol=0).any()]
        if new:
            each, winner = search([{**winner, space.step: value} for value in new])
        winner = _stable(each, winner, space.step)
    table = pd.concat(tables, ignore_index=True)
    settings = f"{len(each)} settings of {_said(length)}, seeds {', '.join(map(str, seeds))}"
    if winner is None:
        return Chosen(
            space.base,
            {},
            f"the defaults, since a quick tune found nothing that ends below the start: {settings}",
            table,
        )
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
    sizes: Mapping[str, Any]
    """The value of each size, such as a batch."""

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
        given = {key: given[key] for key in known if key in given}
        sizes = {key: p.tuned["small"][0] for key, p in declared.items() if p.kind == Kind.size and p.tuned}
        return _Space(build, base, declared, given, step, samples, {**sizes, **given})

    def within(self, length: Mapping[str, Any], problem: Problem, network: Network) -> _Space:
        """With smaller sizes where the first iteration would take too much of a run."""

        def costs(sizes: Mapping[str, Any]) -> Costs:
            return Costs.of(
                make(self.build, {key: v for key, v in sizes.items() if key not in self.given}), problem, network
            )

        sizes, now = dict(self.sizes), costs(self.sizes)
        budget = length["epochs"] * (self.samples or 1) if "epochs" in length else float(now.gradients(length["steps"]))
        for name, value in sizes.items():
            first = float(now.gradients(1))
            free = name not in self.given and isinstance(value, int) and first > SHARE * budget
            if free and costs({**sizes, name: 1}).gradients(1) < first:
                sizes[name] = max(1, int(value * SHARE * budget / first))
                now = costs(sizes)
        return self._replace(sizes=sizes)

    @property
    def block(self) -> list[float] | None:
        """The first step sizes to try."""
        return None if self.step is None else list(self.declared[self.step].tuned["small"])

    def rows(self, block: list[float] | None) -> list[dict[str, Any]]:
        """The settings with step sizes of a block, without what is given."""
        kept = dict(self.sizes)
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


def _stable(each: pd.DataFrame, winner: dict[str, Any] | None, step: str) -> dict[str, Any] | None:
    """The winner, or half of its step size if twice of it ends above the start: with other seeds its own might, too."""
    if winner is None:
        return None
    others = [name for name in winner if name != step]
    alike = (each[others].astype(object) == pd.Series({name: winner[name] for name in others}, dtype=object)).all(
        axis=1
    )
    half, twice = (alike & np.isclose(each[step], winner[step] * factor, atol=0) for factor in (1 / FINER, FINER))
    if (each["done"] | ~twice).all() or not (each["done"] & half).any():
        return winner
    return {**winner, step: winner[step] / FINER}


def _length(problem: Problem, steps: int | None, epochs: float | None) -> dict[str, Any]:
    """The length of a run of the search, as an argument of `sweep`."""
    require((steps is None) != (epochs is None), f"steps = {steps}, epochs = {epochs}: give exactly one of them")
    if steps is not None:
        return {"steps": min(whole("steps", steps, 1), GRADIENTS)}
    assert epochs is not None
    most = epochs if problem.samples is None else float(f"{GRADIENTS / problem.samples:.2g}")
    return {"epochs": min(epochs, most)}


def _said(length: Mapping[str, Any]) -> str:
    return " ".join(f"{value:g} {name.removesuffix('s') if value == 1 else name}" for name, value in length.items())
