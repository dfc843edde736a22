"""Verbs of engines that compute at once, one iteration after the other: those of time, and rounds by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peerdescent.methods.contract import Calls
from peerdescent.threefry import COMPRESSION, Draw, coin, source


class Eager:
    """Iteration t of a run with a seed: what decides between branches, and the numbers of what a method asks for."""

    def __init__(self, seed: int, t: int) -> None:
        self.seed, self.t, self.calls = seed, t, Calls()

    def every(
        self, period: int, then: Callable[[], Any], otherwise: Callable[[], Any], phase: int = 0
    ) -> Any:
        """Call one of the two functions, by the iteration."""
        return self._either((self.t - phase) % period == 0, then, otherwise)

    def chance(
        self, probability: float, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Call one of the two functions, by a coin that is the same for all nodes."""
        number = self.calls.take("coin")
        return self._either(bool(coin(np, self.seed, self.t, number, probability)), then, otherwise)

    def _either(self, due: bool, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        with self.calls.inside(self.calls.next):
            return then() if due else otherwise()

    def mix(self, x: Any) -> Any:
        """One round of communication with the neighbours."""
        return self._round("mix", self.calls.take("round"), x)

    def disagree(self, x: Any) -> Any:
        """One round of communication, for the difference to what was mixed."""
        return self._round("disagree", self.calls.take("round"), x)

    def push(self, x: Any, w: Any = None) -> Any:
        """One round of communication, with weights whose columns sum to 1; of a number behind the vector, too."""
        number = self.calls.take("round")
        return self._round("push", number, x) if w is None else self._pushed(number, x, w)

    def _round(self, verb: str, number: int, x: Any) -> Any:
        """The round of this number in the iteration."""
        raise NotImplementedError

    def _pushed(self, number: int, x: Any, w: Any) -> tuple[Any, Any]:
        """The round of a push of a vector and the number behind it, as one message."""
        raise NotImplementedError

    def _compression(self) -> Draw:
        """The draws of the next compression."""
        return source(np, self.seed, self.t, COMPRESSION, self.calls.take("compression"))
