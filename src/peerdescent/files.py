"""Files that are whole or not there at all, and short names for the values of arrays."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np


def write(path: Path, content: bytes) -> None:
    """Write all of a file or nothing: to a temporary file beside it, forced to disk, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    # A temporary file is readable by its owner alone; a result gets the permissions of any other new file.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def digest(*trees: Any) -> str:
    """A short name for the values of all arrays in the trees, their shapes and their types.

    >>> digest(np.zeros(2)) == digest([np.zeros(2)]), digest(np.zeros(2)) == digest(np.zeros(2, np.float32))
    (True, False)
    """
    crc = 0
    for leaf in jax.tree.leaves(trees):
        array = np.ascontiguousarray(leaf)
        crc = zlib.crc32(repr((array.shape, array.dtype.str)).encode(), crc)
        crc = zlib.crc32(array.data.cast("B"), crc) if array.size else crc
    return f"{crc:08x}"
