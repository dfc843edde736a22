"""The costs of a run for any number of steps, known before it begins: gradients, rounds and vectors sent per node.

They follow from the method's outline, the problem (samples of an exact gradient) and the network (how many neighbours a
vector is sent to). They also turn a budget in epochs into a number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from peerdescent.engines.outline import Either, Gradient, Mix, outline
from peerdescent.errors import require
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem


class Costs:
    """The costs of a node up to x_t, for any t: gradients, rounds and p-vectors sent. They are means over nodes.

    From iteration 1 on, costs repeat with the common period of the method and the network, so only one period is
    tabulated.

    Args:
        method: The method.
        samples: How many gradients an exact local gradient counts as. None for 1, if the cost is not a finite sum.
        degrees: The mean out-degree of each W in the network's period.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> method, network = peer.methods.gt_hsgd(batch=4, initial_batch=32), peer.Network(peer.topology.ring(4))
    >>> costs = Costs.of(method, problem, network)
    >>> costs.gradients([0, 1, 2, 3]).tolist(), int(costs.gradients(1_000_000_000))
    ([0.0, 32.0, 40.0, 48.0], 8000000024)
    """

    def __init__(self, method: Method, samples: float | None, degrees: Sequence[float] | np.ndarray) -> None:
        self._name, self._outline = method.name, outline(method)
        self._samples, self._degrees = 1.0 if samples is None else samples, np.asarray(degrees, dtype=float)
        self._first = self._charge(self._outline.start, np.zeros(1, np.int64))[0]
        self._cycle = math.lcm(len(self._degrees), *self._outline.periods)
        self._table = np.zeros((1, 3))

    @classmethod
    def of(cls, method: Method, problem: Problem, network: Network) -> Costs:
        """The costs of a method on a problem and a network. Exact gradients of an infinite stream are refused."""
        require(
            problem.oracle.finite or not outline(method).takes_exact,
            f"{method.name} takes exact local gradients, and {problem.name} has none, since its samples never end: "
            "use a method without exact gradients, such as d-get",
        )
        return cls(method, problem.samples, np.atleast_2d(network.degree).mean(axis=1))

    def gradients(self, t: Any) -> np.ndarray:
        """Gradients that a node has computed up to x_t."""
        return self._spent(t)[..., 0]

    def rounds(self, t: Any) -> np.ndarray:
        """Rounds of communication up to x_t."""
        return self._spent(t)[..., 1]

    def vectors(self, t: Any) -> np.ndarray:
        """p-vectors sent up to x_t: rounds times out-degree, the mean over nodes."""
        return self._spent(t)[..., 2]

    def steps_within(self, budget: float) -> int:
        """How many iterations fit into a budget of gradients per node; at least 1."""
        budget *= 1 + 1e-12  # 0.29 epochs of 100 samples are 28.999999999999996 gradients
        later, total = budget - self._first[0], self._reach(budget)
        whole = int(later // total) if later > 0 else 0
        rest = later - whole * total
        return max(1, 1 + whole * (len(self._table) - 1) + int(np.searchsorted(self._table[:, 0], rest, "right")) - 1)

    def reaching(self, targets: np.ndarray) -> np.ndarray:
        """The first t at which a node has computed at least `targets` gradients."""
        later, total = targets - self._first[0], self._reach(float(np.max(targets)))
        whole = np.maximum(np.ceil(later / total) - 1, 0)
        found = np.searchsorted(self._table[:, 0], later - whole * total, "left")
        steps = 1 + whole.astype(np.int64) * (len(self._table) - 1) + found
        return np.where(targets <= 0, 0, np.where(later <= 0, 1, steps))

    def _spent(self, t: Any) -> np.ndarray:
        t = np.asarray(t, dtype=np.int64)
        later = np.maximum(t - 1, 0)
        self._extend(int(later.max(initial=1)))
        whole, rest = np.divmod(later, len(self._table) - 1)
        return (t > 0)[..., None] * self._first + whole[..., None] * self._table[-1] + self._table[rest]

    def _reach(self, budget: float) -> float:
        """Extend the table to a whole period or to the budget; returns its total of gradients."""
        length = 1024
        while True:
            self._extend(length)
            total = float(self._table[-1, 0])
            if len(self._table) > self._cycle:
                require(total > 0, f"{self._name} computes no gradients, so epochs mean nothing: give steps")
                return total
            if total + self._first[0] > budget:
                return total
            length *= 2

    def _extend(self, length: int) -> None:
        """Make the table cover iterations 1..length, or one whole period if that is shorter."""
        length = min(self._cycle, length)
        if length < len(self._table):
            return
        each = self._charge(self._outline.step, np.arange(1, length + 1))
        self._table = np.concatenate([np.zeros((1, 3)), each.cumsum(axis=0)])

    def _charge(self, events: list[Any], t: np.ndarray) -> np.ndarray:
        """The gradients, rounds and vectors sent (k, 3) of each of the iterations t (k,)."""
        spent = np.zeros((len(t), 3))
        for event in events:
            if isinstance(event, Gradient):
                spent[:, 0] += self._samples if event.sample is None else event.sample.batch
            elif isinstance(event, Mix):
                spent[:, 1] += 1
                spent[:, 2] += self._degrees[t % len(self._degrees)]
            elif isinstance(event, Either):
                due = (t % event.period == 0)[:, None]
                spent += np.where(due, self._charge(event.then, t), self._charge(event.otherwise, t))
        return spent
