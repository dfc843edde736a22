"""Matrix products in float32 on a GPU: each as three products of its units for TF32.

A GPU's units for matrices take TF32 numbers, which have 11 digits instead of float32's 24. Three of
their products, of the leading digits with each other and with the rest, make one that is about as
exact as float32 (`benchmarks/deep.py` measures it), and with the small batches of many nodes they
are faster than the units for float32. JAX has this as an algorithm of a single product; set for a
whole program it would make convolutions TF32 and float64 float32. So here it is set product by
product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from peerdescent.engines.rewriting import rewritten

ALGORITHM = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
FULL = lax.Precision.HIGHEST, lax.Precision.HIGHEST


def by_three(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with every product of float32 matrices in full precision computed as three."""
    return rewritten(function, _as_three)


def _as_three(equation: Any) -> Any:
    if equation.primitive.name != "dot_general" or equation.params["precision"] != FULL:
        return equation
    if any(name.aval.dtype != jnp.float32 for name in equation.invars):
        return equation
    return equation.replace(params={**equation.params, "precision": ALGORITHM})
