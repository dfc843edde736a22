"""Which engines there are, where each is defined, and how a run joins the other processes of one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from peerdescent.errors import require, unknown

if TYPE_CHECKING:
    from peerdescent.engines import Engine
    from peerdescent.methods.contract import Method
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem


class Entry(NamedTuple):
    """An engine: what it is, its module and class, and whether each node is a process with that node's data only."""

    description: str
    module: str
    name: str
    processes: bool = False


ENGINES = {
    "stacked": Entry("all nodes in one array, compiled; simulation on CPU or GPU", "stacked", "Stacked"),
    "debug": Entry(
        "a Python loop over nodes, no compilation; names node, step and stage of an error", "debug", "Debug"
    ),
    "sharded": Entry("nodes over the devices of a JAX mesh, one or many hosts", "sharded", "Sharded"),
    "processes": Entry(
        "a process a node, with its own data; started by torchrun", "processes", "Processes", processes=True
    ),
}


def connect(name: str) -> int:
    """Join the other processes of a run, where the engine has any; the number of this one, 0 writes files and shows."""
    join = getattr(_module(name), "connect", None)
    return 0 if join is None else int(join())


def make(name: str, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> Engine:
    """The engine of that name, ready to start."""
    engine: Engine = getattr(_module(name), ENGINES[name].name)(method, problem, network, seed, dtype)
    return engine


def _module(name: str) -> Any:
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    try:
        return import_module(f"peerdescent.engines.{ENGINES[name].module}")
    except ModuleNotFoundError as error:
        require(error.name != "torch", f"engine {name} needs PyTorch, which is not installed: pip install torch")
        raise
