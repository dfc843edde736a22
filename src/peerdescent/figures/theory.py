"""Figures of the theory: the terms of a bound with the measured gap, and gradients needed by n and by lambda."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from peerdescent.figures.sheets import sheet
from peerdescent.figures.style import COLOURS, finish, line_style
from peerdescent.theory.theorem import TERMS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from peerdescent.theory.measured import Measured

TERM_COLOURS = tuple(colour for colour in COLOURS if colour not in ("#000000", COLOURS[1]))
"""Colours of the terms. Black is for the bound, and the second colour for the measurement."""


def _style(index: int) -> dict[str, Any]:
    return line_style(index) | {"markersize": 5, "linewidth": 1.6}


def _plain(axis: Any) -> None:
    """Tick labels as plain numbers at several multiples of each power of ten, since the range is short."""
    axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def speedup(
    table: pd.DataFrame, slopes: pd.DataFrame, curves: pd.DataFrame, ax: Any = None
) -> Figure:
    """The speed-up with n: gaps by all gradients of the network, and gradients per node by n.

    Under a linear speed-up the curves of the first panel coincide.

    Args:
        table: The gradients per node, by topology, nodes and epsilon.
        slopes: The slope of their logarithms with its confidence interval, by topology and epsilon.
        curves: The root of the mean gap, by topology, nodes and gradients per node.
        ax: Two axes of matplotlib to draw on; by default a new figure.

    Returns:
        The figure.
    """
    place = sheet(ax, 2, (10.4, 5.4))
    left, right = place.axes
    first = str(table["topology"].iloc[0])
    for index, (nodes, own) in enumerate(curves[curves["topology"] == first].groupby("nodes")):
        left.loglog(
            own["nodes"] * own["gradients"], own["rms"], label=f"n = {nodes}", **_style(index)
        )
    finish(left, f"gradients of all nodes, {first} graph", r"root of the mean gap")
    left.legend(frameon=False, fontsize=9)
    sizes = np.array(sorted(table["nodes"].unique()), dtype=float)
    for index, (epsilon, own) in enumerate(table.groupby("epsilon", sort=False)):
        for graph, line in own.groupby("topology", sort=False):
            slope = slopes.query("topology == @graph and epsilon == @epsilon").iloc[0]
            if np.isnan(slope["slope"]):  # too few sizes reached this epsilon
                continue
            interval = f"{slope['slope']:.2f} [{slope['low']:.2f}, {slope['high']:.2f}]"
            label = rf"$\epsilon$ = {epsilon:g}, {graph}: slope {interval}"
            style = _style(index) | (
                {"linestyle": "-"} if graph == first else {"linestyle": ":", "markersize": 9}
            )
            right.loglog(line["nodes"], line["gradients"], label=label, **style)
    top = table["gradients"].max()
    right.loglog(sizes, 1.6 * top / sizes, color="0.6", linewidth=1, label="slope -1")
    right.set_xscale("log", base=2)
    right.set_xticks(sizes, [f"{n:g}" for n in sizes])
    right.xaxis.set_minor_locator(NullLocator())
    finish(right, "nodes n", r"gradients a node needs for $E\|\nabla F\|\leq\epsilon$")
    _plain(left.yaxis)
    handles, labels = right.get_legend_handles_labels()
    place.legend(handles, labels, "lower right", panel=1, ncols=2, fontsize=9, handlelength=3.2)
    return place.figure


def independence(table: pd.DataFrame, curves: pd.DataFrame, ax: Any = None) -> Figure:
    """Gaps by gradients, one line per graph; and gradients needed by 1 / (1 - lambda), one line per epsilon.

    They are drawn on the two axes of matplotlib in `ax`, by default in a new figure.
    """
    place = sheet(ax, 2, (10.4, 4.4))
    left, right = place.axes
    for index, (graph, own) in enumerate(curves.groupby("topology", sort=False)):
        label = f"{graph}, λ = {own['lambda'].iloc[0]:.2f}"
        left.loglog(own["gradients"], own["rms"], label=label, **_style(index))
    finish(left, "gradients of a node", "root of the mean gap")
    left.legend(frameon=False, fontsize=9)
    for index, (epsilon, own) in enumerate(table.groupby("epsilon", sort=False)):
        own = own.sort_values("lambda")
        label = rf"$\epsilon$ = {epsilon:g}"
        right.loglog(1 / (1 - own["lambda"]), own["ratio"], label=label, **_style(index))
    for axis in (left.yaxis, right.xaxis, right.yaxis):
        _plain(axis)
    finish(right, r"$1/(1-\lambda)$", "gradients needed, by those on the complete graph")
    right.legend(frameon=False, fontsize=9)
    return place.figure


def bound(found: Measured, title: str = "", ax: Any = None) -> Figure:
    """The six terms of Theorem 1 and their sum for growing T, and the measured gap with its range over seeds.

    They are drawn on the axes `ax` of matplotlib, by default in a new figure.
    """
    place = sheet(ax, 1, (7.4, 5))
    (axes,) = place.axes
    curve = found.curve
    total = "Theorem 1's bound" if found.constants.bounded else "sum, no bound"
    axes.loglog(curve["steps"], curve["bound"], color="black", linewidth=2.4, label=total)
    # On a complete graph the network's terms are zero, which a log axis cannot show.
    shown = [name for name in TERMS if (curve[name] > 0).all()]
    for index, name in enumerate(shown):
        colour = TERM_COLOURS[TERMS.index(name)]
        style = _style(index) | {"color": colour, "markevery": (3 * index, 16), "linewidth": 1.2}
        axes.loglog(curve["steps"], curve[name], label=name, **style)
    colour = COLOURS[1]
    axes.fill_between(
        curve["steps"], curve["least"], curve["most"], color=colour, alpha=0.25, linewidth=0
    )
    axes.loglog(curve["steps"], curve["measured"], color=colour, linewidth=2.4, label="measured")
    lowest = curve["least"].min()
    axes.set_ylim(bottom=max(min(curve[shown].min().min(), lowest) / 2, lowest / 1e5))
    finish(axes, "steps T", r"$E\|\nabla F(\tilde{x}_T)\|^2$, mean over nodes and t = 0..T")
    place.legend(*axes.get_legend_handles_labels(), "right upper", fontsize=9)
    if title:
        axes.set_title(title, fontsize=10)
    return place.figure
