"""A data set in memory, and its partition over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from peerdescent.digests import checksum
from peerdescent.errors import require, require_memory, unknown, whole

Features: TypeAlias = NDArray[np.float32] | csr_array

COPIES = 4
"""Copies of the stacked rows that a problem needs memory for: as they are, times labels, and on the device."""
PARTITIONS = ("uniform", "dirichlet", "label", "indices")


def generator(seed: int) -> np.random.Generator:
    """The random generator for a seed; it gives the same numbers on every machine."""
    return np.random.default_rng(whole("seed", seed, least=0))


def stored_values(features: Features) -> NDArray[Any]:
    """The stored numbers: all entries of a dense array, the nonzeros of a sparse one."""
    return features if isinstance(features, np.ndarray) else features.data


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set: features and labels.

    `features` is a float32 array (N, p) or a SciPy CSR array of that shape. `labels` has shape (N,): float32 with
    values -1 and +1 for binary sets, int64 for classes. Other number types are converted.

    >>> data = Dataset([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], [1.0, -1.0, 1.0], "tiny")
    >>> data
    Dataset('tiny', 3 rows x 2 features, 66.7% nonzero, labels -1: 33.3%, 1: 66.7%)
    >>> data.partition(3).sizes
    array([1, 1, 1])
    """

    features: Features
    labels: NDArray[Any]
    name: str
    about: dict[str, Any] = field(default_factory=dict)
    """Where it comes from: the facts that `load` knows; empty for a set that was made of arrays."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines the rows, by name: where they come from, or their checksum."""
        features = self.features
        parts = (features,) if isinstance(features, np.ndarray) else (features.data, features.indices, features.indptr)
        return self.about or {"rows": checksum(*parts, self.labels)}

    def __post_init__(self) -> None:
        """Convert to float32 and int64, and refuse shapes and values that no method could use."""
        features: Features
        if hasattr(self.features, "tocsr"):
            features = csr_array(self.features, dtype=np.float32)
        else:
            features = np.ascontiguousarray(self.features, dtype=np.float32)
        labels = np.asarray(self.labels)
        require(
            features.ndim == 2 and labels.ndim == 1 and len(labels) == features.shape[0] and min(features.shape) > 0,
            f"{self.name}: features of shape {features.shape} and labels of shape {labels.shape} do not fit: "
            "give (N, p) and (N,), with N and p at least 1",
        )
        require(labels.dtype.kind in "biuf", f"{self.name}: labels of type {labels.dtype} must be numbers: encode them")
        finite = np.isfinite(stored_values(features)).all() and np.isfinite(labels).all()
        require(bool(finite), f"{self.name} holds infinite or missing values: replace them, or leave those rows out")
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """The number of features, p."""
        return int(self.features.shape[1])

    def __repr__(self) -> str:
        density = np.count_nonzero(stored_values(self.features)) / (len(self) * self.dimension)
        classes, counts = np.unique(self.labels, return_counts=True)
        shares = ", ".join(f"{c:g}: {k / len(self):.1%}" for c, k in zip(classes, counts, strict=True))
        return (
            f"Dataset({self.name!r}, {len(self):,} rows x {self.dimension:,} features, {density:.1%} nonzero, "
            f"labels {shares if len(classes) <= 10 else f'of {len(classes):,} kinds'})"
        )

    def partition(
        self,
        nodes: int,
        by: str = "uniform",
        seed: int = 0,
        concentration: float | None = None,
        indices: Sequence[ArrayLike] | None = None,
    ) -> Partition:
        """Divide the rows over nodes.

        Args:
            nodes: The number of nodes.
            by: How to divide.
                - "uniform": shuffled, N // nodes rows for each node. The remaining rows, fewer than `nodes`, are left
                  out, as in the paper (48,840 of a9a's 48,842 rows on 20 nodes).
                - "label": the same rows, sorted by label (ties in shuffled order) and cut into equal pieces, so that
                  most nodes have one class.
                - "dirichlet": the rows of each class are divided in proportions drawn from a Dirichlet distribution.
                  Sizes differ, and every row is used once. A node without rows takes one from the largest node.
                - "indices": as `indices` says; the default if `indices` is given.
            seed: For the shuffle and the proportions.
            concentration: The parameter of the Dirichlet distribution, by default 0.5; small is skewed, large is even.
            indices: One array of row numbers per node. Nodes may share rows.

        Returns:
            The partition.

        >>> data = Dataset([[1.0], [2.0], [3.0], [4.0]], [1.0, -1.0, 1.0, -1.0], "tiny")
        >>> data.labels[np.array(data.partition(2, by="label").indices)]
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
        """
        nodes = whole("nodes", nodes, least=1)
        rng = generator(seed)
        if indices is not None and by == "uniform":
            by = "indices"
        if by not in PARTITIONS:
            raise unknown("partition", by, PARTITIONS)
        require(
            concentration is None or by == "dirichlet",
            f"concentration={concentration!r} has no meaning by={by!r}: leave it out, or say by='dirichlet'",
        )
        if by == "indices":
            require(indices is not None, "by='indices' needs indices=: one array of row numbers per node")
        else:
            require(indices is None, f"indices= has no meaning by={by!r}: leave it out, or say by='indices'")
            require(nodes <= len(self), f"{nodes} nodes cannot share {len(self)} rows: use at most {len(self)} nodes")
        if indices is not None:
            require(len(indices) == nodes, f"{len(indices)} index arrays for {nodes} nodes: give one per node")
            return Partition(self, tuple(np.asarray(rows) for rows in indices))
        about: dict[str, Any] = {"partition": by, "data seed": seed}
        if by == "dirichlet":
            concentration = 0.5 if concentration is None else concentration
            parts = self._dirichlet(nodes, concentration, rng)
            return Partition(self, parts, {**about, "concentration": float(concentration)})
        order = rng.permutation(len(self))[: len(self) // nodes * nodes]
        if by == "label":
            order = order[np.argsort(self.labels[order], kind="stable")]
        return Partition(self, tuple(order.reshape(nodes, -1)), about)

    def _dirichlet(self, nodes: int, concentration: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        require(
            bool(np.isfinite(concentration)) and concentration > 0,
            f"concentration={concentration!r} must be a finite number above 0: 0.1 is skewed, 100 is nearly even",
        )
        pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(nodes)]
        for label in np.unique(self.labels):
            rows = rng.permutation(np.flatnonzero(self.labels == label))
            shares = rng.dirichlet(np.full(nodes, concentration))
            cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for node, piece in enumerate(np.split(rows, cuts)):
                pieces[node].append(piece)
        parts = [np.concatenate(piece) for piece in pieces]
        for node in range(nodes):
            if not len(parts[node]):
                largest = int(np.argmax([len(part) for part in parts]))
                parts[largest], parts[node] = parts[largest][:-1], parts[largest][-1:]
        return tuple(parts)


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A partition: which rows of a data set each node holds.

    >>> part = Dataset([[1.0], [2.0], [3.0]], [1.0, -1.0, 1.0], "tiny").partition(2, indices=[[0], [1, 2]])
    >>> part
    Partition('tiny' over 2 nodes, 1 to 2 rows each)
    >>> features, labels, sizes = part.stacked()
    >>> features.shape, labels.tolist(), sizes.tolist()
    ((2, 2, 1), [[1.0, 1.0], [-1.0, 1.0]], [1, 2])
    """

    dataset: Dataset
    indices: tuple[NDArray[np.int64], ...]
    about: dict[str, Any] = field(default_factory=dict)
    """How it was made; empty for one that was made of row numbers."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines it, by name: the rows, and how they are shared."""
        return {**self.dataset.facts, **(self.about or {"partition": checksum(*self.indices)})}

    def __post_init__(self) -> None:
        """Refuse row numbers that NumPy would wrap, round or ignore."""
        require(len(self.indices) > 0, "a partition of 0 nodes: give at least one index array")
        rows = len(self.dataset)
        for node, part in enumerate(self.indices):
            require(part.ndim == 1 and len(part) > 0, f"node {node} has no rows: give a non-empty list of row numbers")
            require(
                part.dtype.kind in "iu",
                f"the row numbers of node {node} are of type {part.dtype}: give integers (np.flatnonzero turns a mask "
                "into them)",
            )
            require(
                part.min() >= 0 and part.max() < rows,
                f"node {node} has row numbers {part.min()}..{part.max()}: they must lie in 0..{rows - 1}",
            )
        object.__setattr__(self, "indices", tuple(part.astype(np.int64) for part in self.indices))

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        sizes = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
        return f"Partition({self.dataset.name!r} over {self.nodes:,} nodes, {sizes} each)"

    @property
    def nodes(self) -> int:
        """The number of nodes, n."""
        return len(self.indices)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows at each node, (n,)."""
        return np.array([len(part) for part in self.indices])

    def only(self, node: int) -> Partition:
        """One node's rows, as a partition over that node alone."""
        count = len(self.indices)
        require(
            0 <= node < count,
            f"node = {node}: the data are divided over {count} nodes, 0 to {count - 1}; start {count} processes, or "
            "divide over more nodes",
        )
        return Partition(self.dataset, (self.indices[node],), self.facts)

    @property
    def dimension(self) -> int:
        """The number of features, p."""
        return self.dataset.dimension

    def stacked(self) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.int64]]:
        """The rows of all nodes in dense arrays: features (n, m, p), labels (n, m), sizes (n,); m is the largest size.

        Smaller nodes are padded with zero rows. Their label is 1 in binary sets and 0 in sets of classes. A loss
        accepts both, so padding needs a mask but no special case.
        """
        features, sizes = self.dataset.features, self.sizes
        shape = (self.nodes, int(sizes.max()), self.dimension)
        self._require_memory(shape, 4)
        out = np.zeros(shape, np.float32)
        for node, part in enumerate(self.indices):
            rows = features[part]
            out[node, : len(part)] = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return out, self._labels(), sizes

    def nonzeros(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[Any], NDArray[np.int64]]:
        """The nonzeros of all nodes: columns (n, m, k), values (n, m, k), labels (n, m) and sizes (n,).

        k is the largest number of nonzeros in a row. Rows with fewer are padded with column 0 and value 0.

        >>> from scipy.sparse import csr_array
        >>> data = Dataset(csr_array([[0.0, 2.0], [3.0, 4.0]]), [1.0, -1.0], "tiny")
        >>> columns, values, _, _ = data.partition(1, indices=[[0, 1]]).nonzeros()
        >>> columns.tolist(), values.tolist()
        ([[[1, 0], [0, 1]]], [[[2.0, 0.0], [3.0, 4.0]]])
        """
        features, sizes = csr_array(self.dataset.features), self.sizes
        shape = (self.nodes, int(sizes.max()), self.widest)
        self._require_memory(shape, 8)
        columns, values = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for node, part in enumerate(self.indices):
            rows = features[part]
            counts = np.diff(rows.indptr)
            row = np.repeat(np.arange(len(part)), counts)
            slot = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], counts)
            columns[node, row, slot], values[node, row, slot] = rows.indices, rows.data
        return columns, values, self._labels(), sizes

    def _require_memory(self, shape: tuple[int, int, int], entry: int) -> None:
        size = COPIES * entry * float(np.prod(shape, dtype=float))
        remedy = "keep fewer rows, or use nodes of more equal sizes"
        require_memory(f"{self.dataset.name} stacked as {shape}", size, remedy)

    @property
    def widest(self) -> int:
        """The largest number of nonzeros in a row; p where the features are a dense array."""
        features = self.dataset.features
        return self.dimension if isinstance(features, np.ndarray) else int(np.diff(features.indptr).max())

    def _labels(self) -> NDArray[Any]:
        labels = self.dataset.labels
        out = np.full((self.nodes, int(self.sizes.max())), 1 if np.isin(labels, (-1, 1)).all() else 0, labels.dtype)
        for node, part in enumerate(self.indices):
            out[node, : len(part)] = labels[part]
        return out
