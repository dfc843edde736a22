"""Figures of many methods at once: one curve in front of all others, and all of them ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from peerdescent.errors import require, unknown
from peerdescent.figures.sheets import sheet
from peerdescent.figures.style import COLOURS, finish
from peerdescent.runs.bands import GAP, HORIZONTAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = ("epoch", "bytes")
"""The horizontal axes of the panels."""
COLUMNS = ("line", *ACROSS, "gap", "low", "high")


def highlighted(curves: pd.DataFrame, line: str, ax: Any = None) -> Figure:
    """The gap of one line by epochs and by bytes, in colour, in front of all other lines in grey.

    Args:
        curves: One row per point: the name of its `line`, `epoch`, `bytes`, the mean `gap` over
            seeds, and `low` and `high`, the smallest and the largest of them.
        line: The name of the line in front.
        ax: Two axes of matplotlib to draw on; by default a new figure.

    Returns:
        The figure.

    >>> points = {"line": ["a", "a", "b"], "epoch": [0, 1, 1], "bytes": [0, 8, 4], "gap": 0.5, "low": 0.4, "high": 0.6}
    >>> len(highlighted(pd.DataFrame(points), "a").axes)
    2
    """
    lines = _lines(curves)
    if line not in lines:
        raise unknown("line", line, lines)
    place = sheet(ax, 2, (6.4, 2.3), pads=(0.06, 0.04), sharey=True)
    for axes, x in zip(place.axes, ACROSS, strict=True):
        for name, own in lines.items():
            if name != line:
                # Without smooth edges, the file has half the size.
                axes.plot(*_shown(own, x), color="0.8", linewidth=0.5, antialiased=False, zorder=1)
        _front(axes, lines[line], x, COLOURS[0])
        _finished(axes, curves, x)
    place.axes[1].set_ylabel("")
    return place.figure


def ranked(curves: pd.DataFrame, groups: pd.Series, title: str = "", ax: Any = None) -> Figure:
    """All lines by epochs and by bytes, with a colour for each group, and the last gap of each, the smallest first.

    Args:
        curves: As for `highlighted`.
        groups: The group of each line, by the name of the line.
        title: The title of the figure.
        ax: Three axes of matplotlib to draw on; by default a new figure.

    Returns:
        The figure.
    """
    lines = _lines(curves)
    last = {name: own.iloc[-1] for name, own in lines.items()}
    order = sorted(lines, key=lambda name: -np.nan_to_num(last[name]["gap"], nan=np.inf))
    colours = {group: COLOURS[k % len(COLOURS)] for k, group in enumerate(dict.fromkeys(groups))}
    place = sheet(ax, 3, (12.5, max(3.4, 1.2 + 0.19 * len(lines))), pads=(0.06, 0.05))
    *panels, dots = place.axes
    for axes, x in zip(panels, ACROSS, strict=True):
        for name, own in lines.items():
            axes.plot(*_shown(own, x), color=colours[groups[name]], linewidth=1.0)
        _finished(axes, curves, x)
    panels[1].set_ylabel("")
    for rank, name in enumerate(order):
        end, colour = last[name], colours[groups[name]]
        dots.plot([end["low"], end["high"]], [rank, rank], color=colour, linewidth=1.2)
        dots.plot(end["gap"], rank, "o", color=colour, markersize=5, label=groups[name])
    dots.set_yticks(range(len(order)), order, fontsize=8)
    finish(dots, f"last {GAP.label}", "")
    dots.set_xscale("log")
    dots.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    dots.xaxis.set_major_formatter("{x:.0e}")
    dots.xaxis.set_minor_formatter(NullFormatter())
    dots.margins(y=0.02)
    handles = dict(
        zip(dots.get_legend_handles_labels()[1], dots.get_legend_handles_labels()[0], strict=True)
    )
    shown = [group for group in colours if group in handles]
    place.legend([handles[group] for group in shown], shown, "lower center", ncols=6)
    place.title(title)
    return place.figure


def _lines(curves: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The points of each line that a logarithmic axis can show."""
    missing = [column for column in COLUMNS if column not in curves]
    require(
        not missing, f"the curves have no {', '.join(missing)}: give columns {', '.join(COLUMNS)}"
    )
    require(len(curves) > 0, "no curves to draw: give at least one")
    shown = curves.assign(
        gap=curves["gap"].where(curves["gap"] > 0), low=curves["low"].where(curves["low"] > 0)
    )
    return {str(name): own for name, own in shown.groupby("line", sort=False)}


def _shown(own: pd.DataFrame, x: str) -> tuple[pd.Series, pd.Series]:
    """A line without the points that its axis cannot show: before the first byte was sent."""
    sent = own[own["bytes"] > 0] if x == "bytes" else own
    return sent[x], sent["gap"]


def _front(axes: Axes, own: pd.DataFrame, x: str, colour: str) -> None:
    across, gap = _shown(own, x)
    low, high = own["low"].fillna(own["gap"])[gap.index], own["high"][gap.index]
    axes.fill_between(across, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
    axes.plot(across, gap, color=colour, linewidth=1.8, zorder=3)


def _finished(axes: Axes, curves: pd.DataFrame, x: str) -> None:
    """Logarithmic axes whose limits are those of all lines, so that figures can be compared."""
    finish(axes, HORIZONTAL[x].label, GAP.label)
    gaps = curves["gap"][curves["gap"] > 0]
    axes.set_yscale("log")
    axes.set_ylim(gaps.min() / 1.3, gaps.max() * 1.3)
    axes.yaxis.set_minor_formatter(NullFormatter())
    if x == "bytes":
        axes.set_xscale("log")
        axes.set_xlim(curves[x][curves[x] > 0].min(), curves[x].max() * 1.2)
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
    else:
        axes.set_xlim(0, curves[x].max())
