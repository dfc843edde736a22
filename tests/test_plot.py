import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import peerdescent
from peerdescent import Network, Trace, plot, topology
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


def test_lines_can_be_told_apart_in_grey():
    figure = plot.comparison({f"method {i}": make() for i in range(20)})
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
