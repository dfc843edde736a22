"""Estimators: how a node computes v_t, an estimate of its local gradient.

Each is a dataclass derived from `Part`. Its fields declare its hyperparameters, `init` is iteration 0 and `step` every
later one. These use arithmetic and the verbs of `net` only. A new estimator is a class here and an entry of
`ESTIMATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from peerdescent.errors import require
from peerdescent.methods.contract import Net, Vector
from peerdescent.methods.parameters import Part, count, number, size

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The paper's minibatch sizes."""


class Previous(NamedTuple):
    """The previous iterate and the estimate made there."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class sgd(Part):
    """The plain minibatch gradient: v_t = g(x_t; batch).

    Robbins and Monro 1951. It has no memory.
    """

    batch: int = size(1, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Any]:
        """v_0 = g(x_0; batch)."""
        return net.grad(x, net.sample(self.batch)), ()

    def step(self, x: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """v_t = g(x_t; batch)."""
        return net.grad(x, net.sample(self.batch)), ()


@dataclass(frozen=True)
class hybrid(Part):
    """The hybrid variance-reduced estimator: v_t = g(x_t, xi) + (1 - beta)(v_{t-1} - g(x_{t-1}, xi)).

    Both gradients use the same sample xi. It is a convex combination of the stochastic gradient (beta = 1) and SARAH
    (beta = 0).
    Tran-Dinh et al. 2019; Cutkosky and Orabona 2019 (STORM); Liu et al. 2020.
    """

    # The paper does not list the values of beta it tried; these are ours.
    beta: float = number(
        0.01,
        low=0,
        high=1,
        note="1 is sgd, 0 never forgets",
        tuned=(1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7),
    )
    batch: int = size(1, tuned=BATCHES)
    initial_batch: int = size(1, first=True, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Previous]:
        """v_0 = g(x_0; initial_batch)."""
        v = net.grad(x, net.sample(self.initial_batch))
        return v, Previous(x, v)

    def step(self, x: Vector, previous: Previous, net: Net) -> tuple[Vector, Previous]:
        """Equation (2) of the paper."""
        xi = net.sample(self.batch)
        v = net.grad(x, xi) + (1 - self.beta) * (previous.v - net.grad(previous.x, xi))
        return v, Previous(x, v)


def _of_an_epoch(length: float, row: Mapping[str, Any], samples: float | None) -> int:
    """In epochs, times m/b: the samples per node over the batch."""
    return _iterations(length, row, samples, "give a period")


def _once_in_epochs(length: float, row: Mapping[str, Any], samples: float | None) -> float:
    """Once in as many epochs, times m/b: the samples per node over the batch."""
    return 1 / _iterations(length, row, samples, "give a probability")


def _iterations(length: float, row: Mapping[str, Any], samples: float | None, remedy: str) -> int:
    require(
        samples is not None,
        f"periods are tuned as parts of an epoch, and the problem has none: {remedy}",
    )
    assert samples is not None
    return max(1, round(length * samples / row["batch"]))


def _restart(x: Vector, large_batch: int | None, net: Net) -> Callable[[], Vector]:
    """What computes the gradient of a large batch, or the exact local one."""
    return lambda: net.full_grad(x) if large_batch is None else net.grad(x, net.sample(large_batch))


def _recursion(x: Vector, previous: Previous, batch: int, net: Net) -> Callable[[], Vector]:
    """What computes v_t = g(x_t, xi) - g(x_{t-1}, xi) + v_{t-1}, with the same sample xi at both points."""

    def corrected() -> Vector:
        xi = net.sample(batch)
        return net.grad(x, xi) - net.grad(previous.x, xi) + previous.v

    return corrected


@dataclass(frozen=True)
class spider(Part):
    """The double-loop estimator: a large batch every `period` iterations, and a recursion in between.

    v_t = g(x_t; large_batch) if t is a multiple of `period`, else v_t = g(x_t, xi) - g(x_{t-1}, xi) + v_{t-1}, with the
    same sample xi at both points. `large_batch=None` takes the exact local gradient (SARAH; finite sums only).
    Nguyen et al. 2017; Fang et al. 2018; Wang et al. 2019.
    """

    period: int = count(
        100,
        tuned=(*(1 / k for k in range(20, 0, -1)), *range(2, 21)),  # the paper's
        scaled=_of_an_epoch,
    )
    batch: int = size(1, tuned=BATCHES)
    large_batch: int | None = size(None, optional=True, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Previous]:
        """v_0 from the large batch."""
        v = _restart(x, self.large_batch, net)()
        return v, Previous(x, v)

    def step(self, x: Vector, previous: Previous, net: Net) -> tuple[Vector, Previous]:
        """A restart when t is a multiple of the period, else the recursion."""
        restart, recursion = (
            _restart(x, self.large_batch, net),
            _recursion(x, previous, self.batch, net),
        )
        v = net.every(self.period, restart, recursion)
        return v, Previous(x, v)


@dataclass(frozen=True)
class momentum(Part):
    """A moving average of minibatch gradients: v_t = v_{t-1} + rho (g(x_t; batch) - v_{t-1}), with v_0 = g(x_0; batch).

    Polyak 1964; in this form Cutkosky and Mehta 2020.
    """

    rho: float = number(
        0.1,
        low=0,
        high=1,
        above=True,
        note="1 is sgd",
        tuned=(0.01, 0.03, 0.1, 0.3, 0.7),
    )
    batch: int = size(1, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Vector]:
        """v_0 = g(x_0; batch)."""
        v = net.grad(x, net.sample(self.batch))
        return v, v

    def step(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """The moving average; the memory is v_t."""
        v = v + self.rho * (net.grad(x, net.sample(self.batch)) - v)
        return v, v


class Snapshot(NamedTuple):
    """A point, and the exact local gradient there."""

    x: Vector
    grad: Vector


@dataclass(frozen=True)
class svrg(Part):
    """Minibatch gradients, corrected by the exact one at an earlier point tau, which moves every `period` iterations.

    v_t = g(x_t, xi) - g(tau, xi) + mu, with mu the exact local gradient at tau; v_t = mu where tau = x_t. Finite sums
    only. Johnson and Zhang 2013.
    """

    period: int = count(
        100,
        tuned=(0.25, 0.5, 1, 2, 4, 8),
        scaled=_of_an_epoch,
    )
    batch: int = size(1, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Snapshot]:
        """tau = x_0, and v_0 the exact local gradient there."""
        mu = net.full_grad(x)
        return mu, Snapshot(x, mu)

    def step(self, x: Vector, tau: Snapshot, net: Net) -> tuple[Vector, Snapshot]:
        """A new tau when t is a multiple of the period, else the correction."""

        def corrected() -> tuple[Vector, Snapshot]:
            xi = net.sample(self.batch)
            return net.grad(x, xi) - net.grad(tau.x, xi) + tau.grad, tau

        moved: tuple[Vector, Snapshot] = net.every(
            self.period, lambda: self.init(x, net), corrected
        )
        return moved


@dataclass(frozen=True)
class page(Part):
    """A large batch when a coin says so, and a recursion in between; the coin is the same for all nodes.

    v_0, and v_t with this probability: g(x_t; large_batch), else v_t = g(x_t, xi) - g(x_{t-1}, xi) + v_{t-1}, with the
    same sample xi at both points. `large_batch=None` takes the exact local gradient (finite sums only). Li et al. 2021.
    """

    probability: float = number(
        0.01,
        low=0,
        high=1,
        above=True,
        note="1 restarts always",
        tuned=(0.25, 0.5, 1, 2, 4, 8),
        scaled=_once_in_epochs,
    )
    batch: int = size(1, tuned=BATCHES)
    large_batch: int | None = size(None, optional=True, tuned=BATCHES)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Previous]:
        """v_0 from the large batch."""
        v = _restart(x, self.large_batch, net)()
        return v, Previous(x, v)

    def step(self, x: Vector, previous: Previous, net: Net) -> tuple[Vector, Previous]:
        """A restart by the coin, else the recursion."""
        restart, recursion = (
            _restart(x, self.large_batch, net),
            _recursion(x, previous, self.batch, net),
        )
        v = net.chance(self.probability, restart, recursion)
        return v, Previous(x, v)


class Moments(NamedTuple):
    """Moving averages of gradients and of their squares, and what they would be of 1, to correct their start at 0."""

    m: Vector
    s: Vector
    of_m: Any
    of_s: Any


@dataclass(frozen=True)
class adam(Part):
    """Adam's direction: m = beta1 m + (1 - beta1) g, s = beta2 s + (1 - beta2) g g, both from 0.

    v_t = (m / (1 - beta1^{t+1})) / (sqrt(s / (1 - beta2^{t+1})) + epsilon). It is no estimate of the gradient: all its
    entries are about 1. Kingma and Ba 2015.
    """

    beta1: float = number(0.9, low=0, high=1, below=True)
    beta2: float = number(0.999, low=0, high=1, below=True)
    epsilon: float = number(1e-8, low=0, above=True)
    batch: int = size(1, tuned=BATCHES)
    unit: ClassVar[bool] = True

    def init(self, x: Vector, net: Net) -> tuple[Vector, Moments]:
        """The first moments, from 0."""
        nothing = 0 * x
        none = net.dot(nothing, nothing)
        return self.step(x, Moments(nothing, nothing, none, none), net)

    def step(self, x: Vector, last: Moments, net: Net) -> tuple[Vector, Moments]:
        """The moments, corrected for their start."""
        g = net.grad(x, net.sample(self.batch))
        m, of_m = (
            self.beta1 * old + (1 - self.beta1) * new
            for old, new in ((last.m, g), (last.of_m, 1.0))
        )
        s, of_s = (
            self.beta2 * old + (1 - self.beta2) * new
            for old, new in ((last.s, g * g), (last.of_s, 1.0))
        )
        return (m / of_m) / ((s / of_s) ** 0.5 + self.epsilon), Moments(m, s, of_m, of_s)


ESTIMATORS = {
    "sgd": sgd,
    "hybrid": hybrid,
    "spider": spider,
    "momentum": momentum,
    "svrg": svrg,
    "page": page,
    "adam": adam,
}
