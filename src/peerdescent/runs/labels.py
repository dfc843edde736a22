"""Labels that tell runs, problems and networks of the same name apart by what differs between them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

CHECKSUMS = ("data", "oracle", "weights", "values", "computes", "x_0")
"""The facts of a run that are checksums, or may be."""


def told_apart(
    names: Sequence[str], facts: Sequence[Mapping[str, Any]], silent: Collection[str] = CHECKSUMS
) -> list[str]:
    """The names, each with the facts in which it differs from others of the same name, except the `silent` ones.

    >>> told_apart(["digits", "digits", "a9a"], [{"strength": 0.1}, {"strength": 1.0}, {"strength": 1.0}])
    ['digits (strength 0.1)', 'digits (strength 1.0)', 'a9a']
    """
    labels = []
    for name, own in zip(names, facts, strict=True):
        others = [other for other, theirs in zip(facts, names, strict=True) if theirs == name]
        differing = [
            key for key in own if len({json.dumps(other.get(key)) for other in others}) > 1
        ]
        said = ", ".join(
            f"{key} {differing_part(str(own[key]), [str(other.get(key)) for other in others])}"
            for key in differing
            if key not in silent
        )
        labels.append(f"{name} ({said})" if said else name)
    return labels


def differing_part(own: str, others: Sequence[str]) -> str:
    """The parts of a `repr` such as Network(ring, n=8, lam=0.9) in which it differs from others; other texts whole.

    >>> differing_part("Network(ring, n=8, drop=0.1, lam=0.9)", ["Network(ring, n=8, lam=0.8)"])
    'drop=0.1, lam=0.9'
    """
    if not own.startswith("Network(") or not all(other.startswith("Network(") for other in others):
        return own
    parts = [other.removeprefix("Network(").removesuffix(")").split(", ") for other in others]
    common = set.intersection(*map(set, parts))
    return (
        ", ".join(
            p for p in own.removeprefix("Network(").removesuffix(")").split(", ") if p not in common
        )
        or own
    )


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "seed"), counted(1780, "step")
    ('1 seed', '1,780 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def slugs(names: Sequence[str]) -> list[str]:
    """A distinct folder name for each of several names.

    >>> slugs(["dsgd[alpha=1]", "alpha = 4, batch = 1", "a/b", "a b"])
    ['dsgd-alpha=1', 'alpha=4-batch=1', 'a-b', 'a-b-2']
    """
    tight = [re.sub(r"\s*=\s*", "=", name) for name in names]
    plain = [re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "unnamed" for name in tight]
    found: list[str] = []
    for name in plain:
        number = next(
            k for k in range(1, len(names) + 2) if (name if k == 1 else f"{name}-{k}") not in found
        )
        found.append(name if number == 1 else f"{name}-{number}")
    return found
