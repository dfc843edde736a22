"""Faults on engines: the same on all, mean-preserving where they should be, counted as they happened, resumable."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines import debug
from peerdescent.engines.contract import Running
from peerdescent.engines.gpu import kernel
from peerdescent.engines.registry import engine_class
from small import PROBLEMS, assert_close, compiled, small_logistic, some

RING, TOPOLOGY = peer.topology.ring(6), peer.topology
DIGRAPH = nx.DiGraph([*((i, (i + 1) % 6) for i in range(6)), (0, 3), (1, 4)])
NETWORKS = {
    "drop": peer.Network(RING, faults=[peer.faults.drop(0.3)]),
    "one way": peer.Network(RING, faults=[peer.faults.drop(0.3, one_way=True)]),
    "burst": peer.Network(RING, faults=[peer.faults.burst(0.2, 0.4)]),
    "inactive": peer.Network(RING, faults=[peer.faults.inactive(0.3)]),
    "noise": peer.Network(RING, faults=[peer.faults.noise(0.01)]),
    "quantize": peer.Network(RING, faults=[peer.faults.quantize(6)]),
    "top k": peer.Network(RING, faults=[peer.faults.top_k(0.6)]),
    "matching": peer.Network(TOPOLOGY.random_matching(6)),
    "regular": peer.Network(TOPOLOGY.random_regular(6, 3)),
    "pairs": peer.Network(TOPOLOGY.erdos_renyi(6, 0.5)),
    "rounds": peer.Network(RING, rounds=3),
    "accelerated": peer.Network(RING, rounds=3, accelerate=True),
    "turns": peer.Network([RING, TOPOLOGY.star(6)], faults=[peer.faults.drop(0.2)]),
    "push-pull": peer.Network(DIGRAPH, "push-pull"),
    "push-pull with faults": peer.Network(
        DIGRAPH, "push-pull", faults=[peer.faults.drop(0.2)], rounds=2
    ),
    "all": peer.Network(
        RING,
        faults=[
            peer.faults.drop(0.2),
            peer.faults.burst(0.1, 0.5),
            peer.faults.inactive(0.2),
            peer.faults.noise(0.01),
        ],
        rounds=2,
    ),
}
SAFE = (
    "drop",
    "burst",
    "inactive",
    "matching",
    "regular",
    "pairs",
    "rounds",
    "accelerated",
    "turns",
)
"""Those that preserve the mean."""
DSGD = peer.methods.dsgd(alpha=0.3, batch=2)
GT_HSGD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1, batch=2)
D_GET = peer.methods.d_get(alpha=0.2, period=3, batch=2, large_batch=4)
SIZES = (1, 2, 4, 9, 15, 31)
PUSH_PULL = peer.methods.push_pull(alpha=0.1, batch=2)


@pytest.fixture(scope="module")
def problem():
    return compiled(PROBLEMS["logistic"]())


def run(method, problem, network, engine="stacked", steps=50, **options):
    return peer.run(
        method, problem, network, steps=steps, engine=engine, precision=64, record=5, **options
    )


@pytest.mark.parametrize("name", some(NETWORKS, 8, "all", "matching"))
def test_engines_agree(name, problem):
    network = NETWORKS[name]
    # Programs take as long to compile as they have rounds, so most have one in an iteration.
    methods = {
        **dict.fromkeys(("drop", "inactive", "noise", "matching", "turns"), GT_HSGD),
        "burst": D_GET,
    }
    method = PUSH_PULL if network.pushed is not None else methods.get(name, DSGD)
    # Several devices of engine `sharded` have tests of their own, also with random graphs.
    others = ("debug", "sharded") if name in ("all", "push-pull with faults") else ("debug",)
    traces = {engine: run(method, problem, network, engine) for engine in ("stacked", *others)}
    for engine in others:
        assert_close(traces[engine].x, traces["stacked"].x)
        ours, theirs = (traces[one].table.drop(columns="seconds") for one in (engine, "stacked"))
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9, atol=1e-12)
    ideal = peer.Network(RING if network.pushed is None else TOPOLOGY.complete(6))
    ideal = run(method, problem, ideal, "debug")
    assert np.abs(traces["stacked"].x - ideal.x).max() > 1e-4, "the faults do something"


@pytest.mark.parametrize("name", ["burst", "noise", "accelerated"])
def test_disagreements_on_engines(name, problem):
    """Exact diffusion asks for x - W x; it may run where W is static but for faults."""
    method = peer.methods.d2(alpha=0.2, batch=2)
    assert_close(
        run(method, problem, NETWORKS[name], "debug").x, run(method, problem, NETWORKS[name]).x
    )


@pytest.mark.parametrize("name", some(SAFE, 3))
@pytest.mark.parametrize("method", [GT_HSGD, D_GET, PUSH_PULL], ids=lambda method: method.name)
def test_the_mean_of_trackers_is_that_of_estimates(name, method, problem):
    trace = run(method, problem, NETWORKS[name], "debug", steps=9)
    assert trace.table["tracking"].iloc[1:].max() < 1e-14
    assert (trace.table["tracking"].iloc[1:] >= 0).all()


def test_a_message_lost_one_way_moves_the_mean_of_trackers(problem):
    assert run(GT_HSGD, problem, NETWORKS["one way"], "debug", 15).table["tracking"].iloc[-1] > 1e-4


def test_push_pull_on_an_unbalanced_graph_finds_the_optimum():
    """And a method for doubly stochastic weights refuses it, with the names of those that do not."""
    problem = PROBLEMS["quadratic"](noise=0.0)
    trace = run(peer.methods.push_pull(alpha=0.1), problem, NETWORKS["push-pull"], steps=2000)
    assert trace.table["grad_norm"].iloc[-1] < 1e-9
    assert trace.table["consensus"].iloc[-1] < 1e-18
    with pytest.raises(
        ValueError,
        match="gt-hsgd needs a doubly stochastic W; graph has push-pull weights: use push-pull",
    ):
        run(GT_HSGD, problem, NETWORKS["push-pull"])


def test_sleeping_nodes_keep_their_whole_state(problem):
    engine = engine_class("stacked")(GT_HSGD, problem, NETWORKS["inactive"], 3, np.dtype("float32"))
    state = engine.start(np.zeros((6, 5), np.float32))
    slept = 0
    for t in range(1, 12):
        before = engine.hold(state)
        state = engine.advance(state, t, t + 1)
        awake = NETWORKS["inactive"].links.at(np, 3, t, ()).awake
        for old, new in zip(_vectors(before), _vectors(engine.hold(state)), strict=True):
            assert np.array_equal(old[~awake], new[~awake])
        assert not np.array_equal(before.x[awake], engine.hold(state).x[awake])
        slept += int((~awake).sum())
    assert slept > 5


def _vectors(state):
    return [state.x, *state.estimator, *state.fusion]


@pytest.mark.parametrize(
    "name",
    some(
        ["all", "drop", "one way", "burst", "inactive", "matching", "turns", "rounds", "top k"], 3
    ),
)
def test_books_are_what_the_debug_engine_did(name, problem, monkeypatch):
    """Gradients of nodes that are awake and messages that were sent, counted where they happen."""
    network = NETWORKS[name]
    table, gradients, messages = _counted(D_GET, problem, network, monkeypatch)
    assert table["gradients"].iloc[-1] == pytest.approx(gradients, rel=1e-12)
    assert table["bytes"].iloc[-1] == pytest.approx(
        messages * network.message_bytes(5, 8), rel=1e-12
    )
    expected = peer.runs.costs.Costs.of(D_GET, problem, network, itemsize=8)
    assert table["gradients"].iloc[-1] == pytest.approx(float(expected.gradients(50)), rel=0.1)
    assert table["bytes"].iloc[-1] == pytest.approx(float(expected.sent(50)), rel=0.15)


@pytest.mark.parametrize("name", ["drop", "inactive"])
def test_exact_gradients_count_as_the_samples_of_those_who_are_awake(name, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(62, 5))
    data = peer.datasets.Dataset(rows, np.sign(rows[:, 0]), "rows")
    ends = np.cumsum(SIZES)
    uneven = compiled(
        peer.problems.logistic(data.partition(6, indices=np.split(np.arange(62), ends[:-1])))
    )
    method = peer.methods.gt_sarah(alpha=0.1, batch=1, period=3)
    table, gradients, _ = _counted(method, uneven, NETWORKS[name], monkeypatch)
    assert table["gradients"].iloc[-1] == pytest.approx(gradients, rel=1e-12)
    assert (
        run(method, uneven, NETWORKS[name]).table["gradients"].tolist()
        == table["gradients"].tolist()
    )


def _counted(method, problem, network, monkeypatch):
    """The trace of the debug engine, and the gradients and messages of a node that were counted on the way."""
    gradients, messages = np.zeros(6), [0]

    def awake(net):
        return np.ones(6, bool) if net.turn.awake is None else net.turn.awake

    def grad(self, x, sample):
        gradients[...] += len(np.asarray(sample[0])) * awake(self)
        return verbs[0](self, x, sample)

    def full_grad(self, x):
        gradients[...] += np.array(SIZES) * awake(self)
        return verbs[1](self, x)

    def rounds(self, number, x, push=False):
        messages[0] += int((self.iteration.weights(number, push)[0] > 0).sum())
        return verbs[2](self, number, x, push)

    verbs = debug.Net.grad, debug.Net.full_grad, debug.Turn._round
    monkeypatch.setattr(debug.Net, "grad", grad)
    monkeypatch.setattr(debug.Net, "full_grad", full_grad)
    monkeypatch.setattr(debug.Turn, "_round", rounds)
    return run(method, problem, network, "debug").table, gradients.mean(), messages[0] / 6


@pytest.mark.parametrize(
    ("name", "engine"), [("burst", "stacked"), ("all", "debug"), ("burst", "sharded")]
)
def test_resumed_under_a_burst_bit_for_bit(name, engine, problem, tmp_path):
    network, options = NETWORKS[name], {"precision": 64, "engine": engine}
    whole = peer.run(GT_HSGD, problem, network, steps=40, record=[17, 40], **options)
    peer.run(GT_HSGD, problem, network, steps=17, record=[17], **options).save(tmp_path)
    again = peer.run(
        GT_HSGD, problem, network, steps=40, record=[17, 40], resume=tmp_path, **options
    )
    assert np.array_equal(again.x, whole.x)
    pd.testing.assert_frame_equal(
        again.table.drop(columns="seconds"), whole.table.drop(columns="seconds")
    )
    method, links = Running.parts(whole.state)
    assert links
    assert np.array_equal(method.x, whole.x)


def test_another_fault_is_another_run(problem, tmp_path):
    run(GT_HSGD, problem, NETWORKS["drop"], "debug", steps=5).save(tmp_path)
    other = peer.Network(RING, faults=[peer.faults.drop(0.30001)])
    with pytest.raises(ValueError, match=r"cannot resume: (network|weights) is"):
        run(GT_HSGD, problem, other, "debug", resume=tmp_path)


@pytest.mark.parametrize(
    "faults", [[peer.faults.drop(0)], [peer.faults.inactive(0), peer.faults.noise(0)]]
)
def test_faults_that_never_happen_change_nothing(faults, problem):
    ideal, faulty = (
        run(GT_HSGD, problem, peer.Network(RING, faults=own), steps=20) for own in ([], faults)
    )
    assert np.array_equal(ideal.x, faulty.x)
    pd.testing.assert_frame_equal(
        ideal.table.drop(columns="seconds"), faulty.table.drop(columns="seconds")
    )


def test_faults_that_almost_never_happen_change_only_rounding(problem):
    rare = [peer.faults.drop(1e-9), peer.faults.inactive(1e-9), peer.faults.burst(1e-9, 0.5)]
    network = peer.Network(RING, faults=rare)
    assert_close(
        run(GT_HSGD, problem, network, steps=20).x,
        run(GT_HSGD, problem, peer.Network(RING), steps=20).x,
    )


def test_a_sweep_under_faults_equals_runs():
    """Links with a memory, and nodes that sleep."""
    problem = small_logistic()
    network = peer.Network(RING, faults=[peer.faults.burst(0.2, 0.4), peer.faults.inactive(0.3)])
    grid, quick = {"alpha": [0.1, 0.3], "period": [3, 5]}, compiled(problem)
    table = peer.sweep("d-get", grid, problem, network, steps=40, seed=[0, 4], precision=64)
    assert not kernel.supports(D_GET, problem, network, np.dtype("float32"))
    for row in table.to_dict("records"):
        method = peer.methods.d_get(alpha=row["alpha"], period=row["period"])
        trace = run(method, quick, network, "debug", steps=40, seed=row["seed"])
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


class Counted(NamedTuple):
    """A state made by hand, with a number that all nodes share."""

    x: object
    k: object


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_numbers_that_nodes_share_do_not_sleep(engine, problem):
    def step(state, net):
        return Counted(net.mix(state.x) - 0.1 * net.full_grad(state.x), state.k + 1.0)

    method = peer.Method(lambda x, net: step(Counted(x, 0.0), net), step)
    trace = run(method, problem, NETWORKS["inactive"], engine, steps=9)
    assert float(trace.state.k) == 9.0
    assert trace.status == peer.Status.done


def test_expected_costs_know_that_all_are_awake_at_first(problem):
    costs = peer.runs.costs.Costs.of(peer.methods.dsgd(), problem, NETWORKS["inactive"])
    assert costs.sent([1, 2]).tolist() == pytest.approx([5 * 4 * 2, 5 * 4 * (2 + 2 * 0.7**2)])
    assert costs.gradients([1, 2]).tolist() == pytest.approx([1, 1.7])


def test_random_graphs_refuse_methods_for_static_ones(problem):
    with pytest.raises(
        ValueError,
        match="d2 needs weights that do not change; random-matching is drawn in every round",
    ):
        run(peer.methods.d2(), problem, NETWORKS["matching"])


@pytest.mark.parametrize("precision", [32, 64])
def test_engines_compute_in_the_precision_of_the_run(precision, problem):
    """Also where a round adds noise of 0."""
    for engine in ("debug", "stacked"):
        for network in (peer.Network(RING), NETWORKS["noise"]):
            found = peer.run(
                DSGD, problem, network, steps=3, engine=engine, precision=precision, record=1
            )
            assert found.x.dtype == np.dtype(f"float{precision}")
