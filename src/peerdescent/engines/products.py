"""Matrix products in float32 on a GPU: each as three products of its units for TF32.

A GPU's units for matrices take TF32 numbers, which have 11 digits instead of float32's 24. Three of their products,
of the leading digits with each other and with the rest, make one that is about as exact as float32
(`benchmarks/deep.py` measures it), and with the small batches of many nodes they are faster than the units for float32.
JAX has this as an algorithm of a single product; set for a whole program it would make convolutions TF32 and float64
float32. So here it is set product by product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

ALGORITHM = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
PROGRAMS: Any = (ClosedJaxpr, Jaxpr)
FULL = lax.Precision.HIGHEST, lax.Precision.HIGHEST


def by_three(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with every product of float32 matrices in full precision computed as three."""

    def act(*values: Any) -> Any:
        traced, form = jax.make_jaxpr(function, return_shape=True)(*values)
        found = jaxpr_as_fun(_changed(traced))(*jax.tree.leaves(values))
        return jax.tree.unflatten(jax.tree.structure(form), found)

    return act


def _changed(given: Any) -> Any:
    """A traced program, or a setting of one of its operations, in which full precision is that of `ALGORITHM`."""
    if type(given) is tuple:
        return tuple(map(_changed, given))
    if not isinstance(given, PROGRAMS):
        return given
    inner = getattr(given, "jaxpr", given)  # before JAX 0.11, a program with constants holds one without
    if inner is not given:
        return given.replace(jaxpr=_changed(inner))
    return given.replace(eqns=[_changed_equation(equation) for equation in given.eqns])


def _changed_equation(equation: Any) -> Any:
    settings = {name: _changed(value) for name, value in equation.params.items()}
    if equation.primitive.name == "dot_general" and settings["precision"] == FULL:
        single = all(name.aval.dtype == jnp.float32 for name in equation.invars)
        settings["precision"] = ALGORITHM if single else FULL
    return equation.replace(params=settings)
