"""Quadratics with additive Gaussian noise. Their constants are known in closed form, as tests and theory need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.problem import Problem


class Coefficients(NamedTuple):
    """Q (n, p, p), c (n, p) and the standard deviation of the noise (n,)."""

    matrix: Any
    linear: Any
    noise: Any


@dataclass(frozen=True)
class Quadratic:
    """g(x, xi) = Q x - c + xi, where xi is Gaussian with E||xi||^2 = noise^2."""

    finite: bool = True

    def draw(self, key: jax.Array, data: Coefficients, batch: int) -> jax.Array:
        """The mean (p,) of `batch` independent noise vectors: Gaussian, with 1/batch of the variance."""
        p = data.linear.shape[0]
        return jax.random.normal(key, (p,), data.linear.dtype) * data.noise * (p * batch) ** -0.5

    def grad(self, x: jax.Array, sample: jax.Array, data: Coefficients) -> jax.Array:
        """Q x - c + xi."""
        return data.matrix @ x - data.linear + sample

    def exact(self, x: jax.Array, data: Coefficients) -> tuple[jax.Array, jax.Array]:
        """x'Qx/2 - c'x and Q x - c."""
        product = data.matrix @ x
        return 0.5 * jnp.vdot(x, product) - jnp.vdot(data.linear, x), product - data.linear


def quadratic(matrices: Any, linear: Any = None, noise: Any = 1.0) -> Problem:
    """Quadratics f_i(x) = x'Q_i x / 2 - c_i'x with noisy gradients Q_i x - c_i + xi; xi Gaussian, E||xi||^2 = noise^2.

    L is the largest spectral norm of the Q_i. An exact gradient counts as one gradient.

    Args:
        matrices: The Q_i (n, p, p), symmetric and possibly indefinite.
        linear: The c_i (n, p); by default zero.
        noise: One number, or one per node.

    Returns:
        The problem.

    >>> problem = quadratic(np.stack([np.eye(2), 3 * np.eye(2)]))
    >>> problem.loss(np.array([1.0, 1.0])), problem.smoothness
    (2.0, 3.0)
    """
    matrices = np.asarray(matrices, dtype=float)
    require(
        matrices.ndim == 3 and matrices.shape[1] == matrices.shape[2],
        f"matrices has shape {matrices.shape}: must be (nodes, p, p)",
    )
    require(
        bool(np.allclose(matrices, matrices.transpose(0, 2, 1), rtol=1e-9, atol=1e-12)),
        "matrices must be symmetric: x'Qx does not change when Q becomes (Q + Q') / 2, so pass that",
    )
    n, p, _ = matrices.shape
    linear = np.zeros((n, p)) if linear is None else np.asarray(linear, dtype=float)
    require(linear.shape == (n, p), f"linear has shape {linear.shape}: must be {(n, p)}")
    noise = np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
    require(bool((noise >= 0).all()), f"noise = {noise.min()}: must not be negative")
    return Problem(
        name="quadratic",
        oracle=Quadratic(),
        data=Coefficients(matrices, linear, noise),
        nodes=n,
        dimension=p,
        smoothness=float(np.linalg.norm(matrices, 2, axis=(1, 2)).max()),
        variance=noise**2,
    )
