"""The costs of an iteration as formulas in a method's hyperparameters, for documents and lists.

`peerdescent.runs.costs` has the numbers. The formulas come from the same source, the method's own
code: it is run on placeholder vectors with symbols for its hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from peerdescent.compressors import Compressor
from peerdescent.engines.outline import Blank, Chance, Either, Every, Gradient, Mix, outline
from peerdescent.methods.contract import Method

SAMPLES = "m"
"""The symbol for the samples of a node, which an exact local gradient counts as."""


class Symbol(Blank):
    """A placeholder for a hyperparameter."""

    def __init__(self, name: str) -> None:
        super().__init__("symbol", name, is_vector=False)
        self.name = name


class Branch(NamedTuple):
    """A cost that differs between iterations."""

    when: Every | Chance
    then: Formula
    otherwise: Formula

    @property
    def is_periodic(self) -> bool:
        """Whether the iteration counter decides, not a coin."""
        return isinstance(self.when, Every)

    @property
    def number(self) -> Any:
        """The period or the probability: a symbol or a number."""
        return self.when.period if isinstance(self.when, Every) else self.when.probability


class Formula(NamedTuple):
    """How many gradients or rounds an iteration takes: a sum of symbols with their factors, and branches.

    >>> from peerdescent import methods
    >>> found = formulas(methods.gt_svrg()).gradients
    >>> found.text(), found.expected()
    ('m every period iterations, else 2 batch', 'm / period + 2 batch (1 - 1 / period)')
    >>> found.mean({"m": 100, "period": 10, "batch": 2})
    13.6
    """

    factors: dict[str, float]
    """The factor of each symbol; that of the empty text is a number by itself."""
    branches: tuple[Branch, ...] = ()

    def __bool__(self) -> bool:
        return any(self.factors.values()) or bool(self.branches)

    def text(self, named: Callable[[str], str] = str) -> str:
        """The formula in words; `named` makes a symbol's text from its name."""
        parts = self._sum(named)
        for branch in self.branches:
            then, otherwise = branch.then.text(named), branch.otherwise.text(named)
            number = _shown(branch.number, named)
            when = (
                f"every {number} iterations" if branch.is_periodic else f"with probability {number}"
            )
            parts.append(
                f"{then} {when}, else {otherwise}" if branch.otherwise else f"{then} {when}"
            )
        return " + ".join(parts) or "0"

    def expected(self, named: Callable[[str], str] = str) -> str:
        """The mean over iterations, as a formula."""
        parts = self._sum(named)
        for branch in self.branches:
            number = _shown(branch.number, named)
            then, otherwise = (
                _bracketed(each.expected(named)) for each in (branch.then, branch.otherwise)
            )
            if branch.then:
                parts.append(f"{then} / {number}" if branch.is_periodic else _product(then, number))
            if branch.otherwise:
                parts.append(
                    _product(otherwise, f"(1 - {'1 / ' if branch.is_periodic else ''}{number})")
                )
        return " + ".join(parts) or "0"

    def mean(self, values: Mapping[str, float]) -> float:
        """The mean over iterations, with these values of the symbols."""
        total = sum(
            factor * (values[name] if name else 1.0) for name, factor in self.factors.items()
        )
        for branch in self.branches:
            number = branch.number
            value = values[number.name] if isinstance(number, Symbol) else float(number)
            share = 1 / value if branch.is_periodic else value
            total += share * branch.then.mean(values) + (1 - share) * branch.otherwise.mean(values)
        return total

    def _sum(self, named: Callable[[str], str]) -> list[str]:
        return [
            " ".join(
                filter(
                    None,
                    [f"{factor:g}" if factor != 1 or not name else "", named(name) if name else ""],
                )
            )
            for name, factor in self.factors.items()
            if factor
        ]


class Formulas(NamedTuple):
    """The costs of iteration 0 and of a later one, for a node."""

    first_gradients: Formula
    gradients: Formula
    first_rounds: Formula
    rounds: Formula
    compressors: tuple[Compressor, ...]
    """What compresses messages."""


def formulas(method: Method, names: Iterable[str] | None = None) -> Formulas:
    """The costs of a method as formulas.

    Args:
        method: The method.
        names: The hyperparameters that become symbols, by default all that are numbers or sizes.
            One of them that is None becomes a symbol too.

    Returns:
        The formulas. They have numbers in place of symbols if the method computes with its sizes or
        compares numbers.

    >>> from peerdescent import methods
    >>> found = formulas(methods.proxskip())
    >>> found.gradients.text(), found.rounds.text(), found.rounds.expected()
    ('batch', '1 with probability probability', 'probability')
    """
    wanted = method.declared if names is None else names
    known = [*method.numbers, *method.sizes]
    symbols = {name: Symbol(name) for name in known if name in wanted}
    try:
        return _formulas(method.replace(**symbols))
    except (TypeError, ValueError):
        return _formulas(method)


def _formulas(method: Method) -> Formulas:
    does = outline(method)
    operators = dict.fromkeys(
        mix.message.operator for mix in does.messages if mix.message.operator is not None
    )
    gradients, rounds = (
        [_formula(events, kind) for events in (does.start, does.step)] for kind in (Gradient, Mix)
    )
    return Formulas(gradients[0], gradients[1], rounds[0], rounds[1], tuple(operators))


def _formula(events: list[Any], kind: type) -> Formula:
    """The formula of the gradients or of the rounds among events."""
    factors: dict[str, float] = {}
    branches: list[Branch] = []
    for event in events:
        if isinstance(event, Either):
            sides = (_formula(side, kind) for side in (event.then, event.otherwise))
            branch = Branch(event.when, *sides)
            if branch.then == branch.otherwise:  # neither side differs in this
                for name, factor in branch.then.factors.items():
                    factors[name] = factors.get(name, 0.0) + factor
                branches += branch.then.branches
            else:
                branches.append(branch)
        elif isinstance(event, kind):
            name, factor = _counted(event)
            factors[name] = factors.get(name, 0.0) + factor
    return Formula(factors, tuple(branches))


def _counted(event: Any) -> tuple[str, float]:
    """The symbol that a gradient or a round counts as, and its factor."""
    if isinstance(event, Mix):
        return "", 1.0
    if event.sample is None:
        return SAMPLES, 1.0
    batch = event.sample.batch
    if isinstance(batch, Real):
        return "", float(batch)
    if isinstance(batch, Symbol):
        return batch.name, 1.0
    raise TypeError(f"a batch of {type(batch).__name__} has no name")


def _shown(value: Any, named: Callable[[str], str]) -> str:
    return named(value.name) if isinstance(value, Symbol) else f"{value:g}"


def _bracketed(text: str) -> str:
    return f"({text})" if " + " in text else text


def _product(factor: str, other: str) -> str:
    return other if factor == "1" else f"{factor} {other}"
