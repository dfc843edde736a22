"""The search of `tune`: coarse over all hyperparameters, finer where the best are close, and on past every edge.

A point has a value for every hyperparameter that is tuned. The search begins with all combinations
of a few values far apart. Then it tries the neighbours of the best points, first four times, then
twice as large or small, in one hyperparameter or in two, until all neighbours of the best are known
or the budget is spent. docs/sweeps.md compares it with other searches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Point = tuple[float, ...]

FACTORS = (4.0, 2.0)
"""The ratios of neighbours, one after the other."""
FIRST, OTHERS = 4, 2
"""How many values of the step size, and of each other hyperparameter, the search begins with."""
CLOSE, CENTRES = 0.1, 2
"""Points are close to the best if they miss by less than this share of what it gained, and how many are refined."""
SMALL = 1e-3
"""A step in one hyperparameter that gains less than this share is followed by steps in two."""


class Axis(NamedTuple):
    """A hyperparameter that is tuned."""

    name: str
    values: tuple[float, ...]
    """Those that its declaration proposes, the smallest first."""
    low: float
    high: float
    is_whole: bool
    leads: bool
    """Whether it is the step size, of which the search begins with more values."""

    def coarse(self) -> list[float]:
        """Values far apart, even on a logarithmic scale."""
        count = min(FIRST if self.leads else OTHERS, len(self.values))
        ends = np.log([self.values[0], self.values[-1]])
        places = (np.arange(count) + 0.5) / count
        return list(
            dict.fromkeys(
                self._nearest(math.exp(ends[0] + place * (ends[1] - ends[0]))) for place in places
            )
        )

    def moved(self, value: float, factor: float) -> float | None:
        """The value that is about so many times as large, also beyond those proposed; None beyond the range."""
        up, target, (first, last) = factor > 1, value * factor, (self.values[0], self.values[-1])
        if first <= target <= last:
            return self._nearest(
                target, [one for one in self.values if (one > value if up else one < value)]
            )
        if value < last < target or target < first < value:
            return last if up else first
        if self.is_whole:
            found: float = round(
                min(target, math.floor(self.high)) if math.isfinite(self.high) else target
            )
        else:  # towards the end of the range, where it has one
            near = up and value >= last and math.isfinite(self.high)
            target = self.high - (self.high - value) / factor if near else target
            found = float(f"{target:.3g}")
        return found if self.low <= found <= self.high and found != value else None

    def _nearest(self, target: float, among: Sequence[float] = ()) -> float:
        return min(among or self.values, key=lambda value: abs(math.log(value / target)))


class Found(NamedTuple):
    """What a search has found."""

    scores: dict[Point, float]
    """The score of every point that was tried, in their order; infinite where a run diverged."""
    best: Point
    spent: bool
    """Whether the budget ended the search, and not the scores."""


def search(
    axes: Sequence[Axis],
    run: Callable[[list[Point]], list[float]],
    budget: int,
    start: float = math.inf,
    meaning: Callable[[Point], Hashable] = tuple,
) -> Found:
    """Search for the point with the smallest score.

    Args:
        axes: The hyperparameters.
        run: The scores of points.
        budget: How many points may be tried.
        start: The score of doing nothing, from which gains are counted.
        meaning: What a point stands for. Those that stand for the same are tried once.

    Returns:
        What was found.

    >>> axes = [Axis("alpha", (0.25, 0.5, 1.0, 2.0), 0.0, math.inf, False, True)]
    >>> found = search(axes, lambda points: [abs(math.log2(alpha / 64)) for (alpha,) in points], 100)
    >>> found.best, found.spent
    ((64.0,), False)
    """
    scores: dict[Point, float] = {}
    known: dict[Hashable, float] = {}

    def tried(points: Sequence[Point]) -> bool:
        """Try those that are new, as many as the budget allows; whether all could be."""
        new = {meaning(point): point for point in reversed(points) if meaning(point) not in known}
        some = dict(itertools.islice(reversed(new.items()), budget - len(known)))
        known.update(zip(some, run([*some.values()]), strict=True) if some else ())
        scores.update({point: known[meaning(point)] for point in points if meaning(point) in known})
        return len(some) == len(new)

    whole = list(itertools.product(*(axis.coarse() for axis in axes)))
    if len(whole) > budget:  # some, and as many tries for their neighbours
        whole = [
            whole[k]
            for k in np.random.default_rng(0).permutation(len(whole))[: math.ceil(budget / 2)]
        ]
    enough = tried(whole)
    for factor in FACTORS:
        before = -1
        while enough and len(known) > before:
            before, best = len(known), min(known.values())
            enough = tried(list(_around(axes, _centres(scores, start), factor)))
            gained = best - min(known.values())
            if enough and (len(known) == before or gained <= SMALL * _gain(start, best)):
                enough = tried(list(_pairs(axes, _centres(scores, start)[0], factor)))
    return Found(scores, min(scores, key=lambda point: scores[point]), not enough)


def _centres(scores: Mapping[Point, float], start: float) -> list[Point]:
    """The best points: those that are close to the best. Where all diverged, the one with the smallest step size.

    Points whose scores agree in six digits count once: a hyperparameter that has no effect beside
    the others, such as a batch where every iteration restarts, would otherwise take all places.
    """
    distinct: dict[str, Point] = {}
    for point in sorted(scores, key=lambda point: (scores[point], point[0])):
        distinct.setdefault(f"{scores[point]:.6g}", point)
    order = list(distinct.values())[:CENTRES]
    best = scores[order[0]]
    limit = best + CLOSE * _gain(start, best)
    return [point for point in order if scores[point] <= limit] or order[:1]


def _gain(start: float, best: float) -> float:
    """What the best has gained, where both are known."""
    return start - best if math.isfinite(start) and math.isfinite(best) else 0.0


def _around(axes: Sequence[Axis], centres: Sequence[Point], factor: float) -> Iterator[Point]:
    """The neighbours of points in one hyperparameter."""
    for centre in centres:
        for k, value in _moves(axes, centre, factor):
            yield (*centre[:k], value, *centre[k + 1 :])


def _pairs(axes: Sequence[Axis], centre: Point, factor: float) -> Iterator[Point]:
    """The neighbours of a point in two hyperparameters.

    In the end also where the other changes by the square of what the step size does: the noise of a
    minibatch does not grow if the step size goes with the root of the batch.
    """
    near = _moves(axes, centre, factor)
    pairs = list(itertools.combinations(near, 2))
    if factor == FACTORS[-1]:
        pairs += itertools.product(
            (move for move in near if axes[move[0]].leads), _moves(axes, centre, factor**2)
        )
    for (k, value), (other, also) in pairs:
        if k != other:
            point = list(centre)
            point[k], point[other] = value, also
            yield tuple(point)


def _moves(axes: Sequence[Axis], centre: Point, factor: float) -> list[tuple[int, float]]:
    """The places and values of what changes in neighbours."""
    found = [
        (k, axis.moved(centre[k], times))
        for k, axis in enumerate(axes)
        for times in (factor, 1 / factor)
    ]
    return [(k, value) for k, value in found if value is not None]
