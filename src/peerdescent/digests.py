"""Checksums of arrays, and of what functions do."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import sys
import threading
import types
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import numpy as np

MODELS = {"flax", "equinox", "optax", "sklearn"}
"""Libraries of models. Their objects have contents that count: sizes, functions and weights."""
LIBRARIES = (
    sys.stdlib_module_names
    | MODELS
    | {"jax", "jaxlib", "numpy", "scipy", "pandas", "sklearn", "torch"}
)
"""Packages whose functions and classes go by their names."""
KNOWN = LIBRARIES | {"peerdescent"}
PLAIN = {"_thread", "argparse", "builtins", "collections", "functools", "operator", "types"}
"""Modules of Python whose objects hold what users put into them, which counts also next to an open file or a lock."""
TYPE_ONLY = {"ctypes", "jax", "jaxlib", "os", "random", "tempfile", "torch"}
"""Modules whose objects go by their types: they have addresses, or differ from process to process, or with each use."""
UNREADABLE = "<unreadable>"
"""Stands for a lock, an open file, a thread and the like."""


def checksum(*arrays: Any) -> str:
    """A checksum (16 hexadecimal digits) of arrays: their values, shapes and types.

    >>> checksum(np.zeros(2)) == checksum([0.0, 0.0]), checksum(np.zeros(2)) == checksum(np.zeros(2, np.float32))
    (True, False)
    """
    found = hashlib.sha256()
    for each in arrays:
        values = np.ascontiguousarray(each)
        found.update(repr((values.shape, values.dtype.str)).encode())
        if values.size:
            found.update(values.view(np.uint8).data)
    return found.hexdigest()[:16]


def fingerprint(*things: Any) -> str:
    """A checksum of what functions or classes do now: their code, and the values that they take from around them.

    Functions of libraries go by their names. It may differ between versions of Python. Not seen are
    the environment (`os.environ`), files, names that are computed (`globals()["k"]`,
    `getattr(module, name)`), attributes of a function or module that a call returns, objects of
    PyTorch, and the state of random generators, iterators, locks and threads.

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


def _inside(thing: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[str]:
    """All that a thing consists of, as texts; `seen` are the things on the way, by their ids, with their numbers."""
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        yield repr(thing)
        return
    if isinstance(thing, types.ModuleType):
        yield thing.__name__
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)][0]}"
        return
    before = len(seen)
    seen[id(thing)] = before, thing
    is_container = isinstance(thing, tuple | list | set | frozenset | dict)
    yield f"{type(thing).__name__} {len(thing) if is_container else ''}"
    if (is_container or hasattr(thing, "__array__")) and not is_library(type(thing)):
        yield from _inside((type(thing), _held(thing)), seen)
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
        if getattr(
            thing, "__closure__", None
        ):  # made by a library from values, as a schedule of optax
            yield from _inside([_content(cell) for cell in thing.__closure__], seen)
    elif isinstance(thing, property | functools.cached_property):
        yield from _inside(getattr(thing, "fget", None) or getattr(thing, "func", None), seen)
    elif isinstance(thing, types.FunctionType):
        around = [_content(cell) for cell in thing.__closure__ or ()]
        names = list(
            dict.fromkeys(name for code in _codes(thing.__code__) for name in code.co_names)
        )
        yield from _inside((thing.__code__, thing.__defaults__, thing.__kwdefaults__, around), seen)
        own = {
            name: value for name, value in vars(thing).items() if name in {*names, "__wrapped__"}
        }
        yield from _inside(own, seen)
        met: set[int] = set()
        for value in (*around, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()):
            yield from _read(value, names, seen, met)
        for name in names:
            value = thing.__globals__.get(name, _imported(name, thing.__globals__))
            if value is not None:
                yield name
                yield from _inside(value, seen)
                yield from _read(value, names, seen, met)
    elif hasattr(
        thing, "__wrapped__"
    ):  # such as what jax.jit returns, or jax.custom_vjp with more functions
        others = [value for value in getattr(thing, "__dict__", {}).values() if callable(value)]
        yield from _inside((thing.__wrapped__, others), seen)
    elif isinstance(thing, ContextVar):
        yield from _inside(thing.get(None), seen)
    elif isinstance(thing, type):
        for kind in thing.__mro__:
            own = {
                name: value
                for name, value in vars(kind).items()
                if callable(value) or not name.startswith("__")
            }
            yield from _inside(
                f"{kind.__module__}.{kind.__qualname__}" if is_library(kind) else own, seen
            )
    elif isinstance(thing, array | bytearray | memoryview):
        view = memoryview(thing)
        yield f"{view.format} {view.shape} {hashlib.sha256(view.tobytes()).hexdigest()}"
    elif hasattr(thing, "__array__"):
        is_keys = str(getattr(thing, "dtype", "")).startswith(
            "key<"
        )  # of JAX, which this module does not import
        values = np.asarray(sys.modules["jax"].random.key_data(thing) if is_keys else thing)
        if values.dtype.hasobject:
            yield from _inside((values.shape, values.ravel().tolist()), seen)
        else:
            yield checksum(values)
        if isinstance(thing, np.ma.MaskedArray):
            yield checksum(np.ma.getmaskarray(thing))
        if hasattr(thing, "axes"):  # the labels of pandas
            yield from _inside(thing.axes, seen)
    elif hasattr(thing, "tocsr"):
        sparse = thing.tocsr()
        yield checksum(sparse.shape, sparse.data, sparse.indices, sparse.indptr)
    elif hasattr(thing, "node_data"):  # a PyTreeDef of JAX
        yield from _inside((thing.num_leaves, thing.node_data(), thing.children()), seen)
    elif is_dataclass(thing):
        yield from _inside(
            (type(thing), {one.name: getattr(thing, one.name) for one in fields(thing)}), seen
        )
    else:
        module = type(thing).__module__
        yield f"{module}.{type(thing).__qualname__}"
        if hasattr(thing, "tree_flatten"):  # sparse arrays of JAX
            yield from _inside(thing.tree_flatten(), seen)
        elif not is_library(type(thing)) or module.partition(".")[0] in MODELS:
            yield from _inside((type(thing), _held(thing)), seen)
            if isinstance(thing, Collection) and not isinstance(
                thing, Iterator
            ):  # a user's kind of deque
                yield from _inside(_contents(thing), seen)
        elif module.startswith("peerdescent."):  # a network, whose other attributes are caches
            yield from _inside(
                {name: getattr(thing, name, None) for name in type(thing).__annotations__}, seen
            )
        elif TYPE_ONLY & {*module.split(".")} or isinstance(thing, Iterator):
            if hasattr(thing, "__name__"):  # jnp.add
                yield from _inside(_held(thing), seen)
        else:
            held = _contents(thing)
            inner = [UNREADABLE] if held is None else list(_inside(held, seen))
            if module not in PLAIN and UNREADABLE in inner:
                inner = [UNREADABLE]
                while len(seen) > before + 1:  # what is left out may be met again
                    seen.popitem()
            yield from inner


def _contents(thing: Any) -> Any:
    """What an object of a library holds: that which makes a copy of it; None if it cannot be copied."""
    if isinstance(thing, threading.local):
        return vars(thing)
    with suppress(Exception):
        made = copyreg.dispatch_table.get(type(thing), lambda one: one.__reduce_ex__(2))(thing)
        parts = (
            [made]
            if isinstance(made, str)
            else [list(one) if isinstance(one, Iterator) else one for one in made]
        )
        return [_uncached(one, type(thing)) if isinstance(one, dict) else one for one in parts]
    with suppress(Exception):
        if isinstance(thing, Collection):
            return dict(thing) if isinstance(thing, Mapping) else list(thing)
    return None


def _uncached(held: dict[Any, Any], kind: type) -> dict[Any, Any]:
    """The attributes of an object without cached properties, which come with use."""
    cached = (functools.cached_property,)
    return {
        name: value
        for name, value in held.items()
        if not isinstance(getattr(kind, str(name), None), cached)
    }


def _read(
    value: Any, names: list[str], seen: dict[int, tuple[int, Any]], met: set[int]
) -> Iterator[str]:
    """What has one of these names in a user's module or function, or in one inside it; `met` are those it has read."""
    module = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None)
    )
    has_names = isinstance(value, types.ModuleType | types.FunctionType) or hasattr(
        value, "__wrapped__"
    )
    if has_names and id(value) not in met and str(module).partition(".")[0] not in KNOWN:
        met.add(id(value))
        for name in names:
            inner = getattr(value, name, None)
            if inner is not None:
                yield name
                yield from _inside(inner, seen)
                yield from _read(inner, names, seen, met)


def _imported(name: str, around: dict[str, Any]) -> Any:
    """The module that a function imports by this name itself; None if it is none, or a library."""
    found = sys.modules.get(name) or sys.modules.get(f"{around.get('__package__')}.{name}")
    return None if found is None or found.__name__.partition(".")[0] in KNOWN else found


def _held(thing: Any) -> dict[str, Any]:
    """The attributes of an object, in its dictionary and in slots."""
    slots = [
        name for kind in type(thing).__mro__ for name in _names(getattr(kind, "__slots__", ()))
    ]
    own = {
        name: getattr(thing, name)
        for name in slots
        if not name.startswith("__") and hasattr(thing, name)
    }
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
