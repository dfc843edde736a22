"""Statistics of a sweep's table over seeds: the mean of each configuration, and the best configuration."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from peerdescent.errors import require, unknown
from peerdescent.runs.statistics import mean, ranking
from peerdescent.runs.trace import Status

SETTING = ("problem", "network", "nodes")
"""The columns of a table that say on what a configuration was run, if the sweep had several problems or networks."""


def parameters(table: pd.DataFrame) -> list[str]:
    """The columns before the seed: those of the setting, if there are several, and the hyperparameters."""
    require("seed" in table, "the table has no column seed: give one that sweep or tune has made")
    return list(table.columns[: table.columns.get_loc("seed")])


def setting(table: pd.DataFrame) -> list[str]:
    """The columns of the setting, if the sweep had several problems or networks."""
    return [name for name in SETTING if tuple(parameters(table)[:3]) == SETTING]


def summary(table: pd.DataFrame, by: str = "loss") -> pd.DataFrame:
    """One row per configuration: its setting and hyperparameters, the mean of `by` over seeds, `done` and `diverged`.

    `done` is whether it is done for every seed of the table, `diverged` whether it diverged for
    any; there is no mean if a seed is missing. A configuration that is listed twice counts once.
    Rows are in the order of the table.

    >>> table = pd.DataFrame({"alpha": [1, 1, 2], "seed": [0, 1, 0], "loss": [0.5, 0.7, 0.4], "status": "done"})
    >>> summary(table)
       alpha  loss   done  diverged
    0      1   0.6   True     False
    1      2   NaN  False     False
    """
    names = parameters(table)
    measured = [
        name for name in table.columns if name in ("loss", "grad_norm") or name.startswith("loss@")
    ]
    if by not in measured:
        raise unknown("value", by, measured)
    if "method" in table:
        methods = sorted({str(each).partition("[")[0] for each in table["method"]})
        require(
            len(methods) < 2,
            f"the table has rows of {' and '.join(methods)}, which may have the same hyperparameters: give those "
            f"of one, as table[table['method'].str.startswith('{methods[0]}[')]",
        )
    # As text, since values may be None or have different types, which pandas cannot group by.
    configuration, _ = pd.factorize(
        np.array([repr(row) for row in table[names].to_numpy().tolist()], dtype=object)
    )
    rows = pd.DataFrame(
        {
            "configuration": configuration,
            "seed": table["seed"].to_numpy(),
            "place": np.arange(len(table)),
            "value": table[by].to_numpy(),
            "done": (table["status"] == Status.done).to_numpy(),
            "diverged": (table["status"] == Status.diverged).to_numpy(),
        }
    )
    # Of two rows with the same configuration and seed, a finished one counts.
    found = rows[rows["done"]].groupby(["configuration", "seed"])["value"]
    require(
        bool((found.nunique() < 2).all()),
        f"the table has different {by} for one configuration and seed, as of sweeps with other budgets: give one sweep",
    )
    rows = rows.sort_values("done", ascending=False, kind="stable").drop_duplicates(
        ["configuration", "seed"]
    )
    each = rows.groupby("configuration").agg({"place": "min", "done": "sum", "diverged": "any"})
    each["value"] = mean(rows.pivot(index="seed", columns="configuration", values="value"))
    done = each["done"] == table["seed"].nunique()
    own = table[names].iloc[each["place"]].reset_index(drop=True)
    return own.assign(**{by: each["value"], "done": done, "diverged": each["diverged"]})


def best(table: pd.DataFrame, by: str = "loss") -> dict[str, Any]:
    """The hyperparameters of the configuration with the smallest mean of the column `by` over seeds.

    Configurations that diverged or were interrupted for any seed are left out. A table of several
    problems or networks is refused, since their losses are not comparable; `winners` has the best
    configuration of each.
    """
    several = len(table[setting(table)].drop_duplicates()) if setting(table) else 1
    require(
        several == 1,
        f"the table has {several} settings, and what is best in one need not be in another: use winners(table), or "
        "rows of one setting, as in best(table[table['network'] == 'ring'])",
    )
    each = summary(table, by)
    first = ranked(each, by)[:1]
    require(
        len(first) > 0, "no configuration is done for every seed: all diverged or were interrupted"
    )
    return configuration(each, first[0])


def winners(table: pd.DataFrame, by: str = "loss") -> pd.DataFrame:
    """The best configuration of each problem and network, one row for each, with the mean of `by` over seeds.

    It is that of `best`. A setting in which no configuration is done for every seed has an empty
    row.

    >>> losses, done = [0.5, 0.7, 0.4], ["done", "done", "diverged"]
    >>> table = pd.DataFrame({"problem": "digits", "network": ["ring", "ring", "star"], "nodes": 8, "alpha": [1, 2, 1]})
    >>> winners(table.assign(seed=0, loss=losses, status=done))
      problem network  nodes  alpha  loss
    0  digits    ring      8    1.0   0.5
    1  digits    star      8    NaN   NaN
    """
    names, rows = setting(table), []
    for _, own in table.groupby(names, sort=False) if names else [((), table)]:
        each = summary(own, by)
        row = {name: own[name].iloc[0] for name in names}
        for first in ranked(each, by)[:1]:
            row |= configuration(each, first) | {by: each[by].iloc[first]}
        rows.append(row)
    return pd.DataFrame(rows, columns=[*parameters(table), by])


def ranked(each: pd.DataFrame, by: str = "loss") -> list[int]:
    """The rows of a `summary` that are done for every seed, the one with the smallest mean first."""
    return ranking(each[by], each["done"])


def configuration(each: pd.DataFrame, place: int) -> dict[str, Any]:
    """The hyperparameters in a row of a `summary`."""
    known = [
        str(name) for name in each.columns[:-3]
    ]  # the others are the mean, `done` and `diverged`
    names = known[3:] if tuple(known[:3]) == SETTING else known
    return {name: _given(each[name], place) for name in names}


def _given(column: pd.Series, place: int) -> Any:
    """A value as it was in the grid. In a column with empty cells, pandas has turned integers to float, None to NaN."""
    value = column.tolist()[place]
    if isinstance(value, float) and column.isna().any():
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def levels(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The index of each row's value among the sorted distinct values of a column, and labels of these values.

    Numbers come first. Labels have six digits, or more if they would otherwise be equal.

    >>> places, names = levels(pd.Series([10, 0.1, None, 10]))
    >>> places.tolist(), names
    ([1, 0, 2, 1], ['0.1', '10', 'none'])
    """

    def key(value: Any) -> tuple[bool, float, str]:
        if isinstance(value, Real) and not isinstance(value, bool) and value == value:
            return False, float(value), ""
        return True, 0.0, "none" if value is None or value != value else str(value)

    keys = [key(value) for value in column.tolist()]
    ordered = sorted(set(keys))
    numbers = [number for is_text, number, _ in ordered if not is_text]
    digits = next(
        d for d in range(6, 18) if len({f"{number:.{d}g}" for number in numbers}) == len(numbers)
    )
    places = {one: place for place, one in enumerate(ordered)}
    names = [text if is_text else f"{number:.{digits}g}" for is_text, number, text in ordered]
    return np.array([places[one] for one in keys], dtype=int), names


def smallest(
    each: pd.DataFrame, by: str, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The cells of a heat map, given a `summary` and the cell (row, column) of each configuration.

    Returns:
        For each cell, the smallest mean of its finished configurations, NaN if there are none; and
        whether there are none because all its configurations diverged.
    """
    done, diverged = each["done"].to_numpy(), each["diverged"].to_numpy()
    cells, gone = np.full(shape, np.inf), np.zeros(shape, dtype=bool)
    np.minimum.at(cells, (rows[done], columns[done]), each[by].to_numpy()[done])
    gone[rows[diverged], columns[diverged]] = True
    unfinished = ~done & ~diverged
    gone[rows[unfinished], columns[unfinished]] = False
    return np.where(np.isinf(cells), np.nan, cells), gone & np.isinf(cells)
