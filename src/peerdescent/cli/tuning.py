"""The command that searches for parameters: `tune`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from peerdescent import experiment, sweeps
from peerdescent import methods as library
from peerdescent.cli import completion, console
from peerdescent.cli.options import folder, with_options
from peerdescent.errors import require, unknown

Finalists = Annotated[
    int,
    typer.Option(
        "--finalists", metavar="<int>", min=1, max=10**6, help="How many of the best are compared over 5 more seeds."
    ),
]

app = typer.Typer()


class Grid:
    """The value of `--grid`: the name of a grid, or the values in a TOML file, for all methods or for one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[str, Any] = {} if text in sweeps.GRIDS else _values(text)

    def of(self, selector: str) -> str | dict[str, Any]:
        """The grid of a method: its name, or values by parameter."""
        if not self.values:
            return self.text
        declared = library.parse(selector).declared
        common = {name: values for name, values in self.values.items() if name.partition(".")[0] in declared}
        own = {**common, **self.values.get(selector.partition("[")[0], {})}
        require(bool(own), f"{self.text} has nothing for {selector}: give it values, or a table of that name")
        return {name: [values] if isinstance(values, str) else values for name, values in own.items()}

    def check(self, selectors: Sequence[str]) -> None:
        """Refuse a parameter that no method has."""
        known = {name for selector in selectors for name in library.parse(selector).declared}
        for name, values in self.values.items():
            if name.partition(".")[0] not in known and not isinstance(values, dict):
                raise unknown(f"parameter in {self.text}", name, known)


def _values(file: str) -> dict[str, Any]:
    """The content of a TOML file: numbers and texts (schedules, compressors), lists of them, or tables by method."""
    if not file.endswith(".toml"):
        raise unknown("grid", file, [*sweeps.GRIDS, "FILE.toml"])
    require(Path(file).is_file(), f"no file {file}: give a grid's file, or one of {', '.join(sweeps.GRIDS)}")
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    require(bool(found), f"{file} is empty: give it lines such as alpha = [0.1, 1]")
    tables = [own for own in found.values() if isinstance(own, dict)]
    common = {name: values for name, values in found.items() if not isinstance(values, dict)}
    for name, values in [pair for own in (common, *tables) for pair in own.items()]:
        good = all(isinstance(each, int | float | str) for each in (values if isinstance(values, list) else [values]))
        require(good, f"{name} = {str(values)[:60]} in {file}: give numbers or texts, as in {name} = [0.1, 1]")
    return found


@app.command(
    "tune",
    epilog="""[bold]Examples[/bold]
peerdescent tune gt-hsgd gt-dsgd --data digits
peerdescent tune 'gt-hsgd\\[batch=1]' --data a9a --grid medium --out runs/tuned
peerdescent tune gt-dsgd --curves 3 --out runs/curves      # then: peerdescent plot runs/curves --out curves.png
peerdescent tune d-get --grid paper --search halving --epochs 30 --out runs/d-get
peerdescent tune gt-dsgd --grid mine.toml        # alpha = \\[0.1, 1, 10], batch = \\[1, 8]
peerdescent tune 'dsgd\\[alpha=cosine(100)]' --grid mine.toml   # "alpha.scale" = \\[0.1, 1], batch = \\[1, 8]
peerdescent tune all --epochs 10 --out runs/all   # every named method that the network allows

Parameters given with a method are not tuned. The winner is run on other seeds than the one that chose it. \
With --out: the tables of all configurations; the same command goes on with what is missing. With --curves 3, the \
three best are run once more on those seeds with all records, for `peerdescent plot` and `report`.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
@with_options("Data", "Problem", "Network", "epochs", "seed", "precision", "Output")
def tune_command(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD",
            help="As for `peerdescent run`, or `all`.",
            show_default=False,
            autocompletion=completion.methods,
        ),
    ],
    grid: Annotated[
        Grid,
        typer.Option(
            "--grid",
            metavar="NAME|FILE.toml",
            parser=Grid,
            help="The values to try: small, medium, paper, or a file.",
        ),
    ] = "small",  # type: ignore[assignment]  # typer parses the default, too
    search: Annotated[
        Literal["grid", "halving"], typer.Option("--search", help="All of them, or the better third thrice.")
    ] = "grid",
    finalists: Finalists = 1,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="<int>", min=0, max=10**6, help="Other seeds that the winner is run on.")
    ] = 5,
    curves: Annotated[
        int, typer.Option("--curves", metavar="<int>", min=0, max=1000, help="How many of the best get run folders.")
    ] = 0,
    *,
    given: dict[str, Any],
) -> int:
    """Find the best parameters of one or several methods, at equal gradient cost."""
    import pandas as pd

    from peerdescent.runs.statistics import deviation, mean

    options = experiment.settle({}, given)
    require(curves == 0 or options.out is not None, f"--curves {curves} needs --out DIR for the run folders")
    everyone = "all" in methods
    require(not everyone or len(methods) == 1, "all stands for every named method: give no other beside it")
    selectors = list(library.METHODS) if everyone else methods
    grid.check(selectors)
    out = folder(options)
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = experiment.build(options, note=console.note(options.quiet))
    options = replace(options, nodes=network.n)  # with groups, it follows from the data
    assert options.epochs is not None
    rows: list[dict[str, Any]] = []
    for selector in selectors:
        try:
            found = sweeps.tune(
                selector,
                problem,
                network,
                grid=grid.of(selector),
                search=search,
                epochs=options.epochs,
                seed=options.seed,
                seeds=seeds,
                finalists=finalists,
                curves=curves,
                precision=options.precision,
                progress=False if options.quiet else None,
                out=out and out / (selector if everyone or len(selectors) > 1 else ""),
            )
        except ValueError as error:
            if not everyone or (selector == selectors[-1] and not rows):
                raise
            if not options.quiet:
                console.say(str(error), "left out")
            continue
        rows.append(
            {
                "method": found.selector,
                "configurations": len(found.table),
                "diverged": int((found.table["status"] == "diverged").sum()),
                "loss": found.loss,
                "fresh_loss": float(mean(found.fresh["loss"])),
                "deviation": float(deviation(found.fresh["loss"])),
            }
        )
    if out:
        experiment.write(out / "config.toml", options, methods=[str(row["method"]) for row in rows])
    console.result(options.format, pd.DataFrame(rows), console.plain)
    if not options.quiet:
        console.say(f"written to {out}" if out else "nothing was written: add --out DIR for the tables")
    return 0
