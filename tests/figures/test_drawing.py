"""Drawings of networks: every node and link is there, and arrows point where messages go."""

import pytest
from matplotlib.figure import Figure

from made_traces import pixels
from peerdescent import Network, topology
from peerdescent import figures as plot
from small import some


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        *((name, 12) for name in some(topology.TOPOLOGIES, 2)),
        *((name, n) for name in some(topology.TOPOLOGIES, 6) for n in (1, 2)),
    ],
)
def test_drawings(name, nodes, tmp_path):
    network = Network(topology.build(name, nodes))
    figure = plot.drawing(network)
    assert f"{name}, n = {nodes}, " in figure.get_suptitle()
    assert "λ = " in figure.get_suptitle()
    assert len([axes for axes in figure.axes if axes.texts]) == (
        network.period if network.graph is None else 3
    )
    assert pixels(figure, tmp_path / "a.png").var() > 10


def test_a_drawing_has_every_link():
    assert (
        len(plot.drawing(Network(topology.exponential(20))).axes[0].collections[0].get_segments())
        == 80
    )
    assert len(plot.drawing(Network(topology.directed_exponential(20))).axes[0].patches) == 100
    # 4 x 4: 24 links inside, and 8 round the back with two stubs each
    assert (
        len(plot.drawing(Network(topology.torus(16))).axes[0].collections[0].get_segments())
        == 24 + 2 * 8
    )


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


def test_random_graphs_are_drawn_as_they_are_drawn_in_rounds():
    figure = plot.drawing(Network(topology.random_matching(8)))
    counts = [len(axes.collections[0].get_segments()) for axes in figure.axes]
    assert counts == [4, 4, 4]


def test_nodes_are_equally_large_on_all_axes_of_a_layout():
    figure = Figure(figsize=(7, 7), layout="constrained")
    for axes in figure.subplots(2, 2).flat:
        plot.drawing(Network(topology.ring(24)), ax=axes)
    sizes = [float(axes.collections[-1].get_sizes()[0]) for axes in figure.axes]
    assert max(sizes) < 1.1 * min(sizes)
