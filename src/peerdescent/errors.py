"""Error messages of the package. Each says the value, the rule and the remedy, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import Any


def unknown(kind: str, value: object, known: Iterable[str]) -> ValueError:
    """A ValueError for an unknown name. It suggests the closest known one and lists all of them.

    >>> print(unknown("topology", "rnig", ["ring", "star"]))
    unknown topology 'rnig': did you mean 'ring'? Known: ring, star
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? Known:" if close else "known:"
    return ValueError(f"unknown {kind} {value!r}: {hint} {', '.join(names)}")


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or a ValueError that names the argument. NumPy integers are accepted.

    >>> whole("nodes", 20, least=1)
    20
    """
    good = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(good, f"{name} = {value!r}: must be a whole number of at least {least}")
    return int(value)


class NotFinite(ArithmeticError):
    """A value is not finite. The message has the node, step and stage; `run` turns this into the status `diverged`."""


class PeerLost(ConnectionError):
    """Another process has ended or does not answer. The message has its rank and the step."""
