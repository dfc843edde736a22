"""A store of computed results in a folder, so that an interrupted computation can continue.

A table of results is `<name>.csv`, with one row per result, and `<name>.json` has the facts that
hold for all of them, such as data and seed. A call with other facts is refused, so that results are
never mixed up.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from peerdescent.errors import require
from peerdescent.files import write

Key = tuple[Any, ...]


def key_of(values: Iterable[Any]) -> Key:
    """A key of a result, the same for values from a program and for the texts in a file.

    >>> key_of([1, None, True, "ring"]) == key_of(["1.0", "", "True", "ring"])
    True
    """

    def plain(value: Any) -> Any:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        try:
            number = float({"": "nan", "True": "1", "False": "0"}.get(str(value), str(value)))
        except ValueError:
            return str(value)
        return None if math.isnan(number) else number

    return tuple(plain(value) for value in values)


class Store:
    """A table of results by key. `names` are the columns of the key. Without a folder it is in memory only.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first = Store(folder, "gaps", {"noise": 1.0}, ["nodes"])
    >>> first.add({"nodes": 4, "gap": 0.5})
    >>> first.save()
    >>> Store(folder, "gaps", {"noise": 1.0}, ["nodes"]).get([4])
    {'nodes': '4', 'gap': '0.5'}
    >>> Store(folder, "gaps", {"noise": 2.0}, ["nodes"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...gaps.csv is about something else: noise is 2.0 here and was 1.0 there: give another folder
    """

    def __init__(
        self, folder: Path | None, name: str, about: Mapping[str, Any], names: Sequence[str]
    ) -> None:
        self.folder, self.name, self.names = folder, name, list(names)
        self.rows: dict[Key, dict[str, Any]] = {}
        """The rows by key. Those read from the folder have texts as values."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _check_about(
            folder / f"{name}.json", dict(about), f"{folder / name}.csv is about something else"
        )
        table = folder / f"{name}.csv"
        if table.is_file():
            with table.open(newline="", encoding="utf-8") as file:
                for line in csv.DictReader(file):
                    self.rows.setdefault(key_of(line[column] for column in self.names), line)

    def get(self, key: Iterable[Any]) -> dict[str, Any] | None:
        """The row of a key, or None."""
        return self.rows.get(key_of(key))

    def add(self, row: dict[str, Any]) -> None:
        """Add a result, or replace it."""
        self.rows[key_of(row[column] for column in self.names)] = row

    def save(self, order: Iterable[Key] = ()) -> None:
        """Write all rows atomically, those of `order` first and in that order."""
        if self.folder is not None and self.rows:
            wanted = [key for key in order if key in self.rows]
            rows = [self.rows[key] for key in dict.fromkeys([*wanted, *self.rows])]
            write(self.folder / f"{self.name}.csv", pd.DataFrame(rows).to_csv(index=False).encode())


def recall(
    path: Path, about: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """The result in a JSON file if the facts `about` it are the same there; else compute and write it."""
    if path.is_file():
        known = _read(path)
        if known.get("about") == _as_json(about):
            return known
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {**compute(), "about": _as_json(about)}
    write(path, (json.dumps(found, indent=2) + "\n").encode())
    return found


def _as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are when read from a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    return loaded


def _check_about(path: Path, about: dict[str, Any], what: str) -> None:
    """Write the facts if there are none yet; refuse facts that differ from those in the file."""
    if not path.is_file():
        table = path.with_suffix(".csv")
        require(
            not table.is_file(),
            f"{table} does not say what it is about, since {path.name} is missing: remove it",
        )
        write(path, (json.dumps(about, indent=2) + "\n").encode())
    before = _read(path)
    for fact, mine in _as_json(about).items():
        theirs = before.get(fact)
        require(
            mine == theirs,
            f"{what}: {fact} is {mine!r} here and was {theirs!r} there: give another folder",
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}; remove it") from None
    require(isinstance(found, dict), f"{path} holds no table of names and values: remove it")
    facts: dict[str, Any] = found
    return facts
