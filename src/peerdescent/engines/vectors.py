"""Vectors of one process: flat PyTorch tensors whose memory is used again.

A method computes with new vectors all the time. New memory costs more than the arithmetic: the
system clears and maps each page at its first use. So the memory of a vector that nobody has any
more goes back to a pool, from which the next vector takes it. Sums of multiples are computed when
they are needed, without a vector for each multiple, and in the memory of a term that nobody else
has. The value of a vector never changes, so methods need not know any of this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor


class Pool:
    """Memory for vectors of one size, type and device."""

    def __init__(self, like: Tensor) -> None:
        self.size, self.dtype, self.device = like.numel(), like.dtype, like.device
        self.free: list[Tensor] = []

    def take(self) -> Tensor:
        """A tensor (p,) with any values, which belongs to the caller."""
        return (
            self.free.pop()
            if self.free
            else torch.empty(self.size, dtype=self.dtype, device=self.device)
        )

    def own(self, tensor: Tensor) -> Vector:
        """The tensor as a vector. Nobody else may have it: its memory goes to the pool."""
        return Vector(self, tensor)

    def copy(self, tensor: Tensor) -> Vector:
        """A vector with the values that the tensor has now."""
        return Vector(self, self.take().copy_(tensor))

    def lent(self, tensor: Tensor) -> Vector:
        """The tensor as a vector, whose memory is somebody else's, who must not change it."""
        return Vector(self, tensor, lent=True)

    def later(self, fill: Callable[[], Tensor]) -> Vector:
        """A vector that `fill` computes at its first use, in memory that nobody else has."""
        return Vector(self, fill=fill)


class Vector:
    """A vector with the arithmetic that methods use."""

    __slots__ = ("__weakref__", "_fill", "_held", "_lent", "_spent", "_terms", "pool")
    __array_ufunc__ = None  # NumPy's numbers leave the arithmetic to this class
    ndim = 1

    def __init__(
        self,
        pool: Pool,
        held: Tensor | None = None,
        terms: Sequence[tuple[float, Vector]] = (),
        fill: Callable[[], Tensor] | None = None,
        lent: bool = False,
    ) -> None:
        self.pool, self._held, self._terms, self._fill, self._lent = pool, held, terms, fill, lent
        self._spent = False

    def __del__(self) -> None:
        if self._held is not None and not self._lent:
            self.pool.free.append(self._held)

    @property
    def tensor(self) -> Tensor:
        """The values, not to be changed."""
        if self._held is None:
            held = self._combined() if self._fill is None else self._fill()
            self._held, self._fill = held, None
        return self._held

    def _combined(self) -> Tensor:
        """The sum of the terms."""
        known = sorted(
            (term for term in self._terms if term[0] != 0),
            key=lambda term: term[0] != 1,  # a factor 1 costs nothing, so it comes first
        )
        terms = [(factor, each.tensor) for factor, each in known]
        vectors, self._terms = [each for _, each in known], ()
        del known  # so that a vector that nobody else has is in one place only
        out = spent(vectors, 0) if terms else None
        if out is None and len(terms) > 1 and terms[0][0] == 1:
            out = spent(vectors, 1)
        return combine(self.pool.take() if out is None else out, terms)

    def move(self, tensor: Tensor) -> None:
        """Keep the values in other memory, where they are already."""
        self.tensor  # noqa: B018 - it must be known
        if not self._lent and self._held is not None:
            self.pool.free.append(self._held)
        self._held, self._lent = tensor, False

    def is_at(self, tensor: Tensor) -> bool:
        """Whether these are its values' memory."""
        return self._held is tensor

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum that still has to be computed."""
        return self._held is None and bool(self._terms)

    def _as_terms(self, factor: float) -> list[tuple[float, Vector]]:
        """Terms of `factor` times this vector; a sum enters another one once, and then it is computed."""
        if self._held is None and self._terms and not self._spent:
            self._spent = True
            return [(factor * own, each) for own, each in self._terms]
        self.tensor  # noqa: B018 - what is a term is known
        return [(factor, self)]

    def _sum(self, mine: float, other: Any, theirs: float) -> Vector:
        if isinstance(other, Vector):
            return Vector(self.pool, terms=[*self._as_terms(mine), *other._as_terms(theirs)])
        constant = number(other)
        if constant == 0:
            return Vector(self.pool, terms=self._as_terms(mine))
        out = torch.mul(self.tensor, mine, out=self.pool.take())
        return self.pool.own(out.add_(theirs * constant))

    def __add__(self, other: Any) -> Vector:
        return self._sum(1.0, other, 1.0)

    def __sub__(self, other: Any) -> Vector:
        return self._sum(1.0, other, -1.0)

    def __rsub__(self, other: Any) -> Vector:
        return self._sum(-1.0, other, 1.0)

    def __neg__(self) -> Vector:
        return Vector(self.pool, terms=self._as_terms(-1.0))

    def __mul__(self, other: Any) -> Vector:
        if isinstance(other, Vector):
            return self.pool.own(torch.mul(self.tensor, other.tensor, out=self.pool.take()))
        return Vector(self.pool, terms=self._as_terms(number(other)))

    def __truediv__(self, other: Any) -> Vector:
        by = other.tensor if isinstance(other, Vector) else number(other)
        return self.pool.own(torch.div(self.tensor, by, out=self.pool.take()))

    def __rtruediv__(self, other: Any) -> Vector:
        over = torch.tensor(number(other), dtype=self.pool.dtype, device=self.pool.device)
        return self.pool.own(torch.div(over, self.tensor, out=self.pool.take()))

    def __pow__(self, other: Any) -> Vector:
        return self.pool.own(torch.pow(self.tensor, number(other), out=self.pool.take()))

    __radd__, __rmul__ = __add__, __mul__


def alone(number: Tensor) -> Vector:
    """A number of this node as a vector with one entry, to be sent."""
    return Pool(number.reshape(1)).own(number.reshape(1).clone())


def pushed(net: Any, number: int, x: Vector, w: Any) -> tuple[Vector, Tensor]:
    """The round of a push of a vector and the number behind it, as one message; a verb of the engines with vectors."""
    behind = torch.as_tensor(getattr(w, "tensor", w), dtype=x.pool.dtype, device=x.pool.device)
    whole = torch.cat([x.tensor, behind.reshape(1)])
    both = net._round("push", number, Pool(whole).own(whole)).tensor
    return x.pool.copy(both[:-1]), both[-1].clone()


def number(value: Any) -> float:
    """A number that multiplies a vector: a real one, or a tensor with one entry."""
    if isinstance(value, Real) or (hasattr(value, "item") and math.prod(value.shape) == 1):
        return float(value)
    raise TypeError(
        f"a vector is computed with vectors and numbers, not with {type(value).__name__}"
    )


def add(out: Tensor, factor: float, x: Tensor) -> None:
    """out = out + factor x, in place."""
    out.add_(x, alpha=factor)


def _count_alone() -> int:
    """The references that Python counts where there is one, in a local variable as below; it depends on its version."""
    vectors = [object()]
    vector = vectors.pop(0)
    return sys.getrefcount(vector)


ALONE = _count_alone() if getattr(sys, "_is_gil_enabled", lambda: True)() else 0
"""No vector is alone where threads run without a common lock, since references are not counted exactly there."""


def spent(vectors: list[Vector], k: int) -> Tensor | None:
    """The memory of vector k of a list, if nobody else has that vector, which is then no more; else None."""
    vector = vectors.pop(k)
    if vector._lent or vector._held is None or sys.getrefcount(vector) > ALONE:
        vectors.insert(k, vector)
        return None
    memory, vector._held = vector._held, None
    return memory


def combine(out: Tensor, terms: Sequence[tuple[float, Tensor]]) -> Tensor:
    """out = the sum of factors times tensors, in their order.

    `out` may be the first tensor, or the second if the factor of the first is 1.
    """
    if not terms:
        return out.zero_()
    (factor, first), *rest = terms
    if len(rest) == 1 and factor != 1 and factor + rest[0][0] == 1:  # a mean of two, at once
        return torch.lerp(first, rest[0][1], rest[0][0], out=out)
    if factor == 1 and rest:
        (factor, second), *rest = rest
        torch.add(first, second, alpha=factor, out=out)
    elif factor == 1:
        out.copy_(first)
    else:
        torch.mul(first, factor, out=out)
    for factor, term in rest:
        add(out, factor, term)
    return out
