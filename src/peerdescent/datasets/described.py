"""What rows are, without the rows: by it a problem knows whether others, such as those to test on, are of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from peerdescent.datasets.tables import some

if TYPE_CHECKING:
    from peerdescent.datasets.dataset import Dataset, Reading


class Described(NamedTuple):
    """The columns and the classes of a data set, and how it was scaled."""

    name: str
    columns: tuple[str, ...]
    classes: tuple[Any, ...]
    reading: Reading | None

    @staticmethod
    def of(data: Dataset) -> Described:
        """That of a data set."""
        return Described(data.name, data.columns, data.classes, data.reading)


def difference(given: Described, known: Described) -> str:
    """How rows differ from those that are known, as a text; empty if they may be rows of one set."""
    if given.classes != known.classes:
        return f"classes {some(given.classes)}, and those of {known.name} are {some(known.classes)}"
    if given.columns and known.columns and given.columns != known.columns:
        return f"columns {some(given.columns)}, and those of {known.name} are {some(known.columns)}"
    here, there = given.reading, known.reading
    if here is None or there is None:
        return ""
    if here.normalised != there.normalised:
        return f"{'' if here.normalised else 'no '}norm of 1, unlike those of {known.name}"
    mine, theirs = here.ranges, there.ranges
    same = (
        mine is theirs if mine is None or theirs is None else all(map(np.array_equal, mine, theirs))
    )
    return "" if same else f"columns that were scaled otherwise than those of {known.name}"
