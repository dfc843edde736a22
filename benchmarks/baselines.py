"""Baselines of the benchmarks: GT-HSGD written by hand in NumPy, in three ways, and a lower bound on a step's time.

All have float32 vectors and minimise logistic regression with the non-convex regulariser. Rows are already multiplied
by their labels. All do the arithmetic of the method as it is defined: two gradients on the same rows, one at x and one
at the previous x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import add, divide, exp, matvec, multiply, subtract, vecmat

ALPHA, BETA, STRENGTH = 0.5, 0.01, 1e-4
ITEM = 4
"""Bytes per number."""

Single = np.float32
ONE, STEP, KEEP, TWICE = Single(1), Single(ALPHA), Single(1 - BETA), Single(2 * STRENGTH)


class Vectors(NamedTuple):
    """The state (n, p) of GT-HSGD: x_t, x_{t-1}, v_{t-1} and y_t."""

    x: np.ndarray
    before: np.ndarray
    v: np.ndarray
    y: np.ndarray


class InNumpy:
    """Stacked arrays (n, p), in plain readable NumPy without a loop over nodes."""

    def __init__(
        self, rows: np.ndarray, w: np.ndarray, batch: int, start: Vectors | None = None
    ) -> None:
        self.rows, self.w, self.batch, self.share = (
            rows,
            w.astype(np.float32),
            batch,
            Single(-1 / batch),
        )
        self.rng, self.node = np.random.default_rng(0), np.arange(len(rows))[:, None]
        self.state = start or Vectors(*np.zeros((4, len(rows), rows.shape[2]), np.float32))

    def run(self, steps: int) -> None:
        """Iterations on fresh samples."""
        for _ in range(steps):
            self.step(self.rng.integers(0, self.rows.shape[1], (len(self.rows), self.batch)))

    def step(self, index: np.ndarray) -> None:
        """One iteration on those rows (n, batch) of each node."""
        x, before, v_before, y = self.state
        rows = self.rows[self.node, index]
        v = self.grad(x, rows) + KEEP * (v_before - self.grad(before, rows))
        y = self.w @ (y + v - v_before)
        self.state = Vectors(self.w @ (x - STEP * y), x, v, y)

    def grad(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The minibatch gradients (n, p) at x (n, p)."""
        slopes = self.share / (1 + np.exp(np.matmul(rows, x[:, :, None])[:, :, 0]))
        return np.matmul(slopes[:, None, :], rows)[:, 0] + TWICE * x / (1 + x * x) ** 2


class TunedNumpy:
    """Stacked arrays, optimised by hand: each choice below was the fastest of those measured.

    Indices are drawn for hundreds of steps at once. Rows are copied from one flat array into a buffer, and a step
    allocates nothing. `matvec` and `vecmat` are faster than `einsum` and `matmul`, except that for one row per node a
    plain product is faster for the sum of rows. Both points are one array, so one call computes both gradients. There
    is no loop over nodes; if rows would not stay in the cache (batch 1024), a few nodes at a time are processed.
    """

    BLOCK = 5 << 19
    """Bytes of rows that are copied at once."""

    DRAWN = 1 << 13
    """Indices per node that are drawn at once, but at most those of `AHEAD` steps."""

    AHEAD = 512

    def __init__(
        self, rows: np.ndarray, w: np.ndarray, batch: int, start: Vectors | None = None
    ) -> None:
        self.nodes, self.samples, self.features = rows.shape
        self.flat, self.w = rows.reshape(-1, self.features), w.astype(np.float32)
        self.batch, self.share = batch, Single(-1 / batch)
        shape = self.nodes, self.features
        start = start or Vectors(*np.zeros((4, *shape), np.float32))
        self.points = np.stack([start.x, start.before])
        self.v, self.y, self.now = start.v.copy(), start.y.copy(), 0
        self.grads, self.bounded = np.empty((2, 2, *shape), np.float32)
        self.spare_v, self.spare_y, self.work = np.empty((3, *shape), np.float32)
        self.margins = np.empty((2, self.nodes, batch), np.float32)
        width = max(1, min(self.nodes, self.BLOCK // (batch * self.features * ITEM)))
        self.rows = np.empty((width, batch, self.features), np.float32)
        cuts = [slice(k, min(k + width, self.nodes)) for k in range(0, self.nodes, width)]
        # Views are created once, since that takes as long as the arithmetic on a short vector.
        self.blocks = [
            (
                cut,
                self.rows[: cut.stop - cut.start],
                self.points[:, cut],
                self.margins[:, cut],
                self.grads[:, cut],
            )
            for cut in cuts
        ]
        self.point, self.grad = tuple(self.points), tuple(self.grads)
        self.rng, self.offset = (
            np.random.default_rng(0),
            (np.arange(self.nodes) * self.samples)[:, None],
        )
        self.drawn = iter(np.empty((0, self.nodes, batch), np.intp))

    @property
    def state(self) -> Vectors:
        """The vectors of the method."""
        return Vectors(self.point[self.now], self.point[1 - self.now], self.v, self.y)

    def run(self, steps: int) -> None:
        """Iterations on fresh samples."""
        for _ in range(steps):
            self.step(self.draw())

    def draw(self) -> np.ndarray:
        """The indices (n, batch) of the next rows in the flat array."""
        index = next(self.drawn, None)
        if index is None:
            ahead = min(self.AHEAD, max(1, self.DRAWN // self.batch))
            few = np.uint16 if self.samples <= 1 << 16 else np.int64
            some = self.rng.integers(0, self.samples, (ahead, self.nodes, self.batch), dtype=few)
            self.drawn = iter(some + self.offset)
            index = next(self.drawn)
        return index

    def step(self, index: np.ndarray) -> None:
        """One iteration on those rows of the flat array."""
        now, points, grads, r = self.now, self.points, self.grads, self.bounded
        v, y, fresh, mixed, work = self.v, self.y, self.spare_v, self.spare_y, self.work
        for cut, rows, at, slopes, sums in self.blocks:
            self.flat.take(index[cut], 0, rows, "clip")
            matvec(rows, at, slopes)
            exp(slopes, slopes)
            add(slopes, ONE, slopes)
            divide(self.share, slopes, slopes)
            if self.batch == 1:
                multiply(rows[:, 0], slopes, sums)
            else:
                vecmat(slopes, rows, sums)
        multiply(points, points, r)
        add(r, ONE, r)
        multiply(r, r, r)
        divide(points, r, r)
        multiply(r, TWICE, r)
        add(grads, r, grads)
        subtract(v, self.grad[1 - now], fresh)
        multiply(fresh, KEEP, fresh)
        add(fresh, self.grad[now], fresh)
        subtract(fresh, v, v)
        add(y, v, y)
        self.w.dot(y, mixed)
        multiply(mixed, STEP, work)
        subtract(self.point[now], work, work)
        self.w.dot(work, self.point[1 - now])
        self.v, self.spare_v, self.y, self.spare_y, self.now = fresh, v, mixed, y, 1 - now


class PerNode:
    """As research code is usually written: a loop over nodes with separate vectors, and over neighbours to mix."""

    def __init__(
        self, rows: np.ndarray, w: np.ndarray, batch: int, start: Vectors | None = None
    ) -> None:
        self.nodes, self.samples, features = rows.shape
        self.rows, self.w, self.batch, self.share = (
            rows,
            w.astype(np.float32),
            batch,
            Single(-1 / batch),
        )
        self.neighbours = [np.flatnonzero(weights) for weights in w]
        start = start or Vectors(*np.zeros((4, self.nodes, features), np.float32))
        self.x, self.before, self.v, self.y = (list(vectors.copy()) for vectors in start)
        np.random.seed(0)  # noqa: NPY002  the generator that such code uses

    @property
    def state(self) -> Vectors:
        """The vectors of the method."""
        return Vectors(*(np.stack(vectors) for vectors in (self.x, self.before, self.v, self.y)))

    def run(self, steps: int) -> None:
        """Iterations on fresh samples."""
        for _ in range(steps):
            self.step([np.random.randint(0, self.samples, self.batch) for _ in range(self.nodes)])  # noqa: NPY002

    def step(self, index: list[np.ndarray]) -> None:
        """One iteration on those rows of each node."""
        for i in range(self.nodes):
            rows = self.rows[i][index[i]]
            correction = self.v[i] - self.grad(self.before[i], rows)
            v = self.grad(self.x[i], rows) + KEEP * correction
            self.y[i] = self.y[i] + v - self.v[i]
            self.v[i] = v
        self.y = self.mix(self.y)
        self.before, self.x = (
            self.x,
            self.mix([self.x[i] - STEP * self.y[i] for i in range(self.nodes)]),
        )

    def grad(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The minibatch gradient (p,) at x (p,)."""
        slopes = self.share / (1 + np.exp(rows @ x))
        return slopes @ rows + TWICE * x / (1 + x * x) ** 2

    def mix(self, vectors: list[np.ndarray]) -> list[np.ndarray]:
        """The weighted sum of the vectors that each node receives."""
        mixed = []
        for i in range(self.nodes):
            heard = np.zeros_like(vectors[i])
            for j in self.neighbours[i]:
                heard += self.w[i, j] * vectors[j]
            mixed.append(heard)
        return mixed


class Rates(NamedTuple):
    """The machine's rates per second: bytes copied (bytes read plus bytes written), and float32 operations."""

    bandwidth: float
    operations: float


class Floor(NamedTuple):
    """The least bytes and operations of a step of one configuration, and the seconds that the slower of both takes."""

    bytes: float
    operations: float
    seconds: float


def floor(
    nodes: int, features: int, batch: int, nonzeros: int, rates: Rates, together: int = 1
) -> Floor:
    """The lower bound for a step of GT-HSGD, for one of `together` configurations that share the rows they read.

    Bytes: the rows of the minibatch are read once for all configurations; x, the previous x, v and y are each read and
    written once. Operations, with a multiply-add as two: each of the two gradients takes 4 n b p (2 n b p for the
    margins, 2 n b p for the sum of rows), 3 n b for the slopes (exp, plus, divide) and 6 n p for the regulariser; each
    of the two mixes takes 2 p for every nonzero weight; v takes 3 n p, the sum for y 2 n p, the descent 2 n p.

    >>> floor(20, 123, 1, 180, Rates(1e10, 1e11))
    Floor(bytes=88560.0, operations=155100.0, seconds=8.856e-06)
    """
    vector = nodes * features
    moved = ITEM * (vector * batch / together + 8 * vector)
    done = (
        2.0 * (4 * vector * batch + 3 * nodes * batch + 6 * vector)
        + 4 * nonzeros * features
        + 7 * vector
    )
    return Floor(moved, done, max(moved / rates.bandwidth, done / rates.operations))
