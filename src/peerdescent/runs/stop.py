"""Rules that end a run before its last step, for `peer.run(..., stop=...)`. They are looked at at records."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from peerdescent.errors import require, unknown, whole
from peerdescent.runs.metrics import Metric

Row = Mapping[str, float]
"""A row of the trace's table: the values by column."""


class Rule(ABC):
    """Says, at a record, whether a run ends there."""

    @abstractmethod
    def reason(self, rows: Sequence[Row]) -> str:
        """Why the run ends at the last of these rows; an empty text if it goes on."""

    @property
    def reads(self) -> str | None:
        """The column that it reads, if that is known."""
        return None


@dataclass(frozen=True)
class Bound(Rule):
    """Ends a run where a column has come down, or up, to a bound. `loss`, `grad_norm` and `seconds` make it."""

    column: str
    value: float
    up: bool = False

    def reason(self, rows: Sequence[Row]) -> str:
        """A value that is not finite has not come down."""
        found = rows[-1][self.column]
        if not (found >= self.value if self.up else found <= self.value):
            return ""
        return (
            f"{self.column} {found:.4g} {'>=' if self.up else '<='} {self.value:g} {_where(rows)}"
        )


def loss(target: float) -> Rule:
    """End a run at the first record with a loss of at most `target`.

    >>> loss(0.2).reason([{"step": 1200, "loss": 0.19871}])
    'loss 0.1987 <= 0.2 at step 1,200'
    """
    return Bound("loss", _real("target loss", target))


def grad_norm(target: float) -> Rule:
    """End a run at the first record with a gradient of norm at most `target`, at the mean of the iterates."""
    return Bound("grad_norm", _positive("target grad_norm", target))


def seconds(limit: float) -> Rule:
    """End a run at the first record at which its column `seconds` has reached `limit`.

    That column has the time of the iterations: neither compilation nor records are in it. It goes
    on where a run is resumed, and has a seed's share of the time where several seeds run together.
    """
    return Bound("seconds", _positive("seconds", limit), up=True)


@dataclass(frozen=True)
class patience(Rule):
    """End a run that has not improved for a number of records.

    It ends where none of the last `records` values of the column is better than the best value
    before them, by more than `least`. Values that are not finite do not count.

    Args:
        records: How many records to wait.
        of: The column: one of every trace, or one of your own metrics.
        least: How much better a value must be to count.
        rising: Whether larger values are better; None for what the metric says, as that of an
            accuracy.

    >>> rows = [{"step": 10 * k, "loss": loss} for k, loss in enumerate([3, 2, 1, 1, 1.1])]
    >>> patience(3).reason(rows), patience(2, least=0.01).reason(rows)
    ('', 'loss has not fallen by more than 0.01 for 2 records, at step 40')
    """

    records: int
    of: str = "loss"
    least: float = 0.0
    rising: bool | None = None

    def __post_init__(self) -> None:
        whole("records", self.records, 1)
        require(
            _is_real(self.least) and 0 <= self.least < math.inf,
            f"least = {self.least!r}: must be 0 or more",
        )

    def reason(self, rows: Sequence[Row]) -> str:
        """By the best value before the last records, and the best of those."""
        sign = -1 if self.rising else 1
        values = [sign * row[self.of] for row in rows if math.isfinite(row[self.of])]
        before, after = values[: -self.records], values[-self.records :]
        if not before or min(after) < min(before) - self.least:
            return ""
        verb, margin = (
            "risen" if self.rising else "fallen",
            f" by more than {self.least:g}" if self.least else "",
        )
        return f"{self.of} has not {verb}{margin} for {self.records} records, {_where(rows)}"

    @property
    def reads(self) -> str:
        """The column."""
        return self.of


@dataclass(frozen=True)
class Asked(Rule):
    """A function of the last row: a run ends where it returns true, or a text that says why."""

    function: Callable[[Row], Any]

    def reason(self, rows: Sequence[Row]) -> str:
        """An error in it is raised with the step."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        name = "the function given as stop" if name == "<lambda>" else name
        try:
            found = self.function(dict(rows[-1]))
            ends = bool(found)
        except Exception as error:
            error.add_note(
                f"in {name}, which is to stop the run, {_where(rows)}; it is called with a row of the table"
            )
            raise
        return (
            ""
            if not ends
            else f"{found}, {_where(rows)}"
            if isinstance(found, str)
            else f"{name}, {_where(rows)}"
        )


RULES: dict[str, tuple[Callable[[Any], Rule], str]] = {
    "loss": (loss, "0.2"),
    "grad-norm": (grad_norm, "0.001"),
    "patience": (patience, "10"),
    "seconds": (seconds, "60"),
}
"""The rules that have a text, and the number of an example."""


def parse(text: str) -> Rule:
    """A rule from its text.

    >>> parse("loss=0.2"), parse("patience=10")
    (Bound(column='loss', value=0.2, up=False), patience(records=10, of='loss', least=0.0, rising=None))
    """
    name, _, number = text.partition("=")
    name = name.strip().replace("_", "-")
    if name not in RULES:
        raise unknown("rule", name, RULES)
    make, example = RULES[name]
    kind, word = (int, "whole number") if make is patience else (float, "number")
    try:
        value = kind(number)
    except ValueError:
        raise ValueError(
            f"stop = {text!r}: must be {name}={word}, as in {name}={example}"
        ) from None
    return make(value)


def rules(given: Any, metrics: Iterable[Metric]) -> tuple[Rule, ...]:
    """The rules in the argument `stop` of a run with these metrics: none, one, or a list; functions become rules."""
    several = (
        [] if given is None else [given] if isinstance(given, Rule) or callable(given) else given
    )
    good = isinstance(several, Iterable) and not isinstance(several, str | Mapping)
    found = list(several) if good else []
    good = good and all(
        isinstance(one, Rule) or (callable(one) and not isinstance(one, type)) for one in found
    )
    require(
        good,
        f"stop = {given!r}: give a rule such as peer.stop.loss(0.2), a function of a row, or a list of such",
    )
    made = tuple(one if isinstance(one, Rule) else Asked(one) for one in found)
    known = {metric.name: metric for metric in metrics}
    for one in made:
        if one.reads is not None and one.reads not in known:
            raise unknown("column", one.reads, known)
    return tuple(
        replace(one, rising=known[one.of].rising)
        if isinstance(one, patience) and one.rising is None
        else one
        for one in made
    )


def first_reason(rules: Sequence[Rule], rows: Sequence[Row]) -> str:
    """Why a run ends at the last of these rows: the reason of the first rule that has one, or an empty text."""
    return next((reason for rule in rules if (reason := rule.reason(rows))), "")


def _where(rows: Sequence[Row]) -> str:
    return f"at step {int(rows[-1]['step']):,}"


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _real(name: str, value: Any) -> float:
    require(_is_real(value) and math.isfinite(value), f"{name} = {value!r}: must be a number")
    return float(value)


def _positive(name: str, value: Any) -> float:
    require(
        _is_real(value) and 0 < value < math.inf, f"{name} = {value!r}: must be a positive number"
    )
    return float(value)
