"""Atomic writes of files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: to a temporary file in the same folder, flushed to disk, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    # `mkstemp` makes a file that only its owner can read; a result gets the permissions of any other new file.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
