"""More of the command line: `tune`, `reproduce`, `report`, `plot`; `cli` has the rest, and joins them to its app.

Everything heavy is imported inside functions, so that `--help` answers at once.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment as settings
from peerdescent.cli import console
from peerdescent.cli.theory import FORMATS, Epsilon, Lam, Nodes, table1
from peerdescent.errors import require, unknown
from peerdescent.experiment import with_options

if TYPE_CHECKING:
    import pandas as pd

UNTUNED = ("grid", "steps", "engine", "record", "skip_stationarity")
"""Options of `run` that a tuning has no use for."""
EXPERIMENTS = (
    "lambda", "table1", "table2", "figure1", "figure2", "heterogeneity", "speedup", "topology", "all"
)  # fmt: skip
Format = Annotated[
    str, typer.Option("--format", metavar="table|csv|json", help="What goes to standard output.", show_default=True)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")]

app = typer.Typer()


@app.command(
    "tune",
    epilog="""[bold]Examples[/bold]
peerdescent tune gt-hsgd gt-dsgd --data digits
peerdescent tune 'gt-hsgd\\[batch=1]' --data a9a --grid medium --out runs/tuned
peerdescent tune d-get --grid paper --search halving --epochs 30 --out runs/d-get
peerdescent tune gt-dsgd --grid mine.toml        # alpha = \\[0.1, 1, 10], batch = \\[1, 8]

Parameters given with a method are not tuned. The winner is run on other seeds than the one that chose it.
With --out: the tables of all configurations; the same command goes on with what is missing.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
@with_options(without=UNTUNED)
def tune_command(
    methods: Annotated[
        list[str], typer.Argument(metavar="METHOD...", help="As for `peerdescent run`.", show_default=False)
    ],
    grid: Annotated[
        str, typer.Option("--grid", metavar="paper|medium|small|FILE.toml", help="The values to try.")
    ] = "small",
    search: Annotated[
        str,
        typer.Option("--search", metavar="grid|halving", help="All of them, or the better third thrice."),
    ] = "grid",
    finalists: Annotated[
        str, typer.Option("--finalists", metavar="INT", help="How many of the best are compared over 5 more seeds.")
    ] = "1",
    seeds: Annotated[str, typer.Option("--seeds", metavar="INT", help="Other seeds that the winner is run on.")] = "5",
    *,
    given: dict[str, Any],
) -> int:
    """Find the best parameters of one or several methods, at equal gradient cost."""
    import pandas as pd

    from peerdescent.methods import parse
    from peerdescent.sweeps.tuning import tune

    options = settings.settle({}, given)
    for selector in methods:
        parse(selector)
    file = _grid_file(grid)
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = settings.experiment(options)
    rows = []
    for selector in methods:
        common = {name: values for name, values in file.items() if not isinstance(values, dict)}
        own = file.get(selector.partition("[")[0], common) if file else grid
        require(bool(own), f"{grid} has nothing for {selector}: give it values, or a table of that name")
        folder = None if options.out is None else Path(options.out) / (selector if len(methods) > 1 else "")
        assert options.epochs is not None
        found = tune(
            selector, problem, network, grid=own, search=search, epochs=options.epochs, seed=options.seed,
            seeds=settings.number("seeds", seeds, int), finalists=settings.number("finalists", finalists, int),
            precision=options.precision, progress=False if options.quiet else None, out=folder,
        )  # fmt: skip
        rows.append(
            {
                "method": found.selector,
                "configurations": len(found.table),
                "diverged": int((found.table["status"] == "diverged").sum()),
                "loss": found.loss,
                "fresh_loss": float(found.fresh["loss"].mean()),
                "deviation": float(found.fresh["loss"].std()),
            }
        )
    console.result(options.format, pd.DataFrame(rows), console.plain)
    if options.out is not None:
        settings.write(Path(options.out) / "config.toml", options, methods=[row["method"] for row in rows])
    if not options.quiet:
        console.say(f"written to {options.out}" if options.out else "nothing was written: add --out DIR for the tables")
    return 0


def _grid_file(grid: str) -> dict[str, Any]:
    """The values of a grid in a TOML file, or nothing where `grid` is the name of one."""
    from peerdescent.sweeps import GRIDS

    if grid in GRIDS:
        return {}
    if not grid.endswith(".toml"):
        raise unknown("grid", grid, [*GRIDS, "FILE.toml"])
    require(Path(grid).is_file(), f"no file {grid}: give a grid's file, or one of {', '.join(GRIDS)}")
    try:
        found = tomllib.loads(Path(grid).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{grid} is not TOML: {error}") from None
    require(bool(found), f"{grid} is empty: give it lines such as alpha = [0.1, 1]")
    for name, values in [pair for own in (found, *found.values()) if isinstance(own, dict) for pair in own.items()]:
        require(not isinstance(values, str), f"{name} = {values!r} in {grid}: give numbers, as in {name} = [0.1, 1]")
    return found


@app.command(
    "reproduce",
    epilog="""[bold]Examples[/bold]
peerdescent reproduce lambda
peerdescent reproduce table2 --data-dir ~/data
peerdescent reproduce figure1 --data a9a --out runs/figure1
peerdescent reproduce figure1 --data covertype --scale full      # the paper's grid: use a GPU
peerdescent reproduce heterogeneity --data digits --scale tiny
peerdescent reproduce table1 --nodes 100 --lam 0.9 --epsilon 1e-4
peerdescent reproduce speedup --out runs/speedup

Scales: quick tunes on the medium grid (figure1 on a9a: some minutes on two cores), full on the paper's, tiny is a test;
speedup and topology have more seeds and longer runs in full.
The same command goes on with what is missing. kdd98 and miniboone come from OpenML, once; without a network use
--data synthetic-75000x477 and synthetic-100000x50.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
def reproduce_command(
    what: Annotated[str, typer.Argument(metavar="|".join(EXPERIMENTS), show_default=False)],
    data: Annotated[str, typer.Option("--data", metavar="TEXT", help="A set of the paper's, or any other.")] = "a9a",
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Folder to look for data in.")
    ] = None,
    scale: Annotated[str, typer.Option("--scale", metavar="quick|full|tiny", help="How much to compute.")] = "quick",
    finalists: Annotated[
        str, typer.Option("--finalists", metavar="INT", help="How many of the best are compared over 5 more seeds.")
    ] = "1",
    nodes: Nodes = "20",
    lam: Lam = "0.75",
    epsilon: Epsilon = "0.001",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder. \\[default: runs/NAME-DATA or runs/NAME]")
    ] = None,
    form: Format = "table",
    quiet: Quiet = False,
) -> int:
    """Reproduce a table or figure of the paper, or go beyond it."""
    import pandas as pd

    from peerdescent.studies import gradients as complexity
    from peerdescent.studies import paper as reproduce

    if what not in EXPERIMENTS:
        raise unknown("experiment", what, EXPERIMENTS)
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    common: dict[str, Any] = {
        "scale": scale,
        "finalists": settings.number("finalists", finalists, int),
        "data_dir": data_dir,
        "progress": False if quiet else None,
        "note": (lambda text: None) if quiet else console.say,
    }

    def show(table: pd.DataFrame) -> None:
        console.result(form, table, console.study if "line" in table else console.plain)

    if what in ("lambda", "all"):
        show(reproduce.lambdas())
    if what in ("table1", "all"):
        show(table1(nodes, lam, epsilon))
    if what in ("table2", "all"):
        show(reproduce.table2(data_dir))
    for name, measure in (("speedup", complexity.speedup), ("topology", complexity.independence)):
        if what in (name, "all"):
            folder = Path(out or "runs") / name if what == "all" else out
            needed = measure(out=folder, **{key: common[key] for key in ("scale", "progress", "note")})
            show(needed.table if needed.slopes is None else needed.slopes)
    jobs: list[tuple[str, str, str | Path | None]] = []
    if what == "all":
        found, base = _available(data_dir), Path(out or "runs")
        jobs = [(figure, name, base / f"{figure}-{name}") for name in found for figure in ("figure1", "figure2")]
        jobs.append(("heterogeneity", data, base / f"heterogeneity-{data}"))
    elif what in ("figure1", "figure2", "heterogeneity"):
        jobs = [(what, data, out)]
    for name, source, place in jobs:
        study = getattr(reproduce, name)(source, out=place, **common)
        parts = study if isinstance(study, dict) else {"": study}
        tables = [one.table.assign(partition=part) if part else one.table for part, one in parts.items()]
        show(pd.concat(tables, ignore_index=True))
    return 0


def _available(data_dir: str | None) -> list[str]:
    """The paper's data, each by itself or by its stand-in."""
    from peerdescent.studies import paper as reproduce

    found = []
    for name in reproduce.DATA:
        try:
            reproduce.load(name, data_dir)
            found.append(name)
        except ValueError as error:
            if name not in reproduce.STAND_INS:
                raise
            console.say(f"{error}; {reproduce.STAND_INS[name]} takes its place", "missing")
            found.append(reproduce.STAND_INS[name])
    return found


@app.command(
    "report",
    epilog="""[bold]Examples[/bold]
peerdescent report runs/first
peerdescent report runs/figure1 --out figure1.html""",
)
def report_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Of runs, comparisons, tunings.", show_default=False)],
    out: Annotated[str | None, typer.Option("--out", metavar="FILE.html", help="\\[default: DIR/report.html]")] = None,
) -> int:
    """Write one interactive HTML page about everything in a folder; it needs no network."""
    from peerdescent import report

    print(report.write(folder, out))
    return 0


@app.command(
    "plot",
    epilog="""[bold]Examples[/bold]
peerdescent plot runs/first --out loss.pdf
peerdescent plot runs/figure1 --x bytes --y gap --out gap.svg
peerdescent plot runs/tuned --heatmap alpha,beta --out tuning.png""",
)
def plot_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Of runs, or of a tuning.", show_default=False)],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .png, .pdf or .svg.", show_default=False)],
    x: Annotated[str, typer.Option("--x", metavar="epoch|rounds|bytes|seconds|step", help="Across.")] = "epoch",
    y: Annotated[str, typer.Option("--y", metavar="loss|gap|grad_norm|consensus", help="Up.")] = "loss",
    heatmap: Annotated[
        str | None, typer.Option("--heatmap", metavar="NAME,NAME", help="Draw a tuning over two parameters instead.")
    ] = None,
) -> int:
    """Draw the runs in a folder, or the heat map of a tuning; runs that differ in seed are one line with a band."""
    import json

    import pandas as pd

    from peerdescent import figures
    from peerdescent.report import findings
    from peerdescent.runs.trace import Trace

    place = Path(folder)
    if heatmap is not None:
        names = [name.strip() for name in heatmap.split(",")]
        require(len(names) == 2, f"--heatmap {heatmap}: give two parameters, as in alpha,beta")
        require((place / "sweep.csv").is_file(), f"{folder} has no sweep.csv: give the folder of one tuning")
        figure = figures.heatmap(pd.read_csv(place / "sweep.csv"), *names)
    else:
        groups = findings.grouped(findings.runs(place))
        require(bool(groups), f"{folder} has no run folders: give one that `run` or `compare` has written")
        traces = {group.label: [Trace.load(place / run.place) for run in group.runs] for group in groups}
        known = place / "optimum.json"
        require(y != "gap" or known.is_file(), f"{folder} has no optimum.json: a gap needs one, as `reproduce` writes")
        figure = figures.curves(traces, [(x, y)], json.loads(known.read_text())["value"] if known.is_file() else None)
    print(figures.save(figure, out))
    return 0
