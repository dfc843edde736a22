"""Processes of one run meet: each tells what it is about to do, and nobody goes on where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from peerdescent.errors import require

FIELD = 512
"""Bytes of a fact, cut or filled up to so many."""


def agree(facts: Mapping[str, Any], gather: Callable[[np.ndarray], Any]) -> None:
    """Refuse to go on where processes differ in a fact, and say which, what and whose.

    `gather` collects an array of every process, (processes, ...) or joined along the first axis.

    >>> agree({"seed": 0}, lambda rows: np.stack([rows, rows]))
    >>> agree({"seed": 0}, lambda rows: np.stack([rows, _rows({"seed": 1})]))
    Traceback (most recent call last):
    ValueError: processes 0 and 1 are not of one run: seed is '0' in one, '1' in the other; start all with one command
    """
    mine = _rows(facts)
    told = np.asarray(gather(mine)).reshape(-1, *mine.shape)
    for process, rows in enumerate(told):
        for name, first, other in zip(facts, told[0], rows, strict=True):
            here, there = (bytes(row).rstrip(b"\0").decode(errors="replace") for row in (first, other))
            require(
                here == there,
                f"processes 0 and {process} are not of one run: {name} is {here!r} in one, {there!r} in the other; "
                "start all with one command",
            )


def _rows(facts: Mapping[str, Any]) -> np.ndarray:
    rows = np.zeros((len(facts), FIELD), np.uint8)
    for row, value in zip(rows, facts.values(), strict=True):
        text = str(value).encode()[:FIELD]
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return rows
