"""Faults and random graphs: what is drawn, how often, and what remains of W."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.networks import spectra
from peerdescent.networks.faults import FAULTS, parse
from peerdescent.networks.rounds import matrix
from peerdescent.threefry import source
from small import some

RING, GRID = peer.topology.ring(6), peer.topology.grid(12)
DIGRAPH = nx.DiGraph([*((i, (i + 1) % 6) for i in range(6)), (0, 3), (1, 4)])
FAULTY = {
    "drop": {"faults": [peer.faults.drop(0.3)]},
    "burst": {"faults": [peer.faults.burst(0.2, 0.5)]},
    "inactive": {"faults": [peer.faults.inactive(0.3)]},
    "all": {
        "faults": [peer.faults.drop(0.3), peer.faults.burst(0.2, 0.5), peer.faults.inactive(0.3)]
    },
}
RANDOM = {
    "matching": peer.topology.random_matching(8),
    "matching of an odd number": peer.topology.random_matching(7),
    "regular": peer.topology.random_regular(9, 4),
    "regular of odd degree": peer.topology.random_regular(8, 3),
    "pairs": peer.topology.erdos_renyi(8, 0.3),
}


def iterations(network, count, seed=0):
    """What happens in iterations 0, 1, ..."""
    memory = network.links.begin(np, seed)
    for t in range(count):
        if t:
            memory = network.links.later(np, seed, t, memory)
        yield network.links.at(np, seed, t, memory)


def matrices(network, count, rounds=2, seed=0):
    for now in iterations(network, count, seed):
        for number in range(rounds):
            yield matrix(network.links, now.weights(number)[1])


def within(count, trials, probability):
    """Whether a count lies within five standard deviations of its mean."""
    return abs(count - trials * probability) < 5 * np.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize("kind", FAULTY)
def test_weights_stay_doubly_stochastic_in_every_round(kind):
    network = peer.Network(GRID, **FAULTY[kind])
    seen = set()
    for W in matrices(network, 50):
        np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-15)
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-15)
        assert (W >= 0).all()
        assert np.array_equal(W, W.T)
        assert not ((W > 0) & (network.W == 0)).any(), "only links of the graph"
        seen.add(W.tobytes())
    assert len(seen) > (40 if kind in ("burst", "inactive") else 90), (
        "those two last for an iteration"
    )


@pytest.mark.parametrize("kind", RANDOM)
def test_random_graphs_are_doubly_stochastic_and_have_their_degrees(kind):
    graph = RANDOM[kind]
    degrees, seen = [], set()
    for W in matrices(peer.Network(graph), 50):
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-15)
        assert np.array_equal(W, W.T)
        degrees.append((W > 0).sum(axis=1) - 1)
        seen.add(W.tobytes())
    assert len(seen) > 50, "there are 105 matchings of 8"
    counts = np.array(degrees)
    if kind == "pairs":
        assert within(counts.sum() / 2, 100 * 28, 0.3)
    elif kind == "matching of an odd number":
        assert (np.sort(counts, axis=1) == [0, 1, 1, 1, 1, 1, 1]).all()
        assert len(set(counts.argmin(axis=1).tolist())) == 7, "each is left alone at some time"
    else:
        assert (counts == graph.degrees).all()


@pytest.mark.parametrize("kind", RANDOM)
def test_all_pairs_of_a_random_graph_are_equally_likely(kind):
    joined = sum((W > 0).astype(int) for W in matrices(peer.Network(RANDOM[kind]), 400))
    pairs = joined[np.triu_indices(len(joined), 1)]
    share = RANDOM[kind].degrees / (RANDOM[kind].n - 1)
    assert all(within(count, 800, share) for count in pairs)


def test_frequencies():
    network = peer.Network(GRID, faults=[peer.faults.drop(0.3)])
    links, T = network.links.links, 500
    up = np.array([[now.up(number) for number in range(2)] for now in iterations(network, T)])
    assert within(up.sum(), up.size, 0.7)
    assert all(within(count, 2 * T, 0.7) for count in up.sum(axis=(0, 1)))
    both = (up[:, :, 0] & up[:, :, 1]).sum()
    assert within(both, 2 * T, 0.49), "links fail independently"
    assert within((up[:, 0] & up[:, 1]).sum(), T * links, 0.49), "and so do rounds"

    awake = np.array(
        [now.awake for now in iterations(peer.Network(GRID, faults=[peer.faults.inactive(0.2)]), T)]
    )
    assert awake[0].all(), "in iteration 0 states begin"
    assert within(awake[1:].sum(), awake[1:].size, 0.8)

    down = np.array(
        [
            now.memory[0]
            for now in iterations(peer.Network(GRID, faults=[peer.faults.burst(0.1, 0.4)]), T)
        ]
    )
    before, after = down[:-1], down[1:]
    assert within((~before & after).sum(), (~before).sum(), 0.1)
    assert within((before & ~after).sum(), before.sum(), 0.4)
    assert abs(down.mean() - 0.2) < 0.03, "the stationary distribution"
    assert 0 < down[0].sum() < links

    lost = np.array(
        [
            now.decided(0).lost
            for now in iterations(peer.Network(GRID, faults=[parse("drop=0.3,one-way")]), T)
        ]
    )
    assert within(lost.sum(), lost.size, 0.3)
    assert within((lost[..., 0] & lost[..., 1]).sum(), lost[..., 0].size, 0.09), (
        "each direction for itself"
    )


def test_draws_differ_between_seeds_and_faults():
    draws = {source(np, seed, t, purpose, number).words(4).tobytes() for seed in (0, 1) for t in (0, 1)
             for purpose in (0, 1) for number in (0, 1)}  # fmt: skip
    assert len(draws) == 16
    twice = peer.Network(GRID, faults=[peer.faults.drop(0.5), peer.faults.drop(0.5)])
    up = np.array([now.up(0) for now in iterations(twice, 400)])
    assert within(up.sum(), up.size, 0.25), "two faults of one kind are two"


def test_noise_has_the_variance_of_all_messages():
    network = peer.Network(RING, faults=[peer.faults.noise(0.5)])
    weights = np.array([[0.25, 0.25, 0.0], [0.5, 0.0, 0.0]])
    drawn = np.array(
        [now.noise(0, weights, np.zeros((2, 50)), np.arange(2)) for now in iterations(network, 400)]
    )
    scale = 0.5 * np.sqrt([0.125, 0.25])
    assert np.allclose(drawn.std(axis=(0, 2)), scale, rtol=0.03)
    assert abs(drawn.mean(axis=(0, 2)) / scale).max() < 5 / np.sqrt(drawn[:, 0].size)
    assert abs(np.corrcoef(drawn[:, 0].ravel(), drawn[:, 1].ravel())[0, 1]) < 0.04
    fourth = np.mean((drawn[:, 0] / scale[0]) ** 4)
    assert abs(fourth - 3) < 0.2, "Gaussian"


def test_quantization_is_unbiased_and_has_its_levels():
    x = np.random.default_rng(0).normal(size=(2, 7))
    network = peer.Network(RING, faults=[peer.faults.quantize(3)])
    sent = np.array([now.message(0, x, np.array([0, 4])) for now in iterations(network, 4000)])
    unit = np.linalg.norm(x, axis=1)[:, None] / 3
    assert np.allclose(sent / unit, np.round(sent / unit), atol=1e-12)
    assert np.abs(sent - x).max() < unit.max() * (1 + 1e-12)
    assert np.allclose(sent.mean(axis=0), x, atol=5 * unit.max() / np.sqrt(4000))
    assert len(np.unique(np.round(sent / unit))) <= 7, "as many as three bits tell apart"
    for scale in (0.0, 1e-300, 1e200):
        there = peer.faults.quantize(3).sent(source(np, 0, 0, 0, 0), scale * x, np.arange(2))
        assert np.isfinite(there).all()
        assert (np.abs(there).max() > 0) == (scale > 0)
    assert network.message_bytes(80, 4) == 80 * 3 / 8 + 4


def test_top_k_keeps_the_largest():
    x = np.array([[1.0, -3.0, 2.0, 3.0, 0.0]])
    sent = peer.faults.top_k(0.4).sent(source(np, 0, 0, 0, 0), x, np.arange(1))
    assert sent.tolist() == [[0, -3, 0, 3, 0]]
    assert peer.faults.top_k(0.2).sent(source(np, 0, 0, 0, 0), x, np.arange(1)).tolist() == [
        [0, -3, 0, 0, 0]
    ]
    assert peer.Network(RING, faults=[peer.faults.top_k(0.3)]).message_bytes(10, 4) == 3 * 8
    assert peer.Network(RING, faults=[peer.faults.top_k(1e-12)]).message_bytes(10, 4) == 8, (
        "at least one"
    )
    hidden = peer.faults.top_k(0.2).sent(
        source(np, 0, 0, 0, 0), x + np.array([0, 0, np.nan, 0, 0]), np.arange(1)
    )
    assert np.isnan(hidden).any()


@pytest.mark.parametrize("kind", some(FAULTY, 2))
def test_lambda_in_closed_form_is_that_of_draws(kind):
    network = peer.Network(peer.topology.watts_strogatz(10), **FAULTY[kind])
    assert network.lam_interval is None
    assert network.lam > peer.Network(peer.topology.watts_strogatz(10)).lam
    found = []
    for seed in range(2000):
        now = network.links.at(np, seed, 1, network.links.begin(np, seed))
        W = matrix(network.links, now.weights(0)[1])
        found.append(W.T @ W)
    values, vectors = np.linalg.eigh(np.mean(found, axis=0) - 1 / 10)
    each = [vectors[:, -1] @ (P - 1 / 10) @ vectors[:, -1] for P in found]
    assert abs(values[-1] - network.lam**2) < 4 * np.std(each) / np.sqrt(2000)


def test_lambda_of_large_networks_is_that_of_small_ones(monkeypatch):
    dense = peer.Network(GRID, **FAULTY["all"]).lam
    monkeypatch.setattr(spectra, "DENSE_UP_TO", 3)
    assert peer.Network(GRID, **FAULTY["all"]).lam == pytest.approx(dense, rel=1e-9)


def test_lambda_from_draws_has_an_interval():
    """A matching is a projection, W'W = W, and its mean is known."""
    network = peer.Network(peer.topology.random_matching(8))
    low, high = network.lam_interval
    assert low < np.sqrt(1 / 2 - 1 / 14) < high
    assert low < network.lam < high
    assert high - low < 0.05
    assert peer.Network(RING, faults=[parse("drop=0.2,one-way")]).lam_interval is not None


@pytest.mark.parametrize(
    "quiet", [peer.faults.noise(0.1), peer.faults.quantize(4), peer.faults.top_k(0.5)]
)
@pytest.mark.parametrize(
    "graph",
    [
        (peer.topology.one_peer_exponential(12), None),
        (peer.topology.directed_exponential(20), None),
        (DIGRAPH, "push-pull"),
        (RING, None),
    ],
)
def test_faults_that_cut_no_link_leave_lambda_as_it_is(quiet, graph):
    assert peer.Network(*graph, faults=[quiet]).lam == peer.Network(*graph).lam


def test_lambda_of_a_faulty_sequence_is_of_its_period():
    ideal = peer.Network(peer.topology.one_peer_exponential(12))
    rare = peer.Network(
        peer.topology.one_peer_exponential(12), faults=[peer.faults.drop(1e-9, one_way=True)]
    )
    assert rare.lam == pytest.approx(ideal.lam, rel=1e-6)
    assert rare.lam_interval is not None


def test_several_rounds():
    ring = peer.Network(RING)
    assert peer.Network(RING, rounds=3).lam == pytest.approx(ring.lam**3)
    fast = peer.Network(RING, rounds=3, accelerate=True)
    root = np.sqrt(1 - ring.lam**2)
    c = (1 - root) / (1 + root)
    assert fast.momentum == pytest.approx(c)
    before = now = np.eye(6)
    for _ in range(3):
        before, now = now, (1 + c) * ring.W @ now - c * before
    assert fast.lam == pytest.approx(np.linalg.norm(now - 1 / 6, 2))
    assert fast.lam < ring.lam**3
    assert fast.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(now)[0])


def test_push_pull_weights():
    network = peer.Network(DIGRAPH, "push-pull")
    A, B = network.W, network.pushed.toarray()
    np.testing.assert_allclose(A.sum(axis=1), 1)
    np.testing.assert_allclose(B.sum(axis=0), 1)
    assert np.ptp(A.sum(axis=0)) > 0.1
    assert np.array_equal(A > 0, B > 0)
    assert A[3, 0] == 1 / 3
    assert B[3, 0] == 1 / 3
    assert A[1, 0] == 1 / 2
    rates = [np.sort(np.abs(np.linalg.eigvals(M)))[-2] for M in (A, B)]
    assert network.lam == pytest.approx(max(rates))
    faulty = peer.Network(DIGRAPH, "push-pull", faults=[peer.faults.drop(0.3)])
    for now in iterations(faulty, 20):
        np.testing.assert_allclose(matrix(faulty.links, now.weights(0)[1]).sum(axis=1), 1)
        np.testing.assert_allclose(
            matrix(faulty.links, now.weights(0, push=True)[1], push=True).sum(axis=0), 1
        )


def test_texts():
    third = peer.faults.drop(np.float64(1 / 3))
    assert parse(str(third)) == third == peer.faults.drop(1 / 3)
    assert repr(third) == repr(peer.faults.drop(1 / 3))
    assert parse("drop=0.1,one_way") == parse("drop=0.1,one-way")
    for text in (
        "drop=0.1",
        "drop=0.1,one-way",
        "burst=0.1,0.5",
        "inactive=0.2",
        "noise=0.001",
        "quantize=4",
        "top-k=0.1",
    ):
        assert str(parse(text)) == text
        assert parse(text) == parse(str(parse(text)))
    assert {text.partition("=")[0] for text in map(str, map(parse, ["top_k=0.1", "drop=0"]))} == {
        "top-k",
        "drop",
    }
    assert set(FAULTS) == {"drop", "burst", "inactive", "noise", "quantize", "top-k"}
    network = peer.Network(RING, rounds=2, faults=[peer.faults.drop(0.1)])
    assert "2 rounds, drop=0.1" in repr(network)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: peer.faults.drop(1),
            r"probability of drop = 1: must be a probability in \[0, 1\)",
        ),
        (lambda: peer.faults.drop(-0.1), "probability of drop = -0.1"),
        (lambda: peer.faults.drop(float("nan")), "probability of drop = nan"),
        (lambda: peer.faults.drop("0.1"), "probability of drop = '0.1'"),
        (lambda: peer.faults.inactive(1.0), "probability of inactive = 1.0"),
        (
            lambda: peer.faults.burst(0.1, 0),
            r"leave of burst = 0: must be a probability in \(0, 1\]",
        ),
        (lambda: peer.faults.burst(1.5, 0.5), "enter of burst = 1.5"),
        (lambda: peer.faults.noise(-1), "deviation of noise = -1"),
        (
            lambda: peer.faults.quantize(1),
            "bits of quantize = 1: must be a whole number of 2 to 24",
        ),
        (lambda: peer.faults.quantize(4.5), "bits of quantize = 4.5"),
        (lambda: peer.faults.top_k(0), r"fraction of top_k = 0: must lie in \(0, 1\]"),
        (lambda: parse("drip=0.1"), "unknown fault 'drip': did you mean 'drop'"),
        (lambda: parse("drop=x"), r"'x' is not a number; give drop=probability\[,one-way\]"),
        (lambda: parse("drop"), "fault = 'drop': must be drop=probability"),
        (lambda: parse("burst=0.1"), "must be burst=enter,leave"),
        (
            lambda: peer.Network(RING, faults=["drop"]),
            r"'drop' is no fault: give faults=\[peer.faults.drop\(0.1\)\]",
        ),
        (
            lambda: peer.Network(
                peer.topology.directed_exponential(8), faults=[peer.faults.drop(0.1)]
            ),
            "drop=0.1 cuts links in both directions, and W of directed-exponential is not symmetric",
        ),
        (
            lambda: peer.Network(RING, faults=[peer.faults.quantize(4), peer.faults.top_k(0.1)]),
            "quantize=4 and top-k=0.1 compress every message: give one of them",
        ),
        (
            lambda: peer.Network(
                DIGRAPH, "push-pull", faults=[peer.faults.drop(0.1, one_way=True)]
            ),
            "a message of push that is lost is lost for ever",
        ),
        (lambda: peer.Network(RING, rounds=0), "rounds = 0: must be a whole number of at least 1"),
        (
            lambda: peer.Network(RING, accelerate=True),
            "accelerate=True with rounds = 1: give two rounds or more",
        ),
        (
            lambda: peer.Network(peer.topology.directed_exponential(8), rounds=2, accelerate=True),
            "accelerate=True needs symmetric weights that stay",
        ),
        (
            lambda: peer.Network(nx.DiGraph([(0, 1), (1, 2)]), "push-pull"),
            "is not strongly connected",
        ),
        (
            lambda: peer.Network([DIGRAPH, DIGRAPH], "push-pull"),
            "push-pull weights of a sequence: give one graph",
        ),
        (lambda: peer.topology.erdos_renyi(8, 0), "the nodes never hear of each other"),
        (
            lambda: peer.topology.random_regular(8, 8),
            "degree = 8: must be below the number of nodes",
        ),
        (lambda: peer.topology.random_regular(9, 3), "an odd degree needs an even number"),
        (
            lambda: peer.topology.watts_strogatz(9, 3),
            "neighbours = 3: must be even, and below n = 9",
        ),
        (
            lambda: peer.topology.watts_strogatz(5, 100),
            "neighbours = 100: must be even, and below n = 5",
        ),
        (lambda: peer.faults.drop(0.1, "yes"), "one_way of drop = 'yes': must be true or false"),
        (lambda: peer.faults.noise(True), "deviation of noise = True"),
        (lambda: peer.faults.burst(0.1, True), "leave of burst = True"),
        (lambda: peer.Network(RING, faults="drop=0.1"), "'drop=0.1' is no fault"),
        (lambda: peer.Network(RING, faults=peer.faults.drop), "is no fault: give faults="),
        (lambda: parse("quantize=4.5"), "'4.5' is not a whole number"),
        (
            lambda: peer.Network(peer.topology.random_matching(8), "equal"),
            "unknown weight rule of a random graph",
        ),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_faults_whose_values_are_no_fields_are_refused():
    class flaky(peer.faults.Fault):
        def __init__(self, probability):
            object.__setattr__(self, "probability", probability)

    with pytest.raises(
        ValueError,
        match="fault flaky has probability, which is no field: make it a frozen dataclass",
    ):
        peer.Network(peer.topology.ring(4), faults=[flaky(0.1)])
