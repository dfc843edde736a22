"""The command that repeats the paper's experiments: `reproduce`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from peerdescent import experiment, studies
from peerdescent.cli import completion, console
from peerdescent.cli.options import with_options
from peerdescent.cli.theory import Epsilon, Exponents, Lam, table1_command
from peerdescent.errors import require

if TYPE_CHECKING:
    import pandas as pd

Study = Literal[
    "lambda", "table1", "table2", "figure1", "figure2", "heterogeneity", "speedup", "topology", "faults", "clock",
    "zoo", "compression", "local", "heavy-tails", "composite", "all",
]  # fmt: skip

FIGURES = ("figure1", "figure2", "heterogeneity")
TUNED = (*FIGURES, "faults", "clock", "zoo", "compression", "local", "composite")
MEASURED = (*TUNED, "speedup", "topology", "heavy-tails")
FLAGS = {
    "data": TUNED,
    "data_dir": ("table2", *TUNED),
    "scale": MEASURED,
    "tuning": TUNED,
    "spread": ("speedup",),
    "nodes": ("table1", *FIGURES),
    "strength": FIGURES,
    **dict.fromkeys(("lam", "epsilon", "exponents"), ("table1",)),
    "out": MEASURED,
}
"""The studies that a flag belongs to, besides `all`; those left out belong to every study."""

app = typer.Typer()


@app.command(
    "reproduce",
    epilog="""[bold]Examples[/bold]
peerdescent reproduce lambda
peerdescent reproduce table2 --data-dir ~/data
peerdescent reproduce figure1 --data a9a --out runs/figure1
peerdescent reproduce figure1 --data covertype --scale full      # the paper's grid: use a GPU
peerdescent reproduce heterogeneity --data digits --scale tiny
peerdescent reproduce table1 --nodes 100 --lam 0.9 --epsilon 1e-4
peerdescent reproduce speedup --spread 1 --out runs/speedup
peerdescent reproduce faults --data a9a                          # which method survives what
peerdescent reproduce clock --data a9a                           # when fewer rounds beat fewer gradients
peerdescent reproduce zoo --data a9a                             # all named methods at the same cost
peerdescent reproduce compression --data a9a                     # how many bytes to the same loss
peerdescent reproduce local --data a9a                           # how many rounds and seconds to the same loss
peerdescent reproduce heavy-tails                                # noise of infinite variance
peerdescent reproduce composite --data a9a                       # with an l1 term

Scales: quick tunes by a search (figure1 on a9a: some minutes on two cores), full over the paper's grid, tiny is a \
test; speedup and topology have more seeds and longer runs in full. `all` is the paper's, with heterogeneity.

--lam, --epsilon and --exponents are for table1, --nodes also for the figures and heterogeneity, which take \
--strength (R), too. A flag that a study has no use for is refused. The same command goes on with what is missing. \
kdd98 and miniboone come from OpenML, once; without a network use \
--data synthetic-75000x477 and synthetic-100000x50.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
@with_options("data_dir", "nodes", "strength", "format", "quiet")
def reproduce_command(
    context: typer.Context,
    study: Annotated[Study, typer.Argument(metavar="STUDY", show_default=False)],
    data: Annotated[
        str,
        typer.Option(
            "--data", help="A set of the paper's, or any other.", autocompletion=completion.data
        ),
    ] = "a9a",
    scale: Annotated[
        Literal["quick", "full", "tiny"], typer.Option("--scale", help="How much to compute.")
    ] = "quick",
    tuning: Annotated[
        float | None,
        typer.Option("--tuning", help="Epochs of a figure's tuning. \\[default: the scale's]"),
    ] = None,
    spread: Annotated[
        float, typer.Option("--spread", help="How much nodes differ, for speedup.")
    ] = 0.0,
    lam: Lam = 0.75,
    epsilon: Epsilon = 0.001,
    exponents: Exponents = "b=2,c=2,d=2,h=2",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder. \\[default: runs/NAME-DATA or runs/NAME]"
        ),
    ] = None,
    *,
    given: dict[str, Any],
) -> int:
    """Reproduce a table or figure of the paper, or go beyond it."""
    import pandas as pd

    for flag, those in FLAGS.items():
        is_given = getattr(context.get_parameter_source(flag), "name", "") == "COMMANDLINE"
        require(
            study in (*those, "all") or not is_given,
            f"--{flag.replace('_', '-')} {context.params[flag]} has no meaning with {study}: leave it out; it is for "
            f"{', '.join(those)}",
        )
    options = experiment.settle({}, given)
    common: dict[str, Any] = {
        "scale": scale,
        "progress": not options.quiet,
        "note": (lambda text: None) if options.quiet else console.say,
    }

    def show(table: pd.DataFrame) -> None:
        console.result(options.format, table, console.study if "line" in table else console.plain)

    if study in ("lambda", "all"):
        show(studies.paper.lambdas())
    if study in ("table1", "all"):
        table1_command(
            lam=lam,
            epsilon=epsilon,
            exponents=exponents,
            nodes=options.nodes,
            format=options.format,
        )
    if study in ("table2", "all"):
        show(studies.paper.table2(options.data_dir))
    measured: dict[str, Callable[..., Any]] = {
        "speedup": functools.partial(studies.gradients.speedup, spread=spread),
        "topology": studies.gradients.independence,
    }
    for name, measure in measured.items():
        if study in (name, "all"):
            needed = measure(out=(out or Path("runs")) / name if study == "all" else out, **common)
            show(needed.table if needed.slopes is None else needed.slopes)
    jobs: list[tuple[str, str, Path | None]] = []
    if study == "all":
        base = out or Path("runs")
        found = _available(options.data_dir)
        jobs = [
            (figure, name, base / f"{figure}-{name}")
            for name in found
            for figure in ("figure1", "figure2")
        ]
        jobs.append(("heterogeneity", data, base / f"heterogeneity-{data}"))
    elif study in ("figure1", "figure2", "heterogeneity", "faults", "clock", "zoo"):
        jobs = [(study, data, out)]
    how = {"tuning": tuning, "data_dir": options.data_dir, **common}
    if study in (*FIGURES, "all"):
        how |= {"nodes": options.nodes, "strength": options.strength}
    purposes: dict[str, Callable[[], dict[str, Any]]] = {
        "compression": lambda: studies.zoo.compression(data, out=out, **how),
        "local": lambda: studies.zoo.local(data, out=out, **how),
        "composite": lambda: studies.zoo.composite(data, out=out, **how),
        "heavy-tails": lambda: studies.zoo.heavy_tails(out=out, **common),
    }
    if study in purposes:
        _tell(purposes[study](), options.format, show)
    for name, source, place in jobs:
        beyond: dict[str, Callable[..., Any]] = {
            "faults": studies.faults.faults,
            "clock": studies.faults.latency,
        }
        beyond["zoo"] = studies.comparison.zoo
        study_of = beyond[name] if name in beyond else getattr(studies.paper, name)
        done = study_of(source, out=place, **how)
        parts = done if isinstance(done, dict) else {"": done}
        column = "fault" if name == "faults" else "partition"
        tables = [
            one.table.assign(**{column: part}) if part else one.table for part, one in parts.items()
        ]
        show(pd.concat(tables, ignore_index=True))
    return 0


def _tell(parts: dict[str, Any], form: str, show: Callable[[pd.DataFrame], None]) -> None:
    """Show the parts of a study: a table each and what it says, or all tables in one for a program."""
    import pandas as pd

    if form != "table":
        show(
            pd.concat(
                [one.table.assign(part=part) for part, one in parts.items()], ignore_index=True
            )
        )
        return
    for part, one in parts.items():
        hidden = ("method", "seeds", *(name for name in one.table if name.endswith(", ratio")))
        print(f"{part}\n")
        show(one.table.drop(columns=[*hidden]))
        print("\n".join(["", *(f"- {sentence}" for sentence in one.verdict), ""]))


def _available(data_dir: Path | None) -> list[str]:
    """The paper's data sets that are available, or their stand-ins."""
    found = []
    for name in studies.paper.DATA:
        try:
            studies.paper.load(name, data_dir)
            found.append(name)
        except ValueError as error:
            if name not in studies.paper.STAND_INS:
                raise
            console.say(f"{error}; {studies.paper.STAND_INS[name]} takes its place", "missing")
            found.append(studies.paper.STAND_INS[name])
    return found
