"""Grids of hyperparameters: those that a user gives, the tuning grids that parts declare, and the methods they make."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from peerdescent import compressors, schedules
from peerdescent.compressors import Compressor
from peerdescent.errors import require, unknown
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.parameters import Kind, Parameter
from peerdescent.methods.selectors import method_of, parse, split
from peerdescent.schedules import Schedule, function

__all__ = ["configurations_of", "tuning_grid"]


def configurations_of(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The configurations of a grid: all combinations of a mapping's lists, or a list of mappings with equal keys."""
    if isinstance(grid, Mapping):
        axes = {
            name: list(values) if isinstance(values, Iterable) else [values]
            for name, values in grid.items()
        }
        for name, values in axes.items():
            require(bool(values), f"{name} = []: give at least one value")
        found = [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
    else:
        found = [dict(one) for one in grid]
    require(bool(found), "the grid is empty: give at least one configuration")
    names = set(found[0])
    for one in found:
        require(
            set(one) == names,
            f"{one} does not have the parameters {sorted(names)} of the first configuration",
        )
    return [{name: plain(one[name]) for name in found[0]} for one in found]


def plain(value: Any) -> Any:
    """A NumPy number as a Python number, a compressor or a schedule as its text; other values as they are."""
    if isinstance(value, Compressor | Schedule) and not isinstance(value, function):
        text, read = (
            str(value),
            compressors.parse if isinstance(value, Compressor) else schedules.parse,
        )
        try:
            same = read(text) == value
        except ValueError:
            same = False
        require(
            same,
            f"{text} in a grid: a table knows it by this text, which is not read as the same again; give it a name "
            "of its own, in peer.compressors.COMPRESSORS or peer.schedules.SCHEDULES",
        )
        return text
    require(
        not callable(value),
        f"{value!r} in a grid: a table cannot tell functions apart; give a schedule of peer.schedules or a formula",
    )
    return value.item() if hasattr(value, "item") else value


def tuning_grid(
    method: Callable[..., Method] | str, samples: float | None, **fixed: Any
) -> list[dict[str, Any]]:
    """All combinations of the values that a method declares as tuned, which are the paper's.

    Minibatches, large batches and the batch of gt-hsgd at t = 0 are from {1, 4, 8, ..., 1024};
    periods are m/20b, m/19b, ..., m/b, 2m/b, ..., 20m/b, rounded and at least 1.

    Args:
        method: The name of the method, or a function that makes it.
        samples: m, the samples per node; None for an infinite stream.
        fixed: Hyperparameters that are not varied. With `batch=1`, gt-hsgd is Algorithm 1 of the
            paper.

    Returns:
        The configurations, as mappings from hyperparameters to values.

    >>> [len(tuning_grid(name, 2442)) for name in ("gt-hsgd", "gt-dsgd", "d-get")]
    [11000, 110, 42900]
    >>> len(tuning_grid("gt-hsgd", 2442, batch=1))
    1100
    """
    built = method_of(method)
    if not isinstance(method, str):
        known = [name for name in inspect.signature(method).parameters if name in built.declared]
    else:
        known = METHODS[method].parameters if method in METHODS else list(built.parameters)
    for name in fixed:
        if name not in known:
            raise unknown(f"parameter of {method}", name, known)
    return grid_of(built.declared, samples, fixed, known)


def grid_of(
    declared: Mapping[str, Parameter],
    samples: float | None,
    fixed: Mapping[str, Any],
    names: Iterable[str],
) -> list[dict[str, Any]]:
    """All combinations of the values that these hyperparameters declare; those in `fixed` are not varied."""
    axes = {name: declared[name].tuned for name in names if declared[name].tuned}
    axes |= {name: (value,) for name, value in fixed.items()}

    def rank(name: str) -> tuple[bool, bool, bool]:
        """The order of hyperparameters: the step size first, then other numbers, then sizes."""
        parameter = declared[name]
        return parameter.role == "", parameter.kind == Kind.size, not parameter.is_traced

    order = sorted(axes, key=rank)
    rows = [
        dict(zip(order, values, strict=True))
        for values in itertools.product(*(axes[name] for name in order))
    ]
    # Some values are relative to others: periods, for example, are fractions of an epoch.
    scaled = {
        name: p.scaled
        for name, p in declared.items()
        if name in axes and name not in fixed and p.scaled
    }
    return [
        row | {name: scale(row[name], row, samples) for name, scale in scaled.items()}
        for row in rows
    ]


def make(build: Callable[..., Method], configuration: Mapping[str, Any]) -> Method:
    """The method of a configuration, which may have numbers of schedules, such as `alpha.scale`."""
    inner = {name: value for name, value in configuration.items() if "." in name}
    return build(
        **{name: value for name, value in configuration.items() if name not in inner}
    ).replace(**inner)


def builder(method: Callable[..., Method] | Method | str) -> Callable[..., Method]:
    """The function that makes a method from hyperparameters, given that function, a selector, or one such method."""
    if isinstance(method, Method):
        return method.replace
    if not isinstance(method, str):
        good = callable(method)
        require(
            good,
            f"method is a {type(method).__name__}: give a function such as peer.methods.gt_hsgd, or a name",
        )
        return method
    name, fixed = split(method)
    if name in METHODS and not fixed:
        return METHODS[name].build

    def build(**values: Any) -> Method:
        both = sorted(values.keys() & fixed.keys())
        require(
            not both,
            f"{', '.join(both)} is in the grid and fixed by {method}: leave it out of one of them",
        )
        return parse(f"{name}[{','.join(f'{k}={v}' for k, v in {**fixed, **values}.items())}]")

    return build


def short(value: Any) -> str:
    """A number as short text."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
