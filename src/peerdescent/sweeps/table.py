"""The table of a sweep: finished rows and rows still to be computed, in the order of the grid."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from peerdescent.engines.fleet import Member
from peerdescent.engines.outline import definition
from peerdescent.errors import require
from peerdescent.methods.contract import Method
from peerdescent.runs.statistics import ranking
from peerdescent.runs.store import Key, Store, key_of
from peerdescent.runs.trace import Status


class Configuration(NamedTuple):
    """One configuration of a sweep."""

    values: dict[str, Any]
    """The hyperparameters, as in the grid."""
    method: Method
    marks: tuple[int, ...]
    """The steps at which its loss is recorded; the last one is its end."""
    gradients: Callable[[Any], Any]
    """The gradients that a node has computed, as a function of the step."""


class Rows:
    """The rows of a sweep, by configuration and seed. A configuration that is in the grid twice is run once."""

    def __init__(
        self,
        configurations: list[Configuration],
        seeds: list[int],
        asked: list[str],
        precision: str,
        samples: float | None,
        folder: Path | None,
        about: Mapping[str, Any],
    ) -> None:
        self.configurations, self.asked, self.precision, self.samples = (
            configurations,
            asked,
            precision,
            samples,
        )
        columns = [
            "seed",
            "steps",
            "epoch",
            *asked,
            "loss",
            "grad_norm",
            "status",
            "precision",
            "method",
            "definition",
        ]
        for name in configurations[0].values:
            require(
                name not in columns,
                f"the hyperparameter {name!r} has the name of a column of the table: rename it",
            )
        self.wanted = [(k, seed) for k in range(len(configurations)) for seed in seeds]
        self.store = Store(folder, "sweep", about, [*configurations[0].values, "seed"])
        self.keys = {
            one: key_of([*configurations[one[0]].values.values(), one[1]]) for one in self.wanted
        }
        self.first: dict[Key, tuple[int, int]] = {}
        for one, key in self.keys.items():
            mine, other = (
                configurations[k].method for k in (one[0], self.first.setdefault(key, one)[0])
            )
            require(
                mine == other or (bool(mine.parts) and str(mine) == str(other)),
                f"the grid has {mine} and {other} under values that a table cannot tell apart: write them differently",
            )
        self.total = sum(configurations[k].marks[-1] for k, _ in self.first.values())
        self.save_seconds = 0.0
        for key, (k, _) in self.first.items():
            method, there = configurations[k].method, self.store.rows.get(key)
            require(
                there is None or there["method"] == str(method),
                f"{folder}/sweep.csv is about something else: a configuration is {method} here and was "
                f"{there and there['method']} there: give another folder",
            )
            require(
                there is None or there.get("definition") == definition(method.pattern),
                f"{folder}/sweep.csv is about something else: {method} computes something else here than there: "
                "give another folder",
            )

    @property
    def done(self) -> int:
        """The total number of steps of all finished configurations."""
        return sum(
            self.configurations[k].marks[-1]
            for key, (k, _) in self.first.items()
            if key in self.store.rows
        )

    @property
    def best(self) -> float:
        """The smallest loss so far."""
        rows = [self.store.rows[key] for key in self.first if key in self.store.rows]
        losses = [
            float(row["loss"] or "nan") for row in rows
        ]  # a file has nothing where a loss was not finite
        first = ranking(losses, [row["status"] == Status.done for row in rows])[:1]
        return losses[first[0]] if first else float("nan")

    def members(self) -> list[tuple[tuple[int, int], Member]]:
        """All configurations; none if all have results."""
        if all(key in self.store.rows for key in self.first):
            return []
        every = list(self.first.values())
        chosen = [self.configurations[k] for k, _ in every]
        return [
            (one, Member(own.method, one[1], own.marks))
            for one, own in zip(every, chosen, strict=True)
        ]

    def fill(
        self, one: tuple[int, int], steps: int, status: Status, losses: list[float], norm: float
    ) -> None:
        """Set the result of a configuration; the last of the losses is that of its last step."""
        row = self._row(one, steps, status, losses, norm)
        self.store.add(row | {"definition": definition(self.configurations[one[0]].method.pattern)})

    def has(self, one: tuple[int, int]) -> bool:
        """Whether a configuration is finished."""
        return self.keys[one] in self.store.rows

    def frame(self) -> pd.DataFrame:
        """The table of all rows; those without a result have the status `interrupted`."""
        nothing = [float("nan")] * (len(self.asked) + 1)
        rows = []
        for one in self.wanted:
            known = self.store.rows.get(self.keys[one])
            if known is None:
                rows.append(self._row(one, 0, Status.interrupted, nothing, float("nan")))
            else:
                losses = [_number(known[name]) for name in (*self.asked, "loss")]
                steps, norm = int(known["steps"]), _number(known["grad_norm"])
                rows.append(self._row(one, steps, Status(known["status"]), losses, norm))
        return pd.DataFrame(rows)

    def save(self) -> bool:
        """Write the finished rows, in the order of the grid, and say whether that was possible."""
        clock = time.perf_counter()
        try:
            self.store.save(self.keys.values())
        except (
            OSError
        ) as error:  # such as a full disk: the rows are in memory, and the sweep goes on
            warnings.warn(
                f"{error.filename}: {error.strerror}; the table is not saved", stacklevel=2
            )
            return False
        finally:
            self.save_seconds = time.perf_counter() - clock
        return True

    def _row(
        self, one: tuple[int, int], steps: int, status: Status, losses: list[float], norm: float
    ) -> dict[str, Any]:
        configuration, seed = self.configurations[one[0]], one[1]
        spent = float(configuration.gradients(steps))
        return {
            **configuration.values,
            "seed": seed,
            "steps": steps,
            "epoch": spent / self.samples if self.samples else float("nan"),
            **dict(zip((*self.asked, "loss"), losses, strict=True)),
            "grad_norm": norm,
            "status": str(status),
            "precision": self.precision,
            "method": str(configuration.method),
        }


def _number(value: Any) -> float:
    """A number in a cell; NaN for an empty cell."""
    return float("nan") if value == "" else float(value)
