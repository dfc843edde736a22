"""The loop of a run: from a method, a problem and a network to a trace."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import jax
import numpy as np

import peerdescent
from peerdescent.engines import registry
from peerdescent.engines.crew import Apart, at_once, crew_of
from peerdescent.engines.disk_cache import remember
from peerdescent.engines.meeting import agree
from peerdescent.engines.outline import definition
from peerdescent.errors import NotFinite, StreamEnded, require
from peerdescent.methods.contract import Method
from peerdescent.methods.selectors import Given, method_of
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.runs import clocks
from peerdescent.runs.checks import (
    check,
    check_names,
    check_seeds,
    matrix_precision,
    starting_point,
    total_steps,
)
from peerdescent.runs.clocks import Clock
from peerdescent.runs.costs import Books, Costs
from peerdescent.runs.course import Course
from peerdescent.runs.metrics import METRICS, NONZEROS, Metric, own_metrics
from peerdescent.runs.party import Party
from peerdescent.runs.progress import choose
from peerdescent.runs.recorder import Recorder
from peerdescent.runs.resuming import earlier_of, together
from peerdescent.runs.schedule import Grid, recording_steps
from peerdescent.runs.stop import Row, Rule, rules
from peerdescent.runs.trace import Identity, Status, Trace
from peerdescent.runs.traces import Traces, place
from peerdescent.runs.watch import Watch

Stop = Rule | Callable[[Row], Any] | Iterable[Rule | Callable[[Row], Any]] | None
"""What may end a run early."""


class Options(TypedDict, total=False):
    """The options of `run` that are the same for one seed and for several."""

    steps: int | None
    epochs: float | None
    x0: Any
    engine: str
    precision: int | str
    record: int | Grid | Iterable[int]
    metrics: Iterable[Metric | Callable[..., Any]]
    stop: Stop
    callback: Callable[[Trace], Any] | None
    progress: Any
    checkpoint: str | Path | None
    clock: Clock | str | None


@overload
def run(
    method: Given,
    problem: Problem,
    network: Network,
    *,
    seed: int | None = None,
    resume: Trace | str | Path | None = None,
    **options: Unpack[Options],
) -> Trace: ...


@overload
def run(
    method: Given,
    problem: Problem,
    network: Network,
    *,
    seed: None = None,
    resume: Traces,
    **options: Unpack[Options],
) -> Traces: ...


@overload
def run(
    method: Given,
    problem: Problem,
    network: Network,
    *,
    seed: Sequence[int],
    resume: Traces | str | Path | None = None,
    **options: Unpack[Options],
) -> Traces: ...


def run(
    method: Given,
    problem: Problem,
    network: Network,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    x0: Any = None,
    seed: int | Sequence[int] | None = None,
    engine: str = registry.DEFAULT,
    precision: int | str = 32,
    record: int | Grid | Iterable[int] = 100,
    metrics: Iterable[Metric | Callable[..., Any]] = (),
    stop: Stop = None,
    callback: Callable[[Trace], Any] | None = None,
    progress: Any = None,
    resume: Trace | Traces | str | Path | None = None,
    checkpoint: str | Path | None = None,
    clock: Clock | str | None = None,
    **others: Any,
) -> Trace | Traces:
    """Run a method on a problem over a network.

    Ctrl-C ends the run with the status `interrupted` and the records so far. A loss that is not
    finite, or exceeds a thousand times the first one, ends it with the status `diverged`. A stream
    that ends leaves a last record where the run is, and the status `interrupted`. One that ends by
    `stop` is `stopped`, and `trace.message` says why. An error in a function of yours is raised
    with the run so far as its attribute `trace`.

    Args:
        method: The method, such as `peer.methods.gt_hsgd()`; or its selector, such as
            "gt-hsgd[alpha=0.5]", or a function that makes it. What they leave open has its default,
            which suits no problem in particular.
        problem: The problem, such as `peer.problems.logistic(...)`.
        network: The network, with as many nodes as the problem.
        steps: The length in iterations, iteration 0 included. Give either `steps` or `epochs`.
        epochs: The length as a budget of gradients, in passes over the local data. The run ends
            after the last iteration that fits into the budget, but not before the first.
        x0: The starting point, (p,) or (n, p); by default the problem's, else zeros.
        seed: For the samples, coins and faults; by default 0, or what the traces in `resume` have.
            With several, such as `range(5)`, all run at once if the engine can do that, and the
            result is `Traces`.
        engine: The name of an engine; see `peer.engines.ENGINES`.
        precision: 32 or 64, or "tf32" for float32 with reduced precision in matrix products, if the
            device has that.
        record: The number of records, spread evenly over the epochs or steps; or a `peer.Grid`, or
            a list of steps.
        metrics: More columns for the trace: functions of (x_mean, x, problem), or results of
            `peer.metric`.
        stop: What ends the run early: a rule of `peer.stop`, a function of a row of the table that
            returns whether to stop (or a text that says why), or a list of such, of which any ends
            it. They are asked at records. With several seeds each stops by itself.
        callback: A function of the trace so far, called at records; with several seeds, with the
            trace of each.
        progress: True, False, None (a bar on a terminal or in a notebook), or an object with
            `begin`, `update` and `end`.
        resume: An earlier trace or run folder, to continue to a larger number of steps; with
            several seeds, earlier traces or their folder.
        checkpoint: A folder for the checkpoints of this process, written at records, and between
            them if they are far apart, as long as that takes less than 1.5 % of the time. The run
            continues from the newest valid checkpoint there that all processes of the run have, or
            from `resume` if that has more steps. With several seeds, it has a folder for each.
        clock: A `peer.clock(...)`, or the name of a preset, whose simulated seconds are the column
            `clock`. A run is resumed with the same one.
        others: None; other names are refused.

    Returns:
        The trace: `trace.table`, `trace.x`, `trace.x_mean`, `trace.x_tilde`, `trace.status`. With
        several seeds, the traces: `traces.table`, `traces.mean`, `traces.deviation`, and
        `traces[0]`, `traces[1]`, ....

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> trace = peer.run(peer.methods.gt_hsgd(alpha=0.5), problem, network, steps=200, record=4)
    >>> trace.status.value, trace.table["step"].tolist()
    ('done', [0, 50, 100, 150, 200])
    """
    check_names("run", others, [*Options.__annotations__, "seed", "resume"])
    if seed is None:
        seed = (
            resume.seeds
            if isinstance(resume, Traces)
            else resume.identity.seed
            if isinstance(resume, Trace)
            else 0
        )
    process = registry.connect(engine)
    method = method_of(method)
    check(method, problem, network)
    problem = problem.now()
    dtype, matrices = matrix_precision(precision)
    seeds, own = (
        check_seeds(seed),
        own_metrics(metrics, () if problem.penalty is None else (NONZEROS,)),
    )
    require(
        problem.streams is None or len(seeds) == 1,
        f"{problem.name} has the same rows for every seed, since they come from iterators: give one seed, and a "
        "problem with other iterators for another run",
    )
    costs = Costs.of(method, problem, network, dtype.itemsize)
    total = total_steps(costs, problem, steps, epochs)
    grid = recording_steps(record, total, costs if epochs is not None else None)
    ending = rules(stop, [*METRICS.values(), *own])
    if isinstance(clock, str):
        clock = clocks.clock(clock)
    require(
        clock is None or isinstance(clock, Clock),
        f"clock is a {type(clock).__name__}: give a clock, as peer.clock('campus') or peer.clock(latency=0.01)",
    )
    several = np.ndim(seed) > 0
    earlier = earlier_of(resume, seeds, several, total)

    remember()
    with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
        start = starting_point(x0, problem, dtype)
        identity = Identity(
            method=str(method),
            problem=problem.name,
            network=str(network),
            nodes=problem.nodes,
            dimension=problem.dimension,
            seed=seeds[0],
            precision=precision,
            engine=engine,
            values=digest(problem.definition, network.arrays, start),
            facts={
                **problem.facts,
                "computes": definition(method),
                "weights": digest(network.arrays),
                "x_0": digest(start.astype(float)),
                **({} if clock is None else {"clock": str(clock)}),
            },
        )

        def build(seed: Any) -> Any:
            known = np.ndim(seed) == 0 and seed == seeds[0]
            return (
                first
                if known
                else registry.engine_class(engine)(method, problem, network, seed, dtype)
            )

        def recorder_of(seed: int) -> Recorder:
            folder = (
                None
                if checkpoint is None
                else place(checkpoint, seed) / "checkpoint"
                if several
                else Path(checkpoint)
            )
            stationarity = record.stationarity if isinstance(record, Grid) else True
            books = Books(costs, problem, network, seed)
            made = Recorder(
                first,
                problem,
                books,
                start,
                replace(identity, seed=seed),
                own,
                stationarity,
                total,
                folder,
            )
            if clock is not None:
                made.clock = clock.started(method, problem, network, seed, dtype.itemsize).at
            return made

        first = registry.engine_class(engine)(method, problem, network, seeds[0], dtype)
        watch = Watch(ending, callback, process, first.gather)
        facts = _facts(identity, seeds, first.packages, grid)
        agree(facts | {"stop": len(ending), "callback": callback is not None}, first.gather)
        recorders = {one: recorder_of(one) for one in seeds}
        found = {one: recorders[one].known(earlier.get(one)) for one in seeds}
        known, over = {one: trace for one, (trace, _) in found.items()}, {}
        for one, trace in known.items():
            if trace is not None:
                _check_known(trace, total, several or trace is not earlier.get(one))
                watch.check(trace)
                if watch.is_over(trace, total):
                    over[one] = trace
        _check_records(method, over.values(), grid)
        left = {one: steps for one, (_, steps) in found.items() if one not in over}
        bar = choose(False if process else progress)
        party = Party(recorders, known, over, bar)
        bar.begin(method.name, total * len(seeds))
        entry = registry.ENGINES[engine]
        try:
            party.show()
            for step, some in together(
                left, at_once(method, problem, dtype) if entry.together else 1
            ):
                crew = crew_of(method, build, some) if entry.together else Apart(build, some)
                course = Course(crew, [recorders[one] for one in some], watch, party.show)
                try:
                    course.begin([_at(step, recorders[one], known[one]) for one in some])
                    course.follow(grid)
                except NotFinite as error:
                    course.end(Status.diverged, str(error))
                except StreamEnded as error:
                    course.cut(str(error))
                finally:
                    crew.close()
                    for one in some:  # engines may hold data, and are not needed any more
                        recorders[one].engine = first
        except KeyboardInterrupt:
            if not party.begun and not over:
                raise
            for recorder in recorders.values():
                if not recorder.is_over:
                    recorder.message = f"Ctrl-C or a signal, at step {recorder.at.step:,}"
                recorder.save()
        except Exception as error:
            if party.begun:
                with suppress(AttributeError, TypeError):  # an error that takes no attributes
                    error.trace = _result(party.traces(), several)  # type: ignore[attr-defined]
            raise
        finally:
            bar.end()
        return _result(party.traces(), several)


def _result(traces: list[Trace], several: bool) -> Trace | Traces:
    return Traces(traces) if several else traces[0]


def _check_known(trace: Trace, total: int, may_end: bool) -> None:
    """Refuse to continue a run that cannot: one that diverged, unless it may have ended, or one that is longer."""
    require(
        may_end or trace.status != Status.diverged,
        "cannot resume a run that diverged: start again with a smaller step",
    )
    require(
        trace.end.step <= total,
        f"the run to continue has {trace.end.step} steps, and {total} are asked for: give as many or more, or another "
        "folder",
    )


def _check_records(method: Method, ended: Iterable[Trace], grid: list[int]) -> None:
    """Warn once, at the line of the user's program, where runs that are finished were recorded at other steps."""
    if any(trace.status == Status.done and trace.table["step"].tolist() != grid for trace in ended):
        # The frame of this expression is 0, so that k is the level.
        level = next(
            k
            for k in count(2)
            if not sys._getframe(k).f_globals["__name__"].startswith("peerdescent.")
        )
        text = f"{method.name} is finished, and was recorded at other steps than those asked for"
        warnings.warn(text, stacklevel=level)


def _at(step: int, recorder: Recorder, newest: Trace | None) -> Trace | None:
    """What is known of a run at a step from which it continues; None if it begins."""
    if step < 0 or newest is None:
        return None
    return newest if newest.end.step == step else recorder.load(step)


def _facts(
    identity: Identity, seeds: list[int], packages: Iterable[str], grid: list[int]
) -> dict[str, Any]:
    """What must be equal in all processes of a run: everything but the data, of which each has its own part."""
    recorded = hashlib.sha256(repr(grid).encode()).hexdigest()[:16]
    return {
        "version": peerdescent.__version__,
        **{package: version(package) for package in packages},
        **{
            name: value
            for name, value in asdict(identity).items()
            if name not in ("values", "facts")
        },
        "seed": ", ".join(map(str, seeds)),
        "the problem": ", ".join(
            f"{name} {value}" for name, value in sorted(identity.facts.items())
        ),
        "steps": grid[-1],
        "records": recorded,
    }
