"""Algorithm 1's output x_tilde: an iterate chosen uniformly over all nodes and steps."""

from __future__ import annotations

import numpy as np


def visited(seed: int, start: int, end: int, nodes: int) -> tuple[int, int] | None:
    """The (step, node) in steps start + 1..end whose iterate x_tilde becomes, or None if x_tilde does not change.

    This is reservoir sampling over recording intervals: after each of them, x_tilde is uniform over all nodes and all
    steps so far, 0 included.
    """
    rng = np.random.default_rng([seed, end, 0x71DE])
    if rng.random() >= (end - start) / (end + 1):
        return None
    return int(rng.integers(start + 1, end + 1)), int(rng.integers(nodes))
