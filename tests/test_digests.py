"""Fingerprints of functions: what they do counts, wherever it stands."""

from __future__ import annotations

import argparse
import configparser
import functools
import itertools
import logging
import os
import random
import re
import tempfile
import threading
import types
import typing
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from operator import itemgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.interpolate import CubicSpline
from scipy.sparse import csr_array

import peerdescent as peer
from children import python
from peerdescent.digests import fingerprint


def calls(factor):
    class Scaled:
        def __call__(self, x):
            return factor * x

    return Scaled()


def asks(factor):
    class Scaled:
        @property
        def factor(self):
            return factor

    return Scaled


def keeps(factor):
    class Scaled:
        @functools.cached_property
        def factor(self):
            return [factor]

    return Scaled


def holds(factor):
    matrix = csr_array(factor * np.eye(3))
    return lambda x: matrix @ x


def repeats(factor):
    steps = [jnp.sin, jnp.cos, jnp.sin if factor == 2 else jnp.cos]
    return lambda x: [step(x) for step in steps]


@pytest.mark.parametrize("make", [calls, asks, keeps, holds, repeats])
def test_what_a_function_does_counts(make):
    assert fingerprint(make(2)) == fingerprint(make(2)) != fingerprint(make(3))


class Slotted:
    __slots__ = ("l2",)

    def __init__(self, l2):
        self.l2 = l2


class Window(deque):
    """A container of a user's."""


class Options(dict):
    """Another one, with attributes."""

    def __init__(self, l2):
        self.l2 = l2


SETTINGS, INNER = (
    types.ModuleType("settings_of_a_user"),
    types.ModuleType("settings_of_a_user.inner"),
)
SETTINGS.inner = INNER


def large(l2):
    """An array whose text NumPy shortens, with a number in the middle."""
    values = np.zeros(5000)
    values[2500] = l2
    return values


def objects(*values):
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def parsed(l2):
    found = configparser.ConfigParser()
    found.read_string(f"[loss]\nl2 = {l2}")
    return found


def local(l2):
    found = threading.local()
    found.l2 = l2
    return found


def penalised(l2):
    @jax.custom_vjp
    def value(x):
        return x

    value.defvjp(lambda x: (x, None), lambda _, g: (l2 * g,))
    return value


def jitted(l2):
    class Loss:
        @functools.partial(jax.jit, static_argnums=0)
        def __call__(self, x):
            return l2 * x

    return Loss()


class Field:
    """A user's array, with more in it."""

    def __init__(self, l2):
        self.l2 = l2

    def __array__(self, dtype=None, copy=None):
        return np.zeros(2, dtype)


CONTENTS = {
    "Namespace": lambda l2: argparse.Namespace(l2=l2),
    "SimpleNamespace": lambda l2: types.SimpleNamespace(l2=l2, lock=threading.Lock()),
    "slots": Slotted,
    "Fraction": Fraction,
    "range": range,
    "deque": lambda l2: deque([l2]),
    "deque of arrays": lambda l2: deque([large(l2)]),
    "longest deque": lambda l2: deque([0], maxlen=l2),
    "a deque of a user": lambda l2: Window([large(l2)]),
    "a dictionary of a user": Options,
    "object array": lambda l2: objects(large(l2), None),
    "masked array": lambda l2: np.ma.masked_equal(np.arange(5), l2),
    "strings": lambda l2: np.array(["", "*" * l2], dtype=np.dtypes.StringDType()),
    "dates": lambda l2: np.array([f"202{l2}"], dtype="M8[Y]"),
    "keys": lambda l2: jax.random.wrap_key_data(large(l2).astype(np.uint32).reshape(-1, 2)),
    "columns": lambda l2: pd.DataFrame({f"x{l2}": [1.0]}),
    "array.array": lambda l2: array("d", large(l2)),
    "memoryview": lambda l2: memoryview(large(l2)),
    "proxy": lambda l2: types.MappingProxyType({"l2": large(l2)}),
    "ConfigParser": parsed,
    "local": local,
    "itemgetter": itemgetter,
    "pattern": lambda l2: re.compile(f"a{{{l2}}}"),
    "method": lambda l2: {"l2": l2}.get,
    "spline": lambda l2: CubicSpline(np.arange(4), np.arange(4) ** l2),
    "ufunc": lambda l2: jnp.add if l2 == 2 else jnp.multiply,
    "custom gradient": penalised,
    "compiled call": jitted,
    "an array of a user": Field,
    "structure": lambda l2: jax.tree.structure([0, {f"x{l2}": 1}]),
    "network": lambda l2: peer.Network(peer.topology.ring(l2 + 3)),
}


def read(settings):
    return lambda x: settings


@pytest.mark.parametrize("name", CONTENTS)
def test_objects_with_contents_count(name):
    made = CONTENTS[name]
    assert fingerprint(read(made(2))) == fingerprint(read(made(2))) != fingerprint(read(made(3)))


def test_contents_that_change_count():
    """The same object with other contents, some of which a shortened text would not show."""
    window, held, settings = deque([large(2)]), objects(large(2)), parsed(2)
    before = [fingerprint(read(one)) for one in (window, held, settings)]
    window[0][2500] = held[0][2500] = 3
    settings["loss"]["l2"] = "3"
    assert not set(before) & {fingerprint(read(one)) for one in (window, held, settings)}


def test_what_is_only_used_does_not_count():
    """Objects that are no data go by their types: what they do must not compile programs anew or refuse to resume."""
    lock, event, numbers, path = (
        threading.Lock(),
        threading.Event(),
        random.Random(0),
        Path("a") / "b",
    )
    logger, count, network = (
        logging.getLogger("of a user"),
        itertools.count(),
        peer.Network(peer.topology.ring(4)),
    )
    rng, empty = np.random.default_rng(0), threading.local()
    with (
        ThreadPoolExecutor(1) as pool,
        Path(__file__).open() as file,
        pytest.MonkeyPatch.context() as patch,
    ):
        used = [
            lock,
            event,
            numbers,
            path,
            logger,
            count,
            network,
            rng,
            empty,
            pool,
            file,
            os.environ,
            typing.Any,
        ]
        before = [fingerprint(read(one)) for one in used]
        lock.acquire()
        event.set()
        pool.submit(numbers.random).result()
        logger.setLevel("DEBUG")
        logger.debug("used")
        patch.setenv("L2", "3")
        assert [
            next(count),
            file.readline() != "",
            network.lam < 1,
            rng.random() < 1,
            hash(path) != 0,
        ]
        assert [fingerprint(read(one)) for one in used] == before
    folders = [tempfile.TemporaryDirectory() for _ in range(2)]
    assert len({fingerprint(read(one)) for one in folders}) == 1
    for folder in folders:
        folder.cleanup()


def test_objects_of_python_are_the_same_in_another_process():
    code = (
        "import array, configparser, logging, pathlib, re, threading, types, typing\n"
        "from collections import OrderedDict, deque\n"
        "from peerdescent.digests import fingerprint\n"
        "path = pathlib.Path('a'); hash(path)\n"
        "held = [path, array.array('d', [1]), configparser.ConfigParser(), logging.getLogger('a'), logging.Logger('b'),"
        " logging.StreamHandler(), re.compile('a'), threading.Lock(), threading.local(), threading.current_thread(),"
        " threading.Event(), typing.TypeVar('T'), typing.Callable[[int], str], int | None, deque([{'a', 'b', 'c'}]),"
        " types.MappingProxyType(OrderedDict(a=1)), object(), open('/dev/null')]\n"
        "print(*(fingerprint(lambda: one) for one in held))\n"
    )
    assert python("-c", code).stdout == python("-c", code).stdout != ""


def store():
    return store


store.l2 = store.unread = 1.0
store.itself, store.inner = store, types.SimpleNamespace(l2=1.0)


def by_name(x):
    return store.itself.l2 * x + store.inner.l2


def by_closure():
    def inner_store():
        return 1

    inner_store.l2 = store.l2
    return lambda x: inner_store.l2 * x


def by_default(x, held=store):
    return held.l2 * x


@pytest.mark.parametrize("function", [lambda: by_name, by_closure, lambda: by_default])
def test_what_is_read_of_a_users_function_counts(function, monkeypatch):
    first = fingerprint(function())
    monkeypatch.setattr(store, "unread", 2.0)
    assert fingerprint(function()) == first, "it is not read"
    monkeypatch.setattr(store, "l2", 2.0)
    assert fingerprint(function()) != first


def test_two_functions_may_read_different_things_of_one_module(monkeypatch):
    def one(x):
        return SETTINGS.inner.l2 * x

    def two(x):
        return one(x) + SETTINGS.inner.l1

    monkeypatch.setattr(INNER, "l1", 1.0, raising=False)
    monkeypatch.setattr(INNER, "l2", 1.0, raising=False)
    found = [fingerprint(two)]
    for name in ("l1", "l2"):
        monkeypatch.setattr(INNER, name, 2.0)
        found.append(fingerprint(two))
    assert len(set(found)) == 3


def test_a_module_around_a_function_counts(monkeypatch):
    settings = SETTINGS
    monkeypatch.setattr(SETTINGS, "l2", 1.0, raising=False)
    first = fingerprint(lambda x: settings.l2 * x)
    monkeypatch.setattr(SETTINGS, "l2", 2.0)
    assert fingerprint(lambda x: settings.l2 * x) != first


def test_what_is_read_of_a_users_module_counts():
    def read(x):
        return SETTINGS.l2 * x

    SETTINGS.l2 = SETTINGS.other = 1.0
    first = fingerprint(read)
    SETTINGS.other = 2.0
    assert fingerprint(read) == first, "it is not read"
    SETTINGS.l2 = 2.0
    assert fingerprint(read) != first


def test_what_a_library_made_of_values_counts():
    one, other = (optax.exponential_decay(0.1, 10, rate) for rate in (0.9, 0.5))
    assert (
        fingerprint(one) == fingerprint(optax.exponential_decay(0.1, 10, 0.9)) != fingerprint(other)
    )
