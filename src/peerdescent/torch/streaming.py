"""A round that is sent during the backward pass, piece by piece, as gradients become known.

A round allows that if its vector is a sum of multiples of the gradient and of vectors of the state. Which multiples is
found by running the method's step beforehand, on vectors of one number. When the step itself asks for the round, its
sum is compared with what was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from peerdescent.engines.vectors import Pool, Vector, combine
from peerdescent.engines.verbs import Eager
from peerdescent.torch.flat import Flat


class Pattern(NamedTuple):
    """A round: its number and verb, and the factors and leaves of its sum; None is the gradient."""

    number: int
    verb: str
    terms: tuple[tuple[float, int | None], ...]


class Found(Exception):
    """The first round that depends on the gradient, or None if it is no such sum."""

    def __init__(self, pattern: Pattern | None) -> None:
        self.pattern = pattern


class Probe(Eager):
    """The verbs of iteration t on vectors of one number, up to the first round that depends on the gradient."""

    def __init__(self, seed: int, t: int, leaves: dict[int, Any]) -> None:
        super().__init__(seed, t)
        self.pool = Pool(torch.empty(1, dtype=torch.float64))
        self.leaves = {
            k: self._one() if isinstance(leaf, Vector) else leaf for k, leaf in leaves.items()
        }
        self.gradient: Vector | None = None

    def _one(self) -> Vector:
        return self.pool.copy(torch.ones(1, dtype=torch.float64))

    def find(self, step: Callable[[dict[int, Any], Any], Any]) -> Pattern | None:
        """The pattern of that round in a step, which is given the leaves of its state, and these verbs."""
        try:
            step(self.leaves, self)
        except Found as found:
            return found.pattern
        except (
            Exception
        ):  # a method of a user may do anything; what is wrong with it, the step itself says
            return None
        return None

    def sample(self, batch: int) -> None:
        """Nothing is drawn."""

    def grad(self, x: Any, sample: Any) -> Vector:
        """The gradient."""
        self.gradient = self._one()
        return self.gradient

    def _round(self, verb: str, number: int, x: Vector) -> Vector:
        if self.gradient is None:
            return self._one()
        known: dict[int, int | None] = {id(leaf): k for k, leaf in self.leaves.items()}
        known[id(self.gradient)] = None
        terms = [(factor, known.get(id(each), -1)) for factor, each in x.terms]
        places = [place for _, place in terms]
        raise Found(
            Pattern(number, verb, tuple(terms)) if None in places and -1 not in places else None
        )

    def compress(self, x: Vector, operator: Any) -> NoReturn:
        """What is compressed is sent as a whole."""
        raise Found(None)

    def prox(self, x: Vector, step: Any) -> Vector:
        """x itself, as in the step."""
        return x

    def dot(self, x: Vector, y: Vector) -> NoReturn:
        """An inner product needs whole vectors."""
        raise Found(None)


class Gradients:
    """The gradients of a backward pass as one vector, and whether they are still as it has left them."""

    def __init__(self, model: Flat) -> None:
        self.model, self.vector = model, model.pool.own(model.pool.take())
        self.views = model.views_again(self.vector.tensor)
        self.seen: dict[int, tuple[Tensor | None, int]] = {}
        """For each parameter whose gradient is known, the gradient and its version."""
        self.changed = False
        """Whether a gradient came twice."""

    def know(self, k: int) -> None:
        """Parameter k has its gradient."""
        grad = self.model.trained[k].grad
        self.changed |= k in self.seen
        self.seen[k] = grad, 0 if grad is None else grad._version
        self.views[k].copy_(self._of(k))

    def _of(self, k: int) -> Tensor:
        grad = self.model.trained[k].grad
        return torch.zeros_like(self.views[k]) if grad is None else grad.to_dense().detach()

    def stayed(self) -> bool:
        """Whether the gradients that came are those that the parameters have; what did not come counts as it is."""
        for k, p in enumerate(self.model.trained):
            if k not in self.seen:
                self.know(k)
            grad, version = self.seen[k]
            self.changed |= p.grad is not grad or (grad is not None and grad._version != version)
        if self.changed:
            return False
        # Versions do not show what is done to `grad.data`. What is not finite equals nothing, and is found elsewhere.
        same = all(torch.equal(view, self._of(k).to(view)) for k, view in enumerate(self.views))
        return same or not bool(self.vector.tensor.isfinite().all())


class Stream:
    """One such round, on its way."""

    def __init__(
        self, gradients: Gradients, turn: Any, pattern: Pattern, leaves: dict[int, Vector]
    ) -> None:
        model = gradients.model
        self.gradients, self.pattern, self.leaves = gradients, pattern, leaves
        self.x = model.pool.own(model.pool.take())
        self.exchange, self.result = turn.begin(pattern.number, pattern.verb, self.x)
        ends = [sum(model.sizes[:k]) for k in range(len(model.sizes) + 1)]
        self.needs = [
            {
                k
                for k in range(len(model.sizes))
                if ends[k] < piece.stop and piece.start < ends[k + 1]
            }
            for piece in self.exchange.places
        ]
        """For each piece the parameters that are in it."""

    def send(self) -> None:
        """Send what can be sent of the gradients that are known."""
        while (
            self.exchange.unsent
            and self.needs[-len(self.exchange.unsent)] <= self.gradients.seen.keys()
        ):
            place = self.exchange.unsent[0]
            terms = [
                (factor, self._leaf(number).tensor[place]) for factor, number in self.pattern.terms
            ]
            combine(self.x.tensor[place], terms)
            self.exchange.send()

    def _leaf(self, number: int | None) -> Vector:
        return self.gradients.vector if number is None else self.leaves[number]

    @property
    def is_finite(self) -> bool:
        """Whether what was sent is."""
        x = self.x.tensor
        return bool(x.sum().isfinite()) or bool(x.isfinite().all())

    def fits(self, x: Vector) -> bool:
        """Whether x is the sum that was sent."""
        own = [(factor, id(self._leaf(number))) for factor, number in self.pattern.terms]
        return own == [(factor, id(each)) for factor, each in x.terms]
