"""Losses of one row, as functions of what a model predicts of it.

`value` and `slope`, its derivative, take the predictions z of a batch, (m,) or (m, c), the targets
(m,) and a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Loss:
    """What all losses have in common."""

    labels: ClassVar[tuple[str, ...]]
    """The kinds of labels that it is for: "binary", "classes" or "real"."""
    signed: ClassVar[bool] = False
    """Whether it depends on the product of prediction and target alone, a label of -1 or +1; z is then that product."""
    steepest: ClassVar[float] = math.inf
    """A bound for the norm of its derivative, with a scale of 1."""

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """The loss of each row (m,)."""
        raise NotImplementedError

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """Its derivative by the prediction, of the form of z."""
        raise NotImplementedError

    def curvature(self, scale: float = 1.0) -> float:
        """A bound for the norm of its second derivative."""
        raise NotImplementedError

    def steepness(self, scale: float = 1.0) -> float:
        """A bound for the norm of its derivative; infinite if there is none."""
        return self.steepest


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + exp(-z)) of margins z."""

    labels, signed, steepest = ("binary",), True, 1.0

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """log(1 + exp(-z))."""
        return jax.nn.softplus(-z)

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """-1 / (1 + exp(z))."""
        return -jax.nn.sigmoid(-z)

    def curvature(self, scale: float = 1.0) -> float:
        """p (1 - p) of a probability p."""
        return 0.25


@dataclass(frozen=True)
class SmoothHinge(Loss):
    """s h((1 - z) / s) of margins z, with the scale s and h(u) = 0 below 0, u^2 / 2 up to 1, and u - 1/2 above."""

    labels, signed, steepest = ("binary",), True, 1.0

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """(u - c / 2) c s, with u = (1 - z) / s and c = u cut off at 0 and 1."""
        u = (1 - z) / scale
        c = jnp.clip(u, 0, 1)
        return (u - c / 2) * c * scale

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """-c."""
        return -jnp.clip((1 - z) / scale, 0, 1)

    def curvature(self, scale: float = 1.0) -> float:
        """That of the parabola."""
        return 1 / scale


@dataclass(frozen=True)
class Softmax(Loss):
    """log sum_c exp(z_c) - z_y: the cross-entropy of scores z for classes, of which y is the right one."""

    labels, steepest = ("classes",), math.sqrt(2)

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """The score of the right class, as far as it is below the (soft) maximum."""
        return jax.nn.logsumexp(z, axis=1) - jnp.where(self._is_right(z, target), z, 0).sum(axis=1)

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """The probabilities of all classes, less 1 for the right one."""
        return jax.nn.softmax(z, axis=1) - self._is_right(z, target)

    def _is_right(self, z: jax.Array, target: Any) -> jax.Array:
        return target[:, None] == jnp.arange(z.shape[1])

    def curvature(self, scale: float = 1.0) -> float:
        """The largest eigenvalue of diag(p) - p p' for probabilities p."""
        return 0.5


@dataclass(frozen=True)
class Residual(Loss):
    """s^2 h(r / s) of residuals r = z - target, with the scale s. Here h(u) = u^2 / 2: least squares for any s."""

    labels = ("real", "binary")

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """s^2 h(r / s)."""
        return self.h((z - target) / scale) * scale**2

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """s h'(r / s)."""
        return self.dh((z - target) / scale) * scale

    def curvature(self, scale: float = 1.0) -> float:
        """The largest |h''|, which is h''(0) for all of these."""
        return 1.0

    def steepness(self, scale: float = 1.0) -> float:
        """s times the largest |h'|."""
        return scale * self.steepest

    def h(self, u: jax.Array) -> jax.Array:
        """u^2 / 2."""
        return u * u / 2

    def dh(self, u: jax.Array) -> jax.Array:
        """Its derivative."""
        return u


@dataclass(frozen=True)
class Huber(Residual):
    """h(u) = u^2 / 2 up to |u| = 1, and |u| - 1/2 beyond: convex, and its slope is bounded."""

    steepest = 1.0

    def h(self, u: jax.Array) -> jax.Array:
        """(|u| - c / 2) c, with c = |u| cut off at 1."""
        c = jnp.clip(jnp.abs(u), 0, 1)
        return (jnp.abs(u) - c / 2) * c

    def dh(self, u: jax.Array) -> jax.Array:
        """u cut off at -1 and 1."""
        return jnp.clip(u, -1, 1)


@dataclass(frozen=True)
class Welsch(Residual):
    """h(u) = 1 - exp(-u^2 / 2): non-convex, and bounded by 1."""

    steepest = math.exp(-0.5)

    def h(self, u: jax.Array) -> jax.Array:
        """1 - exp(-u^2 / 2)."""
        return -jnp.expm1(-u * u / 2)

    def dh(self, u: jax.Array) -> jax.Array:
        """u exp(-u^2 / 2)."""
        return u * jnp.exp(-u * u / 2)


@dataclass(frozen=True)
class GemanMcClure(Residual):
    """h(u) = u^2 / (2 (1 + u^2)): non-convex, and bounded by 1/2."""

    steepest = 9 / (16 * math.sqrt(3))

    def h(self, u: jax.Array) -> jax.Array:
        """u^2 / (2 (1 + u^2))."""
        return u * u / (2 * (1 + u * u))

    def dh(self, u: jax.Array) -> jax.Array:
        """u / (1 + u^2)^2."""
        return u / (1 + u * u) ** 2


@dataclass(frozen=True)
class Unexplained(Loss):
    """(target - ||z||^2) / 2, the part of `pca` that depends on a row; with z the products of the row with U."""

    labels = ("binary", "classes", "real")

    def value(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """(target - ||z||^2) / 2."""
        return (target - (z * z).sum(axis=1)) / 2

    def slope(self, z: jax.Array, target: Any = None, scale: Any = None) -> jax.Array:
        """-z."""
        return -z
