"""The rows of a sweep: those there are and those to come, in the order of the grid, saved and read back."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdescent.errors import require
from peerdescent.runs.trace import Status, write

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.engines.fleet import Member
    from peerdescent.methods.contract import Method


class Rows:
    """The rows there are and the rows to come, in the order of the grid."""

    def __init__(
        self,
        configurations: list[dict[str, Any]],
        methods: list[str],
        seeds: list[int],
        marks: list[tuple[tuple[int, ...], Any]],
        asked: list[str],
        precision: int | str,
        samples: float | None,
    ) -> None:
        self.asked, self.samples, self.methods, self.save_seconds = asked, samples, methods, 0.0
        self.precision = precision if isinstance(precision, str) else f"float{precision}"
        self.keys = [(k, s) for k in range(len(configurations)) for s in seeds]
        self.configurations, self.marks = configurations, marks
        # A configuration that is in the grid twice is run once.
        self.names = {key: self._name(key) for key in self.keys}
        self.rows: dict[str, dict[str, Any]] = {}
        self.total = sum(self.marks[k][0][-1] for k, _ in {name: key for key, name in self.names.items()}.values())
        self.done, self.best = 0, float("nan")
        self.others: list[dict[str, str]] = []  # rows of a folder that are not of this grid, and stay there

    def members(self, built: list[Method]) -> list[tuple[tuple[int, int], Member]]:
        """The configurations still to be run."""
        from peerdescent.engines.fleet import Member

        left = {name: key for key, name in reversed(self.names.items()) if name not in self.rows}
        return [(key, Member(built[key[0]], key[1], self.marks[key[0]][0])) for key in reversed(left.values())]

    def fill(self, key: tuple[int, int], row: dict[str, Any]) -> None:
        """Enter what became of a configuration."""
        self.rows[self.names[key]] = row
        self.done += self.marks[key[0]][0][-1]
        if row["status"] == Status.done:
            self.best = min(row["loss"], self.best) if self.best == self.best else row["loss"]

    def has(self, key: tuple[int, int]) -> bool:
        """Whether a configuration is finished."""
        return self.names[key] in self.rows

    def frame(self) -> pd.DataFrame:
        """All rows, those without a result as interrupted."""
        import pandas as pd

        return pd.DataFrame([self._line(key) for key in self.keys])

    def save(self, folder: Path) -> None:
        """Write the finished rows, all of the file or nothing."""
        import pandas as pd

        clock = time.perf_counter()
        lines = pd.DataFrame([self._line(key) for key in self.keys if self.names[key] in self.rows])
        text = lines.to_csv(index=False)
        if self.others:
            text += pd.DataFrame(self.others)[lines.columns].to_csv(index=False, header=False)
        write(folder / "sweep.csv", text.encode())
        self.save_seconds = time.perf_counter() - clock

    def resume(self, folder: Path, identity: dict[str, Any]) -> None:
        """Take over the finished rows of a folder, or prepare an empty one."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "sweep.json").is_file():
            write(folder / "sweep.json", (json.dumps(identity, indent=2) + "\n").encode())
        before = json.loads((folder / "sweep.json").read_text())
        for name, mine in identity.items():
            theirs = before.get(name)
            require(
                mine == theirs,
                f"{folder} holds another sweep: {name} is {mine!r} here and was {theirs!r} there: give another folder",
            )
        if not (folder / "sweep.csv").is_file():
            return
        known = {name: key for key, name in self.names.items()}
        parameters = list(self.configurations[0])
        with (folder / "sweep.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                key = known.get(_named([line[name] for name in parameters], int(line["seed"])))
                if key is None:
                    self.others.append(line)
                    continue
                mine, theirs = self.methods[key[0]], line["method"]
                there = f"{folder} holds another sweep: a configuration is {mine} here and was {theirs} there"
                require(mine == theirs, f"{there}: give another folder")
                if self.names[key] in self.rows:
                    continue
                losses = [_number(line[name]) for name in self.asked]
                row = {"steps": int(line["steps"]), "status": Status(line["status"]), "losses": losses}
                self.fill(key, row | {name: _number(line[name]) for name in ("loss", "grad_norm")})

    def _name(self, key: tuple[int, int]) -> str:
        return _named(list(self.configurations[key[0]].values()), key[1])

    def _line(self, key: tuple[int, int]) -> dict[str, Any]:
        nan = float("nan")
        nothing = {
            "steps": 0,
            "loss": nan,
            "grad_norm": nan,
            "status": Status.interrupted,
            "losses": [nan] * len(self.asked),
        }
        row = self.rows.get(self.names[key], nothing)
        spent = self.marks[key[0]][1](row["steps"])
        return {
            **self.configurations[key[0]],
            "seed": key[1],
            "steps": row["steps"],
            "epoch": float(spent) / self.samples if self.samples else nan,
            **dict(zip(self.asked, row["losses"], strict=True)),
            "loss": row["loss"],
            "grad_norm": row["grad_norm"],
            "status": str(row["status"]),
            "precision": self.precision,
            "method": self.methods[key[0]],
        }


def _number(text: str) -> float:
    """A number of a CSV file, where nothing means NaN and a truth value is a number."""
    return float({"": "nan", "True": "1", "False": "0"}.get(text, text))


def _named(parameters: list[Any], seed: int) -> str:
    """A configuration by its values, whether they come from a grid or from a file."""

    def plain(value: Any) -> Any:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        try:
            number = _number(str(value))
        except ValueError:
            return str(value)
        return None if math.isnan(number) else number

    return repr(([plain(value) for value in parameters], int(seed)))
