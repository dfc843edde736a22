"""The commands that show the results in a folder: `report` and `plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from peerdescent import figures, report, runs
from peerdescent.cli import console
from peerdescent.errors import require
from peerdescent.runs.axes import UP, Across

app = typer.Typer()


class Pair(NamedTuple):
    """Two parameters, as in `alpha,beta`."""

    across: str
    up: str


def pair(text: str) -> Pair:
    """The value of an option such as `--heatmap alpha,beta`."""
    names = [name.strip() for name in text.split(",")]
    require(len(names) == 2, f"--heatmap {text}: give two parameters, as in alpha,beta")
    return Pair(*names)


@app.command(
    "report",
    epilog="""[bold]Examples[/bold]
peerdescent report runs/first
peerdescent report runs/figure1 --out figure1.html

Exit status: 0, 2 bad input.""",
)
def report_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Of runs, comparisons, tunings.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="\\[default: DIR/report.html]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is no such page.", metavar="")
    ] = False,
) -> int:
    """Write one interactive HTML page about everything in a folder; it needs no network."""
    print(report.write(folder, out, force))
    return 0


@app.command(
    "plot",
    epilog="""[bold]Examples[/bold]
peerdescent plot runs/first --out loss.pdf
peerdescent plot runs/figure1 --x bytes --y gap --out gap.svg
peerdescent plot runs/tuned --heatmap alpha,beta --out tuning.png

Exit status: 0, 2 bad input.""",
)
def plot_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Of runs, or of a tuning.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="A .png, .pdf or .svg.", show_default=False),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is no such figure.", metavar="")
    ] = False,
    x: Annotated[Across, typer.Option("--x", help="The horizontal axis.")] = "epoch",
    y: Annotated[
        str,
        typer.Option(
            "--y",
            metavar="NAME",
            help=f"The vertical axis: {', '.join(UP)}, or a metric of your own.",
        ),
    ] = "loss",
    heatmap: Annotated[
        Pair | None,
        typer.Option(
            "--heatmap",
            metavar="NAME,NAME",
            parser=pair,
            help="Draw a tuning over two parameters instead.",
        ),
    ] = None,
) -> int:
    """Draw the runs in a folder, or the heat map of a tuning; runs that differ in seed are one line with a band."""
    import pandas as pd

    from peerdescent.report import findings

    figures.check_replaceable(out, force)
    if heatmap is not None:
        require(
            (folder / "sweep.csv").is_file(),
            f"{folder} has no sweep.csv: give the folder of one tuning",
        )
        figure = figures.heatmap(pd.read_csv(folder / "sweep.csv"), *heatmap)
    else:
        groups = findings.grouped(findings.runs(folder))
        require(
            bool(groups),
            f"{folder} has no run folders: give one that `run` or `compare` has written",
        )
        traces = {
            group.label: [runs.Trace.load(folder / run.place) for run in group.runs]
            for group in groups
        }
        known = folder / "optimum.json"
        require(
            y != "gap" or known.is_file(),
            f"{folder} has no optimum.json: a gap needs one, as `reproduce` writes",
        )
        lacking = [
            label
            for label, each in traces.items()
            if y != "gap" and not all(y in t.table for t in each)
        ]
        if 0 < len(lacking) < len(traces):
            console.say(f"not drawn, since {y} was not recorded: {', '.join(lacking)}", "warning")
            traces = {label: each for label, each in traces.items() if label not in lacking}
        figure = figures.curves(
            traces, [(x, y)], json.loads(known.read_text())["value"] if known.is_file() else None
        )
    print(figures.save(figure, out, force))
    return 0
