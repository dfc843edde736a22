"""How nodes share the rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from peerdescent.datasets.described import Described
from peerdescent.datasets.tables import positions, some, whose
from peerdescent.digests import checksum
from peerdescent.errors import require, require_memory, unknown, whole

if TYPE_CHECKING:
    from peerdescent.datasets.dataset import Dataset

COPIES = 4
"""Copies of the stacked rows that a problem needs memory for: as they are, times labels, and on the device."""
PARTITIONS = ("uniform", "label", "shards", "classes", "dirichlet", "quantity", "indices", "groups")
SERVES = {
    "concentration": ("dirichlet", "quantity"),
    "each": ("shards", "classes"),
    "indices": ("indices",),
    "groups": ("groups",),
}
"""The partitions that an argument is for."""
CONCENTRATION = 0.5
EACH = 2

Rows = NDArray[np.int64]


def generator(seed: int) -> np.random.Generator:
    """The random generator for a seed; it gives the same numbers on every machine."""
    return np.random.default_rng(whole("seed", seed, least=0))


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A partition: which rows of a data set each node holds.

    >>> import peerdescent as peer
    >>> data = peer.datasets.Dataset([[1.0], [2.0], [3.0]], [1.0, -1.0, 1.0], "tiny")
    >>> part = data.partition(indices=[[0], [1, 2]])
    >>> part
    Partition('tiny' over 2 nodes, 1 to 2 rows each)
    >>> features, labels, sizes = part.stacked()
    >>> features.shape, labels.tolist(), sizes.tolist()
    ((2, 2, 1), [[1.0, 1.0], [-1.0, 1.0]], [1, 2])
    """

    dataset: Dataset
    indices: tuple[Rows, ...]
    about: dict[str, Any] = field(default_factory=dict)
    """How it was made; empty for one that was made of row numbers."""
    names: tuple[Any, ...] = ()
    """What the nodes are called, if they are the values of a column, such as hospitals."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines it, by name: the rows, and how they are shared."""
        return {**self.dataset.facts, **(self.about or {"partition": checksum(*self.indices)})}

    def __post_init__(self) -> None:
        """Refuse row numbers that NumPy would wrap, round or ignore."""
        require(len(self.indices) > 0, "a partition of 0 nodes: give at least one index array")
        rows = len(self.dataset)
        indices = tuple(positions(part, self.dataset.index, rows) for part in self.indices)
        for node, part in enumerate(indices):
            require(
                part.ndim == 1 and len(part) > 0,
                f"node {node} has no rows: give a non-empty list of row numbers",
            )
            require(
                part.dtype.kind in "iu",
                f"the row numbers of node {node} are of type {part.dtype}: give integers (np.flatnonzero turns a mask "
                "into them)",
            )
            require(
                part.min() >= 0 and part.max() < rows,
                f"node {node} has row numbers {part.min()}..{part.max()}: they must lie in 0..{rows - 1}",
            )
        object.__setattr__(self, "indices", tuple(part.astype(np.int64) for part in indices))

    @property
    def described(self) -> Described:
        """What its rows are, without the rows."""
        return Described.of(self.dataset)

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        sizes = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
        names = some(self.names)
        called = f" ({names})" if self.names else ""
        return f"Partition({self.dataset.name!r} over {self.nodes:,} nodes{called}, {sizes} each)"

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
        return Partition(
            self.dataset, (self.indices[node],), self.facts, self.names[node : node + 1]
        )

    @property
    def dimension(self) -> int:
        """The number of features, p."""
        return self.dataset.dimension

    def stacked(self) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.int64]]:
        """The rows of all nodes in dense arrays: features (n, m, p), labels (n, m), sizes (n,); m is the largest size.

        Smaller nodes are padded with zero rows. Their label is 1 in binary sets and 0 in others. A
        loss must average over the first sizes[i] rows of node i only.
        """
        features, sizes = self.dataset.features, self.sizes
        shape = (self.nodes, int(sizes.max()), self.dimension)
        self._require_memory(shape, 4)
        out = np.zeros(shape, np.float32)
        for node, part in enumerate(self.indices):
            rows = features[part]
            out[node, : len(part)] = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return out, self._labels(), sizes

    def nonzeros(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[Any], NDArray[np.int64]]:
        """The nonzeros of all nodes: columns (n, m, k), values (n, m, k), labels (n, m) and sizes (n,).

        k is the largest number of nonzeros in a row. Rows with fewer are padded with column 0 and
        value 0.

        >>> from scipy.sparse import csr_array
        >>> import peerdescent as peer
        >>> data = peer.datasets.Dataset(csr_array([[0.0, 2.0], [3.0, 4.0]]), [1.0, -1.0], "tiny")
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
        return (
            self.dimension
            if isinstance(features, np.ndarray)
            else int(np.diff(features.indptr).max())
        )

    def _labels(self) -> NDArray[Any]:
        labels = self.dataset.labels
        out = np.full(
            (self.nodes, int(self.sizes.max())),
            1 if self.dataset.kind == "binary" else 0,
            labels.dtype,
        )
        for node, part in enumerate(self.indices):
            out[node, : len(part)] = labels[part]
        return out


def divide(
    data: Dataset,
    nodes: int | None,
    by: str,
    seed: int,
    concentration: float | None,
    indices: Sequence[ArrayLike] | None,
    each: int | None,
    groups: ArrayLike | None,
) -> Partition:
    """The partition that `Dataset.partition` describes."""
    rng = generator(seed)
    column = "groups"
    require(
        isinstance(by, str),
        f"by is a {type(by).__name__}: give a name, or the values of all rows as groups=",
    )
    if by in data.groups:
        require(
            groups is None,
            f"groups= has no meaning with by={by!r}, a column of the data: leave one of them out",
        )
        by, column, groups = "groups", by, data.groups[by]
    given = {"concentration": concentration, "each": each, "indices": indices, "groups": groups}
    if by == "uniform":
        by = next((name for name in ("indices", "groups") if given[name] is not None), by)
    feature = any(name == by or name.startswith(f"{by}=") for name in data.columns)
    require(
        by in PARTITIONS or not feature,
        f"by={by!r} is a feature of {data.name}: load(..., groups={by!r}) makes its values the nodes",
    )
    if by not in PARTITIONS:
        raise unknown("partition", by, (*PARTITIONS, *data.groups))
    for name, serves in SERVES.items():
        require(
            given[name] is None or by in serves,
            f"{name}={'' if name in ('indices', 'groups') else repr(given[name])} has no meaning with by={by!r}: leave "
            f"it out, or say {' or '.join(f'by={other!r}' for other in serves)}",
        )
    if by == "indices":
        return _listed(data, nodes, indices)
    if by == "groups":
        return _grouped(data, nodes, groups, column)
    owner = next(iter(data.groups), None)
    require(
        nodes is not None or owner is None,
        f"the number of nodes is not given: say by={owner!r}, whose values are the nodes, or nodes=",
    )
    nodes = whole("nodes", nodes, least=1)
    require(
        nodes <= len(data),
        f"{nodes} nodes cannot share {len(data)} rows: use at most {len(data)} nodes",
    )
    require(
        data.kind != "real" or by not in ("classes", "dirichlet"),
        f"by={by!r} needs classes, and {data.name} has real targets: say by='label', 'shards', 'quantity' or 'uniform'",
    )
    about: dict[str, Any] = {"partition": by, "data seed": seed}
    if by in SERVES["concentration"]:
        about["concentration"] = float(
            _positive(CONCENTRATION if concentration is None else concentration)
        )
        return Partition(data, _dirichlet(data, nodes, by, about["concentration"], rng), about)
    if by in SERVES["each"]:
        about["each"] = each = whole("each", EACH if each is None else each, least=1)
        return Partition(
            data, (_shards if by == "shards" else _classes)(data, nodes, each, rng), about
        )
    order = rng.permutation(len(data))[: len(data) // nodes * nodes]
    if by == "label":
        order = order[np.argsort(data.labels[order], kind="stable")]
    return Partition(data, tuple(order.reshape(nodes, -1)), about)


def _positive(concentration: float) -> float:
    require(
        bool(np.isfinite(concentration)) and concentration > 0,
        f"concentration={concentration!r} must be a finite number above 0: 0.1 is skewed, 100 is nearly even",
    )
    return concentration


def _listed(data: Dataset, nodes: int | None, indices: Sequence[ArrayLike] | None) -> Partition:
    require(indices is not None, "by='indices' needs indices=: one array of row numbers per node")
    assert indices is not None
    require(
        nodes is None or len(indices) == whole("nodes", nodes, least=1),
        f"{len(indices)} index arrays for {nodes} nodes: give one per node",
    )
    require(
        not isinstance(indices, Mapping),
        "indices= is a dict: give its values(), one array of row numbers per node",
    )
    listed: tuple[Any, ...] = tuple(indices)
    return Partition(data, listed)


def _grouped(data: Dataset, nodes: int | None, groups: ArrayLike | None, column: str) -> Partition:
    known = "".join(f", or say by={name!r}" for name in data.groups)
    require(
        groups is not None,
        f"by='groups' needs groups=: one value for each row, which says whose it is{known}",
    )
    names, owner = np.unique(whose(groups, column, data.index), return_inverse=True)
    require(
        owner.shape == (len(data),),
        f"{column} of shape {owner.shape} for {len(data)} rows: give one for each row",
    )
    require(
        nodes is None or len(names) == whole("nodes", nodes, least=1),
        f"{column} has {len(names)} different values, which are the nodes: leave out nodes={nodes}",
    )
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    return Partition(
        data, tuple(rows), {"partition": checksum(*rows), "groups": column}, tuple(names.tolist())
    )


def _dirichlet(
    data: Dataset, nodes: int, by: str, concentration: float, rng: np.random.Generator
) -> tuple[Rows, ...]:
    """The rows of each class, or all rows for "quantity", in proportions from a Dirichlet distribution."""
    labels = data.labels if by == "dirichlet" else np.zeros(len(data))
    pieces: list[list[Rows]] = [[] for _ in range(nodes)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
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


def _shards(data: Dataset, nodes: int, each: int, rng: np.random.Generator) -> tuple[Rows, ...]:
    """Rows sorted by label and cut into `nodes * each` equal shards, of which every node is dealt `each`."""
    count = nodes * each
    require(
        count <= len(data),
        f"{nodes} nodes with each={each} need {count:,} shards, and there are {len(data):,} rows: use fewer of either",
    )
    order = rng.permutation(len(data))[: len(data) // count * count]
    shards = order[np.argsort(data.labels[order], kind="stable")].reshape(count, -1)
    return tuple(shards[rng.permutation(count)].reshape(nodes, -1))


def _classes(data: Dataset, nodes: int, each: int, rng: np.random.Generator) -> tuple[Rows, ...]:
    """Every node is dealt `each` classes; the nodes of a class share its rows evenly."""
    labels, counts = np.unique(data.labels, return_counts=True)
    require(
        each <= len(labels) <= nodes * each,
        f"{nodes} nodes with each={each} cannot share {len(labels)} classes: give at most {len(labels)}, and "
        f"at least {-(-len(labels) // nodes)} so that every class has a node",
    )
    owners: list[list[int]] = [[] for _ in labels]
    deck: list[int] = []
    for node in range(nodes):
        hand, deck = deck[:each], deck[each:]
        if len(hand) < each:  # a new deck, with the classes that this node holds at its end
            deck = sorted(rng.permutation(len(labels)).tolist(), key=hand.__contains__)
            missing = each - len(hand)
            hand, deck = hand + deck[:missing], deck[missing:]
        for held in hand:
            owners[held].append(node)
    pieces: list[list[Rows]] = [[] for _ in range(nodes)]
    for label, count, own in zip(labels, counts, owners, strict=True):
        require(
            len(own) <= count,
            f"class {label:g} of {data.name} has {count} rows for {len(own)} nodes: use fewer nodes, or smaller each=",
        )
        for node, piece in zip(
            own,
            np.array_split(rng.permutation(np.flatnonzero(data.labels == label)), len(own)),
            strict=True,
        ):
            pieces[node].append(piece)
    return tuple(np.concatenate(piece) for piece in pieces)
