"""Many configurations of one method at once, compared at equal gradient cost."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from peerdescent.engines.devices import cores
from peerdescent.engines.disk_cache import remember
from peerdescent.engines.fleet import Fleet, Seen
from peerdescent.engines.outline import Chance, definition, outline
from peerdescent.engines.routing import fleet_for
from peerdescent.errors import require, unknown, whole
from peerdescent.files import alone, claim
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.runs import checkpoint
from peerdescent.runs.checks import (
    check,
    check_seeds,
    diverged,
    matrix_precision,
    starting_point,
    total_steps,
)
from peerdescent.runs.costs import Costs
from peerdescent.runs.labels import counted
from peerdescent.runs.pace import Pace
from peerdescent.runs.progress import choose
from peerdescent.runs.trace import Status
from peerdescent.sweeps.grids import builder, configurations_of, make, short
from peerdescent.sweeps.settings import Setting, settings_of
from peerdescent.sweeps.table import Configuration, Rows

UNFINISHED = ".unfinished"
"""The folder, in that of a sweep, with the checkpoints of pieces that are being computed."""


Grid = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]
Problems = Problem | Iterable[Problem] | Mapping[Any, Problem]
Networks = Network | Iterable[Network] | Mapping[Any, Network]


def sweep(
    method: Callable[..., Method] | Method | str,
    grid: Grid,
    problem: Problems,
    network: Networks,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    at: float | Sequence[float] = (),
    x0: Any = None,
    seed: int | Sequence[int] = 0,
    precision: int | str = 32,
    progress: Any = None,
    out: str | Path | None = None,
) -> pd.DataFrame:
    """Run many configurations of a method at equal gradient cost.

    All configurations with the same seed get the same samples. A configuration that diverges is
    stopped, and the others go on. Ctrl-C returns the table so far, in which unfinished
    configurations have the status `interrupted`.

    Args:
        method: A function such as `peer.methods.gt_hsgd`, a name such as "gt-hsgd", or a method, of
            which the grid replaces hyperparameters.
        grid: A mapping from hyperparameters to lists of values, of which all combinations are run;
            or a list of mappings, one per configuration.
        problem: The problem; or several, as a list or as a mapping from names to problems.
        network: The network, or several. Every problem is run with every network that has as many
            nodes.
        steps: The length of each configuration's run in iterations. Give either `steps` or
            `epochs`.
        epochs: The length as a budget of gradients per node, in passes over the local data.
        at: Epochs (with `steps`, steps) at which the loss is recorded as well.
        x0: The starting point, (p,) or (n, p); by default the problem's, else zeros.
        seed: One seed, or several, with each of which every configuration is run.
        precision: 32 or 64, or "tf32" for float32 with reduced precision in matrix products, if the
            device has that.
        progress: True, False, None (a bar on a terminal or in a notebook), or an object with
            `begin`, `update` and `end`.
        out: A folder to which the table is written as it grows, or a folder in it for each of
            several problems and networks. An unfinished sweep of the same configurations there is
            continued.

    Returns:
        A table with one row per configuration and seed: `problem`, `network` and `nodes` if there
        are several of the first two, the hyperparameters, `seed`, the `steps` and `epoch` reached
        (the expected epoch, where faults or coins leave it to chance), `loss@...` for each of `at`,
        the last `loss` and `grad_norm`, `status`, and `precision` (float32, float64 or tf32).

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> grid = {"alpha": [0.1, 1.0, 1e6], "beta": [0.01, 0.1]}
    >>> table = peer.sweep(peer.methods.gt_hsgd, grid, problem, network, epochs=1)
    >>> table["status"].tolist(), peer.sweeps.best(table)
    (['done', 'done', 'done', 'done', 'diverged', 'diverged'], {'alpha': 1.0, 'beta': 0.1})
    """
    asked: list[float] = np.atleast_1d(at).tolist()
    configurations = configurations_of(grid)
    seeds = check_seeds(seed)
    build = builder(method)
    known = inspect.signature(build).parameters
    for name in configurations[0]:
        if name.partition(".")[0] not in known and not any(
            p.kind is p.VAR_KEYWORD for p in known.values()
        ):
            raise unknown(
                f"parameter of {method if isinstance(method, str) else build.__name__}", name, known
            )
    built = [make(build, configuration) for configuration in configurations]
    kinds = {one.name for one in built}
    require(len(kinds) == 1, f"the grid makes {sorted(kinds)}: sweep one method at a time")
    budget = _Budget(steps, epochs, asked)
    settings = [one._replace(problem=one.problem.now()) for one in settings_of(problem, network)]
    for setting, kind in itertools.product(settings, {one.pattern: one for one in built}.values()):
        check(kind, setting.problem, setting.network)
    frames: list[pd.DataFrame] = []
    with contextlib.ExitStack() as held:
        if out is not None:
            held.enter_context(alone(claim(Path(out))))
        works = [
            _begun(
                one,
                configurations,
                built,
                seeds,
                budget,
                x0,
                precision,
                None if out is None else Path(out),
                held,
            )
            for one in settings
        ]
        remember()
        going = True
        for one, work in zip(settings, works, strict=True):
            going = going and _fill(work, precision, progress)
            frame = work.table.frame()
            for place, (name, value) in enumerate(one.names.items()):
                frame.insert(place, name, value)
            frames.append(frame)
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


class _Budget(NamedTuple):
    """The length of runs, and where losses are recorded besides."""

    steps: int | None
    epochs: float | None
    at: list[float]


class _Work(NamedTuple):
    """The sweep of one setting: its rows, on what it is run, and the folder and what it is about, if it has one."""

    table: Rows
    problem: Problem
    network: Network
    start: np.ndarray
    label: str
    store: tuple[Path, dict[str, Any]] | None


def _begun(
    setting: Setting,
    configurations: list[dict[str, Any]],
    built: list[Method],
    seeds: list[int],
    budget: _Budget,
    x0: Any,
    precision: int | str,
    out: Path | None,
    held: contextlib.ExitStack,
) -> _Work:
    """The sweep of a setting, with what its folder has of it."""
    problem, network = setting.problem, setting.network
    for name in setting.names:
        clear = name not in configurations[0]
        require(
            clear, f"the hyperparameter {name!r} has the name of a column of the table: rename it"
        )
    dtype, _ = matrix_precision(precision)
    start = starting_point(x0, problem, dtype)
    steps, epochs, asked = budget
    marks = _marks(built, problem, network, *budget)
    arithmetic = precision if isinstance(precision, str) else f"float{precision}"
    about = {
        "method": built[0].name,
        "problem": problem.name,
        "network": str(network),
        "parameters": list(configurations[0]),
        "budget": counted(steps, "step") if steps is not None else f"{short(epochs)} epochs",
        "at": [float(a) for a in asked],
        "precision": arithmetic,
        "values": digest(problem.definition, network.arrays, start),
    }
    folder = None if out is None else out / setting.folder
    if folder is not None:
        held.enter_context(alone(claim(folder)))
    table = Rows(
        [
            Configuration(*one)
            for one in zip(configurations, built, *zip(*marks, strict=True), strict=True)
        ],
        seeds,
        [f"loss@{short(a)}" for a in asked],
        arithmetic,
        problem.samples,
        folder,
        about,
    )
    where = "".join(f", {value}" for value in list(setting.names.values())[:2])
    label = f"{built[0].name}, {counted(len(table.wanted), 'configuration')}{where}"
    return _Work(table, problem, network, start, label, None if folder is None else (folder, about))


def _fill(work: _Work, precision: int | str, progress: Any) -> bool:
    """Run all configurations that have no result yet, save the table as they finish, and say whether all have one."""
    table, problem, network, start, label, store = work
    dtype, matrices = matrix_precision(precision)
    members = table.members()
    with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
        fleet = fleet_for([member for _, member in members], problem, network, start, dtype)
        first = float(fleet.evaluate(start.mean(axis=0, keepdims=True))[0][0])
    workers = cores() if jax.default_backend() == "cpu" else 1
    # Rounding depends on what is computed together. So a sweep that continues has the same pieces
    # as one that was not interrupted, and runs those again that lack a result.
    missing = {k for k, (one, _) in enumerate(members) if not table.has(one)}
    pieces = [
        piece
        for piece in (fleet.pieces(workers) if members else [])
        if missing & set(piece.ravel().tolist())
    ]
    alive = np.ones(len(members), dtype=bool)
    bar, ended = choose(progress), SimpleQueue[_End]()

    def finish(piece: np.ndarray) -> None:
        with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
            place = None if store is None else _place(*store, fleet, piece)
            for end in _ends(fleet, piece, alive, first, len(table.asked) + 1, place):
                ended.put(end)

    def collect() -> bool:
        some = False
        with contextlib.suppress(Empty):
            while True:
                end = ended.get_nowait()
                if end.member in missing:
                    table.fill(members[end.member][0], *end[1:])
                    some = True
        return some

    pool, saved = ThreadPoolExecutor(workers), 0.0
    bar.begin(label, table.total)
    try:
        bar.update(table.done, table.best)
        waiting: set[Future[None]] = {pool.submit(finish, piece) for piece in pieces}
        while waiting:
            # The wait has a limit, so that Ctrl-C takes effect at once.
            ready, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in ready:
                future.result()
            # Writing takes longer as the table grows, so write so rarely that it takes at most a
            # tenth of the time.
            if collect() and time.monotonic() - saved > 10 * table.save_seconds:
                table.save()
                saved = time.monotonic()
            running = np.array([not table.has(one) for one, _ in members])
            bar.update(table.done + int(fleet.reached[running].sum()), table.best)
    except KeyboardInterrupt:
        pass
    finally:
        alive[:] = False
        pool.shutdown(wait=True, cancel_futures=True)
        collect()
        if table.save() and store is not None:
            for piece in pieces:
                if all(table.has(members[k][0]) for k in piece.ravel()):
                    shutil.rmtree(_place(*store, fleet, piece), ignore_errors=True)
            if all(table.has(one) for one in table.wanted):
                shutil.rmtree(store[0] / UNFINISHED, ignore_errors=True)
        bar.end()
    return all(table.has(one) for one in table.wanted)


class _End(NamedTuple):
    """The result of a member of a fleet."""

    member: int
    steps: int
    status: Status
    losses: list[float]
    """The losses at all marks, NaN at those that it did not reach; the last entry is the loss of its last step."""
    norm: float


def _place(folder: Path, about: dict[str, Any], fleet: Fleet, piece: np.ndarray) -> Path:
    """The folder for checkpoints of a piece. Its name is a digest of all that the piece computes, and of how."""
    members = [fleet.members[k] for k in piece.ravel()]
    each = [
        (str(one.method), definition(one.method.pattern), one.seed, one.marks) for one in members
    ]
    return (
        folder
        / UNFINISHED
        / hashlib.sha256(repr((about, fleet.kind(piece), each)).encode()).hexdigest()[:16]
    )


def _ends(
    fleet: Fleet, piece: np.ndarray, alive: np.ndarray, first: float, count: int, place: Path | None
) -> Iterator[_End]:
    """The result of each member of a piece as it ends, except of those that were stopped by `alive`.

    With a folder, the piece is stored there on its way, and continues from what is there.
    """
    losses = {k: np.full(count, np.nan) for k in piece.ravel().tolist()}
    ended: dict[int, _End] = {}
    since, known = None, None if place is None else checkpoint.newest(place)
    if known is not None:
        arrays, facts = checkpoint.load(*known)
        since = known[1], [arrays[f"state/{i}"] for i in range(facts["leaves"])]
        # Members go by their place in the piece: their numbers depend on the rest of the sweep.
        losses = dict(zip(losses, arrays["losses"], strict=True))
        for at, *rest in facts["ended"]:
            k = int(piece.ravel()[at])
            ended[k] = _End(k, rest[0], Status(rest[1]), *rest[2:])
            alive[k] = False
        yield from ended.values()
    pace = Pace(place, lambda own: own)
    seen = None
    for seen in fleet.follow(piece, alive, since):
        live = np.array([k not in ended for k in seen.member.tolist()], dtype=bool)
        if live.any():
            values, norms = fleet.evaluate(seen.x[live])
            for k, mark, value, norm in zip(
                seen.member[live].tolist(),
                seen.mark[live].tolist(),
                values.tolist(),
                norms.tolist(),
                strict=True,
            ):
                losses[k][mark] = value
                gone = diverged(value, first)
                if gone or mark == count - 1:
                    status = Status.diverged if gone else Status.done
                    at_marks = [*losses[k][:-1].tolist(), value]
                    alive[k] = False
                    ended[k] = _End(k, fleet.members[k].marks[mark], status, at_marks, norm)
                    yield ended[k]
        if pace.is_due():
            pace.save(partial(_save, piece=piece, seen=seen, losses=losses, ended=ended))
    if place is not None and seen is not None and len(ended) < piece.size:  # it was interrupted
        _save(place, piece, seen, losses, ended)


def _save(
    folder: Path,
    piece: np.ndarray,
    seen: Seen,
    losses: dict[int, np.ndarray],
    ended: dict[int, _End],
) -> None:
    """Write a checkpoint of a piece, if that is possible; on a full disk the sweep goes on without one."""
    places = {k: at for at, k in enumerate(piece.ravel().tolist())}
    arrays = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(seen.leaves)}
    arrays["losses"] = np.stack([*losses.values()])
    facts = {
        "leaves": len(seen.leaves),
        "ended": [(places[k], *end[1:]) for k, end in ended.items()],
    }
    with contextlib.suppress(OSError):
        checkpoint.save(folder, seen.step, arrays, facts)


def _marks(
    built: list[Method],
    problem: Problem,
    network: Network,
    steps: int | None,
    epochs: float | None,
    at: Sequence[float],
) -> list[tuple[tuple[int, ...], Any]]:
    """For each configuration its marks, of which the last is its last step, and its gradients by number of steps."""
    limit = steps if steps is not None else epochs
    require(list(at) == sorted(set(at)), f"at = {list(at)}: must increase")
    for value in at:
        require(
            limit is None or 0 < value <= limit,
            f"at = {list(at)}: must lie above 0 and within the budget {limit}",
        )
    # Real numbers do not change the costs of a method without coins, so configurations that differ
    # in those alone share costs.
    found: dict[Any, tuple[tuple[int, ...], Any]] = {}
    result = []
    for one in built:
        coins = any(isinstance(when, Chance) for when in outline(one).branches)
        counts = {name for name, parameter in one.declared.items() if parameter.is_whole}
        key = (
            one.pattern,
            tuple(value for name, value in one.numbers.items() if coins or name in counts),
        )
        if key not in found:
            costs = Costs.of(one, problem, network)
            last = total_steps(costs, problem, steps, epochs)
            if steps is not None:
                asked = [whole("at", a, 1) for a in at]
            else:
                assert problem.samples is not None
                asked = [costs.steps_within(a * problem.samples) for a in at]
            found[key] = (*asked, last), costs.gradients
        result.append(found[key])
    return result
