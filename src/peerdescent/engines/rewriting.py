"""Functions with some of their operations computed in another way: traced, changed equation by equation, and run."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

PROGRAMS: Any = (ClosedJaxpr, Jaxpr)


def rewritten(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function with `change` of every equation, also in loops, branches and calls; itself if all stay.

    Derivatives that a user wrote are not traced here, and stay as they are.
    """

    def act(*values: Any) -> Any:
        traced, form = jax.make_jaxpr(function, return_shape=True)(*values)
        changed = _changed(traced, change)
        if changed is traced:
            return function(*values)
        return jax.tree.unflatten(
            jax.tree.structure(form), jaxpr_as_fun(changed)(*jax.tree.leaves(values))
        )

    return act


def _changed(given: Any, change: Callable[[Any], Any]) -> Any:
    """A traced program, or a setting of one of its equations; itself if nothing in it changes."""
    if type(given) is tuple:
        found = tuple(_changed(each, change) for each in given)
        return given if all(map(is_, found, given)) else found
    if not isinstance(given, PROGRAMS):
        return given
    inner = getattr(
        given, "jaxpr", given
    )  # before JAX 0.11, a program with constants holds one without
    if inner is not given:
        found = _changed(inner, change)
        return given if found is inner else given.replace(jaxpr=found)
    equations = [change(_inside(equation, change)) for equation in given.eqns]
    return given if all(map(is_, equations, given.eqns)) else given.replace(eqns=equations)


def _inside(equation: Any, change: Callable[[Any], Any]) -> Any:
    """The equation, with the programs among its settings changed."""
    settings = {name: _changed(value, change) for name, value in equation.params.items()}
    same = all(value is equation.params[name] for name, value in settings.items())
    return equation if same else equation.replace(params=settings)
