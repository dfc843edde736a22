"""Tables with named columns, from a file or from pandas, as features, labels and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from peerdescent.errors import require, require_memory

if TYPE_CHECKING:
    from peerdescent.datasets.labelling import Raw

COUNTING = 10
"""A column that counts the rows, in any order, or has another text in each is an index, if there are so many rows."""
LEVELS = 100
"""A column of texts becomes one column for each text, if there are at most so many."""

WRITTEN = re.compile(
    r"\s*[-+]?(\d+|\d{1,3}([,.'’ \u00a0\u202f]\d{3})+|\d{1,3}(,\d{2,3})*,\d{3})([.,]\d+)?\s*%?\s*"
)
"""A number as people write it: with a decimal comma, separated thousands or a percent sign."""
MARKS = {
    "%": "a percent sign",
    ",": "a comma",
    "'’": "an apostrophe",
    " \u00a0\u202f": "a space",
    ".": "points",
}
"""What makes a text of it, as a message calls it."""

UNNAMED = re.compile(r"Unnamed: \d+(_level_\d+)?")
"""What pandas calls a column without a name."""

Column: TypeAlias = str | int
Frame: TypeAlias = (
    Any  # a pd.DataFrame; the stubs of pandas know less than pandas about columns of any kind
)


class Table(NamedTuple):
    """Features and labels as they are in the source, and what else is known about their rows and columns."""

    features: NDArray[Any] | csr_array
    labels: Raw
    columns: tuple[str, ...] = ()
    """The names of the features."""
    encoded: tuple[str, ...] = ()
    """The columns of texts, which became one column for each text."""
    groups: NDArray[Any] | None = None
    """Whose row it is."""
    row_index: pd.Index[Any] | None = None
    """The names of the rows; None for 0, 1, 2, ..."""
    first: int | None = None
    """The number of the first feature in a LIBSVM file: 0 or 1, whichever fits."""


def table(
    frame: Frame,
    source: str,
    *,
    target: Column | None = None,
    index: Sequence[Column] = (),
    groups: Column | None = None,
    raw: Raw | None = None,
    texts: bool = True,
) -> Table:
    """The table of a frame. The labels are in its column `target`, or given as `raw`. Without `texts`, it has numbers.

    >>> frame = pd.DataFrame({"age": [30, 40], "sex": ["f", "m"], "ill": ["no", "yes"]})
    >>> made = table(frame, "some", target="ill")
    >>> made.features.tolist(), made.columns, made.labels.tolist()
    ([[30.0, 1.0, 0.0], [40.0, 0.0, 1.0]], ('age', 'sex=f', 'sex=m'), ['no', 'yes'])
    """
    names = frame.columns.tolist()
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    require(twice is None, f"{source} has several columns called {twice!r}: rename all but one")
    pairs = [("target", target), ("groups", groups), *(("index", one) for one in index)]
    taken = [name for _, name in pairs if name is not None]
    for role, name in pairs:
        require(
            name is None or taken.count(name) == 1,
            f"{role}={name!r} is named twice: a column has one role",
        )
    kept = [name for name in names if name not in taken]
    require(
        len(frame) > 0 and bool(kept),
        f"{source} has {len(frame)} rows of {len(names)} columns: give features and labels",
    )
    for name in kept:
        where = f"{'the first column' if name == names[0] else f'column {name!r}'} of {source}"
        left = [*index, name] if index else name
        leave = f"so it is an index: leave it out by index={left!r}, or if it is a feature,"
        require(not UNNAMED.fullmatch(str(name)), f"{where} has no name, {leave} name it")
        require(
            not _counts(frame[name]),
            f"{where} counts the rows, {leave} give it as floats, such as 1.0",
        )
    features, columns, encoded = encode(frame[kept], source, texts)
    owners = None if groups is None else whose(frame[groups], str(groups), frame.index)
    return Table(
        features, labels(frame[target], source) if raw is None else raw, columns, encoded, owners
    )


def roles(
    frame: Frame, options: Mapping[str, Any], source: str, numbered: bool = False
) -> dict[str, Any]:
    """The names of the columns that options name, by role; of an index there may be several."""
    single = {role: options[role] for role in ("target", "groups") if options[role] is not None}
    found: dict[str, Any] = {
        role: named(frame, which, role, source, numbered) for role, which in single.items()
    }
    return {
        **found,
        "index": [named(frame, which, "index", source, numbered) for which in options["index"]],
    }


def named(frame: Frame, which: Column, role: str, source: str, numbered: bool = False) -> Column:
    """The name of a column that is given by its name or, if columns are `numbered`, by its number."""
    names = frame.columns.tolist()
    if numbered and isinstance(which, int):
        require(
            -len(names) <= which < len(names),
            f"{role}={which} is not one of the {len(names)} columns of {source}",
        )
        unsure = (
            which >= 0 and str(which) in names and not str(names[which]).startswith("Unnamed: ")
        )  # as pandas does
        place = names.index(str(which)) if unsure else which
        require(
            place == which,
            f"{role}={which} is the number of the column called {names[which]!r} of {source}, and the name of another: "
            f"count from the end, {role}={which - len(names)} or {place - len(names)}",
        )
        which = names[which]
    known = isinstance(which, str | int) and which in names
    require(known, f"{role}={which!r} is no column of {source}: its columns are {some(names)}")
    return which


def whose(values: Any, column: str, index: pd.Index[Any] | None = None) -> NDArray[Any]:
    """The values of a column that says whose row it is, as numbers or texts; a Series must have the rows' index."""
    owners = pd.Series(values)
    same = not isinstance(values, pd.Series) or owners.index.equals(
        pd.RangeIndex(len(owners)) if index is None else index
    )
    require(
        same,
        f"{column} is a Series whose index is not that of the rows: give it in their order, as by .loc[frame.index], "
        "or as an array by .to_numpy()",
    )
    count = int(owners.isna().sum())
    require(count == 0, f"{column} is missing in {count:,} rows: fill it in, or leave them out")
    return (
        owners.to_numpy()
        if pd.api.types.is_numeric_dtype(owners)
        else owners.astype(str).to_numpy(str)
    )


def positions(rows: Any, index: pd.Index[Any] | None, count: int) -> NDArray[Any]:
    """Row numbers, or a mask, as an array; refused if they are those of pandas, which may mean other rows by them."""
    own = pd.RangeIndex(count) if index is None else index
    if isinstance(rows, pd.Series) and pd.api.types.is_bool_dtype(rows):
        require(
            rows.index.equals(own),
            "the mask is a Series whose index is not that of the rows: give it in their order, as by "
            ".loc[frame.index], or as an array by .to_numpy()",
        )
    elif isinstance(rows, pd.Index | pd.Series):
        require(
            own.equals(pd.RangeIndex(count)),
            f"rows are given as {'an Index' if isinstance(rows, pd.Index) else 'a Series'}, and those of the data are "
            "not called 0, 1, 2, ...: give row numbers, as frame.groupby(...).indices.values() has them; if "
            "these are, by .to_numpy()",
        )
    return np.asarray(rows)


def shifted(features: csr_array, by: int) -> csr_array:
    """The same columns, with others numbers: those that are `by` larger."""
    rows, width = features.shape
    return csr_array(
        (features.data, features.indices + by, features.indptr), shape=(rows, width + by)
    )


def encode(
    frame: Frame, source: str, texts: bool = True
) -> tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]:
    """The columns of a frame as numbers (N, p), the names of these, and the columns that held texts.

    Numbers and truth values stay. A column of texts or categories becomes one column of 0 and 1 for each of them, as
    `city=Ulm`; a column of vectors becomes one for each entry. Missing values are NaN.
    """
    levels = [
        _levels(frame.iloc[:, k], str(name), source, texts) for k, name in enumerate(frame.columns)
    ]
    widths = [1 if level is None else len(level) for level in levels]
    require_memory(
        f"{source} with {sum(widths):,} columns",
        16.0 * len(frame) * sum(widths),
        "keep fewer rows or columns",
    )
    out = np.empty((len(frame), sum(widths)))
    columns: list[str] = []
    encoded: list[str] = []
    for k, (level, width) in enumerate(zip(levels, widths, strict=True)):
        name, column = str(frame.columns[k]), frame.iloc[:, k]
        block = out[:, len(columns) : len(columns) + width]
        if level is None or isinstance(level, range):
            try:
                numbers = (
                    column.to_numpy(float, na_value=np.nan)
                    if level is None
                    else np.stack(column.tolist())
                )
                block[:] = numbers.reshape(len(frame), width)
            except (OverflowError, TypeError, ValueError) as error:
                raise ValueError(
                    f"column {name!r} of {source} cannot be read as numbers: {error}"
                ) from None
            columns += [name] if level is None else [f"{name}[{entry}]" for entry in level]
        else:
            codes = pd.Index(level).get_indexer(column.astype(object))
            block[:] = codes[:, None] == np.arange(width)
            block[codes < 0, 0] = np.nan
            columns += [f"{name}={value}" for value in level]
            encoded.append(name)
    return out, tuple(columns), tuple(encoded)


def labels(target: Any, source: str) -> Raw:
    """Labels as numbers if all of them are, as categories if they are those of pandas, else as texts."""
    if isinstance(getattr(target, "dtype", None), pd.CategoricalDtype):
        named = pd.Categorical(target)
        require(not (named.codes < 0).any(), f"{source} has rows without a label: leave them out")
        return named
    column = pd.Series(target)
    require(not column.isna().any(), f"{source} has rows without a label: leave them out")
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy()
    other = next(
        (
            one
            for one in column
            if not isinstance(one, str | bytes | bool | int | float | np.generic)
        ),
        None,
    )
    require(other is None, f"{source} has labels such as {other!r}: give numbers or texts")
    text = column.astype(str).to_numpy(str)
    try:
        numbers = text.astype(float)
    except ValueError:
        return text
    # Texts such as 1 and 01 are two classes, and one number.
    return numbers if len(np.unique(numbers)) == len(np.unique(text)) else text


def _levels(column: Any, name: str, source: str, texts: bool) -> Sequence[Any] | None:
    """None for a column of numbers, the different texts for one of texts, a range for one of vectors."""
    where = f"column {name if name.isdecimal() else repr(name)} of {source}"
    if isinstance(column.dtype, pd.CategoricalDtype):
        used: list[Any] = column.cat.remove_unused_categories().cat.categories.tolist()
        return used
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return None
    held = column.dropna().tolist()
    if all(isinstance(cell, bool | int | float | np.number) for cell in held):
        return None
    if all(isinstance(cell, list | tuple | np.ndarray) for cell in held):
        shapes = {np.shape(cell) for cell in held} if len(held) == len(column) else set()
        require(
            len(shapes) == 1,
            f"{where} holds lists of different lengths: give every row as many numbers",
        )
        return range(int(np.prod(shapes.pop())))
    other = next((cell for cell in held if not is_number(cell)), None)
    number = next((cell for cell in held if is_number(cell)), None)
    require(
        other is not None,
        f"{where} holds numbers as text, such as {number!r}: turn them into numbers, or names into categories",
    )
    shown = repr(other if isinstance(other, str) else str(other))[:40]
    if all(isinstance(cell, str) and WRITTEN.fullmatch(cell) for cell in held):
        mark = next(
            (what for marks, what in MARKS.items() if any(one in str(other) for one in marks)),
            "signs",
        )
        remedy = (
            "turn them into numbers, as by .str.rstrip('% ').astype(float)"
            if "%" in str(other)
            else "read the file by pandas.read_csv, whose decimal= and thousands= say what that is, and load that"
        )
        raise ValueError(f"{where} holds numbers with {mark}, such as {shown}: {remedy}")
    require(
        number is None, f"{where} holds {shown} beside {number!r}: give numbers or texts, not both"
    )
    require(
        all(isinstance(cell, str) for cell in held),
        f"{where} holds {shown}: turn it into numbers, or leave it out",
    )
    require(
        texts,
        f"{where} holds {shown}: name the column of labels by target=, and texts as features become columns of 0 and 1",
    )
    found = sorted(set(held))
    leave = f"leave it out by index={column.name!r} (or a list), or turn it into categories"
    named = len(found) == len(column) >= COUNTING
    require(
        not named,
        f"{where} holds another text in each row, such as {shown}, so it is an index: {leave}",
    )
    require(
        len(found) <= LEVELS,
        f"{where} holds {len(found):,} different texts, such as {shown}: {leave}; up to {LEVELS} become a column each",
    )
    return found


def _counts(column: Any) -> bool:
    """Whether whole numbers are consecutive ones, each of which occurs once, in any order."""
    whole = (
        len(column) >= COUNTING
        and pd.api.types.is_integer_dtype(column)
        and not column.isna().any()
    )
    return bool(
        whole and int(column.max()) - int(column.min()) == len(column) - 1 and column.is_unique
    )


def is_number(cell: object) -> bool:
    """Whether a cell is a number, or a text that is one."""
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def some(names: Sequence[object], most: int = 10) -> str:
    """The first of some names, as a message shows them."""
    return (
        ", ".join(str(name) for name in names[:most]) + (", ..." if len(names) > most else "")
        or "nothing"
    )
