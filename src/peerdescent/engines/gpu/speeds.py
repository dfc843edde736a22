"""How long many configurations take on a GPU, by the plain program and by the kernel: the basis of routing.

Measured on one NVIDIA H200 with gt-hsgd, 20 nodes, float32 and 1,024 configurations
(benchmarks/results/gpu_step.md). Another GPU shifts all of these together, so the comparison still
applies.

Methods with restarts were measured with d-get and d-spider-sfo
(benchmarks/results/gpu_restarts.md). A restart costs both programs about the same, so it is the
steps between restarts that decide.
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


class Costs(NamedTuple):
    """What a sweep costs besides its steps."""

    fills: int
    """Configurations below which the kernel takes no less time: they do not fill the GPU."""
    launch: float
    """Microseconds that a step of the plain program takes at least."""
    compile: float
    """Seconds that a plain program takes to compile; each combination of sizes is one. The kernel is compiled once."""


USUAL, RESTARTS = Costs(350, 30.0, 10.0), Costs(150, 75.0, 15.0)


def plain_is_faster(
    columns: int, batch: int, steps: Sequence[int], periods: Sequence[int] = ()
) -> bool:
    """Whether the plain program runs configurations of one combination of sizes faster, compilation included.

    In the kernel each configuration takes its own time, while in the plain program all of them run
    as long as the longest.

    Args:
        columns: The dimension.
        batch: The minibatch of steps that are not restarts.
        steps: The steps of each configuration.
        periods: The period of each configuration, for a method with restarts.

    Returns:
        Whether it is faster.

    >>> plain_is_faster(123, 1, [36_000] * 1000), plain_is_faster(477, 1, [200_000] * 1100)
    (False, True)
    """
    known = SPEEDS[min((width for width in SPEEDS if columns <= width), default=max(SPEEDS))]
    at = np.log(batch), np.log(known.batches)
    kernel, plain = (
        np.exp(np.interp(*at, np.log(speeds))) for speeds in (known.kernel, known.plain)
    )
    more = RESTARTS if periods else USUAL
    ordinary = [t * (1 - 1 / q) for t, q in zip(steps, periods, strict=True)] if periods else steps
    by_kernel = kernel * max(sum(ordinary), more.fills * max(ordinary))
    by_plain = max(steps) * max(plain * len(steps), more.launch) + more.compile * 1e6
    return bool(by_plain < by_kernel)
