"""Topologies: their edges at every size, and their networks with default weights."""

import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from peerdescent import topology
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import GRAPH
from peerdescent.networks.topology import TOPOLOGIES, build
from peerdescent.threefry import source

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 33]
DRAWN = ["erdos-renyi", "random-matching", "random-regular"]
"""Those that are drawn anew in every round; the first has a seed for one that is not."""
FIXED = [name for name in TOPOLOGIES if name not in DRAWN[1:]]


def fixed(name, n):
    return build(name, n, **({"seed": 0} if name in DRAWN else {}))


def graphs(name, n):
    built = fixed(name, n)
    return built if isinstance(built, list) else [built]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FIXED)
def test_nodes_name_and_connection(name, n):
    union = nx.DiGraph()
    for graph in graphs(name, n):
        assert list(graph) == list(range(n))
        assert graph.graph["name"] == name
        assert nx.number_of_selfloops(graph) == 0
        assert not graph.is_multigraph()
        union.update(graph.to_directed())
    assert nx.is_strongly_connected(union)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", DRAWN)
def test_random_graphs_have_their_name_and_connect_all_in_time(name, n):
    graph, ends = build(name, n), np.stack(np.triu_indices(n, 1), axis=1)
    assert (graph.n, graph.name) == (n, name)
    union = nx.empty_graph(n)
    for t in range(200):
        union.add_edges_from(
            ends[np.asarray(graph.joined(source(np, 0, t, GRAPH, 0), ends))].tolist()
        )
    assert nx.is_connected(union)


def test_the_names_are_the_documented_ones():
    assert set(TOPOLOGIES) == {
        "ring", "exponential", "directed-exponential", "one-peer-exponential", "complete", "grid", "torus", "star",
        "erdos-renyi", "watts-strogatz", "random-matching", "random-regular",
    }  # fmt: skip


@pytest.mark.parametrize("n", SIZES)
def test_circulant_graphs_against_their_definition(n):
    def circle(hops, directed):
        edges = {(i, (i + hop) % n) for i in range(n) for hop in hops if hop % n}
        return edges if directed else edges | {(j, i) for i, j in edges}

    powers = [2**k for k in range(10)]
    assert set(topology.ring(n).to_directed().edges) == circle([1], directed=False)
    half = [hop for hop in powers if hop <= n / 2]
    assert set(topology.exponential(n).to_directed().edges) == circle(half, directed=False)
    below = [hop for hop in powers if hop < n]
    assert set(topology.directed_exponential(n).edges) == circle(below, directed=True)
    one_peer = topology.one_peer_exponential(n)
    assert len(one_peer) == max(1, math.ceil(math.log2(n)))
    for k, graph in enumerate(one_peer):
        assert set(graph.edges) == circle([2**k], directed=True)


def test_the_papers_exponential_graphs():
    assert sorted(topology.exponential(20)[0]) == [1, 2, 4, 8, 12, 16, 18, 19]
    assert set(dict(topology.exponential(20).degree).values()) == {8}
    assert sorted(topology.directed_exponential(20)[19]) == [0, 1, 3, 7, 15]
    assert set(dict(topology.directed_exponential(20).in_degree).values()) == {5}


@pytest.mark.parametrize(
    ("n", "rows"), [(1, 1), (2, 1), (4, 2), (6, 2), (7, 1), (12, 3), (16, 4), (20, 4), (36, 6)]
)
def test_lattices_are_as_square_as_can_be(n, rows):
    columns = n // rows
    assert topology.grid(n).number_of_edges() == rows * (columns - 1) + columns * (rows - 1)
    wrapped = rows * (columns - 1 + (columns > 2)) + columns * (rows - 1 + (rows > 2))
    assert topology.torus(n).number_of_edges() == wrapped
    for r in range(rows):
        for c in range(columns):
            below, right = ((r + 1) % rows) * columns + c, r * columns + (c + 1) % columns
            here = r * columns + c
            assert here == below or topology.torus(n).has_edge(here, below)
            assert here == right or topology.torus(n).has_edge(here, right)
            assert topology.grid(n).has_edge(here, here + 1) == (c + 1 < columns)


def test_star_and_complete():
    assert dict(topology.star(6).degree) == {0: 5, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert set(dict(topology.complete(6).degree).values()) == {5}


def test_erdos_renyi_repeats_and_varies_with_its_seed():
    first = topology.erdos_renyi(30, seed=4)
    assert nx.utils.graphs_equal(first, topology.erdos_renyi(30, seed=4))
    assert not nx.utils.graphs_equal(first, topology.erdos_renyi(30, seed=5))
    assert topology.erdos_renyi(30, 1.0, seed=0).number_of_edges() == 30 * 29 / 2


def test_erdos_renyi_has_the_asked_density_and_redraws_until_connected():
    edges = [topology.erdos_renyi(60, seed=seed).number_of_edges() for seed in range(20)]
    assert np.mean(edges) == pytest.approx(math.log(60) * 59, rel=0.05)
    # At the connectivity threshold about two draws in three fail, so ten successes in a row come from redrawing.
    assert all(
        nx.is_connected(topology.erdos_renyi(40, math.log(40) / 40, seed=seed))
        for seed in range(10)
    )


def test_watts_strogatz_is_a_ring_some_of_whose_edges_lead_elsewhere():
    near = {(i, (i + hop) % 20) for i in range(20) for hop in (1, 2)}
    ring = {frozenset(edge) for edge in near}
    assert {frozenset(edge) for edge in topology.watts_strogatz(20, 4, 0).edges} == ring
    small = {frozenset(edge) for edge in topology.watts_strogatz(20, 4, 0.2, seed=1).edges}
    assert len(small) == 40
    assert 20 < len(small & ring) < 40
    assert small == {frozenset(edge) for edge in topology.watts_strogatz(20, 4, 0.2, seed=1).edges}
    assert small != {frozenset(edge) for edge in topology.watts_strogatz(20, 4, 0.2, seed=2).edges}


def test_build_passes_options_and_accepts_numpy_integers():
    assert nx.utils.graphs_equal(
        build("erdos-renyi", 12, probability=0.5, seed=3),
        topology.erdos_renyi(12, probability=0.5, seed=3),
    )
    assert len(build("ring", np.int64(5))) == 5


# As networks


@pytest.mark.parametrize(
    ("graph", "rule", "hops", "own", "other", "lam"),
    [
        (topology.ring(20), "lazy", [1, 19], 1 / 2, 1 / 4, (1 + np.cos(np.pi / 10)) / 2),
        (topology.exponential(20), "lazy", [1, 2, 4, 8, 12, 16, 18, 19], 1 / 2, 1 / 16, 3 / 4),
        (topology.directed_exponential(20), "equal", [1, 2, 4, 8, 16], 1 / 6, 1 / 6, 2 / 3),
        (topology.complete(20), "equal", range(1, 20), 1 / 20, 1 / 20, 0),
    ],
    ids=lambda value: value.name if isinstance(value, nx.Graph) else "",
)
def test_the_papers_four_networks(graph, rule, hops, own, other, lam):
    expected = np.diag([own] * 20)
    for i in range(20):
        for hop in hops:
            expected[(i + hop) % 20, i] = other  # i sends to i + hop
    network = Network(graph)
    assert network.rule == rule
    assert_allclose(network.W, expected, rtol=0, atol=1e-15)
    assert network.lam == pytest.approx(lam, abs=1e-12)
    assert network.lam == pytest.approx(np.linalg.norm(expected - 1 / 20, 2), abs=1e-12)
    assert network.gap == pytest.approx(1 - lam, abs=1e-12)
    assert_array_equal(network.degree, [len(list(hops))] * 20)
    assert network.neighbours[0] == tuple(sorted((-hop) % 20 for hop in hops))


def test_the_papers_rounded_lambdas():
    lams = [
        Network(topology.build(name, 20)).lam
        for name in ("ring", "exponential", "directed-exponential")
    ]
    assert [round(lam, 3) for lam in lams] == [0.976, 0.75, 0.667]


def test_one_peer_exponential_averages_exactly_in_one_period():
    graphs = topology.one_peer_exponential(16)
    network = Network(graphs)
    assert (network.period, network.W.shape, network.degree.shape) == (4, (4, 16, 16), (4, 16))
    W = network.W
    assert_array_equal(W[3] @ W[2] @ W[1] @ W[0], np.full((16, 16), 1 / 16))
    assert network.lam == 0
    assert_array_equal(network.degree, np.ones((4, 16)))
    assert network.neighbours[0] == (8, 12, 14, 15)
    assert_array_equal(Network(graphs[0]).W, W[0])  # hop 1 alone goes round; the others do not
    for graph in graphs[1:]:
        with pytest.raises(ValueError, match="the network is disconnected"):
            Network(graph)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_networks(name, n):
    network = Network(build(name, n) if name not in FIXED else fixed(name, n))
    assert network.n == n
    assert network.name == name
    if n == 1:
        assert_array_equal(np.atleast_3d(network.W).ravel(), [1])
        assert (network.lam, network.neighbours, network.degree.tolist()) == (0, ((),), [0])
    if n == 2:
        assert_array_equal(network.W, np.full((2, 2), 0.5))
        assert network.lam == pytest.approx(0, abs=1e-15)


# Bad input


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [0, -3, 2.0, 2.5, "20", None, True, float("nan")])
def test_no_number_of_nodes(name, n):
    with pytest.raises(ValueError, match="is no number of nodes: give an integer of at least 1"):
        build(name, n)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("rnig", 5), "unknown topology 'rnig': did you mean 'ring'"),
        (lambda: build("directed_exponential", 5), "did you mean 'directed-exponential'"),
        (lambda: build("ring", 5, seed=1), "ring has no option 'seed': it takes none"),
        (lambda: build("erdos-renyi", 5, sed=1), "no option 'sed': it takes probability and seed"),
        (
            lambda: build("random-matching", 5, degree=1),
            "random-matching has no option 'degree': it takes none",
        ),
        (lambda: topology.watts_strogatz(9, 3), "neighbours = 3: must be even"),
        (lambda: topology.watts_strogatz(9, 4, 2), r"probability=2 is not in \[0, 1\]"),
        (lambda: topology.erdos_renyi(5, 1.5), r"probability=1.5 is not in \[0, 1\]"),
        (lambda: topology.erdos_renyi(5, float("nan")), "probability=nan is not in"),
        (
            lambda: topology.erdos_renyi(5, 0, seed=0),
            "no connected graph of 5 nodes in 1000 tries: raise it above",
        ),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
