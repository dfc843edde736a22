"""Which gradients an iteration will ask for, found out by running the method on vectors that hold nothing.

All else that a method does is the same for every column of its vectors. So where the gradients are known beforehand,
the rest of an iteration may be done a block of columns at a time, which then stays in a cache or in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from peerdescent.methods.contract import Calls
from peerdescent.runs.record import Blank


class Unforeseen(Exception):
    """A gradient is asked for at a vector that is computed in the same iteration."""


class Leaf(Blank):
    """A vector of the state, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Asked(NamedTuple):
    """A gradient the method will ask for: where its result goes, at which vector of the state, on which sample."""

    slot: int
    leaf: int
    call: int
    batch: Any
    """None for the exact gradient."""


class Either(NamedTuple):
    """What it will ask for on each side of an `every`."""

    period: Any
    then: list[Any]
    otherwise: list[Any]


class Plan:
    """The five verbs over vectors that hold nothing: they note which gradients an iteration needs."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.calls, self.slots = Calls(), Calls()

    def sample(self, batch: Any) -> tuple[int, Any]:
        """Its number and size."""
        return self.calls.take(), batch

    def grad(self, x: Any, sample: tuple[int, Any]) -> Blank:
        """Noted."""
        if not isinstance(x, Leaf):
            raise Unforeseen
        self.asked.append(Asked(self.slots.take(), x.number, *sample))
        return Blank()

    def full_grad(self, x: Any) -> Blank:
        """Noted."""
        return self.grad(x, (0, None))

    def mix(self, x: Any) -> Blank:
        """Nothing to note."""
        return Blank()

    def every(self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Both sides, which share their slots."""
        before, call, slot = self.asked, self.calls.next, self.slots.next
        sides, ends = [], []
        for thunk in (then, otherwise):
            self.asked, self.slots.next = [], slot
            with self.calls.inside(call):
                value = thunk()
            sides.append(self.asked)
            ends.append(self.slots.next)
        self.asked, self.slots.next = [*before, Either(period, *sides)], max(ends)
        return jax.tree.map(lambda a: Blank() if isinstance(a, Blank) else a, value)


def foreseen(act: Callable[[Any, Any], Any], state: Any) -> Plan:
    """What `act`, a method's `init` or `step`, asks for when it is given such a state."""
    plan = Plan()
    leaves, structure = jax.tree.flatten(state)
    act(jax.tree.unflatten(structure, [Leaf(k) for k in range(len(leaves))]), plan)
    return plan


def slots_of(asked: list[Any]) -> set[int]:
    """Where all of these results go, on either side of an `every`."""
    found: set[int] = set()
    for one in asked:
        found |= {one.slot} if isinstance(one, Asked) else slots_of(one.then) | slots_of(one.otherwise)
    return found
