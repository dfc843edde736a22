"""Classifiers: logistic regression, with the paper's non-convex regulariser, softmax regression, SVM, perceptron."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require, unknown, whole
from peerdescent.problems.custom import loss
from peerdescent.problems.linear_models import Affine, linear_model, scores
from peerdescent.problems.losses import Logistic, Loss, SmoothHinge, Softmax
from peerdescent.problems.problem import Problem
from peerdescent.problems.rows import Partition, check_labels


def logistic(
    partition: Partition,
    strength: float = 1e-4,
    regulariser: str = "nonconvex",
    intercept: bool = False,
) -> Problem:
    """Logistic regression f_i(x) = mean_j log(1 + exp(-l_ij <x, theta_ij>)) + strength r(x).

    theta_ij are the features and l_ij the labels, -1 or +1. All nodes have the same r.

    Args:
        partition: The rows of each node, as from `data.partition(20)`.
        strength: The weight of the regulariser.
        regulariser: r(x): "nonconvex" for the paper's sum_k x_k^2 / (1 + x_k^2), "l2" for ||x||^2 /
            2, or "none".
        intercept: Whether to add a constant to <x, theta>. It is the last entry of x and not
            regularised.

    Returns:
        The problem. `problem.predict(params, features)` are the scores <x, theta>.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")
    >>> round(logistic(data.partition(10)).loss(np.zeros(64)), 6)
    0.693147
    """
    return linear_model("logistic", partition, Logistic(), strength, regulariser, intercept)


def softmax(
    partition: Partition, strength: float = 1e-4, regulariser: str = "l2", intercept: bool = False
) -> Problem:
    """Softmax regression f_i(X) = mean_j (log sum_c exp(<x_c, theta_ij>) - <x_y, theta_ij>) + strength r(X), y = l_ij.

    It is logistic regression for several classes: x_c, the column of class c of the matrix X (p,
    classes), gives its score. The parameters are X, flattened row by row to one vector x;
    `problem.unflatten(x)` is the matrix. Labels l_ij are 0, 1, ..., classes - 1. Labels -1 and +1
    of two classes are taken as 0 and 1; they are refused if one of them stands for several classes.

    Args:
        partition: The rows of each node, as from `load("digits", labels="classes").partition(20)`.
        strength: The weight of the regulariser.
        regulariser: r(X): "nonconvex", "l2" or "none", as in `logistic`, over all entries of X.
        intercept: Whether to add a constant to the score of each class. They are the last entries
            of x and not regularised; `problem.unflatten(x)` then has `weights` and `intercept`.

    Returns:
        The problem. `problem.predict(params, features)` are the scores (rows, classes).

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits", labels="classes")
    >>> problem = softmax(data.partition(10))
    >>> problem.dimension, problem.unflatten(np.zeros(640)).shape, round(problem.loss(np.zeros(640)), 6)
    (640, (64, 10), 2.302585)
    >>> test = peer.accuracy(problem.predict, data.features, data.labels)
    >>> network = peer.Network(peer.topology.ring(10))
    >>> trace = peer.run(peer.methods.gt_dsgd(alpha=4, batch=8), problem, network, epochs=20, metrics=[test])
    >>> bool(trace.table["test accuracy"].iloc[-1] > 0.9)
    True
    """
    check_labels("softmax", partition, Softmax.labels + Logistic.labels)
    data = partition.dataset
    if data.kind == "binary" and not any(isinstance(each, tuple) for each in data.classes):
        data = replace(data, labels=(data.labels > 0).astype(int))
        partition = replace(partition, dataset=data)  # type: ignore[type-var]
    return linear_model(
        "softmax",
        partition,
        Softmax(),
        strength,
        regulariser,
        intercept,
        outputs=_classes(partition),
    )


def svm(
    partition: Partition,
    strength: float = 1e-4,
    regulariser: str = "l2",
    intercept: bool = False,
    smoothing: float = 1.0,
) -> Problem:
    """A support vector machine f_i(x) = mean_j s h((1 - l_ij <x, theta_ij>) / s) + strength r(x), with a smooth hinge.

    h(u) = 0 for u <= 0, u^2 / 2 up to 1, and u - 1/2 above. With a smaller s, `smoothing`, it is
    closer to the hinge max(0, 1 - l <x, theta>), from which it differs by s / 2 at most, and L = 1
    / s of a row of norm 1 is larger.

    Args:
        partition: The rows of each node, with labels -1 and +1, as from `data.partition(20)`.
        strength: The weight of the regulariser.
        regulariser: r(x): "nonconvex", "l2" or "none", as in `logistic`.
        intercept: Whether to add a constant to <x, theta>. It is the last entry of x and not
            regularised.
        smoothing: s.

    Returns:
        The problem. `problem.predict(params, features)` are the scores <x, theta>.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")
    >>> problem = svm(data.partition(10))
    >>> round(problem.loss(np.zeros(64)), 6)
    0.5
    >>> scores = problem.predict(peer.problems.optimum(problem, starts=1).x, data.features)
    >>> bool(np.mean((scores > 0) == (data.labels > 0)) > 0.85)
    True
    """
    require(
        0 < smoothing < math.inf,
        f"smoothing = {smoothing}: must be positive and finite; small is close to the hinge",
    )
    return linear_model(
        "svm", partition, SmoothHinge(), strength, regulariser, intercept, scale=smoothing
    )


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}


@dataclass(frozen=True)
class Perceptron:
    """A neural network of layers that are all connected, and its loss. Layers are `Affine`."""

    loss: Loss
    activation: str

    def predict(self, params: Any, features: Any) -> Any:
        """The scores of rows, (m,) for two labels or (m, classes)."""
        *inner, last = params
        for layer in inner:
            features = ACTIVATIONS[self.activation](scores(layer, features))
        return scores(last, features)

    def __call__(self, params: Any, batch: Any) -> Any:
        """The mean loss of a batch."""
        found, labels = self.predict(params, batch[0]), batch[1]
        return jnp.mean(self.loss.value(found * labels if self.loss.signed else found, labels))


def perceptron(
    partition: Partition, hidden: Sequence[int] = (32,), activation: str = "tanh", seed: int = 0
) -> Problem:
    """A neural network that classifies: layers z -> a(W z + b), and a last one without a, whose outputs are scores.

    f_i is the mean over rows of the cross-entropy of `softmax` at these scores; for labels of -1
    and +1 there is one score, and the loss is that of `logistic`. Other networks are a few lines
    with `problems.loss`.

    Args:
        partition: The rows of each node, as from `load("digits", labels="classes").partition(20)`;
            they become dense.
        hidden: The widths of the hidden layers.
        activation: a: "tanh" or "relu".
        seed: For the default x_0: b = 0, and W Gaussian with variance 1 / (width of its input).

    Returns:
        The problem. `problem.unflatten(x)` are the layers, each with `weights` and `intercept`, and
        `problem.predict(layers, features)` are the scores.

    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits", labels="classes")
    >>> problem = perceptron(data.partition(10), hidden=[16])
    >>> [layer.weights.shape for layer in problem.unflatten(problem.start)]
    [(64, 16), (16, 10)]
    """
    check_labels("perceptron", partition, Softmax.labels + Logistic.labels)
    require(
        np.ndim(hidden) == 1,
        f"hidden = {hidden!r}: give the width of each hidden layer, as [16] or [32, 16]",
    )
    widths = [partition.dimension, *(whole("hidden", width, least=1) for width in hidden)]
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    is_binary = partition.dataset.kind == "binary"
    outputs = () if is_binary else (_classes(partition),)
    random = np.random.default_rng(whole("seed", seed, least=0))
    shapes = [*(((k,), (m,)) for k, m in pairwise(widths)), ((widths[-1],), outputs)]
    params = tuple(Affine(random.normal(size=k + m) / k[0] ** 0.5, np.zeros(m)) for k, m in shapes)
    model = Perceptron(Logistic() if is_binary else Softmax(), activation)
    name = f"perceptron({', '.join([partition.dataset.name, *map(str, widths[1:])])})"
    return replace(loss(model, params, partition, name), predict=model.predict)


def _classes(partition: Partition) -> int:
    count = len(partition.dataset.classes)
    require(count > 1, f"{partition.dataset.name} has one class: give rows of two classes or more")
    return count
