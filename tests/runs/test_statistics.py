"""Which of several methods is best over the same seeds: known ranks, ties, diverged seeds, and equal methods."""

import math

import numpy as np
import pytest
from scipy import stats

from peerdescent.runs.statistics import difference, leading, middle

BEST = np.array([0.30, 0.34, 0.31, 0.35, 0.32])
"""Seeds differ by more than methods do."""


def test_known_ranks():
    always = BEST + np.array([0.010, 0.012, 0.011, 0.013, 0.009])
    other = BEST + np.array([0.02, -0.03, 0.01, -0.01, 0.03])
    assert leading([always, BEST, other], [True] * 3) == [1, 2], (
        "a little worse with every seed is not level"
    )
    assert leading([BEST, BEST, always], [True] * 3) == [0, 1], "a tie"
    assert leading([BEST, BEST + 0.001], [True] * 2) == [0], "always as far apart"
    assert leading([always], [True]) == [0]
    gone = BEST.copy()
    gone[2] = math.inf
    assert leading([gone, always], [False, True]) == leading([gone, always], [True, True]) == [1]
    assert leading([BEST * math.nan, always], [True, True]) == [1]
    assert leading([BEST, always], [False, False]) == []
    assert leading([BEST[:1], always[:1]], [True, True]) == [], "one seed gives no verdict"


def test_equal_methods_are_called_level_19_times_in_20():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(2000, 1, 5))
    pairs = shared + 0.1 * rng.normal(size=(2000, 2, 5))
    level = np.mean([len(leading(list(pair), [True, True])) == 2 for pair in pairs])
    assert abs(level - 0.95) <= 0.02
    apart = np.mean([len(leading([one, other + 0.5], [True, True])) == 2 for one, other in pairs])
    assert apart < 0.05


def test_the_interval_of_a_difference_is_students():
    one, other = BEST, BEST[::-1] + 0.01
    test = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert difference(one, other) == pytest.approx((np.mean(one - other), test.low, test.high))
    assert difference([1.0], [2.0]) == pytest.approx((-1, math.nan, math.nan), nan_ok=True)
    assert middle([0.0, 1, 2, 3, 1000]) == 2
