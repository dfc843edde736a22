"""A numerical minimum of F, against which optimality gaps are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from peerdescent.errors import require, whole
from peerdescent.problems.problem import Oracle, Problem, cast


class Optimum(NamedTuple):
    """The best of several searches. F may be non-convex, so a smaller value may exist."""

    value: float
    x: np.ndarray
    grad_norm: float
    values: tuple[float, ...]
    """The value at which each search ended."""


def optimum(problem: Problem, starts: int = 4, seed: int = 0) -> Optimum:
    """Minimise F by L-BFGS in float64, from several starting points; with an l1 term or a box, by L-BFGS-B.

    Args:
        problem: The problem.
        starts: The number of searches: one from the problem's x_0, or zeros, and the others from
            random points.
        seed: For the random points.

    Returns:
        The best of the searches.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> found = optimum(problem)
    >>> found.grad_norm < 1e-6, found.value == min(found.values), found.value < 0.173
    (True, True, True)
    """
    problem = problem.now()
    starts, random = whole("starts", starts, least=1), np.random.default_rng(seed)
    first = problem.start if problem.start is not None else np.zeros(problem.dimension)
    # L-BFGS multiplies small matrices. BLAS threads make that slower, and the result depends on how
    # many there are.
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        data = cast(problem.data, float)

        def smooth(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, grad = _total(problem.oracle, x, data)
            return float(value), np.asarray(grad)

        value_and_grad, split, whole_of, bounds = _bounded(problem, smooth)

        found = [
            minimize(
                value_and_grad,
                split(first if k == 0 else random.standard_normal(problem.dimension)),
                jac=True,
                bounds=bounds,
                method="L-BFGS-B",
                options={
                    "maxiter": 20_000,
                    "maxfun": 40_000,
                    "maxcor": 30,
                    "ftol": 1e-15,
                    "gtol": 1e-9,
                },
            )
            for k in range(starts)
        ]
    best = min(found, key=lambda one: one.fun)
    x = whole_of(best.x)
    _, mapping = problem.penalised(x[None], np.zeros(1), problem.grad(x)[None])
    return Optimum(
        float(best.fun), x, float(np.linalg.norm(mapping)), tuple(float(one.fun) for one in found)
    )


Smooth = Callable[[np.ndarray], tuple[float, np.ndarray]]


def _bounded(problem: Problem, smooth: Smooth) -> tuple[Smooth, Any, Any, Any]:
    """F + h as a smooth function of bounded variables, how these come from x and x from them, and the bounds.

    With an l1 term the variables are the positive and the negative parts of x, both at least 0.
    """
    penalty = problem.penalty
    if penalty is None:
        return smooth, lambda x: x, lambda x: x, None
    require(
        not penalty.group,
        "the optimum of a problem with group norms is not found by L-BFGS-B: give l1 or box",
    )
    if not penalty.l1:
        return smooth, lambda x: x, lambda x: x, [(penalty.low, penalty.high)] * problem.dimension
    inside = penalty.low <= 0 <= penalty.high
    require(
        inside, "the optimum of l1 with a box without 0 is not found: give a box that has 0 in it"
    )

    def parts(both: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = smooth(whole_of(both))
        return value + penalty.l1 * float(both.sum()), np.concatenate([grad, -grad]) + penalty.l1

    def split(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x.clip(0), (-x).clip(0)])

    def whole_of(both: np.ndarray) -> np.ndarray:
        return both[: problem.dimension] - both[problem.dimension :]

    bounds = [(0.0, penalty.high)] * problem.dimension + [(0.0, -penalty.low)] * problem.dimension
    return parts, split, whole_of, bounds


@partial(jax.jit, static_argnums=0)
def _total(oracle: Oracle, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    values, grads = jax.vmap(oracle.exact, (None, 0))(x, data)
    return values.mean(), grads.mean(axis=0)
