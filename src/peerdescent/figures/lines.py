"""Curves: single traces, and means over seeds with bands."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter

from peerdescent.errors import require, unknown
from peerdescent.figures.groups import Runs, grouped
from peerdescent.figures.sheets import DOT, sheet
from peerdescent.figures.style import finish, line_style
from peerdescent.runs.bands import HORIZONTAL, add_gap, band, quantities
from peerdescent.runs.trace import Status, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from peerdescent.runs.metrics import Metric

MARKS = 8  # the most markers of a line
LEGEND = 0.75  # the inches of a legend for which there is room; the figure is as much taller as the legend has more


def comparison(
    traces: Runs,
    ax: Any = None,
    panels: Sequence[tuple[str, str]] = (),
    optimum: float | None = None,
) -> Figure:
    """Four panels with one line per method: loss, gradient norm and consensus error by epochs, and loss by bytes.

    A line is one trace, or the mean of several that differ in seed. If all traces have a clock, the
    loss by simulated seconds follows. Metrics of your own that all traces have follow, in panels by
    epochs. If a trace has no epochs (an infinite stream of samples), steps take their place. With
    `panels`, there are those instead. `traces`, the axes, `panels`, `optimum` and `ax` are as in
    `curves`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> len(comparison(trace).axes)
    4
    """
    groups = grouped(traces)
    every = [trace for own in groups.values() for trace in own]
    chosen = list(panels) or _panels(every)
    return curves(
        groups, chosen, optimum, DOT.join(filter(None, [_title(every), _over(groups)])), ax
    )


def _over(groups: Mapping[str, Sequence[Trace]]) -> str:
    """Over how many seeds the lines are means; empty if all are of one."""
    counts = sorted({len(traces) for traces in groups.values()})
    if counts == [1]:
        return ""
    return (
        f"mean of {counts[0]} seeds"
        if len(counts) == 1
        else f"means of {counts[0]} to {counts[-1]} seeds"
    )


def _panels(traces: Sequence[Trace]) -> list[tuple[str, str]]:
    """The panels of a comparison, which all traces can fill."""
    time = "step" if any(trace.table["epoch"].isna().any() for trace in traces) else "epoch"
    panels = [(time, "loss"), (time, "grad_norm"), (time, "consensus"), ("bytes", "loss")]
    if all("clock" in trace.table and trace.table["clock"].notna().any() for trace in traces):
        panels.append(("clock", "loss"))
    owned = [[own.name for own in trace.metrics] for trace in traces]
    return panels + [(time, name) for name in owned[0] if all(name in names for names in owned)]


def curves(
    traces: Runs,
    panels: Sequence[tuple[str, str]] = (("epoch", "loss"),),
    optimum: float | None = None,
    title: str = "",
    ax: Any = None,
) -> Figure:
    """Curves of groups of traces that differ in seed. Each group is one line, the mean over its traces.

    The band around a mean is one sample standard deviation to either side on a linear axis, but no
    further than the smallest and the largest trace. On a log axis, where a deviation could reach
    below zero, it goes from the one to the other. Traces recorded at different points are
    interpolated linearly. A mean ends with the first of its traces.

    A trace that diverged is in no mean: it is drawn as a thin line of its own, and the legend says
    so. The axes fit the other traces. The axis of the loss is limited if a trace rises, or if a
    steep start would make the rest look flat.

    Args:
        traces: One `Trace`, the `Traces` of several seeds, a `Comparison`, a list of these, or
            {label: traces}. Lines without a label go by the names of their methods.
        panels: The axes (horizontal, vertical) of each panel. Horizontal is "step", "epoch",
            "rounds", "bytes", "seconds" or "clock"; vertical is "loss", "gap" (loss - `optimum`),
            "grad_norm", "stationarity", "consensus" or a metric of your own.
        optimum: The smallest possible loss, for gaps.
        title: The title of the figure; by default the number of seeds, if there are several and the
            figure is new.
        ax: The axes of matplotlib to draw on, one for each panel, as one object, a list or an
            array; by default a new figure. Their figure keeps its layout: title and legend go into
            the first panel.

    Returns:
        The figure.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network, method = peer.Network(peer.topology.ring(4)), peer.methods.dsgd()
    >>> traces = [peer.run(method, problem, network, steps=20, record=5, seed=seed) for seed in range(3)]
    >>> len(curves({"dsgd": traces}, [("epoch", "loss"), ("bytes", "gap")], optimum=0.0).axes)
    2
    """
    groups = grouped(traces)
    metrics = _check(groups, panels, optimum)
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    size = max(6.0, 4.75 * columns), max(4.2, 3.4 * math.ceil(len(panels) / columns))
    place = sheet(ax, len(panels), size, columns)
    first: dict[str, Axes] = {}
    for axes, (x, y) in zip(place.axes, panels, strict=True):
        if first.setdefault(x, axes) is not axes and place.own:
            axes.sharex(first[x])
        metric, drawn = metrics[y], []
        for index, (name, own) in enumerate(groups.items()):
            drawn += _group(axes, index, name, own, x, metric, optimum)
        finish(axes, HORIZONTAL[x].label, metric.label)
        axes.margins(x=0.02)
        if x == "bytes":
            axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
            axes.xaxis.set_major_locator(MaxNLocator(6))
        (_logarithmic if metric.log else _loss_limits if y == "loss" else _linear)(axes, drawn)
    handles = [
        line for line in place.axes[0].get_lines() if not str(line.get_label()).startswith("_")
    ]
    room = int(12.6 * place.width)
    labels = [_wrapped(str(line.get_label()), max(room - 10, 10)) for line in handles]
    widest = max(len(part) for label in labels for part in label.split("\n"))
    fit = max(1, min(len(handles), room // (10 + widest)))
    if place.own:  # a tall legend must not take the room of the panels
        tall = math.ceil(len(handles) / fit) * (
            0.07 + 0.17 * max(label.count("\n") + 1 for label in labels)
        )
        place.figure.set_figheight(place.figure.get_figheight() + max(0.0, tall - LEGEND))
    place.legend(handles, labels, "lower center", ncols=fit, handlelength=3.2)
    place.title(title or (_over(groups) if place.own else ""))
    return place.figure


def _wrapped(label: str, width: int) -> str:
    """A label in lines of at most `width` letters; a selector is cut between its parameters."""
    return (
        label
        if len(label) <= width
        else "\n".join(
            textwrap.wrap(re.sub(r",(?=\S)", ", ", label), width, break_on_hyphens=False)
        )
    )


def _check(
    groups: Mapping[str, Sequence[Trace]], panels: Sequence[tuple[str, str]], optimum: float | None
) -> dict[str, Metric]:
    """Refuse panels with unknown axes; returns the metrics for the vertical axis."""
    pairs = len(panels) > 0 and all(
        not isinstance(panel, str) and len(panel) == 2 for panel in panels
    )
    require(pairs, f'panels = {panels!r}: give pairs, such as [("epoch", "loss")]')
    every = [trace for traces in groups.values() for trace in traces]
    described = [metric for trace in every for metric in trace.metrics]
    metrics = quantities((column for trace in every for column in trace.table.columns), described)
    for x, y in panels:
        if x not in HORIZONTAL:
            raise unknown("horizontal axis", x, HORIZONTAL)
        if y not in metrics:
            raise unknown("vertical axis", y, metrics)
        given = y != "gap" or optimum is not None
        require(
            given, "a gap is loss - optimum: give optimum=, such as the smallest loss of a long run"
        )
    return metrics


class _Line(NamedTuple):
    """One line of a figure: the mean of one or several traces at the points x, and the band from low to high."""

    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    least: float
    """The smallest value, which a log axis may not show."""
    diverged: bool = False


def _group(
    axes: Axes,
    index: int,
    name: str,
    traces: Sequence[Trace],
    x: str,
    metric: Metric,
    optimum: float | None,
) -> list[_Line]:
    diverged = [trace for trace in traces if trace.status == Status.diverged]
    kept = [trace for trace in traces if trace.status != Status.diverged]
    count = f" ({len(diverged)} of {len(traces)} diverged)" if kept else " (diverged)"
    label = name + count if diverged else name
    # If all traces diverged, the first one is drawn as the line of the group.
    alone = diverged if kept else diverged[1:]
    line = _line(name, kept or diverged[:1], x, metric, optimum)._replace(diverged=not kept)
    others = [_line(name, [trace], x, metric, optimum)._replace(diverged=True) for trace in alone]
    style = line_style(index)
    if len(kept) > 1:
        axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.2, linewidth=0)
    every = max(1, len(line.x) // MARKS)
    axes.plot(
        line.x,
        line.mean,
        label=label,
        linewidth=1.7,
        markersize=5.5,
        markeredgewidth=1.3,
        markevery=(index * every // max(2, MARKS // 2) % every, every),
        **style,
    )
    for other in others:
        axes.plot(
            other.x, other.mean, color=style["color"], linestyle=style["linestyle"], linewidth=0.9
        )
    return [line, *others]


def _line(
    name: str, traces: Sequence[Trace], x: str, metric: Metric, optimum: float | None
) -> _Line:
    """The mean over traces and its band, restricted to values that the metric's axis can show."""
    tables = [trace.table if optimum is None else add_gap(trace.table, optimum) for trace in traces]
    for wanted in (x, metric.name):
        recorded = all(wanted in table for table in tables)
        require(recorded, f"{name!r} has no {wanted}: it was not recorded; choose another panel")
        finite = all(np.isfinite(table[wanted].to_numpy(float)).any() for table in tables)
        require(finite, f"{name!r} has no finite {wanted} at any record; choose another panel")
    found = band(tables, x, metric.name)
    require(
        len(found.x) > 0, f"the traces of {name!r} have no {x} in common: give them the same budget"
    )
    low, high = found.edges(metric.log)
    least = float(np.nanmin(found.values))
    if not metric.log:
        return _Line(name, found.x, found.mean, low, high, least)
    # A log axis cannot show the zero consensus error of a common start, or a loss below the
    # optimum.
    mean = np.where(found.mean > 0, found.mean, np.nan)
    floor = found.values[found.values > 0].min(initial=math.inf)
    return _Line(name, found.x, mean, np.maximum(low, floor) + 0 * mean, high + 0 * mean, least)


def _linear(axes: Axes, lines: Sequence[_Line]) -> None:
    """Set limits that fit the lines that did not diverge."""
    kept = _finite(edge for line in lines if not line.diverged for edge in (line.low, line.high))
    if kept and any(line.diverged for line in lines):
        margin = 0.05 * (max(kept) - min(kept)) or 0.5
        axes.set_ylim(min(kept) - margin, max(kept) + margin)


def _loss_limits(axes: Axes, lines: Sequence[_Line]) -> None:
    """Limit the axis of the loss if a rising line or a steep start would make all else look flat.

    Above the start, show no more than below it. If less than a fifth of the height is left after a
    tenth of a run, show no more than twice that.
    """
    start, low = (
        max(_finite(line.mean[:1] for line in lines)),
        min(_finite(line.low for line in lines)),
    )
    reach = start - low
    escaped = [bool((line.high > start + reach).any()) for line in lines]
    top = start + reach if any(escaped) and not all(escaped) else math.inf
    steady = [
        line for line, gone in zip(lines, escaped, strict=True) if not gone and not line.diverged
    ]
    late = _finite(line.high[line.x >= 0.9 * line.x[0] + 0.1 * line.x[-1]] for line in steady)
    if steady and len(late) > 0:
        left = max(late) - low
        top = low + max(2 * left, 0.1 * reach) if left < reach / 5 else top
    if reach > 0 and top < math.inf:
        axes.set_ylim(low - 0.05 * (top - low), top)


def _logarithmic(axes: Axes, lines: Sequence[_Line]) -> None:
    unseen = [line for line in lines if not np.isfinite(line.mean).any()]
    parts = {"0": [line.name for line in unseen if line.least == 0]}
    parts["not above 0"] = [line.name for line in unseen if line.least < 0]
    said = [f"{what}: {', '.join(dict.fromkeys(names))}" for what, names in parts.items() if names]
    at: dict[str, Any] = {"x": 0.02, "y": 0.03}
    if len(unseen) == len(lines):
        at = {"x": 0.5, "y": 0.5, "ha": "center", "va": "center"}
        axes.set_yticks([])
    if said:
        shown = "\n".join(_wrapped(each, 48) for each in said)
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
        axes.text(
            s=shown, transform=axes.transAxes, fontsize=9, color="0.3", bbox=box, zorder=4, **at
        )
    if len(unseen) == len(lines):
        return
    axes.set_yscale("log")
    axes.grid(which="minor", axis="y", color="0.95", linewidth=0.6)
    kept = _finite(edge for line in lines if not line.diverged for edge in (line.low, line.high))
    if kept and any(line.diverged for line in lines):
        axes.set_ylim(min(kept) / 2, max(kept) * 2)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(NullFormatter())
    if high < 200 * low:  # too few powers of ten for tick labels
        digits = "25" if high > 5 * low else "123456789"
        axes.yaxis.set_minor_formatter(
            FuncFormatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in digits else "")
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _finite(arrays: Any) -> list[float]:
    return [value for array in arrays for value in array.tolist() if math.isfinite(value)]


def _title(traces: Sequence[Trace]) -> str:
    """The names of the problem and the network, if they are the same for all traces."""
    problems = {trace.identity.problem for trace in traces}
    networks = {trace.identity.network for trace in traces}
    common = [next(iter(names)) for names in (problems, networks) if len(names) == 1]
    shown = (re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", name) for name in common)
    return DOT.join(shown)
