"""Selectors: methods as text, `name[parameter=value,...]` or `estimator*fusion[parameter=value,...]`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from peerdescent import schedules
from peerdescent.errors import require, unknown
from peerdescent.methods.contract import Method, compose
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from peerdescent.methods.named import METHODS

Given = Method | Callable[..., Method] | str
"""A method, a function that makes one, such as `peer.methods.gt_hsgd`, or a selector."""
_SELECTOR = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<values>[^\[\]]*)\])?")
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


def parse(selector: str) -> Method:
    """The method that `name[parameter=value,...]` or `estimator*fusion[...]` selects.

    >>> parse("gt-hsgd[alpha=0.5,beta=0.01]").numbers
    {'beta': 0.01, 'alpha': 0.5}
    >>> parse("hybrid*primal-dual[eta=0.2]").name
    'hybrid*primal-dual'
    """
    name, values = split(selector)
    if "*" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "estimator*fusion"])
        build, settled = METHODS[name].build, METHODS[name].build().parameters
        known = METHODS[name].parameters
        # str(method) also has the parameters that the named method fixes. They are accepted if unchanged.
        for key in [key for key in values if key in settled and key not in known]:
            given = values.pop(key)
            require(
                given == settled[key],
                f"{key} = {given}: {name} has {settled[key]}; compose estimator*fusion instead",
            )
        inner = {
            key: values.pop(key) for key in [*values] if "." in key
        }  # numbers of schedules, as alpha.scale
        _check_names(name, values, known)
        return build(**values).replace(**inner)
    left, _, right = (part.strip() for part in name.partition("*"))
    if left not in ESTIMATORS:
        raise unknown("estimator", left, ESTIMATORS)
    if right not in FUSIONS:
        raise unknown("fusion", right, FUSIONS)
    return compose(ESTIMATORS[left](), FUSIONS[right]()).replace(**values)


def method_of(given: Given) -> Method:
    """The method that is given, as it is or as text, or that a function makes; what is not given has its default.

    >>> method_of("dsgd[alpha=0.5]") == method_of(lambda: parse("dsgd[alpha=0.5]")) == parse("dsgd[alpha=0.5]")
    True
    """
    if isinstance(given, str):
        return parse(given)
    given = getattr(given, "method", given)  # of what was tuned
    if isinstance(given, Method) or not callable(given):
        return given
    arguments = inspect.signature(given).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    missing = [
        one.name for one in arguments if one.default is one.empty and one.kind not in variable
    ]
    require(
        not missing,
        f"{given.__name__} has no default for {', '.join(missing)}: give it one, or give a method it makes",
    )
    return given()


def split(selector: str) -> tuple[str, dict[str, Any]]:
    """The name and the values in `name[parameter=value,...]`.

    >>> split("gt-hsgd[batch=1]")
    ('gt-hsgd', {'batch': 1})
    """
    match = _SELECTOR.fullmatch(selector.strip())
    require(match is not None, f"{selector!r} is not of the form name[parameter=value,...]")
    assert match is not None
    return match["name"].strip(), _values(match["values"] or "", selector)


def _values(text: str, selector: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in schedules.split(text))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        require(bool(equals), f"{item!r} in {selector!r} is not of the form parameter=value")
        key = key.replace("-", "_")
        require(key not in values, f"{key} is given twice in {selector!r}: leave one out")
        values[key] = _value(value)
    return values


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text  # one of a choice; what is declared a number refuses it


def _check_names(name: str, values: dict[str, Any], known: list[str]) -> None:
    for key in values:
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
