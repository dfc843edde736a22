"""Files that are whole or not there at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
