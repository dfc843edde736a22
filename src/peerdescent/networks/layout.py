"""Where the nodes and links of a network are in a drawing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LATTICES = ("grid", "torus")
SPACING = 0.5
"""The distance of neighbours in a lattice, where the radius of a circle of nodes is 1."""
STUB = 0.18
"""The length of what is drawn of a link that closes a torus."""


def places(name: str, n: int) -> np.ndarray:
    """The positions of nodes (n, 2): in rows for a grid or torus, else clockwise on a circle.

    >>> places("ring", 4).round(2).tolist(), places("grid", 4).tolist()
    ([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, -0.0]], [[0.0, 0.0], [0.5, 0.0], [0.0, -0.5], [0.5, -0.5]])
    """
    if name in LATTICES:
        rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
        row, column = np.divmod(np.arange(n), n // rows)
        return np.column_stack([column, 0 - row]) * SPACING
    hub = 1 if name == "star" or n == 1 else 0
    angles = 2 * np.pi * np.arange(n - hub) / max(1, n - hub)
    circle = np.column_stack([np.sin(angles), np.cos(angles)])
    return np.concatenate([np.zeros((hub, 2)), circle])


def links(W: Any) -> list[tuple[int, int]]:
    """The links (j, i) of a weight matrix, where j sends to i."""
    target, source = W.nonzero()
    return [(j, i) for j, i in zip(source.tolist(), target.tolist(), strict=True) if i != j]


def segments(name: str, start: np.ndarray, end: np.ndarray) -> list[np.ndarray]:
    """The line (2, 2) between two nodes; two stubs for a link that closes a torus."""
    way = end - start
    if name != "torus" or np.abs(way).max() <= SPACING:
        return [np.stack([start, end])]
    stub = STUB * way / np.abs(way).max()
    return [np.stack([start, start - stub]), np.stack([end, end + stub])]
