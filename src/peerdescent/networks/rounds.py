"""Rounds: the links that carry a message, and their weights. Faults are applied here alone.

Links are the pairs of nodes that may exchange messages, i < j, in a fixed order; a link has two
directions, 0 from i to j and 1 back. Engines ask for the weights of what arrives, and compute sums
with them in their own layout. The code runs on NumPy and JAX arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from peerdescent.networks.faults import Fault
from peerdescent.threefry import source

EVER = 1 << 20
"""The number of a round that stands for the whole iteration."""
GRAPH = 1 << 16
"""The purpose of draws of a random graph; faults have the numbers 0, 1, ..."""


@dataclass(frozen=True)
class Rounds:
    """The links of a network, and all that may happen on them.

    The weights (period, E, 2) are those of the ideal network; `pushed` are the weights of `push`,
    None if they are the same. A random `graph` draws its own weights. `code` is a checksum of what
    faults and graphs of a user's own do.
    """

    ends: Any
    weights: Any
    pushed: Any
    nodes: int
    faults: tuple[Fault, ...]
    graph: Any
    code: str = ""

    @property
    def links(self) -> int:
        """The number of links, E."""
        return int(self.ends.shape[0])

    def begin(self, xp: Any, seed: Any) -> tuple[Any, ...]:
        """The memory of all faults that have one, in iteration 0."""
        draws = [
            (fault, source(xp, seed, 0, k, EVER))
            for k, fault in enumerate(self.faults)
            if fault.lasting
        ]
        return tuple(fault.begin(draw, self.links) for fault, draw in draws)

    def later(self, xp: Any, seed: Any, t: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        """The memory in iteration t, from that in the one before."""
        draws = [
            (fault, source(xp, seed, t, k, EVER))
            for k, fault in enumerate(self.faults)
            if fault.lasting
        ]
        return tuple(
            fault.later(draw, known) for (fault, draw), known in zip(draws, memory, strict=True)
        )

    def at(self, xp: Any, seed: Any, t: Any, memory: tuple[Any, ...]) -> Iteration:
        """What happens in iteration t."""
        asleep = [
            found
            for k, fault in enumerate(self.faults)
            if (found := fault.asleep(source(xp, seed, t, k, EVER), self.nodes)) is not None
        ]
        awake = None
        for found in asleep:
            awake = ~found if awake is None else awake & ~found
        if awake is not None:
            awake = awake | (xp.asarray(t) == 0)
        lasting = iter(memory)
        known = tuple(next(lasting) if fault.lasting else None for fault in self.faults)
        return Iteration(self, xp, seed, t, known, awake)


class Decided(NamedTuple):
    """The draws of a round: links with messages (E,), losses (E, 2), random weights (E,).

    None stands for all, none, and no random graph.
    """

    up: Any
    lost: Any
    drawn: Any


class Iteration(NamedTuple):
    """What happens in one iteration."""

    rounds: Rounds
    xp: Any
    seed: Any
    t: Any
    memory: tuple[Any, ...]
    awake: Any
    """Which nodes are awake, (n,); None if all are."""

    def up(self, number: int) -> Any:
        """Which links carry messages in a round, (E,), as both ends know; None if all do."""
        up = None
        for k, fault in enumerate(self.rounds.faults):
            cut = fault.cut(self._drawn(k, number), self.memory[k], self.rounds.links)
            if cut is not None:
                up = ~cut if up is None else up & ~cut
        if self.awake is not None:
            both = self.awake[self.rounds.ends[:, 0]] & self.awake[self.rounds.ends[:, 1]]
            up = both if up is None else up & both
        return up

    def decided(self, number: int) -> Decided:
        """All that is random about a round, but for what happens to the content of messages."""
        graph = self.rounds.graph
        drawn = (
            None if graph is None else graph.weights(self._drawn(GRAPH, number), self.rounds.ends)
        )
        return Decided(self.up(number), self._lost(number), drawn)

    def weights(
        self, number: int, push: bool = False, decided: Decided | None = None
    ) -> tuple[Any, Any]:
        """The weights (E, 2) of the messages sent in a round and of those that arrive; 0 for none.

        What is not sent, both ends keep; what is lost, the receiver keeps.
        """
        rounds, xp = self.rounds, self.xp
        up, lost, drawn = self.decided(number) if decided is None else decided
        if drawn is not None:
            sent = xp.stack([drawn, drawn], axis=1)
        else:
            own = rounds.pushed if push and rounds.pushed is not None else rounds.weights
            sent = own[0] if own.shape[0] == 1 else own[self.t % own.shape[0]]
        if up is not None:
            sent = xp.where(up[:, None], sent, 0)
        return sent, sent if lost is None else xp.where(lost, 0, sent)

    def arrives(self, number: int) -> Any:
        """The messages that arrive in a round, (E, 2): those of weight above 0."""
        if self.rounds.graph is None:
            return self.weights(number)[1] > 0
        joined, up = (
            self.rounds.graph.joined(self._drawn(GRAPH, number), self.rounds.ends),
            self.up(number),
        )
        joined = joined if up is None else joined & up
        both, lost = self.xp.stack([joined, joined], axis=1), self._lost(number)
        return both if lost is None else both & ~lost

    def message(self, number: int, x: Any, nodes: Any) -> Any:
        """The vectors x (k, ..., p) of nodes (k,) as they arrive; x if nothing distorts them."""
        for k, fault in enumerate(self.rounds.faults):
            x = fault.sent(self._drawn(k, number), x, nodes)
        return x

    @property
    def distorts(self) -> bool:
        """Whether messages arrive changed, or with noise."""
        kinds = (
            type(fault).sent is not Fault.sent or fault.spread > 0 for fault in self.rounds.faults
        )
        return any(kinds)

    def noise(self, number: int, weights: Any, x: Any, nodes: Any) -> Any:
        """The summed noise on the messages to nodes (k,) with weights (k, d); 0 without noise."""
        xp, total = self.xp, 0
        for k, fault in enumerate(self.rounds.faults):
            if fault.spread > 0:
                drawn = self._drawn(k, number).of(nodes).normal(x.shape[-1], x.dtype)
                scale = fault.spread * xp.sqrt((weights * weights).sum(axis=1))
                drawn = drawn * scale[:, None].astype(x.dtype)
                total = total + drawn.reshape(drawn.shape[0], *[1] * (x.ndim - 2), drawn.shape[1])
        return total

    def _lost(self, number: int) -> Any:
        """Which messages are sent and lost, (E, 2); None if none can be."""
        lost = None
        for k, fault in enumerate(self.rounds.faults):
            own = fault.lost(self._drawn(k, number), self.rounds.links)
            if own is not None:
                lost = own if lost is None else lost | own
        return lost

    def _drawn(self, purpose: int, number: int) -> Any:
        return source(self.xp, self.seed, self.t, purpose, number)


def slots(ends: np.ndarray, nodes: int, dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each node its possible senders, and the places of their weights, both (n, d).

    The place of a weight is its number in the flattened (E, 2), and 2 E for no link. `dense` has
    all n nodes, in order.
    """
    none = 2 * len(ends)
    first, second = ends.T
    place = np.arange(len(ends))
    rows, columns = np.concatenate([second, first]), np.concatenate([first, second])
    where = np.concatenate([2 * place, 2 * place + 1])
    if dense:
        found = np.full((nodes, nodes), none, np.int32)
        found[rows, columns] = where
        return np.broadcast_to(np.arange(nodes, dtype=np.int32), (nodes, nodes)), found
    order = np.lexsort((columns, rows))
    rows, columns, where = rows[order], columns[order], where[order]
    counts = np.bincount(rows, minlength=nodes)
    slot = np.arange(len(rows)) - np.repeat(np.concatenate([[0], counts.cumsum()[:-1]]), counts)
    width = max(1, int(counts.max(initial=0)))
    neighbours, found = np.zeros((nodes, width), np.int32), np.full((nodes, width), none, np.int32)
    neighbours[rows, slot], found[rows, slot] = columns, where
    return neighbours, found


def by_link(matrices: Any, ends: np.ndarray) -> np.ndarray:
    """The weights (period, E, 2) of matrices on given links."""
    if not len(ends):  # one node; SciPy has another kind of result for no entries
        return np.zeros((len(matrices), 0, 2))
    first, second = ends.T
    if not len(ends):  # SciPy would return something sparse
        return np.zeros((len(matrices), 0, 2))
    each = [sparse.csr_array(W) for W in matrices]
    return np.stack([np.stack([W[second, first], W[first, second]], axis=1) for W in each])


def matrix(rounds: Rounds, weights: Any, push: bool = False) -> np.ndarray:
    """The matrix (n, n) of a round from the weights (E, 2) that arrive; nodes keep the rest."""
    W = np.zeros((rounds.nodes, rounds.nodes))
    first, second = np.asarray(rounds.ends).T
    W[second, first], W[first, second] = weights[:, 0], weights[:, 1]
    return W + np.diag(1 - W.sum(axis=0 if push else 1))
