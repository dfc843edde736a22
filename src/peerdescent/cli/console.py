"""Output of the command line: results on standard output, everything else on standard error.

Rich is imported inside functions, so that importing this module is fast. It omits colours and
animation if the output is not a terminal.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peerdescent.cli.options import with_flags
from peerdescent.runs.progress import Bar

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.status import Status as Spinner
    from rich.table import Table

    from peerdescent.runs.metrics import Metric

ROWS = 10
"""Rows of a printed trace, after the first."""
WIDTH = 140
"""The width of tables if the output is a file or a pipe."""
DISPENSABLE = ("gradients", "rounds", "epoch", "consensus")
"""Columns that a trace leaves out if there is no room for all, the first one first."""
MORE = "more columns on a wider terminal, or by --format csv"
WIDE = {"configurations": 130, "stationarity": 130, "gradients": 130, "epoch": 100, "rounds": 100}
"""The least width at which a comparison shows these columns, which nearly follow from others or are said beside."""

_SPINNING: list[Console] = []
"""The consoles that show a spinner now. What they print stands above it; others would write into its line."""


def make(stderr: bool = False) -> Console:
    """A console with the width of the terminal, or `WIDTH` without a terminal."""
    from rich.console import Console

    terminal = "COLUMNS" in os.environ or any(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr) if stream
    )
    # Without markup, since Rich would read [alpha=0.5] as a style.
    return Console(stderr=stderr, highlight=False, markup=False, width=None if terminal else WIDTH)


def say(text: str, word: str = "") -> None:
    """Print one line on standard error, after a coloured word such as "error"."""
    from rich.text import Text

    line = Text(" ".join(text.split()))
    if word:
        line = Text.assemble((f"{word}: ", "bold red"), line)
    (_SPINNING[-1] if _SPINNING else make(stderr=True)).print(line, soft_wrap=True)


def note(quiet: bool) -> Callable[[str], None]:
    """What prints notes on standard error, unless they are unwanted."""
    return (
        (lambda text: None) if quiet else lambda text: say(with_flags(text, ["scale", "normalise"]))
    )


@contextlib.contextmanager
def waiting(text: str, quiet: bool) -> Iterator[Spinner | None]:
    """A spinner on standard error during a long operation; None without a terminal, or with `quiet`."""
    console = make(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.markup import escape

    with console.status(escape(text)) as spinner:
        _SPINNING.append(console)
        try:
            yield spinner
        finally:
            _SPINNING.remove(console)


class Compiled(Bar):
    """A progress bar that replaces a spinner when compilation ends."""

    def __init__(self, spinner: Spinner) -> None:
        self._spinner = spinner

    def begin(self, label: str, total: int) -> None:
        """Stop the spinner and draw the bar."""
        self._spinner.stop()
        super().begin(label, total)


def result(
    form: str, frame: pd.DataFrame, layout: Callable[[pd.DataFrame, int], Table], **head: Any
) -> None:
    """Print a frame as CSV, as JSON (with `head`, an object that also has those facts), or as a table by `layout`."""
    if form == "table":
        console = make()
        console.print(layout(frame, console.width))
    elif form == "csv":
        print(frame.to_csv(index=False), end="", flush=True)
    else:
        rows = [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in row.items()
            }
            for row in frame.to_dict("records")
        ]
        print(json.dumps({**head, "trace": rows} if head else rows, indent=2), flush=True)


def records(form: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print facts as JSON or CSV. Lists and objects inside them are texts in CSV."""
    if form == "json":
        print(json.dumps(rows, indent=2), flush=True)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in row.items()} for row in rows)
    print(text.getvalue(), end="", flush=True)


def _flat(value: Any) -> Any:
    if isinstance(value, dict):  # of values, or of what has a default
        return ", ".join(
            f"{name}={one['default'] if isinstance(one, dict) else one}"
            for name, one in value.items()
        )
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def trace(frame: pd.DataFrame, width: int, own: Sequence[Metric] = ()) -> Table:
    """A table of about ten records of a trace."""
    chosen = sorted({round(i * (len(frame) - 1) / ROWS) for i in range(ROWS + 1)})
    rows, gap = frame.iloc[chosen].to_dict("records"), _gap(width)
    columns = [
        str(c) for c in frame.columns if c not in {"stationarity", "tracking", *_empty(frame)}
    ]
    texts = {c: [cell(c, row[c], own) for row in rows] for c in columns}
    for name in DISPENSABLE:
        if (
            sum(gap + max(map(len, (title(c), *own_texts))) for c, own_texts in texts.items()) - gap
            > width
        ):
            texts.pop(name)
    shown = table(*texts, numbers=[*texts], gap=gap)
    for line in zip(*texts.values(), strict=True):
        shown.add_row(*line)
    shown.caption = MORE if len(texts) < len(columns) else None
    return shown


def comparison(
    frame: pd.DataFrame, width: int, own: Sequence[Metric] = (), by: str = "loss"
) -> Table:
    """A table with one row per method; marks are as in `Comparison.to_markdown`."""
    narrow = [c for c, least in WIDE.items() if width < least]
    left_out = {
        "selector",
        "seeds",
        "step",
        "tracking",
        "compile_seconds",
        "leads",
        *_empty(frame),
        *narrow,
    } - {by}
    columns = [
        str(c)
        for c in frame.columns
        if c not in left_out and not str(c).endswith(("_deviation", "_middle"))
    ]
    shown = table(*columns, numbers=columns[1:-1], gap=_gap(width))
    shown.columns[columns.index(by)].no_wrap = True
    from peerdescent.runs import METRICS, cells
    from peerdescent.runs.bands import VERTICAL

    for row in frame.to_dict("records"):
        best, texts = bool(row["leads"]), {c: cell(c, row[c], own) for c in columns}
        for name in (c for c in columns if c == "loss" or (c in METRICS and c not in VERTICAL)):
            spread = row[f"{name}_deviation"]
            if spread > 0 and cell(name, spread) != cell(name, 0.0):  # times always differ a little
                texts[name] = str(cells.cell(METRICS[name], row[name], spread))
        texts[by] += " *" if best else "  "
        style = "bold green" if best else "red" if "diverged" in row["status"] else None
        shown.add_row(*texts.values(), style=style)
    more = "" if width >= max(WIDE.values()) else f"; {MORE}"
    seeds = max(frame["seeds"])
    over = f"* best, and level with it (95 % of paired differences); means over {seeds} seeds, ± sample deviation"
    shown.caption = over + more if seeds > 1 else f"one seed gives no verdict{more}"
    return shown


def _empty(frame: pd.DataFrame) -> list[str]:
    """The column of simulated seconds, if no run has a clock."""
    return ["clock"] if "clock" in frame and frame["clock"].isna().all() else []


def plain(frame: pd.DataFrame, width: int) -> Table:
    """A table of all columns and rows."""
    columns = [str(c) for c in frame.columns]
    shown = table(
        *columns, numbers=[c for c in columns if frame[c].dtype.kind in "if"], gap=_gap(width)
    )
    for row in frame.to_dict("records"):
        shown.add_row(*(cell(c, row[c]) for c in columns))
    return shown


def study(frame: pd.DataFrame, width: int) -> Table:
    """A table with one row per line of a figure: its losses as mean ± deviation."""
    losses = [str(c) for c in frame.columns if str(c).startswith("loss@")]
    short = frame.drop(columns=[c for c in frame.columns if "@" in str(c)])
    for c in losses:
        pairs = zip(frame[c], frame[c.replace("loss", "deviation")], strict=True)
        short[f"{c.removeprefix('loss@')} epochs"] = [
            f"{mean:.5f} ± {deviation:.5f}" for mean, deviation in pairs
        ]
    return plain(short.drop(columns="seeds", errors="ignore"), width)


def table(*columns: str, numbers: Sequence[str] = (), gap: int = 2) -> Table:
    """An empty table with a line under its header only; the columns in `numbers` are aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
        caption_justify="left",
    )
    for name in columns:
        made.add_column(
            title(name), justify="right" if name in numbers else "left", overflow="fold"
        )
    return made


def title(column: str) -> str:
    """The heading of a column."""
    return column.replace("_", " ")


def cell(column: str, value: Any, own: Sequence[Metric] = ()) -> str:
    """A value as text for a table: metrics in their own format, other numbers with six digits."""
    if isinstance(value, str):
        return value.replace(",", ", ") if column == "method" else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value != value:
        return "-"
    from peerdescent.runs.metrics import METRICS

    known = METRICS.get(column) or next((one for one in own if one.name == column), None)
    return known.text(value) if known else format(value, ",d" if isinstance(value, int) else ".6g")


def _gap(width: int) -> int:
    return 1 if width < 100 else 2
