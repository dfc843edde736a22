"""Algorithm 1's output x_tilde: an iterate chosen uniformly over all nodes and steps."""

from __future__ import annotations

import math

import numpy as np


def visited(seed: int, start: int, end: int, nodes: int) -> tuple[int, int] | None:
    """The (step, node) in steps start + 1..end whose iterate x_tilde becomes, or None if x_tilde does not change.

    This is reservoir sampling over recording intervals: after each of them, x_tilde is uniform over
    all nodes and all steps so far, 0 included.
    """
    rng = _generator(seed, end)
    if rng.random() >= (end - start) / (end + 1):
        return None
    return int(rng.integers(start + 1, end + 1)), int(rng.integers(nodes))


def moves(seed: int, start: int, end: int, nodes: int) -> list[tuple[int, int]]:
    """All (step, node) in steps start + 1..end whose iterates x_tilde becomes, for a run that may end at any of them.

    Step s is one with probability 1 / (s + 1), so x_tilde is uniform after every step. From one
    step s to the next, k, P(k > j) = (s + 1) / (j + 1).
    """
    rng, found, step = _generator(seed, end), [], start
    while (step := max(step + 1, math.ceil((step + 1) / (1 - rng.random())) - 1)) <= end:
        found.append((step, int(rng.integers(nodes))))
    return found


def _generator(seed: int, end: int) -> np.random.Generator:
    return np.random.default_rng([seed, end, 0x71DE])
