"""The command `list`, which lists methods, compressors, topologies, faults, data and engines."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from peerdescent import datasets, methods, networks
from peerdescent.cli import console
from peerdescent.engines import registry

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

app = typer.Typer()

Section = Literal["methods", "estimators", "fusions", "compressors", "topologies", "faults", "data", "engines"]


@app.command(
    "list",
    epilog="""[bold]Examples[/bold]
peerdescent list
peerdescent list methods

Exit status: 0, 2 bad input.""",
)
def list_command(
    section: Annotated[
        Section | None, typer.Argument(metavar="SECTION", help="All of them by default.", show_default=False)
    ] = None,
) -> int:
    """List methods and their parts, compressors, topologies, faults, data and engines, with citations."""
    for index, name in enumerate([section] if section else SECTIONS):
        console.make().print(*[""] * (index > 0), SECTIONS[name](), sep="\n")
    return 0


def _methods() -> RenderableType:
    """A table for each purpose, with columns of the same width in all of them."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    name_width = max(map(len, methods.METHODS))
    parts_width = max(28, (console.make().width - name_width) * 4 // 7)

    def empty() -> Table:
        made = console.table("method", "estimator*fusion, parameters", "source")
        made.columns[0].width, made.columns[1].width = name_width, parts_width
        return made

    shown: list[RenderableType] = [empty()]
    for index, (purpose, entries) in enumerate(methods.by_purpose().items()):
        own = empty()
        own.show_header = False
        for name, entry in entries.items():
            built = entry.build()
            made = "*".join(type(part).__name__.replace("_", "-") for part in built.parts)
            values = ", ".join(f"{name}={built.parameters[name]}" for name in entry.parameters)
            own.add_row(name, f"{made}\n{values}", entry.citation)
        shown += [Padding(Text(f"For {purpose}", "bold"), (min(index, 1), 0, 0, 0)), own]
    shown += ["", "Any estimator*fusion is a method, as in 'hybrid*exact-diffusion[alpha=0.5]'."]
    return Group(*shown)


def _estimators() -> Table:
    return _parts("estimator", methods.estimators.ESTIMATORS)


def _fusions() -> Table:
    return _parts("fusion", methods.fusions.FUSIONS)


def _parts(kind: str, parts: dict[str, Any]) -> Table:
    shown = console.table(kind, "parameters", "what")
    for name, part in parts.items():
        declared = [f"{own}={about.default}: {about}" for own, about in methods.parameters.declared(part).items()]
        shown.add_row(name, "\n".join(declared), " ".join((inspect.getdoc(part) or "").split()))
    return shown


def _compressors() -> Table:
    from peerdescent import compressors

    shown = console.table("compressor", "what", "bytes")
    for name, kind in compressors.COMPRESSORS.items():
        numbers = ", ".join(field.name for field in dataclasses.fields(kind))
        shown.add_row(name + (f" ({numbers})" if numbers else ""), _first(kind), _first(kind.size))
    shown.caption = "As in 'choco-sgd[compressor=top-k(0.1)]'."
    return shown


def _first(documented: Any) -> str:
    """The first line of its documentation."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _topologies() -> Table:
    shown = console.table("topology", "what")
    for name, function in networks.topology.TOPOLOGIES.items():
        shown.add_row(name, _first(function))
    return shown


def _faults() -> Table:
    shown = console.table("fault", "numbers", "what")
    for name, kind in networks.faults.FAULTS.items():
        numbers = ", ".join(field.name for field in dataclasses.fields(kind))
        shown.add_row(name, numbers, _first(kind))
    shown.caption = "As in --fault drop=0.1 --fault burst=0.1,0.5 --fault drop=0.1,one-way."
    return shown


def _data() -> Table:
    shown = console.table("data", "rows x features", "what", "source")
    for each in datasets.SETS.values():
        shown.add_row(each.name, f"{each.shape[0]:,} x {each.shape[1]}", each.description, each.citation)
    return shown


def _engines() -> Table:
    shown = console.table("engine", "what")
    for name, entry in registry.ENGINES.items():
        shown.add_row(name, entry.description)
    return shown


SECTIONS: dict[Section, Callable[[], RenderableType]] = {
    "methods": _methods,
    "estimators": _estimators,
    "fusions": _fusions,
    "compressors": _compressors,
    "topologies": _topologies,
    "faults": _faults,
    "data": _data,
    "engines": _engines,
}
