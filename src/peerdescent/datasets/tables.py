"""Frames of pandas as features, labels and groups."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from peerdescent.errors import require

if TYPE_CHECKING:
    from peerdescent.datasets.labelling import Raw

UNNAMED = "Unnamed: 0"
"""What pandas calls the first column of a file if it has no name, as an index that was written."""

Column: TypeAlias = str | int
Frame: TypeAlias = (
    Any  # a pd.DataFrame; the stubs of pandas know less than pandas about columns of any kind
)


class Table(NamedTuple):
    """Features and labels as they are in the source, and what else is known about their rows and columns."""

    features: NDArray[Any] | csr_array
    labels: Raw
    columns: tuple[str, ...] = ()
    """The names of the features."""
    groups: NDArray[Any] | None = None
    """Whose row it is."""
    row_index: pd.Index[Any] | None = None
    """The names of the rows; None for 0, 1, 2, ..."""
    first: int | None = None
    """The number of the first feature in a LIBSVM file: 0 or 1, whichever fits."""


def table(
    frame: Frame,
    source: str,
    target: Column | None = None,
    groups: Column | None = None,
    raw: Raw | None = None,
) -> Table:
    """The table of a frame. The labels are in its column `target`, or given as `raw`.

    >>> frame = pd.DataFrame({"age": [30, 40], "smokes": [True, False], "ill": ["no", "yes"]})
    >>> made = table(frame, "some", target="ill")
    >>> made.features.tolist(), made.columns, made.labels.tolist()
    ([[30.0, 1.0], [40.0, 0.0]], ('age', 'smokes'), ['no', 'yes'])
    """
    names = frame.columns.tolist()
    require(
        raw is not None or target is not None,
        f"say which column of {source} has the labels by target=: its columns are {some(names)}",
    )
    for role, name in (("target", target), ("groups", groups)):
        require(
            name is None or name in names,
            f"{role}={name!r} is no column of {source}: its columns are {some(names)}",
        )
    require(
        frame.columns.astype(str).is_unique,
        f"{source} has several columns of one name: rename all but one of {some(names)}",
    )
    require(
        UNNAMED not in names,
        f"the first column of {source} has no name, as an index in a file: read it by "
        "pandas.read_csv(..., index_col=0), or if it is a feature, name it",
    )
    kept = frame.drop(columns=[name for name in (target, groups) if name is not None])
    require(
        min(kept.shape) > 0,
        f"{source} has {len(frame)} rows of {len(names)} columns: give features and labels",
    )
    return Table(
        numbers(kept, source),
        labels(frame[target], source) if raw is None else raw,
        tuple(map(str, kept.columns)),
        None if groups is None else whose(frame[groups], str(groups), frame.index),
        frame.index,
    )


def numbers(frame: Frame, source: str) -> NDArray[np.float64]:
    """The columns of a frame, all of which are numbers or truth values; missing values are NaN."""
    frame = frame.infer_objects()
    for name, column in frame.items():
        number = pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "c"
        if not number:
            other = (cell for cell in column.dropna() if not isinstance(cell, Real))
            shown = repr(next(other, str(column.dtype)))[:40]
            raise ValueError(
                f"column {name!r} of {source} holds {shown}, which is no number: turn texts into "
                f"columns of numbers, as by pandas.get_dummies(frame, columns=[{name!r}]), or "
                f"leave it out, as by frame.drop(columns={name!r})"
            )
    array: NDArray[np.float64] = frame.to_numpy(np.float64, na_value=np.nan)
    return array


def whose(values: Any, column: str, index: pd.Index[Any] | None = None) -> NDArray[Any]:
    """The values of a column that says whose row it is, as numbers or texts; a Series must have the rows' index."""
    owners = pd.Series(values)
    same = not isinstance(values, pd.Series) or owners.index.equals(
        pd.RangeIndex(len(owners)) if index is None else index
    )
    require(
        same,
        f"{column} is a Series whose index is not that of the rows: give it in their order, as by .loc[frame.index], "
        "or as an array by .to_numpy()",
    )
    count = int(owners.isna().sum())
    require(count == 0, f"{column} is missing in {count:,} rows: fill it in, or leave them out")
    return (
        owners.to_numpy()
        if pd.api.types.is_numeric_dtype(owners)
        else owners.astype(str).to_numpy(str)
    )


def positions(rows: Any, index: pd.Index[Any] | None, count: int) -> NDArray[Any]:
    """Row numbers, or a mask, as an array; refused if they are those of pandas, which may mean other rows by them."""
    own = pd.RangeIndex(count) if index is None else index
    if isinstance(rows, pd.Series) and pd.api.types.is_bool_dtype(rows):
        require(
            rows.index.equals(own),
            "the mask is a Series whose index is not that of the rows: give it in their order, as by "
            ".loc[frame.index], or as an array by .to_numpy()",
        )
    elif isinstance(rows, pd.Index | pd.Series):
        require(
            own.equals(pd.RangeIndex(count)),
            f"rows are given as {'an Index' if isinstance(rows, pd.Index) else 'a Series'}, and those of the data are "
            "not called 0, 1, 2, ...: give row numbers, as frame.groupby(...).indices.values() has them; if "
            "these are, by .to_numpy()",
        )
    return np.asarray(rows)


def shifted(features: csr_array, by: int) -> csr_array:
    """The same columns, with others numbers: those that are `by` larger."""
    rows, width = features.shape
    return csr_array(
        (features.data, features.indices + by, features.indptr), shape=(rows, width + by)
    )


def labels(target: Any, source: str) -> Raw:
    """Labels as numbers if all of them are, as categories if they are those of pandas, else as texts."""
    if isinstance(getattr(target, "dtype", None), pd.CategoricalDtype):
        named = pd.Categorical(target)
        require(not (named.codes < 0).any(), f"{source} has rows without a label: leave them out")
        return named
    column = pd.Series(target)
    require(not column.isna().any(), f"{source} has rows without a label: leave them out")
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy()
    other = next(
        (
            one
            for one in column
            if not isinstance(one, str | bytes | bool | int | float | np.generic)
        ),
        None,
    )
    require(other is None, f"{source} has labels such as {other!r}: give numbers or texts")
    text = column.astype(str).to_numpy(str)
    try:
        numbers = text.astype(float)
    except ValueError:
        return text
    # Texts such as 1 and 01 are two classes, and one number.
    return numbers if len(np.unique(numbers)) == len(np.unique(text)) else text


def some(names: Sequence[object], most: int = 10) -> str:
    """The first of some names, as a message shows them."""
    return (
        ", ".join(str(name) for name in names[:most]) + (", ..." if len(names) > most else "")
        or "nothing"
    )
