"""Atomic writes of files."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: to a temporary file in the same folder, flushed to disk, then renamed.

    A write that fails, by a full disk for example, leaves the former file and nothing else.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # `mkstemp` makes a file that only its owner can read; a result gets the permissions of any other new file.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Flush a folder to disk, so that a name in it survives a loss of power; not all systems can do it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
