"""Oracles: finite differences, unbiasedness, sums over samples, and closed forms."""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import peerdescent as peer
from peerdescent.keys import below, node_keys
from small import PROBLEMS, assert_close, compiled, small_logistic, small_quadratic, some


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_is_the_derivative_of_the_loss(name, rng):
    problem = PROBLEMS[name]()
    x = rng.normal(size=problem.dimension)
    for _ in range(3):
        direction, h = rng.normal(size=problem.dimension), 1e-5
        slope = (problem.loss(x + h * direction) - problem.loss(x - h * direction)) / (2 * h)
        assert slope == pytest.approx(problem.grad(x) @ direction, rel=1e-7)


@pytest.mark.parametrize("regulariser", ["nonconvex", "l2", "none"])
def test_regularisers(regulariser, rng):
    strong = small_logistic(strength=0.7, regulariser=regulariser)
    weak = small_logistic(strength=0.0, regulariser=regulariser)
    x = rng.normal(size=strong.dimension)
    r = {"nonconvex": np.sum(x**2 / (1 + x**2)), "l2": x @ x / 2, "none": 0.0}[regulariser]
    slope = {"nonconvex": 2 * x / (1 + x**2) ** 2, "l2": x, "none": 0 * x}[regulariser]
    assert strong.loss(x) - weak.loss(x) == pytest.approx(0.7 * r, abs=1e-13)
    assert_close(
        strong.grad(x) - weak.grad(x), 0.7 * slope, 1e-12
    ) if regulariser != "none" else None
    h = 1e-5 * rng.normal(size=x.size)
    assert (strong.loss(x + h) - strong.loss(x - h)) / 2 == pytest.approx(
        strong.grad(x) @ h, rel=1e-6
    )


def test_logistic_by_hand(rng):
    data = peer.datasets.synthetic(12, 4, seed=1)
    partition = data.partition(3)
    problem = peer.problems.logistic(partition, strength=0.2)
    x = rng.normal(size=4)
    rows = [np.asarray(data.features, dtype=float)[i] for i in partition.indices]
    labels = [np.asarray(data.labels, dtype=float)[i] for i in partition.indices]
    f = np.mean(
        [np.mean(np.log(1 + np.exp(-sign * (r @ x)))) for r, sign in zip(rows, labels, strict=True)]
    )
    assert problem.loss(x) == pytest.approx(f + 0.2 * np.sum(x**2 / (1 + x**2)), rel=1e-12)


@pytest.mark.parametrize("name", ["logistic", "loss"])
def test_mean_over_all_samples_is_the_exact_gradient(name, rng):
    problem = PROBLEMS[name]()
    x = rng.normal(size=problem.dimension)
    with jax.enable_x64(True):
        data = peer.problems.problem.cast(problem.data, np.dtype("float64"))
        for i in range(problem.nodes):
            held = jax.tree.map(lambda a, i=i: a[i], data)
            every = [
                problem.oracle.grad(jnp.asarray(x), jnp.array([j]), held)
                for j in range(int(held.size))
            ]
            assert_close(np.mean(every, axis=0), problem.local_grads(x)[i])


@pytest.mark.parametrize("name", PROBLEMS)
def test_stochastic_gradients_are_unbiased_and_independent(name, rng):
    problem = PROBLEMS[name]()
    x = 0.3 * rng.normal(size=problem.dimension)
    draws = np.stack([problem.stochastic_grads(x, draw=d, batch=2) for d in range(400)])
    exact = problem.exact(x)[1]
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - exact) <= 5 * error + 1e-12).all()
    assert (error > 0).all()
    centred = (draws - exact) / draws.std(axis=0)
    neighbouring_nodes = np.mean(centred[:, :-1] * centred[:, 1:])
    neighbouring_draws = np.mean(centred[:-1] * centred[1:])
    assert abs(neighbouring_nodes) < 0.05
    assert abs(neighbouring_draws) < 0.05


def test_quadratic_knows_its_constants(rng):
    problem = small_quadratic(noise=0.3)
    x, y = rng.normal(size=(2, problem.dimension))
    matrices = np.asarray(problem.data.matrix)
    assert problem.smoothness == pytest.approx(
        max(np.linalg.norm(q, 2) for q in matrices), rel=1e-12
    )
    assert_close(problem.local_grads(x) - problem.local_grads(y), matrices @ (x - y))
    squares = [
        np.sum((problem.stochastic_grads(x, draw=d) - problem.local_grads(x)) ** 2, axis=1)
        for d in range(800)
    ]
    assert np.mean(squares) == pytest.approx(problem.variance.mean(), rel=0.05)
    larger = [
        np.sum((problem.stochastic_grads(x, draw=d, batch=4) - problem.local_grads(x)) ** 2, axis=1)
        for d in range(800)
    ]
    assert np.mean(larger) == pytest.approx(problem.variance.mean() / 4, rel=0.05)


@pytest.mark.parametrize("tails", some([1.5, 2.0, 5.0], 3))
def test_noise_with_heavy_tails_is_students(tails):
    """Against SciPy's distribution function, and that of a mean of two, which is none of Student's."""
    matrices, linear = np.stack([np.eye(5)] * 4), np.arange(20.0).reshape(4, 5)
    problem = peer.problems.quadratic(matrices, linear, noise=[0.0, 1.0, 2.0, 3.0], tails=tails)
    x = np.ones(5)
    draws = np.stack([problem.stochastic_grads(x, draw=d) - (x - linear) for d in range(400)])
    assert not draws[:, 0].any(), "without noise"
    entries = draws[:, 1:] * np.sqrt(5) / np.arange(1.0, 4.0)[:, None]
    assert scipy.stats.kstest(entries.ravel(), scipy.stats.t(tails).cdf).pvalue > 0.01
    assert scipy.stats.kstest(entries.ravel(), scipy.stats.norm.cdf).pvalue < 1e-4
    pairs = np.stack(
        [problem.stochastic_grads(x, draw=d, batch=2) - (x - linear) for d in range(400)]
    )[:, 3]
    means = scipy.stats.t(tails).rvs((4000, 2), random_state=1).mean(axis=1) * 3 / np.sqrt(5)
    assert scipy.stats.ks_2samp(pairs.ravel(), means).pvalue > 0.01
    variance = [0.0, *([5 / 3, 20 / 3, 15.0] if tails == 5 else [np.inf] * 3)]
    assert problem.variance.tolist() == pytest.approx(variance)


def test_gaussian_noise_is_what_it_was_and_runs_on_both_kinds_agree_between_engines():
    rng, network = np.random.default_rng(0), peer.Network(peer.topology.ring(4))
    build = partial(
        peer.problems.quadratic, np.stack([np.eye(3)] * 4), rng.normal(size=(4, 3)), 0.5
    )
    assert type(build().oracle) is not type(build(tails=2.0).oracle)
    assert build(tails=2.0).facts != build(tails=3.0).facts, (
        "stored results of one are not taken for the other"
    )
    for problem in (build(), build(tails=1.5)):
        runs = [
            peer.run(
                peer.methods.gt_nsgdm(),
                problem,
                network,
                steps=20,
                record=1,
                precision=64,
                engine=engine,
            )
            for engine in ("stacked", "debug")
        ]
        assert_close(runs[0].x, runs[1].x)


def test_streaming_never_repeats_and_has_its_closed_form(rng):
    problem = peer.problems.streaming(3, features=4, noise=0.5, spread=2.0, strength=3.0)
    seen = {problem.stochastic_grads(np.ones(4), draw=d).tobytes() for d in range(300)}
    assert len(seen) == 300
    x = rng.normal(size=4)
    away = x - np.asarray(problem.data.planted)
    f = np.mean(0.5 * (np.sum(away**2, axis=1) + 0.25)) + 3.0 * np.sum(x**2 / (1 + x**2))
    assert problem.loss(x) == pytest.approx(f, rel=1e-12)
    with pytest.raises(ValueError, match="samples never end"):
        problem.local_grads(x)


def test_ragged_nodes_are_averaged_over_what_they_hold(rng):
    data = peer.datasets.synthetic(30, 4, seed=1)
    lists = [np.arange(0, 5), np.arange(5, 25), np.arange(25, 30)]
    problem = peer.problems.logistic(data.partition(3, indices=lists), strength=0.0)
    x = rng.normal(size=4)
    margins = np.asarray(data.features, dtype=float) @ x * np.asarray(data.labels, dtype=float)
    assert problem.loss(x) == pytest.approx(
        np.mean([np.log1p(np.exp(-margins[i])).mean() for i in lists]), rel=1e-12
    )
    assert problem.samples == 10

    def function(params, batch):
        features, labels = batch
        return jnp.mean(jax.nn.softplus(-labels * (features @ params)))

    general = peer.problems.loss(function, np.zeros(4), data.partition(3, indices=lists))
    assert general.loss(x) == pytest.approx(problem.loss(x), rel=1e-12)
    assert_close(general.grad(x), problem.grad(x))


def test_padding_is_never_evaluated(rng):
    """The loss of a row of zeros is not finite, and uneven nodes have no such row."""
    features = rng.uniform(0.5, 2.0, size=(9, 4))
    data = peer.datasets.Dataset(features, rng.choice([-1.0, 1.0], 9), "positive")

    def normalised(w, batch):
        rows, labels = batch
        directions = jnp.log(rows) / jnp.linalg.norm(rows, axis=1, keepdims=True)
        return jnp.mean((directions @ w - labels) ** 2)

    lists = [[0, 1, 2, 3, 4], [5, 6], [7, 8]]
    problem = peer.problems.loss(normalised, np.zeros(4), data.partition(3, indices=lists))
    w = rng.normal(size=4)
    by_hand = [
        np.mean(
            (
                np.log(features[i]) / np.linalg.norm(features[i], axis=1, keepdims=True) @ w
                - data.labels[i]
            )
            ** 2
        )
        for i in lists
    ]
    assert problem.exact(w)[0] == pytest.approx(by_hand, rel=1e-6)  # data are held in float32
    assert np.isfinite(problem.exact(w)[1]).all()


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("reduce", "message"),
    [
        (
            lambda w: np.mean(np.array(w) ** 2),
            r"JAX cannot trace the loss \(.*__array__.*: use jax.numpy instead of numpy, and jnp.where for if",
        ),
        (
            lambda w: jnp.mean(w) if jnp.sum(w) > 0 else 0.0,
            r"JAX cannot trace the loss \(Attempted boolean conv.*where",
        ),
        (
            lambda w: jnp.mean(w * RANDOM.random()),
            r"the loss of the same \d+ rows is .* and then .*, so it is random",
        ),
        (
            jnp.sum,
            r"the loss of \d+ rows is \d+, and the mean .* each alone 1: return the mean over the rows of a batch",
        ),
        (lambda a: a, "has shape .*: return one number"),
    ],
)
def test_a_loss_that_is_not_a_mean_is_refused(reduce, message):
    rows = np.ones((3, 4, 2)), np.ones((3, 4))
    peer.problems.loss(
        lambda w, batch: jnp.mean((batch[0] @ w - batch[1]) ** 2), np.zeros(2), rows, "good"
    )
    with pytest.raises(ValueError, match=message):
        peer.problems.loss(
            lambda w, batch: reduce((batch[0] @ w - batch[1]) ** 2), np.zeros(2), rows, "bad"
        )


def test_an_mlp_trains():
    data = peer.datasets.load("digits", labels="classes")
    rng = np.random.default_rng(0)
    params = {
        "w1": rng.normal(size=(64, 16)) / 4,
        "b1": np.zeros(16),
        "w2": rng.normal(size=(16, 10)) / 4,
    }

    def cross_entropy(params, batch):
        images, digits = batch
        scores = jax.nn.relu(images @ params["w1"] + params["b1"]) @ params["w2"]
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(digits)), digits])

    problem = peer.problems.loss(cross_entropy, params, data.partition(8, by="label"), name="mlp")
    network = peer.Network(peer.topology.exponential(8))
    trace = peer.run(
        peer.methods.gt_hsgd(alpha=0.5, beta=0.1, batch=8, initial_batch=64),
        problem,
        network,
        epochs=40,
        record=4,
    )
    assert trace.table["loss"].iloc[0] > 2.2
    assert trace.table["loss"].iloc[-1] < 0.8
    trained = problem.unflatten(trace.x_mean)
    assert trained["w1"].shape == (64, 16)
    scores = np.maximum(data.features @ trained["w1"] + trained["b1"], 0) @ trained["w2"]
    assert np.mean(scores.argmax(axis=1) == data.labels) > 0.8


@given(
    size=st.integers(1, 2**31 - 1), seed=st.integers(0, 2**32 - 1), draw=st.integers(0, 2**31 - 1)
)
def test_below_is_the_high_word_of_the_product(size, seed, draw):
    key = node_keys(jnp.uint32(seed), jnp.arange(3), jnp.asarray(draw))[1]
    bits = np.asarray(jax.random.bits(key, (8,), jnp.uint32)).astype(object)
    assert below(key, jnp.asarray(size), 8).tolist() == [int(b) * size >> 32 for b in bits]


def test_draws_depend_on_seed_node_draw_and_call_and_on_nothing_else():
    def bits(seed, draw, call=0):
        keys = node_keys(jnp.uint32(seed), jnp.arange(5), jnp.asarray(draw), call)
        return {int(b) for b in jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)}

    seen = [bits(seed, draw, call) for seed in (0, 1) for draw in (0, 1, 2) for call in (0, 1)]
    assert len(set().union(*seen)) == 5 * len(seen)
    assert bits(1, 2) == bits(1, 2)


def test_indices_are_uniform():
    keys = node_keys(jnp.uint32(0), jnp.arange(1000), jnp.asarray(3))
    drawn = np.asarray(jax.vmap(lambda key: below(key, jnp.asarray(7), 70))(keys)).ravel()
    counts = np.bincount(drawn, minlength=7)
    assert len(counts) == 7
    assert (
        np.sum((counts - 10_000) ** 2 / 10_000) < 22.5
    )  # chi-square, 6 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small_logistic(strength=-1.0), "strength = -1.0: must not be negative"),
        (lambda: small_logistic(regulariser="l3"), "unknown regulariser 'l3': did you mean 'l2'"),
        (
            lambda: peer.problems.logistic(
                peer.datasets.load("digits", labels="classes").partition(4)
            ),
            r"digits are classes 0, 1, 2, ..., and logistic needs -1 and \+1: use softmax or perceptron, or load it "
            "with positive=, the classes that become",
        ),
        (
            lambda: peer.problems.quadratic(np.eye(3)),
            r"matrices has shape \(3, 3\): must be \(nodes, p, p\)",
        ),
        (
            lambda: peer.problems.quadratic(np.triu(np.ones((1, 2, 2)))),
            "matrices must be symmetric",
        ),
        (
            lambda: peer.problems.quadratic(np.ones((1, 2, 2)), np.ones(2)),
            r"linear has shape \(2,\): must be \(1, 2\)",
        ),
        (
            lambda: peer.problems.quadratic(np.ones((1, 2, 2)), noise=-1),
            "noise = -1.0: must not be negative",
        ),
        (
            lambda: peer.problems.quadratic(np.ones((1, 2, 2)), tails=1),
            "tails = 1: must be a finite number above 1",
        ),
        (
            lambda: peer.problems.quadratic(np.ones((1, 2, 2)), tails=np.nan),
            "tails = nan: must be a finite number",
        ),
        (lambda: peer.problems.streaming(0), "nodes = 0, features = 10: both must be at least 1"),
        (lambda: peer.problems.streaming(2, noise=-1.0), "noise = -1.0: must not be negative"),
        (lambda: peer.problems.loss(lambda p, b: 0.0, {}, np.ones((2, 3))), "params has no arrays"),
        (
            lambda: peer.problems.logistic(peer.datasets.load("digits")),
            "a Dataset is not shared over nodes: give a part",
        ),
        (
            lambda: peer.problems.loss(lambda p, b: 0.0, np.ones(2), peer.datasets.load("digits")),
            "the data are not shared over nodes: give a partition",
        ),
        (
            lambda: peer.problems.loss(
                lambda p, b: 0.0, np.ones(2), [np.ones((2, 3)), np.ones((2, 4))]
            ),
            "all must start with the same",
        ),
        (lambda: small_logistic().loss(np.ones(3)), r"x has shape \(3,\): must be \(5,\)"),
    ],
)
def test_bad_problems_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def sparse_and_dense(monkeypatch, **options):
    """The same problem with sparse rows, and with a dense array."""
    from peerdescent.problems.rows import Nonzeros

    data = peer.datasets.synthetic(60, 400, density=0.01, seed=2)
    partition = data.partition(6, by="dirichlet", concentration=5.0, seed=1)
    sparse = peer.problems.logistic(partition, **options)
    monkeypatch.setattr(sys.modules["peerdescent.problems.rows"], "SPARSE_BELOW", 10**9)
    dense = peer.problems.logistic(partition, **options)
    assert isinstance(sparse.data.rows, Nonzeros)
    assert not isinstance(dense.data.rows, Nonzeros)
    return sparse, dense


@pytest.mark.parametrize("regulariser", some(["nonconvex", "none"], 2))
def test_sparse_rows_change_nothing(regulariser, monkeypatch):
    sparse, dense = sparse_and_dense(monkeypatch, regulariser=regulariser)
    x = np.random.default_rng(0).normal(size=400)
    assert sparse.loss(x) == pytest.approx(dense.loss(x), rel=1e-13)
    assert np.abs(sparse.local_grads(x) - dense.local_grads(x)).max() < 1e-14
    network = peer.Network(peer.topology.ring(6))
    for engine in ("stacked", "debug"):
        left, right = (
            peer.run(
                peer.methods.gt_sarah(0.5, 3, 2),
                problem,
                network,
                steps=9,
                precision=64,
                engine=engine,
            ).x
            for problem in (compiled(sparse), compiled(dense))
        )
        assert np.abs(left - right).max() < 1e-12 * np.abs(right).max()
    tables = [
        peer.sweep(
            "gt-hsgd",
            {"alpha": [0.1, 0.5], "batch": [1, 9]},
            problem,
            network,
            steps=9,
            precision=64,
        )
        for problem in (sparse, dense)
    ]
    assert tables[0]["loss"].tolist() == pytest.approx(tables[1]["loss"].tolist(), rel=1e-12)


def test_rows_are_held_sparse_only_where_that_pays():
    from peerdescent.problems.rows import Nonzeros

    for features, density, expected in [(400, 0.01, True), (400, 0.2, False), (30, 1.0, False)]:
        problem = peer.problems.logistic(
            peer.datasets.synthetic(40, features, density=density).partition(4)
        )
        assert isinstance(problem.data.rows, Nonzeros) == expected
        assert problem.dimension == features


def test_an_error_in_a_loss_says_how_it_is_called():
    with pytest.raises(TypeError) as caught:
        peer.problems.loss(
            lambda batch, params: batch[0] @ params,
            np.zeros(3),
            (np.ones((2, 4, 3)), np.ones((2, 4))),
        )
    assert "in the loss, which is called with (params, batch)" in caught.value.__notes__
