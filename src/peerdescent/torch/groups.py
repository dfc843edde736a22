"""The numbers of a method in the parameter groups of its optimizer, where schedulers set them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from peerdescent.errors import require
from peerdescent.methods.contract import Method
from peerdescent.torch.flat import Flat
from peerdescent.torch.stepping import divides, stepping

SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr", "param_names")
"""What schedulers of PyTorch and PyTorch itself keep in a parameter group, for themselves."""


class Current(NamedTuple):
    """The numbers of the parameter groups, in words too, and the method with them."""

    numbers: dict[str, Any]
    text: str
    method: Method
    """Without step sizes and weight decays."""
    rate: str
    sizes: Any
    shrinks: Any
    now: Method
    """With them, unless it has schedules of its own."""

    def at(self, t: int) -> Method:
        """The method in iteration t."""
        scheduled = self.method.schedules
        return (
            stepping(self.method.at(t), self.rate, self.sizes, self.shrinks)
            if scheduled
            else self.now
        )


class Groups:
    """What parameter groups may have: the method's step size as `lr`, a weight decay, and its other numbers by name.

    Args:
        method: The method, with the numbers that it was made with.
        rate: The name of its step size.
        decays: Whether the groups have a weight decay.
        about: The names of what else they have, which is no number.
    """

    def __init__(self, method: Method, rate: str, decays: bool, about: Iterable[str]) -> None:
        self.method, self.rate = method, rate
        self.lists = ["lr", "weight_decay"] if decays else ["lr"]
        """Numbers that may differ between groups."""
        self.names = [name for name in method.numbers if name != rate]
        """The others."""
        self.allowed = {*self.lists, *self.names, *SCHEDULED, "params", *about}
        self.divides = divides(method, rate)
        self.places: Sequence[int] = ()
        """For each trained parameter the number of its group."""
        self.last: Current | None = None

    def check_keys(self, group: dict[str, Any]) -> None:
        """Refuse keys that the method does not use."""
        for name in group.keys() - self.allowed:
            raise ValueError(
                f"{name} = {group[name]!r} in the parameter group: {self.method.name} knows only "
                f"{' and '.join(['lr', *self.names, *self.lists[1:]])}; remove it, or give weight_decay= when the "
                "optimizer is made"
            )

    def numbers(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """The method's numbers by their names in the groups; `lr` and `weight_decay` are lists, one for each group."""
        for group in groups:
            self.check_keys(group)
            for name in self.names:
                first = groups[0][name]
                require(
                    group[name] == first,
                    f"{name} = {group[name]} in one group and {first} in another: groups may differ in lr and "
                    "weight_decay only",
                )
        found: dict[str, Any] = {
            name: [float(group[name]) for group in groups] for name in self.lists
        }
        for name in self.lists:
            for value in found[name]:
                require(0 <= value < math.inf, f"{name} = {value}: must be finite and not negative")
        require(
            not self.divides or all(found["lr"]),
            f"lr = 0: {self.method.name} divides by its step size, so let schedules begin and end above 0",
        )
        return {**found, **{name: groups[0][name] for name in self.names}}

    def current(self, groups: list[dict[str, Any]], flat: Flat) -> Current:
        """The method with the numbers of the groups; made anew when they have changed."""
        numbers = self.numbers(groups)
        if self.last is None or self.last.numbers != numbers:
            known = dict(numbers)
            rates, decays = known.pop("lr"), known.pop("weight_decay", None)
            method, sizes = self.method.replace(**known), self._by_group(rates, flat)
            shrinks = None if decays is None else self._by_group(decays, flat)
            plain = {}
            for name, value in numbers.items():
                several = isinstance(value, list) and len(set(value)) > 1
                plain[name] = (
                    value if several else float(value[0] if isinstance(value, list) else value)
                )
            text = ", ".join(f"{name} = {value!r}" for name, value in plain.items())
            now = stepping(method, self.rate, sizes, shrinks)
            self.last = Current(numbers, text, method, self.rate, sizes, shrinks, now)
        return self.last

    def __str__(self) -> str:
        """The names of the numbers, in the order in which they are packed."""
        return ", ".join([*(f"{name} of each group" for name in self.lists), *self.names])

    def packed(self, groups: list[dict[str, Any]]) -> list[float]:
        """All numbers of the groups, one after the other."""
        several = [float(group[name]) for name in self.lists for group in groups]
        return [*several, *(float(groups[0][name]) for name in self.names)]

    def unpack(self, groups: list[dict[str, Any]], values: Sequence[float]) -> None:
        """Set all numbers of the groups, from how they are packed."""
        rest = iter(values)
        for name in self.lists:
            for group in groups:
                group[name] = next(rest)
        for name, made in ((name, self.method.numbers[name]) for name in self.names):
            value = next(rest)
            for group in groups:
                group[name] = int(value) if isinstance(made, int) else value

    def _by_group(self, values: list[float], flat: Flat) -> Any:
        """One number, or a vector if the groups have different ones."""
        if len(set(values)) == 1:
            return torch.tensor(values[0], dtype=torch.float64)
        return flat.by_parameter([values[place] for place in self.places])
