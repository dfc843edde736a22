"""A round that is sent during the backward pass, piece by piece, as gradients become known.

A round allows that if its vector is a sum of multiples of the gradient and of vectors of the state. Which multiples is
learned from the step before, so a round is only sent ahead if the numbers of the method are those of that step. When
the method then asks for the round, its sum is compared with what was sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from peerdescent.engines.vectors import Vector, combine
from peerdescent.torch.flat import Flat


class Pattern(NamedTuple):
    """A round of the step before: its number and verb, and the factors and leaves of its sum; None is the gradient."""

    number: int
    verb: str
    terms: tuple[tuple[float, int | None], ...]

    @classmethod
    def of(cls, number: int, verb: str, x: Vector, leaves: dict[int, Vector], gradient: Vector) -> Pattern | None:
        """That of a round of x; None if x is anything else than such a sum."""
        known: dict[int, int | None] = {id(leaf): k for k, leaf in leaves.items()}
        known[id(gradient)] = None
        terms = [(factor, known.get(id(each), -1)) for factor, each in x.terms]
        places = [place for _, place in terms]
        return cls(number, verb, tuple(terms)) if None in places and -1 not in places else None


class Stream:
    """One such round, on its way."""

    def __init__(self, model: Flat, turn: Any, pattern: Pattern, leaves: dict[int, Vector]) -> None:
        self.model, self.pattern, self.leaves = model, pattern, leaves
        self.gradient, self.x = (model.pool.own(model.pool.take()) for _ in range(2))
        self.views = model.views_again(self.gradient.tensor)
        self.exchange, self.result = turn.begin(pattern.number, pattern.verb, self.x)
        self.seen: dict[int, tuple[Tensor | None, int]] = {}
        """For each parameter whose gradient is known, the gradient and its version."""
        self.changed = False
        """Whether a gradient came twice."""
        ends = [sum(model.sizes[:k]) for k in range(len(model.sizes) + 1)]
        self.needs = [
            {k for k in range(len(model.sizes)) if ends[k] < piece.stop and piece.start < ends[k + 1]}
            for piece in self.exchange.places
        ]
        """For each piece the parameters that are in it."""

    def know(self, k: int) -> None:
        """Parameter k has its gradient: send what can be sent."""
        grad = self.model.trained[k].grad
        self.changed |= k in self.seen
        self.seen[k] = grad, 0 if grad is None else grad._version
        if grad is None:
            self.views[k].zero_()
        else:
            self.views[k].copy_(grad.to_dense().detach())
        while self.exchange.unsent and self.needs[-len(self.exchange.unsent)] <= self.seen.keys():
            place = self.exchange.unsent[0]
            terms = [(factor, self._leaf(number).tensor[place]) for factor, number in self.pattern.terms]
            combine(self.x.tensor[place], terms)
            self.exchange.send()

    def _leaf(self, number: int | None) -> Vector:
        return self.gradient if number is None else self.leaves[number]

    def finish(self) -> tuple[Vector, bool]:
        """The gradient, after all of the round was sent, and whether it is the one that was sent."""
        for k, p in enumerate(self.model.trained):
            if k not in self.seen:
                self.know(k)
            grad, version = self.seen[k]
            self.changed |= p.grad is not grad or (grad is not None and grad._version != version)
        return self.gradient, not self.changed

    def fits(self, x: Vector) -> bool:
        """Whether x is the sum that was sent."""
        own = [(factor, id(self._leaf(number))) for factor, number in self.pattern.terms]
        return own == [(factor, id(each)) for factor, each in x.terms]
