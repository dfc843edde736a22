"""The simulator: nodes are the first axis of arrays, and one compiled program runs an interval of iterations."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from peerdescent.engines.compiled import Loop, evaluate
from peerdescent.engines.feeding import Feed
from peerdescent.engines.mixing import in_sums, weights_of
from peerdescent.engines.outline import outline
from peerdescent.engines.parts import IN_PARTS_FROM
from peerdescent.engines.program import Program, number
from peerdescent.errors import StreamEnded
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem, cast


class Stacked(Loop):
    """The engine `stacked`. With an array of seeds, they are the first axis of everything in its states."""

    packages: ClassVar[tuple[str, ...]] = ("jax",)
    node: int | None = None
    mesh: Mesh | None = None

    def __init__(
        self, method: Method, problem: Problem, network: Network, seed: Any, dtype: Any
    ) -> None:
        does = outline(method)
        # Compressors, penalties, faults of messages and numbers in a state need a vector as one
        # array.
        whole = (
            does.has_numbers or "compress" in does.verbs or problem.penalty or not network.is_known
        )
        parts = () if whole or problem.dimension < IN_PARTS_FROM else problem.parts
        data, weights = self.place(
            problem, network, dtype, max((batch for _, batch in does.requests), default=1)
        )
        weights = in_sums(weights) if parts else weights
        program = Program(
            method.pattern,
            problem.oracle,
            does.aliases,
            code=does.code,
            rounds=does.rounds,
            penalty=problem.penalty,
            parts=parts,
            mesh=self.mesh,
        )
        numbers = {name: number(value, dtype) for name, value in method.numbers.items()}
        feed = None if problem.streams is None else Feed(method, problem, dtype)
        super().__init__(
            program, method, problem, numbers, data, weights, jnp.asarray(seed, jnp.uint32), feed
        )

    def place(self, problem: Problem, network: Network, dtype: Any, batch: int) -> tuple[Any, Any]:
        """The data and the weights, on the device, for minibatches of that size."""
        return on_device(problem, dtype), weights_of(network, dtype, batch)

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Compile all programs."""
        self.compile(x0)
        self.evaluate(np.repeat(x0[:1], points, axis=0))

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1. Consumes `state`."""
        while t < until:
            try:
                state, t = self.some(state, t, until)
            except StreamEnded as error:
                error.step, error.state = t, state
                raise
        return jax.block_until_ready(state)

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (k,) and its gradients (k, p) at points (k, p)."""
        values, grads = evaluate(self.program.oracle, self.mesh, points, self.data)
        return np.asarray(values), np.asarray(grads)

    def hold(self, state: Any) -> Any:
        """A copy of the state in NumPy arrays (n, p)."""
        return jax.tree.map(np.array, state)

    def scatter(self, held: Any) -> Any:
        """A copy on the device; a copy, since `advance` consumes the state."""
        return jax.tree.map(jnp.array, held)

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The array: there is one process."""
        return array

    def mean(self, held: np.ndarray) -> np.ndarray:
        """The mean over nodes in float64."""
        found: np.ndarray = held.mean(axis=0, dtype=float)
        return found


_PLACED: weakref.WeakKeyDictionary[Problem, dict[str, Any]] = weakref.WeakKeyDictionary()


def on_device(problem: Problem, dtype: Any) -> Any:
    """The problem's data on the device. All runs share one copy."""
    placed = _PLACED.setdefault(problem, {})
    name = np.dtype(dtype).name
    if name not in placed:
        placed[name] = cast(problem.data, dtype)
    return placed[name]
