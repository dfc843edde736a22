"""The command that searches for parameters: `tune`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from peerdescent import experiment, sweeps
from peerdescent import methods as library
from peerdescent.cli import completion, console
from peerdescent.cli.options import folder, with_options
from peerdescent.errors import require, unknown

app = typer.Typer()


class Grid:
    """The value of `--grid`: "paper", or the values in a TOML file, for all methods or for one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[str, Any] = {} if text == "paper" else _values(text)

    def of(self, selector: str) -> str | dict[str, Any]:
        """The grid of a method: its name, or values by parameter."""
        if not self.values:
            return self.text
        declared = library.parse(selector).declared
        common = {
            name: values
            for name, values in self.values.items()
            if name.partition(".")[0] in declared
        }
        own = {**common, **self.values.get(selector.partition("[")[0], {})}
        require(
            bool(own),
            f"{self.text} has nothing for {selector}: give it values, or a table of that name",
        )
        return {
            name: [values] if isinstance(values, str) else values for name, values in own.items()
        }

    def check(self, selectors: Sequence[str]) -> None:
        """Refuse a parameter that no method has."""
        known = {name for selector in selectors for name in library.parse(selector).declared}
        for name, values in self.values.items():
            if name.partition(".")[0] not in known and not isinstance(values, dict):
                raise unknown(f"parameter in {self.text}", name, known)


def _values(file: str) -> dict[str, Any]:
    """The content of a TOML file: numbers and texts (schedules, compressors), lists of them, or tables by method."""
    if not file.endswith(".toml"):
        raise unknown("grid", file, ["paper", "FILE.toml"])
    require(Path(file).is_file(), f"no file {file}: give a grid's file, or paper")
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    require(bool(found), f"{file} is empty: give it lines such as alpha = [0.1, 1]")
    tables = [own for own in found.values() if isinstance(own, dict)]
    common = {name: values for name, values in found.items() if not isinstance(values, dict)}
    for name, values in [pair for own in (common, *tables) for pair in own.items()]:
        good = all(
            isinstance(each, int | float | str)
            for each in (values if isinstance(values, list) else [values])
        )
        require(
            good,
            f"{name} = {str(values)[:60]} in {file}: give numbers or texts, as in {name} = [0.1, 1]",
        )
    return found


@app.command(
    "tune",
    epilog="""[bold]Examples[/bold]
peerdescent tune gt-hsgd gt-dsgd --data digits
peerdescent tune 'gt-hsgd\\[batch=1]' --data a9a --out runs/tuned
peerdescent tune d-get --budget 20000 --epochs 30 --seed 100-104
peerdescent tune gt-dsgd --grid mine.toml        # alpha = \\[0.1, 1, 10], batch = \\[1, 8]
peerdescent tune 'dsgd\\[alpha=cosine(100)]' --grid mine.toml   # "alpha.scale" = \\[0.1, 1], batch = \\[1, 8]
peerdescent tune all --epochs 10 --out runs/all   # every named method that the network allows

Parameters given with a method are not tuned. The search begins with values far apart, refines where the best are \
close, and goes on past every edge; every method gets the same budget. The winner is run with the fresh seeds, which \
were not searched. With --out: the tables of all configurations; the same command goes on with what is missing.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C (what is finished is saved).""",
)
@with_options(
    "Data", "Problem", "Network", "epochs", "seed", "budget", "by", "test", "precision", "Output"
)
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
        Grid | None,
        typer.Option(
            "--grid",
            metavar="paper|FILE.toml",
            parser=Grid,
            help="The values to try, in place of a search.",
        ),
    ] = None,
    fresh: Annotated[
        str, typer.Option("--fresh", help="The seeds that the winner is run with; none for none.")
    ] = "0-4",
    *,
    given: dict[str, Any],
) -> int:
    """Find the best parameters of one or several methods, at equal gradient cost."""
    import pandas as pd

    from peerdescent.runs.progress import Share, choose
    from peerdescent.runs.statistics import deviation, mean

    options = experiment.settle({}, given)
    everyone = "all" in methods
    require(
        not everyone or len(methods) == 1,
        "all stands for every named method: give no other beside it",
    )
    selectors = list(library.METHODS) if everyone else methods
    if grid is not None:
        grid.check(selectors)
    others = () if fresh == "none" else experiment.numbers(fresh)
    out = folder(options)
    with console.waiting(f"loading {options.data}", options.quiet):
        partition = experiment.partition_of(options)
        problem, network = experiment.build(
            options, note=console.note(options.quiet), partition=partition
        )
        metrics = experiment.metrics_of(options, problem, partition.dataset)
    options = replace(options, nodes=network.n)  # with groups, it follows from the data
    rows: list[dict[str, Any]] = []
    bar = choose(not options.quiet)
    for k, selector in enumerate(selectors):
        try:
            found = sweeps.tune(
                selector,
                problem,
                network,
                grid=None if grid is None else grid.of(selector),
                budget=options.budget,
                by=options.by,
                steps=options.steps,
                epochs=options.epochs,
                seed=options.seed or sweeps.tuning.SEARCHED,
                fresh=others,
                metrics=metrics,
                precision=options.precision,
                progress=Share(
                    bar, k / len(selectors), (k + 1) / len(selectors), f"tuning {selector}"
                ),
                out=out and out / (selector if everyone or len(selectors) > 1 else ""),
            )
        except ValueError as error:
            if not everyone or (selector == selectors[-1] and not rows):
                raise
            if not options.quiet:
                console.say(str(error), "left out")
            continue
        finally:
            bar.end()
        if not options.quiet:
            console.say(f"{selector}: {found.how}")
        values = found.fresh[options.by] if others else [found.score]
        rows.append(
            {
                "method": found.selector,
                "configurations": found.configurations,
                options.by: found.score,
                f"fresh_{options.by}": float(mean(values)) if others else math.nan,
                "deviation": float(deviation(values)),
            }
        )
    if out:
        experiment.write(out / "config.toml", options, methods=[str(row["method"]) for row in rows])
    console.result(options.format, pd.DataFrame(rows), console.plain)
    if not options.quiet:
        console.say(
            f"written to {out}" if out else "nothing was written: add --out DIR for the tables"
        )
    return 0
