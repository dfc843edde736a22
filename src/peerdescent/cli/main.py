"""The command line: `run`, `compare`, `network`, `list`; `commands` and `commands_theory` have the others.

Results go to standard output, as a table, CSV or JSON, so that they can be piped; progress, notes and errors go to
standard error. Everything heavy is imported inside functions, so that `--help` answers at once. Bad input is one line
and exit status 2, by `main`.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment as settings
from peerdescent.cli import commands, console
from peerdescent.cli import theory as commands_theory
from peerdescent.errors import PeerLost, require, unknown
from peerdescent.experiment import Options, with_options

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem
    from peerdescent.runs.trace import Trace

RESUMABLE = ("epochs", "steps", "record", "grid", "skip_stationarity", "out", "format", "quiet")

app = typer.Typer(
    help="Decentralized stochastic optimization: nodes with private data descend together, with no server.",
    epilog="""[bold]Start with[/bold]
peerdescent run gt-hsgd
peerdescent compare dsgd gt-dsgd gt-hsgd --out runs/first""",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE.toml", help="Options from a file, its keys the flags; flags beat it."),
]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Answer `--version`, and help where nothing is asked."""
    if version:
        import peerdescent

        print(f"peerdescent {peerdescent.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


@app.command(
    "run",
    epilog="""[bold]Examples[/bold]
peerdescent run gt-hsgd --epochs 10
peerdescent run 'gt-hsgd\\[alpha=0.5,beta=0.01]' --data a9a --out runs/a
peerdescent run 'hybrid*exact-diffusion\\[alpha=0.5]' --topology ring
peerdescent run --config runs/a/config.toml --seed 1 --out runs/b
peerdescent run --resume --out runs/a --epochs 60
peerdescent run dsgd --format csv > trace.csv

Over processes, one a node: torchrun --nproc-per-node 20 -m peerdescent run gt-hsgd --engine processes --out runs/a

Exit status: 0 done, 1 diverged, 2 bad input, 3 another process is lost, 130 interrupted by Ctrl-C (what was recorded
is shown and written).""",
)
@with_options
def run_command(
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="name\\[parameter=value,...]; see `list methods`.", show_default=False),
    ] = None,
    config: Config = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, with its own options.")] = False,
    *,
    given: dict[str, Any],
) -> int:
    """Run one method and show its trace."""
    from peerdescent.methods import parse

    file = _earlier(config, method, given) if resume else settings.read(config, "method")
    selector = method or file.get("method")
    require(selector is not None, "no method: name one, as in peerdescent run gt-hsgd (see peerdescent list methods)")
    assert selector is not None
    file.pop("method", None)
    options, process = _join(settings.settle(file, given))
    parse(selector)
    folder = _folder(options, process)
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = settings.experiment(options, process if options.engine == "processes" else None)
    if folder and options.engine == "processes":  # what a process that comes back needs to know
        settings.write(folder / "config.toml", options, method=selector)
    checkpoint = _checkpoint(options, process, resume)
    earlier = Path(options.out) if resume and options.out else None
    if checkpoint and earlier and not (earlier / "summary.json").is_file():
        earlier = None  # it was killed, and left checkpoints but no trace
    trace = _run(selector, options, problem, network, earlier, checkpoint)
    console.result(options.format, trace.table, console.trace, method=selector, status=trace.status)
    if folder:
        _write(folder, selector, options, trace)
    _close(trace, options)
    return {"done": 0, "diverged": 1, "interrupted": 130}[trace.status]


@app.command(
    "compare",
    epilog="""[bold]Examples[/bold]
peerdescent compare dsgd gt-dsgd gt-hsgd --epochs 10 --out runs/first
peerdescent compare 'dsgd\\[alpha=0.1]' 'dsgd\\[alpha=0.5]' --topology ring
peerdescent compare d2 d-get gt-hsgd --data a9a --format csv > table.csv

With --out: comparison.csv, comparison.png, and a run folder for each method.

Exit status: 0 (also where a method diverged), 2 bad input, 130 interrupted by Ctrl-C.""",
)
@with_options
def compare_command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD...", help="Two or more, as for `peerdescent run`.", show_default=False),
    ] = None,
    config: Config = None,
    *,
    given: dict[str, Any],
) -> int:
    """Run several methods on one problem and compare where they end."""
    from peerdescent.methods import parse
    from peerdescent.runs.checks import check

    file = settings.read(config, "methods")
    listed = file.pop("methods", [])
    selectors = [selector.strip() for selector in methods or listed]
    require(len(selectors) >= 2, "compare needs two methods or more: name them, as in compare dsgd gt-hsgd")
    parsed = [str(parse(selector)) for selector in selectors]
    for index, selector in enumerate(selectors):
        require(parsed[index] not in parsed[:index], f"{selector} is given twice: leave one out, or change a parameter")
    options, process = _join(settings.settle(file, given))
    folder = _folder(options, process)
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = settings.experiment(options, process if options.engine == "processes" else None)
    for selector in selectors:
        check(parse(selector), problem, network)
    traces: dict[str, Trace] = {}
    interrupted = False
    for selector, slug in zip(selectors, _slugs(selectors), strict=True):
        try:
            traces[selector] = trace = _run(selector, options, problem, network)
        except KeyboardInterrupt:  # while it compiled: there is no trace, but those before it stand
            interrupted = True
            break
        if folder:
            _write(folder / slug, selector, options, trace)
        if trace.status == "interrupted":
            interrupted = True
            break
    if not traces:
        return 130
    table = _final(traces)
    console.result(options.format, table, console.comparison)
    if folder:
        from peerdescent import figures

        settings.write(folder / "config.toml", options, methods=selectors)
        table.to_csv(folder / "comparison.csv", index=False)
        figures.save(figures.comparison(traces), folder / "comparison.png")
        _note(options, f"written to {folder}; the figure is {folder / 'comparison.png'}")
    else:
        _note(options, "nothing was written: add --out DIR for the figure and files")
    return 130 if interrupted else 0


@app.command(
    "network",
    epilog="""[bold]Examples[/bold]
peerdescent network ring --nodes 20
peerdescent network torus --nodes 64 --out torus.png
peerdescent network star --weights metropolis --matrix > W.csv""",
)
def network_command(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="See `list topologies`.", show_default=False)],
    nodes: Annotated[str, typer.Option("--nodes", metavar="INT", help="Number of nodes.")] = "20",
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="lazy|metropolis|equal", help="Weight rule. \\[default: the network's own]"),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.png", help="Draw it, as .png, .pdf or .svg.")
    ] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Print W as CSV instead.")] = False,
) -> int:
    """Show what is known about a network: lambda, degrees, which methods it allows."""
    from peerdescent.networks import topology as topologies
    from peerdescent.networks.network import Network

    network = Network(topologies.build(topology, settings.number("nodes", nodes, int)), weights)
    if out:
        from peerdescent import figures

        figures.save(figures.drawing(network), out)
    if matrix:
        import io

        import numpy as np

        text = io.StringIO()
        for W in network.matrices:
            np.savetxt(text, W.toarray(), fmt="%.17g", delimiter=",")
        print(text.getvalue(), end="", flush=True)
    else:
        console.make().print(console.facts(network), "", console.permits(network), sep="\n")
    return 0


@app.command("list", epilog="[bold]Examples[/bold]\npeerdescent list\npeerdescent list methods")
def list_command(
    section: Annotated[
        str | None, typer.Argument(metavar="SECTION", help=f"One of {', '.join(console.SECTIONS)}.", show_default=False)
    ] = None,
) -> int:
    """List methods and their parts, topologies, data and engines, with citations."""
    if section is not None and section not in console.SECTIONS:
        raise unknown("section", section, console.SECTIONS)
    for index, name in enumerate([section] if section else console.SECTIONS):
        console.make().print(*[""] * (index > 0), console.catalogue(name), sep="\n")
    return 0


app.add_typer(commands.app)
app.add_typer(commands_theory.app, name="theory")


def _earlier(config: str | None, method: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run to continue; of the flags, only its length and what is shown may differ."""
    require("out" in given, "--resume needs --out DIR: the folder of the run to continue")
    path = Path(given["out"]) / "config.toml"
    require(config is None, f"--resume reads {path}: leave out --config")
    require(path.is_file(), f"{given['out']} is not a run folder: it has no config.toml")
    file = settings.read(path, "method")
    for name, value in {**given, **({"method": method} if method else {})}.items():
        same = name in RESUMABLE or value == file.get(name)
        flag = name.replace("_", "-")
        require(same, f"{flag} is {value} here and was {file.get(name)} in {path}: leave it out, or start another run")
    return file


def _join(options: Options) -> tuple[Options, int]:
    """Meet the other processes of the engine, where it has any; all but number 0 are silent and write no results."""
    if options.engine in ("stacked", "debug"):
        return options, 0
    from peerdescent.engines import connect

    process = connect(options.engine)
    if process:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return replace(options, quiet=options.quiet or process > 0), process


def _checkpoint(options: Options, process: int, resume: bool) -> Path | None:
    """The folder of this process's checkpoints; those of a run that is not to be continued are removed."""
    if options.out is None or options.engine != "processes":
        return None
    from peerdescent.runs import checkpoint

    place = Path(options.out) / "checkpoint" / f"rank-{process}"
    if not resume and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        checkpoint.clear(place)
    return place


def _run(
    selector: str,
    options: Options,
    problem: Problem,
    network: Network,
    earlier: Path | None = None,
    checkpoint: Path | None = None,
) -> Trace:
    from peerdescent import run
    from peerdescent.methods import parse
    from peerdescent.runs.schedule import Grid

    with console.waiting(f"compiling {selector}", options.quiet) as spinner:
        return run(
            parse(selector),
            problem,
            network,
            steps=options.steps,
            epochs=options.epochs,
            seed=options.seed,
            engine=options.engine,
            precision=options.precision,
            record=Grid(options.record, options.grid, not options.skip_stationarity),
            progress=console.Compiled(spinner) if spinner else False,
            resume=earlier,
            checkpoint=checkpoint,
        )


def _folder(options: Options, process: int) -> Path | None:
    """The folder to write to, made now: a long run should not end with finding that it cannot be."""
    if options.out is None or process:
        return None
    folder = Path(options.out)
    require(not folder.is_file(), f"--out {folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(folder: Path, selector: str, options: Options, trace: Trace) -> None:
    from peerdescent import figures

    folder.mkdir(parents=True, exist_ok=True)
    settings.write(folder / "config.toml", options, method=selector)
    trace.save(folder)
    figures.save(figures.comparison({selector: trace}), folder / "loss.png")


def _slugs(selectors: Sequence[str]) -> list[str]:
    """A folder name for each method: its own name, with the parameters where two share it."""
    full = [re.sub(r"[^\w.=+-]+", "-", selector).strip("-") for selector in selectors]
    names = [re.sub(r"[^\w.=+-]+", "-", selector.partition("[")[0]).strip("-") for selector in selectors]
    return [name if names.count(name) == 1 else longer for name, longer in zip(names, full, strict=True)]


def _close(trace: Trace, options: Options) -> None:
    last = trace.table.iloc[-1]
    where = f"written to {options.out}" if options.out else "nothing was written: add --out DIR for files and a figure"
    reached = f"loss {last['loss']:.6g} after {trace.steps:,} steps in {last['seconds']:.2f} s"
    if trace.status == "diverged":
        console.say(f"diverged: {trace.message}; try a smaller step size", "warning")
    elif trace.status == "interrupted" and options.out:
        where += f"; continue with peerdescent run --resume --out {options.out}"
    _note(options, f"{trace.status}: {reached}; {where}")


def _note(options: Options, text: str) -> None:
    if not options.quiet:
        console.say(text)


def _final(traces: Mapping[str, Trace]) -> pd.DataFrame:
    """The last record of each trace, a row a method."""
    import pandas as pd

    rows = [
        {"method": name, **trace.table.iloc[-1].to_dict(), "compile_seconds": trace.compile_seconds}
        | {"status": str(trace.status)}
        for name, trace in traces.items()
    ]
    return pd.DataFrame(rows).astype({"step": int, "rounds": int})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 2 with one line on standard error where the input is bad."""
    usage_error: Any = typer.BadParameter.__bases__[0]  # which typer keeps to itself
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.say(str(message), "warning")
        try:
            code = app(args=arguments, prog_name="peerdescent", standalone_mode=False)
        except usage_error as error:
            code = _refuse(error.format_message())
        except PeerLost as error:
            console.say(str(error), "lost")
            code = 3
        except OSError as error:
            code = _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except ValueError as error:
            code = _refuse(str(error))
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            code = _refuse("out of memory: smaller batches, fewer rows or fewer nodes need less")
    sys.exit(code)


def _refuse(reason: str) -> int:
    console.say(reason, "error")
    return 2
