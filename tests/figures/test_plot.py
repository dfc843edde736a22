import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import children
from made_traces import grid, make, pixels, seeds
from peerdescent import Comparison, Network, Traces, topology
from peerdescent import figures as plot
from peerdescent.figures import sheets
from peerdescent.runs.metrics import Metric
from peerdescent.runs.trace import Status
from small import some


def test_four_panels_with_labels(tmp_path):
    figure = plot.comparison({"dsgd": make(), "d2": make()})
    assert [axes.get_xlabel() for axes in figure.axes] == ["epochs"] * 3 + [
        "sent by a node, on average"
    ]
    assert [axes.get_ylabel().split(" $")[0] for axes in figure.axes] == [
        "loss",
        "gradient norm",
        "consensus error",
        "loss",
    ]
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "log", "linear"]
    assert figure.get_suptitle() == "logistic(digits)  ·  ring, n=4, lazy weights, λ = 0.500"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dsgd", "d2"]
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_lines_show_the_trace():
    trace = make()
    loss, norm, consensus, by_bytes = (
        axes.get_lines()[0] for axes in plot.comparison({"a": trace}).axes
    )
    np.testing.assert_array_equal(loss.get_xydata(), trace.table[["epoch", "loss"]])
    np.testing.assert_array_equal(norm.get_xydata(), trace.table[["epoch", "grad_norm"]])
    np.testing.assert_array_equal(by_bytes.get_xydata(), trace.table[["bytes", "loss"]])
    assert np.isnan(
        consensus.get_ydata()[0]
    )  # the zero of a common start has no place on a log axis
    np.testing.assert_array_equal(consensus.get_ydata()[1:], trace.table["consensus"][1:])


def test_time_panels_share_their_axis():
    first, second, third, _ = plot.comparison({"a": make()}).axes
    assert first.get_xlim() == second.get_xlim() == third.get_xlim()


def test_steps_where_there_are_no_epochs():
    endless = make(epoch=np.nan)
    axes = plot.comparison({"a": endless, "b": make()}).axes[0]
    assert axes.get_xlabel() == "steps"
    np.testing.assert_array_equal(axes.get_lines()[1].get_xdata(), endless.table["step"])


def test_bytes_are_for_people(tmp_path):
    figure = plot.comparison({"a": make()})
    plot.save(figure, tmp_path / "a.png")
    ticks = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert "800 kB" in ticks
    assert "1.6 MB" in ticks


def test_no_consensus_error_at_all(tmp_path):
    figure = plot.comparison({"a": make(consensus=0.0)})
    assert figure.axes[2].get_yscale() == "linear"
    assert [text.get_text() for text in figure.axes[2].texts] == ["0: a"], "an empty panel says why"
    assert not len(figure.axes[2].get_yticks())
    plot.save(figure, tmp_path / "a.png")


def test_what_a_log_axis_cannot_show_is_named():
    traces = {name: make(consensus=0.0) for name in ("gt-dsgd", "gt-hsgd")} | {"dsgd": make()}
    panels = [("epoch", "consensus"), ("epoch", "gap"), ("epoch", "loss")]
    zero, above, linear = plot.curves(traces, panels, optimum=0.0).axes
    assert [text.get_text() for text in zero.texts] == ["0: gt-dsgd, gt-hsgd"]
    assert not above.texts
    assert not linear.texts
    (axes,) = plot.curves(
        traces | {"d2": make(losses=np.full(20, 9.0))}, [("epoch", "gap")], optimum=2.0
    ).axes
    assert [text.get_text() for text in axes.texts] == ["not above 0: gt-dsgd, gt-hsgd, dsgd"]


def test_an_escape_does_not_flatten_the_others(tmp_path):
    escape = make([1.0, 50.0, np.inf, np.nan], status=Status.diverged)
    figure = plot.comparison({"good": make(), "bad": escape})
    for axes in (figure.axes[0], figure.axes[3]):
        low, high = axes.get_ylim()
        assert low < 0.1
        assert high == pytest.approx(2.0, abs=0.05)
    assert figure.axes[1].get_ylim()[1] == 2.0
    assert plot.comparison({"bad": escape}).axes[0].get_ylim()[1] >= 50
    plot.save(figure, tmp_path / "a.png")


@pytest.mark.parametrize("count", [1, 3])
def test_lines_can_be_told_apart_in_grey(count):
    figure = plot.curves({f"method {i}": seeds(count) for i in range(20)})
    lines = figure.axes[0].get_lines()
    assert len({(str(line._dash_pattern), line.get_marker()) for line in lines}) == 20


@pytest.mark.parametrize("count", [1, 3, 8, 12])
def test_the_legend_covers_nothing(count):
    names = [f"gt-hsgd[alpha=0.{i},beta=0.01,initial-batch=32]" for i in range(count)]
    figure = plot.comparison({name: make() for name in names})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    legend = figure.legends[0].get_window_extent(renderer)
    assert not any(legend.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.width


def test_a_tall_legend_leaves_the_panels_their_room():
    """Twelve long labels once covered the curves, with a warning that the layout was not applied."""
    names = [
        f"problem = logistic(wards) (partition label), network = ring, alpha = {k}"
        for k in range(12)
    ]
    few, many = plot.curves({names[0]: make()}), plot.curves({name: make() for name in names})
    for figure in (few, many):
        FigureCanvasAgg(figure).draw()
    assert not many.legends[0].get_window_extent().overlaps(many.axes[0].get_tightbbox())
    heights = [figure.axes[0].get_window_extent().height for figure in (few, many)]
    assert heights[1] > 0.8 * heights[0]
    assert not any(",  " in text.get_text() for text in many.legends[0].get_texts())


def test_the_title_holds_what_is_common():
    other = make(network="Network(star, n=4, lazy weights, lam=0.900)")
    assert plot.comparison({"ring": make(), "star": other}).get_suptitle() == "logistic(digits)"


LONG = "least_squares(CALIFORNIA HOUSING 1990) (partition dirichlet, concentration 0.5, strength 0.001)"
PANELS = [("epoch", "loss"), ("bytes", "loss"), ("epoch", "grad_norm"), ("epoch", "consensus")]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("problem", ["logistic(breast_cancer)", LONG])
@pytest.mark.parametrize("layout", ["own", None, "constrained"])
def test_a_title_is_not_cut_off(count, problem, layout):
    traces = [
        dataclasses.replace(one, identity=dataclasses.replace(one.identity, problem=problem))
        for one in seeds()
    ]
    theirs = None if layout == "own" else Figure(layout=layout)
    panels = None if theirs is None else theirs.subplots(max(1, count // 2), min(2, count))
    figure = plot.comparison({"dsgd": traces}, panels, PANELS[:count])
    FigureCanvasAgg(figure).draw()
    title = figure._suptitle if theirs is None else figure.axes[0]._left_title
    text = title.get_text()
    assert (
        text.replace("  ·  ", " ").split()
        == f"{problem} ring, n=4, lazy weights, λ = 0.500 mean of 3 seeds".split()
    )
    box = title.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    if theirs is None:
        assert figure.axes[0].get_window_extent().height > 1.8 * figure.dpi, (
            "and the panels keep their room"
        )


@pytest.mark.parametrize("words", range(24, 31))
def test_a_title_that_just_fits_is_not_cut_off(words):
    """Labels take room from the axes of a constrained layout, and so from the title."""
    figure = Figure(layout="constrained")
    plot.curves({"a": make()}, title=" ".join(["ab"] * words), ax=figure.subplots())
    FigureCanvasAgg(figure).draw()
    assert figure.axes[0]._left_title.get_window_extent().x1 <= figure.bbox.x1


def test_titles_are_cut_between_their_parts():
    title = "logistic(digits)  ·  ring, n=4, lazy weights, λ = 0.500  ·  mean of 3 seeds"
    found = {sheets._wrapped(title, room, 12) for room in np.arange(1.2, 8, 0.1)}
    assert "logistic(digits)\nring, n=4, lazy weights, λ = 0.500\nmean of 3 seeds" in found
    assert "logistic(digits)  ·  ring, n=4, lazy weights, λ = 0.500\nmean of 3 seeds" in found
    assert title in found
    assert not any(
        line[0] in "·=" or line[-1] in "·=" for text in found for line in text.split("\n")
    )
    assert sheets._wrapped("a title\nof two lines", 8, 12) == "a title\nof two lines"


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="no traces to draw: give a Trace"):
        plot.comparison({})


def band(axes, which=0):
    """The smallest and the largest height of a band at each of its points."""
    vertices = axes.collections[which].get_paths()[0].vertices
    xs = np.unique(vertices[:, 0])
    heights = [vertices[vertices[:, 0] == x, 1] for x in xs]
    return xs, np.array([h.min() for h in heights]), np.array([h.max() for h in heights])


def test_a_curve_is_the_mean_over_seeds_and_its_band_a_deviation():
    traces = seeds(4)
    axes = plot.curves({"a": traces}).axes[0]
    losses = pd.concat([trace.table["loss"] for trace in traces], axis=1)
    line = axes.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), traces[0].table["epoch"])
    np.testing.assert_allclose(line.get_ydata(), losses.mean(axis=1))
    xs, low, high = band(axes)
    np.testing.assert_array_equal(xs, traces[0].table["epoch"])
    np.testing.assert_allclose(
        low, np.maximum(losses.mean(axis=1) - losses.std(axis=1), losses.min(axis=1))
    )
    np.testing.assert_allclose(
        high, np.minimum(losses.mean(axis=1) + losses.std(axis=1), losses.max(axis=1))
    )
    # One trace far above the others: no trace is below the band.
    far = dataclasses.replace(
        traces[0], table=traces[0].table.assign(loss=traces[0].table["loss"] + 9)
    )
    losses = pd.concat([trace.table["loss"] for trace in (far, *traces[1:])], axis=1)
    assert (losses.mean(axis=1) - losses.std(axis=1) < losses.min(axis=1)).all()
    np.testing.assert_allclose(
        band(plot.curves({"a": [far, *traces[1:]]}).axes[0])[1], losses.min(axis=1)
    )


def test_lines_can_be_told_apart_beyond_the_colours():
    styles = [plot.style.line_style(k) for k in range(16)]
    assert len({(str(one["color"]), str(one["linestyle"])) for one in styles}) == 16


def test_one_trace_has_no_band():
    assert not plot.curves({"a": seeds(1)}).axes[0].collections


def test_the_band_of_a_log_axis_is_the_range():
    traces = seeds(3)
    axes = plot.curves({"a": traces}, [("bytes", "gap")], optimum=0.25).axes[0]
    gaps = pd.concat([trace.table["loss"] for trace in traces], axis=1) - 0.25
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), gaps.mean(axis=1))
    _, low, high = band(axes)
    np.testing.assert_allclose(low, gaps.min(axis=1))
    np.testing.assert_allclose(high, gaps.max(axis=1))


def test_a_band_on_a_log_axis_stays_above_zero(tmp_path):
    traces = [make([1.0, 0.5, 0.1]), make([1.0, 0.3, 0.4], seed=1)]
    figure = plot.curves({"a": traces}, [("epoch", "gap")], optimum=0.2)
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [0.8, 0.2, 0.05])
    _, low, high = band(axes)
    np.testing.assert_allclose(low, [0.8, 0.1, 0.1])  # no smaller than the smallest gap above zero
    np.testing.assert_allclose(high, [0.8, 0.3, 0.2])
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_the_zero_of_a_common_start_is_left_out_of_the_band(tmp_path):
    figure = plot.curves({"a": seeds()}, [("epoch", "consensus")])
    assert np.isnan(figure.axes[0].get_lines()[0].get_ydata()[0])
    assert band(figure.axes[0])[0].min() == 0.1
    assert figure.axes[0].get_ylim()[0] > 1e-6
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_records_at_different_points_are_interpolated():
    first = make([4.0, 2.0, 0.0], epoch=[0.0, 1.0, 2.0])
    second = make([4.0, 1.0], epoch=[0.0, 1.5], seed=1)
    x, y = plot.curves({"a": [first, second]}).axes[0].get_lines()[0].get_data()
    assert x.tolist() == [0, 1, 1.5]  # all their points, as far as both go
    np.testing.assert_allclose(y, [4, 2, 1])


def test_nothing_in_common():
    with pytest.raises(ValueError, match="'a' have no epoch in common"):
        plot.curves({"a": [make([1.0, 0.5], epoch=[0, 1]), make([1.0, 0.5], epoch=[2, 3], seed=1)]})


def test_panels_and_their_axes(tmp_path):
    columns = {
        "rounds": np.arange(20),
        "seconds": np.arange(20) / 7,
        "stationarity": np.exp(-np.arange(20)),
    }
    panels = [
        ("rounds", "loss"),
        ("seconds", "gap"),
        ("step", "stationarity"),
        ("bytes", "grad_norm"),
    ]
    panels += [("rounds", "consensus")]
    figure = plot.curves(
        {"a": seeds(**columns), "b": seeds(2, **columns)}, panels, optimum=0, title="a title"
    )
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", *["log"] * 4]
    assert [axes.get_xlabel().split()[0] for axes in figure.axes] == [
        "rounds",
        "seconds",
        "steps",
        "sent",
        "rounds",
    ]
    assert figure.get_suptitle() == "a title"
    assert len(figure.legends) == 1
    assert figure.axes[0].get_xlim() == figure.axes[4].get_xlim()
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_what_diverged_is_drawn_and_said_but_not_averaged(tmp_path):
    good, bad, worse = (
        make(),
        *(make([1.0, 50.0, 1e30], seed=seed, status=Status.diverged) for seed in (1, 2)),
    )
    groups = {"some": [good, bad, make(seed=2)], "all": [bad, worse], "none": [good]}
    figure = plot.curves(groups, [("epoch", "loss"), ("epoch", "grad_norm")])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["some (1 of 3 diverged)", "all (diverged)", "none"]
    loss, norm = figure.axes
    ends = [line.get_xdata()[-1] for line in loss.get_lines()]
    np.testing.assert_allclose(ends, [1.9, 0.2, 0.2, 0.2, 1.9])
    np.testing.assert_array_equal(loss.get_lines()[0].get_ydata(), good.table["loss"])
    assert loss.get_ylim()[1] < 3
    assert norm.get_ylim()[1] == 2
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_all_diverged(tmp_path):
    bad = [make([1.0, np.nan], seed=seed, status=Status.diverged) for seed in range(2)]
    figure = plot.curves({"a": bad}, [("epoch", "loss"), ("epoch", "consensus")])
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_steep_start_does_not_flatten_the_end():
    steep = [make(0.30 + 0.01 * np.arange(200)[::-1] / 200 + (np.arange(200) < 3))]
    low, high = plot.curves({"a": steep}).axes[0].get_ylim()
    assert 0.29 < low < 0.30
    assert 0.31 < high < 0.45
    low, high = plot.curves({"a": [make(np.linspace(1, 0, 50))]}).axes[0].get_ylim()
    assert low < 0 < 1 < high


def test_the_axis_shows_where_curves_begin_unless_that_hides_the_rest():
    """After a tenth of the run, a quarter of the height is left to one line, and an eighth to the other."""
    epochs = np.linspace(0, 10, 101)
    for left, whole in ((0.25, True), (0.125, False)):
        losses = 0.3 + 0.4 * np.where(epochs < 1, 1 - (1 - left) * epochs, left * (1 - epochs / 10))
        for figure in (plot.curves(make(losses)), plot.comparison(make(losses))):
            assert (figure.axes[0].get_ylim()[1] >= 0.7) == whole


def test_curves_say_over_how_many_seeds():
    assert plot.curves({"a": seeds(3), "b": seeds(3)}).get_suptitle() == "mean of 3 seeds"
    assert plot.curves({"a": seeds(1), "b": seeds(3)}).get_suptitle() == "means of 1 to 3 seeds"
    assert plot.curves({"a": seeds(1)}).get_suptitle() == ""
    assert plot.curves({"a": seeds(3)}, title="mine").get_suptitle() == "mine"
    assert (
        plot.comparison({"a": seeds(1), "b": seeds(3)})
        .get_suptitle()
        .endswith("  ·  means of 1 to 3 seeds")
    )


def climbing(count=1, **changes):
    """Traces with a metric of the user's own, which climbs."""
    up, cost = np.linspace(0.1, 0.9, 20), np.geomspace(1, 100, 20)
    made = [make(accuracy=up + 0.02 * seed, cost=cost, seed=seed) for seed in range(count)]
    about = (Metric("cost", "cost $c$", log=True), Metric("accuracy", "accuracy $a$"))
    return [dataclasses.replace(trace, metrics=about, **changes) for trace in made]


def test_a_metric_of_the_user(tmp_path):
    figure = plot.curves({"a": climbing(3)}, [("epoch", "accuracy"), ("bytes", "cost")])
    accuracy, cost = figure.axes
    assert (accuracy.get_ylabel(), cost.get_ylabel()) == ("accuracy $a$", "cost $c$")
    assert (accuracy.get_yscale(), cost.get_yscale()) == ("linear", "log")
    np.testing.assert_allclose(
        accuracy.get_lines()[0].get_ydata(), np.linspace(0.1, 0.9, 20) + 0.02
    )
    np.testing.assert_allclose(
        band(accuracy)[2], np.linspace(0.1, 0.9, 20) + 0.04
    )  # a deviation of 0.02
    assert accuracy.get_ylim()[1] > 0.92, "it may climb"
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_metric_that_nobody_describes_goes_by_its_name(tmp_path):
    (axes,) = plot.curves(
        {"a": [make(**{"cost in $": np.arange(20)})]}, [("step", "cost in $")]
    ).axes
    assert (axes.get_ylabel(), axes.get_yscale()) == (r"cost in \$", "linear")


def test_a_diverged_metric_of_the_user_does_not_set_the_scale():
    (gone,) = climbing(status=Status.diverged)
    gone = dataclasses.replace(gone, table=gone.table.assign(accuracy=1e9))
    low, high = (
        plot.curves({"a": climbing(), "b": [gone]}, [("step", "accuracy")]).axes[0].get_ylim()
    )
    assert (low, high) == pytest.approx((0.06, 0.94))


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("draw", [plot.curves, plot.comparison])
def test_runs_in_any_form(draw):
    """One trace, those of several seeds, a comparison, a list of these: labels are the methods' names."""
    first, second = made("dsgd[batch=1,alpha=0.1]"), made("d2[batch=1,alpha=0.1]")
    several = Traces([first, made("dsgd[batch=1,alpha=0.1]", seed=1)])
    assert names(draw(first)) == names(draw(several)) == ["dsgd"]
    assert len(draw(several).axes[0].collections) == 1, "several seeds are one line, with a band"
    assert names(draw({"mine": first})) == ["mine"]
    assert names(draw([several, second])) == ["dsgd", "d2"]
    assert names(draw([first, made("dsgd[batch=1,alpha=0.5]")])) == [
        "dsgd[batch=1,alpha=0.1]",
        "dsgd[batch=1,alpha=0.5]",
    ]
    assert names(draw([first, several])) == ["dsgd 1", "dsgd 2"]
    assert names(draw([Comparison({"one": Traces([first]), "two": Traces([second])}), second])) == [
        "one",
        "two",
        "d2",
    ]
    assert names(draw([{"x": first, "x 1": first}, {"x": first}])) == ["x 2", "x 1", "x 3"], (
        "none is lost"
    )


@pytest.mark.parametrize("draw", [plot.curves, plot.comparison])
def test_traces_under_one_label_differ_in_seed_only(draw):
    """Two step sizes were once called two seeds, and one trace thrice had a band of width 0."""
    mixed = [made("dsgd[alpha=0.1]"), made("dsgd[alpha=1]", seed=1)]
    with pytest.raises(
        ValueError,
        match=r"'dsgd': .* method is 'dsgd\[alpha=0.1\]' with seed 0 and 'dsgd\[alpha=1\]'",
    ):
        draw({"dsgd": mixed})
    with pytest.raises(
        ValueError, match="'dsgd': there are 3 traces with seed 0: give one of each seed"
    ):
        draw([{"dsgd": [make()] * 3}])
    assert draw({"dsgd": [make(), *climbing(2)[1:]]}).get_suptitle().endswith("mean of 2 seeds"), (
        "what both have"
    )


@pytest.mark.parametrize("draw", [plot.curves, plot.comparison])
def test_what_is_no_run(draw):
    remedy = r": give a Trace, Traces, a Comparison, a list of these, or \{label: traces\}"
    for wrong, said in [
        (make().table, "the runs to draw are of type DataFrame, which is no trace of peer.run"),
        ("dsgd", "the runs to draw are of type str, which is no trace of peer.run"),
        ([make(), [make()]], "a list of runs has one of type list, which is no trace of peer.run"),
        ({"a": make().table}, "'a' is of type DataFrame, which is no trace of peer.run"),
        ({"a": [make(), 3]}, "'a' has one of type int, which is no trace of peer.run"),
        ([], "no traces to draw"),
    ]:
        with pytest.raises(ValueError, match=said + remedy):
            draw(wrong)
    with pytest.raises(ValueError, match="'a' has no traces: give at least one"):
        draw({"a": []})


def made(method, seed=0):
    trace = make()
    return dataclasses.replace(
        trace, identity=dataclasses.replace(trace.identity, method=method, seed=seed)
    )


def test_curves_refuse_what_they_cannot_draw():
    groups = {"a": seeds()}
    with pytest.raises(ValueError, match="give optimum="):
        plot.curves(groups, [("epoch", "gap")])
    with pytest.raises(ValueError, match="unknown horizontal axis 'epochs': did you mean 'epoch'"):
        plot.curves(groups, [("epochs", "loss")])
    with pytest.raises(ValueError, match="unknown vertical axis 'los': did you mean 'loss'"):
        plot.curves(groups, [("epoch", "los")])
    with pytest.raises(
        ValueError, match="unknown vertical axis 'acuracy': did you mean 'accuracy'"
    ):
        plot.curves({"a": climbing()}, [("epoch", "acuracy")])
    with pytest.raises(ValueError, match="'b' has no accuracy: it was not recorded"):
        plot.curves({"a": climbing(), "b": [make()]}, [("epoch", "accuracy")])
    with pytest.raises(ValueError, match="give pairs"):
        plot.curves(groups, ("epoch", "loss"))
    with pytest.raises(ValueError, match="'a' has no finite epoch"):
        plot.curves({"a": [make(epoch=np.nan)]})


@pytest.mark.parametrize("kind", some(["curves", "comparison", "heatmap", "drawing"], 2))
def test_every_figure_in_every_format(kind, tmp_path):
    figure = {
        "comparison": lambda: plot.comparison({"a": make(), "b": make()}),
        "curves": lambda: plot.curves(
            {"a": seeds(), "b": seeds(2)}, [("epoch", "loss"), ("bytes", "gap")], optimum=0
        ),
        "heatmap": lambda: plot.heatmap(grid(), "alpha", "beta"),
        "drawing": lambda: plot.drawing(Network(topology.ring(4))),
    }[kind]()
    png, pdf, svg = (plot.save(figure, tmp_path / f"a{suffix}") for suffix in plot.SUFFIXES)
    assert (
        len(np.unique((255 * image.imread(png)[..., :3]).astype(int).reshape(-1, 3), axis=0)) > 20
    )
    assert pdf.read_bytes().startswith(b"%PDF")
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg", ".PNG"])
def test_formats(suffix, tmp_path):
    path = plot.save(plot.drawing(Network(topology.ring(4))), tmp_path / "new" / f"a{suffix}")
    assert path.stat().st_size > 1000


def test_other_formats_are_refused(tmp_path):
    figure = plot.drawing(Network(topology.ring(4)))
    with pytest.raises(ValueError, match=r"cannot draw 'a.gif': end its name in .png, .pdf, .svg"):
        plot.save(figure, tmp_path / "a.gif")


def test_pyplot_is_never_loaded():
    code = """
import sys
from peerdescent import Comparison, Network, Traces, topology
from peerdescent import figures as plot
plot.drawing(Network(topology.ring(4)))
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    assert children.python("-c", code).returncode == 0


def test_ones_own_metrics_have_panels_of_their_own():
    def measured(*names):
        columns = {name: np.linspace(0, 1, 20) for name in names}
        return dataclasses.replace(make(**columns), metrics=tuple(Metric(name) for name in names))

    figure = plot.comparison({"a": measured("accuracy", "width"), "b": measured("accuracy")})
    assert [axes.get_ylabel() for axes in figure.axes[4:]] == ["accuracy"], "what all have"


def test_long_names_are_cut_between_parameters(tmp_path):
    long = "heavy-ball*double-mix[gamma=0.3,nesterov=False,flavour=storm,batch=8,alpha=0.05,other=1234567890]"
    figure = plot.curves({long: [make()], "dsgd": [make()]})
    FigureCanvasAgg(figure).draw()
    legend = figure.legends[0]
    assert legend.get_texts()[0].get_text().replace("\n", " ").replace(", ", ",") == long
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0
    assert box.x1 <= page.x1


@pytest.mark.parametrize("suffix", plot.SUFFIXES)
def test_only_figures_of_our_own_are_replaced(tmp_path, suffix):
    figure, path = plot.curves({"a": seeds(1)}), tmp_path / f"a{suffix}"
    for _ in range(2):
        plot.save(figure, path)
    path.write_bytes(b"my talk about peerdescent")
    with pytest.raises(
        ValueError,
        match=r"is not a figure of peerdescent: give another name, or force=True to replace it",
    ):
        plot.save(figure, path)
    assert path.read_bytes() == b"my talk about peerdescent"
    plot.save(figure, path, force=True)
    assert path.stat().st_size > 1000
