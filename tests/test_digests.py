"""Fingerprints of functions: what they do counts, wherever it stands."""

from __future__ import annotations

from functools import cached_property

import jax.numpy as jnp
import numpy as np
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
