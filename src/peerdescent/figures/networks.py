"""Drawings of networks: nodes and links, with one panel for each step of a sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from peerdescent.figures.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from peerdescent.networks.network import Network

BLUE = COLOURS[0]
LATTICES = ("grid", "torus")
MARGIN = 0.18  # around the outermost nodes, in units of the circle's radius
LABELLED = 60  # the most nodes with numbers; more would not be legible
ARROWS = 2000  # the most links with arrowheads; more would hide each other
TURNS = 8  # the most matrices of a sequence


def drawing(network: Network) -> Figure:
    """A drawing of a network: nodes on a circle, or in rows for a grid or torus; one panel for each step of a sequence.

    The links that close a torus are drawn as stubs at its sides.

    >>> from peerdescent import Network, topology
    >>> len(drawing(Network(topology.one_peer_exponential(8))).axes)
    3
    """
    places = _places(network)
    width, height = np.ptp(places, axis=0) + 2 * MARGIN
    turns = min(len(network.examples), TURNS)
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
                drawn = f"a draw, t = {turn}" if network.graph is not None else f"t mod {network.period} = {turn}"
                axes.set_title(drawn, fontsize=10)
    lam = network.lam if network.lam > 1e-12 else 0  # smaller values are rounding
    faults = "".join(f"{fault}, " for fault in network.faults)
    figure.suptitle(f"{network.name}, n = {network.n}, {network.rule} weights, {faults}λ = {lam:.4g}", fontsize=12)
    return figure


def _places(network: Network) -> np.ndarray:
    """The positions of nodes (n, 2): row by row for a grid or torus, else clockwise from the top of a circle."""
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
    target, source = network.examples[turn].nonzero()
    links = [(j, i) for j, i in zip(source.tolist(), target.tolist(), strict=True) if i != j]
    spacing = 0.5 if network.name in LATTICES else min(0.5, 2 * math.pi / network.n)
    diameter = min(20.0, 0.62 * spacing * scale * 72)
    crowd = 1 if network.name in LATTICES else len(links)
    ink: dict[str, Any] = {"color": BLUE, "alpha": float(np.clip(80 / max(1, crowd), 0.12, 0.75))}
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
    axes.scatter(places[:, 0], places[:, 1], s=diameter**2, color="white", edgecolors=BLUE, linewidths=1.3, zorder=3)
    if network.n <= LABELLED:
        for node, (x, y) in enumerate(places):
            axes.text(x, y, str(node), ha="center", va="center", fontsize=min(9, 0.5 * diameter), zorder=4)
    (left, low), (right, high) = places.min(axis=0) - MARGIN, places.max(axis=0) + MARGIN
    axes.set(xlim=(left, right), ylim=(low, high))


def _segments(network: Network, places: np.ndarray, j: int, i: int) -> list[np.ndarray]:
    """The line between two nodes; two stubs for a link that closes a torus."""
    way = places[i] - places[j]
    if network.name != "torus" or np.abs(way).max() <= 0.5:
        return [np.stack([places[j], places[i]])]
    stub = MARGIN * way / np.abs(way).max()
    return [np.stack([places[j], places[j] - stub]), np.stack([places[i], places[i] + stub])]
