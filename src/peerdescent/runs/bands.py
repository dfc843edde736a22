"""Curves of several runs that differ in seed: their axes, and their values at common points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pandas as pd

from peerdescent.runs import statistics
from peerdescent.runs.axes import UP, Across
from peerdescent.runs.metrics import METRICS, NONZEROS, Metric

GAP = Metric("gap", r"optimality gap $F(\bar{x})-F^*$", "gap F(x̄) − F*", log=True)
"""The loss minus the optimum; `add_gap` computes it if an optimum is known."""
HORIZONTAL = {name: METRICS[name] for name in get_args(Across)}
"""The metrics for the horizontal axis."""
VERTICAL = {name: {**METRICS, "gap": GAP}[name] for name in UP}
"""The metrics for the vertical axis. They fall in a successful run; a user's own metrics may rise."""

COMPOSITE = {
    "loss": (r"loss $F(\bar{x})+h(\bar{x})$", "loss F(x̄) + h(x̄)"),
    "gap": (r"optimality gap of $F+h$", "gap of F + h"),
    "grad_norm": (
        r"norm of the proximal mapping at $\bar{x}$",
        "norm of the proximal mapping at x̄",
    ),
    "stationarity": (
        r"mean squared proximal mapping at $x^i$",
        "mean squared proximal mapping at xⁱ",
    ),
}
"""What these metrics are of composite problems, as a label and in plain text."""


def quantities(columns: Iterable[str], described: Iterable[Metric] = ()) -> dict[str, Metric]:
    """The metrics for the vertical axis, given the columns of tables: `VERTICAL`, then the user's own metrics.

    A column that is not in `described` has its name as title, and a linear axis.

    >>> list(quantities(["step", "loss", "accuracy"])), quantities(["accuracy"])["accuracy"].title
    (['loss', 'gap', 'grad_norm', 'stationarity', 'consensus', 'accuracy'], 'accuracy')
    """
    known = {metric.name: metric for metric in described}
    own = [name for name in dict.fromkeys(columns) if name not in METRICS and name not in VERTICAL]
    other = COMPOSITE if known.get(NONZEROS.name) == NONZEROS else {}
    fixed = {
        name: replace(VERTICAL[name], label=label, title=title)
        for name, (label, title) in other.items()
    }
    return (
        VERTICAL
        | fixed
        | {name: known.get(name, Metric(name, name.replace("$", r"\$"))) for name in own}
    )


def add_gap(table: pd.DataFrame, optimum: float) -> pd.DataFrame:
    """The table of a trace with the column `gap`, the loss minus the optimum."""
    return table.assign(gap=table["loss"] - optimum)


@dataclass(frozen=True, eq=False)
class Band:
    """The values (runs, k) of several runs at common points x (k,); NaN if a run has no finite value there."""

    x: np.ndarray
    values: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean over runs; NaN if a run has no value."""
        return statistics.mean(self.values)

    @property
    def low(self) -> np.ndarray:
        """The smallest value."""
        return np.asarray(self.values.min(axis=0))

    @property
    def high(self) -> np.ndarray:
        """The largest value."""
        return np.asarray(self.values.max(axis=0))

    @property
    def deviation(self) -> np.ndarray:
        """The sample standard deviation, 0 for one run."""
        return statistics.deviation(self.values) if len(self.values) > 1 else np.zeros(len(self.x))

    def edges(self, log: bool) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper edge of the band around the mean, for all figures and pages.

        On a linear axis they are one deviation to either side, but no further than the smallest and
        the largest value; on a `log` axis, where a deviation could reach below zero, the smallest
        and the largest value.
        """
        if log:
            return self.low, self.high
        mean, deviation = self.mean, self.deviation
        return np.maximum(mean - deviation, self.low), np.minimum(mean + deviation, self.high)


def band(tables: Sequence[pd.DataFrame], x: str, y: str) -> Band:
    """The column `y` of each table at common points of the column `x`.

    If all tables have the same points, those are used. Otherwise the points are those of all
    tables, and values are interpolated linearly. They lie in the interval that all tables cover,
    since a mean over fewer tables would jump. Rows without a finite `x` are left out, so there may
    be no points.

    >>> first, second = pd.DataFrame({"step": [0, 2], "loss": [4, 2]}), pd.DataFrame({"step": [0, 1], "loss": [4, 1]})
    >>> common = band([first, second], "step", "loss")
    >>> common.x.tolist(), common.mean.tolist()
    ([0.0, 1.0], [4.0, 2.0])
    """
    records = [table[[x, y]].to_numpy(float) for table in tables]
    records = [rows[np.isfinite(rows[:, 0])] for rows in records]
    xs = [rows[:, 0] for rows in records]
    ys = [np.where(np.isfinite(rows[:, 1]), rows[:, 1], np.nan) for rows in records]
    points = xs[0]
    if not all(np.array_equal(points, other) for other in xs):
        first, last = (
            max(one.min(initial=np.inf) for one in xs),
            min(one.max(initial=-np.inf) for one in xs),
        )
        points = np.unique(np.concatenate(xs))
        points = points[(first <= points) & (points <= last)]
        ys = [
            np.interp(points, *pair) if len(points) else points for pair in zip(xs, ys, strict=True)
        ]
    return Band(points, np.stack(ys))


def reached(x: np.ndarray, gaps: np.ndarray, level: float) -> float:
    """Where a curve first falls to a level, interpolated linearly between records; NaN if it does not."""
    below = np.flatnonzero(gaps <= level)
    if len(below) == 0:
        return math.nan
    k = int(below[0])
    if k == 0:
        return float(x[0])
    share = (gaps[k - 1] - level) / (gaps[k - 1] - gaps[k])
    return float(x[k - 1] + share * (x[k] - x[k - 1]))


def at_records(tables: Sequence[pd.DataFrame], x: str, y: str) -> Band:
    """The column `y` of each table at every point of the column `x` that any of them has; NaN where one has no record.

    >>> first, second = pd.DataFrame({"step": [0, 2], "loss": [4, 2]}), pd.DataFrame({"step": [0, 1], "loss": [4, 1]})
    >>> found = at_records([first, second], "step", "loss")
    >>> found.x.tolist(), found.mean.tolist()
    ([0, 1, 2], [4.0, nan, nan])
    """
    points = np.unique(np.concatenate([table[x] for table in tables]))
    rows = [table.set_index(x)[y].reindex(points).to_numpy(float) for table in tables]
    return Band(points, np.stack([np.where(np.isfinite(row), row, np.nan) for row in rows]))
