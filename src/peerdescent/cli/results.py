"""The commands that show the results in a folder: `report` and `plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from peerdescent import figures, report, runs
from peerdescent.errors import require

app = typer.Typer()


@app.command(
    "report",
    epilog="""[bold]Examples[/bold]
peerdescent report runs/first
peerdescent report runs/figure1 --out figure1.html

Exit status: 0, 2 bad input.""",
)
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of runs, comparisons, tunings.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="\\[default: DIR/report.html]")] = None,
) -> int:
    """Write one interactive HTML page about everything in a folder; it needs no network."""
    print(report.write(folder, out))
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of runs, or of a tuning.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .png, .pdf or .svg.", show_default=False)],
    x: Annotated[str, typer.Option("--x", help="Across: epoch, rounds, bytes, seconds or step.")] = "epoch",
    y: Annotated[str, typer.Option("--y", help="Up: loss, gap, grad_norm, stationarity or consensus.")] = "loss",
    heatmap: Annotated[
        str | None, typer.Option("--heatmap", metavar="NAME,NAME", help="Draw a tuning over two parameters instead.")
    ] = None,
) -> int:
    """Draw the runs in a folder, or the heat map of a tuning; runs that differ in seed are one line with a band."""
    import pandas as pd

    from peerdescent.report import findings

    if heatmap is not None:
        names = [name.strip() for name in heatmap.split(",")]
        require(len(names) == 2, f"--heatmap {heatmap}: give two parameters, as in alpha,beta")
        require((folder / "sweep.csv").is_file(), f"{folder} has no sweep.csv: give the folder of one tuning")
        figure = figures.heatmap(pd.read_csv(folder / "sweep.csv"), *names)
    else:
        groups = findings.grouped(findings.runs(folder))
        require(bool(groups), f"{folder} has no run folders: give one that `run` or `compare` has written")
        traces = {group.label: [runs.Trace.load(folder / run.place) for run in group.runs] for group in groups}
        known = folder / "optimum.json"
        require(y != "gap" or known.is_file(), f"{folder} has no optimum.json: a gap needs one, as `reproduce` writes")
        figure = figures.curves(traces, [(x, y)], json.loads(known.read_text())["value"] if known.is_file() else None)
    print(figures.save(figure, out))
    return 0
