"""Rows that are loaded like those of another data set: in its columns, and labelled by its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from peerdescent.datasets.labelling import Labels, Raw, labelled, values_of
from peerdescent.datasets.tables import Table, shifted, some
from peerdescent.errors import require

if TYPE_CHECKING:
    from peerdescent.datasets.dataset import Dataset


def arranged(table: Table, like: Dataset, name: str) -> Table:
    """The table with the columns of another data set, in its order."""
    table = _counted(table, like, name)
    features, columns, wanted = table.features, table.columns, like.columns
    if hasattr(features, "tocsr") and features.shape[1] < like.dimension:
        features.resize((features.shape[0], like.dimension))  # a file does not show empty columns
    elif columns and wanted and columns != wanted:
        other = sorted(set(columns) ^ set(wanted))
        require(
            not other,
            f"only one of {name} and {like.name} has {some(other)}: give the same columns",
        )
        features = features[:, [columns.index(column) for column in wanted]]
    width = features.shape[1]
    require(
        width == like.dimension,
        f"{name} has {width} features, and {like.name} {like.dimension}: give the same columns",
    )
    return table._replace(features=features, columns=wanted)


def _counted(table: Table, like: Dataset, name: str) -> Table:
    """The table, with features that are counted from 0 or 1 as in the file of the others."""
    wanted = like.reading.first if like.reading else None
    if table.first in (None, wanted):
        return table
    require(
        wanted == 0,
        f"{name} and {like.name} may count features from 0 and from 1: pass what "
        "sklearn.datasets.load_svmlight_file gives of both with "
        f"zero_based= and n_features={like.dimension}",
    )
    return table._replace(features=shifted(table.features, 1), first=0)


def relabelled(raw: Raw, like: Dataset, name: str) -> Labels:
    """Labels by the classes of another data set."""
    if like.kind == "real":
        return labelled(raw, name, "real")
    codes = (-1, 1) if like.kind == "binary" else range(len(like.classes))
    known = {
        value: code
        for code, side in zip(codes, like.classes, strict=True)
        for value in (side if isinstance(side, tuple) else (side,))
    }
    values, places = values_of(raw)
    unknown = [repr(value) for value in values if value not in known]
    require(
        not unknown,
        f"{name} has labels {some(unknown)}, which {like.name} has not: its classes are {some(list(known))}",
    )
    return Labels(
        np.array([known[value] for value in values], like.labels.dtype)[places], like.classes
    )
