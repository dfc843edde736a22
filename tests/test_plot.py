import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from PIL import Image

import peerdescent
from peerdescent import Network, Trace, plot, topology
from peerdescent.sweep import best
from peerdescent.trace import Identity, Status


def make(losses=None, *, status=Status.done, network="Network(ring, n=4, lazy weights, lam=0.500)", **columns):
    losses = np.exp(-np.arange(20) / 5) if losses is None else np.asarray(losses)
    steps = np.arange(len(losses))
    consensus = np.where(steps > 0, 1e-3 / (1 + steps), 0)
    table = {"step": steps, "epoch": steps / 10, "loss": losses, "grad_norm": losses, "consensus": consensus}
    table |= {"bytes": 1e5 * steps, **columns}
    identity = Identity("dsgd", "logistic(digits)", network, 4, 2, 0, 32, "stacked", "00000000")
    return Trace(pd.DataFrame(table), np.zeros((4, 2)), np.zeros(2), status, identity)


def pixels(figure, path):
    return np.asarray(Image.open(plot.save(figure, path)).convert("L"), dtype=float)


def test_four_panels_with_labels(tmp_path):
    figure = plot.comparison({"dsgd": make(), "d2": make()})
    assert [axes.get_xlabel() for axes in figure.axes] == ["epochs"] * 3 + ["sent by a node, on average"]
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
    loss, norm, consensus, by_bytes = (axes.get_lines()[0] for axes in plot.comparison({"a": trace}).axes)
    np.testing.assert_array_equal(loss.get_xydata(), trace.table[["epoch", "loss"]])
    np.testing.assert_array_equal(norm.get_xydata(), trace.table[["epoch", "grad_norm"]])
    np.testing.assert_array_equal(by_bytes.get_xydata(), trace.table[["bytes", "loss"]])
    assert np.isnan(consensus.get_ydata()[0])  # the zero of a common start has no place on a log axis
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
    plot.save(figure, tmp_path / "a.png")


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


def test_the_title_holds_what_is_common():
    other = make(network="Network(star, n=4, lazy weights, lam=0.900)")
    assert plot.comparison({"ring": make(), "star": other}).get_suptitle() == "logistic(digits)"


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="no traces to compare"):
        plot.comparison({})


def seeds(count=3, **changes):
    """Traces of one method that differ in noise."""
    rng = np.random.default_rng(0)
    return [make(0.3 + np.exp(-np.arange(20) / 5) * rng.uniform(0.5, 1.5, 20), **changes) for _ in range(count)]


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
    np.testing.assert_allclose(low, losses.mean(axis=1) - losses.std(axis=1))
    np.testing.assert_allclose(high, losses.mean(axis=1) + losses.std(axis=1))


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
    traces = [make([1.0, 0.5, 0.1]), make([1.0, 0.3, 0.4])]
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
    second = make([4.0, 1.0], epoch=[0.0, 1.5])
    x, y = plot.curves({"a": [first, second]}).axes[0].get_lines()[0].get_data()
    assert x.tolist() == [0, 1, 1.5]  # all their points, as far as both go
    np.testing.assert_allclose(y, [4, 2, 1])


def test_nothing_in_common():
    with pytest.raises(ValueError, match="'a' have no epoch in common"):
        plot.curves({"a": [make([1.0, 0.5], epoch=[0, 1]), make([1.0, 0.5], epoch=[2, 3])]})


def test_panels_and_their_axes(tmp_path):
    columns = {"rounds": np.arange(20), "seconds": np.arange(20) / 7, "stationarity": np.exp(-np.arange(20))}
    panels = [("rounds", "loss"), ("seconds", "gap"), ("step", "stationarity"), ("bytes", "grad_norm")]
    panels += [("rounds", "consensus")]
    figure = plot.curves({"a": seeds(**columns), "b": seeds(2, **columns)}, panels, optimum=0, title="a title")
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", *["log"] * 4]
    assert [axes.get_xlabel().split()[0] for axes in figure.axes] == ["rounds", "seconds", "steps", "sent", "rounds"]
    assert figure.get_suptitle() == "a title"
    assert len(figure.legends) == 1
    assert figure.axes[0].get_xlim() == figure.axes[4].get_xlim()
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_what_diverged_is_drawn_and_said_but_not_averaged(tmp_path):
    good, bad = make(), make([1.0, 50.0, 1e30], status=Status.diverged)
    groups = {"some": [good, bad, good], "all": [bad, bad], "none": [good]}
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
    bad = make([1.0, np.nan], status=Status.diverged)
    figure = plot.curves({"a": [bad, bad]}, [("epoch", "loss"), ("epoch", "consensus")])
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_steep_start_does_not_flatten_the_end():
    steep = [make(0.30 + 0.01 * np.arange(200)[::-1] / 200 + (np.arange(200) < 3))]
    low, high = plot.curves({"a": steep}).axes[0].get_ylim()
    assert 0.29 < low < 0.30
    assert 0.31 < high < 0.45
    low, high = plot.curves({"a": [make(np.linspace(1, 0, 50))]}).axes[0].get_ylim()
    assert low < 0 < 1 < high


def test_curves_refuse_what_they_cannot_draw():
    groups = {"a": seeds()}
    with pytest.raises(ValueError, match="no groups to draw"):
        plot.curves({})
    with pytest.raises(ValueError, match="'a' has to be a list"):
        plot.curves({"a": []})
    with pytest.raises(ValueError, match="'a' has to be a list"):
        plot.curves({"a": make()})
    with pytest.raises(ValueError, match="give optimum="):
        plot.curves(groups, [("epoch", "gap")])
    with pytest.raises(ValueError, match="unknown horizontal axis 'epochs': did you mean 'epoch'"):
        plot.curves(groups, [("epochs", "loss")])
    with pytest.raises(ValueError, match="unknown vertical axis 'los': did you mean 'loss'"):
        plot.curves(groups, [("epoch", "los")])
    with pytest.raises(ValueError, match="give pairs"):
        plot.curves(groups, ("epoch", "loss"))
    with pytest.raises(ValueError, match="'a' has no epoch"):
        plot.curves({"a": [make(epoch=np.nan)]})


def grid(values=None, seeds=(0,), **axes):
    """A table as `sweep` makes it, its rows not in order."""
    axes = axes or {"alpha": [1.0, 0.1, 10.0], "beta": [0.5, 0.01], "batch": [1, 4]}
    table = pd.MultiIndex.from_product([*axes.values(), seeds], names=[*axes, "seed"]).to_frame(index=False)
    values = np.random.default_rng(1).uniform(0.3, 0.7, len(table)) if values is None else values
    table["loss@1"], table["loss"], table["grad_norm"], table["status"] = 2.0, values, 0.1, "done"
    return table


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
    assert [text.get_text() for text in axes.texts] == [f"{value:.3g}" for value in expected.to_numpy().ravel()]
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
    even = plot.heatmap(grid(np.arange(6.0), alpha=[1, 2, 3], beta=[1, 2]), "alpha", "beta").axes[0].collections[0]
    assert (even.norm.vmin, even.norm.vmax, even.colorbar.extend) == (0, 5, "neither")


def test_numbers_can_be_read_on_their_cells():
    figure = plot.heatmap(grid(np.arange(12.0)), "alpha", "beta", "loss")
    mesh = figure.axes[0].collections[0]
    colours = {text.get_color() for text in figure.axes[0].texts}
    assert colours == {"black", "white"}
    for text in figure.axes[0].texts:
        behind, ink = plot._luminance(mesh.to_rgba(float(text.get_text()))), plot._luminance(to_rgba(text.get_color()))
        assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) > 4.5


@pytest.mark.parametrize("axes", [{"alpha": [1], "beta": range(7)}, {"alpha": range(7), "beta": [1]}])
def test_one_row(axes, tmp_path):
    figure = plot.heatmap(grid(**axes), "alpha", "beta")
    assert drawn(figure).shape == (len(axes["beta"]), len(axes["alpha"]))
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_one_cell_and_many(tmp_path):
    plot.save(plot.heatmap(grid(alpha=[1], beta=[2]), "alpha", "beta"), tmp_path / "a.png")
    figure = plot.heatmap(grid(alpha=range(90), beta=range(10)), "alpha", "beta")
    assert not figure.axes[0].texts
    assert len(figure.axes[0].get_xticks()) <= plot.TICKS
    assert pixels(figure, tmp_path / "b.png").var() > 10


def test_words_and_nothing_are_values_too():
    table = grid(alpha=[0.5, 0.1], rule=["b", None, "a"])
    labels = [tick.get_text() for tick in plot.heatmap(table, "rule", "alpha").axes[0].get_xticklabels()]
    assert labels == ["a", "b", "none"]
    table = grid(alpha=[0.5, 0.1], period=[10, None, 2])
    labels = [tick.get_text() for tick in plot.heatmap(table, "period", "alpha").axes[0].get_xticklabels()]
    assert labels == ["2", "10", "none"]


def test_maps_refuse_what_they_cannot_draw():
    with pytest.raises(
        ValueError, match="unknown parameter 'alhpa': did you mean 'alpha'\\? Known: alpha, batch, beta"
    ):
        plot.heatmap(grid(), "alhpa", "beta")
    with pytest.raises(ValueError, match="unknown parameter 'loss'"):
        plot.heatmap(grid(), "alpha", "loss")
    with pytest.raises(ValueError, match="both 'beta': give two different parameters of alpha, beta, batch"):
        plot.heatmap(grid(), "beta", "beta")
    with pytest.raises(ValueError, match="unknown value 'los': did you mean 'loss'"):
        plot.heatmap(grid(), "alpha", "beta", "los")


def test_other_values():
    assert (drawn(plot.heatmap(grid(), "alpha", "beta", "grad_norm")) == 0.1).all()
    assert (drawn(plot.heatmap(grid(), "alpha", "beta", "loss@1")) == 2).all()


@pytest.mark.parametrize("kind", ["comparison", "curves", "heatmap", "drawing"])
def test_every_figure_in_every_format(kind, tmp_path):
    figure = {
        "comparison": lambda: plot.comparison({"a": make(), "b": make()}),
        "curves": lambda: plot.curves({"a": seeds(), "b": seeds(2)}, [("epoch", "loss"), ("bytes", "gap")], optimum=0),
        "heatmap": lambda: plot.heatmap(grid(), "alpha", "beta"),
        "drawing": lambda: plot.drawing(Network(topology.ring(4))),
    }[kind]()
    png, pdf, svg = (plot.save(figure, tmp_path / f"a{suffix}") for suffix in plot.SUFFIXES)
    assert len(np.unique((255 * image.imread(png)[..., :3]).astype(int).reshape(-1, 3), axis=0)) > 20
    assert pdf.read_bytes().startswith(b"%PDF")
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10


@pytest.mark.parametrize("name", topology.TOPOLOGIES)
@pytest.mark.parametrize("nodes", [1, 2, 12])
def test_drawings(name, nodes, tmp_path):
    network = Network(topology.build(name, nodes))
    figure = plot.drawing(network)
    assert f"{name}, n = {nodes}, " in figure.get_suptitle()
    assert "λ = " in figure.get_suptitle()
    assert len([axes for axes in figure.axes if axes.texts]) == network.period
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_drawing_has_every_link():
    assert len(plot.drawing(Network(topology.exponential(20))).axes[0].collections[0].get_segments()) == 80
    assert len(plot.drawing(Network(topology.directed_exponential(20))).axes[0].patches) == 100
    # 4 x 4: 24 links inside, and 8 round the back with two stubs each
    assert len(plot.drawing(Network(topology.torus(16))).axes[0].collections[0].get_segments()) == 24 + 2 * 8


def test_arrows_point_where_messages_go():
    network = Network(topology.directed_exponential(4))
    axes = plot.drawing(network).axes[0]
    place = {text.get_text(): text.get_position() for text in axes.texts}
    arrows = {(tuple(arrow._posA_posB[0]), tuple(arrow._posA_posB[1])) for arrow in axes.patches}
    assert (place["0"], place["1"]) in arrows
    assert (place["1"], place["0"]) not in arrows


def test_large_networks_have_no_numbers(tmp_path):
    figure = plot.drawing(Network(topology.ring(200)))
    assert not figure.axes[0].texts
    assert pixels(figure, tmp_path / "a.png").var() > 10


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
from peerdescent import Network, plot, topology
plot.drawing(Network(topology.ring(4)))
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(peerdescent.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
