"""What a run records, when, and what it has cost: the metrics, the grid of steps, and the books.

The books are kept by a net. `Ledger` supplies the five verbs over vectors that hold nothing, so running a method's own
text on it once counts every gradient and round of any range of iterations, exactly and before the run begins; this is
how a budget in epochs becomes a number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import jax
import numpy as np

from peerdescent.errors import require, unknown, whole
from peerdescent.methods.contract import Calls, Method

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
    """A vector that holds nothing: all arithmetic on it gives another one."""

    def __add__(self, other: Any) -> Blank:
        return Blank()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __add__

    def __neg__(self) -> Blank:
        return Blank()


class Ledger:
    """The five verbs over `Blank` vectors, for all iterations `t` at once: they only count.

    `gradients` and `rounds` are what a node spends in each iteration. `requests` lists the samples asked for outside
    the rare side of `every`, as (call, batch): those an engine does well to draw ahead. `periods` are those of `every`.
    """

    def __init__(self, t: np.ndarray, samples: float | None) -> None:
        self.t = t
        self.samples = 1.0 if samples is None else samples
        self.gradients = np.zeros(len(t))
        self.rounds = np.zeros(len(t))
        self.requests: list[tuple[int, int]] = []
        self.periods: list[int] = []
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
        self.periods.append(int(period))
        self._where, self._rare = where & hit, True
        with self._calls.inside(call):
            then()
        self._where, self._rare = where & ~hit, rare
        with self._calls.inside(call):
            value = otherwise()
        self._where = where
        # New vectors, since what one side hands through unchanged the other may not.
        return jax.tree.map(lambda a: Blank() if isinstance(a, Blank) else a, value)


class Books:
    """What a node has spent when it holds x_t: gradients, rounds, and p-vectors sent, for any t.

    `degrees` is the mean out-degree of each W in the network's period. From iteration 1 on, costs repeat with the
    common period of the method and the network, so only one period of them is kept.

    >>> from peerdescent import methods
    >>> books = Books(methods.gt_hsgd(batch=4, initial_batch=32), samples=100, degrees=[2.0])
    >>> books.gradients([0, 1, 2, 3]).tolist(), int(books.gradients(1_000_000_000))
    ([0.0, 32.0, 40.0, 48.0], 8000000024)
    """

    def __init__(self, method: Method, samples: float | None, degrees: Sequence[float] | np.ndarray) -> None:
        self._samples, self._degrees = samples, np.asarray(degrees, dtype=float)
        start, ordinary = Ledger(np.zeros(1, dtype=np.int64), samples), Ledger(np.ones(1, dtype=np.int64), samples)
        try:
            first = method.init(Blank(), start)
            later = method.step(first, ordinary)
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"{method.name} does more than +, -, * and / with its vectors, and a method may not: {error}"
            ) from error
        self._step = lambda ledger: method.step(first, ledger)
        self._first = np.array([start.gradients[0], start.rounds[0], start.rounds[0] * self._degrees[0]])
        self._cycle = math.lcm(len(self._degrees), *ordinary.periods)
        self._table = np.zeros((1, 3))
        self._name = method.name
        self.takes_exact = start.takes_exact or ordinary.takes_exact
        """Whether exact local gradients are among them."""
        self.requests = tuple(ordinary.requests)
        """The samples (call, batch) that an ordinary iteration asks for."""
        self.twins = _twins(first, later)
        """For each leaf of the state, the first leaf that is always equal to it."""

    def gradients(self, t: Any) -> np.ndarray:
        """Gradients computed by a node that holds x_t."""
        return self._spent(t)[..., 0]

    def rounds(self, t: Any) -> np.ndarray:
        """Rounds it has taken part in."""
        return self._spent(t)[..., 1]

    def vectors(self, t: Any) -> np.ndarray:
        """p-vectors it has sent: rounds times out-degree, the mean over nodes."""
        return self._spent(t)[..., 2]

    def steps_within(self, budget: float) -> int:
        """How many iterations fit into `budget` gradients a node; at least the first."""
        later, total = budget - self._first[0], self._reach(budget)
        whole = int(later // total) if later > 0 else 0
        rest = later - whole * total
        return max(1, 1 + whole * (len(self._table) - 1) + int(np.searchsorted(self._table[:, 0], rest, "right")) - 1)

    def reaching(self, targets: np.ndarray) -> np.ndarray:
        """The first t at which so many gradients are spent."""
        later, total = targets - self._first[0], self._reach(float(np.max(targets)))
        whole = np.maximum(np.ceil(later / total) - 1, 0)
        found = np.searchsorted(self._table[:, 0], later - whole * total, "left")
        steps = 1 + whole.astype(np.int64) * (len(self._table) - 1) + found
        return np.where(targets <= 0, 0, np.where(later <= 0, 1, steps))

    def _spent(self, t: Any) -> np.ndarray:
        t = np.asarray(t, dtype=np.int64)
        later = np.maximum(t - 1, 0)
        self._extend(int(later.max(initial=1)))
        whole, rest = np.divmod(later, len(self._table) - 1)
        return (t > 0)[..., None] * self._first + whole[..., None] * self._table[-1] + self._table[rest]

    def _reach(self, budget: float) -> float:
        """Extend the table to a whole period or to that budget; its total."""
        length = 1024
        while True:
            self._extend(length)
            total = float(self._table[-1, 0])
            if len(self._table) > self._cycle:
                require(total > 0, f"{self._name} computes no gradients, so epochs mean nothing: give steps")
                return total
            if total + self._first[0] > budget:
                return total
            length *= 2

    def _extend(self, length: int) -> None:
        """Make the table cover iterations 1..length, or one whole period where that is shorter."""
        length = min(self._cycle, length)
        if length < len(self._table):
            return
        ledger = Ledger(np.arange(1, length + 1), self._samples)
        self._step(ledger)
        sent = ledger.rounds * self._degrees[ledger.t % len(self._degrees)]
        each = np.stack([ledger.gradients, ledger.rounds, sent], axis=1)
        self._table = np.concatenate([np.zeros((1, 3)), each.cumsum(axis=0)])


def _twins(first: Any, later: Any) -> tuple[int, ...]:
    """Leaves that are one vector after iteration 0 and again after any other are one vector always."""
    pairs = list(zip(jax.tree.leaves(first), jax.tree.leaves(later), strict=False))
    names = [tuple(map(id, pair)) if isinstance(pair[0], Blank) else (k,) for k, pair in enumerate(pairs)]
    return tuple(names.index(name) for name in names)


class Grid(NamedTuple):
    """When to record: `points` of them, spread evenly or logarithmically over the run.

    Without `stationarity` a record evaluates F and its gradient at one point instead of n + 1; that column is empty.
    """

    points: int = 100
    spacing: str = "even"
    stationarity: bool = True


def recording_steps(record: int | Grid | Iterable[int], steps: int, books: Books | None = None) -> list[int]:
    """The steps to record, from 0 to `steps`: the grid is over the gradients in `books`, or else over steps.

    >>> recording_steps(4, 8)
    [0, 2, 4, 6, 8]
    >>> recording_steps(Grid(4, "log"), 1000)
    [0, 1, 10, 100, 1000]
    """
    require(
        isinstance(record, Integral | Iterable) and not isinstance(record, str),
        f"record = {record!r}: must be a number of points, a Grid, or a list of steps",
    )
    if isinstance(record, Iterable) and not isinstance(record, Grid):
        chosen = sorted({int(step) for step in record})
        require(bool(chosen), "record is empty: give at least one step, or a number of points")
        span = f"record has steps {chosen[0]}..{chosen[-1]}"
        require(chosen[0] >= 0 and chosen[-1] <= steps, f"{span}: must lie in 0..{steps}")
        return sorted({0, steps, *chosen})
    points, spacing = record[:2] if isinstance(record, Grid) else (record, "even")
    points = whole("record", points, 1)
    low, high = books.gradients([1, steps]) if books else (1.0, float(steps))
    if spacing == "even":
        targets = np.linspace(0, high, points + 1)
    elif spacing == "log":
        targets = np.geomspace(low, high, points)
    else:
        raise unknown("spacing", spacing, ["even", "log"])
    # The tolerance keeps a point that a rounding error puts just above its step from moving to the next one.
    targets *= 1 - 1e-12
    found = books.reaching(targets) if books else np.ceil(targets).astype(np.int64)
    return sorted({0, steps, *np.minimum(found, steps).tolist()})


def metrics(x: Any, values: Any, grads: Any) -> dict[str, Any]:
    """The metrics at iterates x (n, p), given F and its gradients at the points [mean of x, x^1, ..., x^n].

    Where only the first point is given, the stationarity is not known.
    """
    squares = (grads**2).sum(axis=1)
    return {
        "loss": values[0],
        "grad_norm": squares[0] ** 0.5,
        "stationarity": squares[1:].mean() if len(squares) > 1 else math.nan,
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
