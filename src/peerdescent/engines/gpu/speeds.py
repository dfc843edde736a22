"""How long many configurations take on a GPU, by the plain program and by the kernel: what routing rests on.

Measured on one NVIDIA H200 with gt-hsgd, 20 nodes and float32 (benchmarks/results/gpu_masked.md). Another GPU shifts
all of these together, so that the comparison still serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BATCHES = (1, 4, 16, 64, 256, 1024)


class Speeds(NamedTuple):
    """Microseconds a step and configuration for `BATCHES`, where there are many configurations."""

    kernel: tuple[float, ...]
    plain: tuple[float, ...]


SPEEDS = {
    64: Speeds((0.017, 0.033, 0.086, 0.357, 1.35, 5.51), (0.027, 0.040, 0.045, 0.067, 0.148, 0.464)),
    128: Speeds((0.034, 0.064, 0.180, 0.698, 2.77, 10.8), (0.058, 0.084, 0.093, 0.121, 0.239, 0.729)),
    512: Speeds((0.292, 0.429, 0.622, 1.81, 6.55, 24.8), (0.198, 0.279, 0.327, 0.402, 0.766, 2.20)),
}
"""By the largest number of columns."""

FILLS = 350
"""Configurations below which the kernel takes no less time: they do not fill the GPU."""
LAUNCH = 30.0
"""Microseconds that a step of the plain program takes at least."""
COMPILE = 10.0
"""Seconds that a plain program takes to compile; each combination of sizes is one. The kernel is compiled once."""
PROGRAMS, LARGE = 3, 16
"""A method with restarts, whose steps differ in cost, is the plain program's if it has so few combinations of sizes and
no smaller batch; by an estimate from steps and batches the paper's grid of d-get took 200 seconds instead of 33."""


def plain_is_faster(columns: int, batch: int, steps: Sequence[int]) -> bool:
    """Whether the plain program runs configurations of one combination of sizes faster, compilation included.

    This is for methods whose steps all cost the same. `steps` are those of each configuration: in the kernel each takes
    its own time, while in the plain program all of them run as long as the longest.

    >>> plain_is_faster(123, 1, [36_000] * 1000), plain_is_faster(477, 1, [200_000] * 1100)
    (False, True)
    """
    known = SPEEDS[min((width for width in SPEEDS if columns <= width), default=max(SPEEDS))]
    kernel, plain = (np.exp(np.interp(np.log(batch), np.log(BATCHES), np.log(speeds))) for speeds in known)
    by_kernel = kernel * max(sum(steps), FILLS * max(steps))
    by_plain = max(steps) * max(plain * len(steps), LAUNCH) + COMPILE * 1e6
    return bool(by_plain < by_kernel)
