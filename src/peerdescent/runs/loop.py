"""The loop of a run: from a method, a problem and a network to a trace."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

import peerdescent
from peerdescent.engines import registry
from peerdescent.engines.disk_cache import remember
from peerdescent.engines.meeting import agree
from peerdescent.engines.outline import definition
from peerdescent.errors import NotFinite, require
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.runs import clocks
from peerdescent.runs.checks import check, check_seed, matrix_precision, starting_point, total_steps
from peerdescent.runs.clocks import Clock
from peerdescent.runs.costs import Books, Costs
from peerdescent.runs.metrics import NONZEROS, Metric, own_metrics
from peerdescent.runs.output import visited
from peerdescent.runs.pace import Pace
from peerdescent.runs.progress import choose
from peerdescent.runs.recorder import Recorder
from peerdescent.runs.schedule import Grid, recording_steps
from peerdescent.runs.trace import Identity, Status, Trace


def run(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    x0: Any = None,
    seed: int = 0,
    engine: str = registry.DEFAULT,
    precision: int | str = 32,
    record: int | Grid | Iterable[int] = 100,
    metrics: Iterable[Metric | Callable[..., Any]] = (),
    progress: Any = None,
    resume: Trace | str | Path | None = None,
    checkpoint: str | Path | None = None,
    clock: Clock | str | None = None,
) -> Trace:
    """Run a method on a problem over a network.

    Ctrl-C ends the run with the status `interrupted` and the records so far. A loss that is not finite, or exceeds a
    thousand times the first one, ends it with the status `diverged`.

    Args:
        method: The method, such as `peer.methods.gt_hsgd()`.
        problem: The problem, such as `peer.problems.logistic(...)`.
        network: The network, with as many nodes as the problem.
        steps: The length in iterations, iteration 0 included. Give either `steps` or `epochs`.
        epochs: The length as a budget of gradients, in passes over the local data. The run ends after the last
            iteration that fits into the budget, but not before the first.
        x0: The starting point, (p,) or (n, p); by default the problem's, else zeros.
        seed: For the samples.
        engine: The name of an engine; see `peer.engines.ENGINES`.
        precision: 32 or 64, or "tf32" for float32 with reduced precision in matrix products, if the device has that.
        record: The number of records, spread evenly over the epochs or steps; or a `peer.Grid`, or a list of steps.
        metrics: More columns for the trace: functions of (x_mean, x, problem), or results of `peer.metric`.
        progress: True, False, None (a bar on a terminal only), or an object with `begin`, `update` and `end`.
        resume: An earlier trace or run folder, to continue to a larger number of steps.
        checkpoint: A folder for the checkpoints of this process, written at records, and between them if they are far
            apart, as long as that takes less than 1.5 % of the time. The run continues from the newest valid
            checkpoint there that all processes of the run have, or from `resume` if that has more steps.
        clock: A `peer.clock(...)`, or the name of a preset, whose simulated seconds are the column `clock`. A run is
            resumed with the same one.

    Returns:
        The trace: `trace.table`, `trace.x`, `trace.x_mean`, `trace.x_tilde`, `trace.status`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> trace = peer.run(peer.methods.gt_hsgd(alpha=0.5), problem, network, steps=200, record=4)
    >>> trace.status.value, trace.table["step"].tolist()
    ('done', [0, 50, 100, 150, 200])
    """
    process = registry.connect(engine)
    check(method, problem, network)
    problem = problem.now()
    dtype, matrices = matrix_precision(precision)
    seed, own = check_seed(seed), own_metrics(metrics, () if problem.penalty is None else (NONZEROS,))
    costs = Costs.of(method, problem, network, dtype.itemsize)
    total = total_steps(costs, problem, steps, epochs)
    grid = recording_steps(record, total, costs if epochs is not None else None)
    if isinstance(clock, str):
        clock = clocks.clock(clock)
    require(
        clock is None or isinstance(clock, Clock),
        f"clock is a {type(clock).__name__}: give a clock, as peer.clock('campus') or peer.clock(latency=0.01)",
    )
    hand = None if clock is None else clock.started(method, problem, network, seed, dtype.itemsize)
    folder = None if checkpoint is None else Path(checkpoint)
    earlier = Trace.load(resume) if isinstance(resume, str | Path) else resume
    if earlier is not None:
        require(earlier.steps < total, f"nothing to resume: the earlier run has {earlier.steps} of {total} steps")

    remember()
    with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
        start = starting_point(x0, problem, dtype)
        identity = Identity(
            method=str(method),
            problem=problem.name,
            network=str(network),
            nodes=problem.nodes,
            dimension=problem.dimension,
            seed=seed,
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
        machine = registry.engine_class(engine)(method, problem, network, seed, dtype)
        stationarity = record.stationarity if isinstance(record, Grid) else True
        books = Books(costs, problem, network, seed)
        recorder = Recorder(machine, problem, books, start, identity, own, stationarity, total)
        if hand is not None:
            recorder.clock = hand.at
        agree(_facts(identity, machine.packages, grid), machine.gather)
        known = recorder.known(earlier, folder)
        require(
            known is None or known.end.step <= total,
            f"the checkpoint in {folder} has {known and known.end.step} steps, and {total} are asked for: give as many "
            "or more, or another folder",
        )
        bar = choose(False if process else progress)
        bar.begin(method.name, total)
        try:
            if known is not None and known is not earlier and known.is_over(total):
                bar.update(known.steps, float(known.table["loss"].iloc[-1]))
                if known.status == Status.done and known.table["step"].tolist() != grid:
                    warnings.warn(
                        f"the run in {folder} is finished, and was recorded at other steps than those asked for",
                        stacklevel=2,
                    )
                return known
            recorder.warm_up()
            if known is not None:
                recorder.restore(known, machine.join if known is not earlier else lambda state: state)
                if recorder.diverged():
                    return recorder.trace(Status.diverged, f"loss {recorder.loss:g} at step {recorder.step}")
                grid = [recorder.step, *(step for step in grid if step > recorder.step and step >= recorder.at.step)]
            else:
                recorder.begin(visited(seed, -1, 0, problem.nodes))
            bar.update(recorder.step, recorder.loss)
            pace = Pace(folder, machine.gather)

            def unfinished(folder: Path) -> None:
                recorder.save(folder, Status.interrupted)  # the status if the run is killed after this

            for left, right in pairwise(grid):
                move = visited(seed, left, right, problem.nodes)
                while recorder.at.step < right:
                    recorder.advance(pace.next(recorder.at.step, right), move)
                    if recorder.at.step < right and pace.is_due():
                        pace.save(unfinished)
                recorder.record()
                bar.update(right, recorder.loss)
                if recorder.diverged():
                    break
                if pace.is_due(recorded=True):
                    pace.save(unfinished)
        except KeyboardInterrupt:
            if not recorder.last.rows:
                raise
            status, message = Status.interrupted, ""
        except NotFinite as error:
            status, message = Status.diverged, str(error)
        else:
            gone = recorder.diverged()
            status = Status.diverged if gone else Status.done
            message = f"loss {recorder.loss:g} at step {recorder.step}" if gone else ""
        finally:
            bar.end()
        if folder is not None:
            recorder.save(folder, status, message)
        return recorder.trace(status, message)


def _facts(identity: Identity, packages: Iterable[str], grid: list[int]) -> dict[str, Any]:
    """What must be equal in all processes of a run: everything but the data, of which each has its own part."""
    recorded = hashlib.sha256(repr(grid).encode()).hexdigest()[:16]
    return {
        "version": peerdescent.__version__,
        **{package: version(package) for package in packages},
        **{name: value for name, value in asdict(identity).items() if name not in ("values", "facts")},
        "the problem": ", ".join(f"{name} {value}" for name, value in sorted(identity.facts.items())),
        "steps": grid[-1],
        "records": recorded,
    }
