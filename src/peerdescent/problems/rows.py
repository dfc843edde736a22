"""The rows of all nodes as a problem holds them: dense or sparse, with targets or multiplied by labels of -1 and +1."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require, require_memory


class Partition(Protocol):
    """Labelled rows at every node. `peerdescent.datasets.Partition` is one."""

    @property
    def dataset(self) -> Any:
        """The data set, which has a name, labels, their kind and the classes that they stand for."""

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
    def names(self) -> tuple[Any, ...]:
        """What the nodes are called; empty if they have numbers only."""

    @property
    def described(self) -> Any:
        """What the rows are, without the rows."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines it, by name."""

    def stacked(self) -> tuple[Any, Any, Any]:
        """Features (n, m, p), labels (n, m) and sizes (n,)."""

    def nonzeros(self) -> tuple[Any, Any, Any, Any]:
        """Columns and values of nonzeros (n, m, k), labels (n, m) and sizes (n,)."""


LABELS = {
    "binary": ("-1 and +1", "logistic or svm"),
    "classes": ("classes 0, 1, 2, ...", "softmax or perceptron"),
    "real": ("real numbers", "linear or robust"),
}
"""The kinds of labels: what they are, and the problems that are for them."""


def check_labels(kind: str, partition: Partition, needed: tuple[str, ...]) -> None:
    """Refuse data that are not shared over nodes, and labels that a kind of problem cannot use."""
    shared = hasattr(partition, "stacked")
    require(
        shared,
        f"a {type(partition).__name__} is not shared over nodes: give a partition, as data.partition(20)",
    )
    found = partition.dataset.kind
    classes = partition.dataset.classes
    require(
        found in needed or needed[0] != "binary" or len(classes) != 1,
        f"labels of {partition.dataset.name} are all {next(iter(classes), None)!r}, and {kind} needs two classes: give "
        "rows of both",
    )
    wanted = " or ".join(LABELS[each][0] for each in needed)
    require(
        found in needed,
        f"labels of {partition.dataset.name} are {LABELS[found][0]}, and {kind} needs {wanted}: use "
        f"{LABELS[found][1]}, or load it with "
        + (
            "positive=, the classes that become +1"
            if needed[0] == "binary"
            else f"labels={needed[0]!r}"
        ),
    )
    require(
        found == needed[0] or needed[0] != "real" or set(map(str, classes)) == {"-1", "1"},
        f"labels of {partition.dataset.name} are -1 and +1 for {' and '.join(map(repr, classes))}, and {kind} would "
        f"fit -1 and +1: load it with labels='real', or use {LABELS['binary'][1]}",
    )


SPARSE_BELOW = 20
"""Rows are stored sparse if even the fullest row has less than one nonzero per this many columns."""

VECTORS = 25
"""Vectors of one number per node and parameter that a run has in memory: iterates, gradients, what a record needs."""


class Nonzeros(NamedTuple):
    """Sparse rows (m, p), as the columns (m, k) and values (m, k) of their nonzeros."""

    columns: Any
    values: Any


class Labelled(NamedTuple):
    """Rows, dense or sparse, and what is to be predicted of each (m,)."""

    features: Any
    targets: Any


def times(rows: Any, x: jax.Array) -> jax.Array:
    """The products of rows (m, p) with x, (p,) or (p, c)."""
    if isinstance(rows, Nonzeros):
        return (_beside(rows.values, x) * x[rows.columns]).sum(axis=1)
    return rows @ x


def transposed_times(rows: Any, slopes: jax.Array, x: jax.Array) -> jax.Array:
    """The sum over rows of slope times row, of the form of x; slopes are (m,) or (m, c)."""
    if isinstance(rows, Nonzeros):
        return jnp.zeros_like(x).at[rows.columns].add(slopes[:, None] * _beside(rows.values, x))
    return (slopes.T @ rows).T


def _beside(values: jax.Array, x: jax.Array) -> jax.Array:
    """Values (m, k) with another axis of length 1 if x is a matrix."""
    return values if x.ndim == 1 else values[..., None]


def shared_rows(partition: Partition, outputs: int, intercept: bool) -> tuple[Any, Any, Any]:
    """The rows of a partition, dense or sparse as they are smaller, their labels (n, m) and the sizes (n,).

    Args:
        partition: The rows of each node.
        outputs: How many parameters there are for each feature; refused if memory is too small for
            them.
        intercept: Whether rows get one more feature, the last, that is always 1.

    Returns:
        Features (n, m, p) or `Nonzeros`, labels and sizes.
    """
    require_memory(
        f"a run on {partition.dataset.name} with {partition.dimension * outputs:,} "
        f"{'features' if outputs == 1 else 'parameters'} at {partition.nodes:,} nodes",
        VECTORS * 4.0 * partition.nodes * partition.dimension * outputs,
        "use fewer nodes, or number the features without gaps",
    )
    if partition.widest * SPARSE_BELOW < partition.dimension:
        columns, values, labels, sizes = partition.nonzeros()
        if intercept:
            columns, values = _with_last(columns, partition.dimension), _with_last(values, 1)
        return Nonzeros(columns, values), labels, sizes
    values, labels, sizes = partition.stacked()
    return _with_last(values, 1) if intercept else values, labels, sizes


def _with_last(a: np.ndarray, entry: int) -> np.ndarray:
    """An array (n, m, k) with one more entry in its last axis."""
    return np.concatenate([a, np.full((*a.shape[:-1], 1), entry, a.dtype)], axis=-1)


def signed(rows: Any, labels: np.ndarray) -> Any:
    """The products of rows and labels of -1 and +1."""
    values = rows.values if isinstance(rows, Nonzeros) else rows
    values = values * labels[..., None].astype(values.dtype)
    return rows._replace(values=values) if isinstance(rows, Nonzeros) else values
