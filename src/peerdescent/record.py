"""What a run records, when, and what it has cost: the metrics, the grid of steps, and the books.

The books are kept by a net. `Ledger` supplies the five verbs over vectors that hold nothing, so running a method's own
text on it once counts every gradient and round of any range of iterations, exactly and before the run begins; this is
how a budget in epochs becomes a number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from peerdescent.errors import require, unknown, whole
from peerdescent.method import Calls, Method

COLUMNS = (
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "stationarity",
    "consensus",
    "tracking",
    "gradients",
    "rounds",
    "bytes",
    "seconds",
)


class Blank:
    """A vector that holds nothing: all arithmetic on it gives it back."""

    def __add__(self, other: Any) -> Blank:
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __add__

    def __neg__(self) -> Blank:
        return self


class Ledger:
    """The five verbs over `Blank` vectors, for all iterations `t` at once: they only count.

    `gradients` and `rounds` are what a node spends in each iteration. `requests` lists the samples asked for outside
    the rare side of `every`, as (call, batch): those an engine does well to draw ahead.
    """

    def __init__(self, t: np.ndarray, samples: float | None) -> None:
        self.t = t
        self.samples = 1.0 if samples is None else samples
        self.gradients = np.zeros(len(t))
        self.rounds = np.zeros(len(t))
        self.requests: list[tuple[int, int]] = []
        self.takes_exact = False
        self._calls = Calls()
        self._where = np.ones(len(t), dtype=bool)
        self._rare = False

    def sample(self, batch: int) -> int:
        """Only its size is known."""
        call = self._calls.take()
        if not self._rare:
            self.requests.append((call, batch))
        return batch

    def grad(self, x: Any, sample: int) -> Blank:
        """`sample` gradients."""
        self.gradients[self._where] += sample
        return Blank()

    def full_grad(self, x: Any) -> Blank:
        """A gradient for every sample held (one where the cost is not a sum)."""
        self.takes_exact = True
        self.gradients[self._where] += self.samples
        return Blank()

    def mix(self, x: Any) -> Blank:
        """One round."""
        self.rounds[self._where] += 1
        return Blank()

    def every(self, period: int, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Both sides, each counted only in its own iterations."""
        where, rare, call = self._where, self._rare, self._calls.next
        hit = self.t % period == 0
        self._where, self._rare = where & hit, True
        with self._calls.inside(call):
            then()
        self._where, self._rare = where & ~hit, rare
        with self._calls.inside(call):
            value = otherwise()
        self._where = where
        return value


class Costs(NamedTuple):
    """What a node has spent when it holds x_t, for t = 0..T: cumulative arrays (T + 1,)."""

    gradients: np.ndarray
    rounds: np.ndarray
    vectors: np.ndarray
    """p-vectors sent: rounds times out-degree, the mean over nodes."""
    takes_exact: bool
    """Whether exact local gradients are among them."""


def costs(method: Method, steps: int, samples: float | None, degrees: np.ndarray) -> Costs:
    """The cumulative costs of `steps` iterations; `degrees` is the mean out-degree of each W in the period.

    >>> from peerdescent import methods
    >>> costs(methods.gt_hsgd(batch=4, initial_batch=32), 3, samples=100, degrees=np.array([2.0])).gradients
    array([ 0., 32., 40., 48.])
    """
    start, rest = Ledger(np.zeros(min(steps, 1), dtype=np.int64), samples), Ledger(np.arange(1, steps), samples)
    try:
        method.step(method.init(Blank(), start), rest)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"{method.name} does more than +, -, * and / with its vectors, and a method may not: {error}"
        ) from error
    gradients = np.concatenate([[0.0], start.gradients, rest.gradients])
    rounds = np.concatenate([[0.0], start.rounds, rest.rounds])
    vectors = np.concatenate([[0.0], rounds[1:] * degrees[np.arange(steps) % len(degrees)]])
    exact = start.takes_exact or rest.takes_exact
    return Costs(gradients.cumsum(), rounds.cumsum(), vectors.cumsum(), exact)


def requests(method: Method) -> tuple[tuple[int, int], ...]:
    """The samples (call, batch) that an ordinary iteration asks for."""
    state = method.init(Blank(), Ledger(np.zeros(1, dtype=np.int64), None))
    ledger = Ledger(np.ones(1, dtype=np.int64), None)
    method.step(state, ledger)
    return tuple(ledger.requests)


def steps_within(method: Method, budget: float, samples: float) -> int:
    """How many iterations fit into `budget` gradients a node; at least the first."""
    steps = 1024
    while (spent := costs(method, steps, samples, np.zeros(1)).gradients)[-1] <= budget:
        require(spent[-1] > 0, f"{method.name} computes no gradients, so epochs mean nothing: give steps")
        steps *= 2
    return max(1, int(np.searchsorted(spent, budget, side="right")) - 1)


class Grid(NamedTuple):
    """When to record: `points` of them, spread evenly or logarithmically over the run."""

    points: int = 100
    spacing: str = "even"


def recording_steps(record: int | Grid | Iterable[int], axis: np.ndarray) -> list[int]:
    """The steps to record, from 0 to T, where `axis` (T + 1,) is what the grid is even or logarithmic in.

    >>> recording_steps(4, np.arange(9.0))
    [0, 2, 4, 6, 8]
    >>> recording_steps(Grid(4, "log"), np.arange(1001.0))
    [0, 1, 10, 100, 1000]
    """
    last = len(axis) - 1
    require(
        isinstance(record, Integral | Iterable) and not isinstance(record, str),
        f"record = {record!r}: must be a number of points, a Grid, or a list of steps",
    )
    if isinstance(record, Iterable) and not isinstance(record, Grid):
        steps = sorted({int(step) for step in record})
        require(bool(steps), "record is empty: give at least one step, or a number of points")
        require(steps[0] >= 0 and steps[-1] <= last, f"record has steps {steps[0]}..{steps[-1]}: must lie in 0..{last}")
        return sorted({0, last, *steps})
    points, spacing = record if isinstance(record, Grid) else (record, "even")
    points = whole("record", points, 1)
    if spacing == "even":
        targets = np.linspace(0, axis[-1], points + 1)
    elif spacing == "log":
        targets = np.geomspace(axis[1], axis[-1], points)
    else:
        raise unknown("spacing", spacing, ["even", "log"])
    # The tolerance keeps a point that a rounding error puts just above its step from moving to the next one.
    found = np.searchsorted(axis, targets * (1 - 1e-12), side="left")
    return sorted({0, last, *np.minimum(found, last).tolist()})


def metrics(x: Any, values: Any, grads: Any) -> dict[str, Any]:
    """The metrics at iterates x (n, p), given F and its gradients at the points [mean of x, x^1, ..., x^n]."""
    squares = (grads**2).sum(axis=1)
    return {
        "loss": values[0],
        "grad_norm": squares[0] ** 0.5,
        "stationarity": squares[1:].mean(),
        "consensus": ((x - x.mean(axis=0)) ** 2).sum(axis=1).mean(),
    }


def tracking_error(state: Any) -> float:
    """||mean(y_{t+1}) - mean(v_t)||, or NaN for a fusion without a tracker."""
    tracked = getattr(state, "fusion", None)
    if tracked is None or not hasattr(tracked, "y"):
        return float("nan")
    y, v = (np.asarray(a, dtype=float).mean(axis=0) for a in (tracked.y, tracked.v))
    return float(np.linalg.norm(y - v))


def visited(seed: int, start: int, end: int, nodes: int) -> tuple[int, int] | None:
    """Whether x_tilde moves to an iterate of steps start + 1..end, and to which (step, node).

    A reservoir over recording intervals: whenever the run stops, x_tilde is uniform over all nodes and all steps so
    far, 0 included.
    """
    rng = np.random.default_rng([seed, end, 0x71DE])
    if rng.random() >= (end - start) / (end + 1):
        return None
    return int(rng.integers(start + 1, end + 1)), int(rng.integers(nodes))
