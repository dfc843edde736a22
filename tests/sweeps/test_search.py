"""The search of `tune` on scores that are known: bowls and ridges beyond every edge, limits, budgets, divergence."""

from __future__ import annotations

import itertools
import math

import pytest

from peerdescent.sweeps.search import Axis, search

AXES = (
    Axis("alpha", (0.25, 0.5, 1.0, 2.0, 4.0), 0.0, math.inf, False, True),
    Axis("batch", (4, 8, 16, 32, 64), 1, 4096, True, False),
    Axis("beta", (0.01, 0.03, 0.1, 0.2), 0.0, 1.0, False, False),
    Axis("period", (0.5, 1, 2, 4), 0.0, math.inf, False, False),
)
FAR = ((2.0**-9, 2.0**9), (1, 2000), (1e-4, 0.9), (2.0**-6, 2.0**8))
"""Below and above the values of each."""


def bowl(target, ridge):
    """Squared distances on a logarithmic scale; with a ridge, along which alpha and the last one grow together."""

    def scores(points):
        apart = [
            [math.log2(one / best) for one, best in zip(point, target, strict=True)]
            for point in points
        ]
        return [ridge * (each[0] - each[-1]) ** 2 + sum(one**2 for one in each) for each in apart]

    return scores


@pytest.mark.parametrize("ridge", [0, 20])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_best_is_found_beyond_every_edge(count, ridge):
    tried = []
    for target in itertools.product(*FAR[:count]):
        found = search(AXES[:count], bowl(target, ridge), 10_000)
        assert not found.spent
        assert all(
            abs(math.log2(one / best)) <= 1 for one, best in zip(found.best, target, strict=True)
        ), target
        tried.append(len(found.scores))
    assert max(tried) < 90 * count


@pytest.mark.parametrize("target", [2.0**-30, 3.0, 2.0**30])
def test_the_search_ends_at_declared_limits(target):
    limited = Axis("beta", (0.01, 0.1), 0.001, 1.0, False, False)
    found = search((AXES[0], limited), bowl((1.0, target), 0), 10_000)
    assert not found.spent
    assert all(0.001 <= beta <= 1 for _, beta in found.scores)
    assert found.best[1] == pytest.approx(0.001 if target < 1 else 1.0, rel=1)
    whole = search((AXES[1],), bowl((0.1,), 0), 100)
    assert whole.best == (1,)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9, 17, 40])
def test_a_budget_is_not_exceeded_and_better_spent_than_left(budget):
    target = (FAR[0][0], 2000, 0.05)
    score = bowl(target, 0)
    found = search(AXES[:3], score, budget)
    assert (len(found.scores), found.spent) == (budget, True)
    assert found.scores[found.best] == min(found.scores.values()) == score([found.best])[0]
    for k in range(3 if budget > 8 else 1):
        assert len({point[k] for point in found.scores}) > (budget > 2), (
            "every hyperparameter is tried"
        )
    assert not search(AXES[:3], score, 500).spent


def test_where_all_diverge_smaller_step_sizes_are_tried():
    def score(points):
        return [math.inf if alpha > 1e-6 else abs(math.log2(alpha / 1e-7)) for alpha, _ in points]

    found = search(AXES[:2], score, 1000)
    assert 0.5e-7 <= found.best[0] <= 2e-7
    assert search(AXES[:2], lambda points: [math.inf] * len(points), 30).spent


def test_what_has_no_effect_takes_no_tries_and_no_place_of_the_best():
    """Batches mean nothing where every iteration restarts, and are written down as one or are equal by chance."""
    target, asked = (2.0**5, 2000, 0.0001), []

    def scores(points):
        asked.extend(points)
        return bowl(target, 0)([(alpha, 2000, beta) for alpha, _, beta in points])

    found = search(AXES[:3], scores, 10_000, meaning=lambda point: (point[0], point[2]))
    assert len(asked) == len({(alpha, beta) for alpha, _, beta in asked}) < len(found.scores)
    for best in found.best, search(AXES[:3], scores, 200).best:
        assert (best[0], best[2]) == pytest.approx((target[0], target[2]), rel=0.5)
