"""The methods beyond the paper: naive loops over nodes, special cases that coincide, and what the mean over nodes does.

Nodes start at different points, so that W x_0 is not x_0, and no memory that starts at zero could start at x_0.
"""

from __future__ import annotations

from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest
import test_reference
from loops import STRENGTH, Nodes, recursion, sgd

import peerdescent as peer
from peerdescent import estimators, fusions
from small import assert_close, coins, small_logistic, states

OPTIMISED = True  # compiled as users have it
NODES, STEPS = 6, 150
N = range(NODES)
START = np.random.default_rng(1).normal(size=(NODES, 5)) / 2
RING = peer.Network(peer.topology.ring(NODES))


def down(x, step, v):
    return [x[i] - step * v[i] for i in N]


def top_k(fraction, x):
    kept = sorted(range(len(x)), key=lambda k: (-abs(x[k]), k))[: ceil(fraction * len(x))]
    return np.array([x[k] if k in kept else 0.0 for k in range(len(x))])


def soft_threshold(x, level):
    return np.sign(x) * np.maximum(np.abs(x) - level, 0)


# Estimators: generators of v_0, v_1, ... that read the lists x and v, which grow as the loop goes on.


def plain(nodes, q, x, v):
    for t in range(STEPS):
        yield sgd(nodes, x, t, q.batch)


def hybrid(nodes, q, x, v):
    yield sgd(nodes, x, 0, q.initial_batch)
    for t in range(1, STEPS):
        yield recursion(nodes, x, v, t, q.batch, 1 - q.beta)


def momentum(nodes, q, x, v):
    yield sgd(nodes, x, 0, q.batch)
    for t in range(1, STEPS):
        g = sgd(nodes, x, t, q.batch)
        yield [v[t - 1][i] + q.rho * (g[i] - v[t - 1][i]) for i in N]


def svrg(nodes, q, x, v):
    for t in range(STEPS):
        if t % q.period == 0:
            tau, mu = x[t], nodes.exact(x[t])
            yield mu
        else:
            xi = nodes.draw(t, q.batch)
            here, there = nodes.grads(x[t], xi), nodes.grads(tau, xi)
            yield [here[i] - there[i] + mu[i] for i in N]


def page(nodes, q, x, v):
    coin = coins(nodes.seed, q.probability, STEPS)
    for t in range(STEPS):
        if t > 0 and not coin[t]:
            yield recursion(nodes, x, v, t, q.batch, 1.0)
        elif q.large_batch is None:
            yield nodes.exact(x[t])
        else:
            yield sgd(nodes, x, t, q.large_batch)


def adam(nodes, q, x, v):
    m, s = nodes.zeros(), nodes.zeros()
    for t in range(STEPS):
        g = sgd(nodes, x, t, q.batch)
        m = [q.beta1 * m[i] + (1 - q.beta1) * g[i] for i in N]
        s = [q.beta2 * s[i] + (1 - q.beta2) * g[i] ** 2 for i in N]
        up = [m[i] / (1 - q.beta1 ** (t + 1)) for i in N]
        yield [up[i] / (np.sqrt(s[i] / (1 - q.beta2 ** (t + 1))) + q.epsilon) for i in N]


# Fusions: generators of x_1, x_2, ... in the same way.


def consensus(nodes, q, x, v):
    for t in range(STEPS):
        yield nodes.mix(down(x[t], q.alpha, v[t]))


def trackers(nodes, v):
    y, before = nodes.zeros(), nodes.zeros()
    for t in range(STEPS):
        y = nodes.mix([y[i] + v[t][i] - before[i] for i in N])
        before = v[t]
        yield y


def tracking(nodes, q, x, v):
    for t, y in enumerate(trackers(nodes, v)):
        yield nodes.mix(down(x[t], q.alpha, y))


def normalized_tracking(nodes, q, x, v):
    for t, y in enumerate(trackers(nodes, v)):
        yield nodes.mix([x[t][i] - q.alpha * y[i] / np.sqrt(np.sum(y[i] ** 2)) for i in N])


def proximal_tracking(nodes, q, x, v):
    for t, y in enumerate(trackers(nodes, v)):
        z = [soft_threshold(each, q.alpha * q.l1) for each in down(x[t], q.alpha, y)]
        yield nodes.mix(z)


def proximal_tracking_without_atc(nodes, q, x, v):
    for t, y in enumerate(trackers(nodes, v)):
        yield [soft_threshold(each, q.alpha * q.l1) for each in down(nodes.mix(x[t]), q.alpha, y)]


def adaptive_tracking(nodes, q, x, v):
    y, m, s = nodes.zeros(), nodes.zeros(), nodes.zeros()
    for t in range(STEPS):
        mixed = nodes.mix(y)
        y = v[0] if t == 0 else [mixed[i] + v[t][i] - v[t - 1][i] for i in N]
        m = [q.decay * m[i] + (1 - q.decay) * y[i] for i in N]
        s = [q.decay_square * s[i] + (1 - q.decay_square) * y[i] ** 2 for i in N]
        mixed = nodes.mix(x[t])
        yield [mixed[i] - q.alpha * m[i] / np.sqrt(s[i] + q.epsilon) for i in N]


def exact_diffusion(nodes, q, x, v):
    yield nodes.mix(down(x[0], q.alpha, v[0]))
    for t in range(1, STEPS):
        yield nodes.mix([2 * x[t][i] - x[t - 1][i] - q.alpha * (v[t][i] - v[t - 1][i]) for i in N])


def nids(nodes, q, x, v):
    yield down(x[0], q.alpha, v[0])
    for t in range(1, STEPS):
        inner = [2 * x[t][i] - x[t - 1][i] - q.alpha * (v[t][i] - v[t - 1][i]) for i in N]
        mixed = nodes.mix(inner)
        yield [(inner[i] + mixed[i]) / 2 for i in N]


def extra(nodes, q, x, v):
    yield down(nodes.mix(x[0]), q.alpha, v[0])
    for t in range(1, STEPS):
        now, then = nodes.mix(x[t]), nodes.mix(x[t - 1])
        inner = [x[t][i] + now[i] - (x[t - 1][i] + then[i]) / 2 for i in N]
        yield [inner[i] - q.alpha * (v[t][i] - v[t - 1][i]) for i in N]


def quasi_global(nodes, q, x, v):
    m = nodes.zeros()
    for t in range(STEPS):
        new = nodes.mix([x[t][i] - q.alpha * (v[t][i] + q.mu * m[i]) for i in N])
        m = [q.mu * m[i] + (1 - q.mu) * (x[t][i] - new[i]) / q.alpha for i in N]
        yield new


def decentlam(nodes, q, x, v):
    m = nodes.zeros()
    for t in range(STEPS):
        mixed = nodes.mix(down(x[t], q.alpha, v[t]))
        m = [q.mu * m[i] + (x[t][i] - mixed[i]) / q.alpha for i in N]
        yield down(x[t], q.alpha, m)


def choco(nodes, q, x, v):
    z, s = nodes.zeros(), nodes.zeros()
    for t in range(STEPS):
        h = down(x[t], q.alpha, v[t])
        sent = [top_k(q.compressor, h[i] - z[i]) for i in N]
        received = nodes.mix(sent)
        z, s = [z[i] + sent[i] for i in N], [s[i] + received[i] for i in N]
        yield [h[i] + q.gamma * (s[i] - z[i]) for i in N]


def compressed_tracking(nodes, q, x, v):
    G, H = nodes.zeros(), nodes.zeros()
    for t in range(STEPS):
        if t == 0:
            V = v[0]
        else:
            WG = nodes.mix(G)
            V = [V[i] + q.gamma * (WG[i] - G[i]) + v[t][i] - v[t - 1][i] for i in N]
            G = [G[i] + top_k(q.compressor, V[i] - G[i]) for i in N]
        WH = nodes.mix(H)
        new = [x[t][i] + q.gamma * (WH[i] - H[i]) - q.alpha * V[i] for i in N]
        H = [H[i] + top_k(q.compressor, new[i] - H[i]) for i in N]
        yield new


def local_tracking(nodes, q, x, v):
    c, anchor, length = nodes.zeros(), x[0], q.interval * q.alpha
    for t in range(STEPS):
        new = [x[t][i] - q.alpha * (v[t][i] + c[i]) for i in N]
        if (t + 1) % q.interval == 0:
            z = [(anchor[i] - new[i]) / length for i in N]
            mixed = nodes.mix(z)
            c = [c[i] - z[i] + mixed[i] for i in N]
            new = anchor = nodes.mix(down(anchor, length * q.outer, z))
        yield new


def local_diffusion(nodes, q, x, v):
    u = nodes.zeros()
    for t in range(STEPS):
        new = [x[t][i] - q.alpha * v[t][i] - q.dual * u[i] for i in N]
        if (t + 1) % q.interval == 0:
            alone, new = new, nodes.mix(new)
            u = [u[i] + alone[i] - new[i] for i in N]
        yield new


def skip(nodes, q, x, v):
    u, coin = nodes.zeros(), coins(nodes.seed, q.probability, STEPS)
    for t in range(STEPS):
        new = z = [x[t][i] - q.alpha * v[t][i] - u[i] for i in N]
        if coin[t]:
            mixed = nodes.mix(z)
            new = [z[i] - (z[i] - mixed[i]) / (2 * q.chi) for i in N]
            u = [u[i] + q.dual * (z[i] - new[i]) for i in N]
        yield new


TOP_HALF = {"gamma": 0.4, "compressor": 0.5}
ZOO = {
    "dsgdm": (momentum, consensus, {"alpha": 0.3, "rho": 0.3, "batch": 2}),
    "gt-momentum": (momentum, tracking, {"alpha": 0.3, "rho": 0.3, "batch": 2}),
    "edm": (momentum, exact_diffusion, {"alpha": 0.3, "rho": 0.3, "batch": 2}),
    "gt-svrg": (svrg, tracking, {"alpha": 0.3, "period": 7, "batch": 2}),
    "gt-page": (
        page,
        tracking,
        {"alpha": 0.3, "probability": 0.3, "batch": 2, "large_batch": None},
    ),
    "nids": (plain, nids, {"alpha": 0.3, "batch": 2}),
    "extra": (plain, extra, {"alpha": 0.3, "batch": 2}),
    "qg-dsgdm": (plain, quasi_global, {"alpha": 0.3, "mu": 0.6, "batch": 2}),
    "decentlam": (plain, decentlam, {"alpha": 0.2, "mu": 0.6, "batch": 2}),
    "d-adam": (
        adam,
        consensus,
        {"alpha": 0.03, "beta1": 0.8, "beta2": 0.9, "epsilon": 0.01, "batch": 2},
    ),
    "gt-adam": (
        plain,
        adaptive_tracking,
        {"alpha": 0.03, "decay": 0.8, "decay_square": 0.9, "epsilon": 0.01, "batch": 2},
    ),
    "choco-sgd": (plain, choco, {"alpha": 0.3, **TOP_HALF, "batch": 2}),
    "beer": (plain, compressed_tracking, {"alpha": 0.2, **TOP_HALF, "batch": 2}),
    "motef": (momentum, compressed_tracking, {"alpha": 0.2, **TOP_HALF, "rho": 0.3, "batch": 2}),
    "docom": (
        hybrid,
        compressed_tracking,
        {"alpha": 0.2, **TOP_HALF, "beta": 0.1, "batch": 2, "initial_batch": 5},
    ),
    "k-gt": (plain, local_tracking, {"alpha": 0.2, "outer": 0.8, "interval": 4, "batch": 2}),
    "led": (plain, local_diffusion, {"alpha": 0.2, "dual": 0.5, "interval": 4, "batch": 2}),
    "proxskip": (
        plain,
        skip,
        {"alpha": 0.2, "dual": 0.5, "chi": 1.0, "probability": 0.3, "batch": 2},
    ),
    "proxgt": (plain, proximal_tracking, {"alpha": 0.3, "batch": 2}),
    "deepstorm": (
        hybrid,
        proximal_tracking_without_atc,
        {"alpha": 0.3, "beta": 0.1, "batch": 2, "initial_batch": 5},
    ),
    "gt-nsgdm": (momentum, normalized_tracking, {"alpha": 0.05, "rho": 0.3, "batch": 2}),
}
CASES = [
    *((name, {}) for name in ZOO),
    ("gt-page", {"large_batch": 5}),
    ("proxgt", {"l1": 0.01}),
    ("deepstorm", {"l1": 0.01}),
]


def naive(name, q, nodes):
    """x_0, ..., x_T by the formulas of the named method with parameters q."""
    estimator, fusion, _ = ZOO[name]
    x, v = [list(START)], []
    estimates, iterates = (part(nodes, q, x, v) for part in (estimator, fusion))
    for _ in range(STEPS):
        v.append(next(estimates))
        x.append(next(iterates))
    return np.array(x)


@pytest.mark.parametrize(
    ("name", "more"), CASES, ids=["-".join([name, *more]) for name, more in CASES]
)
def test_method_equals_naive_loops(name, more):
    q, problem = {"l1": 0.0} | ZOO[name][2] | more, small_logistic(NODES, strength=STRENGTH)
    expected = naive(name, SimpleNamespace(**q), Nodes(problem, RING, seed=5))
    assert np.ptp(expected[-1], axis=0).max() > 1e-6, (
        "the nodes agree so well that the network was not tested"
    )

    l1 = q.pop("l1")
    problem = peer.problems.composite(problem, l1=l1) if l1 else problem
    if "compressor" in q:
        q["compressor"] = peer.compressors.top_k(q["compressor"])
    method = peer.methods.METHODS[name].build(**q)
    for t, state in enumerate(states(method, problem, RING, STEPS, seed=5, x0=START)):
        assert_close(state.x, expected[t + 1])


def test_named_methods_are_all_here():
    assert {*test_reference.PARAMETERS, *ZOO} == set(peer.methods.METHODS)
    assert len(peer.methods.METHODS) == 32


def stepped(estimator, fusion):
    return states(
        peer.compose(estimator, fusion),
        small_logistic(NODES, strength=STRENGTH),
        RING,
        60,
        x0=START,
    )


@pytest.mark.parametrize(
    ("special", "plain"),
    [
        (fusions.skip(alpha=0.2, dual=1.0, chi=0.5, probability=1.0), fusions.exact_diffusion(0.2)),
        (fusions.local_diffusion(alpha=0.2, dual=1.0, interval=1), fusions.exact_diffusion(0.2)),
        (fusions.quasi_global(alpha=0.2, mu=0.0), fusions.consensus(0.2, atc=True)),
        (fusions.decentlam(alpha=0.2, mu=0.0), fusions.consensus(0.2, atc=True)),
        (
            fusions.choco(0.2, gamma=1.0, compressor=peer.compressors.identity()),
            fusions.consensus(0.2, atc=True),
        ),
        (fusions.proximal_tracking(0.2, atc=True), fusions.tracking(0.2)),
    ],
    ids=lambda fusion: type(fusion).__name__,
)
def test_fusions_that_coincide(special, plain):
    """From the first step on, wherever nodes start; choco because s is W z at all times, z being h."""
    for left, right in zip(
        *(stepped(estimators.sgd(2), each) for each in (special, plain)), strict=True
    ):
        assert_close(left.x, right.x)


@pytest.mark.parametrize(
    ("special", "plain"),
    [
        (estimators.momentum(rho=1.0, batch=2), estimators.sgd(2)),
        (estimators.page(probability=1.0, batch=1, large_batch=3), estimators.sgd(3)),
        (
            estimators.svrg(period=2, batch=2),
            estimators.spider(period=2, batch=2, large_batch=None),
        ),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_that_coincide(special, plain):
    """From the first step on; svrg and spider because with period 2 the point tau is the previous iterate."""
    for left, right in zip(
        *(stepped(each, fusions.tracking(0.2)) for each in (special, plain)), strict=True
    ):
        assert_close(left.x, right.x)


@pytest.mark.parametrize(
    "fusion",
    [
        fusions.local_tracking(0.2, outer=1.0, interval=1),
        fusions.push_pull(0.2),
        fusions.proximal_tracking(0.2, False),
    ],
    ids=lambda fusion: type(fusion).__name__,
)
def test_three_fusions_that_mix_the_tracker_before_the_correction(fusion):
    """x_{t+1} = W(x_t - alpha y_t), y_{t+1} = W y_t + v_{t+1} - v_t, y_0 = v_0, from the first step on.

    In local tracking y_t is v_t + c; in proximal tracking without `atc`, whose own tracker is W y_t, it is not held.
    Only push-pull mixes y_t with the weights of iteration t + 1, so they differ where W varies with time.
    """
    x, y, before = START, np.zeros_like(START), 0.0
    for state in stepped(estimators.hybrid(0.2, 2, 3), fusion):
        y = RING.W @ y + state.estimator.v - before
        x, before = RING.W @ (x - 0.2 * y), state.estimator.v
        assert_close(state.x, x)


def test_compressed_tracking_with_nothing_compressed():
    """x_{t+1} = W x_t - alpha V_t from t = 1 on, V_t = W V_{t-1} + v_t - v_{t-1} from t = 2 on, if gamma is 1.

    Before that there is nothing to mix: x_1 = x_0 - alpha v_0 and V_1 = v_1.
    """
    fusion = fusions.compressed_tracking(0.2, gamma=1.0, compressor=peer.compressors.identity())
    x, V, before = START, 0.0, 0.0
    for t, state in enumerate(stepped(estimators.hybrid(0.2, 2, 3), fusion)):
        V = state.estimator.v if t < 2 else RING.W @ V + state.estimator.v - before
        x, before = (x if t == 0 else RING.W @ x) - 0.2 * V, state.estimator.v
        assert_close(state.x, x)


@pytest.mark.parametrize(
    "fusion",
    [
        fusions.extra(0.2),
        fusions.choco(0.2, gamma=0.4, compressor=peer.compressors.top_k(0.5)),
        fusions.compressed_tracking(0.2, gamma=0.4, compressor=peer.compressors.top_k(0.5)),
        fusions.local_tracking(0.2, outer=1.0, interval=4),
        fusions.local_diffusion(0.2, dual=0.5, interval=4),
        fusions.skip(0.2, dual=0.5, chi=1.0, probability=0.3),
        fusions.proximal_tracking(0.2, atc=True),
    ],
    ids=lambda fusion: type(fusion).__name__,
)
def test_the_mean_descends_by_the_mean_of_the_estimates(fusion):
    """So mean(V) = mean(v) in compressed tracking, mean(c) = 0 in local tracking, mean(u) = 0 where u is a dual."""
    mean = START.mean(axis=0)
    for state in stepped(estimators.hybrid(0.2, 2, 3), fusion):
        assert_close(state.x.mean(axis=0), mean - 0.2 * state.estimator.v.mean(axis=0))
        mean = state.x.mean(axis=0)


@pytest.mark.parametrize(
    "fusion",
    [
        fusions.proximal_tracking(0.2, atc=False),
        fusions.normalized_tracking(0.05),
        fusions.adaptive_tracking(0.03, decay=0.8, decay_square=0.9, epsilon=0.01),
    ],
    ids=lambda fusion: type(fusion).__name__,
)
def test_trackers_follow_the_mean_of_the_estimates(fusion):
    for state in stepped(estimators.hybrid(0.2, 2, 3), fusion):
        assert_close(state.fusion.y.mean(axis=0), state.estimator.v.mean(axis=0))
