"""One reader per file format or source. Each returns features and labels as the source has them."""

from __future__ import annotations

import bz2
import gzip
import http.client
import math
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from sklearn.datasets import fetch_openml, load_digits, load_svmlight_files

from peerdescent.datasets import tables
from peerdescent.datasets.sets import NamedSet
from peerdescent.datasets.tables import Table
from peerdescent.errors import require, require_memory

COMPRESSIONS = ("", ".gz", ".bz2")
CELL_BYTES = 32
"""Memory that a number takes while a text is parsed, beside the text."""


def uncompressed_suffix(path: Path) -> str:
    """The suffix of a file's name, without that of its compression.

    >>> uncompressed_suffix(Path("data/trees.csv.gz"))
    '.csv'
    """
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def read_set(known: NamedSet, paths: Sequence[Path]) -> Table:
    """Read the files of a named set, or the set that comes with scikit-learn."""
    if known.form == "embedded":
        return Table(*load_digits(return_X_y=True))
    if known.form == "libsvm":
        return read_libsvm(paths, features=known.shape[1])
    if known.form == "csv":
        frame = read_csv(paths[0])
        if frame.columns[0].isdecimal():  # the file of UCI has no names
            frame = read_csv(paths[0], header=None)
        return Table(tables.numbers(frame.iloc[:, :-1], known.name), frame.iloc[:, -1].to_numpy())
    return read_idx(paths)


def read_libsvm(paths: Sequence[Path], features: int | None = None) -> Table:
    """Read LIBSVM text, the rows of several files one after the other.

    `features` is the number of columns: it cannot be read from a file whose last columns are all
    zero. Features are taken to be counted from 1, unless there is a feature 0.
    """
    with _reading(
        " and ".join(map(str, paths)),
        "LIBSVM text (label index:value ...); other formats need the suffix .csv or .npz",
    ):
        for path in paths:
            _require_fits(path, b":\n")
        parts = load_svmlight_files([str(path) for path in paths], zero_based=True)
        rows = csr_array(vstack(parts[0::2], format="csr"))
        first = min(int(rows.indices.min()), 1) if rows.nnz else None
        rows = tables.shifted(rows, -(first or 0))
        if features is not None and rows.shape[1] < features:
            rows.resize((rows.shape[0], features))
        return Table(rows, np.concatenate(parts[1::2]), first=first)


def read_csv(path: Path, **options: Any) -> tables.Frame:
    """The frame that pandas reads from a file, by its defaults or other options."""
    remedy = "read it by pandas.read_csv with its options, and load the frame"
    with _reading(path, "comma-separated text", remedy):
        _require_fits(path, b",\n")
        return pd.read_csv(path, **options)


def read_npz(path: Path) -> Table:
    """Read a NumPy archive with the arrays `features` (N, p) and `labels` (N,)."""
    with _reading(path, "a NumPy archive"), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        require(
            {"features", "labels"} <= set(names),
            f"it holds {tables.some(names)}: save features and labels",
        )
        members = [archive.getinfo(f"{name}.npy") for name in ("features", "labels")]
        rows = [_claim(archive, member)[:1] for member in members]
        require(
            rows[0] == rows[1],
            f"it holds {rows[0]} rows of features and {rows[1]} labels; give one label per row",
        )
        features, labels = (_array(archive, member) for member in members)
    require(
        features.dtype.kind in "biuf" and features.ndim == 2 and labels.shape == features.shape[:1],
        f"{path.name} holds features {features.dtype} {features.shape} and labels {labels.shape}: give numbers (N, p) "
        "and one label per row, (N,)",
    )
    return Table(features, labels)


def read_idx(paths: Sequence[Path]) -> Table:
    """Read MNIST's IDX format; the files are images, labels, images, labels."""
    arrays = [_idx(path) for path in paths]
    with _reading(" and ".join(map(str, paths)), "images and labels"):
        images, labels = np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])
        good = labels.shape == images.shape[:1]
        require(
            good, f"there are labels of shape {labels.shape} for images of shape {images.shape}"
        )
        return Table(images.reshape(len(images), math.prod(images.shape[1:])), labels)


def read_openml(data_id: int, name: str) -> Table:
    """Download a set from OpenML; an OSError says why that failed.

    Text categories become codes 1, 2, ... in the order OpenML lists them; missing values stay
    missing (NaN).
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # scikit-learn warns of each failed attempt; the error says it once
        try:
            bunch = fetch_openml(data_id=data_id, cache=False, n_retries=1)
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
    if not hasattr(bunch.data, "columns"):
        return Table(bunch.data, tables.labels(_texts(bunch.target), name))
    columns = [_numbers(bunch.data[column]) for column in bunch.data.columns]
    return Table(np.stack(columns, axis=1), tables.labels(_texts(bunch.target), name))


def _texts(target: Any) -> Any:
    """Categories as texts, since those of OpenML are in no order."""
    return (
        target.astype(object)
        if isinstance(getattr(target, "dtype", None), pd.CategoricalDtype)
        else target
    )


def _numbers(column: pd.Series[Any]) -> NDArray[np.float32]:
    if not pd.api.types.is_numeric_dtype(column):
        categories = column.astype("category").cat
        codes = np.arange(1, len(categories.categories) + 1, dtype=np.float32)
        values = pd.to_numeric(pd.Series(categories.categories), errors="coerce").to_numpy(
            np.float32
        )
        values = codes if np.isnan(values).any() else values
        return np.append(values, np.float32(np.nan))[
            categories.codes.to_numpy()
        ]  # missing: code -1, the last one
    return column.to_numpy(np.float32, na_value=np.nan)


def _claim(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[int, ...]:
    """The shape of an array in a NumPy archive; refused if it is not all there, too large, or of Python objects."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        require(
            version in _HEADERS,
            f"{member.filename} has the unknown version {version} of NumPy's format",
        )
        shape, _, dtype = _HEADERS[version](file)
    what = f"{member.filename} of shape {shape} and type {dtype}"
    require(not dtype.hasobject, f"{what} holds Python objects, which would run code; save numbers")
    size = math.prod(shape) * dtype.itemsize
    require(
        min(shape, default=0) >= 0 and size <= member.file_size,
        f"{what} is not all there; save it again",
    )
    require_memory(what, 3 * size, "save fewer rows")
    claimed: tuple[int, ...] = shape
    return claimed


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _require_fits(path: Path, marks: bytes, each: int = 1) -> None:
    """Refuse a file, plain or compressed, that takes more memory than there is, however small it is on disk.

    What counts is `each` for every byte, and `CELL_BYTES` for every number; numbers end with one of
    the bytes `marks`.
    """
    size = 0
    with _open(path) as file:
        while text := file.read(1 << 20):
            size += each * len(text) + CELL_BYTES * sum(text.count(mark) for mark in marks)
            require_memory("what it has", size, "keep fewer rows")


def _open(path: Path) -> Any:
    unpack: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    return unpack(path, "rb")


def _idx(path: Path) -> NDArray[np.uint8]:
    with _reading(path, "an IDX file"):
        _require_fits(path, b"", each=8)
        with _open(path) as file:
            raw = file.read()
        dimensions = raw[3] if raw[:3] == b"\0\0\x08" else 0
        shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4).astype(int)
        require(dimensions > 0, "it does not start with the mark of IDX bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@contextmanager
def _reading(source: Path | str, kind: str, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # parsers of others raise nearly anything
        said = (str(error) or type(error).__name__).strip()
        raise ValueError(
            f"cannot read {source} as {kind}: {said}{remedy and f'; {remedy}'}"
        ) from None
