"""The search of `tune`: coarse over all hyperparameters, finer where the best are close, and on past every edge.

A point has a value for every hyperparameter that is tuned. The search begins with all combinations of a few values far
apart. Then it tries the neighbours of the best points, first four times, then twice as large or small, in one
hyperparameter or in two, until all neighbours of the best are known or the budget is spent. docs/sweeps.md compares it
with other searches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Point = tuple[float, ...]

FACTORS = (4.0, 2.0)
"""The ratios of neighbours, one after the other."""
FIRST, OTHERS = 4, 2
"""How many values of the step size, and of each other hyperparameter, the search begins with."""
CLOSE, CENTRES = 0.1, 2
"""Points are close to the best if they miss by less than this share of what it gained, and how many are refined."""


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
        return list(dict.fromkeys(self._nearest(math.exp(ends[0] + place * (ends[1] - ends[0]))) for place in places))

    def moved(self, value: float, factor: float) -> float | None:
        """The value that is about so many times as large, also beyond those proposed; None beyond the range."""
        up, target, (first, last) = factor > 1, value * factor, (self.values[0], self.values[-1])
        if first <= target <= last:
            return self._nearest(target, [one for one in self.values if (one > value if up else one < value)])
        if value < last < target or target < first < value:
            return last if up else first
        if self.is_whole:
            found: float = round(min(target, math.floor(self.high)) if math.isfinite(self.high) else target)
        else:  # towards the end of the range, where it has one
            target = self.high - (self.high - value) / factor if up and math.isfinite(self.high) else target
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
    axes: Sequence[Axis], run: Callable[[list[Point]], list[float]], budget: int, start: float = math.inf
) -> Found:
    """Search for the point with the smallest score.

    Args:
        axes: The hyperparameters.
        run: The scores of points.
        budget: How many points may be tried.
        start: The score of doing nothing, from which gains are counted.

    Returns:
        What was found.

    >>> axes = [Axis("alpha", (0.25, 0.5, 1.0, 2.0), 0.0, math.inf, False, True)]
    >>> found = search(axes, lambda points: [abs(math.log2(alpha / 64)) for (alpha,) in points], 100)
    >>> found.best, found.spent
    ((64.0,), False)
    """
    scores: dict[Point, float] = {}

    def tried(points: Iterator[Point] | list[Point]) -> bool:
        """Try those that are new, as many as the budget allows; whether all could be."""
        new = [point for point in dict.fromkeys(points) if point not in scores]
        left = budget - len(scores)
        scores.update(zip(new[:left], run(new[:left]), strict=True) if new[:left] else ())
        return len(new) <= left

    whole = list(itertools.product(*(axis.coarse() for axis in axes)))
    # The middle first, so that a small budget has seen every value.
    enough = tried(whole if len(whole) <= budget else whole[:: math.ceil(2 * len(whole) / budget)])
    for factor in FACTORS:
        while enough:
            before = len(scores)
            enough = tried(_around(axes, _centres(scores, start), factor))
            if len(scores) == before:
                break
    return Found(scores, min(scores, key=lambda point: scores[point]), not enough)


def _centres(scores: Mapping[Point, float], start: float) -> list[Point]:
    """The best points: those that are close to the best. Where all diverged, the one with the smallest step size."""
    order = sorted(scores, key=lambda point: (scores[point], point[0]))[:CENTRES]
    best = scores[order[0]]
    limit = best + CLOSE * (start - best) if math.isfinite(start) and math.isfinite(best) else best
    return [point for point in order if scores[point] <= limit] or order[:1]


def _around(axes: Sequence[Axis], centres: Sequence[Point], factor: float) -> Iterator[Point]:
    """The neighbours of points: in one hyperparameter, or in two."""
    for centre in centres:
        moves = [
            (k, value)
            for k, axis in enumerate(axes)
            for times in (factor, 1 / factor)
            if (value := axis.moved(centre[k], times)) is not None
        ]
        for (k, value), (other, also) in itertools.combinations_with_replacement(moves, 2):
            if k != other or value == also:
                point = list(centre)
                point[k], point[other] = value, also
                yield tuple(point)
