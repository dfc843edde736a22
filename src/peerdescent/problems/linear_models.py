"""Costs of linear models: (1/m) sum_j loss(<x, theta_j>, target_j) + strength r(x), with x a vector or a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from peerdescent.errors import require, unknown
from peerdescent.problems.custom import Unflatten
from peerdescent.problems.finite_sum import FiniteSum, Held
from peerdescent.problems.losses import Loss
from peerdescent.problems.problem import Problem
from peerdescent.problems.regularisers import REGULARISERS, Regulariser
from peerdescent.problems.rows import (
    Labelled,
    Nonzeros,
    Partition,
    check_labels,
    shared_rows,
    signed,
    times,
    transposed_times,
)


class Numbers(NamedTuple):
    """The numbers of a cost, one per node: the weight of the regulariser, and the scale of the loss if it has one."""

    strength: Any
    scale: Any = ()


class Affine(NamedTuple):
    """The parameters of a linear model with an intercept: weights (p,) or (p, c), and the intercept, () or (c,)."""

    weights: Any
    intercept: Any


def scores(params: Any, features: Any) -> Any:
    """What a linear model predicts of rows of features (m, p): (m,), or (m, c) if its weights are a matrix."""
    if isinstance(params, Affine):
        return features @ params.weights + params.intercept
    return features @ params


@dataclass(frozen=True)
class LinearModel:
    """The average loss of rows and its gradient. `loss` and `regulariser` let an engine use code of its own."""

    loss: Loss
    regulariser: Regulariser | None = None
    outputs: int | None = None
    """The number of columns of x as a matrix; None if x is a vector."""
    intercept: bool = False
    """Whether the last feature is always 1. Its parameters are not regularised."""

    def __call__(
        self, x: jax.Array, rows: Any, weights: jax.Array | None, numbers: Numbers
    ) -> tuple[jax.Array, jax.Array]:
        """Value and gradient at x (p,), for rows with these weights, or equal ones."""
        features, targets = rows if isinstance(rows, Labelled) else (rows, None)
        flat, x = x, x if self.outputs is None else x.reshape(-1, self.outputs)
        z = times(features, x)
        if weights is None:
            weights = jnp.full(z.shape[:1], 1 / z.shape[0], x.dtype)
        value = _total(weights * self.loss.value(z, targets, numbers.scale))
        slopes = (weights * self.loss.slope(z, targets, numbers.scale).T).T
        grad = transposed_times(features, slopes, x)
        if self.regulariser is not None:
            r, slope = self.regulariser(x[:-1] if self.intercept else x)
            slope = jnp.concatenate([slope, jnp.zeros_like(x[-1:])]) if self.intercept else slope
            value, grad = value + numbers.strength * r, grad + numbers.strength * slope
        return value, grad.reshape(flat.shape)


def linear_model(
    kind: str,
    partition: Partition,
    loss: Loss,
    strength: float,
    regulariser: str,
    intercept: bool,
    *,
    outputs: int | None = None,
    scale: float | None = None,
    named: Sequence[str] = (),
) -> Problem:
    """The problem of fitting a linear model.

    Args:
        kind: What the problem is called.
        partition: The rows of each node.
        loss: The loss of a row.
        strength: The weight of the regulariser.
        regulariser: Its name.
        intercept: Whether the model has one.
        outputs: The number of columns of its matrix of parameters; None if they are a vector.
        scale: That of the loss, if it has one.
        named: Options that its name shows.

    Returns:
        The problem.
    """
    if regulariser not in REGULARISERS:
        raise unknown("regulariser", regulariser, REGULARISERS)
    require(0 <= strength < math.inf, f"strength = {strength}: must not be negative or infinite")
    check_labels(kind, partition, loss.labels)
    features, labels, sizes = shared_rows(partition, outputs or 1, intercept)
    numbers = {"strength": float(strength), **({} if scale is None else {"scale": float(scale)})}
    width = partition.dimension + intercept
    shapes = (
        [(partition.dimension, outputs), (outputs,)] if outputs else [(partition.dimension,), ()]
    )
    structure = jax.tree.structure(Affine(0, 0) if intercept else 0)
    shown = {regulariser: bool(strength) and regulariser != "nonconvex", "intercept": intercept}
    options = [
        partition.dataset.name,
        *named,
        *(word for word, is_shown in shown.items() if is_shown),
    ]
    return Problem(
        name=f"{kind}({', '.join(options)})",
        oracle=FiniteSum(LinearModel(loss, REGULARISERS[regulariser], outputs, intercept)),
        # A cost that depends on the product of label and features only holds that product.
        data=Held(
            signed(features, labels) if loss.signed else Labelled(features, labels),
            sizes,
            Numbers(*(np.full(len(sizes), each) for each in numbers.values())),
        ),
        nodes=len(sizes),
        dimension=width * (outputs or 1),
        sizes=sizes,
        unflatten=Unflatten(structure, tuple(shapes[: 1 + intercept]))
        if outputs or intercept
        else None,
        predict=scores,
        names=partition.names,
        described=partition.described,
        about={**partition.facts, **numbers, "regulariser": regulariser},
    )


def _total(terms: jax.Array) -> jax.Array:
    """The sum, in groups of 32: one long float32 sum of 10,000 terms would be wrong in the fifth digit."""
    while terms.shape[0] > 32:
        padded = jnp.pad(terms, (0, -terms.shape[0] % 32))
        terms = jax.lax.optimization_barrier(padded.reshape(-1, 32).sum(axis=1))
    return terms.sum()


def model_of(problem: Problem) -> LinearModel | None:
    """The linear model of a problem, or None."""
    model = getattr(problem.oracle, "value_and_grad", None)
    return model if isinstance(model, LinearModel) else None


def scale_of(problem: Problem) -> float:
    """The scale of the loss of a linear model, 1 if it has none."""
    scale = problem.data.numbers.scale
    return float(scale[0]) if len(scale) else 1.0


def rows_of(problem: Problem) -> Iterator[Any]:
    """The rows (m_i, p) of each node in turn, times their labels if those are signs; dense or SciPy sparse."""
    held, model = problem.data, model_of(problem)
    assert model is not None
    rows = held.rows.features if isinstance(held.rows, Labelled) else held.rows
    for node, size in enumerate(held.size.tolist()):
        own = jax.tree.map(lambda a, node=node, size=size: np.asarray(a[node, :size]), rows)
        if isinstance(own, Nonzeros):
            starts = np.arange(size + 1) * own.columns.shape[1]
            entries = own.values.ravel().astype(float), own.columns.ravel(), starts
            yield sparse.csr_array(entries, shape=(size, problem.dimension // (model.outputs or 1)))
        else:
            yield own.astype(float)
