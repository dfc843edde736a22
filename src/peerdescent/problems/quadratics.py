"""Quadratics with additive noise. Their constants are known in closed form, as tests and theory need."""

from __future__ import annotations

import math
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


class Tailed(NamedTuple):
    """Q (n, p, p), c (n, p), the scale of the noise (n,) and its degrees of freedom (n,)."""

    matrix: Any
    linear: Any
    noise: Any
    tails: Any


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


@dataclass(frozen=True)
class HeavyTailed(Quadratic):
    """g(x, xi) = Q x - c + xi, where the entries of xi are noise / sqrt(p) times Student's t, independent."""

    def draw(self, key: jax.Array, data: Any, batch: int) -> jax.Array:
        """The mean (p,) of `batch` independent noise vectors; `data` is `Tailed`.

        By Bailey's polar method: sqrt(d (u^(-2/d) - 1)) cos(2 pi v) with u and v uniform has d
        degrees of freedom.
        """
        p, d = data.linear.shape[0], data.tails
        u, v = jax.random.uniform(key, (2, batch, p), data.linear.dtype)
        radius = jnp.sqrt(d * jnp.expm1(-2 / d * jnp.log1p(-u)))
        return (radius * jnp.cos(2 * jnp.pi * v)).mean(axis=0) * data.noise * p**-0.5


def quadratic(
    matrices: Any, linear: Any = None, noise: Any = 1.0, tails: float | None = None
) -> Problem:
    """Quadratics f_i(x) = x'Q_i x / 2 - c_i'x with noisy gradients Q_i x - c_i + xi; xi Gaussian, E||xi||^2 = noise^2.

    L is the largest spectral norm of the Q_i. An exact gradient counts as one gradient. With
    `tails`, the entries of xi are noise / sqrt(p) times Student's t with so many degrees of freedom
    d: then E||xi||^2 = noise^2 d / (d - 2), which is infinite up to d = 2. In float32 they are cut
    off at about 2^(23/d).

    Args:
        matrices: The Q_i (n, p, p), symmetric and possibly indefinite.
        linear: The c_i (n, p); by default zero.
        noise: One number, or one per node.
        tails: The degrees of freedom of Student's t, above 1, since there is no mean at 1; by
            default Gaussian noise.

    Returns:
        The problem.

    >>> problem = quadratic(np.stack([np.eye(2), 3 * np.eye(2)]))
    >>> problem.loss(np.array([1.0, 1.0])), problem.smoothness
    (2.0, 3.0)
    >>> quadratic(np.eye(2)[None], tails=3.0).variance.tolist(), quadratic(np.eye(2)[None], tails=1.5).variance.tolist()
    ([3.0], [inf])
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
    oracle, data, spread = Quadratic(), (matrices, linear, noise), 1.0
    if tails is not None:
        require(
            1 < tails < math.inf,
            f"tails = {tails}: must be a finite number above 1, or None for Gaussian noise",
        )
        oracle, spread = HeavyTailed(), tails / (tails - 2) if tails > 2 else math.inf
    return Problem(
        name="quadratic",
        oracle=oracle,
        data=Coefficients(*data) if tails is None else Tailed(*data, np.full(n, float(tails))),
        nodes=n,
        dimension=p,
        smoothness=float(np.linalg.norm(matrices, 2, axis=(1, 2)).max()),
        variance=np.array([each and each**2 * spread for each in noise.tolist()]),
    )
