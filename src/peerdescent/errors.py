"""How the package says no: the value, the rule and the remedy, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import Any


def unknown(kind: str, value: object, known: Iterable[str]) -> ValueError:
    """A ValueError for a name nobody knows, with the nearest known one.

    >>> print(unknown("topology", "rnig", ["ring", "star"]))
    unknown topology 'rnig': did you mean 'ring'? Known: ring, star
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(f"unknown {kind} {value!r}: {hint}Known: {', '.join(names)}")


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or a ValueError that names the argument; NumPy's integers will do.

    >>> whole("nodes", 20, least=1)
    20
    """
    good = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(good, f"{name} = {value!r}: must be a whole number of at least {least}")
    return int(value)


class NotFinite(ArithmeticError):
    """A value that is not finite, with the node, step and stage it appeared at; `run` turns it into a status."""


class PeerLost(ConnectionError):
    """Another process is gone or silent; the message names its rank, and the step."""
