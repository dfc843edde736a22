"""Error messages of the package. Each says the value, the rule and the remedy, in one line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


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


def memory() -> float:
    """The bytes that this process may use: those of the machine, or a lower limit of its container or its own."""
    limits = [math.inf]
    with suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ValueError, OSError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if resource is not None:
        limits += [soft for kind in ("RLIMIT_AS", "RLIMIT_DATA") if (soft := _soft(kind)) >= 0]
    return min(limits)


def _soft(kind: str) -> int:
    return int(resource.getrlimit(getattr(resource, kind))[0])


def require_memory(what: str, size: float, remedy: str) -> None:
    """Refuse what takes more bytes than there are; called before it is built.

    >>> require_memory("10^9 nodes", 1e18, "use fewer")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 10^9 nodes would take about 931,322,575 GiB, and there are ... GiB of memory: use fewer
    """
    gib, there = min(size, 1e300) / 2**30, memory() / 2**30
    about = f"{gib:,.0f}" if 10 <= gib < 1e9 else f"{gib:.2g}"
    require(
        gib <= there,
        f"{what} would take about {about} GiB, and there are {there:.1f} GiB of memory: {remedy}",
    )


class NotFinite(ArithmeticError):
    """A value is not finite. The message has the node, step and stage; `run` turns this into the status `diverged`."""


class StreamEnded(RuntimeError):
    """An iterator has no more samples. `run` turns this into the status `interrupted`, with this message.

    An engine that has computed iterations before adds the step that it reached, and its state
    there.
    """

    step = 0
    state: Any = None


class PeerLost(ConnectionError):
    """Another process has ended or does not answer. The message has its rank and the step."""


def check_fields(thing: Any, kind: str) -> None:
    """Refuse an object of a user's class with values that are no fields: two of them would be taken for one."""
    name, known = type(thing).__name__, {each.name for each in dataclasses.fields(thing)}
    more = sorted(set(vars(thing)) - known)
    require(
        not more,
        f"{kind} {name} has {', '.join(more)}, which is no field: make it a frozen dataclass",
    )
    try:
        hash(thing)
    except TypeError as error:
        raise ValueError(
            f"{kind} {name} has a field that cannot be compared ({error}): give numbers"
        ) from None
