"""From where the runs of some seeds continue, and which of them can do so together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peerdescent.errors import require
from peerdescent.runs.trace import Status, Trace
from peerdescent.runs.traces import Traces


def earlier_of(resume: Any, seeds: Sequence[int], several: bool, total: int) -> dict[int, Trace]:
    """The earlier traces in the argument `resume` of a run of `total` steps, by seed."""
    if resume is None:
        return {}
    if not several:
        earlier = Trace.load(resume) if isinstance(resume, str | Path) else resume
        require(
            isinstance(earlier, Trace),
            f"resume is a {type(earlier).__name__}: give one trace, or leave out seed",
        )
        require(
            earlier.steps < total,
            f"nothing to resume: the earlier run has {earlier.steps} of {total} steps",
        )
        return {seeds[0]: earlier}
    traces = Traces.load(resume) if isinstance(resume, str | Path) else resume
    require(
        isinstance(traces, Traces),
        f"resume is a {type(traces).__name__}: with several seeds, give traces or a folder",
    )
    found = {trace.identity.seed: trace for trace in traces if trace.identity.seed in seeds}
    ended = [trace.status == Status.diverged or trace.steps >= total for trace in found.values()]
    require(
        len(found) < len(seeds) or not all(ended),
        f"nothing to resume: all of the earlier runs diverged or have {total} steps",
    )
    return found


def together(steps: Mapping[int, Sequence[int]], most: int) -> list[tuple[int, list[int]]]:
    """Groups of seeds that continue from the same step, at most so many in each, as (step, seeds).

    `steps` are those that each seed can continue from, none if it begins; seeds with one in common
    are grouped, and continue from the newest that all of them have. The step of a group that begins
    is -1.

    >>> together({0: [40, 30, 20], 1: [30, 20, 10], 2: [], 3: []}, 8), together({0: [], 1: [], 2: [], 3: []}, 3)
    ([(30, [0, 1]), (-1, [2, 3])], [(-1, [0, 1]), (-1, [2, 3])])
    """
    left, found = {seed: set(known) or {-1} for seed, known in steps.items()}, []
    while left:
        some: list[int] = []
        common = next(iter(left.values()))
        for seed, own in left.items():
            if common & own:
                some.append(seed)
                common = common & own
        parts = -(-len(some) // most)
        size = -(-len(some) // parts)
        found += [(max(common), some[at : at + size]) for at in range(0, len(some), size)]
        left = {seed: own for seed, own in left.items() if seed not in some}
    return found
