"""Composite problems: a smooth cost at every node, and one non-smooth term h that all nodes know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.problem import Problem


@dataclass(frozen=True)
class Penalty:
    """h(x) = l1 ||x||_1 + group sum_g sqrt(|g|) ||x_g|| with x in a box. Functions of arrays of NumPy or JAX."""

    l1: float = 0.0
    group: float = 0.0
    groups: tuple[int, ...] = ()
    """For each entry the number of its group, if `group` is not 0."""
    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        """The terms that are there.

        >>> print(Penalty(l1=0.1, low=0.0))
        l1=0.1, box=[0, inf]
        """
        box = (
            f"box=[{self.low:g}, {self.high:g}]"
            if self.low > -math.inf or self.high < math.inf
            else ""
        )
        group = (
            f"group={self.group:g} of {1 + max(self.groups, default=0)} groups"
            if self.group
            else ""
        )
        return ", ".join(filter(None, [f"l1={self.l1:g}" if self.l1 else "", group, box]))

    def value(self, x: Any) -> Any:
        """h of each of the vectors x (..., p), for x in the box."""
        return self.l1 * abs(x).sum(axis=-1) + (
            self._norms(x) @ self._weights if self.group else 0.0
        )

    def prox(self, x: Any, step: Any) -> Any:
        """The minimiser z of h(z) + ||z - x||^2 / (2 step) for each of the vectors x (..., p)."""
        if self.l1:
            x = x - x.clip(-step * self.l1, step * self.l1)
        if self.group:
            norms = self._norms(x)
            limits = step * self._weights.astype(x.dtype)
            shrink = (1 - (limits / (norms + (norms == 0))).clip(max=1)) * (
                norms > 0
            )  # of tiny entries it may be 0
            x = x * shrink[..., np.array(self.groups)]
        if self.low > -math.inf or self.high < math.inf:
            x = x.clip(self.low, self.high)
        return x

    def _norms(self, x: Any) -> Any:
        """The norms of all groups (..., groups)."""
        groups, squares = np.array(self.groups), x * x
        if isinstance(x, np.ndarray):
            order = np.argsort(groups, stable=True)
            starts = np.searchsorted(groups[order], np.arange(1 + groups.max()))
            return np.add.reduceat(squares[..., order], starts, axis=-1) ** 0.5
        return (
            jnp.zeros((*x.shape[:-1], 1 + groups.max()), x.dtype).at[..., groups].add(squares)
            ** 0.5
        )

    @property
    def _weights(self) -> np.ndarray:
        """The strength of each group: larger groups have larger norms by chance alone."""
        return self.group * np.sqrt(np.bincount(np.array(self.groups)))


def composite(
    problem: Problem,
    *,
    l1: float = 0.0,
    group: tuple[float, Sequence[int]] | None = None,
    box: tuple[float, float] | None = None,
) -> Problem:
    """The problem of minimising F(x) + h(x), with h(x) = l1 ||x||_1 + group norms, and x in a box.

    Methods reach h through `net.prox` alone, so use one that takes proximal steps, such as `proxgt`
    or `deepstorm`. The loss of a run includes h, and its gradient norm and stationarity are those
    of the proximal gradient mapping, (x - prox(x - grad F(x))) with step 1.

    Args:
        problem: The smooth part F. Its intercept, if it has one, is an entry of x as all others.
        l1: The strength of the sum of magnitudes.
        group: The strength of the group norms, and for each entry of x the number of its group,
            from 0 on.
        box: The smallest and the largest value of every entry.

    Returns:
        The problem.

    >>> import peerdescent as peer
    >>> smooth = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> problem = composite(smooth, l1=0.1)
    >>> problem.penalty.prox(np.array([0.3, -0.05]), 1.0).round(3).tolist()
    [0.2, 0.0]
    """
    require(
        problem.penalty is None,
        f"{problem.name} has a non-smooth term already: give the smooth problem",
    )
    _check_strength("l1", l1)
    for name, pair, form in (("group", group, "(strength, numbers)"), ("box", box, "(low, high)")):
        require(
            pair is None or (isinstance(pair, tuple | list) and len(pair) == 2),
            f"{name} = {pair}: give {form}",
        )
    strength, groups = (0.0, ()) if group is None else group
    _check_strength("the strength of group", strength)
    numbers = np.asarray(groups)
    if group is not None:
        whole = numbers.shape == (problem.dimension,) and numbers.dtype.kind in "iu"
        require(
            whole and numbers.min() == 0 and len(set(numbers.tolist())) == numbers.max() + 1,
            f"group: give (strength, numbers), with the number of the group of each of {problem.dimension} entries, "
            "whole numbers from 0 on without gaps",
        )
        require(
            box is None,
            "group with box: their proximal operator is not in closed form; give one of them",
        )
    low, high = (-math.inf, math.inf) if box is None else box
    require(
        low < high and low < math.inf and high > -math.inf,
        f"box = {box}: must be (low, high) with low below high",
    )
    require(
        bool(l1 or strength or box),
        "a composite problem without a non-smooth term: give l1, group or box",
    )
    penalty = Penalty(float(l1), float(strength), tuple(numbers.tolist()), float(low), float(high))
    about = {**problem.about, "penalty": repr(penalty)} if problem.about else {}
    start = np.zeros(problem.dimension) if problem.start is None else problem.start
    inside = start.clip(penalty.low, penalty.high)  # the default start is a point where h is finite
    moved = not np.array_equal(inside, start)
    return replace(problem, penalty=penalty, about=about, start=inside if moved else problem.start)


def _check_strength(name: str, value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    require(number and value >= 0, f"{name} = {value!r}: must be a finite number of at least 0")
