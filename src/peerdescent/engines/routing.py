"""The choice between the two programs for many configurations: XLA's (plain), and on a GPU also our own kernel."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from peerdescent.engines import gpu
from peerdescent.engines.devices import on_gpu
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem


def fleet_for(
    members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any
) -> Fleet:
    """The fleet that runs these configurations. On a GPU, a `Kernel` if possible; it uses the faster program."""
    # The kernel has no reduced precision.
    reduced = jax.config.jax_default_matmul_precision != "highest"  # type: ignore[attr-defined]
    if members and on_gpu() and not reduced:
        kinds = {member.method.pattern: member.method for member in members}
        if all(gpu.supports(kind, problem, network, dtype) for kind in kinds.values()):
            return gpu.Kernel(members, problem, network, x0, dtype)
    return Fleet(members, problem, network, x0, dtype)
