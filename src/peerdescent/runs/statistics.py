"""Statistics over seeds: the mean, the deviation, and which of several candidates is best.

Sweeps, tuning, studies, figures, reports and the command line all use these, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats


def mean(values: Any) -> np.ndarray:
    """The mean over seeds, which are the first axis. NaN if a seed has no value, since others would be biased.

    >>> mean([[1.0, 2.0], [3.0, float("nan")]]).tolist()
    [2.0, nan]
    """
    known = np.asarray(values, dtype=float)
    with np.errstate(invalid="ignore"):  # inf - inf, of runs that diverged
        return np.asarray(known.mean(axis=0) if len(known) else np.full(known.shape[1:], np.nan))


def deviation(values: Any) -> np.ndarray:
    """The sample standard deviation over seeds, which are the first axis; NaN for a single seed.

    >>> deviation([1.0, 3.0]).round(3).tolist(), deviation([1.0]).tolist()
    (1.414, nan)
    """
    known = np.asarray(values, dtype=float)
    if len(known) < 2:
        return np.full(known.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):
        # Of equal values it is 0, and not what rounding leaves.
        equal = (known == known[0]).all(axis=0) & np.isfinite(known[0])
        return np.where(equal, 0.0, known.std(axis=0, ddof=1))


def ranking(losses: Any, done: Iterable[Any]) -> list[int]:
    """The places of candidates, the smallest mean loss first, the earlier of two equal ones first.

    Candidates that are not done for every seed, and those without a finite loss, are left out.

    >>> ranking([0.3, 0.1, 0.2, float("nan")], [True, False, True, True])
    [2, 0]
    """
    known = np.asarray(losses, dtype=float)
    candidates = np.flatnonzero(np.isfinite(known) & np.asarray(list(done), dtype=bool))
    return [int(place) for place in candidates[np.argsort(known[candidates], kind="stable")]]


def difference(values: Any, others: Any) -> tuple[float, float, float]:
    """The mean of the paired differences `values - others` over seeds, and its 95 % interval by Student's t.

    >>> [round(one, 3) for one in difference([0.35, 0.32, 0.36], [0.30, 0.31, 0.31])]
    [0.037, -0.021, 0.094]
    """
    apart = np.asarray(values, dtype=float) - np.asarray(others, dtype=float)
    middle = float(apart.mean())
    if len(apart) < 2 or np.ptp(apart) == 0:  # of equal differences the interval is a point
        return middle, *((math.nan, math.nan) if len(apart) < 2 else (middle, middle))
    low, high = stats.ttest_rel(values, others).confidence_interval()
    return middle, float(low), float(high)


def leading(values: Sequence[Any], done: Iterable[Any]) -> list[int]:
    """The first of `ranking`, and all that are level with it: the interval of their difference holds zero.

    `values` has one value a seed for each candidate, the same seeds for all. One seed gives no
    verdict.

    >>> leading([[0.35, 0.32, 0.36], [0.30, 0.31, 0.31], [0.41, 0.42, 0.41]], [True] * 3)
    [1, 0]
    """
    each = [np.asarray(one, dtype=float) for one in values]
    order = ranking([mean(one) for one in each], done)
    if not order or len(each[order[0]]) < 2:
        return []
    first = each[order[0]]
    found = []
    for place in order:
        if len(each[place]) == len(first):
            _, low, high = difference(each[place], first)
            if low <= 0 <= high:
                found.append(place)
    return found


def middle(values: Any) -> float:
    """The interquartile mean over seeds: that of the middle half, which one outlier does not move.

    >>> middle([1.0, 2.0, 3.0, 4.0, 100.0])
    3.0
    """
    return float(stats.trim_mean(np.asarray(values, dtype=float), 0.25))
