"""A graph: circles for nodes, and lines or arrows for links."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from peerdescent.display.elements import COLOURS, element, svg, text

ROOM = 12.0
"""Pixels around the outermost nodes."""
NUMBERED = 7.0
"""The least radius of a node with a number in it, in pixels."""


def graph(
    places: np.ndarray,
    lines: Sequence[np.ndarray],
    arrows: Sequence[np.ndarray] = (),
    size: float = 220,
    title: str = "",
) -> Element:
    """Draw a graph whose nodes have numbers.

    Args:
        places: The positions (n, 2) of nodes, with the second coordinate upwards.
        lines: The two ends (2, 2) of each line.
        arrows: The start and end (2, 2) of each link in one direction.
        size: The longer side, in pixels.
        title: A text above.

    Returns:
        The drawing.
    """
    ends = np.concatenate([places, *lines, *arrows])
    corner, extent = ends.min(axis=0), np.ptp(ends, axis=0)
    scale = (size - 2 * ROOM) / max(extent.max(), 1e-9)
    width, height = (extent * scale + 2 * ROOM).tolist()
    above = 16.0 if title else 0.0

    def at(points: np.ndarray) -> np.ndarray:
        """Points in pixels."""
        across, up = ((points - corner) * scale + ROOM).T
        return np.stack([across, above + height - up], axis=-1)

    nodes = at(places)
    apart = min((float(np.linalg.norm(nodes[0] - other)) for other in nodes[1:]), default=size)
    radius = min(9.0, 0.4 * apart)
    radius = radius if radius >= NUMBERED else max(1.5, 0.25 * apart)
    ink = {
        "stroke": COLOURS[0],
        "fill": "none",
        "opacity": max(0.3, min(1.0, 90 / max(1, len(lines) + len(arrows)))),
    }
    drawn = (
        [element("path", d="".join(_segment(at(each)) for each in lines), **ink)] if lines else []
    )
    drawn += (
        [element("path", d="".join(_arrow(at(each), radius) for each in arrows), **ink)]
        if arrows
        else []
    )
    for number, (x, y) in enumerate(nodes.tolist()):
        # Filled with blue, which all themes can have behind white numbers.
        drawn.append(element("circle", cx=x, cy=y, r=radius, fill=COLOURS[0]))
        if radius >= NUMBERED:
            drawn.append(
                element(
                    "text",
                    str(number),
                    x=x,
                    y=y + 3.2,
                    text_anchor="middle",
                    font_size=9,
                    fill="#fff",
                )
            )
    label = f"a graph of {len(places)} nodes and {len(lines) + len(arrows)} links"
    heading = [text(title, width / 2, 11)] if title else []
    return svg(width, height + above, label, *heading, *drawn)


def _segment(ends: np.ndarray) -> str:
    (a, b), (c, d) = ends.tolist()
    return f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"


def _arrow(ends: np.ndarray, radius: float) -> str:
    """A line to the edge of the node, and two strokes of a head."""
    way = (ends[1] - ends[0]) / max(float(np.linalg.norm(ends[1] - ends[0])), 1e-9)
    side = np.array([-way[1], way[0]])
    tip = ends[1] - radius * way
    (a, b), (c, d) = (tip - 5 * way + 2.5 * side).tolist(), (tip - 5 * way - 2.5 * side).tolist()
    return (
        _segment(np.stack([ends[0], tip]))
        + f"M{a:.1f} {b:.1f}L{tip[0]:.1f} {tip[1]:.1f}L{c:.1f} {d:.1f}"
    )
