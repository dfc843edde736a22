"""The command `list`, which lists methods, compressors, topologies, faults, data and engines.

A section has rows, which are plain data, and a layout that shows them as a table.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from peerdescent import datasets, experiment, methods, networks
from peerdescent.cli import console
from peerdescent.cli.options import with_options
from peerdescent.engines import registry
from peerdescent.errors import require

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

app = typer.Typer()

Name = Literal[
    "methods", "estimators", "fusions", "compressors", "topologies", "faults", "data", "engines"
]
Rows = list[dict[str, Any]]


class Section(NamedTuple):
    """What is listed under one name."""

    rows: Callable[[], Rows]
    layout: Callable[[Rows], RenderableType]


@app.command(
    "list",
    epilog="""[bold]Examples[/bold]
peerdescent list
peerdescent list methods
peerdescent list data --format csv
peerdescent list methods --format json

Exit status: 0, 2 bad input.""",
)
@with_options("format")
def list_command(
    section: Annotated[
        Name | None,
        typer.Argument(metavar="SECTION", help="All of them by default.", show_default=False),
    ] = None,
    *,
    given: dict[str, Any],
) -> int:
    """List methods and their parts, compressors, topologies, faults, data and engines, with citations."""
    form = experiment.settle({}, given).format
    if form == "json" and section is None:
        print(json.dumps({name: each.rows() for name, each in SECTIONS.items()}, indent=2))
    elif form != "table":
        require(
            section is not None,
            f"format={form!r} is for one section: name it, as in peerdescent list methods",
        )
        assert section is not None
        console.records(form, SECTIONS[section].rows())
    else:
        for index, each in enumerate([SECTIONS[section]] if section else SECTIONS.values()):
            console.make().print(*[""] * (index > 0), each.layout(each.rows()), sep="\n")
    return 0


def _methods() -> Rows:
    rows = []
    for purpose, entries in methods.by_purpose().items():
        for name, entry in entries.items():
            built = entry.build()
            estimator, fusion = (type(part).__name__.replace("_", "-") for part in built.parts)
            values = {own: _plain(built.parameters[own]) for own in entry.parameters}
            rows.append(
                {
                    "method": name,
                    "purpose": purpose,
                    "estimator": estimator,
                    "fusion": fusion,
                    "parameters": values,
                    "source": entry.citation,
                }
            )
    return rows


def _methods_table(rows: Rows) -> RenderableType:
    """A table for each purpose, with columns of the same width in all of them."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    name_width = max(len(row["method"]) for row in rows)
    parts_width = max(28, (console.make().width - name_width) * 4 // 7)

    def empty() -> Table:
        made = console.table("method", "estimator*fusion, parameters", "source")
        made.columns[0].width, made.columns[1].width = name_width, parts_width
        return made

    shown: list[RenderableType] = [empty()]
    for index, purpose in enumerate(dict.fromkeys(row["purpose"] for row in rows)):
        own = empty()
        own.show_header = False
        for row in (row for row in rows if row["purpose"] == purpose):
            values = ", ".join(f"{name}={value}" for name, value in row["parameters"].items())
            own.add_row(
                row["method"], f"{row['estimator']}*{row['fusion']}\n{values}", row["source"]
            )
        shown += [Padding(Text(f"For {purpose}", "bold"), (min(index, 1), 0, 0, 0)), own]
    shown += ["", "Any estimator*fusion is a method, as in 'hybrid*exact-diffusion[alpha=0.5]'."]
    return Group(*shown)


def _parts(kind: str, parts: Mapping[str, Any]) -> Rows:
    rows = []
    for name, part in parts.items():
        declared = methods.parameters.declared(part).items()
        values = {
            own: {"default": _plain(about.default), "what": str(about)} for own, about in declared
        }
        rows.append(
            {
                kind: name,
                "parameters": values,
                "what": " ".join((inspect.getdoc(part) or "").split()),
            }
        )
    return rows


def _parts_table(rows: Rows) -> Table:
    kind = next(iter(rows[0]))
    shown = console.table(kind, "parameters", "what")
    for row in rows:
        declared = [
            f"{own}={about['default']}: {about['what']}" for own, about in row["parameters"].items()
        ]
        shown.add_row(row[kind], "\n".join(declared), row["what"])
    return shown


def _compressors() -> Rows:
    from peerdescent import compressors

    return [
        {
            "compressor": name,
            "numbers": _numbers(kind),
            "what": _first(kind),
            "bytes": _first(kind.size),
        }
        for name, kind in compressors.COMPRESSORS.items()
    ]


def _compressors_table(rows: Rows) -> Table:
    shown = console.table("compressor", "what", "bytes")
    for row in rows:
        numbers = f" ({', '.join(row['numbers'])})" if row["numbers"] else ""
        shown.add_row(row["compressor"] + numbers, row["what"], row["bytes"])
    shown.caption = "As in 'choco-sgd[compressor=top-k(0.1)]'."
    return shown


def _faults() -> Rows:
    known = networks.faults.FAULTS.items()
    return [
        {"fault": name, "numbers": _numbers(kind), "what": _first(kind)} for name, kind in known
    ]


def _faults_table(rows: Rows) -> Table:
    shown = _plain_table([{**row, "numbers": ", ".join(row["numbers"])} for row in rows])
    shown.caption = "As in --fault drop=0.1 --fault burst=0.1,0.5 --fault drop=0.1,one-way."
    return shown


def _data() -> Rows:
    return [
        {
            "data": each.name,
            "rows": each.shape[0],
            "features": each.shape[1],
            "what": each.description,
            "source": each.citation,
        }
        for each in datasets.SETS.values()
    ]


def _data_table(rows: Rows) -> Table:
    shown = console.table("data", "rows x features", "what", "source")
    for row in rows:
        shown.add_row(
            row["data"], f"{row['rows']:,} x {row['features']}", row["what"], row["source"]
        )
    return shown


def _plain_table(rows: Rows) -> Table:
    shown = console.table(*rows[0])
    for row in rows:
        shown.add_row(*row.values())
    return shown


def _first(documented: Any) -> str:
    """The first line of its documentation."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _numbers(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _plain(value: Any) -> Any:
    """A number or truth value as it is, anything else as text."""
    return value if isinstance(value, int | float) else str(value)


SECTIONS: dict[Name, Section] = {
    "methods": Section(_methods, _methods_table),
    "estimators": Section(lambda: _parts("estimator", methods.estimators.ESTIMATORS), _parts_table),
    "fusions": Section(lambda: _parts("fusion", methods.fusions.FUSIONS), _parts_table),
    "compressors": Section(_compressors, _compressors_table),
    "topologies": Section(
        lambda: [
            {"topology": n, "what": _first(f)} for n, f in networks.topology.TOPOLOGIES.items()
        ],
        _plain_table,
    ),
    "faults": Section(_faults, _faults_table),
    "data": Section(_data, _data_table),
    "engines": Section(
        lambda: [
            {"engine": name, "what": entry.description} for name, entry in registry.ENGINES.items()
        ],
        _plain_table,
    ),
}
