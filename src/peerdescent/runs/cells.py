"""Means and deviations over seeds as text, for all tables, so that a result reads the same everywhere."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from peerdescent.runs import statistics
from peerdescent.runs.metrics import Metric

PLAIN = (".2f", ",.0f", "B", "%")
"""How the formats end in which a value without a deviation is written; others have four digits."""


class Cell(NamedTuple):
    """A value in a table, with its deviation over seeds if it has one; the best of its column may be marked."""

    text: str
    deviation: str = ""
    power: int = 0
    """The power of ten that both are multiplied by."""
    best: bool = False
    unit: str = ""
    """The unit of both, such as " kB"."""

    def __str__(self) -> str:
        """The cell in plain text.

        >>> str(Cell("0.19", "0.02")), str(Cell("3.22", "0.02", -7)), str(Cell("90.5", "0.7", unit="%"))
        ('0.19 ± 0.02', '(3.22 ± 0.02)e-7', '90.5 ± 0.7%')
        """
        return self.joined("±", "e{}") + self.unit

    def joined(self, plus: str, power: str) -> str:
        """The value, its deviation and the power of ten of both, given how a text writes these."""
        both = f"{self.text} {plus} {self.deviation}" if self.deviation else self.text
        if not self.power:
            return both
        return (
            f"({both}){power.format(self.power)}"
            if self.deviation
            else f"{both}{power.format(self.power)}"
        )


def cell(metric: Metric, mean: float, deviation: float, best: bool = False) -> Cell:
    """A mean with as many digits as its deviation supports; with four without a deviation, or in the metric's format.

    >>> from peerdescent.runs import METRICS
    >>> print(cell(METRICS["loss"], 0.185976, 0.000453), cell(METRICS["grad_norm"], 3.2173e-7, 2.2e-9))
    0.18598 ± 0.00045 (3.217 ± 0.022)e-7
    >>> print(cell(METRICS["bytes"], 25600.0, 1200.0), cell(METRICS["rounds"], 1792.0, math.nan))
    25.6 ± 1.2 kB 1,792
    """
    varies = math.isfinite(deviation) and deviation > 0
    if not math.isfinite(mean) or (not varies and metric.format.endswith(PLAIN)):
        return Cell(metric.text(mean) if math.isfinite(mean) else "–", best=best)
    scale, unit = metric.unit(mean)
    grouped = "," if "," in metric.format else ""
    plain = bool(unit or grouped) or mean == 0 or 1e-3 <= abs(mean) < 1e5
    power = 0 if plain else math.floor(math.log10(abs(mean)))
    value, spread = mean / scale / 10.0**power, deviation / scale / 10.0**power
    # Two digits of the deviation, or four of the value.
    last = (
        1 - math.floor(math.log10(spread))
        if varies
        else 3 - math.floor(math.log10(abs(value) or 1))
    )
    form = f"{grouped}.{min(max(last, 0), 12)}f"
    return Cell(format(value, form), format(spread, form) if varies else "", power, best, unit)


def over_seeds(metric: Metric, values: Any) -> str:
    """The mean ± the sample deviation of one value per seed; without a deviation, the mean in the metric's format.

    >>> from peerdescent.runs import METRICS
    >>> over_seeds(METRICS["loss"], [0.301, 0.3124]), over_seeds(METRICS["loss"], [0.301])
    ('0.3067 ± 0.0081', '0.301000')
    """
    mean, deviation = float(statistics.mean(values)), float(statistics.deviation(values))
    return (
        str(cell(metric, mean, deviation))
        if math.isfinite(mean) and deviation > 0
        else metric.text(mean)
    )
