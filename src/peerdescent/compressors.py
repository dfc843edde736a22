"""Compressors: operators C that make a vector cheap to send, for methods that feed the error back.

Each is a dataclass derived from `Compressor`. `apply` computes C(x) for the vectors of some nodes,
in NumPy or JAX; `encode` and `decode` turn one node's vector into the bytes that are sent, and
those into C(x); `size` says how many bytes these are. A compressor of a user's own is another such
class.
"""

from __future__ import annotations

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np

from peerdescent.errors import require, unknown
from peerdescent.threefry import COMPRESSION, Draw, source

Bytes = np.ndarray


@dataclass(frozen=True)
class Compressor(ABC):
    """An operator on vectors. It should be contractive: E||C(x) - x||^2 <= (1 - delta) ||x||^2 with delta > 0."""

    @abstractmethod
    def apply(self, x: Any, draw: Draw) -> Any:
        """C(x) of each of the vectors x (k, ..., p); `draw` is a source of random words for k nodes, and has `xp`."""

    @abstractmethod
    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """The bytes (size,) that are sent for C(x), from x (p,); `draw` is the source of one node, the sender."""

    @abstractmethod
    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """C(x) (p,) from these bytes."""

    @abstractmethod
    def size(self, entries: int, item: int) -> int:
        """The bytes of a message of so many entries, which were of `item` bytes each."""

    def __str__(self) -> str:
        """As the command line has it, such as `top-k(0.1)`."""
        values = ",".join(repr(getattr(self, each.name)) for each in dataclasses.fields(self))
        return f"{type(self).__name__.replace('_', '-')}({values})"


def check_messages(operator: Compressor, entries: int) -> None:
    """Refuse a compressor whose messages are not what it applies, or not of the size that it says."""
    x = np.random.default_rng(0).normal(size=min(entries, 1000))
    draw = source(np, 0, 0, COMPRESSION, 0).of(np.array([0]))
    message, applied = operator.encode(x, draw), np.asarray(operator.apply(x[None], draw))[0]
    said, sent = operator.size(x.size, x.itemsize), np.asarray(message).nbytes
    require(
        said == sent,
        f"{operator} says that {x.size} numbers take {said} bytes, and sends {sent}: correct its size",
    )
    arrived = operator.decode(message, x.size, x.dtype, draw)
    require(
        np.array_equal(arrived, applied),
        f"{operator} applied to a vector differs from what its message decodes to: make apply, encode and decode agree",
    )


@dataclass(frozen=True)
class identity(Compressor):
    """The vector itself: no compression."""

    def apply(self, x: Any, draw: Draw) -> Any:
        """x."""
        return x

    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """Its bytes."""
        return _bytes(x)

    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """The numbers of these bytes."""
        return _numbers(message, dtype)

    def size(self, entries: int, item: int) -> int:
        """p s: all entries."""
        return entries * item


@dataclass(frozen=True)
class _Some(Compressor):
    """Some of the entries, the others are zeros."""

    fraction: float

    def __post_init__(self) -> None:
        value, name = self.fraction, type(self).__name__
        number = isinstance(value, Real) and not isinstance(value, bool)
        require(number and 0 < value <= 1, f"fraction of {name} = {value!r}: must lie in (0, 1]")
        object.__setattr__(self, "fraction", float(value))

    @abstractmethod
    def places(self, x: Any, draw: Draw) -> Any:
        """Which entries of x (k, ..., p) are kept, (k, ..., kept)."""

    def kept(self, entries: int) -> int:
        """How many entries are kept: at least one."""
        return max(1, math.ceil(self.fraction * entries - 1e-9))


@dataclass(frozen=True)
class top_k(_Some):
    """The ceil(fraction p) entries of largest magnitude, the lower index first among equals."""

    def places(self, x: Any, draw: Draw) -> Any:
        """Those of the largest entries."""
        return _largest(draw.xp, _magnitude(draw.xp, x), self.kept(x.shape[-1]))

    def apply(self, x: Any, draw: Draw) -> Any:
        """The entries at these places."""
        xp, count = draw.xp, self.kept(x.shape[-1])
        size = _magnitude(xp, x)
        least = xp.take_along_axis(size, _largest(xp, size, count)[..., -1:], axis=-1)
        return xp.where(_reaching(xp, size, least, count), x, 0)

    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """The entries, then their places."""
        places = self.places(x[None], draw)[0]
        return np.concatenate([_bytes(x[places]), _bytes(places.astype(np.uint32))])

    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """The entries at their places."""
        kept = self.kept(entries)
        x, places = np.zeros(entries, dtype), _numbers(message[-4 * kept :], np.uint32)
        x[places] = _numbers(message[: -4 * kept], dtype)
        return x

    def size(self, entries: int, item: int) -> int:
        """k (s + 4): the entries, and their places of four bytes."""
        return self.kept(entries) * (item + 4)


@dataclass(frozen=True)
class random_k(_Some):
    """As many entries, chosen at random, anew by each node in each iteration; the receiver draws the same."""

    def places(self, x: Any, draw: Draw) -> Any:
        """Those of the largest of random words."""
        words = draw.words(x.shape[-1])
        places = _largest(draw.xp, words, self.kept(x.shape[-1]))
        return places.reshape(places.shape[0], *[1] * (x.ndim - 2), places.shape[1])

    def apply(self, x: Any, draw: Draw) -> Any:
        """The entries at these places, which are found without sorting, since JAX sorts words slowly."""
        xp, count, words = draw.xp, self.kept(x.shape[-1]), draw.words(x.shape[-1])
        least = xp.zeros_like(
            words[..., :1]
        )  # bit by bit, the largest word that `count` of them reach
        for bit in reversed(range(32)):
            more = least | np.uint32(1 << bit)
            least = xp.where((words >= more).sum(axis=-1, keepdims=True) >= count, more, least)
        chosen = _reaching(xp, words, least, count)
        return xp.where(chosen.reshape(len(x), *[1] * (x.ndim - 2), x.shape[-1]), x, 0)

    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """The entries, in the order of their drawing."""
        return _bytes(x[self.places(x[None], draw)[0]])

    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """The entries at the same places."""
        x = np.zeros(entries, dtype)
        x[self.places(x[None], draw)[0]] = _numbers(message, dtype)
        return x

    def size(self, entries: int, item: int) -> int:
        """k s: the entries."""
        return self.kept(entries) * item


@dataclass(frozen=True)
class sign(Compressor):
    """mean(|x|) sign(x), a bit an entry; so the sign of 0 is that of positive numbers."""

    def apply(self, x: Any, draw: Draw) -> Any:
        """Positive or negative, of the mean magnitude."""
        mean = draw.xp.abs(x).mean(axis=-1, keepdims=True)
        return draw.xp.where(x >= 0, mean, -mean)

    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """The mean magnitude, then the signs."""
        return np.concatenate(
            [_bytes(np.abs(x).mean(keepdims=True).astype(x.dtype)), np.packbits(x >= 0)]
        )

    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """The mean magnitude with these signs."""
        item = np.dtype(dtype).itemsize
        mean = _numbers(message[:item], dtype)[0]
        return np.where(np.unpackbits(message[item:], count=entries), mean, -mean)

    def size(self, entries: int, item: int) -> int:
        """p/8 + s, rounded up: a bit an entry, and the mean."""
        return -(-entries // 8) + item


@dataclass(frozen=True)
class quantize(Compressor):
    """Each entry rounded at random, without bias, to 2^(bits - 1) levels from 0 to ||x||, with a sign, then shrunk.

    The result is divided by 1 + min(p / s^2, sqrt(p) / s), with s = 2^(bits - 1) - 1, which makes
    it contractive.
    """

    bits: int

    def __post_init__(self) -> None:
        good = (
            isinstance(self.bits, Integral)
            and not isinstance(self.bits, bool)
            and 2 <= self.bits <= 24
        )
        require(good, f"bits of quantize = {self.bits!r}: must be a whole number of 2 to 24")
        object.__setattr__(self, "bits", int(self.bits))

    def shrink(self, entries: int) -> float:
        """What the rounded vector is divided by."""
        levels = 2.0 ** (self.bits - 1) - 1
        return 1 + min(entries / levels**2, math.sqrt(entries) / levels)

    def apply(self, x: Any, draw: Draw) -> Any:
        """Rounded, and shrunk."""
        return rounded(x, self.bits, draw) / self.shrink(x.shape[-1])

    def encode(self, x: np.ndarray, draw: Draw) -> Bytes:
        """The norm, then the sign and the level of each entry, in its bits."""
        norm, level = _levels(x[None], self.bits, draw)
        word = level[0].astype(np.uint32) | (
            np.signbit(x).astype(np.uint32) << np.uint32(self.bits - 1)
        )
        bits = (word[:, None] >> np.arange(self.bits, dtype=np.uint32)) & np.uint32(1)
        return np.concatenate([_bytes(norm[0].astype(x.dtype)), np.packbits(bits.astype(bool))])

    def decode(self, message: Bytes, entries: int, dtype: Any, draw: Draw) -> np.ndarray:
        """The levels of the norm."""
        item, levels = np.dtype(dtype).itemsize, 2.0 ** (self.bits - 1) - 1
        norm = _numbers(message[:item], dtype)
        bits = np.unpackbits(message[item:], count=entries * self.bits).reshape(entries, self.bits)
        level = (bits[:, :-1].astype(np.uint32) << np.arange(self.bits - 1, dtype=np.uint32)).sum(
            axis=1
        )
        signed = np.where(bits[:, -1], -1, 1).astype(dtype) * level.astype(dtype)
        return (
            signed * (norm / _typed(levels, dtype)) / _typed(self.shrink(entries), dtype)
        ).astype(dtype)

    def size(self, entries: int, item: int) -> int:
        """p bits/8 + s, rounded up: the bits of all entries, and the norm."""
        return -(-entries * self.bits // 8) + item


def _typed(value: float, dtype: Any) -> Any:
    """A number of a given type."""
    return np.dtype(dtype).type(value)


def rounded(x: Any, bits: int, draw: Draw) -> Any:
    """The entries of x (k, ..., p) rounded at random, without bias, to levels of the norm of each vector."""
    norm, level = _levels(x, bits, draw)
    return draw.xp.sign(x) * level * (norm / (2.0 ** (bits - 1) - 1))


def _levels(x: Any, bits: int, draw: Draw) -> tuple[Any, Any]:
    """The norm of each vector (k, ..., 1), and the level of each entry: a whole number up to 2^(bits - 1) - 1."""
    xp, levels = draw.xp, 2.0 ** (bits - 1) - 1
    largest = xp.abs(x).max(axis=-1, keepdims=True)
    unit = xp.where(largest > 0, largest, 1)
    norm = unit * xp.sqrt(
        ((x / unit) ** 2).sum(axis=-1, keepdims=True)
    )  # squares of x might overflow
    scaled = xp.abs(x) * (levels / xp.where(norm > 0, norm, 1))
    return norm, xp.minimum(
        xp.floor(scaled + draw.uniform_like(x)), levels
    )  # a chance may be rounded up to 1


def _largest(xp: Any, size: Any, count: int) -> Any:
    """The places of the largest entries along the last axis, the lower first among equals."""
    if xp is np:
        return np.argsort(~size if size.dtype.kind == "u" else -size, axis=-1, stable=True)[
            ..., :count
        ]
    return import_module("jax").lax.top_k(size, count)[1]  # loaded already, if arrays are its own


def _magnitude(xp: Any, x: Any) -> Any:
    return xp.where(xp.isnan(x), math.inf, xp.abs(x))  # what is not finite is not hidden


def _reaching(xp: Any, size: Any, least: Any, count: int) -> Any:
    """Which `count` entries are the largest, the lower place first among those equal to the `least` of them.

    A mask, and no values put into places: XLA for GPUs joins two such puts of one step into one
    kernel, which wrote wrong values (JAX 0.11.2 on an H200).
    """
    equal, left = size == least, count - (size > least).sum(axis=-1, keepdims=True)
    return (size > least) | (equal & (xp.cumsum(equal, axis=-1) <= left))


def _bytes(a: np.ndarray) -> Bytes:
    return np.array(a).view(np.uint8)


def _numbers(message: Bytes, dtype: Any) -> np.ndarray:
    return np.array(message).view(dtype)


COMPRESSORS: dict[str, type[Compressor]] = {
    kind.__name__.replace("_", "-"): kind for kind in (top_k, random_k, sign, quantize, identity)
}
"""The compressors by the names that the command line has."""


def parse(text: str) -> Compressor:
    """A compressor from its text.

    >>> parse("top-k(0.1)"), parse("sign"), str(parse("quantize(4)"))
    (top_k(fraction=0.1), sign(), 'quantize(4)')
    """
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*", text)
    require(
        match is not None,
        f"compressor {text!r}: must be of the form name(number), as in top-k(0.1)",
    )
    assert match is not None
    name = match[1].replace("_", "-")
    if name not in COMPRESSORS:
        raise unknown("compressor", match[1], COMPRESSORS)
    kind: Any = COMPRESSORS[name]
    needed = [each.name for each in dataclasses.fields(kind)]
    given = [part.strip() for part in (match[2] or "").split(",") if part.strip()]
    form = f"{name}({', '.join(needed)})" if needed else name
    require(len(given) == len(needed), f"compressor {text!r}: must be {form}")
    try:
        values = [
            float(part) if "." in part or "e" in part.lower() else int(part) for part in given
        ]
    except ValueError:
        raise ValueError(
            f"compressor {text!r}: {given[0]!r} is not a number; give {form}"
        ) from None
    found: Compressor = kind(*values)
    return found
