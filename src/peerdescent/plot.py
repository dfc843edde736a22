"""Figures: traces side by side, and a network drawn.

Functions return a matplotlib `Figure` made without pyplot, so nothing global changes, no window opens and no display is
needed. Lines differ in colour (Okabe and Ito's, safe for the colour-blind), dash and marker, and so survive grey print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import EngFormatter, MaxNLocator

from peerdescent.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from peerdescent.network import Network
    from peerdescent.trace import Trace

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1)))
MARKERS = "os^DvPX<>"
SUFFIXES = (".png", ".pdf", ".svg")
MARKS = 8  # a line, at most
LATTICES = ("grid", "torus")
MARGIN = 0.18  # around the outermost nodes, in units of the circle's radius
LABELLED = 60  # nodes; more numbers than that would not be legible
ARROWS = 2000  # links; more are drawn as lines, since arrowheads would only hide each other
TURNS = 8  # matrices of a sequence drawn


def comparison(traces: Mapping[str, Trace]) -> Figure:
    """Four panels: loss, gradient norm and consensus error against epochs, and loss against bytes; a line a trace.

    Traces without epochs (endless samples) are drawn against steps. The loss axes end where a trace has climbed as far
    above the start as the best one went below it; the log axes fit the traces that did not diverge.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> len(comparison({"dsgd": trace}).axes)
    4
    """
    require(len(traces) > 0, "no traces to compare: give at least one")
    figure = Figure(figsize=(9.5, 6.8), layout="constrained")
    time = "step" if any(trace.table["epoch"].isna().any() for trace in traces.values()) else "epoch"
    panels = (
        (time, "loss", r"loss $F(\bar{x})$"),
        (time, "grad_norm", r"gradient norm $\|\nabla F(\bar{x})\|$"),
        (time, "consensus", r"consensus error $\frac{1}{n}\sum_i\|x^i-\bar{x}\|^2$"),
        ("bytes", "loss", r"loss $F(\bar{x})$"),
    )
    for axes, (x, y, label) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        if x == time and axes is not figure.axes[0]:
            axes.sharex(figure.axes[0])
        for index, (name, trace) in enumerate(traces.items()):
            _line(axes, index, name, trace, x, y)
        _finish(axes, x, label)
        if y == "loss":
            _cut_escapes(axes, traces)
        elif any((trace.table[y] > 0).any() for trace in traces.values()):
            _logarithmic(axes, traces, y)
    lines = figure.axes[0].get_lines()
    columns = max(1, min(len(traces), 120 // (10 + max(map(len, traces)))))
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    figure.suptitle(_title(traces), fontsize=12)
    return figure


def _line(axes: Axes, index: int, name: str, trace: Trace, x: str, y: str) -> None:
    values = trace.table[y].to_numpy(float)
    if y != "loss":
        values = np.where(values > 0, values, np.nan)  # a log axis has no place for the zeros of a common start
    values = np.where(np.isfinite(values), values, np.nan)
    every = max(1, len(values) // MARKS)
    axes.plot(
        trace.table[x].to_numpy(float),
        values,
        label=name,
        color=COLOURS[index % len(COLOURS)],
        linestyle=DASHES[index % len(DASHES)],
        linewidth=1.7,
        marker=MARKERS[index % len(MARKERS)],
        markersize=5.5,
        markerfacecolor="white",
        markeredgewidth=1.3,
        markevery=(index * every // max(2, MARKS // 2) % every, every),
    )


def _finish(axes: Axes, x: str, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_xlabel({"epoch": "epochs", "step": "steps", "bytes": "sent by a node, on average"}[x])
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(x=0.02)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _cut_escapes(axes: Axes, traces: Mapping[str, Trace]) -> None:
    """One trace that escapes upward would press all others flat: show no more above the start than below it."""
    tables = [trace.table["loss"] for trace in traces.values()]
    start, low = max(float(losses.iloc[0]) for losses in tables), min(float(losses.min()) for losses in tables)
    reach = start - low
    escaped = [bool((losses > start + reach).any()) for losses in tables]
    if reach > 0 and any(escaped) and not all(escaped):
        axes.set_ylim(low - 0.1 * reach, start + reach)


def _logarithmic(axes: Axes, traces: Mapping[str, Trace], y: str) -> None:
    axes.set_yscale("log")
    axes.grid(which="minor", axis="y", color="0.95", linewidth=0.6)
    survivors = [trace.table[y] for trace in traces.values() if trace.status != "diverged"]
    kept = [value for values in survivors for value in values if 0 < value < math.inf]
    if kept and len(survivors) < len(traces):
        axes.set_ylim(min(kept) / 2, max(kept) * 2)


def _title(traces: Mapping[str, Trace]) -> str:
    """The problem and the network, where all traces share them."""
    problems = {trace.identity.problem for trace in traces.values()}
    networks = {trace.identity.network for trace in traces.values()}
    common = [next(iter(names)) for names in (problems, networks) if len(names) == 1]
    shown = (re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", name) for name in common)
    return "  ·  ".join(shown)


def drawing(network: Network) -> Figure:
    """The links of a network: nodes on a circle, or in rows for a grid or torus; a panel for each step of a sequence.

    The links that close a torus leave its sides as stubs.

    >>> from peerdescent import Network, topology
    >>> len(drawing(Network(topology.one_peer_exponential(8))).axes)
    3
    """
    places = _places(network)
    width, height = np.ptp(places, axis=0) + 2 * MARGIN
    turns = min(network.period, TURNS)
    columns = turns if turns <= 3 else math.ceil(turns / 2)
    size = 6.0 if turns == 1 else 3.6
    scale = min(3.0, size / max(width, height))
    shape = columns * width * scale, math.ceil(turns / columns) * height * scale + 0.3
    figure = Figure(figsize=(max(shape[0], 5.0), max(shape[1], 1.2)), layout="constrained")
    panels = figure.subplots(math.ceil(turns / columns), columns, squeeze=False).flat
    for turn, axes in enumerate(panels):
        axes.set_axis_off()
        axes.set_aspect("equal")
        if turn < turns:
            _draw(axes, network, turn, places, scale)
            if turns > 1:
                axes.set_title(f"t mod {network.period} = {turn}", fontsize=10)
    lam = network.lam if network.lam > 1e-12 else 0  # the rest is rounding
    figure.suptitle(f"{network.name}, n = {network.n}, {network.rule} weights, λ = {lam:.4g}", fontsize=12)
    return figure


def _places(network: Network) -> np.ndarray:
    """Where nodes are drawn, (n, 2): in reading order, as `topology.grid` divides them, or clockwise from the top."""
    n = network.n
    if network.name in LATTICES:
        rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
        row, column = np.divmod(np.arange(n), n // rows)
        return np.column_stack([column, -row]) * 0.5
    hub = 1 if network.name == "star" or n == 1 else 0
    angles = 2 * np.pi * np.arange(n - hub) / max(1, n - hub)
    circle = np.column_stack([np.sin(angles), np.cos(angles)])
    return np.concatenate([np.zeros((hub, 2)), circle])


def _draw(axes: Axes, network: Network, turn: int, places: np.ndarray, scale: float) -> None:
    target, source = network.matrices[turn].nonzero()
    links = [(j, i) for j, i in zip(source.tolist(), target.tolist(), strict=True) if i != j]
    spacing = 0.5 if network.name in LATTICES else min(0.5, 2 * math.pi / network.n)
    diameter = min(20.0, 0.62 * spacing * scale * 72)
    crowd = 1 if network.name in LATTICES else len(links)
    ink: dict[str, Any] = {"color": COLOURS[0], "alpha": float(np.clip(80 / max(1, crowd), 0.12, 0.75))}
    if network.is_directed and len(links) <= ARROWS:
        for j, i in links:
            arrow = FancyArrowPatch(
                places[j],
                places[i],
                arrowstyle="-|>,head_length=4,head_width=2",
                connectionstyle="arc3,rad=0.12",
                shrinkA=diameter / 2,
                shrinkB=diameter / 2,
                linewidth=0.9,
                **ink,
            )
            axes.add_patch(arrow)
    else:
        lines = [line for j, i in links if j < i or network.is_directed for line in _segments(network, places, j, i)]
        axes.add_collection(LineCollection(lines, linewidths=1.2, **ink))
    axes.scatter(
        places[:, 0], places[:, 1], s=diameter**2, color="white", edgecolors=COLOURS[0], linewidths=1.3, zorder=3
    )
    if network.n <= LABELLED:
        for node, (x, y) in enumerate(places):
            axes.text(x, y, str(node), ha="center", va="center", fontsize=min(9, 0.5 * diameter), zorder=4)
    (left, low), (right, high) = places.min(axis=0) - MARGIN, places.max(axis=0) + MARGIN
    axes.set(xlim=(left, right), ylim=(low, high))


def _segments(network: Network, places: np.ndarray, j: int, i: int) -> list[np.ndarray]:
    """A line between two places; on a torus, two stubs where it goes round."""
    way = places[i] - places[j]
    if network.name != "torus" or np.abs(way).max() <= 0.5:
        return [np.stack([places[j], places[i]])]
    stub = MARGIN * way / np.abs(way).max()
    return [np.stack([places[j], places[j] - stub]), np.stack([places[i], places[i] + stub])]


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as .png, .pdf or .svg."""
    path = Path(path)
    require(path.suffix.lower() in SUFFIXES, f"cannot draw {path.name!r}: end its name in {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
