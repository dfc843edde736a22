"""A cache of parsed data on disk, so that a file is parsed once.

The cache is optional: if reading or writing it fails, the data is read from its source, without a
message.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray
from scipy.sparse import csr_array

from peerdescent.datasets.tables import Table

PARSER_VERSION = 6


def cache_folder() -> Path:
    """The folder in the variable PEERDESCENT_CACHE, else the user's cache folder."""
    if folder := os.environ.get("PEERDESCENT_CACHE"):
        return Path(folder)
    return Path(platformdirs.user_cache_dir("peerdescent"))


def fingerprint(*files: Path) -> str:
    """A text that changes when one of the files does: their paths, sizes, times of change and numbers on disk.

    A copy with an old time of modification, as by `cp -p`, still has a new time of change.
    """
    stats = [(file.resolve(), file.stat()) for file in files]
    return repr(
        [(str(path), at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino) for path, at in stats]
    )


def cached(name: str, key: str, parse: Callable[[], Table]) -> Table:
    """The cached result of an earlier `parse()` for this key, else `parse()`, which is then cached."""
    digest = hashlib.sha256(f"{PARSER_VERSION} {key}".encode()).hexdigest()[:16]
    file = cache_folder() / f"{name}-{digest}.npz"
    with suppress(Exception):  # the cached file is absent or damaged: parse the source again
        return _read(file)
    table = parse()
    with suppress(OSError):
        _write(file, table)
    return table


def _read(file: Path) -> Table:
    with (
        file.open("rb") as stream,
        np.load(stream) as parts,
    ):  # given a path, np.load would leave a damaged file open
        if "features" in parts:
            features = parts["features"]
        else:
            features = csr_array(
                (parts["data"], parts["indices"], parts["indptr"]), shape=parts["shape"]
            )
        first = int(parts["first"]) if "first" in parts else None
        return Table(features, parts["labels"], first=first)


def _write(file: Path, table: Table) -> None:
    features = table.features
    parts: dict[str, NDArray[Any]] = {"labels": np.asarray(table.labels)}
    if table.first is not None:
        parts["first"] = np.array(table.first)
    if isinstance(features, np.ndarray):
        parts["features"] = features
    else:
        parts |= {part: getattr(features, part) for part in ("data", "indices", "indptr")}
        parts["shape"] = np.array(features.shape)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".tmp", delete=False) as temporary:
        try:
            np.savez(temporary, allow_pickle=False, **parts)
            temporary.close()
            os.replace(temporary.name, file)
        finally:
            Path(temporary.name).unlink(missing_ok=True)
