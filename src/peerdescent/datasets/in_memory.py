"""Data that are in memory: arrays, pandas, SciPy, scikit-learn and Hugging Face. None of them is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from peerdescent.datasets import tables
from peerdescent.datasets.dataset import summed
from peerdescent.datasets.tables import Table
from peerdescent.errors import require

ACCEPTED = (
    "a name, a path, (features, labels), a DataFrame, or a data set of scikit-learn or Hugging Face"
)
UNLABELLED = (
    "features without labels: give both, as in load((features, labels)); for pca, any will do with normalise=False, as "
    "in load((features, np.zeros(len(features))), normalise=False)"
)


def read(
    source: Any,
    target: tables.Column | None,
    groups: tables.Column | None,
    name: str | None = None,
) -> tuple[str, Table]:
    """The name and the table of data in memory, and the columns of labels and groups, if named."""
    if isinstance(source, dict) and {"data", "target"} <= source.keys():  # scikit-learn's Bunch
        name = name or Path(str(source.get("filename") or "data")).name.partition(".")[0]
        names = source.get("feature_names")
        return name, _pair(source["data"], _named_classes(source), target, groups, name, names)
    name = name or "data"
    if isinstance(source, tuple | list):
        require(
            len(source) == 2,
            f"a {type(source).__name__} of {len(source)}: give two, (features, labels)",
        )
        require(source[1] is not None, UNLABELLED)
        return name, _pair(source[0], source[1], target, groups, name)
    splits = (
        isinstance(source, dict)
        and source
        and all(hasattr(one, "with_format") for one in source.values())
    )
    require(
        not splits,
        f"a {type(source).__name__} has several parts: give one, as in load(data['train'])",
    )
    without = hasattr(source, "tocsr") or isinstance(source, np.ndarray)
    require(not without, UNLABELLED)
    if hasattr(source, "with_format"):
        frame = _huggingface(source)
    else:
        frame = (
            source.to_pandas() if hasattr(source, "to_pandas") else source
        )  # other libraries of tables have it
    require(
        isinstance(frame, pd.DataFrame), f"cannot load a {type(source).__name__}: give {ACCEPTED}"
    )
    return name, tables.table(frame, name, target, groups)


def _pair(
    features: Any,
    labels: Any,
    target: tables.Column | None,
    groups: tables.Column | None,
    name: str,
    columns: Any = None,
) -> Table:
    """The table of features and labels that are given one by one."""
    require(
        target is None,
        f"target={target!r} names a column, and {name} has its labels: leave it out",
    )
    if isinstance(features, pd.DataFrame):
        same = not isinstance(labels, pd.Series | pd.DataFrame) or features.index.equals(
            labels.index
        )
        require(
            same,
            f"{name}: the indices of features and labels differ: give labels.loc[features.index], or arrays",
        )
        raw = tables.labels(_flat(labels, name, len(features)), name)
        return tables.table(features, name, groups=groups, raw=raw)
    require(
        groups is None,
        f"groups={groups!r} names a column, and the features of {name} have no names",
    )
    if hasattr(features, "tocsr"):
        raw = tables.labels(_flat(labels, name, features.shape[0]), name)
        return Table(summed(csr_array(features, copy=True)), raw)
    array = _unmasked(features)
    require(
        array.ndim == 2,
        f"{name} has features of shape {array.shape}: give (N, p), as by reshape(len(features), -1)",
    )
    raw = tables.labels(_flat(labels, name, len(array)), name)
    if array.dtype.kind not in "biuf":  # objects or texts
        return Table(tables.numbers(pd.DataFrame(array), name), raw)
    known = columns is not None and len(columns) == array.shape[1]
    own = (
        array.astype(np.float32) if np.can_cast(array.dtype, np.float32) else array
    )  # `load` copies what is wider
    return Table(own, raw, tuple(map(str, columns)) if known else ())


def _unmasked(features: Any) -> NDArray[Any]:
    """An array; what a mask of NumPy hides is missing."""
    if not isinstance(features, np.ma.MaskedArray) or not features.mask.any():
        return np.asarray(features)
    return np.ma.filled(features.astype(np.promote_types(features.dtype, np.float32)), np.nan)


def _flat(labels: Any, name: str, rows: int) -> Any:
    """Labels with one dimension; one column is taken as such."""
    if isinstance(labels, pd.DataFrame) and labels.shape[1] == 1:
        labels = labels.iloc[:, 0]
    require(
        not np.ma.is_masked(labels),
        f"{name} has rows without a label, which a mask hides: leave them out",
    )
    flat: Any = labels if isinstance(labels, pd.Series | pd.Categorical) else np.asarray(labels)
    flat = flat[:, 0] if np.ndim(flat) == 2 and np.shape(flat)[1] == 1 else flat
    require(
        np.shape(flat) == (rows,),
        f"{name} has features of {rows} rows and labels of shape {np.shape(flat)}: give one label for each row",
    )
    return flat


def _named_classes(bunch: Any) -> Any:
    """The labels of scikit-learn's Bunch, with the names of their classes if it has any."""
    labels, names = bunch["target"], bunch.get("target_names")
    codes = np.asarray(labels)
    whole = codes.ndim == 1 and codes.dtype.kind in "iu" and names is not None and len(names) > 1
    if not whole or codes.min() < 0 or codes.max() >= len(names):
        return labels
    return _categories(codes, np.asarray(names).tolist())


def _categories(codes: NDArray[Any], names: Any) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, pd.Index(list(names)))


def _huggingface(source: Any) -> tables.Frame:
    """A data set of Hugging Face as a frame: classes are categories, pixels are columns."""
    require(
        hasattr(source, "__len__"),
        "a stream of rows: take some into memory, as by Dataset.from_list(list(...))",
    )
    features = source.features
    plain = [
        name
        for name, feature in features.items()
        if type(feature).__name__ in ("Value", "ClassLabel")
    ]
    frame: tables.Frame = source.select_columns(plain).to_pandas() if plain else None
    arrays = source.with_format("numpy")
    parts = []
    for name, feature in features.items():
        if name not in plain:
            cells = arrays.select_columns([name])[:][name]
            shapes = sorted({np.shape(cell) for cell in cells})
            require(
                len(shapes) == 1,
                f"column {name!r} has cells of shapes {tables.some(shapes, 3)}: give all of them one, as by resizing",
            )
            rows = np.reshape(cells, (len(cells), -1))
            parts.append(pd.DataFrame(rows, columns=[f"{name}[{k}]" for k in range(rows.shape[1])]))
        elif hasattr(feature, "names"):
            codes = frame[name].fillna(-1).astype(int)
            parts.append(pd.DataFrame({name: _categories(codes.to_numpy(), feature.names)}))
        else:
            parts.append(frame[[name]])
    return pd.concat(parts, axis=1)
