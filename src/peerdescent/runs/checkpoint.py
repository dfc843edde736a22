"""Checkpoints: the state from which a process continues. A crash at any moment leaves at least one that is valid.

A checkpoint is one safetensors file, written atomically. Its name has its step and the start of the
SHA-256 of its bytes, so that a truncated or changed file is detected and an earlier one is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as packed

from peerdescent.errors import require
from peerdescent.files import write

KEPT = 3
"""Checkpoints that remain after a save: other processes may be one behind, and one checkpoint may be damaged.

There may be more: a process that is killed between writing one and removing the oldest leaves four.
"""


def save(folder: Path, step: int, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of a step, and remove the oldest ones.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> path = save(folder, 7, {"x": np.ones(2)}, {"seed": 0})
    >>> steps(folder), load(folder, 7)[0]["x"].tolist(), load(folder, 7)[1]
    ([7], [1.0, 1.0], {'seed': 0})
    """
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    content = packed(contiguous, metadata={"facts": json.dumps(facts)})
    path = folder / f"step-{step}-{_digest(content)}.safetensors"
    if not _is_whole(path):
        write(path, content)
    others = sorted(((found, old) for found, old in _named(folder) if old != path), reverse=True)
    # One of the same step had another status, such as that of a run that could have ended there.
    for _, old in [one for one in others if one[0] == step] + [
        one for one in others if one[0] != step
    ][KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def steps(folder: Path) -> list[int]:
    """The steps with a valid checkpoint, the newest first."""
    return sorted({step for step, path in _named(folder) if _is_whole(path)}, reverse=True)


def newest(folder: Path) -> tuple[Path, int] | None:
    """The folder and the step of its newest valid checkpoint, or None."""
    found = steps(folder)
    return (folder, found[0]) if found else None


def load(folder: Path, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and facts in the checkpoint of a step."""
    path = next(path for found, path in _named(folder) if found == step and _is_whole(path))
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _facts(path)  # noqa: SIM118


def others(folder: Path, step: int, identity: dict[str, Any]) -> list[tuple[Path, int, Any]]:
    """The checkpoints after a step, and those of runs with another identity: path, step and identity of each."""
    own = json.loads(json.dumps(identity))
    found = [
        (path, at, _facts(path).get("identity") if _is_whole(path) else own)
        for at, path in _named(folder)
    ]
    return [one for one in found if one[1] > step or one[2] != own]


def check(folder: Path) -> None:
    """Refuse to continue in a folder whose checkpoints are all damaged; one without any begins anew."""
    found = _named(folder)
    require(
        not found or bool(steps(folder)),
        f"none of the {len(found)} checkpoints in {folder} is whole: start the run again, without resuming it",
    )


def clear(folder: Path) -> None:
    """Remove all checkpoints of a folder."""
    for _, path in _named(folder):
        path.unlink(missing_ok=True)


def _facts(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        facts: dict[str, Any] = json.loads(file.metadata()["facts"])
    return facts


def _named(folder: Path) -> list[tuple[int, Path]]:
    found = [
        (re.fullmatch(r"step-(\d+)-[0-9a-f]{16}\.safetensors", path.name), path)
        for path in folder.glob("step-*")
    ]
    return [(int(match[1]), path) for match, path in found if match]


def _is_whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return path.name.endswith(f"-{_digest(content)}.safetensors")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
