"""Small charts of lines and of stacked bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from peerdescent.display.elements import COLOURS, colour, element, note, svg, text

WIDTH, HEIGHT = 230.0, 165.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 22.0, 36.0
"""Margins; the left one is wider where labels need it."""
LETTER = 7.2
"""The width of a digit, in pixels, in the wider of usual fonts."""
MARKS = 4
"""The most marks of a horizontal axis."""
POINTS = 200
"""The most points of a line."""
DECADES = 2.0
"""A positive quantity that spans more powers of ten has a logarithmic axis."""
LARGE, TINY = 1e300, 1e-300
"""Beyond these, differences and logarithms are not numbers."""
BARS = 60
"""The most bars; more would not be legible."""


class Curve(NamedTuple):
    """A line of a chart; `low` and `high` are the edges of a band around it."""

    x: Any
    y: Any
    name: str = ""
    low: Any = None
    high: Any = None


def chart(curves: Sequence[Curve], x: str, y: str, log: bool = False) -> Element:
    """Lines with axes, of which `x` and `y` are the labels.

    Points that are not finite or beyond 1e300 are left out, and so are those up to 0 on a logarithmic axis; the name of
    a line that is 0 throughout says so. The vertical axis is also logarithmic where all values are positive and span
    more than two powers of ten, as those of a run that diverges do.

    >>> chart([Curve([0, 1, 2], [1.0, float("nan"), 0.5])], "epochs", "loss").tag
    'svg'
    """
    rows = [_rows(curve) for curve in curves]
    across = np.concatenate([row[:, 0] for row in rows])
    up = np.concatenate([row[:, 1:].ravel() for row in rows])
    across, up = across[np.isfinite(across)], up[np.isfinite(up)]
    wide = (
        len(up) > 0 and up.min() >= TINY and math.log10(up.max()) - math.log10(up.min()) > DECADES
    )
    log = log or bool(wide)
    zero = [log and not bool(row[:, 1].any()) for row in rows]
    up = up[up >= TINY] if log else up
    if not len(across) or not len(up):
        return note(f"{y} is 0." if all(zero) else f"{y} has no values that an axis can show.")
    horizontal, vertical = _Axis.of(across, False), _Axis.of(up, log)
    left = _left(vertical)
    horizontal = horizontal._replace(
        marks=_few(horizontal.low, horizontal.high, WIDTH - RIGHT - left)
    )
    drawn = [_frame(horizontal, vertical, x, y, left)]
    for index, row in enumerate(rows):
        drawn += _line(row, horizontal, vertical, colour(index), left)
    names = [
        curve.name + ": 0" * gone for curve, gone in zip(curves, zero, strict=True) if curve.name
    ]
    label = f"{y} by {x}" + (f" of {', '.join(names)}" if names else "")
    return _with_legend(drawn, names, label)


def _rows(curve: Curve) -> np.ndarray:
    """x, y, low and high of at most POINTS points; the first and the last are among them."""
    y = np.asarray(curve.y, float)
    edges = [y if edge is None else np.asarray(edge, float) for edge in (curve.low, curve.high)]
    rows = np.stack([np.asarray(curve.x, float), y, *edges], axis=1)
    rows = np.where(abs(rows) <= LARGE, rows, np.nan)
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().astype(int))
    return np.asarray(rows[chosen])


class _Axis(NamedTuple):
    """The range of an axis and its marks, in the quantity or in its logarithm."""

    low: float
    high: float
    log: bool
    marks: tuple[float, ...]

    @staticmethod
    def of(values: np.ndarray, log: bool) -> _Axis:
        low, high = float(values.min()), float(values.max())
        if log:
            low, high = math.log10(low), math.log10(high)
        largest = max(abs(low), abs(high))
        if high - low <= max(TINY, 1e-6 * largest):  # one value, or so
            margin = 0.5 if log or largest <= TINY else 0.5 * largest
            low, high = low - margin, high + margin
        return _Axis(low, high, log, tuple(_marks(low, high, log)))

    def place(self, values: np.ndarray, start: float, end: float) -> np.ndarray:
        """Where values are between two ends; NaN where they have no place."""
        shown = np.log10(np.where(values >= TINY, values, np.nan)) if self.log else values
        return self.at(shown, start, end)

    def at(self, shown: Any, start: float, end: float) -> np.ndarray:
        """The same for values in the units of the axis, as the marks are."""
        return start + (np.asarray(shown) - self.low) / (self.high - self.low) * (end - start)


def _marks(low: float, high: float, log: bool) -> list[float]:
    """Four to nine round numbers from low to high.

    Of logarithms, whole ones, which are powers of ten; where there are fewer than two, those of other round numbers.

    >>> _marks(0.03, 0.69, False), _marks(-4.2, 1.3, True)
    ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0])
    """
    if log and math.floor(high) - math.ceil(low) < 1:
        digits = [
            k + math.log10(first)
            for k in range(math.floor(low), math.ceil(high))
            for first in (1, 2, 5)
        ]
        found = [mark for mark in digits if low <= mark <= high]
        return (
            found
            if len(found) > 1
            else [math.log10(mark) for mark in _marks(10**low, 10**high, False)]
        )
    power = 10.0 ** math.floor(math.log10(high - low))
    for step in (power, power / 2, power / 5, power / 10):
        step = max(1.0, math.ceil(step)) if log else step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first >= 3 or (log and step == 1):
            break
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _few(low: float, high: float, room: float) -> tuple[float, ...]:
    """Up to MARKS round numbers from low to high, no more than have room beside each other in so many pixels.

    >>> _few(0, 8000, 172), _few(0, 3, 172), _few(0, 2e6, 100)
    ((0.0, 4000.0, 8000.0), (0.0, 1.0, 2.0, 3.0), (0.0, 2000000.0))
    """
    power = 10.0 ** math.floor(math.log10(high - low))
    marks: list[float] = []
    for step in (power * each for each in (0.2, 0.5, 1, 2, 4, 5, 10)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first >= MARKS:
            continue
        marks = [float(f"{k * step:.12g}") for k in range(first, last + 1)] or marks[:1]
        widest = max(_width(mark) for mark in marks)
        if widest + LETTER <= step / (high - low) * room:
            break
    return tuple(marks)


def _width(mark: float) -> float:
    return LETTER * len(_number(mark))


def _left(vertical: _Axis) -> float:
    """The margin that the labels of a vertical axis need."""
    return max(LEFT, 5 + max(_width(10**mark if vertical.log else mark) for mark in vertical.marks))


def _number(value: float) -> str:
    """A short number; the exponent has no zeros in front.

    >>> _number(1e-05), _number(0.30025), _number(200000.0)
    ('1e-5', '0.30025', '200,000')
    """
    shown = (
        f"{value:,.0f}" if 1000 <= abs(value) < 1e6 and value == round(value) else f"{value:.7g}"
    )
    return shown.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def _frame(horizontal: _Axis, vertical: _Axis, across: str, up: str, left: float) -> Element:
    """The axes with their marks and labels."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    ink = {"stroke": "currentColor", "fill": "none"}
    inside = [element("path", d=f"M{left:g} {TOP:g}V{bottom:g}H{right:g}", opacity=0.5, **ink)]
    for mark, y in zip(
        vertical.marks, vertical.at(vertical.marks, bottom, TOP).tolist(), strict=True
    ):
        inside.append(element("path", d=f"M{left:g} {y:.1f}H{right:g}", opacity=0.15, **ink))
        inside.append(text(_number(10**mark if vertical.log else mark), left - 5, y + 4, "end"))
    for mark, x in zip(
        horizontal.marks, horizontal.at(horizontal.marks, left, right).tolist(), strict=True
    ):
        inside.append(element("path", d=f"M{x:.1f} {bottom:g}v4", opacity=0.5, **ink))
        inside.append(text(_number(mark), min(x, WIDTH - _width(mark) / 2), bottom + 15))
    labels = text(across, (left + right) / 2, HEIGHT - 6), text(up, 4, 12, "start")
    return element("g", *inside, *labels)


def _line(
    row: np.ndarray, horizontal: _Axis, vertical: _Axis, ink: str, left: float
) -> list[Element]:
    """A line with a gap where a point has no place, a dot for a point between two gaps, and the band."""
    x = horizontal.place(row[:, 0], left, WIDTH - RIGHT)
    y, low, high = (vertical.place(row[:, k], HEIGHT - BOTTOM, TOP) for k in (1, 2, 3))
    made = []
    inside = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    if (high[inside] != low[inside]).any():
        edge = [
            *zip(x[inside], low[inside], strict=True),
            *zip(x[inside][::-1], high[inside][::-1], strict=True),
        ]
        made.append(element("path", d=_path(edge) + "z", fill=ink, opacity=0.2))
    whole = np.isfinite(x) & np.isfinite(y)
    pieces = np.split(np.arange(len(x)), np.flatnonzero(whole[1:] != whole[:-1]) + 1)
    found = [[(x[k], y[k]) for k in piece] for piece in pieces if len(piece) and whole[piece[0]]]
    lines = "".join(_path(piece) for piece in found if len(piece) > 1)
    if lines:
        made.append(
            element(
                "path", d=lines, stroke=ink, stroke_width=1.8, fill="none", stroke_linejoin="round"
            )
        )
    made += [
        element("circle", cx=float(a), cy=float(b), r=2.5, fill=ink)
        for piece in found
        if len(piece) == 1
        for a, b in piece
    ]
    return made


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def bars(counts: Mapping[str, Sequence[int]], x: str, y: str) -> Element:
    """Stacked bars: `counts` has the heights of the pieces of all bars, by the name of the kind of piece.

    >>> bars({"-1": [3, 0], "1": [1, 4]}, "node", "rows").tag
    'svg'
    """
    heights = np.array([list(each) for each in counts.values()], float)
    number = heights.shape[1]
    if number > BARS:
        return note(f"The {number:,} bars of a chart of {y} by {x} would be too many here.")
    up = _Axis.of(np.array([0.0, max(1.0, heights.sum(axis=0).max())]), False)
    every = math.ceil(number / 8)
    across = _Axis(-0.5, number - 0.5, False, tuple(float(k) for k in range(0, number, every)))
    side = _left(up)
    left, width = (
        across.place(np.arange(number) - 0.4, side, WIDTH - RIGHT),
        0.8 * (WIDTH - RIGHT - side) / number,
    )
    ends = up.place(np.cumsum(np.vstack([np.zeros(number), heights]), axis=0), HEIGHT - BOTTOM, TOP)
    drawn = [_frame(across, up, x, y, side)]
    for kind, (below, above) in enumerate(itertools.pairwise(ends)):
        pieces = [
            f"M{left[k]:.1f} {below[k]:.1f}V{above[k]:.1f}h{width:.1f}V{below[k]:.1f}z"
            for k in range(number)
        ]
        drawn.append(element("path", d="".join(pieces), **_fill(kind)))
    return _with_legend(drawn, list(counts) if len(counts) > 1 else [], f"{y} by {x}")


def _fill(kind: int) -> dict[str, Any]:
    """The look of an area; where colours begin again, it is lighter."""
    return {"fill": colour(kind), "opacity": 0.5 if kind >= len(COLOURS) else 1.0}


def _with_legend(drawn: Sequence[Element], names: Sequence[str], label: str) -> Element:
    """A chart with the names of its colours below, as many in a row as fit."""
    shown = [name if len(name) <= 42 else f"{name[:41]}…" for name in names]
    room = WIDTH - 8
    columns = max(1, int(room // (26 + 6.2 * max(map(len, shown), default=1))))
    for kind, name in enumerate(shown):
        x, y = 8 + room / columns * (kind % columns), HEIGHT + 16.0 * (kind // columns)
        drawn = [
            *drawn,
            element("rect", x=x, y=y, width=10, height=10, **_fill(kind)),
            text(name, x + 14, y + 9, "start"),
        ]
    return svg(WIDTH, HEIGHT + 16.0 * math.ceil(len(shown) / columns), label, *drawn)
