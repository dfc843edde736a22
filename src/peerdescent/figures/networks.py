"""Drawings of networks: nodes and links, with one panel for each step of a sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch

from peerdescent.figures.sheets import sheet
from peerdescent.figures.style import COLOURS
from peerdescent.networks import layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from peerdescent.networks.network import Network

BLUE = COLOURS[0]
MARGIN = layout.STUB  # around the outermost nodes, in units of the circle's radius
LABELLED = 60  # the most nodes with numbers; more would not be legible
ARROWS = 2000  # the most links with arrowheads; more would hide each other
TURNS = 8  # the most matrices of a sequence


def drawing(network: Network, ax: Any = None) -> Figure:
    """A drawing of a network: nodes on a circle, or in rows for a grid or torus; one panel for each step of a sequence.

    The links that close a torus are drawn as stubs at its sides. `ax` are axes of matplotlib to
    draw on, one for each panel; by default a new figure. Several panels on your axes have no common
    title.

    >>> from peerdescent import Network, topology
    >>> len(drawing(Network(topology.one_peer_exponential(8))).axes)
    3
    """
    places = layout.places(network.name, network.n)
    width, height = np.ptp(places, axis=0) + 2 * MARGIN
    turns = min(len(network.examples), TURNS)
    columns = turns if turns <= 3 else math.ceil(turns / 2)
    size = 6.0 if turns == 1 else 3.6
    scale = min(3.0, size / max(width, height))
    shape = columns * width * scale, math.ceil(turns / columns) * height * scale + 0.3
    panels = sheet(ax, turns, (max(shape[0], 5.0), max(shape[1], 1.2)), columns, pads=(0.04, 0.04))
    for turn, axes in enumerate(panels.axes):
        axes.set_axis_off()
        axes.set_aspect("equal")
        _draw(axes, network, turn, places, scale if panels.own else _scale(axes, width, height))
        if turns > 1:
            drawn = (
                f"a draw, t = {turn}"
                if network.graph is not None
                else f"t mod {network.period} = {turn}"
            )
            axes.set_title(drawn, fontsize=10)
    lam = network.lam if network.lam > 1e-12 else 0  # smaller values are rounding
    faults = "".join(f"{fault}, " for fault in network.faults)
    if panels.own or turns == 1:
        panels.title(
            f"{network.name}, n = {network.n}, {network.rule} weights, {faults}λ = {lam:.4g}"
        )
    return panels.figure


def _scale(axes: Axes, width: float, height: float) -> float:
    """Inches by units of the drawing, on axes that the caller gave."""
    box, (across, up) = axes.get_position(), axes.figure.figure.get_size_inches()
    return float(min(box.width * across / width, box.height * up / height))


def _draw(axes: Axes, network: Network, turn: int, places: np.ndarray, scale: float) -> None:
    links = layout.links(network.examples[turn])
    lattice = network.name in layout.LATTICES
    spacing = layout.SPACING if lattice else min(layout.SPACING, 2 * math.pi / network.n)
    diameter = min(20.0, 0.62 * spacing * scale * 72)
    crowd = 1 if lattice else len(links)
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
        shown = [(places[j], places[i]) for j, i in links if j < i or network.is_directed]
        lines = [line for ends in shown for line in layout.segments(network.name, *ends)]
        axes.add_collection(LineCollection(lines, linewidths=1.2, **ink))
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=diameter**2,
        color="white",
        edgecolors=BLUE,
        linewidths=1.3,
        zorder=3,
    )
    if network.n <= LABELLED:
        for node, (x, y) in enumerate(places):
            axes.text(
                x, y, str(node), ha="center", va="center", fontsize=min(9, 0.5 * diameter), zorder=4
            )
    (left, low), (right, high) = places.min(axis=0) - MARGIN, places.max(axis=0) + MARGIN
    axes.set(xlim=(left, right), ylim=(low, high))
