"""Every figure can be drawn on axes of the caller, and shows there what it shows in a figure of its own."""

import inspect

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from made_traces import grid, make, seeds
from peerdescent import Network, topology
from peerdescent import figures as plot
from peerdescent.theory.assumptions import Constants
from peerdescent.theory.measured import Measured
from peerdescent.theory.theorem import TERMS

POINTS = pd.DataFrame(
    {
        "line": ["a", "a", "b", "b"],
        "epoch": [0, 1, 0, 1],
        "bytes": [0, 8, 0, 4],
        "gap": [1, 0.5, 1, 0.4],
    }
).assign(low=0.3, high=1.1)
LATENCIES = pd.DataFrame(
    {"line": ["a", "a", "b"], "latency": [1e-3, 1e-2, 1e-3], "seconds": [1.0, 2.0, 3.0]}
)
NEEDED = pd.DataFrame(
    {"topology": "ring", "nodes": [2, 4], "lambda": [0.5, 0.8], "epsilon": 0.1, "ratio": [1.0, 1.2]}
)
NEEDED["gradients"] = [20.0, 10.0]
SLOPES = pd.DataFrame(
    {"topology": ["ring"], "epsilon": [0.1], "slope": [-1.0], "low": [-1.1], "high": [-0.9]}
)
GAPS = NEEDED.assign(rms=[0.2, 0.1])
STEPS = pd.DataFrame(
    {"steps": [1, 10, 100], **dict.fromkeys(TERMS, 0.5), "bound": 3.0, "measured": 0.1}
)
FOUND = Measured(Constants(1.0, 1.0, 1.0, 1.0), None, 4, 0.5, STEPS.assign(least=0.05, most=0.2))

FIGURES = {
    "comparison": (4, lambda **ax: plot.comparison({"a": make(), "b": make()}, **ax)),
    "curves": (
        2,
        lambda **ax: plot.curves({"a": seeds()}, [("epoch", "loss"), ("epoch", "grad_norm")], **ax),
    ),
    "heatmap": (1, lambda **ax: plot.heatmap(grid(), "alpha", "beta", **ax)),
    "drawing": (3, lambda **ax: plot.drawing(Network(topology.one_peer_exponential(8)), **ax)),
    "highlighted": (2, lambda **ax: plot.highlighted(POINTS, "a", **ax)),
    "ranked": (
        3,
        lambda **ax: plot.ranked(POINTS, pd.Series({"a": "one", "b": "two"}), "a title", **ax),
    ),
    "latencies": (1, lambda **ax: plot.latencies(LATENCIES, "a title", **ax)),
    "theory.speedup": (2, lambda **ax: plot.theory.speedup(NEEDED, SLOPES, GAPS, **ax)),
    "theory.independence": (2, lambda **ax: plot.theory.independence(NEEDED, GAPS, **ax)),
    "theory.bound": (1, lambda **ax: plot.theory.bound(FOUND, **ax)),
}


def drawn(axes: Axes) -> list[object]:
    """All lines, areas and labels of a panel."""
    lines = [np.asarray(line.get_xydata(), float).tolist() for line in axes.get_lines()]
    areas = [path.vertices.tolist() for each in axes.collections for path in each.get_paths()]
    return [
        axes.get_xlabel(),
        axes.get_ylabel(),
        axes.get_yscale(),
        len(axes.patches),
        repr(lines),
        repr(areas),
    ]


def test_every_figure_is_in_the_table():
    modules = {"": plot, "theory.": plot.theory}
    names = {
        prefix + name
        for prefix, module in modules.items()
        for name in dir(module)
        if inspect.isfunction(found := getattr(module, name)) and not name.startswith("_")
        if inspect.signature(found).return_annotation == "Figure"
    }
    assert names == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_on_axes_of_the_caller(name):
    panels, make_figure = FIGURES[name]
    own = make_figure()
    theirs = Figure(figsize=(12, 8), layout="constrained")
    before, *rest = theirs.subplots(1, panels + 1)
    assert make_figure(ax=rest if panels > 1 else rest[0]) is theirs
    for expected, found in zip(own.axes, rest, strict=False):
        assert drawn(found) == drawn(expected)
    assert not before.has_data()
    assert not theirs.legends
    assert not theirs.get_suptitle()
    assert own.legends == [] or any(axes.get_legend() for axes in rest), "the legend is not lost"
    theirs.draw_without_rendering()


@pytest.mark.parametrize("name", FIGURES)
def test_axes_that_do_not_fit(name):
    panels, make_figure = FIGURES[name]
    axes = Figure().subplots(1, panels + 1)
    many = f"{panels} panels" if panels > 1 else "one panel"
    with pytest.raises(
        ValueError, match=f"ax has {panels + 1} axes, and the figure {many}: give one for each"
    ):
        make_figure(ax=axes)


def test_other_things_than_axes():
    with pytest.raises(ValueError, match="ax holds a Figure: give matplotlib's axes"):
        plot.curves({"a": seeds()}, ax=Figure())
    axes = Figure().subplots()
    panels = [("epoch", "loss"), ("epoch", "consensus")]
    with pytest.raises(
        ValueError, match="ax has 2 axes, and the figure 2 panels: give one for each"
    ):
        plot.curves({"a": seeds()}, panels, ax=[axes, axes])
    with pytest.raises(ValueError, match="ax has axes of 2 figures: give axes of one"):
        plot.curves({"a": seeds()}, panels, ax=[axes, Figure().subplots()])


def test_a_title_and_a_legend_stay_in_the_first_panel():
    figure = Figure()
    panels = figure.subplots(2, 2)
    plot.comparison({"a": make(), "b": make()}, ax=panels)
    first = panels[0, 0]
    assert first.get_title(loc="left") == "logistic(digits)  ·  ring, n=4, lazy weights, λ = 0.500"
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a", "b"]
    assert [axes.get_legend() for axes in panels.flat[1:]] == [None] * 3


def test_axes_in_a_part_of_a_figure():
    figure = Figure()
    left, _ = figure.subfigures(1, 2)
    assert plot.curves({"a": seeds()}, ax=left.subplots()) is figure


def test_a_picture_for_notebooks():
    figure = plot.curves({"a": seeds()})
    picture, size = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert size == {"width": round(96 * 6.0), "height": round(96 * 4.2)}
    assert (width, height) == (864, 604)
    assert repr(figure) == "<Figure size 600x420 with 1 Axes>"
