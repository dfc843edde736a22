"""Which program runs many configurations: the plain one, or on a GPU the hand-written kernel where it is faster."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from peerdescent.engines import gpu
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem


def fleet_for(members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any) -> Fleet:
    """What runs these configurations: on a GPU those of each combination of sizes by the faster of two programs."""
    # The kernel knows float32 proper only.
    reduced = jax.config.jax_default_matmul_precision != "highest"  # type: ignore[attr-defined]
    if members and jax.default_backend() == "gpu" and not reduced:
        kinds = {member.method.pattern: member.method for member in members}
        if all(gpu.supports(kind, problem, network, dtype) for kind in kinds.values()):
            return gpu.Kernel(members, problem, network, x0, dtype)
    return Fleet(members, problem, network, x0, dtype)
