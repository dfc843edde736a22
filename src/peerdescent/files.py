"""Atomic writes of files, and the folders of results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peerdescent.errors import require

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MARK = ".peerdescent"
"""The file that says that a folder is for results of this package."""
TEMPORARY = ".peerdescent-"
"""The prefix of the names of files that are being written."""
TEXT = b"Results of peerdescent. Files of its names are replaced without asking.\n"


def claim(folder: Path, force: bool = False) -> Path:
    """Make a folder for results, or take one that has the mark; refuse another that is not empty, unless forced.

    >>> home = Path(tempfile.mkdtemp())
    >>> _ = claim(home / "runs"), claim(home / "runs")
    >>> _ = (home / "notes.txt").write_text("mine")
    >>> claim(home)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ... has files that are not results of peerdescent (notes.txt, runs): give a new or empty one
    """
    require(not folder.is_file(), f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARK).is_file():
        found = sorted(
            path.name for path in folder.iterdir() if not path.name.startswith(TEMPORARY)
        )
        shown = ", ".join([*found[:3], *["..."][: len(found) - 3]])
        require(
            force or not found,
            f"{folder} has files that are not results of peerdescent ({shown}): give a new or empty one",
        )
        write(folder / MARK, TEXT)
    require(os.access(folder, os.W_OK), f"{folder} cannot be written to: give another folder")
    return folder


_HELD: set[Path] = set()


@contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """Work in a folder of results as the only process; refuse where another one does. It gets the mark.

    >>> home = Path(tempfile.mkdtemp())
    >>> with alone(home), alone(home):  # the same process may do so again
    ...     print((home / MARK).is_file())
    True
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / MARK).resolve()
    if path in _HELD or fcntl is None:
        yield folder
        return
    if not path.is_file():
        write(path, TEXT)
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process works in {folder}: wait for it, or give another folder"
            ) from None
        except OSError:  # some file systems have no locks
            pass
        _HELD.add(path)
        for left in folder.rglob(f"{TEMPORARY}*"):  # by a process that was killed
            left.unlink(missing_ok=True)
        yield folder
    finally:
        _HELD.discard(path)
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: to a temporary file in the same folder, flushed to disk, then renamed.

    A write that fails, by a full disk for example, leaves the former file and nothing else.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # `mkstemp` makes a file that only its owner can read; a result gets the permissions of
            # any other new file.
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
