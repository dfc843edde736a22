"""Vectors of deep models: kept as the arrays that a model consists of, and not as one long row.

A compiler copies a matrix out of a long row before it multiplies with it, and copies its gradient
back. With as many parameters as a neural network has, these copies take as long as the gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

IN_PARTS_FROM = 1 << 16
"""From this number of parameters on, vectors are kept in parts. Below, fewer and larger operations are faster."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parts:
    """Vectors (n, p) as arrays (n, k), one for each array of a model, with the arithmetic of vectors."""

    arrays: tuple[jax.Array, ...]
    __array_ufunc__ = None  # NumPy's arrays leave the arithmetic to this class

    def _each(self, act: Callable[[Any, Any], Any], other: Any) -> Parts:
        other = split(other, tuple(a.shape[-1] for a in self.arrays))
        others = other.arrays if isinstance(other, Parts) else [other] * len(self.arrays)
        return Parts(tuple(act(a, b) for a, b in zip(self.arrays, others, strict=True)))

    def __add__(self, other: Any) -> Parts:
        return self._each(operator.add, other)

    def __sub__(self, other: Any) -> Parts:
        return self._each(operator.sub, other)

    def __rsub__(self, other: Any) -> Parts:
        return self._each(lambda a, b: b - a, other)

    def __mul__(self, other: Any) -> Parts:
        return self._each(operator.mul, other)

    def __truediv__(self, other: Any) -> Parts:
        return self._each(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Parts:
        return self._each(lambda a, b: b / a, other)

    def __pow__(self, other: Any) -> Parts:
        return self._each(operator.pow, other)

    def __neg__(self) -> Parts:
        return Parts(tuple(-a for a in self.arrays))

    __radd__, __rmul__ = __add__, __mul__


def split(x: Any, sizes: tuple[int, ...]) -> Any:
    """Vectors (..., p) in parts of these sizes, which sum to p; anything else as it is."""
    if not sizes or getattr(x, "shape", ())[-1:] != (sum(sizes),):
        return x
    return Parts(tuple(jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=-1)))


def joined(x: Any) -> jax.Array:
    """The same vectors as one array (n, p)."""
    return jnp.concatenate(x.arrays, axis=-1) if isinstance(x, Parts) else x


def is_vector(x: Any) -> bool:
    """Whether it is a vector in parts, and so one leaf of a state."""
    return isinstance(x, Parts)
