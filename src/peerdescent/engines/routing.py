"""Which program runs many configurations: the plain one, or on a GPU the hand-written kernel where it is faster."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from peerdescent.engines import gpu
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.engines.outline import outline
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem

PROGRAMS, LARGE = 3, 16
"""On a GPU the plain program is the faster one from batches of about `LARGE` on, where it shares rows between
configurations; but each pair of sizes is a program of its own, and so worth it for a few of them only."""


def fleet_for(members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any) -> Fleet:
    """What runs these configurations."""
    # The kernel knows float32 proper only.
    reduced = jax.config.jax_default_matmul_precision != "highest"  # type: ignore[attr-defined]
    if members and jax.default_backend() == "gpu" and not reduced:
        kinds = {member.method.pattern: member.method for member in members}
        batches = [batch for kind in kinds.values() for _, batch in outline(kind).requests]
        few_and_large = len(kinds) <= PROGRAMS and min(batches, default=LARGE) >= LARGE
        if not few_and_large and all(gpu.supports(kind, problem, network, dtype) for kind in kinds.values()):
            return gpu.Kernel(members, problem, network, x0, dtype)
    return Fleet(members, problem, network, x0, dtype)
