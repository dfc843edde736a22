"""Identities that hold exactly: means, special cases, the complete graph, one node."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import peerdescent as peer
from peerdescent.methods.estimators import ESTIMATORS, hybrid, sgd, spider
from peerdescent.methods.fusions import FUSIONS, consensus, exact_diffusion, push_pull, tracking
from small import PROBLEMS, assert_close, drawn, small_logistic, small_quadratic, some, states

ring = peer.Network(peer.topology.ring(6))
directed = peer.Network(peer.topology.directed_exponential(6))
one_peer = peer.Network(peer.topology.one_peer_exponential(6))
complete = peer.Network(peer.topology.complete(6))


@pytest.mark.parametrize(
    "network", [ring, directed, one_peer], ids=["ring", "directed", "one-peer"]
)
@pytest.mark.parametrize("atc", [True, False])
@pytest.mark.parametrize(
    "estimator", [sgd(2), hybrid(0.1), spider(5, 1, 4)], ids=lambda e: type(e).__name__
)
def test_trackers_follow_the_mean_of_the_estimates(estimator, atc, network):
    problem = small_logistic()
    kept = states(peer.compose(estimator, tracking(0.3, atc=atc)), problem, network, 60)
    before = np.zeros(problem.dimension)
    for state in kept:
        y, v = state.fusion.y.mean(axis=0), state.fusion.v.mean(axis=0)
        assert_close(y, v, 1e-12)
        assert_close(state.x.mean(axis=0), before - 0.3 * v, 1e-12)
        before = state.x.mean(axis=0)
    assert np.abs(kept[-1].fusion.y - kept[-1].fusion.v).max() > 1e-6


@pytest.mark.parametrize("fusion", [consensus(0.3), consensus(0.3, atc=True)], ids=["cta", "atc"])
def test_consensus_moves_the_mean_by_the_mean_gradient(fusion):
    problem = small_quadratic()
    method = peer.compose(hybrid(0.2), fusion)
    before = np.zeros(problem.dimension)
    for state in states(method, problem, directed, 30):
        assert_close(state.x.mean(axis=0), before - 0.3 * state.estimator.v.mean(axis=0))
        before = state.x.mean(axis=0)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_hybrid_with_beta_one_is_sgd(problem):
    problem = PROBLEMS[problem]()
    left = states(peer.methods.gt_hsgd(0.2, beta=1.0, batch=2, initial_batch=2), problem, ring, 50)
    right = states(peer.methods.gt_dsgd(0.2, batch=2), problem, ring, 50)
    assert_close(left[-1].x, right[-1].x)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_hybrid_with_beta_zero_is_spider_that_never_restarts(problem):
    problem = PROBLEMS[problem]()
    left = states(peer.compose(hybrid(0.0, 2, 3), tracking(0.1)), problem, ring, 50)
    right = states(peer.compose(spider(10**6, 2, 3), tracking(0.1)), problem, ring, 50)
    assert_close(left[-1].x, right[-1].x)


def centralised(kind, problem, steps, alpha=0.3, seed=0):
    """One machine that uses the batches of all nodes: x <- x - alpha v, without any code of the methods."""
    rows = np.asarray(problem.data.rows, dtype=float)

    def g(x, t, batch):
        chosen = np.concatenate(
            [
                own[k]
                for own, k in zip(rows, drawn(seed, *rows.shape[:2], batch, steps)[t], strict=True)
            ]
        )
        return (
            -(chosen / (1 + np.exp(chosen @ x))[:, None]).mean(axis=0)
            + 1e-4 * 2 * x / (1 + x**2) ** 2
        )

    x = np.zeros(problem.dimension)
    last, v, found = x, None, []
    for t in range(steps):
        if kind == "sgd":
            v = g(x, t, 2)
        elif t == 0 or (kind == "spider" and t % 5 == 0):
            v = g(x, t, 4)
        else:
            v = g(x, t, 1) + (0.9 if kind == "hybrid" else 1.0) * (v - g(last, t, 1))
        last, x = x, x - alpha * v
        found.append(x)
    return found


@pytest.mark.parametrize(
    "estimator", [sgd(2), hybrid(0.1, 1, 4), spider(5, 1, 4)], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("fusion", [tracking(0.3), consensus(0.3, atc=True), exact_diffusion(0.3)])
def test_complete_graph_is_the_centralised_method(estimator, fusion):
    """With W = 11'/n every node has the iterates of one machine that uses all the batches."""
    problem = small_logistic()
    expected = centralised(type(estimator).__name__, problem, 40)
    for state, x in zip(
        states(peer.compose(estimator, fusion), problem, complete, 40), expected, strict=True
    ):
        assert_close(state.x, np.broadcast_to(x, state.x.shape), 1e-11)


PLAIN = [name for name in FUSIONS if name not in ("normalized-tracking", "adaptive-tracking")]
"""The fusions that descend along v, if they have no momentum."""


@pytest.mark.parametrize(
    ("estimator", "fusion"),
    some([(list(ESTIMATORS)[k % len(ESTIMATORS)], f) for k, f in enumerate(PLAIN)], 3),
)
def test_one_node_is_the_method_of_one_machine(estimator, fusion):
    """n = 1: W = [1], so every fusion is x - step * v."""
    alone = peer.Network(peer.topology.complete(1))
    problem = small_logistic(nodes=1, samples=30)
    method = peer.compose(ESTIMATORS[estimator](), FUSIONS[fusion]())
    method = method.replace(mu=0.0) if "mu" in method.parameters else method
    x = np.zeros((1, problem.dimension))
    step = method.parameters.get("eta", method.parameters["alpha"])
    sgd_states = states(peer.compose(ESTIMATORS[estimator](), consensus(step)), problem, alone, 40)
    for state, plain in zip(states(method, problem, alone, 40), sgd_states, strict=True):
        assert_close(state.x, plain.x, 1e-11)
        x = state.x
    assert np.abs(x).max() > 0.01


@pytest.mark.parametrize(
    "network", [ring, directed, one_peer], ids=["ring", "directed", "one-peer"]
)
def test_push_pull_with_doubly_stochastic_weights(network):
    """x_{t+1} = W(x_t - alpha y_t), y_{t+1} = W y_t + v_{t+1} - v_t, y_0 = v_0, without any code of the methods."""
    problem, steps = small_logistic(), 60
    rows = np.asarray(problem.data.rows, dtype=float)
    chosen = drawn(0, *rows.shape[:2], 2, steps)

    def v(x, t):
        own = np.take_along_axis(rows, chosen[t][:, :, None], axis=1)
        slopes = 1 / (1 + np.exp(np.einsum("ibp,ip->ib", own, x)))
        return -(slopes[:, :, None] * own).mean(axis=1) + 1e-4 * 2 * x / (1 + x**2) ** 2

    W = network.W if network.period > 1 else [network.W]
    x = np.zeros((6, problem.dimension))
    y = last = v(x, 0)
    for t, state in enumerate(
        states(peer.compose(sgd(2), push_pull(0.3)), problem, network, steps)
    ):
        if t > 0:
            now = v(x, t)
            y, last = W[t % len(W)] @ y + now - last, now
        x = W[t % len(W)] @ (x - 0.3 * y)
        assert_close(state.fusion.y, y)
        assert_close(state.x, x)
        assert_close(y.mean(axis=0), last.mean(axis=0), 1e-11)
    assert np.abs(y - last).max() > 1e-6


def test_sarah_correction_is_not_zero():
    """The correction would vanish if x_{t-1} were overwritten before it is used."""
    problem = small_logistic()
    kept = states(peer.methods.gt_hsgd(0.5, beta=0.1), problem, ring, 20)
    for older, newer in pairwise(kept):
        assert np.array_equal(newer.estimator.x, older.x)
        assert np.abs(newer.x - newer.estimator.x).max() > 1e-8
    frozen = states(peer.methods.gt_dsgd(0.5), problem, ring, 20)
    assert np.abs(kept[-1].x - frozen[-1].x).max() > 1e-3


def test_d2_first_step_is_mixed():
    problem = small_quadratic(noise=0.0)
    first = states(peer.methods.d2(0.3), problem, ring, 1)[0]
    assert_close(first.x, ring.W @ (0.3 * np.asarray(problem.data.linear)))
