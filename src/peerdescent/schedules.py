"""Schedules: numbers of a method that depend on the iteration t.

A schedule takes the place of a number, as in `peer.methods.dsgd(alpha=0.5 *
peer.schedules.cosine(1000))`. The engine evaluates it at t, so methods know nothing of it. Its own
numbers are hyperparameters, by names such as `alpha.scale`: a sweep over them needs no compilation.
Numbers inside of a formula, of `piecewise` or of what follows a `warmup` are fixed. Any function of
t that JAX can trace will do as well, optax's included.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from typing import Any

import numpy as np

from peerdescent.errors import require, unknown


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A number that depends on the iteration; `2 * schedule` is one that is twice as large."""

    scale: Any = 1.0

    @abstractmethod
    def factor(self, t: Any) -> Any:
        """Its value with scale 1 in iterations t, as real numbers of Python, NumPy or JAX."""

    def __call__(self, t: Any) -> Any:
        """Its value in iterations t."""
        with np.errstate(all="ignore"):  # a value that is not finite is for the caller to judge
            return self.scale * self.factor(
                np.float64(t) if isinstance(t, int | float) else t * 1.0
            )

    def __mul__(self, other: Any) -> Schedule:
        return dataclasses.replace(self, scale=self.scale * other)

    __rmul__ = __mul__

    @property
    def numbers(self) -> dict[str, Any]:
        """Its own numbers, by name."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.metadata != STATIC
        }

    @property
    def fixed(self) -> list[Any]:
        """All but its own numbers: what it is, and what it has inside."""
        return [
            type(self),
            *(
                getattr(self, each.name)
                for each in dataclasses.fields(self)
                if each.metadata == STATIC
            ),
        ]

    def replace(self, **values: Any) -> Schedule:
        """The same schedule with other numbers."""
        for name in values:
            if name not in self.numbers:
                raise unknown(f"number of {type(self).__name__}", name, self.numbers)
        return dataclasses.replace(self, **values)

    def __str__(self) -> str:
        """As the command line has it, such as `0.5*cosine(1000)`."""
        shown = [
            getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "scale"
        ]
        text = ",".join(_shown(value) for value in shown if value is not None)
        text = f"{type(self).__name__.replace('_', '-')}({text})"
        return self._times(text)

    def _times(self, text: str, form: str = "{}") -> str:
        """The text with the scale before it, unless that is 1."""
        known = isinstance(self.scale, int | float)
        return text if known and self.scale == 1 else f"{_shown(self.scale)}*{form.format(text)}"


STATIC = {"static": True}


def _library(t: Any) -> Any:
    """jax.numpy for arrays of JAX, and NumPy for all others: methods need no JAX to be loaded."""
    return import_module("jax.numpy") if type(t).__module__.startswith("jax") else np


def _shown(value: Any) -> str:
    """A number as short as it can be read back."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _checked(schedule: Schedule, name: str, low: float, above: bool) -> None:
    value = getattr(schedule, name)
    if isinstance(value, int | float):  # those of a compiled program are not known
        good = (
            not isinstance(value, bool)
            and math.isfinite(value)
            and (value > low if above else value >= low)
        )
        must = f"be a finite number {'above' if above else 'of at least'} {low:g}"
        require(good, f"{name} of {type(schedule).__name__} = {value!r}: must {must}")
        object.__setattr__(schedule, name, float(value))


@dataclass(frozen=True)
class constant(Schedule):
    """The same number always."""

    value: Any

    def __post_init__(self) -> None:
        _checked(self, "value", -math.inf, above=True)

    def factor(self, t: Any) -> Any:
        """The number."""
        return self.value + 0 * t


@dataclass(frozen=True)
class inverse_power(Schedule):
    """1 / (t + offset)^power."""

    power: Any
    offset: Any = 1.0

    def __post_init__(self) -> None:
        _checked(self, "power", 0, above=False)
        _checked(self, "offset", 0, above=True)

    def factor(self, t: Any) -> Any:
        """The inverse power."""
        return (t + self.offset) ** (-1.0 * self.power)


@dataclass(frozen=True)
class cosine(Schedule):
    """From 1 to `final` along half a period of the cosine, in so many steps; then it stays there."""

    steps: Any
    final: Any = 0.0

    def __post_init__(self) -> None:
        _checked(self, "steps", 1, above=False)
        _checked(self, "final", 0, above=False)

    def factor(self, t: Any) -> Any:
        """Half a period."""
        xp = _library(t)
        way = xp.minimum(t / self.steps, 1.0)
        return self.final + (1 - self.final) * (1 + xp.cos(xp.pi * way)) / 2


@dataclass(frozen=True)
class warmup(Schedule):
    """Linearly up to 1 in so many steps, and then as `after` does from its start; by default it stays at 1."""

    steps: Any
    after: Schedule | None = dataclasses.field(default=None, metadata=STATIC)

    def __post_init__(self) -> None:
        _checked(self, "steps", 1, above=False)

    def factor(self, t: Any) -> Any:
        """The way up, times what follows."""
        xp = _library(t)
        later = 1.0 if self.after is None else self.after(xp.maximum(t - self.steps, 0))
        return xp.minimum((t + 1) / self.steps, 1.0) * later


@dataclass(frozen=True)
class piecewise(Schedule):
    """Constant numbers, each from a step on, as in `piecewise({0: 1.0, 1000: 0.1})`."""

    pieces: Any = dataclasses.field(metadata=STATIC)

    def __post_init__(self) -> None:
        pieces = tuple(
            sorted(self.pieces.items() if isinstance(self.pieces, Mapping) else self.pieces)
        )
        whole = all(isinstance(step, int) and isinstance(value, Real) for step, value in pieces)
        good = (
            bool(pieces)
            and whole
            and pieces[0][0] == 0
            and len({step for step, _ in pieces}) == len(pieces)
        )
        require(
            good,
            f"pieces of piecewise = {self.pieces!r}: give numbers by steps, from step 0 on, as {{0: 1.0}}",
        )
        object.__setattr__(
            self, "pieces", tuple((int(step), float(value)) for step, value in pieces)
        )

    def factor(self, t: Any) -> Any:
        """The number of the last step that is reached."""
        value: Any = self.pieces[0][1]
        for step, number in self.pieces[1:]:
            value = _library(t).where(t >= step, number, value)
        return value + 0 * t

    def __str__(self) -> str:
        """As the command line has it."""
        text = f"piecewise({','.join(f'{step}:{value!r}' for step, value in self.pieces)})"
        return self._times(text)


@dataclass(frozen=True)
class function(Schedule):
    """Any function of t that JAX can trace."""

    of: Callable[[Any], Any] = dataclasses.field(metadata=STATIC)

    def factor(self, t: Any) -> Any:
        """What it returns."""
        return self.of(t)

    def __str__(self) -> str:
        """The function's name."""
        return self._times(f"{getattr(self.of, '__name__', type(self.of).__name__)}(t)")


OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS = ("sqrt", "exp", "log", "sin", "cos", "minimum", "maximum")


@dataclass(frozen=True)
class formula(Schedule):
    """A formula of t such as `0.5/(t+10)^(1/3)`, with + - * / ^, parentheses, sqrt, exp, log, sin, cos, min and max."""

    text: str = dataclasses.field(metadata=STATIC)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", "".join(self.text.split()))
        with np.errstate(all="ignore"):
            self.factor(np.float64(1))  # refuses what it cannot compute

    def factor(self, t: Any) -> Any:
        """What the formula says."""
        text = re.sub(r"\b(min|max)\(", r"\1imum(", self.text.replace("^", "**"))
        try:
            return _value(ast.parse(text, mode="eval").body, t)
        except (SyntaxError, TypeError) as error:
            raise ValueError(
                f"{self.text!r} is no formula of t: give one such as 0.5/(t+10)^(1/3)"
            ) from error

    def __str__(self) -> str:
        """The formula."""
        return self._times(self.text, "({})")


def _value(node: ast.expr, t: Any) -> Any:
    """The value of a formula's part."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == "t":
        return t
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left, t), _value(node.right, t))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.operand, t))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return getattr(_library(t), node.func.id)(*(_value(argument, t) for argument in node.args))
    raise TypeError(f"{ast.unparse(node)} is not part of a formula")


SCHEDULES: dict[str, type[Schedule]] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (constant, inverse_power, cosine, warmup, piecewise)
}
"""The schedules by the names that the command line has."""


def parse(text: str) -> Schedule:
    """A schedule from its text: `0.5*cosine(1000)`, or a formula of t.

    >>> parse("0.5*cosine(1000)")
    cosine(scale=0.5, steps=1000.0, final=0.0)
    >>> str(parse("0.5/(t+10)^(1/3)")), round(float(parse("0.5/(t+10)^(1/3)")(17)), 4)
    ('0.5/(t+10)^(1/3)', 0.1667)
    """
    match = re.fullmatch(r"\s*(?:([^*()]+)\*)?\s*([a-z][\w-]*)\((.*)\)\s*", text)
    if match is None or match[2].replace("_", "-") not in SCHEDULES:
        require(
            re.search(r"\bt\b", text) is not None,
            f"{text!r} is neither a number nor a schedule: give a number, a formula of t such as 0.5/(t+10)^(1/3), or "
            f"one of {', '.join(SCHEDULES)}, as in 0.5*cosine(1000)",
        )
        return formula(text)
    name, inside = (
        match[2].replace("_", "-"),
        [part.strip() for part in split(match[3]) if part.strip()],
    )
    kind: Any = SCHEDULES[name]
    try:
        scale = 1.0 if match[1] is None else float(match[1])
        if kind is piecewise:
            pairs = [part.partition(":") for part in inside]
            found: Schedule = piecewise(
                {int(step): float(value) for step, _, value in pairs}, scale=scale
            )
            return found
        values = [parse(part) if "(" in part else float(part) for part in inside]
        made: Schedule = kind(*values, scale=scale)
    except (ValueError, TypeError) as error:
        needed = ", ".join(each.name for each in dataclasses.fields(kind) if each.name != "scale")
        raise ValueError(
            f"schedule {text!r}: must be {name}({needed}), with numbers ({error})"
        ) from None
    return made


def split(text: str) -> list[str]:
    """The text between commas, but for those in parentheses."""
    found, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found


def given(value: Any) -> Any:
    """A value of a number: schedules from their text or from a function of t; others as they are."""
    if isinstance(value, str) and re.search(r"\bt\b|\(", value):
        return parse(value)
    return function(value) if callable(value) and not isinstance(value, Schedule) else value
