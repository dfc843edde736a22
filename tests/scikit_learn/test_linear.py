"""The estimators: scikit-learn's own checks, models that others find as well, groups, pipelines, searches, copies."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import peerdescent as peer
from peerdescent.sklearn import DecentralizedClassifier, DecentralizedRegressor
from small import assert_close, count_compilations

X, Y = load_iris(return_X_y=True)
FEW = {"epochs": 5, "nodes": 4, "random_state": 0}


@parametrize_with_checks([DecentralizedClassifier(), DecentralizedRegressor()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
def test_it_classifies_about_as_well_as_logistic_regression(load):
    rows, labels = load(return_X_y=True)
    train, test, y, unseen = train_test_split(rows, labels, random_state=0, stratify=labels)
    own = DecentralizedClassifier(random_state=0).fit(train, y)
    other = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(train, y)
    assert own.score(test, unseen) > other.score(test, unseen) - 0.015
    assert own.trace_.status.value == "done"
    assert own.n_iter_ == own.trace_.steps


def test_it_regresses_as_ridge_regression():
    rows, targets = load_diabetes(return_X_y=True)
    own = DecentralizedRegressor(random_state=0, strength=0.01).fit(rows, targets)
    other = make_pipeline(StandardScaler(), Ridge(alpha=0.01 * len(rows))).fit(rows, targets)
    assert own.score(rows, targets) == pytest.approx(other.score(rows, targets), abs=0.005)
    assert np.corrcoef(own.predict(rows), other.predict(rows))[0, 1] > 0.995


FEATURES = np.random.default_rng(0).normal(size=(400, 3))
SUM = FEATURES.sum(axis=1)


def test_weights_by_position_are_no_groups():
    with pytest.raises(TypeError, match="positional"):
        DecentralizedClassifier(**FEW).fit(X, Y, np.ones(len(X)))


QUIET = {
    "noise": (FEATURES, np.random.default_rng(1).normal(size=400), {}),
    "an offset": (FEATURES, 1000 + SUM, {"scale": False}),
    "a constant": (FEATURES, np.full(400, 5.0), {"scale": False}),
    "no intercept": (FEATURES, SUM, {"fit_intercept": False}),
    "no errors": (FEATURES, SUM, {"strength": 0}),
    "diabetes": (*load_diabetes(return_X_y=True), {}),
    "wine": (*load_wine(return_X_y=True), {}),
}


@pytest.mark.parametrize("name", QUIET)
def test_other_fits_are_quiet(name):
    rows, targets, options = QUIET[name]
    kind = DecentralizedClassifier if name == "wine" else DecentralizedRegressor
    assert kind(random_state=0, **options).fit(rows, targets).score(rows, targets) > (
        0 if name == "noise" else -1
    )


def test_the_coefficients_of_nearly_equal_features_may_be_far_off():
    """As the documentation says: predictions are right, so nothing is said."""
    noise = np.random.default_rng(0).normal(size=(400, 2))
    rows = np.column_stack([FEATURES[:, 0], FEATURES[:, 0] + 1e-2 * noise[:, 0], FEATURES[:, 2]])
    targets = rows @ [5, -5, 1.0] + 1e-2 * noise[:, 1]
    own = DecentralizedRegressor(random_state=0, strength=0).fit(rows, targets)
    assert own.score(rows, targets) > 0.99
    assert abs(own.coef_[0]) < 1


@pytest.mark.parametrize("labels", [Y, np.array(["no", "yes"])[(Y == 1).astype(int)]])
def test_the_model_is_that_of_the_run(labels):
    """Scores of rows as given are scores of scaled rows by the parameters that the run has found."""
    own = DecentralizedClassifier(**FEW).fit(X, labels)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    count = len(own.classes_) if len(own.classes_) > 2 else 1
    x = own.trace_.x_mean.astype(float).reshape(-1, count)
    scores = scaled @ x[:4] + x[-1]
    assert_close(own.decision_function(X).reshape(scores.shape), scores, 1e-10)
    assert not x[4:-1].any(), "features that fill up have no weight"
    chances = own.predict_proba(X)
    assert_close(chances.sum(axis=1), np.ones(len(X)))
    assert (own.classes_[chances.argmax(axis=1)] == own.predict(X)).all()
    assert own.coef_.shape == (count, 4)
    assert own.intercept_.shape == (count,)


def test_without_scale_and_intercept():
    own = DecentralizedClassifier(scale=False, fit_intercept=False, **FEW).fit(X, Y)
    assert_close(own.coef_.T, own.trace_.x_mean.reshape(-1, 3)[:4].astype(float))
    assert not own.intercept_.any()
    same = DecentralizedClassifier(scale=False, fit_intercept=False, **FEW).fit(
        sparse.csr_array(X), Y
    )
    assert_close(same.coef_, own.coef_)
    regressor = DecentralizedRegressor(fit_intercept=False, **FEW).fit(X, 5 + X[:, 0])
    assert regressor.intercept_ == 0


def test_sparse_rows_stay_sparse_and_are_scaled_by_their_largest():
    rows = (
        sparse.random_array((60, 900), density=0.01, rng=np.random.default_rng(0), format="csr")
        * 100
    )
    labels = np.arange(60) % 2
    own = DecentralizedClassifier(**FEW).fit(rows, labels)
    largest = abs(rows).max(axis=0).toarray().ravel()
    x = own.trace_.x_mean.astype(float)
    assert_close(
        own.decision_function(rows),
        rows.toarray() / np.where(largest, largest, 1) @ x[:-1] + x[-1],
        1e-10,
    )


def test_groups_are_nodes():
    hospitals = np.array(["Ulm", "Bern", "Graz"])[np.arange(len(X)) % 7 % 3]
    series = pd.Series(
        hospitals, index=np.arange(len(X))[::-1]
    )  # taken by position, as scikit-learn does
    own = DecentralizedClassifier(network="ring", **{**FEW, "nodes": None}).fit(X, Y, groups=series)
    assert own.network_.n == 3
    rows = (X - X.mean(axis=0)) / X.std(axis=0)
    data = peer.datasets.Dataset(rows, Y, "iris")
    indices = [np.flatnonzero(hospitals == name) for name in ("Bern", "Graz", "Ulm")]
    problem = peer.problems.softmax(data.partition(indices=indices), intercept=True)
    x = own.trace_.x_mean.reshape(-1, 3)
    assert problem.loss(x[[0, 1, 2, 3, -1]].ravel()) == pytest.approx(
        own.trace_.table["loss"].iloc[-1], rel=1e-5
    )
    for network in (peer.Network(peer.topology.ring(4)), peer.topology.ring(4)):
        with pytest.raises(
            ValueError, match="a network of 4 nodes for 3 groups: give one of as many nodes"
        ):
            DecentralizedClassifier(network=network).fit(X, Y, groups=hospitals)
    with pytest.raises(
        ValueError, match="groups has 3 different values, which are the nodes: leave out nodes=4"
    ):
        DecentralizedClassifier(nodes=4).fit(X, Y, groups=hospitals)
    with pytest.raises(
        ValueError, match="nodes = 4 with a network of 7, which are the nodes: leave nodes out"
    ):
        DecentralizedClassifier(nodes=4, network=peer.topology.ring(7)).fit(X, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        DecentralizedClassifier().fit(X, Y, groups=hospitals[:-1])


def shared(rows=X, labels=Y, **options):
    """The rows of each node and the network, of a fit without scaling."""
    own = DecentralizedClassifier(**{**FEW, **options})
    return own, *own._shared(peer.datasets.Dataset(rows, labels, "iris"), None, 0)


def test_networks_and_nodes():
    assert shared(network=peer.topology.star)[2].name == "star"
    assert shared(network=peer.topology.ring(7), nodes=None)[2].n == 7
    assert shared(nodes=None)[2].n == 10
    assert shared(X[:3], Y[:3])[2].n == 3, "no more nodes than rows"
    assert shared()[1].sizes.tolist() == [38, 38, 37, 37], "every row is at a node"
    with pytest.raises(ValueError, match="a network of 7 nodes for 3 rows: give a smaller one"):
        DecentralizedClassifier(network=peer.topology.ring(7)).fit(X[48:51], Y[48:51])
    with pytest.raises(ValueError, match="unknown topology 'rng'"):
        DecentralizedClassifier(network="rng").fit(X, Y)


def test_step_sizes():
    problem = peer.problems.softmax(shared()[1], 1e-4, intercept=True)

    def found(method, **options):
        own = DecentralizedClassifier(method, **options)
        return str(own._with_step_size(peer.methods.parse(str(method)), problem, 500))

    L = peer.theory.smoothness_of(problem)
    assert found("gt-dsgd") == f"gt-dsgd[batch=1,alpha={1 / L!r}*cosine(500,0),atc=True]"
    assert found("gt-dsgd", step_size=0.25) == "gt-dsgd[batch=1,alpha=0.25,atc=True]"
    assert found("dsgd[alpha=0.125]") == "dsgd[batch=1,alpha=0.125,atc=False]"
    assert found(peer.methods.d2(alpha=0.0625)) == "d2[batch=1,alpha=0.0625]"
    assert found("gt-adam") == str(peer.methods.gt_adam())
    with pytest.raises(
        ValueError, match=r"the fit diverged with gt-dsgd\[.*: give a smaller step_size"
    ):
        DecentralizedRegressor(step_size=1e4, **FEW).fit(X, Y)
    with pytest.raises(ValueError, match="method = 3: give a name such as 'gt-hsgd', or a Method"):
        DecentralizedClassifier(method=3).fit(X, Y)


def test_pipelines_searches_and_shared_programs():
    def search(rows, strength):
        return GridSearchCV(
            make_pipeline(StandardScaler(), DecentralizedClassifier(**FEW)),
            {
                "decentralizedclassifier__strength": [strength, 10.0],
                "decentralizedclassifier__epochs": [2, 40],
            },
            cv=3,
        ).fit(X[rows], Y[rows])

    found = search(slice(-1), 1e-4)
    assert found.best_params_["decentralizedclassifier__strength"] == 1e-4
    assert found.best_score_ > 0.9
    assert count_compilations(lambda: search(slice(1, None), 1e-3)) == 0, (
        "other rows and numbers share programs"
    )


def test_groups_in_cross_validation():
    groups = np.arange(len(X)) % 6
    with sklearn.config_context(enable_metadata_routing=True):
        own = DecentralizedClassifier(**FEW).set_fit_request(groups=True)
        found = cross_val_score(own, X, Y, cv=GroupKFold(3), params={"groups": groups})
    assert found.min() > 0.8


def test_copies():
    network = peer.Network(peer.topology.ring(4), faults=[peer.faults.drop(0.1)])
    own = DecentralizedClassifier(peer.methods.gt_dsgd(alpha=0.5), network, **FEW)
    again = pickle.loads(pickle.dumps(clone(own)))
    assert again.fit(X, Y).score(X, Y) == own.fit(X, Y).score(X, Y)
    assert_close(pickle.loads(pickle.dumps(own)).predict_proba(X), own.predict_proba(X))
    assert own.set_params(nodes=7).get_params()["nodes"] == 7


def test_seeds():
    one, same, other = (
        DecentralizedClassifier(**{**FEW, "random_state": k}).fit(X, Y).coef_ for k in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)
