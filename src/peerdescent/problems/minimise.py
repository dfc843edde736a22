"""A numerical minimum of F, against which optimality gaps are measured."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from peerdescent.errors import whole
from peerdescent.problems.problem import Oracle, Problem, cast


class Optimum(NamedTuple):
    """The best of several searches. F may be non-convex, so a smaller value may exist."""

    value: float
    x: np.ndarray
    grad_norm: float
    values: tuple[float, ...]
    """The value at which each search ended."""


def optimum(problem: Problem, starts: int = 4, seed: int = 0) -> Optimum:
    """Minimise F by L-BFGS in float64, from several starting points.

    Args:
        problem: The problem.
        starts: The number of searches: one from the problem's x_0, or zeros, and the others from random points.
        seed: For the random points.

    Returns:
        The best of the searches.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> found = optimum(problem)
    >>> found.grad_norm < 1e-6, found.value == min(found.values), found.value < 0.173
    (True, True, True)
    """
    starts, random = whole("starts", starts, least=1), np.random.default_rng(seed)
    first = problem.start if problem.start is not None else np.zeros(problem.dimension)
    # L-BFGS multiplies small matrices. BLAS threads make that slower, and the result depends on how many there are.
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        data = cast(problem.data, float)

        def value_and_grad(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, grad = _total(problem.oracle, x, data)
            return float(value), np.asarray(grad)

        found = [
            minimize(
                value_and_grad,
                first if k == 0 else random.standard_normal(problem.dimension),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 20_000, "maxfun": 40_000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9},
            )
            for k in range(starts)
        ]
    best = min(found, key=lambda one: one.fun)
    return Optimum(float(best.fun), best.x, float(np.linalg.norm(best.jac)), tuple(float(one.fun) for one in found))


@partial(jax.jit, static_argnums=0)
def _total(oracle: Oracle, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    values, grads = jax.vmap(oracle.exact, (None, 0))(x, data)
    return values.mean(), grads.mean(axis=0)
