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
    """The table with the columns of another data set, in its order; texts that do not occur have columns of zeros."""
    table = _counted(table, like, name)
    features, wanted = table.features, like.columns
    if not (table.columns and wanted):
        if (
            hasattr(features, "tocsr") and features.shape[1] < like.dimension
        ):  # a file does not show empty columns
            features.resize((features.shape[0], like.dimension))
        width = features.shape[1]
        require(
            width == like.dimension,
            f"{name} has {width} features, and {like.name} {like.dimension}: give the same columns",
        )
        return table._replace(columns=wanted)
    unknown = [column for column in table.columns if column not in wanted]
    require(
        not unknown,
        f"{name} has {some(unknown)}, which {like.name} has not: leave out that column, or those rows",
    )
    missing = [
        column
        for column in wanted
        if column not in table.columns
        and not any(column.startswith(f"{text}=") for text in table.encoded)
    ]
    require(
        not missing, f"{name} has no {some(missing)}, which {like.name} has: give the same columns"
    )
    found = np.zeros((features.shape[0], len(wanted)), features.dtype)
    found[:, [wanted.index(column) for column in table.columns]] = features
    return table._replace(features=found, columns=wanted)


def _counted(table: Table, like: Dataset, name: str) -> Table:
    """The table, with features that are counted from the same number as in the file of another data set."""
    if table.first is None:
        return table
    wanted = like.reading.first if like.reading else None
    remedy = f"pass what sklearn.datasets.load_svmlight_file gives with zero_based= and n_features={like.dimension}"
    require(
        (table.first, wanted) != (0, 1),
        f"{name} has a feature 0, and {like.name} counts from 1: if that has only no entry in its feature 0, load both "
        f"again, and {remedy}",
    )
    require(
        wanted is not None or table.first == 0 or table.features.shape[1] >= like.dimension,
        f"{name} may count features from 0 or 1, and {like.name} is no such file: {remedy}",
    )
    wanted = table.first if wanted is None else wanted
    return table._replace(features=shifted(table.features, table.first - wanted), first=wanted)


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
