"""The command that searches for parameters: `tune`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from peerdescent import experiment, sweeps
from peerdescent import methods as library
from peerdescent.cli import console
from peerdescent.cli.options import folder, with_options
from peerdescent.errors import require, unknown

Finalists = Annotated[
    int,
    typer.Option(
        "--finalists", metavar="<int>", min=1, max=10**6, help="How many of the best are compared over 5 more seeds."
    ),
]

app = typer.Typer()


@app.command(
    "tune",
    epilog="""[bold]Examples[/bold]
peerdescent tune gt-hsgd gt-dsgd --data digits
peerdescent tune 'gt-hsgd\\[batch=1]' --data a9a --grid medium --out runs/tuned
peerdescent tune d-get --grid paper --search halving --epochs 30 --out runs/d-get
peerdescent tune gt-dsgd --grid mine.toml        # alpha = \\[0.1, 1, 10], batch = \\[1, 8]

Parameters given with a method are not tuned. The winner is run on other seeds than the one that chose it. \
With --out: the tables of all configurations; the same command goes on with what is missing.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
@with_options("Data", "Problem", "Network", "epochs", "seed", "precision", "Output")
def tune_command(
    methods: Annotated[
        list[str], typer.Argument(metavar="METHOD", help="As for `peerdescent run`.", show_default=False)
    ],
    grid: Annotated[
        str,
        typer.Option("--grid", metavar="NAME|FILE.toml", help="The values to try: small, medium, paper, or a file."),
    ] = "small",
    search: Annotated[
        Literal["grid", "halving"], typer.Option("--search", help="All of them, or the better third thrice.")
    ] = "grid",
    finalists: Finalists = 1,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="<int>", min=0, max=10**6, help="Other seeds that the winner is run on.")
    ] = 5,
    *,
    given: dict[str, Any],
) -> int:
    """Find the best parameters of one or several methods, at equal gradient cost."""
    import pandas as pd

    options = experiment.settle({}, given)
    known = {name for selector in methods for name in library.parse(selector).declared}
    file = _grid_file(grid)
    for name, values in file.items():
        if name not in known and not isinstance(values, dict):
            raise unknown(f"parameter in {grid}", name, known)
    out = folder(options)
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = experiment.build(options)
    rows = []
    for selector in methods:
        common = {name: values for name, values in file.items() if not isinstance(values, dict)}
        shared = {name: values for name, values in common.items() if name in library.parse(selector).declared}
        own = {**shared, **file.get(selector.partition("[")[0], {})} if file else grid
        require(bool(own), f"{grid} has nothing for {selector}: give it values, or a table of that name")
        assert options.epochs is not None
        found = sweeps.tune(
            selector,
            problem,
            network,
            grid=own,
            search=search,
            epochs=options.epochs,
            seed=options.seed,
            seeds=seeds,
            finalists=finalists,
            precision=options.precision,
            progress=False if options.quiet else None,
            out=out and out / (selector if len(methods) > 1 else ""),
        )
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
    if out:
        experiment.write(out / "config.toml", options, methods=[str(row["method"]) for row in rows])
    console.result(options.format, pd.DataFrame(rows), console.plain)
    if not options.quiet:
        console.say(f"written to {out}" if out else "nothing was written: add --out DIR for the tables")
    return 0


def _grid_file(grid: str) -> dict[str, Any]:
    """The values of a grid in a TOML file; empty if `grid` is the name of a grid."""
    if grid in sweeps.GRIDS:
        return {}
    if not grid.endswith(".toml"):
        raise unknown("grid", grid, [*sweeps.GRIDS, "FILE.toml"])
    require(Path(grid).is_file(), f"no file {grid}: give a grid's file, or one of {', '.join(sweeps.GRIDS)}")
    try:
        found = tomllib.loads(Path(grid).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{grid} is not TOML: {error}") from None
    require(bool(found), f"{grid} is empty: give it lines such as alpha = [0.1, 1]")
    tables = [own for own in found.values() if isinstance(own, dict)]
    common = {name: values for name, values in found.items() if not isinstance(values, dict)}
    for name, values in [pair for own in (common, *tables) for pair in own.items()]:
        good = all(isinstance(each, int | float) for each in (values if isinstance(values, list) else [values]))
        require(good, f"{name} = {str(values)[:60]} in {grid}: give numbers, as in {name} = [0.1, 1]")
    return found
