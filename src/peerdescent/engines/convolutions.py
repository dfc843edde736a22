"""Convolutions as matrix products, for many nodes with kernels of their own.

Over nodes, a convolution becomes one with as many groups, which is slow. Here it is the product of
a matrix of patches with the kernel: a patch is what the kernel sees of the input at one place. Over
nodes, that is a product for each. `benchmarks/deep.py` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from peerdescent.engines.rewriting import rewritten
from peerdescent.problems.custom import Averaged

TAPS = 128
"""The most places of a kernel, 5 x 5 x 5 or 11 x 11. Each is an operation of its own in the program."""


def as_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its convolutions as matrix products, to be differentiated and mapped over nodes."""
    return rewritten(function, _as_product)


def by_products(oracle: Any) -> Any:
    """The same oracle, with the convolutions of a user's loss as matrix products."""
    inner = getattr(oracle, "value_and_grad", None)
    if not isinstance(inner, Averaged):
        return oracle
    return replace(oracle, value_and_grad=replace(inner, function=as_products(inner.function)))


def _as_product(equation: Any) -> Any:
    """A convolution that is none of the unusual ones as a call of its product; any other equation as it is."""
    if equation.primitive.name != "conv_general_dilated" or not _is_usual(equation):
        return equation
    x, kernel = (jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in equation.invars)
    out = equation.outvars[0].aval
    call = jax.jit(partial(convolution, out_shape=out.shape, settings=equation.params))
    traced = jax.make_jaxpr(call)(x, kernel)
    (only,) = traced.eqns
    same = [(a.shape, a.dtype, a.weak_type) for a in (only.outvars[0].aval, out)]
    return (
        equation.replace(primitive=only.primitive, params=only.params)
        if same[0] == same[1]
        else equation
    )


def _is_usual(equation: Any) -> bool:
    settings, (x, kernel), (out,) = equation.params, equation.invars, equation.outvars
    taps = [kernel.aval.shape[d] for d in settings["dimension_numbers"].rhs_spec[2:]]
    return (
        settings["feature_group_count"] == settings["batch_group_count"] == 1
        and all(each == 1 for each in settings["lhs_dilation"])
        and settings.get("out_sharding") is None
        and x.aval.dtype == kernel.aval.dtype
        and jnp.issubdtype(x.aval.dtype, jnp.floating)
        and 0 < prod(taps) <= TAPS
        and 0 not in (x.aval.size, out.aval.size)
    )


def convolution(
    x: jax.Array, kernel: jax.Array, out_shape: tuple[int, ...], settings: Any
) -> jax.Array:
    """The convolution with these settings of JAX's, without groups and dilation of x, as a matrix product."""
    (_, channels, *places), (to, of, *axes), out = settings["dimension_numbers"]
    around = dict(zip(places, settings["padding"], strict=True))
    x = lax.pad(x, jnp.zeros((), x.dtype), [(*around.get(d, (0, 0)), 0) for d in range(x.ndim)])
    steps = dict(zip(places, settings["window_strides"], strict=True))
    ends = {d: (out_shape[o] - 1) * steps[d] + 1 for d, o in zip(places, out[2:], strict=True)}

    def seen(tap: tuple[int, ...]) -> jax.Array:
        """What one place of the kernel is multiplied with."""
        pairs = zip(places, tap, settings["rhs_dilation"], strict=True)
        start = {d: k * apart for d, k, apart in pairs}
        return lax.slice(
            x,
            [start.get(d, 0) for d in range(x.ndim)],
            [start[d] + ends[d] if d in start else x.shape[d] for d in range(x.ndim)],
            [steps.get(d, 1) for d in range(x.ndim)],
        )

    patches = lax.concatenate(
        [seen(tap) for tap in product(*(range(kernel.shape[d]) for d in axes))], channels
    )
    matrix = kernel.transpose(*axes, of, to).reshape(-1, kernel.shape[to])
    kinds = {name: settings[name] for name in ("precision", "preferred_element_type")}
    found = lax.dot_general(patches, matrix, (((channels,), (0,)), ((), ())), **kinds)
    # Its axes are those of x but for the channels, which are now last.
    now = [d for d in range(x.ndim) if d != channels] + [channels]
    order = dict(zip(out, settings["dimension_numbers"].lhs_spec, strict=True))
    return found.transpose([now.index(order[d]) for d in range(x.ndim)])
