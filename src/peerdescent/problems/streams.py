"""The online setting proper: fresh samples for ever, never a finite set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.problem import Problem
from peerdescent.problems.regression import bounded


class Target(NamedTuple):
    """The planted coefficients (n, p), the noise of the responses (n,) and the weight of the regulariser (n,)."""

    planted: Any
    noise: Any
    strength: Any


class Observed(NamedTuple):
    """Regressors (batch, p) and responses (batch,)."""

    regressors: jax.Array
    responses: jax.Array


@dataclass(frozen=True)
class Stream:
    """Linear regression on a Gaussian stream, with the non-convex regulariser; its expectation is in closed form."""

    finite: bool = False

    def draw(self, key: jax.Array, data: Target, batch: int) -> Observed:
        """`batch` fresh pairs of regressors and a response."""
        p = data.planted.shape[0]
        normal = jax.random.normal(key, (batch, p + 1), data.planted.dtype)
        regressors = normal[:, :p]
        return Observed(regressors, regressors @ data.planted + data.noise * normal[:, p])

    def grad(self, x: jax.Array, sample: Observed, data: Target) -> jax.Array:
        """mean a (a'x - b) + strength r'(x)."""
        residual = sample.regressors @ x - sample.responses
        return residual @ sample.regressors / residual.shape[0] + data.strength * bounded(x)[1]

    def exact(self, x: jax.Array, data: Target) -> tuple[jax.Array, jax.Array]:
        """(||x - planted||^2 + noise^2) / 2 + strength r(x), and its gradient."""
        away = x - data.planted
        r, slope = bounded(x)
        return 0.5 * (jnp.vdot(away, away) + data.noise**2) + data.strength * r, away + data.strength * slope


def streaming(
    nodes: int, features: int = 10, *, noise: float = 0.1, spread: float = 1.0, strength: float = 1.0, seed: int = 0
) -> Problem:
    """Regression on a stream: node i sees a ~ N(0, I) and b = <a, x_i*> + noise z, a fresh pair for every sample.

    f_i(x) = E(<a, x> - b)^2 / 2 + strength sum_k x_k^2 / (1 + x_k^2), non-convex once strength > 2. The planted x_i*
    are a common Gaussian vector plus `spread` times one of the node's own; these have mean zero over nodes, so that F
    is the same for any number of them. F and its gradient are exact, in closed form, for the records; a node has only
    its samples, so methods that take exact local gradients refuse.

    >>> problem = streaming(nodes=4, features=3, noise=1.0, spread=0.0, strength=0.0)
    >>> round(problem.loss(problem.data.planted[0]), 6)
    0.5
    """
    require(nodes >= 1 and features >= 1, f"nodes = {nodes}, features = {features}: both must be at least 1")
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
