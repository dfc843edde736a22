"""The online setting: every sample is new, and there is no finite data set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.problem import Problem
from peerdescent.problems.regularisers import bounded


class Target(NamedTuple):
    """The true coefficients (n, p), the noise of the responses (n,) and the weight of the regulariser (n,)."""

    planted: Any
    noise: Any
    strength: Any


class Observed(NamedTuple):
    """Regressors (batch, p) and responses (batch,)."""

    regressors: jax.Array
    responses: jax.Array


@dataclass(frozen=True)
class Stream:
    """Linear regression on a Gaussian stream with the non-convex regulariser; expectations are in closed form."""

    finite: bool = False

    def draw(self, key: jax.Array, data: Target, batch: int) -> Observed:
        """`batch` new pairs of regressors and a response."""
        p = data.planted.shape[0]
        normal = jax.random.normal(key, (batch, p + 1), data.planted.dtype)
        regressors = normal[:, :p]
        return Observed(regressors, regressors @ data.planted + data.noise * normal[:, p])

    def grad(self, x: jax.Array, sample: Observed, data: Target) -> jax.Array:
        """mean a (a'x - b) + strength r'(x)."""
        residual = sample.regressors @ x - sample.responses
        return residual @ sample.regressors / residual.shape[0] + data.strength * bounded(x)[1]

    def exact(self, x: jax.Array, data: Target) -> tuple[jax.Array, jax.Array]:
        """(||x - x*||^2 + noise^2) / 2 + strength r(x), and its gradient; x* is `data.planted`."""
        away = x - data.planted
        r, slope = bounded(x)
        return 0.5 * (
            jnp.vdot(away, away) + data.noise**2
        ) + data.strength * r, away + data.strength * slope


def streaming(
    nodes: int,
    features: int = 10,
    *,
    noise: float = 0.1,
    spread: float = 1.0,
    strength: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Regression on a stream: each sample at node i is a new pair a ~ N(0, I), b = <a, x_i*> + noise z, z ~ N(0, 1).

    f_i(x) = E(<a, x> - b)^2 / 2 + strength sum_k x_k^2 / (1 + x_k^2), non-convex if strength > 2.
    The x_i* are a common Gaussian vector plus `spread` times a Gaussian vector of the node, centred
    over nodes so that their mean does not depend on n. Records have the exact F and its gradient,
    in closed form. Nodes have only samples, so methods that take exact local gradients are refused.

    Args:
        nodes: The number of nodes n.
        features: The dimension p.
        noise: The standard deviation of the noise in b.
        spread: How much the x_i* differ between nodes; 0 for identical nodes.
        strength: The weight of the regulariser.
        seed: For the x_i*.

    Returns:
        The problem.

    >>> problem = streaming(nodes=4, features=3, noise=1.0, spread=0.0, strength=0.0)
    >>> round(problem.loss(problem.data.planted[0]), 6)
    0.5
    """
    require(
        nodes >= 1 and features >= 1,
        f"nodes = {nodes}, features = {features}: both must be at least 1",
    )
    for name, value in {"noise": noise, "spread": spread, "strength": strength}.items():
        require(value >= 0, f"{name} = {value}: must not be negative")
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=features), rng.normal(size=(nodes, features))
    planted = common + spread * (own - own.mean(axis=0))
    return Problem(
        name="streaming",
        oracle=Stream(),
        data=Target(planted, np.full(nodes, noise), np.full(nodes, strength)),
        nodes=nodes,
        dimension=features,
        # E||a a'd||^2 = (p + 2) ||d||^2 for a Gaussian a, and r is 2-smooth.
        smoothness=math.sqrt(features + 2) + 2 * strength,
    )
