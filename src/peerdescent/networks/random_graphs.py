"""Graphs that are drawn anew in every round, from the counter of the round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from peerdescent.threefry import Draw

RULES = ("metropolis", "lazy")


@dataclass(frozen=True)
class RandomGraph(ABC):
    """A graph on nodes 0..n-1 that is drawn anew in every round; given to a `Network`.

    Weights are those of the rule in the graph that was drawn, so every W_t is symmetric and doubly
    stochastic.
    """

    n: int
    rule: str = "metropolis"
    name: ClassVar[str] = "random graph"

    @property
    def about(self) -> list[str]:
        """Its own numbers, as text."""
        own = [field.name for field in fields(self) if field.name not in ("n", "rule")]
        return ["drawn every round", *(f"{name}={getattr(self, name):.3g}" for name in own)]

    @property
    @abstractmethod
    def degrees(self) -> float:
        """How many neighbours a node has on average."""

    @abstractmethod
    def joined(self, draw: Draw, ends: Any) -> Any:
        """Which of the pairs of nodes (E, 2) are joined in a round, (E,)."""

    def weights(self, draw: Draw, ends: Any) -> Any:
        """The weights (E,) of all pairs in a round; 0 for those that are not joined."""
        if self.n == 1:
            return draw.xp.zeros(0)
        xp, up = draw.xp, self.joined(draw, ends)
        one, other = ends[:, 0], ends[:, 1]
        # All pairs are listed in the order of the upper triangle, so the degrees are sums over a
        # matrix.
        place = xp.minimum(self._row(one) + other - one - 1, len(up) - 1)
        nodes = xp.arange(self.n)
        low, high = xp.minimum(nodes[:, None], nodes), xp.maximum(nodes[:, None], nodes)
        index = xp.where(low < high, self._row(low) + high - low - 1, 0)
        degree = xp.where(low < high, up[index], False).sum(axis=1)
        larger = xp.maximum(degree[one], degree[other])
        share = 2 * larger if self.rule == "lazy" else 1 + larger
        return xp.where(up[place], 1.0 / xp.maximum(share, 1), 0.0)

    def _row(self, i: Any) -> Any:
        """The number of the first pair of node i with a later one."""
        return i * (2 * self.n - i - 1) // 2


@dataclass(frozen=True)
class RandomMatching(RandomGraph):
    """Pairs of nodes, all of them disjoint; if n is odd, one node is left alone."""

    name: ClassVar[str] = "random-matching"

    @property
    def degrees(self) -> float:
        """One, or none at the node that is left alone."""
        return (self.n - self.n % 2) / self.n

    def joined(self, draw: Draw, ends: Any) -> Any:
        """Neighbours in a random order, in twos."""
        pair = _places(draw, self.n) // 2
        return pair[ends[:, 0]] == pair[ends[:, 1]]


@dataclass(frozen=True)
class RandomRegular(RandomGraph):
    """Every node has `degree` neighbours, on a circle in a random order at random distances."""

    degree: int = 4
    name: ClassVar[str] = "random-regular"

    @property
    def degrees(self) -> float:
        """The degree."""
        return float(self.degree)

    def joined(self, draw: Draw, ends: Any) -> Any:
        """One draw for the order of the nodes, one for the distances."""
        xp, farthest = draw.xp, (self.n - 1) // 2
        order, distances = (
            draw._replace(first=draw.of(xp.asarray([k])).first[0]) for k in range(2)
        )
        place = _places(order, self.n)
        apart = xp.abs(place[ends[:, 0]] - place[ends[:, 1]])
        apart = xp.minimum(apart, self.n - apart)
        chosen = _places(distances, max(farthest, 1)) < self.degree // 2
        found = chosen[xp.minimum(apart, farthest) - 1] & (apart <= farthest)
        return found | (2 * apart == self.n) if self.degree % 2 else found


@dataclass(frozen=True)
class RandomPairs(RandomGraph):
    """Every pair is joined with a probability, each for itself (Erdős and Rényi)."""

    probability: float = 0.5
    name: ClassVar[str] = "erdos-renyi"

    @property
    def degrees(self) -> float:
        """The probability of an edge for each other node."""
        return self.probability * (self.n - 1)

    def joined(self, draw: Draw, ends: Any) -> Any:
        """A coin for each pair."""
        if self.probability == 1:
            return draw.words(len(ends)) >= 0
        return draw.chance(self.probability, len(ends))


def _places(draw: Draw, n: int) -> Any:
    """The place of each node in a random order. Searching is faster than a second sort."""
    xp = draw.xp
    nodes, order = xp.arange(n), xp.argsort(draw.words(n), stable=True)
    return xp.argmax(order == nodes[:, None], axis=1)
