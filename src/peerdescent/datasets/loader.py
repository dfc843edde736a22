"""`load` makes a `Dataset` from a name, a path or data in memory, by a fixed sequence of steps.

The steps: find the source, parse it, scale columns, map labels, select rows, normalise rows.
A cache (cache.py) holds what was parsed, but for .csv files, so a call with other options does not
parse again.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.preprocessing import MaxAbsScaler, normalize
from sklearn.utils.sparsefuncs import inplace_column_scale

from peerdescent.datasets import formats, in_memory, tables
from peerdescent.datasets.alike import arranged, relabelled
from peerdescent.datasets.cache import cache_folder, cached, fingerprint
from peerdescent.datasets.dataset import (
    SHOWN,
    Dataset,
    Features,
    Kind,
    Reading,
    rounded,
    shown,
    stored_values,
)
from peerdescent.datasets.labelling import labelled
from peerdescent.datasets.partitions import generator
from peerdescent.datasets.planted import synthetic
from peerdescent.datasets.sets import SETS, NamedSet
from peerdescent.datasets.tables import Table, some, whose
from peerdescent.errors import require, unknown, whole

EXACT = 2**53
"""Larger whole numbers have digits that float64 has not."""
ORDINARY = 1e-5, 1e18
"""Between these are the largest entries of ordinary rows; scikit-learn takes smaller ones for zeros, and float32 has no
squares of larger ones."""
UNITS = 1000
"""Columns of which one is so many times larger than another have different units, most likely."""


def load(
    source: Any,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    seed: int = 0,
    normalise: bool | None = None,
    scale: bool | None = None,
    labels: Kind | None = None,
    positive: int | str | Iterable[int | str] | None = None,
    target: str | int | None = None,
    groups: str | int | ArrayLike | None = None,
    like: Dataset | None = None,
    name: str | None = None,
) -> Dataset:
    """Load a data set: a named one, a synthetic one, a file, or data in memory.

    Files are searched for at the path itself, then in `data_dir`, in the folder PEERDESCENT_DATA
    and in the user's cache folder; in each of these folders also in a subfolder with the name of
    the set. Named sets without files are downloaded from OpenML. Parsed data is cached (the
    variable PEERDESCENT_CACHE sets the folder).

    The features of a DataFrame are numbers and truth values. Texts are refused, which
    `pandas.get_dummies` turns into numbers, and so are missing values. A .csv file is what
    `pandas.read_csv` makes of it by its defaults: `load("a.csv", target="y")` is
    `load(pandas.read_csv("a.csv"), target="y")`.

    Args:
        source: One of these:
            - a key of `SETS`, or "synthetic-1000x20" for 1,000 rows and 20 features;
            - a file: LIBSVM text or .csv (both also as .gz or .bz2), or .npz; for a file with the name of a set, write
              ./a9a or give a Path;
            - (features, labels): arrays, lists, a SciPy sparse array, a DataFrame and a Series;
            - a pandas DataFrame, or what has `to_pandas()`; its index is no feature;
            - scikit-learn's Bunch, as from `load_breast_cancer()`;
            - a data set of Hugging Face's `datasets`.
        data_dir: A folder to search for files.
        rows: Select that many rows, after a shuffle. None for all.
        seed: For the shuffle.
        normalise: Whether to scale every row to unit Euclidean norm. Zero rows stay zero. None for yes, but for real
            targets of your own data, which a row of another length would no longer fit. `notes` says what was done.
        scale: Whether to scale every column to [0, 1] first, by its range in the whole set. None for the set's own
            setting, which is False for what has no name in `SETS`. `notes` says where columns are of different units.
        labels: "binary" for -1 and +1, "classes" for 0 to C - 1, or "real" for the numbers as they are. None for the
            set's own setting, else what the values are: two different ones are binary; texts, and whole numbers of at
            most 100 different values, are classes; other numbers are real. `classes` of the result says what the
            labels stand for.
        positive: The class or classes that become +1. None for the set's own setting, else the larger of two classes,
            or the last of two categories of pandas.
        target: The name of the column that has the labels, for a DataFrame or a .csv file.
        groups: A column that says whose row it is, such as the hospital, or its values; it is no feature, and
            `partition(by="hospital")` makes a node of each value.
        like: A data set to load these rows like, as rows to test on like those to train on: `scale`, `normalise` and
            labels are done as there, with its ranges, columns and classes. What it has not is refused. Rows like those
            of a named set are as in its source, and are divided by its unit, such as pixels by 255.
        name: What to call data in memory.

    Returns:
        The data set.

    >>> data = load("digits")
    >>> len(data), data.dimension, data.kind, data.classes
    (1797, 64, 'binary', ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)))
    >>> train = load(([[3.0, 4.0], [0.0, 2.0]], ["no", "yes"]), scale=True, normalise=False)
    >>> train
    Dataset('data', 2 rows x 2 features, 50.0% nonzero, labels -1 (no): 50.0%, 1 (yes): 50.0%)
    >>> load(([[1.5, 3.0]], ["yes"]), like=train).features
    array([[0.5, 0.5]], dtype=float32)
    """
    reading = Reading()
    if like is not None:
        require(isinstance(like, Dataset), f"like={like!r} is no data set: give what load returned")
        for option, value in (
            ("normalise", normalise),
            ("scale", scale),
            ("labels", labels),
            ("positive", positive),
        ):
            require(
                value is None,
                f"{option}={value!r} has no meaning with like=, whose own is taken: leave it out",
            )
        reading = like.reading or reading
        require(
            not reading.changed,
            f"features of {like.name} are others than load gave, so what to do to rows like them is unknown: give "
            "like= what load returned",
        )
        normalise, scale = reading.normalised, reading.ranges is not None
    rng, rows = generator(seed), rows if rows is None else whole("rows", rows, least=1)
    column = groups if isinstance(groups, str | int) else None
    known = SETS.get(source.lower()) if isinstance(source, str) else None
    if isinstance(source, str | os.PathLike):
        require(name is None, f"name={name!r} is for data in memory: {source} has its own")
        name, table = _read(source, known, _folders(data_dir), target, column)
    else:
        require(data_dir is None, f"data_dir={str(data_dir)!r} is for files: leave it out")
        name, table = in_memory.read(source, target, column, name)
    table = table if like is None else arranged(table, like, name)
    features = table.features
    require(
        min(features.shape) > 0,
        f"{name} has shape {features.shape}: give at least one row and one feature",
    )
    _check_digits(features, name, table.columns)
    is_scaled = scale if scale is not None else known is not None and known.scale
    precise = is_scaled and not np.can_cast(features.dtype, np.float32)
    features = features.astype(np.float64) if precise else rounded(features, name, table.columns)
    unit = known.unit if known and like is None else reading.unit
    features = _filled(features, unit, name, table.columns, known is not None)
    ranges = None
    if is_scaled:
        features, ranges = _min_max(features, name, reading.ranges)
        features = features.astype(np.float32, copy=False)
    if like is None:
        mapped, classes = labelled(
            table.labels, name, labels, positive, known.positive if known else ()
        )
    else:
        mapped, classes = relabelled(table.labels, like, name)
    owners: dict[str, Any] = {}
    if groups is not None:
        called = "groups" if column is None else str(column)
        owners[called] = (
            whose(groups, called, table.row_index) if table.groups is None else table.groups
        )
    row_index = table.row_index
    is_own = known is None and _planted(source) is None
    normalise = not is_own or bool(classes) if normalise is None else normalise
    checksum = Dataset(features, mapped, name).facts["rows"]
    about: dict[str, Any] = {"data": checksum, "scaled": is_scaled, "normalised": normalise}
    counted = ["features are counted from 0 in the file"] if table.first == 0 else []
    notes = [*counted, *_notes(mapped, classes)] if is_own else []
    if is_own and normalise:
        notes.append("rows were scaled to norm 1; normalise=False keeps them")
    if is_own and scale is None:
        notes += _different_sizes(features, table.columns)
    if rows is not None:
        about |= {"rows": rows, "row seed": seed}
        count = len(mapped)
        require(
            rows <= count,
            f"rows={rows} is more than the {count} rows of {name}: ask for fewer, or for all",
        )
        kept = rng.permutation(count)[:rows]
        features, mapped = features[kept], mapped[kept]
        row_index = (pd.RangeIndex(count) if row_index is None else row_index)[kept]
        owners = {called: values[kept] for called, values in owners.items()}
    if normalise:
        features = _normalised(features)
    read = Reading(normalise, ranges, unit, reading.first if table.first is None else table.first)
    return Dataset(
        features, mapped, name, about, classes, table.columns, owners, tuple(notes), read, row_index
    )


def _planted(source: Any) -> re.Match[str] | None:
    """The numbers of rows and features in the name of a synthetic set."""
    return re.fullmatch(r"synthetic-(\d+)x(\d+)", source) if isinstance(source, str) else None


def _read(
    source: str | os.PathLike[str],
    known: NamedSet | None,
    folders: list[Path],
    target: tables.Column | None,
    groups: tables.Column | None,
) -> tuple[str, Table]:
    """The name and the table of a named set, a synthetic one or a file."""
    planted = _planted(source)
    path = None if known or planted else _path(source, folders)
    suffix = path and formats.uncompressed_suffix(path)
    if path and suffix == ".csv":
        return path.name, tables.table(formats.read_csv(path), path.name, target, groups)
    for role, column in (("target", target), ("groups", groups)):
        require(
            column is None,
            f"{role}={column!r} is for tables, such as .csv files, and {source} is none: "
            "leave it out",
        )
    if planted:
        made = synthetic(int(planted[1]), int(planted[2]))
        return made.name, Table(made.features, made.labels)
    if known:
        return known.name, _named(known, folders)
    assert path is not None
    if suffix == ".npz":  # reading it takes no longer than reading the cache
        return path.name, formats.read_npz(path)
    read = cached(path.name, fingerprint(path), lambda: formats.read_libsvm([path]))
    return path.name, read


def _notes(labels: NDArray[Any], classes: tuple[Any, ...]) -> list[str]:
    """What was done to labels."""
    codes = list(map(str, range(len(classes)))) if labels.dtype == np.int64 else ["-1", "+1"]
    if classes and [value.strip("+") for value in codes] != list(map(str, classes)):
        said = [f"{code} is {shown(value)}" for code, value in zip(codes, classes, strict=True)]
        return [f"labels: {'; '.join(said[:SHOWN])}{'; ...' if len(said) > SHOWN else ''}"]
    return []


def _different_sizes(features: Features, columns: tuple[str, ...]) -> list[str]:
    """A note on the largest and the smallest column, if they are of different units. Columns of zeros do not count."""
    if isinstance(features, np.ndarray):
        sizes = abs(features).max(axis=0)
        places = np.arange(len(sizes))
    else:  # there may be billions of columns without an entry
        entries, places = pd.factorize(features.indices, sort=True)
        sizes = np.zeros(len(places), np.float32)
        np.maximum.at(sizes, entries, abs(features.data))
    sizes, places = sizes[sizes > 0], places[sizes > 0]
    if not len(sizes) or sizes.max() < UNITS * sizes.min():
        return []
    ends = int(sizes.argmax()), int(sizes.argmin())
    said = " and ".join(
        f"{_called(int(places[k]), columns)} up to {_short(float(sizes[k]))}" for k in ends
    )
    return [f"columns differ in size, {said}: scale=True brings them to [0, 1]"]


def _short(size: float) -> str:
    return f"{size:,.0f}" if 100 <= size < 1e9 else f"{size:.3g}"


def _called(column: int, columns: tuple[str, ...]) -> str:
    """What a message calls a column."""
    return columns[column] if columns else f"feature {column}"


def _folders(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    given = (data_dir, os.environ.get("PEERDESCENT_DATA"), cache_folder())
    folders = [Path(os.path.expanduser(folder)) for folder in given if folder]
    require(
        data_dir is None or folders[0].is_dir(),
        f"data_dir={str(data_dir)!r} is not a folder: create it, or leave it out",
    )
    return folders


def _path(name_or_path: str | os.PathLike[str], folders: list[Path]) -> Path:
    path = Path(
        os.path.expanduser(name_or_path)
    )  # unlike Path.expanduser, it leaves an unknown ~user as it is
    for candidate in (path, *(folder / path for folder in folders)):
        if candidate.is_file():
            return candidate
    if isinstance(name_or_path, str) and name_or_path == path.stem:
        raise unknown("data set", name_or_path, SETS)
    places = ", ".join(str(folder) for folder in (Path.cwd(), *folders))
    raise ValueError(
        f"no file {path}, looked for in {places}: give its whole path, or a named set: {', '.join(SETS)}"
    )


def _named(known: NamedSet, folders: list[Path]) -> Table:
    files = _find(known, folders)
    if known.form and (files or not known.files):
        table = cached(known.name, fingerprint(*files), lambda: formats.read_set(known, files))
        require(
            table.features.shape == known.shape and len(table.labels) == known.shape[0],
            f"{known.name} as found in {', '.join(map(str, files))} has shape {table.features.shape} with "
            f"{len(table.labels)} "
            f"labels, and should have {known.shape}: download it again, or give the path to load it as a file",
        )
        return table
    data_id = known.openml
    assert (
        data_id is not None
    )  # every entry of SETS has files, a reader without files, or an OpenML id
    try:
        return cached(
            known.name, f"OpenML {data_id}", lambda: formats.read_openml(data_id, known.name)
        )
    except OSError as error:
        reason = str(error)
    files_wanted = (
        f"no files {', '.join(known.files)} (plain, .gz or .bz2)"
        if known.files
        else "no cached copy"
    )
    raise ValueError(
        f"cannot get {known.name}: {files_wanted} in {', '.join(map(str, folders))}, and OpenML did not give data "
        f"{data_id} ({reason}). Connect once (it is then cached), or download it by other means and "
        + (
            "put the files in one of these folders, or name theirs by data_dir= or PEERDESCENT_DATA"
            if known.files
            else "load it by its path"
        )
    )


def _find(known: NamedSet, folders: list[Path]) -> list[Path]:
    """The files of a set, from the first folder that has any of them; an empty list if no folder has."""
    for place in (place for folder in folders for place in (folder, folder / known.name)):
        found = {
            file: path
            for file in known.files
            for compression in reversed(formats.COMPRESSIONS)
            if (path := place / (file + compression)).is_file()
        }
        missing = [file for file in known.files if file not in found]
        require(
            not found or not missing,
            f"{place} holds {', '.join(found)} but not {', '.join(missing)} (plain, .gz or .bz2), and {known.name} is "
            "all of them: add the missing, or give the path to load one as a file",
        )
        if found:
            return list(found.values())
    return []


def _filled(
    features: Features, unit: float, name: str, columns: tuple[str, ...], known: bool
) -> Features:
    """The features in units of the set; missing values are 0 in a named set, else refused."""
    values = stored_values(features)
    missing = np.isnan(values)
    if missing.any():
        places = (
            np.nonzero(missing)[1]
            if isinstance(features, np.ndarray)
            else features.indices[missing]
        )
        where = some([_called(place, columns) for place in np.unique(places).tolist()])
        require(
            known,
            f"{name} has missing values in {where}: fill them in, as by "
            "frame.fillna(frame.median()), or leave those rows out, as by frame.dropna()",
        )
        share = f"{len(places):,} missing values ({len(places) / values.size:.1%})"
        warnings.warn(f"{name}: {share} are read as 0, in {where}", stacklevel=3)
        values[missing] = 0
    if unit != 1:
        values /= unit
    return features


def _check_digits(features: Any, name: str, columns: tuple[str, ...]) -> None:
    """Warn of whole numbers that lose digits as floating-point numbers, whatever is done to them."""
    if features.dtype.kind not in "iu" or features.dtype.itemsize < 8 or not features.size:
        return
    values: Any = stored_values(features)
    if values.size and max(int(values.max()), -int(values.min())) > EXACT:
        largest = np.argmax(abs(values.astype(float)))
        column = (
            largest % features.shape[1]
            if isinstance(features, np.ndarray)
            else features.indices[largest]
        )
        text = f"{_called(int(column), columns)} has whole numbers beyond 2^53, which lose digits"
        warnings.warn(
            f"{name}: {text}: subtract a constant from them, or leave out what are no numbers",
            stacklevel=3,
        )


def _normalised(features: Features) -> Features:
    """Every row with norm 1, or 0."""
    rows: Any = features
    largest = abs(rows).max(axis=1)
    largest = largest if isinstance(largest, np.ndarray) else largest.toarray().ravel()
    if (largest > ORDINARY[1]).any() or (largest[largest > 0] < ORDINARY[0]).any():
        largest[largest == 0] = 1
        if isinstance(rows, np.ndarray):
            rows /= largest[:, None]
        else:
            rows.data /= np.repeat(largest, np.diff(rows.indptr))
    return normalize(rows, copy=False)


def _min_max(
    features: Features, name: str, ranges: tuple[NDArray[Any], NDArray[Any]] | None
) -> tuple[Features, tuple[NDArray[Any], NDArray[Any]]]:
    """Every column in [0, 1] by its range, or scaled as those of another data set were; and what it was scaled by."""
    rows: Any = features  # one of two kinds, which are scaled alike
    is_dense = isinstance(features, np.ndarray)
    if ranges is not None:
        low, size = ranges
    else:
        low = rows.min(axis=0) if is_dense else rows.min(axis=0).toarray().ravel()
    if is_dense:
        rows -= low
    else:
        counts = np.bincount(rows.indices, minlength=rows.shape[1])
        filled = next(iter(np.flatnonzero((low != 0) & (counts < rows.shape[0])).tolist()), None)
        require(
            filled is None,
            f"{name} is sparse, and scale=True would fill column {filled}, whose smallest value is "
            f"{0 if filled is None else low[filled]:g}: pass scale=False, or load a dense copy",
        )
        rows.data -= low[rows.indices]
    if ranges is None:
        size = MaxAbsScaler().fit(rows).scale_
    if is_dense:
        rows /= size
    else:
        inplace_column_scale(rows, 1 / size)
    return rows, (low, size)
