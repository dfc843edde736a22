"""Fingerprints of functions: what they do counts, wherever it stands."""

from __future__ import annotations

import argparse
import types
from collections import deque
from fractions import Fraction
from functools import cached_property

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.sparse import csr_array

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
        @cached_property
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


SETTINGS = types.ModuleType("settings_of_a_user")


@pytest.mark.parametrize(
    "made",
    [
        lambda l2: argparse.Namespace(l2=l2),
        lambda l2: types.SimpleNamespace(l2=l2),
        Slotted,
        lambda l2: Fraction(l2),
        lambda l2: range(l2),
        lambda l2: deque([l2]),
    ],
    ids=["Namespace", "SimpleNamespace", "slots", "Fraction", "range", "deque"],
)
def test_objects_with_contents_count(made):
    def read(settings):
        return lambda x: settings

    assert fingerprint(read(made(2))) == fingerprint(read(made(2))) != fingerprint(read(made(3)))


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
    assert fingerprint(one) == fingerprint(optax.exponential_decay(0.1, 10, 0.9)) != fingerprint(other)
