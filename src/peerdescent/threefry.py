"""Random words as a function of a counter, for NumPy and JAX arrays alike."""

from __future__ import annotations

from typing import Any

import numpy as np

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def words(first: Any, second: Any, count: Any) -> Any:
    """The random 32-bit words number `count` of the key (first, second), equal to those of `jax.random.bits`.

    Threefry-2x32 with 20 rounds (Salmon et al. 2011). It is written out because JAX's own does not compile inside a
    GPU kernel, and NumPy has none. All are unsigned; NumPy arrays need at least one axis, or it warns of overflows.
    """
    keys = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
    left, right = 0 * count + keys[0], count + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation)))
        left, right = left + keys[(group + 1) % 3], right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left ^ right
