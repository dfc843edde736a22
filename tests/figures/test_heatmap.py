"""Heat maps of tunings: every cell shows the value in the table, and cells without a value look different."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from made_traces import grid, make, pixels
from peerdescent import figures as plot
from peerdescent.figures.heatmaps import TICKS, _luminance
from peerdescent.sweeps.seeds import best


def drawn(figure):
    return figure.axes[0].collections[0].get_array()


def hatches(figure):
    return {patch.get_xy() for patch in figure.axes[0].patches if patch.get_hatch() == "////"}


def test_cells_are_the_best_over_the_rest():
    table = grid(seeds=(0, 1, 2))
    figure = plot.heatmap(table, "alpha", "beta")
    means = table.groupby(["alpha", "beta", "batch"])["loss"].mean().reset_index()
    expected = means.pivot_table(index="beta", columns="alpha", values="loss", aggfunc="min")
    np.testing.assert_allclose(drawn(figure), expected)
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1", "10"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0.01", "0.5"]
    assert [text.get_text() for text in axes.texts] == [
        f"{value:.3f}" for value in expected.to_numpy().ravel()
    ]
    found = best(table)
    frame = next(patch for patch in axes.patches if not patch.get_fill())
    at = expected.columns.get_loc(found["alpha"]), expected.index.get_loc(found["beta"])
    assert frame.get_xy() == at
    shown = f"best loss {means['loss'].min():.6g} at alpha = {found['alpha']:g}, beta = {found['beta']:g}"
    assert figure.get_suptitle().replace("\u00a0", " ") == f"{shown}, batch = {found['batch']}"
    assert axes.get_title() == "mean of 3 seeds, smallest over batch"
    assert figure.axes[1].get_ylabel() == "loss"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["best"]


def test_diverged_and_unfinished_cells(tmp_path):
    table = grid(np.full(12, 0.5), alpha=[1, 2, 3], beta=[1, 2], batch=[1, 4])
    table.loc[(table["alpha"] == 3) & (table["beta"] == 2), "status"] = "diverged"
    table.loc[(table["alpha"] == 2) & (table["batch"] == 4), "status"] = "diverged"
    table.loc[table["status"] == "diverged", "loss"] = np.nan
    table.loc[(table["alpha"] == 1) & (table["beta"] == 1), "loss"] = np.nan
    table.loc[(table["alpha"] == 1) & (table["beta"] == 1), "status"] = ["diverged", "interrupted"]
    figure = plot.heatmap(table, "alpha", "beta")
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn(figure)), [[1, 0, 0], [0, 0, 1]])
    assert hatches(figure) == {(2, 1)}  # in the cell at 0, 0 one diverged and one was not finished
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["best", "diverged", "not finished"]
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_cell_counts_only_if_every_seed_is_done():
    table = grid([0.1, 0.2, 0.4, 0.5], seeds=(0, 1), alpha=[1, 2], beta=[1])
    table.loc[1, "status"] = "diverged"
    figure = plot.heatmap(table, "alpha", "beta")
    np.testing.assert_allclose(drawn(figure).compressed(), [0.45])
    assert len(hatches(figure)) == 1


def test_nothing_is_done(tmp_path):
    table = grid()
    table["status"] = "diverged"
    figure = plot.heatmap(table, "alpha", "beta")
    assert len(hatches(figure)) == 6
    assert "no configuration is done" in figure.get_suptitle()
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_large_losses_do_not_take_the_colours():
    values = np.array([0.30, 0.31, 0.32, 0.33, 0.34, 50.0])
    figure = plot.heatmap(grid(values, alpha=[1, 2, 3], beta=[1, 2]), "alpha", "beta")
    mesh = figure.axes[0].collections[0]
    assert mesh.norm.vmin == 0.3
    assert mesh.norm.vmax == pytest.approx(0.375)
    assert mesh.colorbar.extend == "max"
    even = (
        plot.heatmap(grid(np.arange(6.0), alpha=[1, 2, 3], beta=[1, 2]), "alpha", "beta")
        .axes[0]
        .collections[0]
    )
    assert (even.norm.vmin, even.norm.vmax, even.colorbar.extend) == (0, 5, "neither")


def test_numbers_can_be_read_on_their_cells():
    figure = plot.heatmap(grid(np.arange(12.0)), "alpha", "beta", "loss")
    mesh = figure.axes[0].collections[0]
    colours = {text.get_color() for text in figure.axes[0].texts}
    assert colours == {"black", "white"}
    for text in figure.axes[0].texts:
        behind, ink = (
            _luminance(mesh.to_rgba(float(text.get_text()))),
            _luminance(to_rgba(text.get_color())),
        )
        assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) > 4.5


@pytest.mark.parametrize(
    "axes", [{"alpha": [1], "beta": range(7)}, {"alpha": range(7), "beta": [1]}]
)
def test_one_row(axes, tmp_path):
    figure = plot.heatmap(grid(**axes), "alpha", "beta")
    assert drawn(figure).shape == (len(axes["beta"]), len(axes["alpha"]))
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_one_cell_and_many(tmp_path):
    plot.save(plot.heatmap(grid(alpha=[1], beta=[2]), "alpha", "beta"), tmp_path / "a.png")
    figure = plot.heatmap(grid(alpha=range(90), beta=range(10)), "alpha", "beta")
    assert not figure.axes[0].texts
    assert len(figure.axes[0].get_xticks()) <= TICKS
    assert pixels(figure, tmp_path / "b.png").var() > 10


def test_words_and_nothing_are_values_too():
    table = grid(alpha=[0.5, 0.1], rule=["b", None, "a"])
    labels = [
        tick.get_text() for tick in plot.heatmap(table, "rule", "alpha").axes[0].get_xticklabels()
    ]
    assert labels == ["b", "none", "a"], "in the order of the table"
    table = grid(alpha=[0.5, 0.1], period=[10, None, 2])
    labels = [
        tick.get_text() for tick in plot.heatmap(table, "period", "alpha").axes[0].get_xticklabels()
    ]
    assert labels == ["2", "10", "none"]
    table = grid(alpha=[0.5, 0.1], step=["sqrt", 10, "linear", 2])
    labels = [
        tick.get_text() for tick in plot.heatmap(table, "step", "alpha").axes[0].get_xticklabels()
    ]
    assert labels == ["2", "10", "sqrt", "linear"], "numbers first"


PARTITIONS = (
    "partition uniform",
    "partition label",
    "partition dirichlet, concentration 0.5",
    "partition quantity",
)
PROBLEMS = [f"logistic(breast_cancer) ({each})" for each in PARTITIONS]
NETWORKS = [
    f"ring ({each} weights, lam=0.{k}72)" for k, each in enumerate(("lazy", "metropolis", "equal"))
]
SHOWN = [
    "partition uniform",
    "partition label",
    "partition dirichlet,\nconcentration 0.5",
    "partition quantity",
]


@pytest.mark.parametrize(
    ("x", "y"), [("alpha", "problem"), ("problem", "alpha"), ("network", "problem")]
)
def test_long_names_leave_room_for_the_cells(x, y):
    axes_of = {"alpha": [1, 2, 4, 8, 16, 32, 64, 128], "problem": PROBLEMS, "network": NETWORKS}
    figure = plot.heatmap(grid(**{name: axes_of[name] for name in (x, y)}), x, y)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    wide, high = axes.get_window_extent().size / figure.dpi / (len(axes_of[x]), len(axes_of[y]))
    assert wide > 0.7
    assert high > 0.3
    for name, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        ticks = axis.get_ticklabels()
        boxes = [tick.get_window_extent() for tick in ticks]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        for box in (*boxes, axis.label.get_window_extent()):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        if name == "problem":
            assert [tick.get_text() for tick in ticks] == SHOWN
            assert axis.label.get_text().split() == ["problem:", "logistic(breast_cancer)"]
    ends = axes.transData.transform([(0.5, 0.5), (0.5, len(axes_of[y]) - 0.5)])[:, 1]
    assert (ends[0] > ends[1]) == (y == "problem"), (
        "the first name is at the top, and the largest number"
    )


def test_very_many_long_names_are_upright():
    problems = [f"logistic(hospital {k}) (partition label)" for k in range(30)]
    figure = plot.heatmap(grid(problem=problems, beta=[1, 2]), "problem", "beta")
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    boxes = [tick.get_window_extent() for tick in axes.get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert axes.get_window_extent().height > 0.3 * 2 * figure.dpi


def test_names_stay_whole_if_they_have_no_common_part():
    for names in (
        ["svm(a9a) (rows 5)", "svm(w8a) (rows 9)"],
        ["ring", "ring (drop=0.1)"],
        ["star", "starlike"],
    ):
        axes = plot.heatmap(grid(alpha=[1, 4], network=names), "alpha", "network").axes[0]
        assert [tick.get_text().replace("\n", " ") for tick in axes.get_yticklabels()] == names
        assert axes.get_ylabel() == "network"


def test_maps_refuse_what_they_cannot_draw():
    with pytest.raises(
        ValueError,
        match="unknown parameter 'alhpa': did you mean 'alpha'\\? Known: alpha, batch, beta",
    ):
        plot.heatmap(grid(), "alhpa", "beta")
    with pytest.raises(ValueError, match="unknown parameter 'loss'"):
        plot.heatmap(grid(), "alpha", "loss")
    with pytest.raises(
        ValueError, match="both 'beta': give two different parameters of alpha, beta, batch"
    ):
        plot.heatmap(grid(), "beta", "beta")
    with pytest.raises(ValueError, match="unknown value 'los': did you mean 'loss'"):
        plot.heatmap(grid(), "alpha", "beta", "los")


def test_a_trace_is_no_table_of_a_sweep():
    with pytest.raises(
        ValueError, match=r"a Trace is no table of a sweep: give what sweep returns"
    ):
        plot.heatmap(make(), "alpha", "beta")


def test_a_remedy_says_a_number_as_one_writes_it():
    table = grid(problem=["digits"], network=["ring"], nodes=[4, 8], alpha=[1, 2], beta=[1, 2])
    with pytest.raises(
        ValueError, match=r"several values of nodes: .* as in table\[table\['nodes'\] == 4\]"
    ):
        plot.heatmap(table, "alpha", "beta")


def test_other_values():
    assert (drawn(plot.heatmap(grid(), "alpha", "beta", "grad_norm")) == 0.1).all()
    assert (drawn(plot.heatmap(grid(), "alpha", "beta", "loss@1")) == 2).all()


def test_numbers_of_cells_have_three_digits_each():
    values = np.array([0.32, 0.3211, 4.0, 50.0, 123.4, 1e-5])
    figure = plot.heatmap(grid(values, alpha=[1.0, 2.0, 3.0], batch=[1, 2]), "alpha", "batch")
    found = {text.get_text() for text in figure.axes[0].texts}
    assert found == {"0.320", "0.321", "4.00", "50.0", "123", "1.00e-05"}


@pytest.mark.parametrize("size", [(5, 4), (9, 5)])
@pytest.mark.parametrize("x", ["alpha", "problem"])
def test_title_and_legend_on_axes_of_the_caller_do_not_overlap(size, x):
    theirs = Figure(figsize=size)
    axes = theirs.subplots()
    table = grid(seeds=(0, 1)) if x == "alpha" else grid(problem=PROBLEMS, beta=[1, 2])
    table.loc[table[x] == table[x].iloc[-1], ["loss", "status"]] = [np.inf, "diverged"]
    plot.heatmap(table, x, "beta", ax=axes)
    FigureCanvasAgg(theirs).draw()
    assert len(axes.get_legend().get_texts()) == 2
    title, label = axes._left_title.get_window_extent(), axes.xaxis.label.get_window_extent()
    ticks = [tick.get_window_extent() for tick in axes.get_xticklabels()]
    for other in (title, label, *ticks, axes.get_window_extent()):
        assert not axes.get_legend().get_window_extent().overlaps(other)
