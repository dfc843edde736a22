"""The style of all figures: colours, dashes and markers of lines, and how a figure is saved.

Figures are made without pyplot, so there is no global state, no window and no need for a display.
Lines differ in colour (those of Okabe and Ito, safe for colour-blind readers), dash and marker, so
they also differ in greyscale.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdescent.errors import require
from peerdescent.files import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#999999",
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1)))
MARKERS = "os^DvPX<>"
SUFFIXES = (".png", ".pdf", ".svg")
MADE_BY = "peerdescent"
"""What the metadata of a figure says."""
MARKS = {".png": "Software\0{}", ".pdf": "/Creator ({})", ".svg": "<dc:title>{}</dc:title>"}
"""How it stands in a file."""


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the line with this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        # Shifted where colours begin again, so that no line looks like another.
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
        "marker": MARKERS[(index + 5 * (index // len(COLOURS))) % len(MARKERS)],
        "markerfacecolor": "white",
    }


def finish(axes: Axes, x: str, y: str) -> None:
    """Label the axes, draw a grid behind the lines, and remove the upper and right parts of the frame."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: str | Path, force: bool = False) -> Path:
    """Write a figure as .png, .pdf or .svg.

    Args:
        figure: The figure.
        path: The file; its ending is the format. A figure of this package is replaced.
        force: Whether to replace any other file, too.

    Returns:
        The path.
    """
    path = Path(path)
    check_replaceable(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    form = path.suffix.lower()[1:]
    figure.savefig(
        content,
        dpi=150,
        format=form,
        metadata={"Software" if form == "png" else "Creator": MADE_BY},
    )
    write(path, content.getvalue())
    return path


def check_replaceable(path: Path, force: bool = False) -> None:
    """Refuse a file of another format, and one that exists and is no figure of this package, unless forced."""
    require(
        path.suffix.lower() in SUFFIXES,
        f"cannot draw {path.name!r}: end its name in {', '.join(SUFFIXES)}",
    )
    require(
        force
        or not path.is_file()
        or MARKS[path.suffix.lower()].format(MADE_BY).encode() in path.read_bytes(),
        f"{path} is not a figure of peerdescent: give another name, or force=True to replace it",
    )
