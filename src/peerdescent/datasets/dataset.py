"""A data set in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from peerdescent.datasets.partitions import PARTITIONS, Partition, divide
from peerdescent.datasets.tables import positions
from peerdescent.digests import checksum
from peerdescent.errors import require

Features: TypeAlias = NDArray[np.float32] | csr_array
Kind: TypeAlias = Literal["binary", "classes", "real"]

MOST_CLASSES = 10**6
LOST, NOISE = 0.01, 1e-12
"""Rounding to float32 is told of if it changes values by more than that share of their range, unless the range is noise
of float64: that share of the values."""
SHOWN = 10
"""Classes that a description names."""


def stored_values(features: Features) -> NDArray[Any]:
    """The stored numbers: all entries of a dense array, the nonzeros of a sparse one."""
    return features if isinstance(features, np.ndarray) else features.data


def _arrays(features: Features) -> tuple[NDArray[Any], ...]:
    """The arrays that features consist of."""
    return (
        (features,)
        if isinstance(features, np.ndarray)
        else (features.data, features.indices, features.indptr)
    )


def summed(features: csr_array) -> csr_array:
    """The same matrix, with one entry where several were stored, which stand for their sum."""
    if not features.has_canonical_format:
        features = features.copy()
        features.sum_duplicates()
    return features


def rounded(
    features: Any,
    source: str,
    columns: Sequence[str] = (),
    remedy: str = "load it with scale=True",
    level: int = 3,
) -> Features:
    """Features in float32; a warning names columns of which it leaves little, since they vary little around a number.

    `level` is that of the caller to whom the warning is shown.
    """
    with np.errstate(over="ignore"):  # what is too large for float32 is refused as infinite
        found: Features = features.astype(np.float32, copy=False)
    if np.can_cast(features.dtype, np.float32) or features.ndim != 2 or min(features.shape) == 0:
        return found
    if isinstance(features, np.ndarray):
        places, dense = np.arange(features.shape[1]), features
    else:  # with zeros that are not stored, a range is as large as its numbers, so only full columns matter
        features = features.sorted_indices()
        stored, counts = np.unique(features.indices, return_counts=True)
        places = stored[counts == features.shape[0]]
        dense = features.data[np.isin(features.indices, places)].reshape(
            features.shape[0], len(places)
        )
    low, high = (np.asarray(ends.reduce(dense, axis=0), float) for ends in (np.fmin, np.fmax))
    with np.errstate(all="ignore"):
        span, largest = high - low, np.maximum(abs(low), abs(high))
        varies = np.flatnonzero(
            (span > NOISE * largest) & (LOST * span < np.spacing(largest.astype(np.float32)))
        )
    for k in varies.tolist():
        if (
            np.nanmax(abs(dense[:, k] - dense[:, k].astype(np.float32).astype(float)))
            > LOST * span[k]
        ):
            what = columns[places[k]] if columns else f"column {places[k]}"
            warnings.warn(
                f"{source}: float32 cannot tell values of {what} apart, which are {low[k]:.12g} to {high[k]:.12g}: "
                f"{remedy}",
                stacklevel=level,
            )
    return found


class Reading(NamedTuple):
    """How `load` made features of the numbers in its source, so that `like=` can do the same with other rows."""

    normalised: bool = False
    """Whether rows were scaled to norm 1."""
    ranges: tuple[NDArray[Any], NDArray[Any]] | None = None
    """What was subtracted from each column and what it was divided by, (p,) each, if columns were scaled."""
    unit: float = 1.0
    """What all features were divided by, as those of a named set."""
    first: int | None = None
    """The number of the first feature in a LIBSVM file, 0 or 1."""
    changed: bool = False
    """Whether the features are others by now, as by `dataclasses.replace`."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set: features and labels.

    `features` is a float32 array (N, p) or a SciPy CSR array of that shape. `labels` has shape
    (N,), and `kind` says what it holds:

    - "binary": float32, -1 and +1. `classes` are what -1 and +1 stand for, each a value, or a tuple of several.
    - "classes": int64, 0 to C - 1. `classes` are the C values that these numbers stand for.
    - "real": float32, any number. `classes` is empty.

    Labels that are given here are taken as they are: whole numbers are classes, other numbers are
    real, and -1 and +1 are binary. `load((features, labels))` maps any other values.

    >>> data = Dataset([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], [1.0, -1.0, 1.0], "tiny")
    >>> data
    Dataset('tiny', 3 rows x 2 features, 66.7% nonzero, labels -1: 33.3%, 1: 66.7%)
    >>> data.kind, data.classes
    ('binary', (-1, 1))
    >>> data.partition(3).sizes
    array([1, 1, 1])
    >>> data[1:]
    Dataset('tiny', 2 rows x 2 features, 75.0% nonzero, labels -1: 50.0%, 1: 50.0%)
    """

    features: Features
    labels: NDArray[Any]
    name: str
    about: dict[str, Any] = field(default_factory=dict)
    """Where it comes from: the facts that `load` knows; empty for a set that was made of arrays."""
    classes: tuple[Any, ...] = None  # type: ignore[assignment]  # never None afterwards
    """What the labels stand for; found from the labels if it is not given."""
    columns: tuple[str, ...] = ()
    """The names of the features, if they have any."""
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Columns that are no features but say whose row it is, by name: `partition(by="hospital")` divides by them."""
    notes: tuple[str, ...] = ()
    """What `load` did to your texts, labels and rows, a sentence each."""
    reading: Reading | None = None
    """How `load` read the rows, for `like=`; None for a set that was made of arrays."""
    index: pd.Index[Any] | None = None
    """The index of the frame, if it comes from one; None for 0, 1, 2, ... A Series of groups must have the same."""
    told_of: tuple[Any, Any] | None = None
    """The features and labels that `about` is of: with others, as by `dataclasses.replace`, it is forgotten."""

    @property
    def facts(self) -> dict[str, Any]:
        """What defines the rows, by name: where they come from, or their checksum."""
        return self.about or {"rows": checksum(*_arrays(self.features), self.labels)}

    @property
    def ranges(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """What was subtracted from each column and what it was divided by, (p,) each, if columns were scaled."""
        return self.reading.ranges if self.reading else None

    def __post_init__(self) -> None:
        """Convert to float32 and int64, and refuse shapes and values that no method could use."""
        features: Features
        remedy = "subtract its least value"
        if hasattr(self.features, "tocsr"):
            features = rounded(summed(csr_array(self.features)), self.name, self.columns, remedy, 4)
        else:
            features = np.ascontiguousarray(
                rounded(np.asarray(self.features), self.name, self.columns, remedy, 4)
            )
        labels = np.asarray(self.labels)
        require(
            features.ndim == 2
            and labels.ndim == 1
            and len(labels) == features.shape[0]
            and min(features.shape) > 0,
            f"{self.name}: features of shape {features.shape} and labels of shape {labels.shape} do not fit: "
            "give (N, p) and (N,), with N and p at least 1",
        )
        require(
            labels.dtype.kind in "biuf",
            f"{self.name}: labels of type {labels.dtype} must be numbers: "
            "peerdescent.datasets.load((features, labels)) maps any values",
        )
        finite = np.isfinite(stored_values(features)).all() and np.isfinite(labels).all()
        require(
            bool(finite),
            f"{self.name} holds infinite or missing values: replace them, or leave those rows out",
        )
        for column, values in self.groups.items():
            free = column == "groups" or column not in PARTITIONS
            require(
                free,
                f"{self.name}: a column of groups cannot be called {column!r}, a partition: rename it",
            )
            fits = np.shape(values) == labels.shape
            require(
                fits,
                f"{column} of shape {np.shape(values)} for {len(labels)} rows: give one for each row",
            )
        labels, classes = _sorted_out(labels, self.classes, self.name)
        of, given = self.told_of, (self.features, self.labels)
        if of is not None and any(one is not other for one, other in zip(of, given, strict=True)):
            object.__setattr__(self, "about", {})
            if self.reading and of[0] is not self.features:
                object.__setattr__(self, "reading", self.reading._replace(changed=True))
        if self.about:
            for array in (*_arrays(features), labels):
                array.flags.writeable = False
        object.__setattr__(self, "told_of", (features, labels))
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "classes", classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | ArrayLike) -> Dataset:
        """Some of the rows: a slice, row numbers or a mask, as in `data[:1500]`."""
        kept = np.arange(len(self))[
            rows if isinstance(rows, slice) else positions(rows, self.index, len(self))
        ]
        require(
            kept.ndim == 1,
            "one row is no data set: give a slice or row numbers, as in data[:100] or data[[3]]",
        )
        return replace(
            self,
            features=self.features[kept],
            labels=self.labels[kept],
            about={**self.about, "kept": checksum(kept)} if self.about else {},
            groups={name: values[kept] for name, values in self.groups.items()},
            index=(pd.RangeIndex(len(self)) if self.index is None else self.index)[kept],
            told_of=None,
        )

    @property
    def dimension(self) -> int:
        """The number of features, p."""
        return int(self.features.shape[1])

    @property
    def kind(self) -> Kind:
        """What the labels are: "binary", "classes" or "real"."""
        if self.labels.dtype == np.int64:
            return "classes"
        return "binary" if self.classes else "real"

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self):,} rows x {self.dimension:,} features, {self._density:.1%} nonzero, "
            f"{self._described()})"
        )

    @property
    def _density(self) -> float:
        """The share of entries that are not 0."""
        return float(np.count_nonzero(stored_values(self.features)) / (len(self) * self.dimension))

    def _described(self) -> str:
        """The labels, as in "labels -1: 33.3%, 1: 66.7%"."""
        classes = self.classes
        if self.kind == "real":
            return f"targets {self.labels.min():g} to {self.labels.max():g}"
        if len(classes) > SHOWN:
            return f"labels of {len(classes):,} classes"
        shares = [
            f"{name}: {np.mean(self.labels == code):.1%}" for code, name in self.label_names.items()
        ]
        return f"labels {', '.join(shares)}"

    @property
    def label_names(self) -> dict[int, str]:
        """The labels of classes, and what they stand for.

        >>> Dataset([[1.0], [2.0]], [0, 1], "pets", classes=("cat", "dog")).label_names
        {0: '0 (cat)', 1: '1 (dog)'}
        """
        if self.kind == "real":
            return {}
        codes = (-1, 1) if self.kind == "binary" else range(len(self.classes))
        plain = list(map(str, codes)) == list(map(str, self.classes))
        return {
            code: f"{code}{'' if plain else f' ({shown(value)})'}"
            for code, value in zip(codes, self.classes, strict=True)
        }

    def partition(
        self,
        nodes: int | None = None,
        by: str = "uniform",
        seed: int = 0,
        concentration: float | None = None,
        indices: Sequence[ArrayLike] | None = None,
        each: int | None = None,
        groups: ArrayLike | None = None,
    ) -> Partition:
        """Divide the N rows over n nodes.

        Args:
            nodes: The number of nodes, n. It follows from `groups` or `indices`, and may be left out then.
            by: How to divide.
                - "uniform": shuffled, floor(N / n) rows for each node. The remaining rows, fewer than n, are left
                  out, as in the paper (48,840 of a9a's 48,842 rows on 20 nodes).
                - "label": the same rows, sorted by label (ties in shuffled order) and cut into equal pieces, so that
                  most nodes have one class.
                - "shards": the rows sorted by label, cut into k n shards of floor(N / (k n)) rows, and k of them dealt
                  to each node; k is `each`. Fewer than k n rows are left out. McMahan et al. 2017.
                - "classes": each node is dealt k of the C classes, k = `each`, so that a class has floor(k n / C) or
                  one more nodes, which share its rows evenly. Every row is used once.
                - "dirichlet": of the rows of class c, node i gets the share q_ci, where (q_c1, ..., q_cn) is drawn from
                  Dirichlet(a, ..., a); a is `concentration`. Sizes differ, and every row is used once. A node without
                  rows takes one from the largest node. Hsu et al. 2019.
                - "quantity": the same with all rows as one class: of shuffled rows, node i gets the share q_i. Sizes
                  differ, and the nodes have the same classes otherwise.
                - the name of a column in `groups` of this data set, such as "hospital": a node for each of its values.
                - "indices", "groups": as the argument of that name says, the default if it is given.
            seed: For the shuffle, the proportions and the dealing.
            concentration: The parameter of the Dirichlet distribution, by default 0.5; small is skewed, large is even.
            indices: One array of row numbers per node. Nodes may share rows.
            each: The shards or classes of a node, by default 2.
            groups: One value per row, which says whose it is: a node for each value, in sorted order. A Series has the
                index of the rows.

        Returns:
            The partition.

        >>> data = Dataset([[1.0], [2.0], [3.0], [4.0]], [1.0, -1.0, 1.0, -1.0], "tiny")
        >>> data.labels[np.array(data.partition(2, by="label").indices)]
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
        >>> data.partition(groups=["Bern", "Ulm", "Bern", "Bern"])
        Partition('tiny' over 2 nodes (Bern, Ulm), 1 to 3 rows each)
        """
        return divide(self, nodes, by, seed, concentration, indices, each, groups)


def shown(value: Any) -> str:
    """A class, or several, as a description names them.

    >>> shown("cat"), shown((0, 2, 4)), shown(tuple(range(100)))
    ('cat', '0, 2, 4', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...')
    """
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join(map(str, value[:SHOWN])) + (", ..." if len(value) > SHOWN else "")


def _sorted_out(
    labels: NDArray[Any], classes: tuple[Any, ...] | None, name: str
) -> tuple[NDArray[Any], tuple[Any, ...]]:
    """The labels as float32 or int64, and what they stand for."""
    signs = bool(np.isin(labels, (-1, 1)).all())
    real = labels.dtype.kind == "f"
    if classes is None and signs and (real or labels.min() < 0):
        classes, real = (-1, 1), True
    if real:
        require(
            not classes or (signs and len(classes) == 2),
            f"{name}: binary labels are -1 and +1, of two classes",
        )
        remedy = "subtract a constant from them"
        return rounded(labels[:, None], name, ("its targets",), remedy, 5)[:, 0], classes or ()
    low, high = int(labels.min()), int(labels.max())
    most = MOST_CLASSES if classes is None else len(classes)
    require(
        low >= 0 and high < most,
        f"{name}: labels {low} to {high} are not classes 0, 1, ...: "
        "peerdescent.datasets.load((features, labels)) numbers any values; real targets are given as floats",
    )
    return labels.astype(np.int64), tuple(range(high + 1)) if classes is None else classes
