"""The commands that run methods: `run` and `compare`."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import peerdescent
from peerdescent import experiment, figures, files
from peerdescent.cli import completion, console, signals
from peerdescent.cli.networks import check_network
from peerdescent.cli.options import folder, with_options
from peerdescent.engines import registry
from peerdescent.errors import require
from peerdescent.experiment import Options

if TYPE_CHECKING:
    from peerdescent.networks import Network
    from peerdescent.problems import Problem
    from peerdescent.runs import Clock, Metric, Trace

RESUMABLE = (
    "epochs",
    "steps",
    "stop",
    "record",
    "grid",
    "skip_stationarity",
    "out",
    "force",
    "format",
    "quiet",
)
"""Options that may differ when a run is continued."""
VIEWS = ("trace.csv", "summary.json", "loss.png")
"""What a run folder has besides its checkpoints and its configuration."""
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Options from a file; flags override it."),
]

Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue what is in --out, with its own options.", metavar=""),
]

app = typer.Typer()


@app.command(
    "run",
    epilog="""[bold]Examples[/bold]
peerdescent run gt-hsgd --epochs 10
peerdescent run 'gt-hsgd\\[alpha=0.5,beta=0.01]' --data a9a --out runs/a
peerdescent run 'hybrid*exact-diffusion\\[alpha=0.5]' --topology ring
peerdescent run --config runs/a/config.toml --seed 1 --out runs/b
peerdescent run --resume --out runs/a --epochs 60
peerdescent run dsgd --stop loss=0.25 --stop patience=20
peerdescent run dsgd --format csv > trace.csv

"""
    + "".join(
        f"With engine {name}:\n{entry.example.format('peerdescent run gt-hsgd')} --out runs/a\n\n"
        for name, entry in registry.ENGINES.items()
        if entry.example
    )
    + """Exit status: 0 done, 1 diverged, 2 bad input, 3 another process is lost, 130 interrupted by Ctrl-C, SIGTERM \
or SIGHUP (what was recorded is written and shown). A run with --out that was killed continues with --resume, too.""",
)
@with_options("Data", "Problem", "Network", "Run", "Output")
def run_command(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="name\\[parameter=value,...]; see `list methods`.",
            show_default=False,
            autocompletion=completion.methods,
        ),
    ] = None,
    config: Config = None,
    resume: Resume = False,
    *,
    given: dict[str, Any],
) -> int:
    """Run one method and show its trace."""
    from peerdescent.sweeps.tuning import is_open

    file = (
        _earlier("method", config, method, given) if resume else experiment.read(config, "method")
    )
    written = file.pop("method", None)
    selector = method or written
    require(
        selector is not None,
        "no method: name one, as in peerdescent run gt-hsgd (see peerdescent list methods)",
    )
    assert selector is not None
    options = experiment.settle(file, given)
    clock = experiment.clock(options)
    peerdescent.methods.parse(selector)
    options, process = _connect(options)
    out = folder(options) if process == 0 else None
    if out:
        _check_alike(out, "method")
    problem, network, metrics = _build(options, process)
    options = replace(options, nodes=network.n)  # with groups, it follows from the data
    trace = _run(selector, options, problem, network, clock, metrics, options.out, process, resume)
    if out:
        with signals.writing():
            _write(out, selector, trace)
    shown = partial(console.trace, own=trace.metrics)
    console.result(options.format, trace.table, shown, method=selector, status=trace.status)
    _close(trace, options)
    if is_open(selector):
        advice = "give them, or let peerdescent compare or tune choose"
        _note(
            options,
            f"parameters of {selector} that are not given are the defaults, tuned for no problem: {advice}",
        )
    return {"done": 0, "stopped": 0, "diverged": 1, "interrupted": 130}[trace.status]


@app.command(
    "compare",
    epilog="""[bold]Examples[/bold]
peerdescent compare dsgd gt-dsgd gt-hsgd --epochs 10 --out runs/first
peerdescent compare 'dsgd\\[alpha=0.1]' 'dsgd\\[alpha=0.5]' --topology ring
peerdescent compare d2 d-get gt-hsgd --data a9a --format csv > table.csv
peerdescent compare --resume --out runs/first

Parameters that are not given are tuned for the problem, on other seeds and at the same cost for each method; \
--defaults leaves them as they are. With --out: comparison.csv, comparison.png, and a run folder for each method and \
seed. What was killed continues with --resume.

Exit status: 0 (also where a method diverged), 2 bad input, 3 another process is lost, 130 interrupted by Ctrl-C, \
SIGTERM or SIGHUP.""",
)
@with_options()
def compare_command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD",
            help="One or more, as for `peerdescent run`.",
            show_default=False,
            autocompletion=completion.methods,
        ),
    ] = None,
    config: Config = None,
    resume: Resume = False,
    *,
    given: dict[str, Any],
) -> int:
    """Run several methods on one problem and compare where they end."""
    file = (
        _earlier("methods", config, methods, given)
        if resume
        else experiment.read(config, "methods")
    )
    written = file.pop("methods", [])
    chosen = [selector.strip() for selector in methods or written]
    require(
        len(chosen) >= 1, "compare needs a method or more: name them, as in compare dsgd gt-hsgd"
    )
    options = experiment.settle(file, given)
    clock = experiment.clock(options)
    from peerdescent.runs.traces import place
    from peerdescent.studies import compared, comparing
    from peerdescent.sweeps import tuning

    names = comparing.named(chosen)
    parsed = [peerdescent.methods.parse(selector) for selector in chosen]
    options, process = _connect(options)
    out = folder(options) if process == 0 else None
    if out:
        _check_alike(out, "methods")
    problem, network, metrics = _build(options, process)
    options = replace(options, nodes=network.n)
    for method in parsed:
        check_network(method, network)
    seeds = list(options.seed or tuning.FRESH)
    options = replace(options, seed=tuple(seeds))
    if options.out and not resume:
        _clear_comparison(options, list(names), seeds, process)
    again = f"continue with peerdescent compare --resume --out {out}"
    with (
        _configured(out, resume, options, methods=chosen),
        _said_if_interrupted(again if out else ""),
    ):
        found = comparing.compare(
            chosen,
            problem,
            network,
            seed=seeds,
            steps=options.steps,
            epochs=options.epochs,
            tune=not options.defaults,
            budget=options.budget,
            by=options.by,
            out=options.out,
            note=partial(_note, options),
            engine=options.engine,
            precision=options.precision,
            record=peerdescent.Grid(options.record, options.grid, not options.skip_stationarity),
            progress=not options.quiet,
            stop=experiment.rules(options),
            clock=clock,
            metrics=metrics,
        )
    if not found.traces:
        raise KeyboardInterrupt(again if out else "")
    if out:
        homes = compared.homes(out)
        for name, trace in [(name, trace) for name, traces in found.items() for trace in traces]:
            own = replace(options, seed=(trace.identity.seed,))
            home = place(homes[name], trace.identity.seed)
            experiment.write(home / "config.toml", own, method=trace.identity.method)
    console.result(
        options.format, found.table, partial(console.comparison, own=metrics, by=options.by)
    )
    _note(options, found.verdict)
    if out:
        _note(
            options,
            f"written to {out}; the figure is {out / 'comparison.png'}{f'; {again}' if found.is_interrupted else ''}",
        )
    else:
        _note(options, "nothing was written: add --out DIR for the figure and files")
    return 130 if found.is_interrupted else 0


def _earlier(
    key: str, config: Path | None, methods: Any, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of what is to continue. Flags may change only its length and its output."""
    require("out" in given, "--resume needs --out DIR: the folder of the run to continue")
    path = given["out"] / "config.toml"
    require(config is None, f"--resume reads {path}: leave out --config")
    require(path.is_file(), f"{given['out']} is not a run folder: it has no config.toml")
    _check_alike(given["out"], key)
    file = experiment.read(path, key)
    for name, value in {**given, **({key: methods} if methods else {})}.items():
        same = name in RESUMABLE or value == file.get(name) or (name == "seed" and key == "methods")
        flag = name.replace("_", "-")
        require(
            same,
            f"{flag} is {value} here and was {file.get(name)} in {path}: leave it out, or start another run",
        )
    return file


def _connect(options: Options) -> tuple[Options, int]:
    """Join the other processes of the engine, if it has any. Only process 0 shows and writes results."""
    process = registry.connect(options.engine)
    if process:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return replace(options, quiet=options.quiet or process > 0), process


def _build(options: Options, process: int) -> tuple[Problem, Network, list[Metric]]:
    """The problem, the network and metrics. With one process per node, the problem has the data of this process."""
    with console.waiting(f"loading {options.data}", options.quiet):
        own = process if registry.ENGINES[options.engine].processes else None
        partition = experiment.partition_of(options)
        problem, network = experiment.build(options, own, console.note(options.quiet), partition)
        return problem, network, experiment.metrics_of(options, problem, partition.dataset)


def _run(
    selector: str,
    options: Options,
    problem: Problem,
    network: Network,
    clock: Clock | None,
    metrics: list[Metric],
    place: Path | None,
    process: int,
    resume: bool,
) -> Trace:
    """Run a method, or continue it; with a run folder `place`, a kill at any moment loses a few seconds at most."""
    checkpoint = _checkpoint(selector, options, place, process, resume) if place else None
    before = _reached(checkpoint) if checkpoint and resume else 0
    home = place if process == 0 else None
    with (
        _configured(home, resume, options, method=selector),
        console.waiting(f"compiling {selector}", options.quiet) as spinner,
    ):
        trace = peerdescent.run(
            peerdescent.methods.parse(selector),
            problem,
            network,
            steps=options.steps,
            epochs=options.epochs,
            seed=options.one_seed,
            engine=options.engine,
            precision=options.precision,
            record=peerdescent.Grid(options.record, options.grid, not options.skip_stationarity),
            progress=console.Compiled(spinner) if spinner else not options.quiet,
            checkpoint=checkpoint,
            stop=experiment.rules(options),
            clock=clock,
            metrics=metrics,
        )
    if before and trace.steps == before:
        _note(options, f"nothing to resume: {selector} has all of its {before:,} steps")
    return trace


def _reached(folder: Path) -> int:
    """The step of the newest checkpoint, 0 without one."""
    from peerdescent.runs import checkpoint

    return max(checkpoint.steps(folder), default=0)


def _checkpoint(selector: str, options: Options, place: Path, process: int, resume: bool) -> Path:
    """The folder of this process's checkpoints, for a run that begins or continues in a run folder."""
    from peerdescent.engines.meeting import attempt
    from peerdescent.runs import checkpoint

    own = place / "checkpoint"
    if registry.ENGINES[options.engine].processes or process:
        own /= f"rank-{process}"
    if resume or attempt() > 0:
        checkpoint.check(own)
    else:  # what an earlier run left is removed before anything is written, so that nothing is of two runs
        checkpoint.clear(own)
        if process == 0:
            _clear(place)
    return own


@contextlib.contextmanager
def _said_if_interrupted(text: str) -> Iterator[None]:
    """Give a KeyboardInterrupt a text, which the command prints."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(text) from None


@contextlib.contextmanager
def _configured(
    place: Path | None, resume: bool, options: Options, **methods: str | list[str]
) -> Iterator[None]:
    """Write the configuration of what begins or continues in a folder. If continuing is refused, the former stays."""
    if place is None:
        yield
        return
    path = place / "config.toml"
    before = path.read_bytes() if resume else None
    reached = set(place.rglob("step-*"))
    experiment.write(path, options, **methods)
    try:
        yield
    except Exception:
        if (
            before is not None and set(place.rglob("step-*")) == reached
        ):  # else some of it is longer now
            files.write(path, before)
        raise


def _clear(place: Path) -> None:
    """Remove the results of a run from its folder."""
    from peerdescent.runs import checkpoint

    for own in (place / "checkpoint", *place.glob("checkpoint/rank-*")):
        checkpoint.clear(own)
    for name in VIEWS:
        (place / name).unlink(missing_ok=True)


def _check_alike(out: Path, key: str) -> None:
    """Refuse a folder with results of another kind, which would be drawn with those of this command."""
    try:
        written = tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    other, held = (
        ("methods", "results of several methods") if key == "method" else ("method", "a run")
    )
    require(other not in written, f"{out} holds {held}: give another folder")


def _clear_comparison(
    options: Options, names: Sequence[str], seeds: Sequence[int], process: int
) -> None:
    """Remove the results of an earlier comparison, so that they are not drawn or continued with those of this one.

    Every process removes its own checkpoints; one that was started again by torchrun continues
    instead.
    """
    from peerdescent.engines.meeting import attempt
    from peerdescent.report.findings import INDEX
    from peerdescent.runs import checkpoint
    from peerdescent.runs.traces import place
    from peerdescent.studies import compared

    assert options.out is not None
    if attempt() > 0:
        return
    if process:
        for name in compared.folders(names):
            for seed in seeds:
                checkpoint.clear(place(options.out / name, seed) / "checkpoint" / f"rank-{process}")
        return
    for home in compared.homes(options.out).values():
        for own in home.glob("seed-*"):
            if (own / files.MARK).is_file():
                _clear(own)
                (own / "config.toml").unlink(missing_ok=True)
                (own / files.MARK).unlink()
                for emptied in (*own.glob("checkpoint/rank-*"), own / "checkpoint", own):
                    with contextlib.suppress(
                        OSError
                    ):  # unless there is more in it, which is not ours
                        emptied.rmdir()
        with contextlib.suppress(OSError):
            home.rmdir()
    for view in ("comparison.csv", "comparison.png", INDEX):
        (options.out / view).unlink(missing_ok=True)


def _write(place: Path, selector: str, trace: Trace) -> None:
    """Write a run folder; its configuration is there since the run began."""
    trace.save(place, force=True)  # what was there is removed since the run began
    figures.save(figures.comparison({selector: trace}), place / "loss.png", force=True)


def _close(trace: Trace, options: Options) -> None:
    from peerdescent.runs.labels import counted

    last = trace.table.iloc[-1]
    where = (
        f"written to {options.out}"
        if options.out
        else "nothing was written: add --out DIR for files and a figure"
    )
    loss, steps = console.cell("loss", last["loss"]), counted(trace.steps, "step")
    reached = f"loss {loss} after {steps} in {last['seconds']:.2f} s"
    if trace.status == "diverged":
        console.say(f"diverged: {trace.message}; try a smaller step size", "warning")
    elif trace.status == "interrupted" and options.out:
        where += f"; continue with peerdescent run --resume --out {options.out}"
    elif trace.status == "stopped":
        reached = f"{trace.message}; {reached}"
    _note(options, f"{trace.status}: {reached}; {where}")


def _note(options: Options, text: str) -> None:
    for line in text.splitlines() if not options.quiet else ():
        console.say(line)
