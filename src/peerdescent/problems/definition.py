"""What an oracle does, by tracing it.

As a text and a checksum it defines the oracle, so that stored results of another one are
recognised. And an oracle that always sees the same sample or noise is refused.
"""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from threading import RLock, get_ident
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from peerdescent.digests import checksum, fingerprint, is_library
from peerdescent.errors import require
from peerdescent.keys import node_keys

ADDRESS = re.compile(r" at 0x[0-9a-f]+")

MEMORY = jax.make_user_context()
"""With another value JAX has another memory of functions that are compiled on their own, and traces them anew."""

RANDOM = {
    id(value): (f"{module.__name__}.{name}", value)
    for module in (np.random, random)
    for name in module.__all__
    for value in [getattr(module, name)]
}
"""The functions and classes of random numbers, with their names."""
WATCHING = RLock()
REFUSED = [0]
"""How many checks have seen a call of one: they leave it in JAX's memory, where no later check would see it called."""


def digest(*trees: Any) -> str:
    """A checksum of all arrays in the trees.

    >>> digest(np.zeros(2)) == digest([np.zeros(2)])
    True
    """
    return checksum(*jax.tree.leaves(trees))


def definition(oracle: Any, data: Any, dimension: int) -> tuple[str, list[np.ndarray]]:
    """The text of an oracle's functions and the arrays that they have inside; equal for equal mathematics.

    Oracles of this package are defined by their class and fields. What holds functions of a user is
    traced by JAX on the shapes of one node's data, so a function with another body, or with other
    values from around it, has another text. The text of one function may differ between versions of
    JAX. A function that JAX cannot trace equals no other.

    >>> import peerdescent as peer
    >>> rows, w = np.ones((2, 4, 3)), np.zeros(3)
    >>> one, two = (peer.problems.loss(lambda w, a, k=k: jnp.mean((a @ w - k) ** 2), w, rows) for k in (1, 2))
    >>> definition(one.oracle, one.data, 3) == definition(two.oracle, two.data, 3)
    False
    """
    if _is_ours(oracle):
        return _own(oracle), []
    with jax.enable_x64(True):
        key = _key()

        def everything(x: jax.Array, data: Any) -> Any:
            sample = oracle.blank(2) if hasattr(oracle, "blank") else oracle.draw(key, data, 2)
            return oracle.grad(x, sample, data), oracle.exact(x, data)

        try:
            traced = jax.make_jaxpr(everything)(
                jax.ShapeDtypeStruct((dimension,), np.float64), _one_node(data)
            )
        except (
            Exception
        ):  # of the user's function, which engine `debug` may be able to run, or to explain
            return f"not traced {uuid4()}", []
    text = _text(traced)
    if "callback" in text:  # to a function of Python, of which the text has the address only
        text += fingerprint(oracle)
    return text, [np.asarray(a) for a in _constants(traced)]


def check_random(oracle: Any, data: Any, dimension: int) -> None:
    """Refuse an oracle that sees the same sample or noise again and again: by NumPy, or without its key.

    JAX runs the Python code of `draw` and `grad` once and repeats what it recorded. So they are
    traced twice here: the same must come out, and they must not call random numbers of NumPy or
    Python. What `draw` returns must depend on the key, and no part of it may come from a fixed key
    of JAX instead. Only oracles of users are traced.
    """
    node, x, key = (
        _one_node(data),
        jax.ShapeDtypeStruct((dimension,), np.float64),
        jax.eval_shape(_key),
    )

    # The functions that JAX traces are new ones each time: it remembers what others did.
    def drawing(draw: Any) -> Any:
        return jax.make_jaxpr(lambda key, data: draw(key, data, 2))(key, node)

    def descending(grad: Any) -> Any:
        sample = jax.eval_shape(lambda key, data: oracle.draw(key, data, 2), key, node)
        return jax.make_jaxpr(lambda x, sample, data: grad(x, sample, data))(x, sample, node)

    drawn, _ = _traced(oracle, "draw", drawing), _traced(oracle, "grad", descending)
    if drawn is None or not drawn.jaxpr.outvars:
        return
    by_key, by_fixed_key = _origins(drawn.jaxpr)
    remedy = "draw from the key, as jax.random.randint(key, ...)"
    require(
        by_key,
        f"what {type(oracle).__name__}.draw returns does not depend on the key, so every iteration would see the same "
        f"sample: {remedy}; return None if gradients have no noise",
    )
    require(
        not by_fixed_key,
        f"a part of what {type(oracle).__name__}.draw returns is drawn from another key than the given one, so every "
        f"iteration would see the same: {remedy}",
    )


def _traced(oracle: Any, name: str, trace: Callable[[Any], Any]) -> Any:
    """A function of a user's oracle, traced; None if it is of a library or cannot be. It must do the same twice."""
    function = getattr(oracle, name, None)
    own = getattr(function, "__func__", function)
    if own is None or is_library(own):
        return None
    plain = inspect.unwrap(own)  # a compiled function would be traced once only
    function = plain if own is function else partial(plain, oracle)
    with jax.enable_x64(True):
        try:
            with MEMORY(("first", *REFUSED)):
                first = trace(
                    function
                )  # also modules are imported here, and find nothing that is watched
            with _watching(plain) as called, MEMORY(("second", *REFUSED)):
                second = trace(function)
        except Exception:  # which the run will explain
            return None
    same = _text(first) == _text(second) and digest(list(_constants(first))) == digest(
        list(_constants(second))
    )
    require(
        same and not called,
        f"{type(oracle).__name__}.{name} {f'calls {called[0]}' if called else 'does not do the same twice'}: random "
        "numbers of NumPy or Python, or the time, are fixed when JAX compiles it, so that every iteration would see "
        "the same; draw from the key that `draw` gets, as jax.random.normal(key, ...), and make what is fixed outside",
    )
    return first


class Watched:
    """A function or class that notes when this thread calls it."""

    def __init__(self, name: str, given: Any, called: list[str]) -> None:
        self.name, self.given, self.called, self.thread = name, given, called, get_ident()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the function returns."""
        if get_ident() == self.thread:
            self.called.append(self.name)
        return self.given(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def __instancecheck__(self, one: Any) -> bool:
        return isinstance(one, self.given)


@contextmanager
def _watching(function: Any) -> Iterator[list[str]]:
    """The names of what this thread calls of `RANDOM` meanwhile, as attributes or as globals of the function's module.

    It cannot be seen afterwards: a generator with a seed gives the same numbers every time, as any
    constant.
    """
    called: list[str] = []
    places = [vars(np.random), vars(random), getattr(function, "__globals__", {})]
    with WATCHING:
        found = [
            (place, *one) for place in places for one in list(place.items()) if id(one[1]) in RANDOM
        ]
        for place, name, value in found:
            place[name] = Watched(*RANDOM[id(value)], called)
        try:
            yield called
        finally:
            for place, name, value in found:
                place[name] = value
            REFUSED[0] += bool(called)


def _key() -> jax.Array:
    return node_keys(jnp.uint32(0), jnp.uint32(0), jnp.uint32(0))


def _one_node(data: Any) -> Any:
    """The shapes and types of one node's data."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[1:], jnp.result_type(a)), data)


def _text(traced: Any) -> str:
    return ADDRESS.sub("", str(traced))


def _origins(traced: Any) -> tuple[bool, bool]:
    """Whether some result of a traced function of (key, data) depends on the key, and whether some is of a fixed key.

    In doubt, it depends on the key.
    """
    by_key, by_data, by_fixed_key = {traced.invars[0]}, set(traced.invars[1:]), set[Any]()
    for equation in traced.eqns:
        given = {one for one in equation.invars if isinstance(one, Var)}
        if given & by_key:
            by_key.update(equation.outvars)
        elif given & by_fixed_key or (_is_random(equation) and not given & by_data):
            by_fixed_key.update(equation.outvars)
        elif given & by_data:
            by_data.update(equation.outvars)
    results = {one for one in traced.outvars if isinstance(one, Var)}
    return bool(results & by_key), bool(results & by_fixed_key)


def _is_random(equation: Any) -> bool:
    """Whether random numbers of JAX are drawn in an equation, or in a function inside it."""
    inner = (one for part in _functions(equation) for one in getattr(part, "jaxpr", part).eqns)
    return equation.primitive.name.startswith("random_") or any(map(_is_random, inner))


def _inside(value: Any) -> dict[str, Any] | None:
    """What a value consists of, by name; None for a value without parts."""
    if isinstance(value, partial):
        return {
            "func": value.func,
            **{str(k): a for k, a in enumerate(value.args)},
            **value.keywords,
        }
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _is_ours(value: Any) -> bool:
    """Whether a value is of this package, with no function of a user inside."""
    parts = _inside(value)
    if parts is None:
        return _is_named(value) if callable(value) else is_library(type(value))
    return (isinstance(value, partial) or _is_named(type(value))) and all(
        map(_is_ours, parts.values())
    )


def _is_named(value: Any) -> bool:
    """Whether this is the function or class that a module of this package has under that name."""
    module, name = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
    return (
        module.startswith("peerdescent.") and getattr(sys.modules.get(module), name, None) is value
    )


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
        for inner in _functions(equation):
            yield from _constants(inner)


def _functions(equation: Any) -> Iterator[Any]:
    """The traced functions inside an equation."""
    for parameter in equation.params.values():
        for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
            if hasattr(inner, "eqns") or hasattr(inner, "consts"):
                yield inner
