"""The registry of engines. A new engine is one module and one entry here."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from peerdescent.errors import require, unknown


class Entry(NamedTuple):
    """An engine: its description, its class, and how it is started."""

    description: str
    module: str
    name: str
    processes: bool = False
    """Whether it has one process per node, each with the data and the checkpoints of its own node."""
    needs: str = ""
    """A package that it needs and that the default installation does not have."""
    example: str = ""
    """How it is started, if not as the others are; `{}` is the command."""
    together: bool = False
    """Whether several seeds can run at once."""


ENGINES = {
    "stacked": Entry(
        "all nodes in one array, compiled; simulation on CPU or GPU",
        "stacked",
        "Stacked",
        together=True,
    ),
    "debug": Entry(
        "a Python loop over nodes, no compilation; names node, step and stage of an error",
        "debug",
        "Debug",
    ),
    "sharded": Entry(
        "nodes over the devices of a JAX mesh, one or many hosts", "sharded", "Sharded"
    ),
    "processes": Entry(
        "one process per node, with its own data; started by torchrun",
        "processes",
        "Processes",
        True,
        "torch",
        "torchrun --nproc-per-node 20 -m {} --engine processes",
    ),
}
DEFAULT = "stacked"


def connect(name: str) -> int:
    """Join the other processes of a run, if the engine has any.

    Returns:
        The number of this process; number 0 writes files and shows results.
    """
    join = getattr(_module(name), "connect", None)
    return 0 if join is None else int(join())


def engine_class(name: str) -> Any:
    """The class of the engine of that name; see `contract.Engine`."""
    return getattr(_module(name), ENGINES[name].name)


def _module(name: str) -> Any:
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    entry = ENGINES[name]
    require(
        not entry.needs or find_spec(entry.needs) is not None,
        f"engine {name} needs {entry.needs}, which is not installed: pip install {entry.needs}",
    )
    return import_module(f"peerdescent.engines.{entry.module}")
