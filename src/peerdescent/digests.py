"""Checksums of arrays, and of what functions do."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import numpy as np

MODELS = {"flax", "equinox", "optax", "sklearn"}
"""Libraries of models. Their objects have contents that count: sizes, functions and weights."""
LIBRARIES = sys.stdlib_module_names | MODELS | {"jax", "jaxlib", "numpy", "scipy", "pandas", "sklearn", "torch"}
"""Packages whose functions and classes go by their names."""
KNOWN = LIBRARIES | {"peerdescent"}
PLAIN = {"argparse", "builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "types", "uuid"}
"""Modules of Python whose objects are data."""


def checksum(*arrays: Any) -> str:
    """A checksum (16 hexadecimal digits) of arrays: their values, shapes and types.

    >>> checksum(np.zeros(2)) == checksum([0.0, 0.0]), checksum(np.zeros(2)) == checksum(np.zeros(2, np.float32))
    (True, False)
    """
    found = hashlib.sha256()
    for each in arrays:
        array = np.ascontiguousarray(each)
        found.update(repr((array.shape, array.dtype.str)).encode())
        if array.size:
            found.update(array.data.cast("B"))
    return found.hexdigest()[:16]


def fingerprint(*things: Any) -> str:
    """A checksum of what functions or classes do now: their code, and the values that they take from around them.

    Functions of libraries go by their names. It may differ between versions of Python.

    >>> def scaled(factor):
    ...     return lambda x: factor * x
    >>> fingerprint(scaled(2)) == fingerprint(scaled(2)), fingerprint(scaled(2)) == fingerprint(scaled(3))
    (True, False)
    """
    return hashlib.sha256("\n".join(_inside(things, {})).encode()).hexdigest()[:16]


def is_library(thing: Any) -> bool:
    """Whether a function or class is of a library, or what this package has under its name."""
    module = str(getattr(thing, "__module__", ""))
    if not module.startswith("peerdescent."):
        return module.partition(".")[0] in LIBRARIES
    with suppress(AttributeError):
        return attrgetter(thing.__qualname__)(sys.modules.get(module)) is thing
    return False


def _inside(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """All that a thing consists of, as texts; `seen` are the things on the way, by their ids."""
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        yield repr(thing)
        return
    if isinstance(thing, types.ModuleType):
        yield thing.__name__
        return
    if id(thing) in seen:
        yield f"again {list(seen).index(id(thing))}"
        return
    seen[id(thing)] = thing
    yield f"{type(thing).__name__} {len(thing) if isinstance(thing, tuple | list | set | frozenset | dict) else ''}"
    if isinstance(thing, tuple | list):
        for one in thing:
            yield from _inside(one, seen)
    elif isinstance(thing, set | frozenset):
        yield from sorted("\n".join(_inside(one, dict(seen))) for one in thing)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _inside((key, value), seen)
    elif isinstance(thing, types.CodeType):
        yield thing.co_code.hex()
        yield from thing.co_names
        yield from _inside(thing.co_consts, seen)
    elif isinstance(thing, functools.partial):
        yield from _inside((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, types.MethodType):
        yield from _inside((thing.__func__, thing.__self__), seen)
    elif callable(thing) and hasattr(thing, "__qualname__") and is_library(thing):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if getattr(thing, "__closure__", None):  # made by a library from values, as a schedule of optax
            yield from _inside([_content(cell) for cell in thing.__closure__], seen)
    elif isinstance(thing, property | functools.cached_property):
        yield from _inside(getattr(thing, "fget", None) or getattr(thing, "func", None), seen)
    elif isinstance(thing, types.FunctionType):
        around = [_content(cell) for cell in thing.__closure__ or ()]
        names = list(dict.fromkeys(name for code in _codes(thing.__code__) for name in code.co_names))
        yield from _inside((thing.__code__, thing.__defaults__, thing.__kwdefaults__, around), seen)
        own = {name: value for name, value in vars(thing).items() if name in {*names, "__wrapped__"}}
        yield from _inside(own, seen)
        for name in names:
            value = thing.__globals__.get(name, _imported(name, thing.__globals__))
            if value is not None:
                yield name
                yield from _used(value, names, seen)
    elif hasattr(thing, "__wrapped__"):  # such as what jax.jit returns
        yield from _inside(thing.__wrapped__, seen)
    elif isinstance(thing, ContextVar):
        yield from _inside(thing.get(None), seen)
    elif isinstance(thing, type):
        for kind in thing.__mro__:
            own = {
                name: value
                for name, value in vars(kind).items()
                if isinstance(value, types.FunctionType) or not name.startswith("__")
            }
            yield from _inside(f"{kind.__module__}.{kind.__qualname__}" if is_library(kind) else own, seen)
    elif hasattr(thing, "__array__"):
        try:
            yield checksum(np.asarray(thing))
        except TypeError:  # a key of JAX, whose text has its numbers
            yield repr(thing)
    elif hasattr(thing, "tocsr"):
        sparse = thing.tocsr()
        yield checksum(sparse.shape, sparse.data, sparse.indices, sparse.indptr)
    elif is_dataclass(thing):
        yield from _inside((type(thing), {one.name: getattr(thing, one.name) for one in fields(thing)}), seen)
    else:
        module = type(thing).__module__
        yield f"{module}.{type(thing).__qualname__}"
        if hasattr(thing, "tree_flatten"):  # sparse arrays of JAX
            yield from _inside(thing.tree_flatten(), seen)
        elif not is_library(type(thing)) or module.partition(".")[0] in MODELS:
            yield from _inside((type(thing), _held(thing)), seen)
        elif module in PLAIN:
            held, text = _held(thing), repr(thing)
            yield from _inside(held or ("" if " at 0x" in text else text), seen)


def _used(value: Any, names: list[str], seen: dict[int, Any]) -> Iterator[str]:
    """A value that a function finds by its name; of a user's module, what has one of these names in it."""
    yield from _inside(value, seen)
    if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in KNOWN:
        for name in names:
            inner = getattr(value, name, None)
            if inner is not None and id(inner) not in seen:
                yield name
                if isinstance(inner, types.ModuleType):
                    seen[id(inner)] = inner
                yield from _used(inner, names, seen)


def _imported(name: str, around: dict[str, Any]) -> Any:
    """The module that a function imports by this name itself; None if it is none, or a library."""
    found = sys.modules.get(name) or sys.modules.get(f"{around.get('__package__')}.{name}")
    return None if found is None or found.__name__.partition(".")[0] in KNOWN else found


def _held(thing: Any) -> dict[str, Any]:
    """The attributes of an object, in its dictionary and in slots."""
    slots = [name for kind in type(thing).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    own = {name: getattr(thing, name) for name in slots if not name.startswith("__") and hasattr(thing, name)}
    return {**own, **getattr(thing, "__dict__", {})}


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _content(cell: types.CellType) -> Any:
    """What a variable around a function holds; it may be empty, as one that is set on one side of a branch only."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
