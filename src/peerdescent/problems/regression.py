"""Regression: real numbers as linear functions of features, by least squares or a loss that outliers cannot rule."""

from __future__ import annotations

import math

from peerdescent.errors import require, unknown
from peerdescent.problems.linear_models import linear_model
from peerdescent.problems.losses import GemanMcClure, Huber, Residual, Welsch
from peerdescent.problems.problem import Problem
from peerdescent.problems.rows import Partition

ROBUST = {"huber": Huber(), "welsch": Welsch(), "geman-mcclure": GemanMcClure()}


def linear(
    partition: Partition, strength: float = 0.0, regulariser: str = "l2", intercept: bool = False
) -> Problem:
    """Least squares f_i(x) = mean_j (<x, theta_ij> - b_ij)^2 / 2 + strength r(x).

    theta_ij are the features and b_ij the labels, which are numbers. With a strength and "l2" it is
    ridge regression.

    Args:
        partition: The rows of each node, as from `data.partition(20)`.
        strength: The weight of the regulariser.
        regulariser: r(x): "nonconvex", "l2" or "none", as in `logistic`.
        intercept: Whether to add a constant to <x, theta>. It is the last entry of x and not
            regularised.

    Returns:
        The problem. `problem.predict(params, features)` are the predictions <x, theta>.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> features = np.random.default_rng(0).normal(size=(40, 3))
    >>> data = peer.datasets.Dataset(features, features @ [1.0, 2.0, 3.0], "planted")
    >>> peer.problems.optimum(linear(data.partition(4)), starts=1).x.round(4).tolist()
    [1.0, 2.0, 3.0]
    """
    return linear_model(
        "linear", partition, Residual(), strength, regulariser, intercept, scale=1.0
    )


def robust(
    partition: Partition,
    loss: str = "huber",
    scale: float = 1.0,
    strength: float = 0.0,
    regulariser: str = "l2",
    intercept: bool = False,
) -> Problem:
    """Robust regression f_i(x) = mean_j s^2 h((<x, theta_ij> - b_ij) / s) + strength r(x).

    For residuals far below the scale s it is least squares; those above count less:

    - "huber": h(u) = u^2 / 2 up to |u| = 1 and |u| - 1/2 beyond, convex;
    - "welsch": h(u) = 1 - exp(-u^2 / 2), non-convex;
    - "geman-mcclure": h(u) = u^2 / (2 (1 + u^2)), non-convex.

    With the last two, a residual far above s has nearly no gradient: such rows are left out, in
    effect.

    Args:
        partition: The rows of each node, as from `data.partition(20)`.
        loss: The name of h.
        scale: s, in the unit of the labels: about the size of a residual that is none of an
            outlier.
        strength: The weight of the regulariser.
        regulariser: r(x): "nonconvex", "l2" or "none", as in `logistic`.
        intercept: Whether to add a constant to <x, theta>. It is the last entry of x and not
            regularised.

    Returns:
        The problem. `problem.predict(params, features)` are the predictions <x, theta>.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> features = np.random.default_rng(0).normal(size=(40, 3))
    >>> labels = features @ [1.0, 2.0, 3.0]
    >>> labels[::8] = 100.0
    >>> data = peer.datasets.Dataset(features, labels, "with outliers")
    >>> peer.problems.optimum(robust(data.partition(4), "welsch", scale=2.0), starts=1).x.round(2).tolist()
    [1.0, 2.0, 3.0]
    """
    if loss not in ROBUST:
        raise unknown("robust loss", loss, ROBUST)
    require(0 < scale < math.inf, f"scale = {scale}: must be positive and finite")
    return linear_model(
        "robust",
        partition,
        ROBUST[loss],
        strength,
        regulariser,
        intercept,
        scale=scale,
        named=[loss],
    )
