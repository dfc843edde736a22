"""How long many configurations take on a GPU, by the plain program and by the kernel: what routing rests on.

Measured on one NVIDIA H200 with gt-hsgd, 20 nodes, float32 and 1,024 configurations (benchmarks/results/gpu_step.md).
Another GPU shifts all of these together, so that the comparison still serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Speeds(NamedTuple):
    """Microseconds for one step of one configuration, at some batch sizes."""

    batches: tuple[int, ...]
    kernel: tuple[float, ...]
    plain: tuple[float, ...]


SPEEDS = {
    128: Speeds((1, 32, 256), (0.043, 0.416, 2.94), (0.0722, 0.1375, 0.326)),
    1024: Speeds((1, 256), (0.352, 8.75), (0.230, 1.38)),
}
"""By the largest number of columns: measured at 123 and at 477."""

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
    at = np.log(batch), np.log(known.batches)
    kernel, plain = (np.exp(np.interp(*at, np.log(speeds))) for speeds in (known.kernel, known.plain))
    by_kernel = kernel * max(sum(steps), FILLS * max(steps))
    by_plain = max(steps) * max(plain * len(steps), LAUNCH) + COMPILE * 1e6
    return bool(by_plain < by_kernel)
