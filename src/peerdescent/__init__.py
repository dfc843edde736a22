"""Decentralized stochastic optimization: nodes with private data descend together, with no server.

import peerdescent as peer

data = peer.datasets.load("digits")
problem = peer.problems.logistic(data.partition(20), strength=1e-4)
network = peer.Network(peer.topology.exponential(20))
method = peer.methods.gt_hsgd(alpha=0.5, beta=0.01, initial_batch=32)
trace = peer.run(method, problem, network, epochs=30, seed=0)
trace.table
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import peerdescent.engines  # noqa: F401  before JAX compiles anything, since it sets an option of XLA
from peerdescent.run import run
from peerdescent.sweep import sweep
from peerdescent.trace import Status, Trace
from peerdescent.tune import tune

__version__ = "0.1.0"

if TYPE_CHECKING:
    from peerdescent import (
        datasets,
        engines,
        estimators,
        fusions,
        methods,
        plot,
        problems,
        record,
        report,
        reproduce,
        theory,
        topology,
    )
    from peerdescent.method import Method, compose
    from peerdescent.network import Network

# Imported on first use, so that `peerdescent --help` does not wait for JAX. Only `run`, `sweep` and `tune` are imported
# at once (and are light): a function that shares its module's name would otherwise be shadowed by whoever imports the
# module first.
_HOMES = {"Method": "method", "compose": "method", "Network": "network"}

__all__ = [
    "Method",
    "Network",
    "Status",
    "Trace",
    "compose",
    "datasets",
    "engines",
    "estimators",
    "fusions",
    "methods",
    "plot",
    "problems",
    "record",
    "report",
    "reproduce",
    "run",
    "sweep",
    "theory",
    "topology",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'peerdescent' has no attribute {name!r}")
    module = import_module(f"peerdescent.{_HOMES.get(name, name)}")
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return __all__
