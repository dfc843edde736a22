"""Heat maps of sweeps."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import ScaledTranslation
from pandas.api.types import is_numeric_dtype

from peerdescent.errors import require, unknown
from peerdescent.figures.sheets import sheet
from peerdescent.sweeps.seeds import levels, parameters, ranked, setting, smallest, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUMBERED = 120  # the most cells with numbers; more would not be legible
TICKS = 40  # on an axis of a map, at most
LETTERS = 20  # in a line of their labels, unless a word is longer


def heatmap(table: pd.DataFrame, x: str, y: str, value: str = "loss", ax: Any = None) -> Figure:
    """A heat map of a table of `sweep` over two of its hyperparameters.

    A cell shows the smallest mean over seeds among the configurations with its two values. As in
    `best`, only configurations that are done for every seed count. Cells in which all diverged are
    hatched, and a frame marks the best cell. The colour scale ends at the best plus three times the
    median's distance from it, so that large losses do not hide small differences.

    Numbers on an axis are sorted. Names are in the order of the table, the first one at the top,
    without what they have in common if what tells them apart is in brackets; the label of the axis
    has that.

    Of several problems or networks, a cell may have one only: make `network`, say, an axis, or give
    rows of one setting. The best configuration of each is then marked.

    Args:
        table: The table.
        x: The hyperparameter on the horizontal axis.
        y: The hyperparameter on the vertical axis.
        value: "loss", "grad_norm" or a column such as "loss@5".
        ax: The axes of matplotlib to draw on; by default a new figure.

    Returns:
        The figure.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> grid, network = {"alpha": [0.1, 1.0], "batch": [1, 4]}, peer.Network(peer.topology.ring(4))
    >>> table = peer.sweep(peer.methods.dsgd, grid, problem, network, epochs=1)
    >>> heatmap(table, "alpha", "batch").axes[0].get_xlabel()
    'alpha'
    """
    require(
        isinstance(table, pd.DataFrame),
        f"a {type(table).__name__} is no table of a sweep: give what sweep returns, or the .table of tune",
    )
    names = parameters(table)
    for name in (x, y):
        if name not in names:
            raise unknown("parameter", name, names)
    require(x != y, f"x and y are both {x!r}: give two different parameters of {', '.join(names)}")
    each = summary(table, value)
    (column, across, common_x), (row, up, common_y) = _levels(each[x]), _levels(each[y])
    where = setting(table)
    for name in where:
        cell = each.assign(x=column, y=row).groupby(["x", "y"])[name]
        require(
            cell.nunique().max() == 1,
            f"cells of {x} and {y} have several values of {name}: make it an axis, or give rows of one, as in "
            f"table[table[{name!r}] == {each[name].tolist()[0]!r}]",
        )
    cells, hatched = smallest(each, value, row, column, (len(up), len(across)))
    order = each.iloc[ranked(each, value)]
    best = (order.drop_duplicates(where) if where else order[:1]).index.tolist()
    (wide, deep), (left, tall) = _extent(across), _extent(up)
    margin = 2 + max(0.0, left - 0.6)
    width = min(14.0, max(5.5, max(0.7, wide + 0.1) * len(across) + margin))
    height = min(11.0, max(2.6, max(0.42, tall + 0.1) * len(up) + 1.7))
    place = sheet(ax, 1, (width, height), pads=(0.04, 0.04))
    (axes,) = place.axes
    step = (width - margin if place.own else 0.8 * place.width) / min(len(across), TICKS)
    crowded = wide > step  # labels are upright
    if crowded and deep > step:
        across = [_filled(label.replace("\n", " "), 2 * LETTERS) for label in across]
    above = crowded or "\n" in "".join(across)  # where the legend is on axes of the caller
    if place.own:
        place.figure.set_figheight(height + max(0.0, _extent(across)[0 if crowded else 1] - 0.5))
    found = cells[np.isfinite(cells)]
    low, high = (found.min(), found.max()) if len(found) else (0.0, 1.0)
    top = low + 3 * (np.median(found) - low) if len(found) else high
    top = top if low < top < high else high
    mesh = axes.pcolormesh(np.ma.masked_invalid(cells), cmap="cividis_r", vmin=low, vmax=top)
    handles = _special(axes, cells, hatched)
    if not best:
        place.title("no configuration is done for every seed")
    else:
        others = [
            name
            for name in names
            if name not in (x, y, *where) and each[name].nunique(dropna=False) > 1
        ]
        at = [
            f"{name}\u00a0=\u00a0{levels(each[name].iloc[best[:1]])[1][0]}"
            for name in (x, y, *others)
        ]
        title = f"best {value} {each[value].iloc[best[0]]:.6g} at {', '.join(at)}"
        varied = [name for name in (x, y) if name in where and each[name].nunique() > 1]
        each_of = " and ".join("number of nodes" if name == "nodes" else name for name in varied)
        title = f"{value} for each {each_of}" if varied else title
        note = [f"mean of {table['seed'].nunique()} seeds"] if table["seed"].nunique() > 1 else []
        note += [f"smallest over {', '.join(others)}"] if others else []
        below = textwrap.fill(", ".join(note), int(13 * width))
        if place.own:
            place.title(title)
            axes.set_title(below, fontsize=10, color="0.3")
            place.figure.set_figheight(place.figure.get_figheight() + 0.2 * below.count("\n"))
        else:
            place.title(f"{title}\n{below}".strip(), pad=26 if above else None)
        place.figure.colorbar(
            mesh, ax=axes, extend="max" if top < high else "neither", pad=0.02, label=value
        )
        frame: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 3}
        if not {x, y} <= {*where}:  # otherwise every cell is the best of its setting
            for one in best:
                axes.add_patch(
                    Rectangle((column[one], row[one]), 1, 1, **frame, clip_on=False, zorder=3)
                )
            handles = [
                Patch(**frame, label=f"best for each {each_of}" if varied else "best"),
                *handles,
            ]
    if cells.size <= NUMBERED:
        for i, j in np.argwhere(np.isfinite(cells)):
            ink = "black" if _luminance(mesh.to_rgba(cells[i, j])) > 0.18 else "white"
            shown = f"{cells[i, j]:#.3g}".removesuffix(".")
            axes.text(j + 0.5, i + 0.5, shown, ha="center", va="center", fontsize=8.5, color=ink)
    for axis, labels, name, common, letters in (
        (axes.xaxis, across, x, common_x, 3 * LETTERS),
        (axes.yaxis, up, y, common_y, LETTERS),
    ):
        ticks = range(0, len(labels), math.ceil(len(labels) / TICKS))
        axis.set_ticks([k + 0.5 for k in ticks], [labels[k] for k in ticks])
        axis.set_label_text(_filled(f"{name}: {common}", letters) if common else name)
    axes.tick_params(axis="x", length=0, rotation=90 if crowded else 0)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, len(across)), ylim=(0, len(up)))
    axes.yaxis.set_inverted(not is_numeric_dtype(each[y]))  # the first name is at the top
    axes.spines[:].set_visible(False)
    if handles and place.own:
        place.legend(
            handles, [str(each.get_label()) for each in handles], "lower center", ncols=len(handles)
        )
    elif handles:  # cells fill the axes, and the title is above: beside the label below, or above where ticks are long
        axes.set_xlabel(axes.get_xlabel(), loc="left")
        corner = axes.transAxes + ScaledTranslation(
            0, 4 / 72 if above else -18 / 72, place.figure.dpi_scale_trans
        )
        look: dict[str, Any] = {
            "loc": "lower right" if above else "upper right",
            "ncols": len(handles),
        }
        look |= {
            "fontsize": 9,
            "frameon": False,
            "handlelength": 1.3,
            "columnspacing": 1.0,
            "borderaxespad": 0,
        }
        axes.legend(
            handles=handles, bbox_to_anchor=(1, 1 if above else 0), bbox_transform=corner, **look
        )
    return place.figure


def _levels(column: pd.Series) -> tuple[np.ndarray, list[str], str]:
    """The level of each row, labels of the levels, and what all names have before the brackets that tell them apart.

    Numbers are sorted, and names follow in the order of the table. Labels have what is in these
    brackets.
    """
    places, names = levels(column)
    plain = [
        isinstance(value, Real) and not isinstance(value, bool) and value == value
        for value in column.tolist()
    ]
    numbers = {*places[plain].tolist()}
    order = sorted(dict.fromkeys(places.tolist()), key=lambda k: k if k in numbers else len(names))
    split = [re.fullmatch(r"(.*) \((.*)\)", names[k]) for k in order]
    heads = {found[1] if found else "" for found in split}
    common = heads.pop() if len(heads) == 1 else ""
    labels = [
        found[2] if found and common else names[k] for k, found in zip(order, split, strict=True)
    ]
    return np.argsort(order)[places], [_filled(label) for label in labels], common


def _filled(label: str, letters: int = LETTERS) -> str:
    return textwrap.fill(label, letters, break_long_words=False, break_on_hyphens=False)


def _extent(labels: Sequence[str]) -> tuple[float, float]:
    """The width and height of the largest label, in inches, about."""
    parts = [label.split("\n") for label in labels]
    return 0.09 * max(len(line) for lines in parts for line in lines), 0.17 * max(map(len, parts))


def _special(axes: Axes, cells: np.ndarray, hatched: np.ndarray) -> list[Patch]:
    """Draw the cells without a value, and lines between all cells; returns the legend's entries for such cells."""
    handles = []
    for label, hatch, which in (
        ("diverged", "////", hatched),
        ("not finished", "..", np.isnan(cells) & ~hatched),
    ):
        look: dict[str, Any] = {
            "facecolor": "0.9",
            "edgecolor": "0.55",
            "hatch": hatch,
            "linewidth": 0,
        }
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
