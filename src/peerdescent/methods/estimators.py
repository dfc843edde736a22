"""Estimators: how a node computes v_t, an estimate of its local gradient.

Each is a dataclass derived from `Part`. Its fields declare its hyperparameters, `init` is iteration 0 and `step` every
later one. These use arithmetic and the verbs of `net` only. A new estimator is a class here and an entry of
`ESTIMATORS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from peerdescent.errors import require
from peerdescent.methods.contract import Net, Vector
from peerdescent.methods.parameters import Part, count, number, size

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The paper's minibatch sizes."""
SMALL_BATCHES = {"paper": BATCHES, "medium": (1, 16, 256), "small": (1, 32)}
LARGE_BATCHES = {"paper": BATCHES, "medium": (64, 1024), "small": (64,)}
"""Batch sizes at t = 0 and at restarts."""


class Previous(NamedTuple):
    """The previous iterate and the estimate made there."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class sgd(Part):
    """The plain minibatch gradient: v_t = g(x_t; batch).

    Robbins and Monro 1951. It has no memory.
    """

    batch: int = size(1, tuned=SMALL_BATCHES)

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
        tuned={
            "paper": (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7),
            "medium": (1e-4, 1e-3, 0.01, 0.1),
            "small": (1e-3, 0.01, 0.1),
        },
    )
    batch: int = size(1, tuned=SMALL_BATCHES)
    initial_batch: int = size(1, tuned=LARGE_BATCHES)

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
    require(samples is not None, "periods are tuned as parts of an epoch, and the problem has none: give a period")
    assert samples is not None
    return max(1, round(length * samples / row["batch"]))


@dataclass(frozen=True)
class spider(Part):
    """The double-loop estimator: a large batch every `period` iterations, and a recursion in between.

    v_t = g(x_t; large_batch) if t is a multiple of `period`, else v_t = g(x_t, xi) - g(x_{t-1}, xi) + v_{t-1}, with the
    same sample xi at both points. `large_batch=None` takes the exact local gradient (SARAH; finite sums only).
    Nguyen et al. 2017; Fang et al. 2018; Wang et al. 2019.
    """

    period: int = count(
        100,
        tuned={
            "paper": (*(1 / k for k in range(20, 0, -1)), *range(2, 21)),
            "medium": (0.25, 1, 4),
            "small": (1,),
        },
        scaled=_of_an_epoch,
    )
    batch: int = size(1, tuned=SMALL_BATCHES)
    large_batch: int | None = size(None, optional=True, tuned=LARGE_BATCHES)

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
