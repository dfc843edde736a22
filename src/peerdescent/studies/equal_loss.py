"""Comparisons at equal loss: how much of something each line of a study needs to a level, and how lines end.

A line is a list of traces that differ in seed. What it needs is read from the mean of its gap over
seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from peerdescent.runs.bands import add_gap, band, reached
from peerdescent.runs.statistics import deviation, mean
from peerdescent.runs.trace import Status, Trace

LEVELS = 4
ABOVE = 4.0
"""The first level is so many times the last gap of the line that levels are anchored at."""
UNITS = {
    "bytes": ("MB", 1e-6),
    "rounds": ("rounds", 1.0),
    "clock": ("seconds", 1.0),
    "epoch": ("epochs", 1.0),
}
"""The units of what is needed, and what a column of a trace is multiplied by."""
NEEDED = ("line", "level", "unit", "amount", "ratio", "fewest", "most", "seeds")
"""The columns of a table of what is needed."""

Lines = Mapping[str, Sequence[Trace]]


def ends(traces: Iterable[Trace], measure: str, optimum: float) -> list[float]:
    """The last value of a measure in each run; infinite for one that diverged."""
    tables = [(trace.status, add_gap(trace.table, optimum)) for trace in traces]
    return [
        math.inf if status == Status.diverged else float(table[measure].iloc[-1])
        for status, table in tables
    ]


def levels(lines: Lines, optimum: float, anchor: str) -> list[float]:
    """Gaps at which lines are compared: from four times the last gap of `anchor` down to the smallest last gap.

    They have equal ratios, are rounded up to two digits, and are at most half of the first gap.
    Without that line, or if it diverged, the largest last gap takes its place. If no line ends with
    a gap above 0, there are none.
    """
    last = {line: float(mean(ends(traces, "gap", optimum))) for line, traces in lines.items()}
    known = [gap for gap in last.values() if 0 < gap < math.inf]
    if not known:
        return []
    from_here = last.get(anchor, math.inf)
    top = ABOVE * (from_here if 0 < from_here < math.inf else max(known))
    first = float(next(iter(lines.values()))[0].table["loss"].iloc[0]) - optimum
    found = np.geomspace(max(min(top, first / 2), min(known)), min(known), LEVELS)
    return list(dict.fromkeys(_rounded_up(gap) for gap in found.tolist()))


def _rounded_up(value: float) -> float:
    """The next number of two digits.

    >>> _rounded_up(0.00311), _rounded_up(0.0031)
    (0.0032, 0.0031)
    """
    place = math.floor(math.log10(value)) - 1
    return float(f"{math.ceil(value / 10.0**place - 1e-9)}e{place}")


def needed(
    lines: Lines, optimum: float, at: Sequence[float], column: str, reference: str
) -> pd.DataFrame:
    """What each line needs of a column to each level: one row per line and level.

    The amount is the mean over seeds at the step where the mean gap over seeds falls to the level,
    and `ratio` is relative to the line `reference`. `fewest` and `most` are of single seeds, of
    which `seeds` reach the level. A line of which a seed diverged has no amount.
    """
    unit, factor = UNITS[column]
    rows = []
    for line, traces in lines.items():
        tables = [add_gap(trace.table, optimum) for trace in traces]
        spent, gaps = (band(tables, "step", name).mean for name in (column, "gap"))
        whole = all(trace.status != Status.diverged for trace in traces)
        for level in at:
            amount = factor * reached(spent, gaps, level) if whole else math.nan
            each = [
                factor * reached(own[column].to_numpy(float), own["gap"].to_numpy(float), level)
                for own in tables
            ]
            there = [one for one in each if not math.isnan(one)]
            few, many = min(there, default=math.nan), max(there, default=math.nan)
            rows.append((line, level, unit, amount, math.nan, few, many, len(there)))
    table = pd.DataFrame(rows, columns=list(NEEDED))
    base = table[table["line"] == reference].set_index("level")["amount"]
    return table.assign(ratio=table["amount"] / table["level"].map(base).astype(float))


def curves(lines: Lines, optimum: float, across: Sequence[str], up: Sequence[str]) -> pd.DataFrame:
    """The curves of all lines as one table: means over seeds at common points, and the smallest and the largest value.

    The points are those of the first column of `across`; the others are means over seeds there.
    """
    found = []
    for line, traces in lines.items():
        tables = [add_gap(trace.table, optimum) for trace in traces]
        points = band(tables, across[0], across[0]).x
        own: dict[str, Any] = {"line": line, across[0]: points}
        own |= {name: band(tables, across[0], name).mean for name in across[1:]}
        for name in up:
            each = band(tables, across[0], name)
            own |= {name: each.mean, f"{name} low": each.low, f"{name} high": each.high}
        found.append(pd.DataFrame(own))
    return pd.concat(found, ignore_index=True)


class Ended(NamedTuple):
    """How a line ends: the mean over seeds of its last values, and its standard error."""

    mean: float
    error: float

    @staticmethod
    def of(values: Sequence[float]) -> Ended:
        """From the last value of each seed."""
        return Ended(float(mean(values)), float(deviation(values)) / math.sqrt(len(values)))


def compared(line: str, other: str, one: Ended, two: Ended) -> str:
    """How a line ends, compared with another, in a sentence.

    >>> compared("beer", "dsgd", Ended(1e-3, 1e-4), Ended(4e-3, 1e-4))
    'beer ends at 1.0e-03, 0.25 times the 4.0e-03 of dsgd: lower by more than two standard errors'
    """
    gone = [name for name, own in ((line, one), (other, two)) if not math.isfinite(own.mean)]
    if gone:
        return f"{line} against {other}: {' and '.join(gone)} diverged"
    far = abs(one.mean - two.mean) > 2 * math.hypot(one.error, two.error)
    way = "lower" if one.mean < two.mean else "higher"
    verdict = f"{way} by more than two standard errors" if far else "within two standard errors"
    return f"{line} ends at {one.mean:.1e}, {one.mean / two.mean:.2g} times the {two.mean:.1e} of {other}: {verdict}"


def told(table: pd.DataFrame, reference: str) -> list[str]:
    """What a table of `needed` says, one sentence per unit and level."""
    found = []
    for (unit, level), own in table.groupby(["unit", "level"], sort=False):
        amounts = own.set_index("line")["amount"]
        base = float(amounts.get(reference, math.nan))
        others = amounts.dropna().drop(reference, errors="ignore").sort_values()
        parts = [f"{reference} needs {_short(base)} {unit}"] if base == base else []
        if base > 0 and len(others):
            parts.append(
                "times that, "
                + ", ".join(f"{line} {amount / base:.2g}" for line, amount in others.items())
            )
        elif len(others):
            parts.append(
                f"{unit}, "
                + ", ".join(f"{line} {_short(amount)}" for line, amount in others.items())
            )
        missing = ", ".join(amounts.index[amounts.isna()])
        parts += [f"not reached by {missing}"] if missing else []
        found.append(f"to a gap of {level:g}: {'; '.join(parts)}")
    return found


def _short(value: float) -> str:
    """A number with three digits, or all those before the point.

    >>> _short(1234.5), _short(0.12345)
    ('1,234', '0.123')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
