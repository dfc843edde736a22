"""The steps at which a run records: a number of points over its steps or gradients, or steps that the user lists."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

import numpy as np

from peerdescent.errors import require, unknown, whole
from peerdescent.runs.costs import Costs


class Grid(NamedTuple):
    """When to record: at `points` points, spread evenly or logarithmically over the run.

    Without `stationarity`, that column is empty, and a record evaluates F and its gradient at 1
    point, not at n + 1.
    """

    points: int = 100
    spacing: str = "even"
    stationarity: bool = True


def recording_steps(
    record: int | Grid | Iterable[int], steps: int, costs: Costs | None = None
) -> list[int]:
    """The steps to record, from 0 to `steps`. The points are spread over gradients if `costs` is given, else steps.

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
    points = min(whole("record", points, 1), steps)  # more would fall on the same steps
    low, high = costs.gradients([1, steps]) if costs else (1.0, float(steps))
    if spacing == "even":
        targets = np.linspace(0, high, points + 1)
    elif spacing == "log":
        targets = np.geomspace(low, high, points)
    else:
        raise unknown("spacing", spacing, ["even", "log"])
    # The tolerance prevents that a rounding error moves a point to the next step.
    targets *= 1 - 1e-12
    found = costs.reaching(targets) if costs else np.ceil(targets).astype(np.int64)
    return sorted({0, steps, *np.minimum(found, steps).tolist()})
