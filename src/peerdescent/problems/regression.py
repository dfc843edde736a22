"""Binary logistic regression, with the paper's non-convex regulariser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse as scipy_sparse

from peerdescent.errors import require, require_memory, unknown
from peerdescent.problems.finite_sum import FiniteSum, Held
from peerdescent.problems.problem import Problem


class Partition(Protocol):
    """Labelled rows at every node. `peerdescent.datasets.Partition` is one."""

    @property
    def dataset(self) -> Any:
        """The data set, which has a name."""

    @property
    def dimension(self) -> int:
        """The number of features."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""

    @property
    def widest(self) -> int:
        """The largest number of nonzeros in a row."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines it, by name."""

    def stacked(self) -> tuple[Any, Any, Any]:
        """Features (n, m, p), labels (n, m) and sizes (n,)."""

    def nonzeros(self) -> tuple[Any, Any, Any, Any]:
        """Columns and values of nonzeros (n, m, k), labels (n, m) and sizes (n,)."""


def bounded(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """sum_k x_k^2 / (1 + x_k^2) and its gradient: non-convex, 2-smooth, between 0 and p."""
    scale = 1 / (1 + x * x)
    return jnp.sum(x * x * scale), 2 * x * scale * scale


def squared(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """||x||^2 / 2 and its gradient."""
    return 0.5 * jnp.sum(x * x), x


SPARSE_BELOW = 20
"""Rows are stored sparse if even the fullest row has less than one nonzero per this many columns."""


class Nonzeros(NamedTuple):
    """Sparse rows (m, p), as the columns (m, k) and values (m, k) of their nonzeros."""

    columns: Any
    values: Any


VECTORS = 25
"""Vectors of one number per node and feature that a run needs memory for: iterates, gradients, what a record needs."""

REGULARISERS = {"nonconvex": bounded, "l2": squared, "none": None}
CURVATURES = {"nonconvex": 2.0, "l2": 1.0, "none": 0.0}
"""The smoothness constant of each regulariser."""


def logistic(partition: Partition, strength: float = 1e-4, regulariser: str = "nonconvex") -> Problem:
    """Logistic regression f_i(x) = mean_j log(1 + exp(-l_ij <x, theta_ij>)) + strength r(x).

    theta_ij are the features and l_ij the labels, -1 or +1. All nodes have the same r.

    Args:
        partition: The rows of each node, as from `data.partition(20)`.
        strength: The weight of the regulariser.
        regulariser: r(x): "nonconvex" for the paper's sum_k x_k^2 / (1 + x_k^2), "l2" for ||x||^2 / 2, or "none".

    Returns:
        The problem.

    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")
    >>> round(logistic(data.partition(10)).loss(np.zeros(64)), 6)
    0.693147
    """
    if regulariser not in REGULARISERS:
        raise unknown("regulariser", regulariser, REGULARISERS)
    require(strength >= 0, f"strength = {strength}: must not be negative")
    shared = hasattr(partition, "stacked")
    require(shared, f"a {type(partition).__name__} is not shared over nodes: give a partition, as data.partition(20)")
    require_memory(
        f"a run on {partition.dataset.name} with {partition.dimension:,} features at {partition.nodes:,} nodes",
        VECTORS * 4.0 * partition.nodes * partition.dimension,
        "use fewer nodes, or number the features without gaps",
    )
    sparse = partition.widest * SPARSE_BELOW < partition.dimension
    if sparse:
        columns, values, labels, sizes = partition.nonzeros()
    else:
        values, labels, sizes = partition.stacked()
    require(
        bool(np.isin(labels, (-1, 1)).all()),
        f"labels of {partition.dataset.name} are not -1 and +1: load it with labels='binary', or map them",
    )
    # The cost depends on the product of label and features only, so that product is stored.
    values = values * labels[..., None].astype(values.dtype)
    return Problem(
        name=f"logistic({partition.dataset.name}{'' if regulariser == 'nonconvex' else ', ' + regulariser})",
        oracle=_ORACLES[regulariser],
        data=Held(Nonzeros(columns, values) if sparse else values, sizes, np.full(len(sizes), strength)),
        nodes=len(sizes),
        dimension=partition.dimension,
        sizes=sizes,
        about={**partition.facts, "strength": float(strength), "regulariser": regulariser},
    )


def rows_of(problem: Problem) -> Iterator[Any]:
    """The products of label and features (m_i, p) of each node in turn, without padding; dense or SciPy sparse."""
    held = problem.data
    for node, size in enumerate(held.size.tolist()):
        own = jax.tree.map(lambda a, node=node, size=size: np.asarray(a[node, :size]), held.rows)
        if isinstance(own, Nonzeros):
            starts = np.arange(size + 1) * own.columns.shape[1]
            shape = (size, problem.dimension)
            yield scipy_sparse.csr_array((own.values.ravel().astype(float), own.columns.ravel(), starts), shape=shape)
        else:
            yield own.astype(float)


@dataclass(frozen=True)
class Logistic(FiniteSum):
    """The oracle. `slope` and `regulariser` let an engine compute its gradients with code of its own."""

    regulariser: Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None = None
    curvature: float = 0.0
    """The smoothness constant of the regulariser."""

    @staticmethod
    def slope(margin: jax.Array) -> jax.Array:
        """The derivative of log(1 + exp(-margin))."""
        return -jax.nn.sigmoid(-margin)


def _value_and_grad(
    x: jax.Array, rows: Any, weights: jax.Array | None, strength: jax.Array, regulariser: Any
) -> tuple[jax.Array, jax.Array]:
    sparse = isinstance(rows, Nonzeros)
    margin = (rows.values * x[rows.columns]).sum(axis=1) if sparse else rows @ x
    if weights is None:
        weights = jnp.full(margin.shape, 1 / margin.shape[0], x.dtype)
    value = _total(weights * jax.nn.softplus(-margin))
    slopes = weights * Logistic.slope(margin)
    grad = jnp.zeros_like(x).at[rows.columns].add(slopes[:, None] * rows.values) if sparse else slopes @ rows
    if regulariser is None:
        return value, grad
    r, slope = regulariser(x)
    return value + strength * r, grad + strength * slope


def _total(terms: jax.Array) -> jax.Array:
    """The sum, in groups of 32: one long float32 sum of 10,000 terms would be wrong in the fifth digit."""
    while terms.shape[0] > 32:
        padded = jnp.pad(terms, (0, -terms.shape[0] % 32))
        terms = jax.lax.optimization_barrier(padded.reshape(-1, 32).sum(axis=1))
    return terms.sum()


# One oracle object per regulariser, since compiled programs are cached by the oracle.
_ORACLES = {
    name: Logistic(partial(_value_and_grad, regulariser=r), regulariser=r, curvature=CURVATURES[name])
    for name, r in REGULARISERS.items()
}
