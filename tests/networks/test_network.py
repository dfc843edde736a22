"""Networks: weight rules against hand-written matrices, Assumption 3, spectra, sequences, and bad input."""

import copy
import pickle
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from peerdescent.networks import spectra, topology
from peerdescent.networks.network import Network
from peerdescent.networks.weighing import RULES

DOUBLY_STOCHASTIC = [rule for rule in RULES if rule != "push-pull"]

HALF = np.full((2, 2), 0.5)
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])


def second_singular_value(W):
    n = len(W)
    return np.linalg.svd(W - np.ones((n, n)) / n, compute_uv=False)[0]


def matrix_by_loop(graph, rule):
    """The definition of each rule, entry by entry."""
    n, d = len(graph), dict(graph.degree)
    W = np.zeros((n, n))
    for i, j in graph.to_directed().edges:
        larger = max(d[i], d[j])
        shares = {
            "lazy": 2 * larger,
            "metropolis": 1 + larger,
            "equal": 1 + max(d.values()),
            "push-pull": 1 + d[i],
        }
        W[i, j] = 1 / shares[rule]
    for i in range(n):
        W[i, i] = 1 - W[i].sum()
    return W


# Weight rules


def test_star_by_hand():
    lazy = [
        [1 / 2, 1 / 6, 1 / 6, 1 / 6],
        [1 / 6, 5 / 6, 0, 0],
        [1 / 6, 0, 5 / 6, 0],
        [1 / 6, 0, 0, 5 / 6],
    ]
    quarter = [[1 / 4] * 4, [1 / 4, 3 / 4, 0, 0], [1 / 4, 0, 3 / 4, 0], [1 / 4, 0, 0, 3 / 4]]
    for rule, W in (("lazy", lazy), ("metropolis", quarter), ("equal", quarter)):
        assert_allclose(Network(topology.star(4), rule).W, W, atol=1e-15)


def test_path_by_hand():
    lazy = [[3 / 4, 1 / 4, 0], [1 / 4, 1 / 2, 1 / 4], [0, 1 / 4, 3 / 4]]
    third = [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]
    for rule, W in (("lazy", lazy), ("metropolis", third), ("equal", third)):
        assert_allclose(Network(nx.path_graph(3), rule).W, W, atol=1e-15)


def test_the_rules_differ_where_degrees_do():
    W = {
        rule: Network(nx.barbell_graph(4, 2), rule).W for rule in RULES
    }  # two K4 and a path of two between them
    assert [W["lazy"][0, 1], W["lazy"][3, 4], W["lazy"][4, 5]] == pytest.approx(
        [1 / 6, 1 / 8, 1 / 4]
    )
    assert [W["metropolis"][0, 1], W["metropolis"][3, 4], W["metropolis"][4, 5]] == pytest.approx(
        [1 / 4, 1 / 5, 1 / 3]
    )
    assert [W["equal"][0, 1], W["equal"][3, 4], W["equal"][4, 5]] == pytest.approx([1 / 5] * 3)
    pushed = Network(nx.barbell_graph(4, 2), "push-pull").pushed.toarray()
    assert [W["push-pull"][0, 1], W["push-pull"][3, 4], W["push-pull"][4, 3]] == pytest.approx(
        [1 / 4, 1 / 5, 1 / 3]
    )
    assert_allclose(pushed, W["push-pull"].T, atol=1e-15)  # on an undirected graph
    for rule in RULES:
        assert_allclose(W[rule], matrix_by_loop(nx.barbell_graph(4, 2), rule), atol=1e-15)


def test_default_rules():
    assert Network(nx.path_graph(4)).rule == "lazy"
    assert Network(topology.complete(4)).rule == "equal"
    assert Network(topology.ring(3)).rule == "equal"  # three on a ring are all joined
    assert Network(topology.ring(4).to_directed()).rule == "equal"
    assert Network(HALF).rule == "given"


def test_a_directed_graph_with_both_directions_is_undirected_in_all_but_its_default():
    both = topology.ring(6).to_directed()
    assert not Network(both).is_directed
    assert_array_equal(Network(both, "lazy").W, Network(topology.ring(6), "lazy").W)


# Directions, labels, and what is ignored


def test_an_edge_from_j_to_i_lets_i_hear_j():
    network = Network(nx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    assert_allclose(network.W, [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    assert network.neighbours == ((2,), (0,), (1,))
    assert network.is_directed
    assert not network.is_symmetric


def test_out_degree_counts_receivers():
    network = Network(np.array([[1, 1, 1, 1], [3, 0, 1, 0], [0, 2, 1, 1], [0, 1, 1, 2]]) / 4)
    assert_array_equal(network.degree, [1, 3, 3, 2])
    assert network.neighbours == ((1, 2, 3), (0, 2), (1, 3), (1, 2))


def test_self_loops_and_parallel_edges_are_ignored():
    messy = nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 2), (0, 0)])
    assert_array_equal(Network(messy).W, Network(nx.path_graph(3)).W)
    directed = nx.MultiDiGraph([(0, 1), (0, 1), (1, 2), (2, 0), (1, 1)])
    assert_array_equal(Network(directed).W, Network(nx.DiGraph([(0, 1), (1, 2), (2, 0)])).W)


def test_edge_weights_are_not_used_and_a_warning_says_so():
    W = np.array([[0.5, 0.3, 0.2], [0.3, 0.7, 0], [0.2, 0, 0.8]])
    plain, some = (
        nx.from_numpy_array(np.array(W > 0) ^ np.eye(3, dtype=bool)),
        nx.MultiGraph([(0, 1), (0, 2)]),
    )
    some.add_edge(0, 2, weight=7.0)
    for graph in (nx.from_numpy_array(W), some, [plain, nx.from_numpy_array(W)]):
        with pytest.warns(UserWarning, match=r"edge weights .* not used.*peer\.Network\(W\)"):
            network = Network(graph)
        assert_array_equal(network.matrices[-1].toarray(), Network(plain).W)
    assert_array_equal(Network(W).W, W)


def test_numbers_keep_their_place_and_other_labels_their_order():
    assert Network(nx.Graph([(3, 2), (3, 1), (3, 0)])).neighbours == ((3,), (3,), (3,), (0, 1, 2))
    assert Network(nx.Graph([("z", "a"), ("a", "m")])).neighbours == ((1,), (0, 2), (1,))


def test_a_given_matrix_is_copied_and_may_come_in_many_forms():
    W = Network(nx.path_graph(4)).W.copy()
    original = W.copy()
    forms = [
        W,
        W.tolist(),
        tuple(map(tuple, W)),
        sparse.csr_matrix(W),
        sparse.coo_array(W),
        sparse.csc_array(W),
    ]
    networks = [Network(form) for form in forms]
    W[:] = 0
    for form in forms[3:]:
        form.data[:] = 0
    for network in networks:
        assert_array_equal(network.W, original)
        assert (network.name, network.rule) == ("matrix", "given")


def test_rounding_errors_are_no_links():
    W = Network(topology.ring(6)).W + 1e-17 * np.random.default_rng(0).standard_normal((6, 6))
    assert Network(W).neighbours == Network(topology.ring(6)).neighbours


# Properties


@st.composite
def connected_graphs(draw, largest=12):
    n = draw(st.integers(1, largest))
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((i, draw(st.integers(0, i - 1))) for i in range(1, n))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    graph.add_edges_from(draw(st.lists(pairs, max_size=15)))
    graph.remove_edges_from([(i, i) for i in range(n)])
    return graph


@st.composite
def balanced_digraphs(draw):
    """A directed cycle through all nodes and further cycles that share no edge with those before."""
    n = draw(st.integers(2, 9))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    cycles = draw(st.lists(st.permutations(range(n)), min_size=1, max_size=5))
    for k, nodes in enumerate(cycles):
        cycle = nodes if k == 0 else nodes[: draw(st.integers(2, n))]
        edges = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        if not any(graph.has_edge(*edge) for edge in edges):
            graph.add_edges_from(edges)
    return graph


def assert_assumption_3(network):
    W, n = network.W, network.n
    assert (W >= 0).all()
    assert_allclose(W.sum(axis=0), 1, atol=1e-12)
    assert_allclose(W.sum(axis=1), 1, atol=1e-12)
    assert (np.linalg.matrix_power(W > 0, (n - 1) ** 2 + 1)).all()  # Wielandt: primitive
    assert 0 <= network.lam < 1
    assert network.lam == pytest.approx(second_singular_value(W), abs=1e-12)


@given(connected_graphs(), st.sampled_from(DOUBLY_STOCHASTIC))
def test_any_rule_on_any_connected_graph(graph, rule):
    network = Network(graph, rule)
    assert_assumption_3(network)
    assert_allclose(network.W, matrix_by_loop(graph, rule), atol=1e-15)
    assert network.is_symmetric
    assert not network.is_directed
    assert network.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(network.W)[0])
    assert_array_equal(network.degree, [graph.degree[i] for i in range(len(graph))])
    assert network.neighbours == tuple(tuple(sorted(graph[i])) for i in range(len(graph)))


@given(balanced_digraphs())
def test_equal_weights_on_any_balanced_digraph(graph):
    network = Network(graph)
    assert network.rule == "equal"
    assert_assumption_3(network)
    assert_array_equal(network.degree, [graph.out_degree[i] for i in range(len(graph))])
    assert network.neighbours == tuple(
        tuple(sorted(graph.predecessors(i))) for i in range(len(graph))
    )


@given(st.integers(1, 9), st.data())
def test_push_pull_weights_on_any_strongly_connected_digraph(n, data):
    edges = data.draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    edges = {(i, j) for i, j in edges if i != j} | {(i, (i + 1) % n) for i in range(n) if n > 1}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    network = Network(graph, "push-pull")
    A, B = np.zeros((n, n)), np.zeros((n, n))
    for j, i in [*edges, *((i, i) for i in range(n))]:
        A[i, j], B[i, j] = 1 / (1 + graph.in_degree[i]), 1 / (1 + graph.out_degree[j])
    assert_allclose(network.W, A, atol=1e-15)
    assert_allclose(network.pushed.toarray(), B, atol=1e-15)
    assert_allclose(A.sum(axis=1), 1, atol=1e-12)
    assert_allclose(B.sum(axis=0), 1, atol=1e-12)
    assert 0 <= network.lam < 1
    assert_array_equal(network.degree, [graph.out_degree[i] for i in range(n)])
    assert network.neighbours == tuple(tuple(sorted(graph.predecessors(i))) for i in range(n))


@given(connected_graphs(), st.sampled_from(RULES), st.randoms(use_true_random=False))
def test_lam_does_not_depend_on_labels(graph, rule, random):
    labels = random.sample(range(1000), len(graph))
    relabelled = nx.relabel_nodes(graph, dict(zip(graph, labels, strict=True)))
    assert Network(relabelled, rule).lam == pytest.approx(Network(graph, rule).lam, abs=1e-12)


@given(st.integers(1, 6), st.data())
def test_any_doubly_stochastic_matrix_is_taken_exactly_where_lam_is_below_1(n, data):
    permutations = data.draw(st.lists(st.permutations(range(n)), min_size=1, max_size=4))
    W = sum(np.eye(n)[list(order)] for order in permutations) / len(permutations)  # Birkhoff
    if second_singular_value(W) < 1 - 1e-9:
        assert_assumption_3(Network(W))
    else:
        with pytest.raises(ValueError, match=r"disconnected|periodic|lam = 1"):
            Network(W)


@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_sequences_are_taken_exactly_where_their_product_contracts(n, period, data):
    orders = st.lists(st.permutations(range(n)), min_size=1, max_size=3)
    matrices = [
        sum(np.eye(n)[list(order)] for order in drawn) / len(drawn)
        for drawn in data.draw(st.lists(orders, min_size=period, max_size=period))
    ]
    product = np.eye(n)
    for W in matrices:
        product = W @ product
    norm = second_singular_value(product)
    if norm < 1 - 1e-9:
        # Before the root: where the product is 11'/n, its norm is rounding, and a root would magnify that.
        assert Network(matrices).lam ** period == pytest.approx(norm, rel=0, abs=1e-14)
    else:
        with pytest.raises(ValueError, match=r"disconnected|periodic|lam = 1"):
            Network(matrices)


# Size


@pytest.mark.parametrize(
    "graph",
    [
        topology.ring(300),
        topology.erdos_renyi(300, seed=0),
        topology.star(301),
        topology.grid(300),
        topology.complete(120),
        nx.barbell_graph(20, 260),
        topology.directed_exponential(300),
        nx.cycle_graph(300, create_using=nx.DiGraph),
        topology.one_peer_exponential(256),
        topology.one_peer_exponential(300),
    ],
    ids=lambda graph: "" if isinstance(graph, nx.Graph) else "one-peer",
)
def test_sparse_spectra_equal_dense_ones(graph, monkeypatch):
    network = Network(graph)
    found = []
    for size in (spectra.DENSE_UP_TO, 3):
        monkeypatch.setattr(spectra, "DENSE_UP_TO", size)
        smallest = spectra.smallest_eigenvalue(network.matrices[0]) if network.is_symmetric else 0.0
        found.append((spectra.disagreement(network.matrices), smallest))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-10)
    assert found[1][1] == pytest.approx(found[0][1], abs=1e-7)


def test_ten_thousand_nodes_are_no_burden():
    graph = topology.ring(10_000)
    tracemalloc.start()
    network = Network(graph)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000**2, "a matrix of all pairs of nodes was made"
    assert network.matrices[0].nnz == 30_000
    assert network.gap == pytest.approx((1 - np.cos(2e-4 * np.pi)) / 2, rel=1e-6)
    assert network.smallest_eigenvalue == pytest.approx(0, abs=1e-9)
    assert repr(network) == "Network(ring, n=10000, lazy weights, lam=1-9.9e-08)"


def test_the_product_of_a_long_sequence_is_not_formed():
    network = Network(topology.one_peer_exponential(4096))
    assert network.lam == 0
    assert sum(W.nnz for W in network.matrices) == 2 * 4096 * 12


# Sequences


def test_two_matchings_mix_together_though_neither_does_alone():
    pairs = [nx.Graph([(0, 1), (2, 3)]), nx.Graph([(1, 2), (3, 0)])]
    network = Network(pairs)
    assert network.is_symmetric
    assert network.neighbours == ((1, 3), (0, 2), (1, 3), (0, 2))
    assert network.lam == pytest.approx(second_singular_value(network.W[1] @ network.W[0]) ** 0.5)
    assert network.smallest_eigenvalue == pytest.approx(0, abs=1e-15)
    assert_array_equal(Network(network.W).W, network.W)


def test_sequences_may_mix_graphs_and_matrices():
    network = Network([topology.ring(4), np.eye(4), topology.complete(4)])
    assert (network.name, network.rule, network.period) == ("sequence", "mixed", 3)
    assert Network([topology.ring(4)] * 2, "metropolis").rule == "metropolis"
    assert Network([topology.ring(4)]).period == 1


def test_labels_mean_the_same_node_all_along_a_sequence():
    network = Network([nx.Graph([("a", "b"), ("b", "c")]), nx.Graph([("c", "b"), ("b", "a")])])
    assert_array_equal(network.W[0], network.W[1])


# Immutability and appearance


def test_nothing_can_be_changed():
    network = Network(topology.ring(5))
    with pytest.raises(AttributeError, match="cannot set n: a Network is immutable"):
        network.n = 6
    for array in (network.W, network.degree, network.matrices[0].data, network.matrices[0].indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert_array_equal(twin.W, network.W)


def test_repr():
    assert (
        repr(Network(topology.exponential(20)))
        == "Network(exponential, n=20, lazy weights, lam=0.750)"
    )
    assert (
        str(Network(nx.path_graph(3), "metropolis"))
        == "Network(graph, n=3, metropolis weights, lam=0.667)"
    )
    assert repr(Network([HALF, HALF])) == "Network(matrix, n=2, period=2, given weights, lam=0.000)"


# Bad input


def unbalanced():
    return nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)], name="lopsided")


LAM_1 = [
    [0, 1, 0],
    [0.5, 0, 0.5],
    [0.5, 0, 0.5],
]  # primitive, yet it carries node 1's value to node 0 undiminished


@pytest.mark.parametrize(
    ("graph", "weights", "message"),
    [
        (np.ones((2, 3)) / 3, None, r"shape \(2, 3\) and type float64 is no weight matrix: give real numbers"),
        (np.zeros((0, 0)), None, r"shape \(0, 0\)"),
        ([[0.5, 0.5], [1.0]], None, "is no weight matrix: give real numbers"),
        ([["a", "b"], ["c", "d"]], None, "type <U1 is no weight matrix"),
        (HALF * 1j, None, "type complex128 is no weight matrix"),
        ([[1.5, -0.5], [-0.5, 1.5]], None, r"w\[0, 1\] = -0.5: weights must be finite and not negative"),
        ([[0.5, 0.5], [np.nan, 0.5]], None, r"w\[1, 0\] = nan: weights must be finite"),
        ([[0.5, np.inf], [0.5, 0.5]], None, r"w\[0, 1\] = inf: weights must be finite"),
        (sparse.csr_array([[1.5, -0.5], [-0.5, 1.5]]), None, r"w\[0, 1\] = -0.5"),
        ([[0.5, 0.5], [0.5, 0.4]], None, "row 1 of the weight matrix sums to 0.9: every row and column must sum to 1"),
        ([[0.5, 0.5], [0.5, 0.5 + 1e-8]], None, "row 1 of the weight matrix sums to 1.00000001"),
        ([[0.9, 0.1], [0.2, 0.8]], None, r"column 0 of the weight matrix sums to 1.1.*or give the graph"),
        (np.eye(3), None, r"network is disconnected: nodes 0 and 1 never hear of each other \(3 parts\); add edges"),
        (nx.Graph([(0, 1), (2, 3)]), None, r"disconnected: nodes 0 and 2 .*\(2 parts\)"),
        (nx.DiGraph([(0, 1), (1, 0), (2, 3), (3, 2)]), None, "disconnected"),
        (SWAP, None, "periodic, with period 2, so W.t has no limit: add self weights"),
        (np.roll(np.eye(5), 1, axis=0), None, "periodic, with period 5"),
        (np.kron(SWAP, HALF), None, "periodic, with period 2"),
        (LAM_1, None, r"has lam = 1, so one mixing need not bring nodes closer: add self weights"),
        (topology.directed_exponential(8), "lazy", "lazy weights need an undirected graph, and directed-exponential is "
         "directed: use weights='equal'"),
        (topology.directed_exponential(8), "metropolis", "metropolis weights need an undirected graph"),
        (unbalanced(), "equal", r"node 0 of lopsided has 1 in, 2 out: balance it, use graph.to_undirected\(\)"),
        (unbalanced(), None, "equal weights need as many edges in as out at every node"),
        (topology.ring(4), "metropolise", "unknown weight rule 'metropolise': did you mean 'metropolis'"),
        (topology.ring(4), 3, "unknown weight rule 3"),
        (HALF, "lazy", "weights='lazy' is a rule for graphs, and a matrix brings its own weights: leave it out"),
        ([topology.ring(2), HALF], "lazy", "a matrix brings its own weights"),
        (nx.Graph(), None, "a graph without nodes is no network: give at least one node"),
        ([], None, "an empty sequence is no network"),
        (np.zeros((0, 2, 2)), None, "an empty sequence is no network"),
        ([HALF, np.ones((3, 3)) / 3], None, r"have \[2, 3\] nodes: give all the same number"),
        ([topology.ring(4), topology.ring(5)], None, "a graph of 5 nodes follows one of 4.*needs the same nodes"),
        ([nx.path_graph("ab"), nx.path_graph("bc")], None, "labels differ"),
        ([topology.ring(4), np.ones((3, 3)) / 3], None, r"have \[4, 3\] nodes"),
        ([nx.Graph([(0, 1), (2, 3)])] * 2, None, "the product of the 2 matrices of the sequence is disconnected"),
        ([SWAP, np.eye(2), np.eye(2)], None, "the product of the 3 matrices of the sequence is periodic"),
        ([SWAP, SWAP], None, "the product of the 2 matrices of the sequence is disconnected"),
        ([HALF, [[0.5, 0.5], [0.5, 0.4]]], None, "row 1 of the weight matrix sums to 0.9"),
        ([HALF, "ring"], None, "is no weight matrix"),
        ("ring", None, r"'ring' is no network: give a networkx graph such as topology.ring\(20\)"),
        (["ring", "star"], None, "is no network: give a networkx graph"),
        (20, None, "20 is no network"),
        (None, None, "None is no network"),
        (np.ones(100) / 100, None, "is no network"),
        (np.ones((2, 2, 2, 2)), None, "is no network"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(graph, weights, message):
    with pytest.raises(ValueError, match=message) as caught:
        Network(graph, weights)
    assert "\n" not in str(caught.value)


def test_the_refused_primitive_matrix_is_primitive_with_lam_1():
    assert np.linalg.matrix_power(LAM_1, 8).min() > 0
    assert second_singular_value(np.array(LAM_1)) == pytest.approx(1, abs=1e-12)


def test_smallest_eigenvalue_needs_symmetry():
    with pytest.raises(
        ValueError, match="needs symmetric weights, and those of directed-exponential are not"
    ):
        _ = Network(topology.directed_exponential(8)).smallest_eigenvalue


def test_a_spectrum_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("peerdescent.errors.memory", lambda: 1e8)
    long = Network(topology.ring(20_000))
    assert 0 < 1 - long.lam < 1e-6
    again = Network(topology.ring(20_000))
    monkeypatch.setattr("peerdescent.errors.memory", lambda: 1e6)
    with pytest.raises(
        ValueError,
        match=r"the spectrum of W with 40,000 rows would take about .* GiB, and there are",
    ):
        again.lam  # noqa: B018
