"""What `run` asks of an engine."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np

from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem


class Engine(Protocol):
    """Supplies the verbs to a method, on one problem and network."""

    packages: ClassVar[tuple[str, ...]]
    """Packages that it computes with: processes of one run must have the same versions of them."""

    def __init__(self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> None: ...

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Compile everything, evaluation at `points` points included, so that no clock sees it."""

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0, from x0 (n, p)."""

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1; it may consume `state`."""

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (k,) and its gradients (k, p) at points (k, p)."""

    def gather(self, state: Any) -> Any:
        """The same tree for all nodes in NumPy arrays (n, p), on every process; a copy that nothing changes later."""

    def scatter(self, kept: Any) -> Any:
        """The state that `gather` made a copy of, and again a copy."""
