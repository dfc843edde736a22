"""Methods as the optimizer runs them: with the step sizes and the weight decay of its parameter groups."""

from __future__ import annotations

import copy
import functools
from contextlib import suppress
from typing import Any

from peerdescent.engines.outline import Blank, outline
from peerdescent.methods.contract import Method, compose
from peerdescent.methods.contract import Net as Verbs


def stepping(method: Method, rate: str, sizes: Any, shrinks: Any) -> Method:
    """The method with other step sizes, and with weight decay unless that is None; either may be a vector.

    They are not checked against what is declared: schedules may end at 0, which no method accepts.
    """
    place, field = method._places[rate]
    parts = [copy.copy(part) for part in method.parts]
    object.__setattr__(parts[place], field, sizes)
    now = compose(parts[0], parts[1], method.name)
    return now if shrinks is None else decayed(now, shrinks)


class Size(Blank):
    """A placeholder for a step size, which notes whether something is divided by it, or by a multiple of it."""

    def __init__(self, found: list[str]) -> None:
        super().__init__("step size")
        self.found = found

    def __mul__(self, other: Any) -> Blank:
        return Blank("*", self, other) if isinstance(other, Blank) else Size(self.found)

    __rmul__ = __mul__

    def __rtruediv__(self, other: Any) -> Blank:
        self.found.append("divided")
        return Blank("/", other, self)


def divides(method: Method, rate: str) -> bool:
    """Whether the method divides by its step size, which must not be 0 then."""
    found: list[str] = []
    with suppress(ValueError):  # it does more with its numbers, such as compare them
        outline(method.replace(**{rate: Size(found)}))
    return bool(found)


def decayed(method: Method, shrinks: Any) -> Method:
    """The method with weight decay in its estimates."""
    estimator, fusion = method.parts
    kind: Any = type(estimator)
    made = object.__new__(_decaying(kind))
    made.__dict__.update(estimator.__dict__, _shrinks=shrinks)
    return compose(made, fusion, method.name)


@functools.cache
def _decaying(kind: Any) -> Any:
    """A class of estimators whose estimates include decoupled weight decay: v_t and so many times x_t."""

    def plain(self: Any) -> Any:
        """The estimator without it, whose `init` may call its own `step`."""
        found = object.__new__(kind)
        found.__dict__.update(self.__dict__)
        return found

    def init(self: Any, x: Any, net: Verbs) -> tuple[Any, Any]:
        v, memory = plain(self).init(x, net)
        return v + self._shrinks * x, memory

    def step(self: Any, x: Any, memory: Any, net: Verbs) -> tuple[Any, Any]:
        v, memory = plain(self).step(x, memory, net)
        return v + self._shrinks * x, memory

    own = {"init": init, "step": step, "_shrinks": 0.5, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
