"""Heat maps of sweeps."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from peerdescent.errors import require, unknown
from peerdescent.sweeps.seeds import levels, parameters, ranked, smallest, summary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NUMBERED = 120  # the most cells with numbers; more would not be legible
TICKS = 40  # on an axis of a map, at most


def heatmap(table: pd.DataFrame, x: str, y: str, value: str = "loss") -> Figure:
    """A heat map of a table of `sweep` over two of its hyperparameters.

    A cell shows the smallest mean over seeds among the configurations with its two values. As in `best`, only
    configurations that are done for every seed count. Cells in which all diverged are hatched, and a frame marks the
    best cell. The colour scale ends at the best plus three times the median's distance from it, so that large losses do
    not hide small differences.

    Args:
        table: The table.
        x: The hyperparameter on the horizontal axis.
        y: The hyperparameter on the vertical axis.
        value: "loss", "grad_norm" or a column such as "loss@5".

    Returns:
        The figure.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> grid, network = {"alpha": [0.1, 1.0], "batch": [1, 4]}, peer.Network(peer.topology.ring(4))
    >>> table = peer.sweep(peer.methods.dsgd, grid, problem, network, epochs=1)
    >>> heatmap(table, "alpha", "batch").axes[0].get_xlabel()
    'alpha'
    """
    names = parameters(table)
    for name in (x, y):
        if name not in names:
            raise unknown("parameter", name, names)
    require(x != y, f"x and y are both {x!r}: give two different parameters of {', '.join(names)}")
    each = summary(table, value)
    (column, across), (row, up) = levels(each[x]), levels(each[y])
    cells, hatched = smallest(each, value, row, column, (len(up), len(across)))
    best = next(iter(ranked(each, value)), None)
    cell = max(0.7, 0.05 + 0.1 * max(map(len, across)))
    width, height = min(14.0, max(5.5, cell * len(across) + 2)), min(11.0, max(2.6, 0.42 * len(up) + 1.7))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    found = cells[np.isfinite(cells)]
    low, high = (found.min(), found.max()) if len(found) else (0.0, 1.0)
    top = low + 3 * (np.median(found) - low) if len(found) else high
    top = top if low < top < high else high
    mesh = axes.pcolormesh(np.ma.masked_invalid(cells), cmap="cividis_r", vmin=low, vmax=top)
    handles = _special(axes, cells, hatched)
    if best is None:
        figure.suptitle("no configuration is done for every seed", fontsize=12)
    else:
        others = [name for name in names if name not in (x, y) and each[name].nunique(dropna=False) > 1]
        at = [f"{name}\u00a0=\u00a0{levels(each[name].iloc[[best]])[1][0]}" for name in (x, y, *others)]
        title = textwrap.fill(f"best {value} {each[value].iloc[best]:.6g} at {', '.join(at)}", int(11 * width))
        figure.suptitle(title, fontsize=12)
        note = [f"mean of {table['seed'].nunique()} seeds"] if table["seed"].nunique() > 1 else []
        note += [f"smallest over {', '.join(others)}"] if others else []
        below = axes.set_title(textwrap.fill(", ".join(note), int(13 * width)), fontsize=10, color="0.3").get_text()
        figure.set_figheight(height + 0.2 * (title.count("\n") + below.count("\n")))
        figure.colorbar(mesh, ax=axes, extend="max" if top < high else "neither", pad=0.02, label=value)
        frame: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 3}
        axes.add_patch(Rectangle((column[best], row[best]), 1, 1, **frame, clip_on=False, zorder=3))
        handles = [Patch(**frame, label="best"), *handles]
    if cells.size <= NUMBERED:
        for i, j in np.argwhere(np.isfinite(cells)):
            ink = "black" if _luminance(mesh.to_rgba(cells[i, j])) > 0.18 else "white"
            axes.text(j + 0.5, i + 0.5, f"{cells[i, j]:.3g}", ha="center", va="center", fontsize=8.5, color=ink)
    for axis, labels, name in ((axes.xaxis, across, x), (axes.yaxis, up, y)):
        shown = range(0, len(labels), math.ceil(len(labels) / TICKS))
        axis.set_ticks([k + 0.5 for k in shown], [labels[k] for k in shown])
        axis.set_label_text(name)
    crowded = max(map(len, across)) * min(len(across), TICKS) > 11 * (width - 2)
    axes.tick_params(axis="x", length=0, rotation=90 if crowded else 0)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, len(across)), ylim=(0, len(up)))
    axes.spines[:].set_visible(False)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _special(axes: Axes, cells: np.ndarray, hatched: np.ndarray) -> list[Patch]:
    """Draw the cells without a value, and lines between all cells; returns the legend's entries for such cells."""
    handles = []
    for label, hatch, which in (("diverged", "////", hatched), ("not finished", "..", np.isnan(cells) & ~hatched)):
        look: dict[str, Any] = {"facecolor": "0.9", "edgecolor": "0.55", "hatch": hatch, "linewidth": 0}
        for i, j in np.argwhere(which):
            axes.add_patch(Rectangle((j, i), 1, 1, **look))
        handles += [Patch(**look, label=label)] if which.any() else []
    (rows, columns), width = cells.shape, 1.5 if cells.size <= NUMBERED else 0.4
    axes.hlines(range(rows + 1), 0, columns, color="white", linewidth=width)
    axes.vlines(range(columns + 1), 0, rows, color="white", linewidth=width)
    return handles


def _luminance(colour: Any) -> float:
    """Relative luminance as in WCAG; black has more contrast than white above 0.18."""
    channels = np.asarray(colour)[:3]
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
