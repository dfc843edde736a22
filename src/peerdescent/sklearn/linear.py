"""Linear models with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from peerdescent.datasets.dataset import Dataset
from peerdescent.datasets.partitions import Partition
from peerdescent.errors import require, whole
from peerdescent.methods.contract import Method
from peerdescent.methods.selectors import parse, split
from peerdescent.networks import topology
from peerdescent.networks.network import Network
from peerdescent.problems import classification, regression
from peerdescent.problems.linear_models import Affine
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import total_steps
from peerdescent.runs.costs import Costs
from peerdescent.runs.loop import run
from peerdescent.runs.schedule import Grid
from peerdescent.runs.trace import Status
from peerdescent.schedules import cosine
from peerdescent.theory.assumptions import smoothness_of

NODES = 10
"""The default number of nodes."""

LEAST = 1000
"""The fewest iterations of a fit: few rows at a node would make an epoch of few."""

RECORDS = 20
"""Records of `trace_`."""

WIDE = 32
"""Up to this many features, their number is rounded up to a power of two, so that fits share compiled programs."""


class Decentralized(BaseEstimator):  # type: ignore[misc]
    """What the estimators have in common: nodes, the network, the method, and the fit of a linear model."""

    def __init__(
        self,
        method: str | Method = "gt-dsgd",
        network: Any = "exponential",
        nodes: int | None = None,
        *,
        step_size: Any = None,
        epochs: float = 100,
        strength: float = 1e-4,
        regulariser: str = "l2",
        fit_intercept: bool = True,
        scale: bool = True,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.network = network
        self.nodes = nodes
        self.step_size = step_size
        self.epochs = epochs
        self.strength = strength
        self.regulariser = regulariser
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Sparse rows will do."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _fit(
        self, X: Any, labels: np.ndarray, groups: Any, build: Callable[..., Problem]
    ) -> tuple[Any, Any]:
        """Train; the weights (p,) or (p, c) and the intercept, for rows as they are given."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        mean, spread = self._scales(X)
        rows = X.multiply(1 / spread).tocsr() if sparse.issparse(X) else (X - mean) / spread
        data = Dataset(_widened(rows), labels, "X")
        partition, self.network_ = self._shared(data, groups, seed)
        problem = _lengthened(
            build(partition, self.strength, self.regulariser, bool(self.fit_intercept))
        )
        method = parse(self.method) if isinstance(self.method, str) else self.method
        require(
            isinstance(method, Method),
            f"method = {method!r}: give a name such as 'gt-hsgd', or a Method",
        )
        costs = Costs.of(method, problem, self.network_)
        steps = max(LEAST, total_steps(costs, problem, None, self.epochs))
        method = self._with_step_size(method, problem, steps)
        records = Grid(RECORDS, stationarity=False)
        trace = run(
            method, problem, self.network_, steps=steps, seed=seed, record=records, progress=False
        )
        if trace.status == Status.interrupted:
            raise KeyboardInterrupt
        require(
            trace.status == Status.done, f"the fit diverged with {method}: give a smaller step_size"
        )
        self.method_, self.n_iter_, self.trace_ = str(method), trace.steps, trace
        x = trace.x_mean.astype(float)
        model = x if problem.unflatten is None else problem.unflatten(x)
        weights, intercept = (
            model if isinstance(model, Affine) else (model, np.zeros(model.shape[1:]))
        )
        weights = (weights[: X.shape[1]].T / spread).T
        return weights, intercept - mean @ weights

    def _scales(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from features, and what they are then divided by."""
        nothing, one = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if not self.scale:
            return nothing, one
        if sparse.issparse(X):
            return nothing, MaxAbsScaler().fit(X).scale_
        scaler = StandardScaler(with_mean=bool(self.fit_intercept)).fit(X)
        return scaler.mean_ if self.fit_intercept else nothing, scaler.scale_

    def _shared(self, data: Dataset, groups: Any, seed: int) -> tuple[Partition, Network]:
        """The rows of each node, and the network."""
        known = self.network if isinstance(self.network, Network) else None
        if known is None and not isinstance(self.network, str) and not callable(self.network):
            known = Network(self.network)
        given = None if self.nodes is None else whole("nodes", self.nodes, least=1)
        require(
            known is None or given in (None, known.n),
            f"nodes = {given} with a network of {known and known.n}, which are the nodes: leave nodes out",
        )
        if groups is not None:
            check_consistent_length(data.labels, groups)
            # by position, as scikit-learn takes X and y
            partition = data.partition(given, groups=np.asarray(groups))
        else:
            nodes = min(given or NODES, len(data)) if known is None else known.n
            require(
                nodes <= len(data),
                f"a network of {nodes} nodes for {len(data)} rows: give a smaller one",
            )
            shuffled = np.random.default_rng(seed).permutation(len(data))
            partition = data.partition(indices=np.array_split(shuffled, nodes))
        if known is None:
            name = self.network
            built = (
                topology.build(name, partition.nodes)
                if isinstance(name, str)
                else name(partition.nodes)
            )
            known = built if isinstance(built, Network) else Network(built)
        require(
            known.n == partition.nodes,
            f"a network of {known.n} nodes for {partition.nodes} groups: give one of as many nodes, or its name",
        )
        return partition, known

    def _with_step_size(self, method: Method, problem: Problem, steps: int) -> Method:
        """The method with the step size that is given, or with one that falls from 1 / L to 0."""
        name = method.step_size
        if self.step_size is not None:
            require(name is not None, f"{method.name} has no step size: leave step_size out")
            return method.replace(**{str(name): self.step_size})
        is_given = not isinstance(self.method, str) or name in split(self.method)[1]
        if is_given or name is None or any(getattr(part, "unit", False) for part in method.parts):
            return method
        return method.replace(**{name: cosine(steps) * (1 / smoothness_of(problem))})


def _widened(X: Any) -> Any:
    """The same rows with more features, which are 0, if there are few."""
    count = X.shape[1]
    width = max(8, 1 << (count - 1).bit_length()) if count <= WIDE else count
    if sparse.issparse(X):
        return sparse.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], width))
    return np.pad(X, ((0, 0), (0, width - count)))


def _lengthened(problem: Problem) -> Problem:
    """The same problem with room for more rows: folds of nearly the same size then share compiled programs."""
    held = problem.data
    most = int(held.size.max())
    step = max(16, 1 << max(0, most.bit_length() - 3))
    more = -most % step

    def longer(a: np.ndarray) -> np.ndarray:
        return np.pad(a, [(0, 0), (0, more), *((0, 0) for _ in a.shape[2:])])

    rows = held.rows
    rows = type(rows)(*map(longer, rows)) if isinstance(rows, tuple) else longer(rows)
    return replace(problem, data=held._replace(rows=rows))


class DecentralizedClassifier(ClassifierMixin, Decentralized):  # type: ignore[misc]
    """A linear classifier that nodes train together, each with rows of its own, and none seeing those of others.

    Logistic regression for two classes and softmax regression for more, with an intercept and an l2
    term. A fit is a simulation: `peerdescent.run` in this process.

    Args:
        method: The name of a method, as "gt-dsgd" or "gt-hsgd[batch=4]", or a `peer.Method`.
        network: The name of a topology, as "ring"; a function that makes a graph of a number of
            nodes; or a `peer.Network` or graph.
        nodes: The number of nodes over which rows are shared uniformly, at most one per row; by
            default 10. If `fit` is given groups, or `network` is a network, those have the number,
            and another one is refused.
        step_size: The step size, a number or a schedule. By default it falls from 1 / L to 0 as a
            cosine, with the smoothness L of the problem that `theory.smoothness_of` finds, unless
            `method` has one in brackets or is a `peer.Method`. Methods whose directions are of unit
            size, as Adam's, have their own default.
        epochs: The length of a fit, in passes over the rows of a node; no fewer than 1,000
            iterations.
        strength: The weight of the regulariser.
        regulariser: "l2", "nonconvex" or "none".
        fit_intercept: Whether there is an intercept. It is not regularised.
        scale: Whether features are scaled for the fit: to mean 0 (with an intercept) and variance
            1, and sparse ones to a largest magnitude of 1. `coef_` and `intercept_` are for
            features as they are given. Between machines, this takes two sums over all rows, or a
            maximum.
        random_state: For samples, and for who has which rows.

    Attributes:
        classes_: The labels.
        coef_: The weights, (1, features) for two classes or (classes, features).
        intercept_: The intercepts, (1,) or (classes,).
        network_: The network.
        method_: The method with its hyperparameters, as text.
        trace_: The trace of the run, of scaled features: `trace_.table` has the loss over epochs,
            rounds and bytes.
        n_iter_: The number of iterations.
        n_features_in_: The number of features.
        feature_names_in_: Their names, if X has any.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = DecentralizedClassifier(random_state=0).fit(X[:400], y[:400])
    >>> model.score(X[400:], y[400:]) > 0.95
    True
    >>> model.network_
    Network(exponential, n=10, lazy weights, lam=0.667)
    """

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> DecentralizedClassifier:
        """Train on rows X (rows, features), dense or sparse, with labels y.

        Args:
            X: The rows.
            y: Their labels, of any two or more values.
            groups: Whose row each is, such as the hospital or the device: every value is a node.

        Returns:
            This estimator.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1,
            f"y has one class, {self.classes_[0]!r}: give rows of two classes or more",
        )
        if len(self.classes_) == 2:
            weights, intercept = self._fit(X, codes * 2.0 - 1, groups, classification.logistic)
        else:
            weights, intercept = self._fit(X, codes, groups, classification.softmax)
        self.coef_, self.intercept_ = np.atleast_2d(weights.T), np.atleast_1d(intercept)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores (rows, classes); of two classes (rows,), above 0 for the second."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The labels of rows."""
        scores = self.decision_function(X)
        return self.classes_[
            (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        ]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of all classes (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return softmax(scores, axis=1)


class DecentralizedRegressor(RegressorMixin, Decentralized):  # type: ignore[misc]
    """Linear least squares that nodes fit together, each with rows of its own; ridge regression with a strength.

    All is as for `DecentralizedClassifier`, but for the targets, which are numbers. With `scale`,
    they too are scaled, to mean 0 and variance 1, for the fit.

    Attributes:
        coef_: The weights (features,).
        intercept_: The intercept.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DecentralizedRegressor(network="ring", random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.45
    True
    """

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> DecentralizedRegressor:
        """Train on rows X (rows, features), dense or sparse, with targets y; a node for each value of `groups`."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        spread = float(y.std()) or 1.0 if self.scale else 1.0
        mean = float(y.mean()) if self.scale and self.fit_intercept else 0.0
        weights, intercept = self._fit(X, (y - mean) / spread, groups, regression.linear)
        self.coef_, self.intercept_ = weights * spread, float(intercept * spread + mean)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predictions for rows."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        predicted: np.ndarray = X @ self.coef_ + self.intercept_
        return predicted
