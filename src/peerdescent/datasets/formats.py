"""One reader per file format or source. Each returns features and labels as the source has them."""

from __future__ import annotations

import bz2
import gzip
import http.client
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import dropwhile
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


@dataclass(frozen=True)
class TableOptions:
    """What `load` is told about the columns of a table."""

    target: tables.Column | None = None
    header: bool | None = None
    index: tuple[tables.Column, ...] = ()
    groups: tables.Column | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that are given, by name, as they were given."""
        index = self.index[0] if len(self.index) == 1 else list(self.index) or None
        return {
            name: value
            for name, value in (asdict(self) | {"index": index}).items()
            if value is not None
        }


def uncompressed_suffix(path: Path) -> str:
    """The suffix of a file's name, without that of its compression.

    >>> uncompressed_suffix(Path("data/trees.csv.gz"))
    '.csv'
    """
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def read_file(path: Path, options: TableOptions) -> Table:
    """Read a .csv or .npz file; any other file is read as LIBSVM text, which has no suffix of its own."""
    suffix = uncompressed_suffix(path)
    if suffix == ".csv":
        return read_csv(path, options)
    for name, value in options.given.items():
        raise ValueError(
            f"{name}={value!r} is about columns, and {path.name} is not a .csv file: leave it out"
        )
    return read_npz(path) if suffix == ".npz" else read_libsvm([path])


def read_set(known: NamedSet, paths: Sequence[Path]) -> Table:
    """Read the files of a named set, or the set that comes with scikit-learn."""
    if known.form == "embedded":
        return Table(*load_digits(return_X_y=True))
    if known.form == "libsvm":
        return read_libsvm(paths, features=known.shape[1])
    return read_csv(paths[0]) if known.form == "csv" else read_idx(paths)


def read_libsvm(paths: Sequence[Path], features: int | None = None) -> Table:
    """Read LIBSVM text, the rows of several files one after the other.

    `features` is the number of columns: it cannot be read from a file whose last columns are all zero. Features are
    taken to be counted from 1, unless there is a feature 0.
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


def read_csv(path: Path, options: TableOptions = TableOptions()) -> Table:  # noqa: B008  # it cannot change
    """Read separated text, with or without a header; the labels are in the last column unless `target` is given.

    Values are separated by commas, or if that makes one column of each line, by semicolons or tabs.
    A first line of numbers that may be names is refused unless `header` says what it is. So are an index column that is
    not named by `index`, and texts as features unless `target` says where the labels are.
    """
    target, header, unsure = options.target, options.header, False
    with _reading(path, "comma-separated text"):
        _require_fits(path, b",;\t\n")
        first, separator = _first_lines(path)
        if header is None:
            header = _has_header(first)
            unsure = not header and _may_be_names(first)
        frame = pd.read_csv(path, header=0 if header else None, low_memory=False, sep=separator)
        require(
            not unsure or _comes_again(first.iloc[0], frame),
            f"its first line is {tables.some(first.iloc[0].fillna('(empty)').tolist(), 4)}, which may be names of "
            "columns or numbers; say which by header=",
        )
    written = first.iloc[0].dropna().astype(str).str.strip().tolist() if header else []
    twice = next(
        (name for name in written if written.count(name) > 1), None
    )  # pandas has renamed the second
    require(twice is None, f"{path.name} has several columns called {twice!r}: rename all but one")
    require(
        len(frame) > 0 and frame.shape[1] > 1,
        f"{path.name} has {len(frame)} rows of {frame.shape[1]} columns: give features and labels, comma-separated",
    )
    asked = replace(options, target=-1 if target is None else target)
    found = tables.roles(frame, asdict(asked), path.name, numbered=True)
    for place, name in enumerate(frame.columns):
        require(
            not header
            or name in found["index"]
            or name in found.values()
            or bool(first.iloc[0].notna().iloc[place]),
            f"{'the first column' if place == 0 else f'column {place}'} of {path.name} has no name, so it is an index: "
            f"leave it out by index={place}, or if it is a feature, name it",
        )
    for role in found.keys() & {"target", "groups"}:
        _keep_texts(
            frame,
            found[role],
            partial(pd.read_csv, path, header=0 if header else None, sep=separator),
        )
    made = tables.table(frame, path.name, texts=target is not None, **found)
    return made if header or made.encoded else made._replace(columns=())


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

    Text categories become codes 1, 2, ... in the order OpenML lists them; missing values stay missing (NaN).
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


def _first_lines(path: Path) -> tuple[pd.DataFrame, str]:
    """The first two lines of a table, and what separates their values."""

    def lines(separator: str) -> pd.DataFrame:
        return pd.read_csv(path, header=None, nrows=2, dtype=object, sep=separator)

    several = {}
    for separator in ",;\t":
        with suppress(pd.errors.ParserError):  # lines of different lengths: then it is another one
            found = lines(separator)
            if found.shape[1] > 1:
                several[separator] = found
    unsure = all(
        separator in several and several[separator].notna().all(axis=None) for separator in ",;"
    )
    require(
        not unsure,
        "its separator may be , or ;: read it by pandas.read_csv, with sep= and decimal=, and load that",
    )
    separator = next(iter(several), ",")
    return several[separator] if several else lines(","), separator


def _has_header(first: pd.DataFrame) -> bool:
    """Whether the first line is a header: it has text and no number at all, or text in a column of numbers."""
    head, *rest = [
        [tables.is_number(cell) for cell in row] for row in first.to_numpy()
    ]  # an empty cell is NaN
    texts = not all(head) and not any(np.array(head) & first.iloc[0].notna())
    return texts or any(
        below and not above for row in rest for above, below in zip(head, row, strict=True)
    )


def _may_be_names(first: pd.DataFrame) -> bool:
    """Whether a first line of numbers may be names: 0, 1, 2, ..., or whole numbers above features that are not.

    Empty cells before them, above an index, are as pandas writes them. Texts beside them, above texts, do not count.
    """
    lines = first.fillna("").to_numpy().tolist()
    if len(lines) < 2:
        return False
    cells = list(zip(*lines, strict=True))  # above and below
    indexed = cells[0][0] == "" and cells[0][1].strip() == "0"
    cells = list(dropwhile(lambda cell: cell[0] == "", cells))
    head = [above for above, _ in cells if above == "" or tables.is_number(above)]
    least = int(len(head) == len(cells))  # a line without texts needs more columns
    if (
        not head
        or not all(cell.strip().isdecimal() and len(cell) < 10 for cell in head)
        or len(set(head)) < len(head)
    ):
        return False
    numbers = [int(cell) for cell in head]
    counted = len(head) > least and numbers == list(range(numbers[0], numbers[0] + len(head)))
    below = [
        cell for above, cell in cells[:-1] if tables.is_number(above)
    ]  # the last column may be labels
    fractions = len(below) > least and not any(
        cell.strip().lstrip("-").isdecimal() for cell in below
    )
    return counted or indexed or fractions


def _comes_again(line: pd.Series[Any], frame: tables.Frame) -> bool:
    """Whether a text of the first line is one of the texts below it, so that it is no name, or only one row follows."""
    texts = [
        (k, cell)
        for k, cell in enumerate(line)
        if isinstance(cell, str) and not tables.is_number(cell)
    ]
    return bool(texts) and (
        len(frame) < 3
        or any(
            (frame.iloc[1:, k].astype(str).str.lower() == cell.lower()).any() for k, cell in texts
        )
    )


def _keep_texts(
    frame: tables.Frame, column: tables.Column, read: Callable[..., tables.Frame]
) -> None:
    """Put back the texts of a column that pandas took for numbers, where several of them are one number."""
    numbers = frame[column]
    if pd.api.types.is_numeric_dtype(numbers) and not pd.api.types.is_bool_dtype(numbers):
        texts = read(usecols=[frame.columns.get_loc(column)], dtype=str).iloc[:, 0]
        if texts.str.strip().nunique() != numbers.nunique():
            frame[column] = texts


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

    What counts is `each` for every byte, and `CELL_BYTES` for every number; numbers end with one of the bytes `marks`.
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
def _reading(source: Path | str, kind: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        remedy = "save it as UTF-8, or read it by pandas.read_csv with its encoding, and load that"
        raise ValueError(f"cannot read {source} as {kind}: {error}; {remedy}") from None
    except Exception as error:  # parsers of others raise nearly anything
        raise ValueError(
            f"cannot read {source} as {kind}: {str(error) or type(error).__name__}"
        ) from None
