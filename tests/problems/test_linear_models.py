"""Linear models: costs and gradients by hand, optima of other libraries, sparse rows, intercepts, refusals."""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares, minimize
from sklearn.linear_model import LogisticRegression, Ridge

import peerdescent as peer
from peerdescent import theory
from peerdescent.problems.linear_models import rows_of
from peerdescent.problems.rows import Nonzeros
from peerdescent.problems.variance import variances
from small import assert_close, compiled

RING = peer.Network(peer.topology.ring(4))


def classes(rows=48, features=5, count=3, density=1.0, seed=1):
    """Rows with `count` classes that overlap."""
    data = peer.datasets.synthetic(rows, features, density=density, seed=seed)
    dense = data.features if isinstance(data.features, np.ndarray) else data.features.toarray()
    rng = np.random.default_rng(seed)
    scores = dense @ rng.normal(size=(features, count)) * 3 + rng.gumbel(size=(rows, count))
    return peer.datasets.Dataset(data.features, scores.argmax(axis=1), "classes")


def cross_entropy(scores, labels):
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]


def logistic_loss(scores, labels):
    return np.log1p(np.exp(-labels * scores))


def binary(rows=48, features=5, density=1.0):
    return peer.datasets.synthetic(rows, features, density=density, seed=1)


def real(rows=48, features=5, density=1.0):
    """Rows with real targets, some of them far off."""
    data, rng = binary(rows, features, density), np.random.default_rng(2)
    targets = data.features @ rng.normal(size=features) * 2 + 0.1 * rng.normal(size=rows)
    targets[::7] += 20
    return peer.datasets.Dataset(data.features, targets, "targets")


def hinge(scores, labels, s=0.5):
    u = 1 - labels * scores
    return np.where(u <= 0, 0, np.where(u < s, u**2 / (2 * s), u - s / 2))


def huber(scores, targets, s=0.7):
    r = np.abs(scores - targets)
    return np.where(r < s, r**2 / 2, s * (r - s / 2))


def welsch(scores, targets, s=0.7):
    return s**2 * (1 - np.exp(-(((scores - targets) / s) ** 2) / 2))


def geman_mcclure(scores, targets, s=0.7):
    r = scores - targets
    return r**2 / 2 / (1 + (r / s) ** 2)


MODELS = {
    "logistic": (peer.problems.logistic, binary, logistic_loss),
    "softmax": (peer.problems.softmax, classes, cross_entropy),
    "svm": (partial(peer.problems.svm, smoothing=0.5), binary, hinge),
    "linear": (peer.problems.linear, real, lambda scores, targets: (scores - targets) ** 2 / 2),
    "huber": (partial(peer.problems.robust, scale=0.7), real, huber),
    "welsch": (partial(peer.problems.robust, loss="welsch", scale=0.7), real, welsch),
    "geman-mcclure": (
        partial(peer.problems.robust, loss="geman-mcclure", scale=0.7),
        real,
        geman_mcclure,
    ),
}
REGULARISERS = {
    "nonconvex": lambda w: (w**2 / (1 + w**2)).sum(),
    "l2": lambda w: (w**2).sum() / 2,
    "none": lambda w: 0.0,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("intercept", "regulariser"), [(False, "nonconvex"), (True, "l2"), (True, "none")]
)
def test_costs_and_gradients_by_hand(name, intercept, regulariser, rng):
    """Nodes of different sizes in float64, against the cost as the docstring has it and differences of it."""
    build, data, loss = MODELS[name]
    data, rows = data(), np.split(np.random.default_rng(0).permutation(48), [5, 20, 31])
    kind = int if data.labels.dtype.kind == "i" else float
    partition = data.partition(4, indices=rows)
    problem = build(partition, strength=0.3, regulariser=regulariser, intercept=intercept)

    def costs(x):
        params = x if problem.unflatten is None else problem.unflatten(x)
        weights, constant = params if intercept else (params, 0.0)
        scores = np.asarray(data.features, float) @ weights + constant
        lists = partition.indices
        means = np.array([loss(scores[i], np.asarray(data.labels[i], kind)).mean() for i in lists])
        return means + 0.3 * REGULARISERS[regulariser](weights)

    x, directions, h = (
        rng.normal(size=problem.dimension),
        rng.normal(size=(3, problem.dimension)),
        1e-4,
    )
    values, grads = problem.exact(x)
    assert_close(values, costs(x))
    for d in directions:
        slopes = (
            8 * (costs(x + h * d) - costs(x - h * d)) - costs(x + 2 * h * d) + costs(x - 2 * h * d)
        ) / (12 * h)
        assert_close(grads @ d, slopes, 1e-9)


@pytest.mark.parametrize("intercept", [False, True])
def test_softmax_has_the_optimum_of_scikit_learn(intercept):
    data = classes()
    problem = peer.problems.softmax(data.partition(4), strength=0.02, intercept=intercept)
    found = peer.problems.optimum(problem, starts=2)
    other = LogisticRegression(
        C=1 / (0.02 * len(data)), fit_intercept=intercept, tol=1e-12, max_iter=10_000
    )
    other.fit(data.features.astype(float), data.labels)
    params = problem.unflatten(found.x)
    weights, constants = params if intercept else (params, np.zeros(3))
    assert_close(weights, other.coef_.T, 1e-6)
    centred = [
        each - each.mean() for each in (constants, other.intercept_)
    ]  # a common constant changes nothing
    assert np.abs(centred[0] - centred[1]).max() < 1e-6
    predicted = np.asarray(problem.predict(params, data.features)).argmax(axis=1)
    assert predicted.tolist() == other.predict(data.features).tolist()


@pytest.mark.parametrize("density", [1.0, 0.01])
def test_softmax_takes_two_classes_with_any_labels(rng, density):
    """Nodes have 4 to 12 rows, so that some are padded."""
    given = binary(features=100, density=density)
    rows = [np.arange(4 + 4 * k) + [0, 4, 12][k] for k in range(3)]
    named = np.where(given.labels > 0, "yes", "no")
    sets = [
        peer.datasets.load((given.features, named), labels=kind) for kind in ("binary", "classes")
    ]
    sets += [peer.datasets.Dataset(sets[0].features, given.labels, "signs")]
    assert [data.kind for data in sets] == ["binary", "classes", "binary"]
    found = [peer.problems.softmax(data.partition(indices=rows), intercept=True) for data in sets]
    x = rng.normal(size=202)
    for one in found:
        assert one.unflatten(x).weights.shape == (100, 2)
        for values, known in zip(one.exact(x), found[1].exact(x), strict=True):
            assert np.array_equal(values, known)
        assert np.array_equal(
            one.stochastic_grads(x, batch=3), found[1].stochastic_grads(x, batch=3)
        )
    scores = sets[0].features @ x[:200].reshape(100, 2) + x[200:]
    losses = logistic_loss(scores[:, 1] - scores[:, 0], given.labels.astype(float))
    assert_close(
        found[0].exact(x)[0],
        [losses[part].mean() + 1e-4 * x[:200] @ x[:200] / 2 for part in rows],
        1e-9,
    )


def test_linear_has_the_optimum_of_least_squares():
    data = real()
    features, targets = data.features.astype(float), data.labels.astype(float)
    ones = np.column_stack([features, np.ones(48)])
    for rows, options in ((features, {}), (ones, {"intercept": True})):
        found = peer.problems.optimum(
            peer.problems.linear(data.partition(4), **options), starts=1
        ).x
        assert_close(found, np.linalg.lstsq(rows, targets, rcond=None)[0], 1e-7)
    ridge = peer.problems.linear(data.partition(4), strength=0.1, intercept=True)
    other = Ridge(alpha=0.1 * 48).fit(features, targets)
    found = ridge.unflatten(peer.problems.optimum(ridge, starts=1).x)
    assert_close(found.weights, other.coef_, 1e-6)
    assert found.intercept == pytest.approx(other.intercept_, rel=1e-6)
    assert_close(ridge.predict(found, features), other.predict(features), 1e-6)


def test_robust_has_the_optimum_of_scipy():
    data = real()
    features, targets = data.features.astype(float), data.labels.astype(float)
    other = least_squares(
        lambda x: features @ x - targets, np.zeros(5), loss="huber", f_scale=0.7, gtol=1e-12
    )
    found = peer.problems.optimum(peer.problems.robust(data.partition(4), scale=0.7), starts=1)
    assert found.value == pytest.approx(other.cost / 48, rel=1e-9)
    assert_close(found.x, other.x, 1e-5)


def test_a_non_convex_loss_leaves_outliers_out():
    """Its optimum is near that of least squares on the other rows, and far from that on all."""
    data, keep = real(), np.arange(48) % 7 != 0
    clean, all_rows = (
        np.linalg.lstsq(
            data.features[rows].astype(float), data.labels[rows].astype(float), rcond=None
        )[0]
        for rows in (keep, slice(None))
    )
    for loss in ("welsch", "geman-mcclure"):
        found = peer.problems.optimum(
            peer.problems.robust(data.partition(4), loss, scale=1.0), starts=4
        ).x
        assert np.abs(found - clean).max() < 0.3 < 1 < np.abs(all_rows - clean).max()


def test_svm_has_the_optimum_of_scipy():
    data = binary()
    features, labels = data.features.astype(float), data.labels.astype(float)

    def cost(x):
        return hinge(features @ x[:-1] + x[-1], labels).mean() + 0.05 * x[:-1] @ x[:-1]

    found = peer.problems.optimum(
        peer.problems.svm(data.partition(4), strength=0.1, smoothing=0.5, intercept=True), starts=1
    )
    other = minimize(cost, np.zeros(6), method="BFGS", options={"gtol": 1e-8})
    assert found.value == pytest.approx(other.fun, rel=1e-9)
    assert_close(found.x, other.x, 1e-4)


def test_principal_components_are_eigenvectors(rng):
    spread = (
        rng.normal(size=(60, 6))
        * [3.0, 2.5, 1.0, 0.8, 0.5, 0.2]
        @ np.linalg.qr(rng.normal(size=(6, 6)))[0]
    )
    data = peer.datasets.Dataset(spread, np.zeros(60), "spread")
    partition = data.partition(
        3, indices=np.split(np.arange(60), [10, 25])
    )  # every node counts the same
    problem = peer.problems.pca(partition, components=2)
    U = problem.unflatten(peer.problems.optimum(problem, starts=2).x)
    rows = [data.features[i].astype(float) for i in partition.indices]
    A = np.mean([a.T @ a / len(a) for a in rows], axis=0)
    values, vectors = np.linalg.eigh(A)
    top = vectors[:, -2:]
    assert_close(U @ U.T, top * values[-2:] @ top.T, 1e-6)
    assert_close(
        problem.predict(U, data.features[:5].astype(float)), data.features[:5] @ top @ top.T, 1e-5
    )
    X = rng.normal(size=(6, 2))
    by_hand = [np.mean([np.sum((X @ X.T - np.outer(r, r)) ** 2) / 4 for r in a]) for a in rows]
    assert_close(problem.exact(X.ravel())[0], by_hand)
    d, h = rng.normal(size=12), 1e-5
    slope = (problem.loss(X.ravel() + h * d) - problem.loss(X.ravel() - h * d)) / (2 * h)
    assert problem.grad(X.ravel()) @ d == pytest.approx(slope, rel=1e-7)
    with pytest.raises(ValueError, match="nobody knows the smoothness of pca"):
        theory.smoothness_of(problem)
    trace = peer.run(
        peer.methods.gt_dsgd(0.02, batch=4),
        problem,
        peer.Network(peer.topology.ring(3)),
        epochs=200,
    )
    assert trace.table["loss"].iloc[-1] < 1.05 * problem.loss(U.ravel())


def with_sparse_rows(monkeypatch, name, **options):
    """The same problem with sparse rows, and with a dense array."""
    build, make, _ = MODELS[name]
    data = make(40, 400, density=0.01)
    partition = data.partition(4, by="quantity", concentration=5.0, seed=1)
    sparse = build(partition, **options)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["peerdescent.problems.rows"], "SPARSE_BELOW", 10**9)
        dense = build(partition, **options)
    held = [getattr(each.data.rows, "features", each.data.rows) for each in (sparse, dense)]
    assert [isinstance(rows, Nonzeros) for rows in held] == [True, False]
    return sparse, dense


@pytest.mark.parametrize(
    ("name", "intercept"),
    [("softmax", False), ("softmax", True), ("logistic", True), ("linear", True)],
)
def test_sparse_rows_change_nothing(name, intercept, monkeypatch, rng):
    sparse, dense = with_sparse_rows(monkeypatch, name, intercept=intercept)
    x = rng.normal(size=sparse.dimension)
    assert sparse.loss(x) == pytest.approx(dense.loss(x), rel=1e-13)
    assert np.abs(sparse.local_grads(x) - dense.local_grads(x)).max() < 1e-14
    for one, other in zip(rows_of(sparse), rows_of(dense), strict=True):
        assert_close(one.toarray(), other)


def test_softmax_runs_everywhere_as_it_does_by_hand():
    problem = peer.problems.softmax(classes().partition(4), intercept=True)
    method, options = (
        peer.methods.gt_hsgd(alpha=0.5, beta=0.1, batch=3),
        {"steps": 12, "precision": 64},
    )
    fast, slow = (
        peer.run(method, compiled(problem), RING, engine=engine, record=2, **options)
        for engine in ("stacked", "debug")
    )
    assert_close(fast.x, slow.x)
    table = peer.sweep("gt-hsgd[beta=0.1,batch=3]", {"alpha": [0.1, 0.5]}, problem, RING, **options)
    assert table["loss"].iloc[-1] == pytest.approx(fast.table["loss"].iloc[-1], rel=1e-12)


def sample_gradients(problem, x):
    """The gradients (m, p) of all rows of node 0."""
    with jax.enable_x64(True):
        held = jax.tree.map(lambda a: jnp.asarray(a[0]), problem.data)
        return np.asarray(
            jax.vmap(lambda j: problem.oracle.grad(jnp.asarray(x), j[None], held))(
                jnp.arange(problem.sizes[0])
            )
        )


@pytest.mark.parametrize("name", MODELS)
def test_models_are_mean_squared_smooth_with_their_constant(name, rng):
    build, data, _ = MODELS[name]
    problem = build(data().partition(4), strength=0.1, intercept=True)
    L = theory.smoothness_of(problem)
    x, direction = rng.normal(size=(2, problem.dimension))
    at = sample_gradients(problem, x)
    for scale in (1e-3, 1.0, 10.0):
        change = np.sum((at - sample_gradients(problem, x + scale * direction)) ** 2, axis=1).mean()
        assert change <= L**2 * scale**2 * np.sum(direction**2) * (1 + 1e-9)
    # At its steepest the loss of a row has the curvature that the constant assumes.
    loss = problem.oracle.value_and_grad.loss
    with jax.enable_x64(True):
        z, s = jnp.linspace(-3.0, 3.0, 4001)[:, None], 0.7
        z = jnp.concatenate([z, -z], axis=1) if name == "softmax" else z[:, 0]
        slopes = np.asarray(loss.slope(z, jnp.zeros(len(z), int), s))
    steepest = np.abs(np.diff(slopes, axis=0)).reshape(len(slopes) - 1, -1)
    moves = np.abs(np.diff(np.asarray(z), axis=0)).reshape(len(slopes) - 1, -1)
    ratio = np.linalg.norm(steepest, axis=1) / np.linalg.norm(moves, axis=1)
    assert ratio.max() == pytest.approx(loss.curvature(s), rel=1e-3)


def test_softmax_has_an_l1_term_and_variances(rng):
    problem = peer.problems.softmax(classes().partition(4), strength=0.1)
    x = rng.normal(size=15)
    at, (spread, error) = sample_gradients(problem, x), variances(problem, x)
    assert spread[0] == pytest.approx(np.sum((at - at.mean(axis=0)) ** 2) / 12, rel=1e-12)
    assert not error.any()
    best = peer.problems.optimum(peer.problems.composite(problem, l1=0.05), starts=1)
    assert best.grad_norm < 1e-5
    assert 0 < np.count_nonzero(np.abs(best.x) > 1e-9) < 15


def test_the_constant_of_softmax_is_attained():
    """One row of norm 5 and two classes: along e_1 - e_2, the slope at 0 is 25 / 2."""
    data = peer.datasets.Dataset([[3.0, 4.0], [1.0, 0.0]], [0, 1], "two")
    problem = peer.problems.softmax(data.partition(2, indices=[[0], [1]]), strength=0.0)
    step = 1e-4 * np.outer([3.0, 4.0], [1.0, -1.0]).ravel()
    slope = np.linalg.norm(
        problem.local_grads(step)[0] - problem.local_grads(0 * step)[0]
    ) / np.linalg.norm(step)
    assert theory.smoothness_of(problem) == pytest.approx(slope, rel=1e-4) == 12.5


def test_test_accuracy_is_one_line():
    data = peer.datasets.load("digits", labels="classes")
    train = peer.datasets.Dataset(data.features[:1400], data.labels[:1400], "digits")
    for intercept in (False, True):
        problem = peer.problems.softmax(train.partition(4, by="label"), intercept=intercept)
        test = peer.accuracy(problem.predict, data.features[1400:], data.labels[1400:])
        method = peer.methods.gt_dsgd(alpha=4, batch=16)
        trace = peer.run(method, problem, RING, epochs=40, record=2, metrics=[test])
        assert trace.table["test accuracy"].iloc[-1] > 0.85


def test_predictions_of_the_vector_of_a_run(rng):
    pick = {"logistic": binary(), "softmax": classes(), "perceptron": classes(), "pca": classes()}
    for name, data in pick.items():
        for options in [{}, {"intercept": True}] if name in ("logistic", "softmax") else [{}]:
            problem = getattr(peer.problems, name)(data.partition(4), **options)
            x = rng.normal(size=problem.dimension)
            params = x if problem.unflatten is None else problem.unflatten(x)
            assert np.array_equal(
                problem.predict(x, data.features), problem.predict(params, data.features)
            ), name


@pytest.mark.parametrize(("data", "activation"), [(binary(), "tanh"), (classes(), "relu")])
def test_a_perceptron_is_what_its_docstring_says(data, activation, rng):
    problem = peer.problems.perceptron(data.partition(4), [3, 2], activation)
    x = problem.start + 0.1 * rng.normal(size=problem.dimension)
    a = np.tanh if activation == "tanh" else lambda z: np.maximum(z, 0)
    hidden, layers = data.features.astype(float), problem.unflatten(x)
    for layer in layers[:-1]:
        hidden = a(hidden @ layer.weights + layer.intercept)
    scores = hidden @ layers[-1].weights + layers[-1].intercept
    loss = logistic_loss if data.labels.min() < 0 else cross_entropy
    assert problem.loss(x) == pytest.approx(loss(scores, data.labels).mean(), rel=1e-12)
    assert_close(problem.predict(layers, data.features.astype(float)), scores, 1e-5)
    assert not any(layer.intercept.any() for layer in problem.unflatten(problem.start))
    again = peer.problems.perceptron(data.partition(4), [3, 2], activation, seed=1)
    assert again.oracle == problem.oracle, "equal networks share compiled programs"
    assert not np.array_equal(again.start, problem.start)


def test_a_class_that_no_row_has_keeps_its_score():
    """Rows of a data set may have fewer classes than the whole; test rows may have all."""
    some = classes()[np.flatnonzero(classes().labels < 2)]
    assert peer.problems.softmax(some.partition(4)).unflatten(np.zeros(15)).shape == (5, 3)
    assert peer.problems.perceptron(some.partition(4)).unflatten.shapes[-1] == (3,)


def test_a_perceptron_learns():
    data = peer.datasets.load("digits", labels="classes")
    problem = peer.problems.perceptron(data.partition(4, by="label"), [16])
    test = peer.accuracy(problem.predict, data.features, data.labels)
    trace = peer.run(
        peer.methods.gt_dsgd(alpha=1.0, batch=16),
        problem,
        RING,
        epochs=20,
        record=1,
        metrics=[test],
    )
    assert trace.table["test accuracy"].iloc[-1] > 0.8


def test_an_intercept_is_no_column_that_the_kernel_would_regularise():
    from peerdescent.engines.gpu import kernel

    partition = peer.datasets.synthetic(24, 5, seed=1).partition(4)
    single = np.dtype("float32")
    assert kernel.supports(peer.methods.gt_dsgd(), peer.problems.logistic(partition), RING, single)
    for other in (
        peer.problems.logistic(partition, intercept=True),
        peer.problems.softmax(classes().partition(4)),
    ):
        assert not kernel.supports(peer.methods.gt_dsgd(), other, RING, single)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: peer.problems.softmax(peer.datasets.load("digits").partition(4)),
            r"digits are -1 and \+1, and softmax needs classes 0, 1, 2, ...: use logistic or svm, or load it with "
            "labels='classes'",
        ),
        (
            lambda: peer.problems.softmax(
                peer.datasets.Dataset(np.eye(4), np.arange(4) / 3, "prices").partition(2)
            ),
            r"prices are real numbers, and softmax needs classes 0, 1, 2, ... or -1 and \+1: use linear or robust",
        ),
        (
            lambda: peer.problems.softmax(
                peer.datasets.Dataset(np.eye(4), [0, 0, 0, 0], "zeros").partition(2)
            ),
            "zeros has one class: give rows of two classes or more",
        ),
        (
            lambda: peer.problems.linear(classes().partition(4)),
            r"classes are classes 0, 1, 2, ..., and linear needs real numbers or -1 and \+1: use softmax or perceptron",
        ),
        (
            lambda: peer.problems.robust(real().partition(4), "hubr"),
            "unknown robust loss 'hubr': did you mean 'huber'",
        ),
        (lambda: peer.problems.robust(real().partition(4), scale=0), "scale = 0: must be positive"),
        (
            lambda: peer.problems.svm(binary().partition(4), smoothing=0.0),
            "smoothing = 0.0: must be positive",
        ),
        (
            lambda: peer.problems.svm(binary().partition(4), smoothing=np.inf),
            "smoothing = inf: must be positive and",
        ),
        (
            lambda: peer.problems.robust(real().partition(4), scale=np.inf),
            "scale = inf: must be positive and finite",
        ),
        (
            lambda: peer.problems.linear(real().partition(4), strength=np.inf),
            "strength = inf: must not be negative or",
        ),
        (
            lambda: peer.problems.perceptron(binary().partition(4), hidden=16),
            r"hidden = 16: .*hidden layer, as \[16\]",
        ),
        (lambda: peer.problems.svm(classes().partition(4)), "svm needs -1 and"),
        (
            lambda: peer.problems.pca(real().partition(4), 6),
            "components = 6: there are 5 features; take at most",
        ),
        (
            lambda: peer.problems.perceptron(real().partition(4)),
            "perceptron needs classes 0, 1, 2, ... or -1 and",
        ),
        (
            lambda: peer.problems.perceptron(binary().partition(4), activation="sin"),
            "unknown activation 'sin'",
        ),
        (
            lambda: peer.problems.perceptron(binary().partition(4), [0]),
            "hidden = 0: must be a whole number of at least",
        ),
        (
            lambda: peer.problems.softmax(classes()),
            "a Dataset is not shared over nodes: give a partition",
        ),
        (
            lambda: peer.problems.softmax(classes().partition(4), strength=-1),
            "strength = -1: must not be negative",
        ),
        (
            lambda: peer.problems.softmax(classes().partition(4), regulariser="l3"),
            "unknown regulariser 'l3'",
        ),
    ],
)
def test_what_a_model_cannot_use_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_one_class_is_named():
    data = peer.datasets.load((np.eye(4), ["survived"] * 4))
    with pytest.raises(
        ValueError, match="labels of data are all 'survived', and logistic needs two classes"
    ):
        peer.problems.logistic(data.partition(2))
