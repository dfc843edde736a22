"""Declarations of hyperparameters: default, kind, range, role and tuning grid.

An estimator or a fusion is a dataclass derived from `Part`, whose fields are declared with `number`, `step_size`,
`count`, `size`, `switch`, `choice` or `compression`. The command line, sweeps, tuning, costs, the PyTorch optimizer,
checks and documentation read the declarations; none of them refers to a hyperparameter by its name.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from numbers import Number, Real
from typing import Any, ClassVar

from peerdescent import compressors, schedules
from peerdescent.compressors import COMPRESSORS, Compressor
from peerdescent.errors import require, unknown, whole
from peerdescent.schedules import Schedule

Scale = Callable[[Any, Mapping[str, Any], float | None], Any]
"""Maps a value of a tuning grid, the other hyperparameters and the samples per node to the value that is run."""


class Kind(StrEnum):
    """The kind of a hyperparameter: its type, and whether a compiled program takes it as an argument."""

    number = "number"
    """A real number. It may be traced, so all values share a program, and sweeps run many values at once."""
    counter = "count"
    """A whole number that may be traced, such as a period."""
    size = "size"
    """A whole number that determines shapes in the program, such as a batch size."""
    switch = "switch"
    """True or false. Each value has its own program."""
    choice = "choice"
    """One of several values. Each value has its own program."""
    compressor = "compressor"
    """What compresses messages. Each has its own program."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The declaration of a hyperparameter."""

    kind: Kind
    default: Any
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether `low` itself is excluded."""
    below: bool = False
    """Whether `high` itself is."""
    optional: bool = False
    """Whether None is allowed."""
    first: bool = False
    """Whether only iteration 0 uses it."""
    choices: tuple[Any, ...] = ()
    role: str = ""
    """"step size" for the hyperparameter that learning-rate schedules set."""
    note: str = ""
    """What the ends of the range mean, for error messages."""
    tuned: tuple[Any, ...] = ()
    """The values that tuning begins with, the smallest first; it goes on past them. Empty if it is not tuned."""
    scaled: Scale | None = None

    def __post_init__(self) -> None:
        distinct = len(set(self.choices)) == len(self.choices)
        require(
            distinct,
            f"the choices {self.choices} are equal in part, as 1 and True are: make them differ",
        )
        rising = all(
            0 < one < other for one, other in zip(self.tuned, self.tuned[1:], strict=False)
        )
        require(rising, f"tuned = {self.tuned}: give positive values, the smallest first")
        if self.scaled is None:
            for value in self.tuned:
                self.check("a value of tuned", value)

    @property
    def is_traced(self) -> bool:
        """Whether a compiled program takes it as an argument."""
        return self.kind in (Kind.number, Kind.counter)

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.kind in (Kind.counter, Kind.size)

    @property
    def range(self) -> str:
        """The allowed values, in words.

        >>> number(0.1, low=0, high=1).metadata["parameter"].range
        'in [0, 1]'
        """
        if self.kind == Kind.switch:
            return "true or false"
        if self.kind == Kind.choice:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind == Kind.compressor:
            return f"one of {', '.join(COMPRESSORS)}, as in top-k(0.1)"
        none = " or none" if self.optional else ""
        if self.is_whole:
            return f"a whole number of at least {self.low:g}{none}"
        if -math.inf < self.low and self.high < math.inf:
            return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}{none}"
        if self.low == 0:
            return f"a {'positive' if self.above else 'non-negative'} finite number{none}"
        if self.low > -math.inf:
            return f"a finite number {'above' if self.above else 'of at least'} {self.low:g}{none}"
        return (
            f"a finite number{f' of at most {self.high:g}' if self.high < math.inf else ''}{none}"
        )

    def __str__(self) -> str:
        """What is declared, in words: the range, the role, and the values that are tuned over.

        >>> print(size(1, tuned=(1, 4)).metadata["parameter"])
        a whole number of at least 1; tuned over 1, 4
        """
        values = [f"{value:g}" for value in self.tuned]
        tried = (
            ", ".join(values)
            if len(values) <= 12
            else f"{len(values)} values, {values[0]} to {values[-1]}"
        )
        how = self.scaled and (self.scaled.__doc__ or "Scaled.")
        about = f" ({how[0].lower()}{how[1:].rstrip('.')})" if how else ""
        return "; ".join(
            filter(None, [self.range, self.role, f"tuned over {tried}{about}" if values else ""])
        )

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside the range. Values that are not known yet, such as traced ones, are not checked.

        Those of a schedule are, in some iterations.
        """
        if isinstance(value, Schedule) and all(map(is_known, value.numbers.values())):
            for t in (0, 1, 10, 1000, 10**6):
                try:
                    now = float(value(t))
                except (ArithmeticError, TypeError) as error:
                    text = (
                        f"{name} = {value} has no value at t = {t} ({error}): give another schedule"
                    )
                    raise ValueError(text) from None
                # It may end at the lower end, where the method stands still, and grow beyond all numbers in the end.
                good = self.low <= now <= self.high and (math.isfinite(now) or t > 10)
                require(good, f"{name} = {value} is {now:g} at t = {t}: must be {self.range}")
        if self.kind == Kind.compressor and isinstance(value, type):
            raise ValueError(
                f"{name} = {value.__name__}: give a compressor, as in {value.__name__}()"
            )
        if not is_known(value) or (value is None and self.optional):
            return
        if self.kind == Kind.switch:
            require(isinstance(value, bool), f"{name} = {value}: must be {self.range}")
        elif self.kind == Kind.compressor:
            require(isinstance(value, Compressor), f"{name} = {value}: must be {self.range}")
        elif self.kind == Kind.choice:
            if value not in self.choices:
                raise unknown(name, value, map(str, self.choices))
        elif self.is_whole:
            require(
                whole(name, value, int(self.low)) < 2**31, f"{name} = {value}: must be below 2^31"
            )
        else:
            real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            inside = real and self.low <= value <= self.high
            inside = (
                inside
                and not (self.above and value == self.low)
                and not (self.below and value == self.high)
            )
            must = "lie " if self.range.startswith("in ") else "be "
            require(
                inside,
                f"{name} = {value}: must {must}{self.range}{f' ({self.note})' if self.note else ''}",
            )

    def plain(self, value: Any) -> Any:
        """A known value as Python's own number of the declared kind."""
        if not isinstance(value, Real) or isinstance(value, bool):
            return value
        return int(value) if self.is_whole else float(value)  # type: ignore[call-overload]


def is_known(value: Any) -> bool:
    """Whether a hyperparameter has a plain value: neither a traced one nor a placeholder."""
    return value is None or isinstance(value, Number | str | list | tuple | dict | set)


def without_axes(value: Any) -> Any:
    """An array of NumPy or JAX without axes as Python's own number; a traced one, which has no value yet, as it is."""
    library = type(value).__module__.partition(".")[0]
    if library in ("numpy", "jax", "jaxlib") and getattr(value, "ndim", None) == 0:
        with suppress(TypeError):  # JAX raises this for traced values
            return value.item()
    return value


def _declared(kind: Kind, default: Any, **more: Any) -> Any:
    return dataclasses.field(
        default=default, metadata={"parameter": Parameter(kind, default, **more)}
    )


def number(
    default: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: bool = False,
    below: bool = False,
    note: str = "",
    tuned: tuple[float, ...] = (),
    scaled: Scale | None = None,
) -> Any:
    """Declare a real number.

    Args:
        default: The default value.
        low: The smallest value; with `above`, values lie above it.
        high: The largest value.
        above: Whether `low` itself is excluded.
        below: Whether `high` itself is.
        note: What the ends of the range mean, for error messages.
        tuned: The values that `tune` begins with, the smallest first. By default it is not tuned.
        scaled: Maps a value that is tuned to the value that is run, if they differ.

    Returns:
        A dataclass field.
    """
    return _declared(
        Kind.number,
        default,
        low=low,
        high=high,
        above=above,
        below=below,
        note=note,
        tuned=tuned,
        scaled=scaled,
    )


STEPS = tuple(2.0**k for k in range(-6, 5))
"""The step sizes that tuning begins with."""
UNIT_STEPS = tuple(2.0**k for k in range(-10, 1))
"""Those along directions whose length does not depend on the gradient's."""


def step_size(default: float, *, tuned: tuple[float, ...] = STEPS) -> Any:
    """Declare the step size: positive, set by learning-rate schedules as `lr`, tuned over powers of two by default."""
    return _declared(Kind.number, default, low=0, above=True, role="step size", tuned=tuned)


def count(default: int, *, tuned: tuple[float, ...] = (), scaled: Scale | None = None) -> Any:
    """Declare a whole number of at least 1 that may be traced, such as a period; arguments as for `number`."""
    return _declared(Kind.counter, default, low=1, tuned=tuned, scaled=scaled)


def size(
    default: int | None, *, optional: bool = False, first: bool = False, tuned: tuple[int, ...] = ()
) -> Any:
    """Declare a whole number of at least 1 that determines shapes in the program, such as a batch size.

    With `optional`, None is allowed. `first` says that only iteration 0 uses it: methods which differ in it alone share
    the program of all later ones. The other arguments are as for `number`.
    """
    return _declared(Kind.size, default, low=1, optional=optional, first=first, tuned=tuned)


def switch(default: bool) -> Any:
    """Declare a switch, true or false."""
    return _declared(Kind.switch, default)


def compression(default: Compressor) -> Any:
    """Declare a compressor; its text, such as "top-k(0.1)", will do as well."""
    return _declared(Kind.compressor, default)


def choice(default: Any, *choices: Any) -> Any:
    """Declare a choice of one of several values."""
    return _declared(Kind.choice, default, choices=choices)


class Part:
    """The base class of estimators and fusions, which are frozen dataclasses. It checks their hyperparameters.

    >>> @dataclasses.dataclass(frozen=True)
    ... class damped(Part):
    ...     rho: float = number(0.5, low=0, high=1)
    >>> damped(rho=2.0)
    Traceback (most recent call last):
    ValueError: rho = 2.0: must lie in [0, 1]
    """

    unit: ClassVar[bool] = False
    """Whether it makes directions of about unit size, as Adam does; smaller step sizes are then tuned over."""

    def __post_init__(self) -> None:
        for name, parameter in declared(self).items():
            value = without_axes(getattr(self, name))
            if parameter.kind == Kind.compressor and isinstance(value, str):
                value = compressors.parse(value)
            if parameter.kind == Kind.number:
                value = schedules.given(value)
            object.__setattr__(self, name, value)
            require(
                getattr(getattr(self, name), "ndim", 0) != 1,
                f"{name} = {getattr(self, name)}: give one number",
            )
            parameter.check(name, getattr(self, name))


def declared(part: Any) -> dict[str, Parameter]:
    """The declarations of the hyperparameters of a part or of its class, by name."""
    return _declarations(part if isinstance(part, type) else type(part))


@functools.cache
def _declarations(kind: Any) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for field in dataclasses.fields(kind):
        require(
            "parameter" in field.metadata,
            f"{field.name} of {kind.__name__} is not declared: write {field.name}: float = number(...), or count, "
            "size, switch or choice (peerdescent.methods.parameters)",
        )
        found[field.name] = field.metadata["parameter"]
    return with_unit_steps(found) if issubclass(kind, Part) and kind.unit else found


def with_unit_steps(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The declarations, with a step size that has no grid of its own tuned over `UNIT_STEPS`."""
    return {
        name: dataclasses.replace(p, tuned=UNIT_STEPS)
        if p.role == "step size" and p.tuned == STEPS
        else p
        for name, p in parameters.items()
    }
