"""Where a figure is drawn: in a figure of its own, which notebooks show, or on axes that the caller gives."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from peerdescent.errors import require

DOT = "  ·  "
"""What is between the parts of a title."""
SHARPNESS = 1.5
"""Pixels of a picture in a notebook by those of a plain screen; a high-resolution screen shows them."""


class Figure(matplotlib.figure.Figure):
    """A figure that a notebook shows as the last expression of a cell.

    Plain figures are shown only after `matplotlib.pyplot` was imported, which this package does
    not.
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and its size on the page: 96 pixels an inch, as browsers have them."""
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=96 * SHARPNESS)
        width, height = 96 * self.get_size_inches()
        return content.getvalue(), {"width": round(width), "height": round(height)}


@dataclass(frozen=True)
class Sheet:
    """The panels of a figure."""

    figure: matplotlib.figure.Figure
    axes: Sequence[Axes]
    own: bool
    """Whether the figure was made here. The caller's figure keeps its layout, titles and legends."""

    @property
    def width(self) -> float:
        """The room for a title or legend, in inches."""
        return float(
            self.figure.get_figwidth() * (1 if self.own else self.axes[0].get_position().width)
        )

    def title(self, text: str, pad: float | None = None) -> None:
        """Write a title over all panels; in the caller's figure, `pad` points over the first one, from its left."""
        if text and self.own:
            shown = _wrapped(text, self.width - 0.2, 12)
            self.figure.suptitle(shown, fontsize=12)
            self.figure.set_figheight(self.figure.get_figheight() + 0.2 * shown.count("\n"))
        elif text:
            _lay_out(self.figure)  # again: labels take room
            room = max(axes.bbox.x1 for axes in self.axes) - self.axes[0].bbox.x0
            self.axes[0].set_title(
                _wrapped(text, room / self.figure.dpi, 10), loc="left", fontsize=10, pad=pad
            )

    def legend(
        self, handles: Sequence[Any], labels: Sequence[str], place: str, panel: int = 0, **look: Any
    ) -> None:
        """Draw one legend for all panels: beside them at `place`, or inside of one `panel` in the caller's figure."""
        if self.own:
            loc: Any = f"outside {place}"
            self.figure.legend(handles, labels, loc=loc, frameon=False, **look)
        else:
            self.axes[panel].legend(handles, labels, frameon=False, fontsize=9)


def _lay_out(figure: matplotlib.figure.Figure) -> None:
    """Give the axes their places, which they would else have only when the figure is drawn."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _wrapped(title: str, room: float, size: float) -> str:
    """A title in lines of at most `room` inches, cut between its parts, and inside of parts that are longer."""
    lines: list[str] = []
    for line in title.split("\n"):
        width = (
            text_to_path.get_text_width_height_descent(line, FontProperties(size=size), False)[0]
            / 72
        )
        most = (
            len(line) if width <= room else max(1, int(0.93 * len(line) * room / width))
        )  # letters differ in width
        lines.append("")
        for part in line.replace(" = ", "\u00a0=\u00a0").split(DOT):
            joined = DOT.join(filter(None, [lines[-1], part]))
            cut = textwrap.wrap(part, most, break_on_hyphens=False)
            lines[-1:] = [joined] if len(joined) <= most else [lines[-1], *cut]
    return "\n".join(filter(None, lines)).replace("\u00a0", " ")


def sheet(
    ax: Any,
    panels: int,
    size: tuple[float, float],
    columns: int | None = None,
    pads: tuple[float, float] = (0.08, 0.06),
    sharey: bool = False,
) -> Sheet:
    """New panels, or the axes that the caller gives.

    Args:
        ax: None for a new figure; else matplotlib's axes, or a list or array of them, one for each
            panel.
        panels: The number of panels.
        size: Width and height of a new figure, in inches.
        columns: The columns of panels in a new figure; by default all are in one row.
        pads: The horizontal and vertical margins of a new figure's panels, in inches.
        sharey: Whether the panels of a new figure share their vertical axis.

    Returns:
        The panels.
    """
    if ax is not None:
        given = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, dtype=object)))
        wrong = next((type(one).__name__ for one in given if not isinstance(one, Axes)), None)
        require(
            wrong is None, f"ax holds a {wrong}: give matplotlib's axes, such as plt.subplots()[1]"
        )
        many = f"{panels} panels" if panels > 1 else "one panel"
        form = f"plt.subplots(1, {panels})[1]" if panels > 1 else "plt.subplots()[1]"
        fits = len(given) == len({id(one) for one in given}) == panels
        require(
            fits,
            f"ax has {len(given)} axes, and the figure {many}: give one for each, such as {form}",
        )
        figures = {id(one.figure.figure): one.figure.figure for one in given}
        require(len(figures) == 1, f"ax has axes of {len(figures)} figures: give axes of one")
        theirs = next(iter(figures.values()))
        _lay_out(theirs)
        return Sheet(theirs, given, False)
    figure = Figure(figsize=size)
    figure.set_layout_engine("constrained", w_pad=pads[0], h_pad=pads[1])
    columns = columns or panels
    places = figure.subplots(
        math.ceil(panels / columns), columns, squeeze=False, sharey=sharey
    ).flatten()
    for extra in places[panels:]:
        extra.remove()
    return Sheet(figure, list(places[:panels]), True)
