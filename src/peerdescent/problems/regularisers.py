"""Regularisers r(x), as functions that return the value and the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

Regulariser: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def bounded(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """sum_k x_k^2 / (1 + x_k^2) and its gradient: non-convex, 2-smooth, between 0 and p."""
    scale = 1 / (1 + x * x)
    return jnp.sum(x * x * scale), 2 * x * scale * scale


def squared(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """||x||^2 / 2 and its gradient."""
    return 0.5 * jnp.sum(x * x), x


REGULARISERS: dict[str, Regulariser | None] = {"nonconvex": bounded, "l2": squared, "none": None}
CURVATURES: dict[Regulariser | None, float] = {bounded: 2.0, squared: 1.0, None: 0.0}
"""The smoothness constant of each regulariser."""
