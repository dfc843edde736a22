"""The interface of engines, as `run` uses it.

A module whose engine has several processes also has a function `connect`, which joins them and
returns the number of this process; the command line calls it, through `registry.connect`, before
anything is loaded.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem


class Running(NamedTuple):
    """The state of a run over links with a memory: that of the method, and that of the links."""

    method: Any
    links: Any

    @property
    def x(self) -> Any:
        """The iterates."""
        return self.method.x

    @staticmethod
    def of(method: Any, links: Any) -> Any:
        """The state of a run; that of the method alone, if links have no memory."""
        return Running(method, links) if links else method

    @staticmethod
    def parts(state: Any) -> tuple[Any, Any]:
        """The state of the method, and that of the links."""
        return (state.method, state.links) if isinstance(state, Running) else (state, ())


class Engine(Protocol):
    """Runs a method on one problem and network."""

    packages: ClassVar[tuple[str, ...]]
    """The packages that it computes with. All processes of a run must have the same versions of them."""

    node: int | None
    """The node of this process, where each process has one; None where every process has all nodes."""

    def __init__(
        self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any
    ) -> None: ...

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Compile everything, also the evaluation at `points` points, so that measured times exclude compilation."""

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0, from x0 (n, p)."""

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1; it may consume `state`."""

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (k,) and its gradients (k, p) at points (k, p)."""

    def hold(self, state: Any) -> Any:
        """A copy of what this process has of a state, as the same tree with NumPy arrays: (n, p), or (p,) of its node.

        All processes call it at the same step.
        """

    def scatter(self, held: Any) -> Any:
        """The state from a copy that `hold` made; it shares no memory with that copy."""

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, in every process: stacked, or concatenated; of one process, the array itself."""

    def mean(self, held: np.ndarray) -> np.ndarray:
        """The mean over nodes (...) of arrays that are held, in float64: (n, ...), or (...) of the node."""
