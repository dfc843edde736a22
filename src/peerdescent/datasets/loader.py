"""`load` makes a `Dataset` from a name or a path, by a fixed sequence of steps.

The steps: find the source, parse it (cached, see cache.py), fill missing values, scale columns, map labels, select
rows, normalise rows. The cache holds the parsed data, so a call with other options does not parse again.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.preprocessing import maxabs_scale, normalize

from peerdescent.datasets import formats
from peerdescent.datasets.cache import Table, cache_folder, cached, fingerprint
from peerdescent.datasets.dataset import Dataset, Features, generator, stored_values
from peerdescent.datasets.planted import synthetic
from peerdescent.datasets.sets import SETS, NamedSet
from peerdescent.errors import require, unknown, whole


def load(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    seed: int = 0,
    normalise: bool = True,
    scale: bool | None = None,
    labels: str = "binary",
    positive: int | str | Iterable[int | str] | None = None,
    target: str | int = -1,
    header: bool | None = None,
) -> Dataset:
    """Load a data set: a named one, a synthetic one, or a file.

    Files are searched for at the path itself, then in `data_dir`, in the folder PEERDESCENT_DATA and in the user's
    cache folder; in each of these folders also in a subfolder with the name of the set. Named sets without files are
    downloaded from OpenML. Parsed data is cached (the variable PEERDESCENT_CACHE sets the folder). Missing values are
    read as 0, with a warning that says how many.

    Args:
        name_or_path: A key of `SETS`; "synthetic-1000x20" for 1,000 rows and 20 features; or a file: LIBSVM text or
            .csv (both also as .gz or .bz2), or .npz. For a file with the name of a set, write ./a9a or give a Path.
        data_dir: A folder to search for files.
        rows: Select that many rows, after a shuffle. None for all.
        seed: For the shuffle.
        normalise: Whether to scale every row to unit Euclidean norm. Zero rows stay zero.
        scale: Whether to scale every column to [0, 1] first, by its range in the whole set. None for the set's own
            setting, which is False for files.
        labels: "binary" for -1 and +1, or "classes" for the integer classes as they are.
        positive: The class or classes that become +1. None for the set's own setting, else the larger of two classes.
        target: The label column of a .csv file, by name or number.
        header: Whether the first line of a .csv file has the names of its columns. None to find out; a line of numbers
            that may be names is refused.

    Returns:
        The data set.

    >>> load("digits")
    Dataset('digits', 1,797 rows x 64 features, 51.1% nonzero, labels -1: 49.6%, 1: 50.4%)
    >>> load("digits", rows=10, labels="classes").labels.dtype
    dtype('int64')
    """
    if labels not in ("binary", "classes"):
        raise unknown("labels", labels, ("binary", "classes"))
    require(
        positive is None or labels == "binary",
        f"positive={positive!r} has no meaning with labels='classes': leave one of them out",
    )
    rng, rows = generator(seed), rows if rows is None else whole("rows", rows, least=1)
    folders = _folders(data_dir)
    known = SETS.get(name_or_path.lower()) if isinstance(name_or_path, str) else None
    planted = re.fullmatch(r"synthetic-(\d+)x(\d+)", str(name_or_path))
    if planted:
        made = synthetic(int(planted[1]), int(planted[2]))
        name, features, raw = made.name, made.features, made.labels
    elif known:
        require(target == -1, f"target={target!r} is for .csv files: {known.name} knows its labels")
        require(header is None, f"header={header} is for .csv files: {known.name} knows its columns")
        name, (features, raw) = known.name, _named(known, folders)
    else:
        path = _path(name_or_path, folders)
        name = path.name
        read = partial(formats.read_file, path, target, header)
        key = f"{fingerprint(path)} {target!r} {header}"
        # Reading an archive takes no longer than reading the cache.
        features, raw = read() if path.suffix == ".npz" else cached(name, key, read)
    require(min(features.shape) > 0, f"{name} has shape {features.shape}: give at least one row and one feature")
    features = _float32(features, known.unit if known else 1.0, name)
    if scale if scale is not None else known is not None and known.scale:
        features = _min_max(features, name)
    default = known.positive if known else ()
    mapped = _binary(raw, positive, default, name) if labels == "binary" else _classes(raw, name)
    about: dict[str, Any] = {"data": Dataset(features, mapped, name).facts["rows"], "normalised": normalise}
    if rows is not None:
        about |= {"rows": rows, "data seed": seed}
        require(rows <= len(raw), f"rows={rows} is more than the {len(raw)} rows of {name}: ask for fewer, or for all")
        kept = rng.permutation(len(raw))[:rows]
        features, mapped = features[kept], mapped[kept]
    return Dataset(normalize(features, copy=False) if normalise else features, mapped, name, about)


def _folders(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    given = (data_dir, os.environ.get("PEERDESCENT_DATA"), cache_folder())
    folders = [Path(os.path.expanduser(folder)) for folder in given if folder]
    require(
        data_dir is None or folders[0].is_dir(),
        f"data_dir={str(data_dir)!r} is not a folder: create it, or leave it out",
    )
    return folders


def _path(name_or_path: str | os.PathLike[str], folders: list[Path]) -> Path:
    path = Path(os.path.expanduser(name_or_path))  # unlike Path.expanduser, it leaves an unknown ~user as it is
    for candidate in (path, *(folder / path for folder in folders)):
        if candidate.is_file():
            return candidate
    if isinstance(name_or_path, str) and name_or_path == path.stem:
        raise unknown("data set", name_or_path, SETS)
    places = ", ".join(str(folder) for folder in (Path.cwd(), *folders))
    raise ValueError(f"no file {path}, looked for in {places}: give its whole path, or a named set: {', '.join(SETS)}")


def _named(known: NamedSet, folders: list[Path]) -> Table:
    read, files = known.read, _find(known, folders)
    if read and (files or not known.files):
        table = cached(known.name, fingerprint(*files), lambda: read(files))
        require(
            table[0].shape == known.shape and len(table[1]) == known.shape[0],
            f"{known.name} as found in {', '.join(map(str, files))} has shape {table[0].shape} with {len(table[1])} "
            f"labels, and should have {known.shape}: download it again, or give the path to load it as a file",
        )
        return table
    data_id = known.openml
    assert data_id is not None  # every entry of SETS has files, a reader without files, or an OpenML id
    try:
        return cached(known.name, f"OpenML {data_id}", lambda: formats.read_openml(data_id, known.name))
    except OSError as error:
        reason = str(error)
    files_wanted = f"no files {', '.join(known.files)} (plain, .gz or .bz2)" if known.files else "no cached copy"
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


def _float32(features: Features, unit: float, name: str) -> Features:
    features = features.astype(np.float32, copy=False)
    values = stored_values(features)
    missing = np.isnan(values)
    if count := int(np.count_nonzero(missing)):
        warnings.warn(f"{name}: {count:,} missing values ({count / values.size:.1%}) are read as 0", stacklevel=3)
        values[missing] = 0
    if unit != 1:
        values /= unit
    return features


def _min_max(features: Features, name: str) -> Features:
    """Every column in [0, 1], by its range."""
    if isinstance(features, np.ndarray):
        features -= features.min(axis=0)
        return maxabs_scale(features, copy=False)
    low = features.min(axis=0).toarray().ravel()
    worst = int(np.argmin(low))
    require(
        low[worst] >= 0,
        f"{name} is sparse, and scale=True would fill column {worst}, whose smallest value is {low[worst]:g}: "
        "pass scale=False, or load a dense copy",
    )
    # A column whose smallest value is above 0 has no zeros to keep.
    features.data -= low[features.indices]
    return csr_array(maxabs_scale(features, copy=False))


def _binary(
    raw: NDArray[Any], positive: int | str | Iterable[int | str] | None, default: tuple[int, ...], name: str
) -> NDArray[np.float32]:
    classes = np.unique(raw).tolist()
    shown = ", ".join(f"{c:g}" if isinstance(c, float) else repr(c) for c in classes[:20])
    chosen: list[Any]
    if positive is not None:
        chosen = list(positive) if isinstance(positive, Iterable) and not isinstance(positive, str) else [positive]
        shown_as = chosen if isinstance(positive, tuple) else positive
        require(
            bool(chosen) and all(c in classes for c in chosen) and len(set(chosen)) < len(classes),
            f"positive={shown_as!r} must be some, but not all, of the classes of {name}: {shown}",
        )
    elif default:
        chosen = list(default)
    else:
        require(
            len(classes) == 2,
            f"{name} has {len(classes)} classes ({shown}), and binary labels need two: say which become +1, as in "
            f"positive={classes[-1]!r}, or name another column of labels by target=",
        )
        chosen = classes[1:]
    return np.where(np.isin(raw, np.array(chosen)), 1, -1).astype(np.float32)


def _classes(raw: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Integer classes: whole numbers as they are, text numbered in alphabetical order."""
    if raw.dtype.kind not in "biuf":
        return np.unique(raw, return_inverse=True)[1].astype(np.int64)
    require(
        bool(np.all(raw == np.round(raw))), f"{name} has labels such as {raw[0]}: classes are whole numbers or text"
    )
    return raw.astype(np.int64)
