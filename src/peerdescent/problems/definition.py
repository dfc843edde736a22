"""What defines an oracle, as text and as a checksum, so that stored results of another oracle are recognised."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.digests import checksum
from peerdescent.keys import node_keys

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digest(*trees: Any) -> str:
    """A checksum of all arrays in the trees.

    >>> digest(np.zeros(2)) == digest([np.zeros(2)])
    True
    """
    return checksum(*jax.tree.leaves(trees))


def definition(oracle: Any, data: Any, dimension: int) -> tuple[str, list[np.ndarray]]:
    """The text of an oracle's functions and the arrays that they have inside; equal for equal mathematics.

    Oracles of this package are defined by their class and fields. What holds functions of a user is traced by JAX on
    the shapes of one node's data, so a function with another body, or with other values from around it, has another
    text. The text of one function may differ between versions of JAX. A function that JAX cannot trace equals no other.

    >>> import peerdescent as peer
    >>> rows, w = np.ones((2, 4, 3)), np.zeros(3)
    >>> one, two = (peer.problems.loss(lambda w, a, k=k: jnp.mean((a @ w - k) ** 2), w, rows) for k in (1, 2))
    >>> definition(one.oracle, one.data, 3) == definition(two.oracle, two.data, 3)
    False
    """
    if _is_ours(oracle):
        return _own(oracle), []
    with jax.enable_x64(True):
        node = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[1:], jnp.result_type(a)), data)
        key = node_keys(jnp.uint32(0), jnp.uint32(0), jnp.uint32(0))

        def everything(x: jax.Array, data: Any) -> Any:
            return oracle.grad(x, oracle.draw(key, data, 2), data), oracle.exact(x, data)

        try:
            traced = jax.make_jaxpr(everything)(jax.ShapeDtypeStruct((dimension,), np.float64), node)
        except Exception:  # of the user's function, which engine `debug` may be able to run, or to explain
            return f"not traced {uuid4()}", []
    return ADDRESS.sub("", str(traced)), [np.asarray(a) for a in _constants(traced)]


def _inside(value: Any) -> dict[str, Any] | None:
    """What a value consists of, by name; None for a value without parts."""
    if isinstance(value, partial):
        return {"func": value.func, **{str(k): a for k, a in enumerate(value.args)}, **value.keywords}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _is_ours(value: Any) -> bool:
    """Whether a value is of this package, with no function of a user inside."""
    parts = _inside(value)
    if parts is None:
        return not callable(value) or _is_named(value)
    return (isinstance(value, partial) or _is_named(type(value))) and all(map(_is_ours, parts.values()))


def _is_named(value: Any) -> bool:
    """Whether this is the function or class that a module of this package has under that name."""
    module, name = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
    return module.startswith("peerdescent.") and getattr(sys.modules.get(module), name, None) is value


def _own(value: Any) -> str:
    parts = _inside(value)
    if parts is None:
        return str(getattr(value, "__qualname__", repr(value)))
    return f"{type(value).__qualname__}({', '.join(f'{name}={_own(part)}' for name, part in parts.items())})"


def _constants(value: Any) -> Iterator[Any]:
    """The arrays of a traced function that are no arguments, also those of functions inside it."""
    if hasattr(value, "consts"):
        for const in value.consts:
            is_key = jnp.issubdtype(jnp.result_type(const), jax.dtypes.prng_key)
            yield jax.random.key_data(const) if is_key else const
        value = value.jaxpr
    for equation in getattr(value, "eqns", ()):
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(inner, "eqns") or hasattr(inner, "consts"):
                    yield from _constants(inner)
