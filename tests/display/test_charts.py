"""Charts: points are where the axes say, gaps stay gaps, and nothing is drawn outside."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdescent.display import Curve, bars, chart
from peerdescent.display.charts import BOTTOM, HEIGHT, LETTER, MARKS, POINTS, WIDTH


def lines(made):
    """The points of all lines, by path."""
    found = [each.get("d") for each in made.iter("path") if each.get("stroke-width") == "1.8"]
    return [
        [[float(n) for n in point.split()] for point in piece.split("L")]
        for d in found
        for piece in d.split("M")[1:]
    ]


def marks(made):
    """The numbers on the vertical axis and their heights."""
    texts = [each for each in made.iter("text") if each.get("text-anchor") == "end"]
    return {float(each.text.replace(",", "")): float(each.get("y")) - 4 for each in texts}


@pytest.mark.parametrize("log", [False, True])
def test_points_are_where_the_marks_say(log):
    values = [1.0, 0.1, 0.5, 0.05]
    made = chart([Curve([0, 1, 2, 3], values)], "epochs", "loss", log)
    ((*points,),) = lines(made)
    scale = np.log if log else np.asarray
    known = marks(made)
    assert len(known) >= 2
    slope, offset = np.polyfit(scale(list(known)), list(known.values()), 1)
    np.testing.assert_allclose([y for _, y in points], slope * scale(values) + offset, atol=0.15)
    np.testing.assert_allclose(
        np.diff([x for x, _ in points]), np.diff([x for x, _ in points])[0], atol=0.11
    )


def test_gaps_stay_gaps():
    made = chart([Curve(range(6), [1, 2, np.nan, 3, np.inf, 4])], "steps", "loss")
    assert [len(piece) for piece in lines(made)] == [2]
    assert len(list(made.iter("circle"))) == 2, "single points are dots"


def test_what_spans_powers_of_ten_has_a_log_axis():
    assert 1e4 in marks(chart([Curve([0, 1], [1, 1e6])], "steps", "loss"))
    assert 0 in marks(chart([Curve([0, 1], [0, 1e6])], "steps", "loss")), "zero has no place on it"
    assert min(marks(chart([Curve([0, 1, 2], [0, 1, 10])], "steps", "error", log=True))) >= 1


def test_a_band_and_names():
    made = chart(
        [Curve([0, 1], [1, 2], "one", [0, 1], [2, 3]), Curve([0, 1], [2, 2], "<two>")],
        "steps",
        "loss",
    )
    assert len([each for each in made.iter("path") if each.get("opacity") == "0.2"]) == 1
    assert [each.text for each in made.iter("text")][-2:] == ["one", "<two>"]
    assert made.get("aria-label") == "loss by steps of one, <two>"


@pytest.mark.parametrize("last", [3, 20, 1000, 8000, 123_456, 2e6, 1e9, 1 + 1e-5])
def test_labels_have_room(last):
    """Those below a long run once overlapped, and 100,000 beside one began outside."""
    made = chart([Curve([last / 4, last], [1e5 * k for k in (0.2, 1)])], "epochs", "loss")
    below = [each for each in made.iter("text") if float(each.get("y")) == HEIGHT - BOTTOM + 15]
    ends = [(float(each.get("x")), LETTER * len(each.text) / 2) for each in below]
    assert 1 <= len(ends) <= MARKS
    assert all(x + half <= WIDTH for x, half in ends)
    assert all(x + half < y - other for (x, half), (y, other) in itertools.pairwise(ends))
    beside = [each for each in made.iter("text") if each.get("text-anchor") == "end"]
    assert "100,000" in [each.text for each in beside]
    assert all(float(each.get("x")) >= LETTER * len(each.text) for each in beside)


def test_a_line_of_zeros_is_named_on_a_log_axis():
    zero, other = Curve([0, 1], [0, 0], "a"), Curve([0, 1], [0, 2], "b")
    assert [each.text for each in chart([zero, other], "steps", "error", log=True).iter("text")][
        -2:
    ] == ["a: 0", "b"]
    assert chart([zero], "steps", "error", log=True).text == "error is 0."
    assert [each.text for each in chart([zero, other], "steps", "error").iter("text")][-2:] == [
        "a",
        "b",
    ]


def test_long_lines_have_fewer_points_and_the_same_ends():
    made = chart([Curve(np.arange(9999), np.arange(9999))], "steps", "loss")
    ((*points,),) = lines(made)
    assert len(points) == POINTS
    whole = chart([Curve([0, 9998], [0, 9998])], "steps", "loss")
    assert [points[0], points[-1]] == lines(whole)[0]


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=8), st.booleans())
def test_nothing_is_drawn_outside(points, log):
    x, y = zip(*points, strict=True)
    made = chart([Curve(x, y)], "x", "y", log)
    for piece in lines(made):
        for across, down in piece:
            assert 0 <= across <= WIDTH
            assert 0 <= down <= HEIGHT
    assert not [
        text
        for each in made.iter()
        for text in each.attrib.values()
        if re.search(r"\bnan\b|\binf\b", text)
    ]


def test_bars_without_any_height():
    assert bars({"rows": [0, 0]}, "node", "rows").tag == "svg"
