"""What the command line shows: results on standard output, everything else on standard error.

Rich is imported inside functions, so that naming this room costs nothing; it drops colours and animation by itself
where the output is not a terminal.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from peerdescent.runs.progress import Bar

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.status import Status as Spinner
    from rich.table import Table

    from peerdescent.networks.network import Network

ROWS = 10  # of a printed trace, besides the first
WIDTH = 140  # of a table that goes to a file or pipe
ROOMY = {"stationarity": 130, "gradients": 130, "epoch": 100, "rounds": 100}
"""From what width on a comparison shows these columns, which others imply or nearly so."""
STYLES = {"loss": "#.6g", "epoch": ".2f", "seconds": ".2f", "step": ",.0f", "gradients": ",.0f", "rounds": ",.0f"}
SECTIONS = ("methods", "estimators", "fusions", "topologies", "data", "engines")


def make(stderr: bool = False) -> Console:
    """A console as wide as the terminal at any end, or wide enough for every table where nobody looks."""
    from rich.console import Console

    watched = "COLUMNS" in os.environ or any(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr) if stream
    )
    # Without markup, since [alpha=0.5] is a parameter and not a colour.
    return Console(stderr=stderr, highlight=False, markup=False, width=None if watched else WIDTH)


def say(text: str, word: str = "") -> None:
    """One line on standard error, after a coloured word such as "error"."""
    from rich.text import Text

    line = Text(" ".join(text.split()))
    if word:
        line = Text.assemble((f"{word}: ", "bold red"), line)
    make(stderr=True).print(line, soft_wrap=True)


@contextlib.contextmanager
def waiting(text: str, quiet: bool) -> Iterator[Spinner | None]:
    """A spinner on standard error while something takes its time; None where there is nobody to see it."""
    console = make(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.markup import escape

    with console.status(escape(text)) as spinner:
        yield spinner


class Compiled(Bar):
    """A progress bar that takes over from a spinner when compilation is over."""

    def __init__(self, spinner: Spinner) -> None:
        self._spinner = spinner

    def begin(self, label: str, total: int) -> None:
        """Stop the spinner and draw the bar."""
        self._spinner.stop()
        super().begin(label, total)


def result(form: str, table: pd.DataFrame, layout: Callable[[pd.DataFrame, int], Table], **head: Any) -> None:
    """Print `table` as CSV, as JSON (an object where `head` says what it is about) or as `layout` draws it."""
    if form == "table":
        console = make()
        console.print(layout(table, console.width))
    elif form == "csv":
        print(table.to_csv(index=False), end="", flush=True)
    else:
        rows = [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in row.items()
            }
            for row in table.to_dict("records")
        ]
        print(json.dumps({**head, "trace": rows} if head else rows, indent=2), flush=True)


def trace(table: pd.DataFrame, width: int) -> Table:
    """About ten records of a trace."""
    chosen = sorted({round(i * (len(table) - 1) / ROWS) for i in range(ROWS + 1)})
    columns = [str(c) for c in table.columns if c not in ("stationarity", "tracking")]
    shown = _table(*columns, numbers=columns, gap=1 if width < 100 else 2)
    for row in table.iloc[chosen].to_dict("records"):
        shown.add_row(*(_cell(c, row[c]) for c in columns))
    return shown


def comparison(table: pd.DataFrame, width: int) -> Table:
    """A row a method, the smallest loss marked."""
    left_out = {"step", "tracking", "compile_seconds", *(c for c, least in ROOMY.items() if width < least)}
    columns = [str(c) for c in table.columns if c not in left_out]
    shown = _table(*columns, numbers=columns[1:-1], gap=1 if width < 100 else 2)
    losses = table["loss"].where(table["status"] != "diverged")
    for row, best in zip(table.to_dict("records"), losses == losses.min(), strict=True):
        cells = {c: _cell(c, row[c]) for c in columns}
        cells["loss"] += " *" if best else "  "
        style = "bold green" if best else "red" if row["status"] == "diverged" else None
        shown.add_row(*cells.values(), style=style)
    more = "" if width >= max(ROOMY.values()) else "; more columns on a wider terminal, or by --format csv"
    shown.caption = f"* smallest loss{more}"
    return shown


def plain(table: pd.DataFrame, width: int) -> Table:
    """Every column as it is."""
    columns = [str(c) for c in table.columns]
    shown = _table(*columns, numbers=[c for c in columns if table[c].dtype.kind in "if"], gap=1 if width < 100 else 2)
    for row in table.to_dict("records"):
        shown.add_row(*(f"{v:.6g}" if isinstance(v, float) and v == v else _cell("step", v) for v in row.values()))
    return shown


def study(table: pd.DataFrame, width: int) -> Table:
    """A row a line of a figure: its losses as mean ± deviation."""
    losses = [str(c) for c in table.columns if str(c).startswith("loss@")]
    short = table.drop(columns=[c for c in table.columns if "@" in str(c)])
    for c in losses:
        pairs = zip(table[c], table[c.replace("loss", "deviation")], strict=True)
        short[f"{c.removeprefix('loss@')} epochs"] = [f"{mean:.5f} ± {deviation:.5f}" for mean, deviation in pairs]
    return plain(short.drop(columns="seeds", errors="ignore"), width)


def facts(network: Network) -> Table:
    """What is known about a network."""
    import numpy as np

    degrees, yes = np.atleast_2d(network.degree), {True: "yes", False: "no"}
    rows = {
        "nodes": f"{network.n:,}",
        "lambda": _rounded(network.lam),
        "spectral gap": _rounded(network.gap),
        "weights": network.rule,
        "degree min / mean / max": f"{degrees.min()} / {degrees.mean():.4g} / {degrees.max()}",
        "directed": yes[network.is_directed],
        "period": f"{network.period}",
        "symmetric W": yes[network.is_symmetric],
    }
    if network.is_symmetric:
        rows["smallest eigenvalue"] = _rounded(network.smallest_eigenvalue)
    shown = _table(network.name, "")
    for name, value in rows.items():
        shown.add_row(name, value)
    return shown


def permits(network: Network) -> Table:
    """Which named methods may run on a network, and why the others may not."""
    from peerdescent.methods import METHODS
    from peerdescent.runs.checks import check

    anything: Any = SimpleNamespace(nodes=network.n)  # all that `check` asks of a problem
    shown = _table("method", "runs here")
    for name, entry in METHODS.items():
        try:
            check(entry.build(), anything, network)
            shown.add_row(name, "yes")
        except ValueError as error:
            reason = str(error).removeprefix(f"{name} ").partition(": ")[0]
            shown.add_row(name, f"no, it {reason}")
    return shown


def catalogue(section: str) -> Table:
    """One section of `list`."""
    if section == "methods":
        from peerdescent.methods import METHODS

        shown = _table("method", "estimator*fusion", "parameters", "source")
        shown.columns[1].no_wrap = True
        for name, entry in METHODS.items():
            made = "*".join(type(part).__name__.replace("_", "-") for part in entry.build().parts)
            shown.add_row(name, made, _parameters(entry.build), entry.citation)
        shown.caption = "Any estimator*fusion is a method, as in 'hybrid*exact-diffusion[alpha=0.5]'."
    elif section in ("estimators", "fusions"):
        from peerdescent.methods.estimators import ESTIMATORS
        from peerdescent.methods.fusions import FUSIONS

        kinds: dict[str, Any] = ESTIMATORS if section == "estimators" else FUSIONS
        shown = _table(section.removesuffix("s"), "parameters", "what")
        for name, kind in kinds.items():
            shown.add_row(name, _parameters(kind), " ".join((inspect.getdoc(kind) or "").split()))
    elif section == "topologies":
        from peerdescent.networks.topology import TOPOLOGIES

        shown = _table("topology", "what")
        for name, function in TOPOLOGIES.items():
            shown.add_row(name, (inspect.getdoc(function) or "").splitlines()[0])
    elif section == "data":
        from peerdescent.datasets import SETS

        shown = _table("data", "rows x features", "what", "source")
        for each in SETS.values():
            shown.add_row(each.name, f"{each.shape[0]:,} x {each.shape[1]}", each.description, each.citation)
    else:
        from peerdescent.engines import ENGINES

        shown = _table("engine", "what")
        for name, what in ENGINES.items():
            shown.add_row(name, what.description)
    return shown


def _table(*columns: str, numbers: Sequence[str] = (), gap: int = 2) -> Table:
    """A table with no lines but the one under its head; `numbers` stand to the right of their columns."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), caption_justify="left"
    )
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right" if name in numbers else "left", overflow="fold")
    return table


def _cell(column: str, value: Any) -> str:
    if isinstance(value, str):
        return value.replace(",", ", ") if column == "method" else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value != value:
        return "-"
    return _human(value) if column == "bytes" else format(value, STYLES.get(column, ".2e"))


def _human(count: float) -> str:
    power = 0
    while count >= 1000 and power < 4:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _rounded(value: float) -> str:
    return f"{value if abs(value) > 1e-12 else 0:.6g}"  # less is the rounding of a zero


def _parameters(function: Any) -> str:
    return ", ".join(f"{p.name}={p.default}" for p in inspect.signature(function).parameters.values())
