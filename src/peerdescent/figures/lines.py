"""Curves: single traces, and means over seeds with bands."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter

from peerdescent.errors import require, unknown
from peerdescent.figures.style import finish, line_style
from peerdescent.runs.bands import HORIZONTAL, add_gap, band, quantities
from peerdescent.runs.trace import Status, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from peerdescent.runs.metrics import Metric

MARKS = 8  # the most markers of a line


def comparison(traces: Mapping[str, Trace]) -> Figure:
    """Four panels with one line per trace: loss, gradient norm and consensus error by epochs, and loss by bytes.

    If all traces have a clock, the loss by simulated seconds follows. Metrics of your own that all traces have follow,
    in panels by epochs. If a trace has no epochs (an infinite stream of samples), steps take their place. The axes are
    as in `curves`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> len(comparison({"dsgd": trace}).axes)
    4
    """
    require(len(traces) > 0, "no traces to compare: give at least one")
    time = "step" if any(trace.table["epoch"].isna().any() for trace in traces.values()) else "epoch"
    panels = [(time, "loss"), (time, "grad_norm"), (time, "consensus"), ("bytes", "loss")]
    if all("clock" in trace.table and trace.table["clock"].notna().any() for trace in traces.values()):
        panels.append(("clock", "loss"))
    owned = [[own.name for own in trace.metrics] for trace in traces.values()]
    panels += [(time, name) for name in owned[0] if all(name in names for names in owned)]
    return curves({name: [trace] for name, trace in traces.items()}, panels, title=_title(traces))


def curves(
    groups: Mapping[str, Sequence[Trace]],
    panels: Sequence[tuple[str, str]] = (("epoch", "loss"),),
    optimum: float | None = None,
    title: str = "",
) -> Figure:
    """Curves of groups of traces that differ in seed. Each group is one line, the mean over its traces.

    The band around a mean is one sample standard deviation to either side on a linear axis, but no further than the
    smallest and the largest trace. On a log axis, where a deviation could reach below zero, it goes from the one to the
    other. Traces recorded at different points are interpolated linearly. A mean ends with the first of its traces.

    A trace that diverged is in no mean: it is drawn as a thin line of its own, and the legend says so. The axes fit the
    other traces. The axis of the loss is limited if a trace rises, or if a steep start would make the rest look flat.

    Args:
        groups: The traces of each line, by the line's name.
        panels: The axes (horizontal, vertical) of each panel. Horizontal is "step", "epoch", "rounds", "bytes",
            "seconds" or "clock"; vertical is "loss", "gap" (loss - `optimum`), "grad_norm", "stationarity",
            "consensus" or a metric of your own.
        optimum: The smallest possible loss, for gaps.
        title: The title of the figure.

    Returns:
        The figure.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network, method = peer.Network(peer.topology.ring(4)), peer.methods.dsgd()
    >>> traces = [peer.run(method, problem, network, steps=20, record=5, seed=seed) for seed in range(3)]
    >>> len(curves({"dsgd": traces}, [("epoch", "loss"), ("bytes", "gap")], optimum=0.0).axes)
    2
    """
    metrics = _check(groups, panels, optimum)
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(6.0, 4.75 * columns), max(4.2, 3.4 * rows)))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    first: dict[str, Axes] = {}
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (x, y) in zip(places, panels, strict=False):
        if first.setdefault(x, axes) is not axes:
            axes.sharex(first[x])
        metric, drawn = metrics[y], []
        for index, (name, traces) in enumerate(groups.items()):
            drawn += _group(axes, index, name, traces, x, metric, optimum)
        finish(axes, HORIZONTAL[x].label, metric.label)
        axes.margins(x=0.02)
        if x == "bytes":
            axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
            axes.xaxis.set_major_locator(MaxNLocator(6))
        (_logarithmic if metric.log else _loss_limits if y == "loss" else _linear)(axes, drawn)
    for axes in places[len(panels) :]:
        axes.remove()
    handles = [line for line in places[0].get_lines() if not str(line.get_label()).startswith("_")]
    room = int(12.6 * figure.get_figwidth())
    labels = [_wrapped(str(line.get_label()), room - 10) for line in handles]
    widest = max(len(part) for label in labels for part in label.split("\n"))
    fit = max(1, min(len(handles), room // (10 + widest)))
    figure.legend(handles, labels, loc="outside lower center", ncols=fit, frameon=False, handlelength=3.2)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def _wrapped(label: str, width: int) -> str:
    """A label in lines of at most `width` letters; a selector is cut between its parameters."""
    return label if len(label) <= width else "\n".join(textwrap.wrap(label.replace(",", ", "), width))


def _check(
    groups: Mapping[str, Sequence[Trace]], panels: Sequence[tuple[str, str]], optimum: float | None
) -> dict[str, Metric]:
    """Refuse panels with unknown axes; returns the metrics for the vertical axis."""
    require(len(groups) > 0, "no groups to draw: give at least one")
    for name, traces in groups.items():
        good = not isinstance(traces, Trace) and len(traces) > 0
        require(good, f"the group {name!r} has to be a list of at least one trace")
    pairs = len(panels) > 0 and all(not isinstance(panel, str) and len(panel) == 2 for panel in panels)
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
        require(given, "a gap is loss - optimum: give optimum=, such as the smallest loss of a long run")
    return metrics


class _Line(NamedTuple):
    """One line of a figure: the mean of one or several traces at the points x, and the band from low to high."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    diverged: bool = False


def _group(
    axes: Axes, index: int, name: str, traces: Sequence[Trace], x: str, metric: Metric, optimum: float | None
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
        axes.plot(other.x, other.mean, color=style["color"], linestyle=style["linestyle"], linewidth=0.9)
    return [line, *others]


def _line(name: str, traces: Sequence[Trace], x: str, metric: Metric, optimum: float | None) -> _Line:
    """The mean over traces and its band, restricted to values that the metric's axis can show."""
    tables = [trace.table if optimum is None else add_gap(trace.table, optimum) for trace in traces]
    for wanted in (x, metric.name):
        recorded = all(wanted in table for table in tables)
        require(recorded, f"{name!r} has no {wanted}: it was not recorded; choose another panel")
        finite = all(np.isfinite(table[wanted].to_numpy(float)).any() for table in tables)
        require(finite, f"{name!r} has no finite {wanted} at any record; choose another panel")
    found = band(tables, x, metric.name)
    require(len(found.x) > 0, f"the traces of {name!r} have no {x} in common: give them the same budget")
    if not metric.log:
        low, high = found.mean - found.deviation, found.mean + found.deviation
        return _Line(found.x, found.mean, np.maximum(low, found.low), np.minimum(high, found.high))
    # A log axis cannot show the zero consensus error of a common start, or a loss below the optimum.
    mean = np.where(found.mean > 0, found.mean, np.nan)
    least = found.values[found.values > 0].min(initial=math.inf)
    return _Line(found.x, mean, np.maximum(found.low, least) + 0 * mean, found.high + 0 * mean)


def _linear(axes: Axes, lines: Sequence[_Line]) -> None:
    """Set limits that fit the lines that did not diverge."""
    kept = _finite(edge for line in lines if not line.diverged for edge in (line.low, line.high))
    if kept and any(line.diverged for line in lines):
        margin = 0.05 * (max(kept) - min(kept)) or 0.5
        axes.set_ylim(min(kept) - margin, max(kept) + margin)


def _loss_limits(axes: Axes, lines: Sequence[_Line]) -> None:
    """Limit the axis of the loss, since a rising line or a steep start would make all else look flat.

    Above the start, show no more than below it, and no more than twice the height that is left after a tenth of a run.
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
    kept = _finite(edge for line in lines if not line.diverged for edge in (line.low, line.high))
    if kept and any(line.diverged for line in lines):
        axes.set_ylim(min(kept) / 2, max(kept) * 2)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(NullFormatter())
    if high < 200 * low:  # too few powers of ten for tick labels
        digits = "25" if high > 5 * low else "123456789"
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in digits else ""))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _finite(arrays: Any) -> list[float]:
    return [value for array in arrays for value in array.tolist() if math.isfinite(value)]


def _title(traces: Mapping[str, Trace]) -> str:
    """The names of the problem and the network, if they are the same for all traces."""
    problems = {trace.identity.problem for trace in traces.values()}
    networks = {trace.identity.network for trace in traces.values()}
    common = [next(iter(names)) for names in (problems, networks) if len(names) == 1]
    shown = (re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", name) for name in common)
    return "  ·  ".join(shown)
