"""Measured speeds of the plain program and of the kernel on a GPU, from which the faster one is chosen.

Measured on one NVIDIA H200 with gt-hsgd, 20 nodes and float32 (benchmarks/results/gpu_masked.md). On another GPU the
times differ, and we assume that their ratios are similar.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BATCHES = (1, 4, 16, 64, 256, 1024)


class Speeds(NamedTuple):
    """Microseconds per step and configuration for `BATCHES`, with many configurations."""

    kernel: tuple[float, ...]
    plain: tuple[float, ...]


SPEEDS = {
    64: Speeds((0.017, 0.033, 0.086, 0.357, 1.35, 5.51), (0.027, 0.040, 0.045, 0.067, 0.148, 0.464)),
    128: Speeds((0.034, 0.064, 0.180, 0.698, 2.77, 10.8), (0.058, 0.084, 0.093, 0.121, 0.239, 0.729)),
    512: Speeds((0.292, 0.429, 0.622, 1.81, 6.55, 24.8), (0.198, 0.279, 0.327, 0.402, 0.766, 2.20)),
}
"""Speeds by the largest number of columns they are for."""

FILLS = 350
"""With fewer configurations than this, the kernel does not get faster: they do not fill the GPU."""
LAUNCH = 30.0
"""The least microseconds of a step of the plain program."""
COMPILE = 10.0
"""Seconds to compile a plain program. Each combination of sizes needs one; the kernel is compiled once."""


def plain_is_faster(columns: int, batch: int, configurations: int, steps: int) -> bool:
    """Whether the plain program is faster for configurations of one combination of sizes, compilation included.

    >>> plain_is_faster(123, 1, 1000, 36_000), plain_is_faster(477, 1, 1100, 200_000)
    (False, True)
    """
    known = SPEEDS[min((width for width in SPEEDS if columns <= width), default=max(SPEEDS))]
    kernel, plain = (np.exp(np.interp(np.log(batch), np.log(BATCHES), np.log(speeds))) for speeds in known)
    by_kernel = steps * kernel * max(configurations, FILLS)
    by_plain = steps * max(plain * configurations, LAUNCH) + COMPILE * 1e6
    return bool(by_plain < by_kernel)
