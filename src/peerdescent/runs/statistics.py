"""Statistics over seeds: the mean, the deviation, and which of several candidates is best.

Sweeps, tuning, studies, figures, reports and the command line all use these, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


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


def leading(losses: Any, deviations: Any, done: Iterable[Any]) -> list[int]:
    """The first of `ranking`, and all whose mean is within one deviation of the first: seeds do not tell them apart.

    >>> leading([0.32, 0.30, 0.34], [0.01, 0.03, 0.01], [True] * 3)
    [1, 0]
    """
    order, means = ranking(losses, done), np.asarray(losses, dtype=float)
    spread = np.nan_to_num(np.asarray(deviations, dtype=float)[order[:1]])  # one seed has none
    return [place for place in order if means[place] <= means[order[0]] + spread[0]]
