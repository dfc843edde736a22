"""The only loop: a method, a problem and a network meet here, and a trace comes out.

Everything heavy is imported inside functions, so that naming `run` does not load JAX.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peerdescent.errors import NotFinite, require, whole
from peerdescent.runs.trace import Identity, Status, Trace, digest

if TYPE_CHECKING:
    import numpy as np

    from peerdescent.methods.contract import Method
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem
    from peerdescent.runs.record import Books, Grid

DIVERGED = 1e3
"""A loss beyond this many times the first one ends a run."""


def run(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    x0: Any = None,
    seed: int = 0,
    engine: str = "stacked",
    precision: int | str = 32,
    record: int | Grid | Iterable[int] = 100,
    progress: Any = None,
    resume: Trace | str | Path | None = None,
    checkpoint: str | Path | None = None,
) -> Trace:
    """Run a method on a problem over a network.

    Exactly one of `steps` (iterations, the first included) and `epochs` (a budget: the run ends with the last
    iteration whose gradients still fit, but not before the first) is given. `x0` is (p,) or (n, p) and defaults to the
    problem's start, else to zeros. `precision` is 32 or 64, or "tf32" for float32 whose matrix products may be reduced
    where the device has such units. `record` is a number of points, spread evenly over the epochs or steps, a
    `record.Grid`, or a list of steps. `progress` is True, False, None (a bar on a terminal only) or an object with
    `begin`, `update`, `end`. `resume` continues an earlier trace or run folder to a larger number of
    steps. `checkpoint` is a folder of this process's own, where the state is kept at every record; the run goes on from
    the newest checkpoint there that is whole and that every process of the run has, if there is one.

    Ctrl-C ends the run with what was recorded so far and status `interrupted`; a loss that is not finite, or beyond a
    thousand times the first, ends it as `diverged`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> trace = peer.run(peer.methods.gt_hsgd(alpha=0.5), problem, network, steps=200, record=4)
    >>> trace.status.value, trace.table["step"].tolist()
    ('done', [0, 50, 100, 150, 200])
    """
    import jax

    from peerdescent import engines
    from peerdescent.engines.meeting import agree
    from peerdescent.methods.contract import Method
    from peerdescent.runs.progress import choose
    from peerdescent.runs.record import Grid, recording_steps, visited

    process = engines.connect(engine)
    require(
        isinstance(method, Method),
        f"method is a {type(method).__name__}: give a Method, as from peer.methods.gt_hsgd()",
    )
    check_kinds(problem, network)
    check(method, problem, network)
    dtype, matrices = matrix_precision(precision)
    seed = whole("seed", seed, 0)
    require(seed < 2**32, f"seed = {seed}: must lie in 0..2^32 - 1")
    books = open_books(method, problem, network)
    total = total_steps(books, problem, steps, epochs)
    grid = recording_steps(record, total, books if epochs is not None else None)

    engines.remember()
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
            values=digest(problem.data, matrices_of(network), start),
        )
        machine = engines.make(engine, method, problem, network, seed, dtype)
        keeper = _Keeper(machine, problem, books, dtype, start, identity)
        keeper.stationarity = record.stationarity if isinstance(record, Grid) else True
        agree(facts(identity, grid, digest(matrices_of(network), start)), machine.gather)
        bar = choose(False if process else progress)
        bar.begin(method.name, total)
        try:
            keeper.warm_up()
            if checkpoint is not None and keeper.recover(Path(checkpoint)):
                grid = [keeper.step, *(step for step in grid if step > keeper.step)]
            elif resume is None:
                keeper.begin(visited(seed, -1, 0, problem.nodes))
            else:
                grid = keeper.resume(resume, grid)
            bar.update(keeper.step, keeper.loss)
            for left, right in pairwise(grid):
                keeper.advance(right, visited(seed, left, right, problem.nodes))
                if checkpoint is not None:
                    keeper.save(Path(checkpoint))
                bar.update(right, keeper.loss)
                if keeper.diverged():
                    return keeper.trace(Status.diverged, f"loss {keeper.loss:g} at step {right}")
        except KeyboardInterrupt:
            if not keeper.kept.rows:
                raise
            return keeper.trace(Status.interrupted)
        except NotFinite as error:
            return keeper.trace(Status.diverged, str(error))
        finally:
            bar.end()
        return keeper.trace(Status.done)


class Kept(NamedTuple):
    """What is recorded: the rows, and the iterates, x_tilde and state of the last one."""

    rows: list[dict[str, float]]
    x: np.ndarray
    x_tilde: np.ndarray
    state: Any


class _Keeper:
    """Keeps what a run has recorded, and the last state that was recorded, safe from an interruption."""

    def __init__(
        self, machine: Any, problem: Problem, books: Any, dtype: Any, x0: np.ndarray, identity: Identity
    ) -> None:
        self.machine, self.problem, self.books, self.dtype, self.x0 = machine, problem, books, dtype, x0
        self.identity, self.compiling, self.stationarity = identity, 0.0, True
        self.kept = Kept([], x0, x0[0], None)

    @property
    def loss(self) -> float:
        return self.kept.rows[-1]["loss"]

    @property
    def step(self) -> int:
        return int(self.kept.rows[-1]["step"])

    def warm_up(self) -> None:
        clock = time.perf_counter()
        self.machine.warm_up(self.x0, self.stationarity)
        self.compiling = time.perf_counter() - clock

    def begin(self, move: tuple[int, int] | None) -> None:
        assert move is not None
        self._record(0, self.x0, None, self.x0[move[1]].copy(), 0.0)

    def resume(self, earlier: Trace | str | Path, grid: list[int]) -> list[int]:
        import jax
        import numpy as np

        trace = earlier if isinstance(earlier, Trace) else Trace.load(earlier)
        self._check_same(asdict(trace.identity))
        require(trace.status != Status.diverged, "cannot resume a run that diverged: start again with a smaller step")
        require(trace.steps < grid[-1], f"nothing to resume: the earlier run has {trace.steps} of {grid[-1]} steps")
        state = None
        if trace.state is not None:
            structure = jax.tree.structure(self.machine.start(self.x0))
            state = jax.tree.unflatten(structure, [np.array(leaf) for leaf in jax.tree.leaves(trace.state)])
        rows: Any = trace.table.to_dict("records")
        self.kept = Kept(rows, trace.x, trace.x_tilde, state)
        return [self.step, *(step for step in grid if step > self.step)]

    def save(self, folder: Path) -> None:
        """Write what this process needs to go on from the last record."""
        import jax
        import numpy as np

        from peerdescent.runs import checkpoint

        local = jax.tree.leaves(self.machine.scatter(self.kept.state))
        arrays = {f"state/{k}": np.asarray(leaf) for k, leaf in enumerate(local)} | {"x_tilde": self.kept.x_tilde}
        checkpoint.save(folder, self.step, arrays, {"identity": asdict(self.identity), "rows": self.kept.rows})

    def recover(self, folder: Path) -> bool:
        """Take up the newest checkpoint that is whole in every process; False where there is none."""
        import jax
        import numpy as np

        from peerdescent.runs import checkpoint

        have = np.full(checkpoint.KEPT, -1)
        found = checkpoint.steps(folder)
        have[: len(found)] = found
        everywhere = np.asarray(self.machine.gather(have)).reshape(-1, len(have))
        common = set.intersection(*(set(row) for row in everywhere.tolist())) - {-1}
        if not common:
            return False
        arrays, facts = checkpoint.load(folder, max(common))
        self._check_same(facts["identity"])
        like = self.machine.start(self.x0)
        local = [arrays[f"state/{k}"] for k in range(len(jax.tree.leaves(like)))]
        state = self.machine.gather(jax.tree.unflatten(jax.tree.structure(like), local))
        self.kept = Kept(facts["rows"], state.x, arrays["x_tilde"], state)
        return True

    def _check_same(self, earlier: dict[str, Any]) -> None:
        for name, mine in asdict(self.identity).items():
            theirs = earlier[name]
            require(mine == theirs, f"cannot resume: {name} is {mine!r} here and was {theirs!r} in the earlier run")

    def advance(self, until: int, move: tuple[int, int] | None) -> None:
        x_tilde, seconds, step = self.kept.x_tilde, self.kept.rows[-1]["seconds"], self.step
        state = None if self.kept.state is None else self.machine.scatter(self.kept.state)
        for stop in sorted({until, *(move or ())[:1]}):
            clock = time.perf_counter()
            if state is None:
                state, step = self.machine.start(self.x0), 1
            state = self.machine.advance(state, step, stop)
            seconds += time.perf_counter() - clock
            step = stop
            if move and stop == move[0]:
                x_tilde = self.machine.gather(state.x)[move[1]].copy()
        kept = self.machine.gather(state)
        self._record(until, kept.x, kept, x_tilde, seconds)

    def _record(self, step: int, x: np.ndarray, state: Any, x_tilde: np.ndarray, seconds: float) -> None:
        from peerdescent.runs.record import COLUMNS, tracking_error

        row = self.machine.evaluate(x, self.stationarity)
        gradients = float(self.books.gradients(step))
        row |= {
            "step": step,
            "epoch": gradients / self.problem.samples if self.problem.samples else float("nan"),
            "tracking": tracking_error(state),
            "gradients": gradients,
            "rounds": int(self.books.rounds(step)),
            "bytes": float(self.books.vectors(step)) * self.problem.dimension * self.dtype.itemsize,
            "seconds": seconds,
        }
        # All at once and last, so that an interruption leaves the record before this one whole.
        self.kept = Kept([*self.kept.rows, {name: row[name] for name in COLUMNS}], x, x_tilde, state)

    def diverged(self) -> bool:
        return diverged(self.loss, self.kept.rows[0]["loss"])

    def trace(self, status: Status, message: str = "") -> Trace:
        import pandas as pd

        rows, x, x_tilde, state = self.kept
        return Trace(pd.DataFrame(rows), x, x_tilde, status, self.identity, message, self.compiling, state)


def matrices_of(network: Network) -> list[Any]:
    """The arrays of all W."""
    return [(W.indptr, W.indices, W.data) for W in network.matrices]


def facts(identity: Identity, grid: list[int], shared: str) -> dict[str, Any]:
    """What all processes of one run have to agree on: all but the data, of which each has its own."""
    import hashlib
    from importlib.metadata import version

    import peerdescent

    recorded = hashlib.sha256(repr(grid).encode()).hexdigest()[:16]
    return {
        "version": peerdescent.__version__,
        **{package: version(package) for package in ("jax", *(["torch"] if identity.engine == "processes" else []))},
        **{name: value for name, value in asdict(identity).items() if name != "values"},
        "weights and x_0": shared,
        "steps": grid[-1],
        "records": recorded,
    }


def diverged(loss: float, first: float) -> bool:
    """Whether a loss means that a run has gone wrong, given the loss at x_0."""
    return not math.isfinite(loss) or (first != 0 and loss > DIVERGED * abs(first))


def matrix_precision(precision: int | str) -> tuple[np.dtype[Any], str]:
    """The type of the vectors, and what matrix products may do with them: float32 means float32 unless asked."""
    import numpy as np

    require(precision in (32, 64, "tf32"), f"precision = {precision!r}: must be 32, 64 or 'tf32'")
    return np.dtype("float64" if precision == 64 else "float32"), "tensorfloat32" if precision == "tf32" else "highest"


def check_kinds(problem: Any, network: Any) -> None:
    """Refuse what is not a problem and a network, as when they are given in the wrong order."""
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem

    require(
        isinstance(problem, Problem), f"problem is a {type(problem).__name__}: give a Problem, as from peer.problems"
    )
    require(isinstance(network, Network), f"network is a {type(network).__name__}: give a Network, as Network(graph)")


def check(method: Method, problem: Problem, network: Network) -> None:
    """Refuse combinations that cannot work, with the reason and a way out."""
    require(
        problem.nodes == network.n,
        f"the problem has {problem.nodes} nodes and the network {network.n}: partition the data over {network.n}, "
        f"or build the network with {problem.nodes}",
    )
    for part in method.parts:
        if getattr(part, "symmetric", False):
            require(
                network.is_symmetric,
                f"{method.name} needs a symmetric weight matrix; {network.name} is not symmetric: "
                "use gt-dsgd or another tracking method, or an undirected graph such as exponential",
            )
        floor = getattr(part, "spectrum_above", -1.0)
        if floor > -1.0:
            require(
                network.smallest_eigenvalue > floor,
                f"{method.name} needs the smallest eigenvalue of W above {floor:.3g}; {network.name} has "
                f"{network.smallest_eigenvalue:.3g}: use lazy weights, which keep it above 0",
            )


def open_books(method: Method, problem: Problem, network: Network) -> Books:
    """The costs of a method; exact gradients of endless samples are refused."""
    import numpy as np

    from peerdescent.runs.record import Books

    books = Books(method, problem.samples, np.atleast_2d(network.degree).mean(axis=1))
    require(
        problem.oracle.finite or not books.takes_exact,
        f"{method.name} takes exact local gradients, and {problem.name} has none, since its samples never end: "
        "use a method with a large_batch, such as d-get",
    )
    return books


def total_steps(books: Books, problem: Problem, steps: int | None, epochs: float | None) -> int:
    """The number of iterations, from exactly one of `steps` and `epochs`."""
    require((steps is None) != (epochs is None), f"steps = {steps}, epochs = {epochs}: give exactly one of them")
    if steps is not None:
        return whole("steps", steps, 1)
    assert epochs is not None
    require(isinstance(epochs, Real) and 0 < epochs < math.inf, f"epochs = {epochs}: must be positive and finite")
    require(problem.samples is not None, f"{problem.name} has no epochs, since its samples never end: give steps")
    assert problem.samples is not None
    return books.steps_within(epochs * problem.samples)


def starting_point(x0: Any, problem: Problem, dtype: Any) -> np.ndarray:
    """x_0 (n, p), from what the user gave."""
    import numpy as np

    shape = (problem.nodes, problem.dimension)
    if x0 is None:
        x0 = problem.start if problem.start is not None else np.zeros(problem.dimension)
    x0 = np.asarray(x0, dtype)
    require(
        x0.shape in (shape, shape[1:]), f"x0 has shape {x0.shape}: must be {shape[1:]}, or {shape} for a point a node"
    )
    require(bool(np.isfinite(x0).all()), "x0 has values that are not finite: give a finite starting point")
    return np.broadcast_to(x0, shape).copy()
