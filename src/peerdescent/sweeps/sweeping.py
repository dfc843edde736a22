"""Many configurations of one method at once, compared at equal gradient cost; the paper's grid; the best of a table.

Everything heavy is imported inside functions, so that naming `sweep` does not load JAX.
"""

from __future__ import annotations

import inspect
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peerdescent.errors import require, unknown, whole
from peerdescent.runs.loop import (
    check,
    check_kinds,
    diverged,
    matrices_of,
    matrix_precision,
    open_books,
    starting_point,
    total_steps,
)
from peerdescent.runs.trace import Status, digest
from peerdescent.sweeps.seeds import best as best
from peerdescent.sweeps.table import Rows

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from peerdescent.engines.fleet import Fleet
    from peerdescent.methods.contract import Method
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem


def sweep(
    method: Callable[..., Method] | str,
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    problem: Problem,
    network: Network,
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
    """Run many configurations of a method and return a table, one row a configuration (and seed).

    `method` is a function such as `peer.methods.gt_hsgd` or a name such as "gt-hsgd". `grid` maps parameters to lists
    of values, all combinations of which are run, or is a list of mappings, one a configuration. The budget, `steps` or
    `epochs`, is counted for each configuration by itself: all are compared at equal gradient cost. `at` lists epochs
    (or steps, with `steps`) whose losses are asked for as well. `seed` is one seed, or several: then each
    configuration is run with each. All configurations of one seed see the same samples.

    The row of a configuration has its hyperparameters, `seed`, `steps` and `epoch` reached, `loss@...` for each of
    `at`, the last `loss` and `grad_norm`, `status`, and the `precision` of its arithmetic: float32 or float64, or tf32
    where `precision="tf32"` allowed reduced matrix products. What diverges is stopped and said to be; the rest goes on.

    `out` is a folder where the table is saved as it grows; if it holds an unfinished sweep of the same configurations,
    that one is continued. Ctrl-C returns the table so far, with status `interrupted` where a configuration was not
    finished.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> grid = {"alpha": [0.1, 1.0, 1e6], "beta": [0.01, 0.1]}
    >>> table = peer.sweep(peer.methods.gt_hsgd, grid, problem, network, epochs=1)
    >>> table["status"].tolist(), best(table)
    (['done', 'done', 'done', 'done', 'diverged', 'diverged'], {'alpha': 1.0, 'beta': 0.1})
    """
    import jax
    import numpy as np

    from peerdescent.engines import many, remember
    from peerdescent.runs.progress import choose

    check_kinds(problem, network)
    asked: list[float] = np.atleast_1d(at).tolist()
    configurations = configurations_of(grid)
    seeds = [whole("seed", s, 0) for s in ([seed] if np.ndim(seed) == 0 else seed)]  # type: ignore[union-attr]
    require(bool(seeds) and max(seeds) < 2**32, f"seed = {seed}: give one or several of 0..2^32 - 1")
    dtype, matrices = matrix_precision(precision)
    build = _builder(method)
    known = inspect.signature(build).parameters
    for name in configurations[0]:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise unknown(f"parameter of {method if isinstance(method, str) else method.__name__}", name, known)
    built = [build(**configuration) for configuration in configurations]
    for one in {m.pattern: m for m in built}.values():
        check(one, problem, network)
    kinds = {one.name for one in built}
    require(len(kinds) == 1, f"the grid makes {sorted(kinds)}: sweep one method at a time")
    start = starting_point(x0, problem, dtype)
    marks = _marks(built, problem, network, steps, epochs, asked)
    names = [str(one) for one in built]
    table = Rows(configurations, names, seeds, marks, [f"loss@{_short(a)}" for a in asked], precision, problem.samples)
    identity = {
        "method": built[0].name,
        "problem": problem.name,
        "network": str(network),
        "parameters": list(configurations[0]),
        "budget": f"{steps} steps" if steps is not None else f"{_short(epochs)} epochs",
        "at": [float(a) for a in asked],
        "precision": table.precision,
        "values": digest(problem.data, matrices_of(network), start),
    }
    folder = None if out is None else Path(out)
    if folder is not None:
        table.resume(folder, identity)
    remember()
    with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
        members = table.members(built)
        fleet = many([member for _, member in members], problem, network, start, dtype)
        first = float(fleet.evaluate(start.mean(axis=0, keepdims=True))[0][0])
    workers = _cores() if jax.default_backend() == "cpu" else 1
    pieces = fleet.pieces(workers) if members else []
    alive = np.ones(len(members), dtype=bool)
    bar = choose(progress)

    def finish(piece: np.ndarray) -> list[dict[str, Any]]:
        with jax.enable_x64(precision == 64), jax.default_matmul_precision(matrices):
            return list(_rows(fleet, piece, alive, first, len(asked) + 1))

    pool, saved = ThreadPoolExecutor(workers), 0.0
    bar.begin(f"{built[0].name}, {len(configurations) * len(seeds)} configurations", table.total)
    try:
        bar.update(table.done, table.best)
        waiting: set[Future[Any]] = {pool.submit(finish, piece) for piece in pieces}
        while waiting:
            # A limited wait, so that Ctrl-C is seen at once.
            ready, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for row in itertools.chain.from_iterable(future.result() for future in ready):
                table.fill(members[row.pop("member")][0], row)
            # Writing takes longer as the table grows, and should never take more than a part of the time.
            if ready and folder is not None and time.monotonic() - saved > 10 * table.save_seconds:
                table.save(folder)
                saved = time.monotonic()
            finished = [table.has(key) for key, _ in members]
            bar.update(table.done + int(fleet.reached[~np.array(finished)].sum()), table.best)
    except KeyboardInterrupt:
        pass
    finally:
        alive[:] = False
        pool.shutdown(wait=True, cancel_futures=True)
        if folder is not None and table.rows:
            table.save(folder)
        bar.end()
    frame: pd.DataFrame = table.frame()
    return frame


def _rows(fleet: Fleet, piece: np.ndarray, alive: np.ndarray, first: float, count: int) -> Iterator[dict[str, Any]]:
    """What became of each member of a piece; nothing for those that `alive` stopped."""
    import numpy as np

    losses = {k: np.full(count, np.nan) for k in piece.ravel().tolist()}
    ends: dict[int, dict[str, Any]] = {}
    for seen in fleet.follow(piece, alive):
        kept = alive[seen.member]
        if not kept.any():
            continue
        values, norms = fleet.evaluate(seen.x[kept])
        for k, mark, value, norm in zip(
            seen.member[kept].tolist(), seen.mark[kept].tolist(), values.tolist(), norms.tolist(), strict=True
        ):
            losses[k][mark] = value
            gone = diverged(value, first)
            if gone or mark == count - 1:
                status = Status.diverged if gone else Status.done
                step = fleet.members[k].marks[mark]
                ends[k] = {"member": k, "steps": step, "loss": value, "grad_norm": norm, "status": status}
                alive[k] = False
    for k, end in ends.items():
        yield end | {"losses": losses[k][:-1].tolist()}


def configurations_of(grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All combinations of a mapping's lists, or the mappings of a list, checked to have the same parameters."""
    if isinstance(grid, Mapping):
        axes = {name: list(values) if isinstance(values, Iterable) else [values] for name, values in grid.items()}
        for name, values in axes.items():
            require(bool(values), f"{name} = []: give at least one value")
        found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    else:
        found = [dict(one) for one in grid]
    require(bool(found), "the grid is empty: give at least one configuration")
    names = set(found[0])
    for one in found:
        require(set(one) == names, f"{one} does not have the parameters {sorted(names)} of the first configuration")
    return [{name: _plain(one[name]) for name in found[0]} for one in found]


def _plain(value: Any) -> Any:
    """Python's own number instead of NumPy's."""
    return value.item() if hasattr(value, "item") else value


def _short(value: Any) -> str:
    """A number as short as it can be told from others."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _builder(method: Callable[..., Method] | str) -> Callable[..., Method]:
    from peerdescent.methods import METHODS, parse

    if not isinstance(method, str):
        good = callable(method)
        require(good, f"method is a {type(method).__name__}: give a function such as peer.methods.gt_hsgd, or a name")
        return method
    if method in METHODS:
        return METHODS[method].build
    return lambda **values: parse(f"{method}[{','.join(f'{k}={v}' for k, v in values.items())}]")


def _marks(
    built: list[Method],
    problem: Problem,
    network: Network,
    steps: int | None,
    epochs: float | None,
    at: Sequence[float],
) -> list[tuple[tuple[int, ...], Any]]:
    """For each configuration the steps at which it is looked at, the last one its end, and its gradients by steps."""
    limit = steps if steps is not None else epochs
    require(list(at) == sorted(set(at)), f"at = {list(at)}: must increase")
    for value in at:
        require(limit is None or 0 < value <= limit, f"at = {list(at)}: must lie above 0 and within the budget {limit}")
    # Step sizes and the like do not matter to the books: those that differ in nothing else share them.
    found: dict[Any, tuple[tuple[int, ...], Any]] = {}
    result = []
    for one in built:
        key = one.pattern, tuple(v for v in one.numbers.values() if isinstance(v, Integral))
        if key not in found:
            books = open_books(one, problem, network)
            last = total_steps(books, problem, steps, epochs)
            if steps is not None:
                asked = [whole("at", a, 1) for a in at]
            else:
                assert problem.samples is not None
                asked = [books.steps_within(a * problem.samples) for a in at]
            found[key] = (*asked, last), books.gradients
        result.append(found[key])
    return result


BATCHES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The paper's minibatch sizes."""


class Axes(NamedTuple):
    """The values of a tuning grid."""

    steps: tuple[float, ...]
    betas: tuple[float, ...]
    batches: tuple[int, ...]
    starts: tuple[int, ...]
    """Batches at t = 0 and at restarts."""
    lengths: tuple[float, ...]
    """Periods, in m / b."""
    couplings: tuple[tuple[float, ...], tuple[float, ...]]
    """alpha and kappa of the primal-dual fusion, in 1 / eta."""


GRIDS = {
    # The paper has these batches and lengths, and gives neither its step sizes nor its weights beta.
    "paper": Axes(
        steps=tuple(2.0**k for k in range(-6, 5)),
        betas=(1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7),
        batches=BATCHES,
        starts=BATCHES,
        lengths=(*(1 / k for k in range(20, 0, -1)), *range(2, 21)),
        couplings=((0.25, 0.5, 1.0), (0.1, 0.35, 0.7)),
    ),
    "medium": Axes(
        steps=(0.25, 1.0, 2.0, 4.0, 8.0, 16.0),
        betas=(1e-4, 1e-3, 0.01, 0.1),
        batches=(1, 16, 256),
        starts=(64, 1024),
        lengths=(0.25, 1, 4),
        couplings=((0.5, 1.0), (0.1, 0.7)),
    ),
    "small": Axes((0.25, 1.0, 4.0, 16.0), (1e-3, 0.01, 0.1), (1, 32), (64,), (1,), ((1.0,), (0.1, 0.7))),
}
"""Tuning grids by name."""


def tuning_grid(method: str, samples: float | None, size: str = "paper", **fixed: Any) -> list[dict[str, Any]]:
    """The configurations of a tuning grid of that size for a named method, or for estimator*fusion; m is `samples`.

    In the paper's grid, minibatches, large batches and the batch of gt-hsgd at t = 0 are from {1, 4, 8, ..., 1024};
    periods are m/20b, m/19b, ..., m/b, 2m/b, ..., 20m/b, rounded and at least 1. What is given in `fixed` is not
    varied: `batch=1` makes gt-hsgd that of Algorithm 1.

    >>> [len(tuning_grid(name, 2442)) for name in ("gt-hsgd", "gt-dsgd", "d-get")]
    [11000, 110, 42900]
    >>> len(tuning_grid("gt-hsgd", 2442, batch=1)), len(tuning_grid("d-get", 2442, "small"))
    (1100, 8)
    """
    from peerdescent.methods import METHODS, parse

    if size not in GRIDS:
        raise unknown("grid", size, GRIDS)
    axes = GRIDS[size]
    known = inspect.signature(METHODS[method].build).parameters if method in METHODS else parse(method).parameters
    for name in fixed:
        if name not in known:
            raise unknown(f"parameter of {method}", name, known)
    coupled = dict(zip(("alpha", "kappa"), axes.couplings, strict=True)) if "eta" in known else {}

    def values(name: str, row: dict[str, Any]) -> Iterable[Any]:
        if name in fixed:
            return [fixed[name]]
        if name in coupled:
            return [c / row["eta"] for c in coupled[name]]
        if name == "period":
            require(samples is not None, f"periods of {method} are parts of an epoch, and there is none: give a period")
            assert samples is not None
            return [max(1, round(length * samples / row["batch"])) for length in axes.lengths]
        named = {"beta": axes.betas, "batch": axes.batches, "initial_batch": axes.starts, "large_batch": axes.starts}
        return named.get(name, axes.steps)

    rows: list[dict[str, Any]] = [{}]
    for name in ("eta", "alpha", "kappa", "beta", "batch", "period", "initial_batch", "large_batch", *fixed):
        if name in known and name not in rows[0]:
            rows = [{**row, name: value} for row in rows for value in values(name, row)]
    order = sorted(rows[0], key=lambda name: name.endswith("batch") + name.endswith("_batch"))
    return [{name: row[name] for name in order} for row in rows]
