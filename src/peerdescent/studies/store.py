"""Results that are not computed twice: rows in a table, or one JSON file, each beside what it is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from peerdescent.errors import require
from peerdescent.runs.trace import write


class Store:
    """Rows by key in `name.csv`, beside `name.json`, which says what they are about.

    `about` has what all rows share, such as the problem's parameters. A folder whose rows are about something else is
    refused. `key` names the columns that tell rows apart.
    """

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], key: Sequence[str]) -> None:
        self.table, self.note, self.key = folder / f"{name}.csv", folder / f"{name}.json", tuple(key)
        self.about = json.loads(json.dumps(about))
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        if self.table.is_file():
            earlier = json.loads(self.note.read_text()) if self.note.is_file() else "not known"
            require(
                earlier == self.about,
                f"{self.table} is about {json.dumps(earlier)}, not {json.dumps(self.about)}: give another folder",
            )
            records: list[dict[str, Any]] = pd.read_csv(self.table).to_dict("records")  # type: ignore[assignment]
            self.rows = {tuple(row[name] for name in self.key): row for row in records}

    def add(self, key: Sequence[Any], row: Mapping[str, Any]) -> None:
        """Put a row in; `save` writes it."""
        self.rows[tuple(key)] = {**dict(zip(self.key, key, strict=True)), **row}

    def save(self) -> None:
        """Write all rows."""
        write(self.note, (json.dumps(self.about, indent=2) + "\n").encode())
        write(self.table, pd.DataFrame(list(self.rows.values())).to_csv(index=False).encode())


def recall(path: Path, about: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result in a JSON file, where it is about the same; else the computed one, which takes its place."""
    wanted = json.loads(json.dumps(about))
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if known.get("about") != wanted:
        known = {**compute(), "about": wanted}
        write(path, (json.dumps(known, indent=2) + "\n").encode())
    return known
