"""Figures: traces side by side, means over seeds, the map of a sweep, and a network drawn.

Functions return a matplotlib `Figure` made without pyplot, so nothing global changes, no window opens and no display is
needed. Lines differ in colour (Okabe and Ito's, safe for the colour-blind), dash and marker, and so survive grey print.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter

from peerdescent.errors import require, unknown
from peerdescent.figures.networks import BLUE, drawing
from peerdescent.runs.trace import Status, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["comparison", "curves", "drawing", "heatmap", "save"]

COLOURS = (BLUE, "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1)))
MARKERS = "os^DvPX<>"
SUFFIXES = (".png", ".pdf", ".svg")
MARKS = 8  # a line, at most
HORIZONTAL = {
    "step": "steps",
    "epoch": "epochs",
    "rounds": "rounds of communication",
    "bytes": "sent by a node, on average",
    "seconds": "seconds",
}
VERTICAL = {
    "loss": r"loss $F(\bar{x})$",
    "gap": r"optimality gap $F(\bar{x})-F^*$",
    "grad_norm": r"gradient norm $\|\nabla F(\bar{x})\|$",
    "stationarity": r"stationarity $\frac{1}{n}\sum_i\|\nabla F(x^i)\|^2$",
    "consensus": r"consensus error $\frac{1}{n}\sum_i\|x^i-\bar{x}\|^2$",
}
NUMBERED = 120  # cells; more numbers than that would not be legible
TICKS = 40  # on an axis of a map, at most


def comparison(traces: Mapping[str, Trace]) -> Figure:
    """Four panels: loss, gradient norm and consensus error against epochs, and loss against bytes; a line a trace.

    Traces without epochs (endless samples) are drawn against steps. The axes are those of `curves`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> len(comparison({"dsgd": trace}).axes)
    4
    """
    require(len(traces) > 0, "no traces to compare: give at least one")
    time = "step" if any(trace.table["epoch"].isna().any() for trace in traces.values()) else "epoch"
    panels = ((time, "loss"), (time, "grad_norm"), (time, "consensus"), ("bytes", "loss"))
    return curves({name: [trace] for name, trace in traces.items()}, panels, title=_title(traces))


def curves(
    groups: Mapping[str, Sequence[Trace]],
    panels: Sequence[tuple[str, str]] = (("epoch", "loss"),),
    optimum: float | None = None,
    title: str = "",
) -> Figure:
    """One line a group, the mean over its traces (which differ in seed), in panels given as (horizontal, vertical).

    Horizontal is "step", "epoch", "rounds", "bytes" or "seconds"; vertical is "loss", "gap" (loss - `optimum`),
    "grad_norm", "stationarity" or "consensus", all but the loss on log axes. The band around a mean is one sample
    standard deviation either way on the linear axis of the loss, and goes from the smallest to the largest trace on log
    axes, where a deviation could reach below zero. Traces recorded at different points are interpolated linearly, and
    a mean goes as far as all of its traces do.

    What diverged is in no mean: it is drawn by itself, thin, as far as it goes, and the legend says so. The axes fit
    the others. The axis of the loss ends early where a trace climbs, or where a steep start would press the rest flat.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network, method = peer.Network(peer.topology.ring(4)), peer.methods.dsgd()
    >>> traces = [peer.run(method, problem, network, steps=20, record=5, seed=seed) for seed in range(3)]
    >>> len(curves({"dsgd": traces}, [("epoch", "loss"), ("bytes", "gap")], optimum=0.0).axes)
    2
    """
    _check(groups, panels, optimum)
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(6.0, 4.75 * columns), max(4.2, 3.4 * rows)))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    first: dict[str, Axes] = {}
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (x, y) in zip(places, panels, strict=False):
        if first.setdefault(x, axes) is not axes:
            axes.sharex(first[x])
        drawn: list[_Line] = []
        for index, (name, traces) in enumerate(groups.items()):
            drawn += _group(axes, index, name, traces, (x, y), optimum)
        _finish(axes, x, y)
        (_loss_limits if y == "loss" else _logarithmic)(axes, drawn)
    for axes in places[len(panels) :]:
        axes.remove()
    handles = [line for line in places[0].get_lines() if not str(line.get_label()).startswith("_")]
    widest = max(len(str(line.get_label())) for line in handles)
    fit = max(1, min(len(handles), int(12.6 * figure.get_figwidth()) // (10 + widest)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fit, frameon=False, handlelength=3.2)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def _check(groups: Mapping[str, Sequence[Trace]], panels: Sequence[tuple[str, str]], optimum: float | None) -> None:
    require(len(groups) > 0, "no groups to draw: give at least one")
    for name, traces in groups.items():
        good = not isinstance(traces, Trace) and len(traces) > 0
        require(good, f"the group {name!r} has to be a list of at least one trace")
    pairs = len(panels) > 0 and all(not isinstance(panel, str) and len(panel) == 2 for panel in panels)
    require(pairs, f'panels = {panels!r}: give pairs, such as [("epoch", "loss")]')
    for x, y in panels:
        if x not in HORIZONTAL:
            raise unknown("horizontal axis", x, HORIZONTAL)
        if y not in VERTICAL:
            raise unknown("vertical axis", y, VERTICAL)
        given = y != "gap" or optimum is not None
        require(given, "a gap is loss - optimum: give optimum=, such as the smallest loss of a long run")


class _Line(NamedTuple):
    """What is drawn of a trace or of several: their mean, and the band from low to high, at the points x."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    diverged: bool = False


def _group(
    axes: Axes, index: int, name: str, traces: Sequence[Trace], panel: tuple[str, str], optimum: float | None
) -> list[_Line]:
    diverged = [trace for trace in traces if trace.status == Status.diverged]
    kept = [trace for trace in traces if trace.status != Status.diverged]
    told = f" ({len(diverged)} of {len(traces)} diverged)" if kept else " (diverged)"
    label = name + told if diverged else name
    # Where nothing else is left, the first that diverged stands for the group.
    alone = diverged if kept else diverged[1:]
    line = _mean(name, kept or diverged[:1], panel, optimum)._replace(diverged=not kept)
    others = [_mean(name, [trace], panel, optimum)._replace(diverged=True) for trace in alone]
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    if len(kept) > 1:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    every = max(1, len(line.x) // MARKS)
    axes.plot(
        line.x,
        line.mean,
        label=label,
        color=colour,
        linestyle=dash,
        linewidth=1.7,
        marker=MARKERS[index % len(MARKERS)],
        markersize=5.5,
        markerfacecolor="white",
        markeredgewidth=1.3,
        markevery=(index * every // max(2, MARKS // 2) % every, every),
    )
    for other in others:
        axes.plot(other.x, other.mean, color=colour, linestyle=dash, linewidth=0.9)
    return [line, *others]


def _mean(name: str, traces: Sequence[Trace], panel: tuple[str, str], optimum: float | None) -> _Line:
    x, y = panel
    column = "loss" if y == "gap" else y
    xs = [trace.table[x].to_numpy(float) for trace in traces]
    ys = [trace.table[column].to_numpy(float) for trace in traces]
    for wanted, found in ((x, xs), (column, ys)):
        recorded = all(np.isfinite(values).any() for values in found)
        require(recorded, f"{name!r} has no {wanted}: it was not recorded; choose another panel")
    points = xs[0]
    if not all(np.array_equal(points, other) for other in xs):
        points = np.unique(np.concatenate(xs))
        points = points[(points >= max(one[0] for one in xs)) & (points <= min(one[-1] for one in xs))]
        require(len(points) > 0, f"the traces of {name!r} have no {x} in common: give them the same budget")
        ys = [np.interp(points, *pair) for pair in zip(xs, ys, strict=True)]
    values = np.stack(ys)
    values = np.where(np.isfinite(values), values, np.nan) - (optimum if y == "gap" and optimum is not None else 0)
    mean = values.mean(axis=0)
    if y == "loss":
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else 0
        return _Line(points, mean, mean - spread, mean + spread)
    # A log axis has no place for the zeros of a common start, nor for a loss below the optimum.
    mean = np.where(mean > 0, mean, np.nan)
    least = values[values > 0].min(initial=math.inf)
    return _Line(points, mean, np.maximum(values.min(axis=0), least) + 0 * mean, values.max(axis=0) + 0 * mean)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_ylabel(VERTICAL[y])
    axes.set_xlabel(HORIZONTAL[x])
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(x=0.02)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _loss_limits(axes: Axes, lines: Sequence[_Line]) -> None:
    """One line that escapes upward, or a steep start, would press all the rest flat.

    So show no more above the start than below it, and no more than twice the height left after a tenth of a run.
    """
    start, low = max(_finite(line.mean[:1] for line in lines)), min(_finite(line.low for line in lines))
    reach = start - low
    escaped = [bool((line.high > start + reach).any()) for line in lines]
    top = start + reach if any(escaped) and not all(escaped) else math.inf
    steady = [line for line, gone in zip(lines, escaped, strict=True) if not gone and not line.diverged]
    late = _finite(line.high[line.x >= 0.9 * line.x[0] + 0.1 * line.x[-1]] for line in steady)
    if steady and len(late) > 0:
        height = max(2 * (max(late) - low), 0.1 * reach)
        top = low + height if low + height < start else top
    if reach > 0 and top < math.inf:
        axes.set_ylim(low - 0.05 * (top - low), top)


def _logarithmic(axes: Axes, lines: Sequence[_Line]) -> None:
    if not _finite(line.mean for line in lines):
        return
    axes.set_yscale("log")
    axes.grid(which="minor", axis="y", color="0.95", linewidth=0.6)
    kept = _finite(band for line in lines if not line.diverged for band in (line.low, line.high))
    if kept and any(line.diverged for line in lines):
        axes.set_ylim(min(kept) / 2, max(kept) * 2)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(NullFormatter())
    if high < 200 * low:  # too few powers of ten to read by
        digits = "25" if high > 5 * low else "123456789"
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in digits else ""))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _finite(arrays: Any) -> list[float]:
    return [value for array in arrays for value in array.tolist() if math.isfinite(value)]


def _title(traces: Mapping[str, Trace]) -> str:
    """The problem and the network, where all traces share them."""
    problems = {trace.identity.problem for trace in traces.values()}
    networks = {trace.identity.network for trace in traces.values()}
    common = [next(iter(names)) for names in (problems, networks) if len(names) == 1]
    shown = (re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", name) for name in common)
    return "  ·  ".join(shown)


def heatmap(table: pd.DataFrame, x: str, y: str, value: str = "loss") -> Figure:
    """A table of `sweep` over two of its parameters; a cell is the smallest `value` over all the others.

    `value` is "loss", "grad_norm" or a column such as "loss@5", the mean over seeds where there are several. As in
    `sweep.best`, a configuration counts if it is done for every seed; cells where all diverged are hatched. The frame
    marks the best cell. Colours end at three times the median's distance from the best, so that large losses do not
    hide the small differences.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> grid, network = {"alpha": [0.1, 1.0], "batch": [1, 4]}, peer.Network(peer.topology.ring(4))
    >>> table = peer.sweep(peer.methods.dsgd, grid, problem, network, epochs=1)
    >>> heatmap(table, "alpha", "batch").axes[0].get_xlabel()
    'alpha'
    """
    require("seed" in table, "the table has no column seed: give one that sweep or tune has made")
    parameters = list(table.columns[: table.columns.get_loc("seed")])
    for name in (x, y):
        if name not in parameters:
            raise unknown("parameter", name, parameters)
    require(x != y, f"x and y are both {x!r}: give two different parameters of {', '.join(parameters)}")
    measured = [name for name in table.columns if name in ("loss", "grad_norm") or name.startswith("loss@")]
    if value not in measured:
        raise unknown("value", value, measured)
    (across, column), (up, row) = _values(table[x]), _values(table[y])
    cells, hatched, best = _cells(table, parameters, value, row, column, (len(up), len(across)))
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
        others = [name for name in parameters if name not in (x, y) and table[name].nunique(dropna=False) > 1]
        at = [f"{name}\u00a0=\u00a0{_values(table[name].iloc[[best]])[0][0]}" for name in (x, y, *others)]
        title = textwrap.fill(f"best {value} {found.min():.6g} at {', '.join(at)}", int(11 * width))
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


def _values(column: pd.Series) -> tuple[list[str], np.ndarray]:
    """How a parameter's values are written, numbers first and in order, and the place of each row's value in that."""

    def key(value: Any) -> tuple[bool, float, str]:
        if isinstance(value, Real) and not isinstance(value, bool) and value == value:
            return False, float(value), f"{value:g}"
        return True, 0.0, "none" if value is None or value != value else str(value)

    keys = [key(value) for value in column.tolist()]
    places = {one: place for place, one in enumerate(sorted(set(keys)))}
    return [text for _, _, text in places], np.array([places[one] for one in keys])


def _cells(
    table: pd.DataFrame, parameters: list[str], value: str, row: np.ndarray, column: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, int | None]:
    """The value of each cell, NaN where there is none; the cells where all diverged; a row of the best configuration.

    The same rule as `sweep.best`: a configuration counts only if it is done for every seed.
    """
    configuration = table.groupby(parameters, sort=False, dropna=False).ngroup().to_numpy()
    is_done, is_gone = table["status"] == Status.done, table["status"] == Status.diverged
    kept = table.assign(configuration=configuration, at=np.arange(len(table)), done=is_done, diverged=is_gone)
    kept = kept.drop_duplicates(["configuration", "seed"])
    every = kept.groupby("configuration").agg({"at": "first", value: "mean", "done": "sum", "diverged": "any"})
    done = every["done"] == table["seed"].nunique()
    cells, hatched = np.full(shape, np.inf), np.zeros(shape, dtype=bool)
    at = every["at"].to_numpy()
    np.minimum.at(cells, (row[at[done]], column[at[done]]), every.loc[done, value])
    gone, waiting = at[every["diverged"]], at[~done & ~every["diverged"]]
    hatched[row[gone], column[gone]] = True
    hatched[row[waiting], column[waiting]] = False
    hatched &= np.isinf(cells)
    best = int(at[done][every.loc[done, value].argmin()]) if done.any() else None
    return np.where(np.isinf(cells), np.nan, cells), hatched, best


def _special(axes: Axes, cells: np.ndarray, hatched: np.ndarray) -> list[Patch]:
    """Draw the cells without a value and the lines between all, and return what the legend says of such cells."""
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


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as .png, .pdf or .svg."""
    path = Path(path)
    require(path.suffix.lower() in SUFFIXES, f"cannot draw {path.name!r}: end its name in {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
