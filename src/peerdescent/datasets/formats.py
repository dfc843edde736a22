"""One reader per file format or source. Each returns features and labels as the source has them."""

from __future__ import annotations

import bz2
import gzip
import http.client
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from sklearn.datasets import fetch_openml, load_digits, load_svmlight_files

from peerdescent.datasets.cache import Table
from peerdescent.errors import require

COMPRESSIONS = ("", ".gz", ".bz2")


def uncompressed_suffix(path: Path) -> str:
    """The suffix of a file's name, without that of its compression.

    >>> uncompressed_suffix(Path("data/trees.csv.gz"))
    '.csv'
    """
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def read_file(path: Path, target: str | int = -1) -> Table:
    """Read a .csv or .npz file; any other file is read as LIBSVM text, which has no suffix of its own."""
    suffix = uncompressed_suffix(path)
    if suffix == ".csv":
        return read_csv(path, target)
    require(target == -1, f"target={target!r} names a column, and {path.name} is not a .csv file: leave it out")
    return read_npz(path) if suffix == ".npz" else read_libsvm([path])


def read_libsvm(paths: Sequence[Path], features: int | None = None) -> Table:
    """Read LIBSVM text, the rows of several files one after the other.

    `features` is the number of columns: it cannot be read from a file whose last columns are all zero.
    """
    with _reading(
        " and ".join(map(str, paths)), "LIBSVM text (label index:value ...); other formats need the suffix .csv or .npz"
    ):
        parts = load_svmlight_files([str(path) for path in paths], n_features=features, dtype=np.float32)
    return csr_array(vstack(parts[0::2], format="csr")), np.concatenate(parts[1::2])


def read_csv(path: Path, target: str | int = -1) -> Table:
    """Read comma-separated numbers, with or without a header; `target` is the label column, by name or number."""
    with _reading(path, "comma-separated text"):
        first = pd.read_csv(path, header=None, nrows=2, dtype=str)
        frame = pd.read_csv(path, header=0 if _has_header(first) else None, low_memory=False)
    require(
        len(frame) > 0 and frame.shape[1] > 1,
        f"{path.name} has {len(frame)} rows of {frame.shape[1]} columns: give features and labels, comma-separated",
    )
    names = list(frame.columns)
    if isinstance(target, str):
        require(target in names, f"{path.name} has no column {target!r}: its columns are {_some(names)}")
        place = names.index(target)
    else:
        require(-len(names) <= target < len(names), f"target={target} is not one of the {len(names)} columns")
        place = target % len(names)
    labels = frame.iloc[:, place]
    frame = frame.drop(columns=names[place])
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column):
            text = next((value for value in column.dropna() if not _is_number(value)), column.iloc[0])
            raise ValueError(
                f"column {name!r} of {path.name} holds {text!r}: features must be numbers; encode the column or leave "
                "it out (the labels are the last column unless target= says otherwise)"
            )
    return frame.to_numpy(np.float32, copy=True), _labels(labels, path.name)


def read_npz(path: Path) -> Table:
    """Read a NumPy archive with the arrays `features` (N, p) and `labels` (N,)."""
    with _reading(path, "a NumPy archive"), path.open("rb") as file, np.load(file) as arrays:
        found = dict(arrays)
    require({"features", "labels"} <= set(found), f"{path.name} holds {_some(list(found))}: save features and labels")
    features, labels = found["features"], found["labels"]
    require(
        features.dtype.kind in "biuf" and features.ndim == 2 and labels.shape == features.shape[:1],
        f"{path.name} holds features {features.dtype} {features.shape} and labels {labels.shape}: give numbers (N, p) "
        "and one label per row, (N,)",
    )
    return features, labels


def read_digits(paths: Sequence[Path] = ()) -> Table:
    """Read the digits that come with scikit-learn."""
    features, labels = load_digits(return_X_y=True)
    return features, labels


def read_idx(paths: Sequence[Path]) -> Table:
    """Read MNIST's IDX format; the files are images, labels, images, labels."""
    arrays = [_idx(path) for path in paths]
    images = np.concatenate(arrays[0::2])
    return images.reshape(len(images), -1), np.concatenate(arrays[1::2])


def read_openml(data_id: int, name: str) -> Table:
    """Download a set from OpenML; an OSError says why that failed.

    Text categories become codes 1, 2, ... in the order OpenML lists them; missing values stay missing (NaN).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of each failed attempt; the error says it once
        try:
            bunch = fetch_openml(data_id=data_id, cache=False, n_retries=1)
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
    if not hasattr(bunch.data, "columns"):
        return bunch.data, _labels(bunch.target, name)
    columns = [_numbers(bunch.data[column]) for column in bunch.data.columns]
    return np.stack(columns, axis=1), _labels(bunch.target, name)


def _numbers(column: pd.Series[Any]) -> NDArray[np.float32]:
    if not pd.api.types.is_numeric_dtype(column):
        categories = column.astype("category").cat
        codes = np.arange(1, len(categories.categories) + 1, dtype=np.float32)
        values = pd.to_numeric(pd.Series(categories.categories), errors="coerce").to_numpy(np.float32)
        values = codes if np.isnan(values).any() else values
        return np.append(values, np.float32(np.nan))[categories.codes.to_numpy()]  # missing: code -1, the last one
    return column.to_numpy(np.float32, na_value=np.nan)


def _labels(target: Any, name: str) -> NDArray[Any]:
    """The labels as numbers if all of them are numbers, else as text."""
    labels = pd.Series(target)
    require(not labels.isna().any(), f"{name} has rows without a label: leave them out")
    if pd.api.types.is_numeric_dtype(labels):
        return labels.to_numpy()
    text = labels.astype(str).to_numpy(str)
    try:
        return text.astype(float)
    except ValueError:
        return text


def _has_header(first: pd.DataFrame) -> bool:
    """Whether the first line is a header: it has no number at all, or text in a column of numbers."""
    head, *rest = [[_is_number(cell) for cell in row] for row in first.to_numpy()]
    return not any(head) or any(below and not above for row in rest for above, below in zip(head, row, strict=True))


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _idx(path: Path) -> NDArray[np.uint8]:
    with _reading(path, "an IDX file"):
        unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(path.suffix, bytes)
        raw = unpack(path.read_bytes())
        dimensions = raw[3] if raw[:3] == b"\0\0\x08" else 0
        shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4).astype(int)
        require(dimensions > 0, "it does not start with the mark of IDX bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _some(names: Sequence[object], most: int = 10) -> str:
    return ", ".join(str(name) for name in names[:most]) + (", ..." if len(names) > most else "") or "nothing"


@contextmanager
def _reading(source: Path | str, kind: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"cannot read {source} as {kind}: {error}") from None
