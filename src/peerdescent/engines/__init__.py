"""The engines: each supplies the five verbs in its own way, and nothing else differs between them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from peerdescent.errors import unknown

if TYPE_CHECKING:
    import numpy as np

    from peerdescent.method import Method
    from peerdescent.network import Network
    from peerdescent.problems import Problem

# XLA's CPU compiler can make one machine function of a whole loop instead of a chain of small tasks, which makes tiny
# steps three times faster; it does so for loops that touch fewer bytes than this. XLA reads the variable when it first
# compiles, which is why the package sets it as soon as it is imported.
if "xla_backend_extra_options" not in os.environ.get("XLA_FLAGS", ""):
    _option = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={1 << 30}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_option}".strip()

ENGINES = {
    "stacked": "all nodes in one array, compiled; simulation on CPU or GPU",
    "debug": "a Python loop over nodes, no compilation; names node, step and stage of an error",
}


class Engine(Protocol):
    """What `run` asks of an engine."""

    def warm_up(self, x0: np.ndarray) -> None:
        """Compile all that there is to compile, so that no clock sees it."""

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0, from x0 (n, p)."""

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1."""

    def evaluate(self, x: Any) -> dict[str, float]:
        """loss, grad_norm, stationarity and consensus at iterates x (n, p)."""


def make(name: str, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> Engine:
    """The engine of that name, ready to start."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    kind = getattr(import_module(f"peerdescent.engines.{name}"), name.capitalize())
    engine: Engine = kind(method, problem, network, seed, dtype)
    return engine
