"""What becomes of labels: -1 and +1, classes 0 to C - 1, or real targets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from peerdescent.datasets.dataset import Kind, rounded
from peerdescent.errors import require, unknown

KINDS: tuple[Kind, ...] = ("binary", "classes", "real")
MOST = 100
"""Whole numbers of at most so many different values are classes, unless the user says otherwise."""

REAL, CLASSES = "a problem for real targets", "a problem for classes"
"""Remedies, which the command line knows by name."""

Raw: TypeAlias = NDArray[Any] | pd.Categorical
"""Labels as a source has them: numbers, texts, or codes of categories that have an order and names."""


class Labels(NamedTuple):
    """Labels as a `Dataset` has them, and what they stand for."""

    values: NDArray[Any]
    classes: tuple[Any, ...]


def labelled(
    raw: Raw,
    name: str,
    kind: Kind | None = None,
    positive: int | str | Iterable[int | str] | None = None,
    default: tuple[int, ...] = (),
) -> Labels:
    """Labels of a kind, or of the kind that their values have.

    With None, two different values are binary, and so are those of a set with a `default` for +1.
    Texts, truth values and whole numbers of at most 100 different values are classes. Other numbers
    are real.

    >>> labelled(np.array(["no", "yes", "no"]), "some").classes
    ('no', 'yes')
    >>> labelled(np.array([7, 8, 9]), "some").values
    array([0, 1, 2])
    >>> labelled(np.array([0.5, 1.5, 2.5]), "some").values
    array([0.5, 1.5, 2.5], dtype=float32)
    """
    if kind is not None and kind not in KINDS:
        raise unknown("labels", kind, KINDS)
    require(
        positive is None or kind in (None, "binary"),
        f"positive={positive!r} has no meaning with labels={kind!r}: leave one of them out",
    )
    known = isinstance(raw, pd.Categorical) or raw.dtype.kind in "biufUS"
    require(known, f"{name} has labels of type {raw.dtype}: give numbers or texts")
    values, codes = values_of(raw)
    free = kind is None and positive is None and not default
    if raw.dtype.kind in "US" and (kind == "real" or (free and len(values) > MOST)):
        with suppress(ValueError):  # numbers that are written in several ways, such as 0.5 and 0.50
            return labelled(np.asarray(raw, float), name, "real")
    numbers = not isinstance(raw, pd.Categorical) and raw.dtype.kind in "iuf"
    whole = numbers and all(isinstance(value, int) for value in values)
    if kind is None:
        binary = positive is not None or bool(default) or len(values) == 2
        classes = not numbers or (whole and len(values) <= MOST)
        kind = "binary" if binary else "classes" if classes else "real"
    if kind == "binary":
        return _binary(values, codes, positive, default, name)
    if kind == "classes":
        fraction = next((value for value in values if numbers and not isinstance(value, int)), None)
        require(
            fraction is None,
            f"{name} has labels such as {fraction}: classes are whole numbers or text; use {REAL}",
        )
        return Labels(codes, tuple(values))
    require(
        numbers, f"{name} has labels such as {values[0]!r}: real targets are numbers; use {CLASSES}"
    )
    return Labels(
        rounded(
            np.asarray(raw)[:, None], name, ("its targets",), "subtract a constant from them", 4
        )[:, 0],
        (),
    )


def values_of(raw: Raw) -> tuple[list[Any], NDArray[np.int64]]:
    """The different values, in order, and the place of each label among them."""
    if isinstance(raw, pd.Categorical):
        used = raw.remove_unused_categories()
        return [_plain(value) for value in used.categories.tolist()], used.codes.astype(np.int64)
    values, codes = np.unique(raw, return_inverse=True)
    return [_plain(value) for value in values.tolist()], codes.astype(np.int64)


def _plain(value: Any) -> Any:
    """A value as Python has it, and a float that is a whole number as an int."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _binary(
    values: list[Any],
    codes: NDArray[np.int64],
    positive: int | str | Iterable[int | str] | None,
    default: tuple[int, ...],
    name: str,
) -> Labels:
    some = ", ".join(map(repr, values[:10])) + (", ..." if len(values) > 10 else "")
    if positive is not None:
        several = isinstance(positive, Iterable) and not isinstance(positive, str)
        wanted: list[Any] = list(positive) if several else [positive]  # type: ignore[arg-type]
        # A flag cannot say whether 3 is a number or a text.
        chosen = [
            any(value == each or str(value) == str(each) for each in wanted) for value in values
        ]
        all_known = all(
            any(each == value or str(each) == str(value) for value in values) for each in wanted
        )
        require(
            all_known and 0 < sum(chosen) < len(values),
            f"positive={wanted if several else positive!r} must be some, but not all, of the classes of {name}: {some}",
        )
    elif default:
        chosen = [value in default for value in values]
    else:
        fractions = any(isinstance(value, float) for value in values)
        require(
            len(values) == 2,
            f"{name} has {len(values)} {'different labels' if fractions else 'classes'} ({some}), and binary labels "
            f"need two: say which become +1, as in positive={values[-1]!r}, name another column of labels by target=, "
            f"or use {REAL if fractions else CLASSES}",
        )
        chosen = [False, True]
    sides = tuple(
        _one([v for v, c in zip(values, chosen, strict=True) if c == side])
        for side in (False, True)
    )
    return Labels(np.where(np.array(chosen)[codes], 1, -1).astype(np.float32), sides)


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)
