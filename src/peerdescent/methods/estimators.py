"""The local gradient estimators: what a node believes its own gradient is, v_t.

Each is a frozen dataclass whose fields are its hyperparameters, with `init` for iteration 0 and `step` for every
later one. Inside them: arithmetic and the verbs of `net`, nothing else. A new estimator is one more class here and
its name in `ESTIMATORS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from peerdescent.errors import require
from peerdescent.methods.contract import Net, Vector, check_count, fixed, is_known


class Previous(NamedTuple):
    """The previous iterate and the estimate made there."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class sgd:
    """The plain minibatch gradient: v_t = g(x_t; batch).

    Robbins and Monro 1951. It remembers nothing.
    """

    batch: int = fixed(1)

    def __post_init__(self) -> None:
        check_count(batch=self.batch)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Any]:
        """v_0 = g(x_0; batch)."""
        return net.grad(x, net.sample(self.batch)), ()

    def step(self, x: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """v_t = g(x_t; batch)."""
        return net.grad(x, net.sample(self.batch)), ()


@dataclass(frozen=True)
class hybrid:
    """The hybrid variance-reduced estimator: v_t = g(x_t, xi) + (1 - beta)(v_{t-1} - g(x_{t-1}, xi)).

    One sample xi at both points. A convex combination of the stochastic gradient (beta = 1) and SARAH (beta = 0).
    Tran-Dinh et al. 2019; Cutkosky and Orabona 2019 (STORM); Liu et al. 2020.
    """

    beta: float = 0.01
    batch: int = fixed(1)
    initial_batch: int = fixed(1)

    def __post_init__(self) -> None:
        check_count(batch=self.batch, initial_batch=self.initial_batch)
        if is_known(self.beta):
            good = isinstance(self.beta, Real) and 0 <= self.beta <= 1
            require(good, f"beta = {self.beta}: must lie in [0, 1] (1 is sgd, 0 never forgets)")

    def init(self, x: Vector, net: Net) -> tuple[Vector, Previous]:
        """v_0 = g(x_0; initial_batch)."""
        v = net.grad(x, net.sample(self.initial_batch))
        return v, Previous(x, v)

    def step(self, x: Vector, previous: Previous, net: Net) -> tuple[Vector, Previous]:
        """Equation (2) of the paper."""
        xi = net.sample(self.batch)
        v = net.grad(x, xi) + (1 - self.beta) * (previous.v - net.grad(previous.x, xi))
        return v, Previous(x, v)


@dataclass(frozen=True)
class spider:
    """The double-loop estimator: a large batch every `period` iterations, a recursion between.

    v_t = g(x_t, xi) - g(x_{t-1}, xi) + v_{t-1} when t is not a multiple of `period`, one sample xi at both points.
    `large_batch=None` takes the exact local gradient there instead (SARAH; finite sums only).
    Nguyen et al. 2017; Fang et al. 2018; Wang et al. 2019.
    """

    period: int = 100
    batch: int = fixed(1)
    large_batch: int | None = fixed(None)

    def __post_init__(self) -> None:
        check_count(period=self.period, batch=self.batch)
        if self.large_batch is not None:
            check_count(large_batch=self.large_batch)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Previous]:
        """v_0 from the large batch."""
        v = self._restart(x, net)
        return v, Previous(x, v)

    def step(self, x: Vector, previous: Previous, net: Net) -> tuple[Vector, Previous]:
        """A restart when t is a multiple of the period, else the recursion."""

        def recursion() -> Vector:
            xi = net.sample(self.batch)
            return net.grad(x, xi) - net.grad(previous.x, xi) + previous.v

        v = net.every(self.period, lambda: self._restart(x, net), recursion)
        return v, Previous(x, v)

    def _restart(self, x: Vector, net: Net) -> Vector:
        if self.large_batch is None:
            return net.full_grad(x)
        return net.grad(x, net.sample(self.large_batch))


ESTIMATORS = {"sgd": sgd, "hybrid": hybrid, "spider": spider}
