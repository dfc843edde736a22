"""Random words as a function of a counter, for NumPy and JAX arrays alike, and what is drawn with them."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def words(first: Any, second: Any, count: Any) -> Any:
    """The random 32-bit words number `count` of the key (first, second), equal to those of `jax.random.bits`.

    Threefry-2x32 with 20 rounds (Salmon et al. 2011). It is written out because JAX's own does not
    compile inside a GPU kernel, and NumPy has none. All are unsigned; NumPy arrays need at least
    one axis, or it warns of overflows.
    """
    keys = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
    left, right = 0 * count + keys[0], count + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation)))
        left, right = (
            left + keys[(group + 1) % 3],
            right + keys[(group + 2) % 3] + np.uint32(group + 1),
        )
    return left ^ right


@cache
def _words(xp: Any) -> Any:
    """`words` for arrays of NumPy or jax.numpy; JAX traces it once, and not wherever something is drawn."""
    return words if xp is np else import_module("jax").jit(words, inline=True)


SALT = 0x70656572
"""Sets these draws apart from those of samples."""


class Draw(NamedTuple):
    """A source of random words for one purpose in one iteration: the key of a counter. `xp` is NumPy or jax.numpy."""

    xp: Any
    first: Any
    second: Any

    def words(self, count: int) -> Any:
        """Random 32-bit words number 0, ..., count - 1, along the last axis."""
        return _words(self.xp)(self.first, self.second, self.xp.arange(count, dtype="uint32"))

    def chance(self, probability: float, count: int) -> Any:
        """Whether each of `count` events happens."""
        return self.words(count) < _share(probability, self.xp)

    def of(self, places: Any) -> Draw:
        """A source for each of some nodes (k,): its words have the shape (k, count)."""
        own = _words(self.xp)(self.first, self.second, self.xp.asarray(places).astype("uint32"))
        return self._replace(first=own[:, None])

    def uniform(self, count: int, dtype: Any) -> Any:
        """Numbers in (0, 1)."""
        return (self.words(count).astype(dtype) + 0.5) / 2.0**32

    def normal(self, count: int, dtype: Any) -> Any:
        """Standard Gaussian numbers, by Box and Muller: two from two words."""
        xp, half = self.xp, (count + 1) // 2
        words = self.uniform(2 * half, dtype)
        radius, angle = xp.sqrt(-2 * xp.log(words[..., :half])), 2 * math.pi * words[..., half:]
        return xp.concatenate([radius * xp.cos(angle), radius * xp.sin(angle)], axis=-1)[
            ..., :count
        ]

    def uniform_like(self, x: Any) -> Any:
        """Numbers in (0, 1) for the entries of x (k, ..., p), from a source of k nodes; axes between share."""
        drawn = self.uniform(x.shape[-1], x.dtype)
        return drawn.reshape(drawn.shape[0], *[1] * (x.ndim - 2), drawn.shape[1])


def _share(probability: float, xp: Any) -> Any:
    """The words below this are that share of all words."""
    return xp.asarray(min(round(probability * 2.0**32), 2**32 - 1), dtype="uint32")


def source(xp: Any, seed: Any, t: Any, purpose: int, number: int) -> Draw:
    """The source of a purpose, such as one of the faults, in round `number` of iteration t."""
    seed, t = (xp.asarray(value).astype("uint32").reshape(1) for value in (seed, t))
    key = seed, xp.asarray([SALT + purpose], dtype="uint32"), xp.asarray([number], dtype="uint32")
    return Draw(xp, _words(xp)(*key), t)


COMPRESSION, COIN = 1 << 18, 1 << 19
"""The purposes of draws of compressors and coins; those of faults are the places of the faults in their list."""


def coin(xp: Any, seed: Any, t: Any, number: int, probability: Any) -> Any:
    """Whether coin `number` of iterations t (any shape) shows `then`, which it does with this probability.

    It is compared in single precision on all engines, with 24 bits, so that all see the same.
    """
    key = source(xp, seed, 0, COIN, number).first
    counter = xp.asarray(t).astype("uint32")
    bits = _words(xp)(key, counter.reshape(-1), xp.zeros(1, dtype="uint32")).reshape(
        counter.shape
    ) >> np.uint32(8)
    return bits.astype("float32") * np.float32(2.0**-24) < xp.asarray(probability, dtype="float32")
