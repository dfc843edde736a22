"""The only loop: a method, a problem and a network meet here, and a trace comes out.

Everything heavy is imported inside functions, so that naming `run` does not load JAX.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdescent.errors import NotFinite, require

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from peerdescent.method import Method
    from peerdescent.network import Network
    from peerdescent.problems import Problem
    from peerdescent.record import Grid

DIVERGED = 1e3
"""A loss beyond this many times the first one ends a run."""


class Status(StrEnum):
    """How a run ended."""

    done = "done"
    diverged = "diverged"
    interrupted = "interrupted"


@dataclass(frozen=True)
class Identity:
    """What makes two runs the same run; a resumed run must agree with its first part."""

    method: str
    problem: str
    network: str
    nodes: int
    dimension: int
    seed: int
    precision: int
    engine: str


@dataclass(frozen=True, eq=False)
class Trace:
    """What a run left: the table of records, the last recorded iterates, and how it ended.

    `table` has a row a record (METHODS: step, epoch, loss, grad_norm, stationarity, consensus, tracking, gradients,
    rounds, bytes, seconds), `x` (n, p) the iterates of its last row and `x_tilde` (p,) the output of Algorithm 1,
    uniform over all nodes and steps. `message` says where a run diverged. `compile_seconds` are not in `seconds`.
    """

    table: pd.DataFrame
    x: np.ndarray
    x_tilde: np.ndarray
    status: Status
    identity: Identity
    message: str = ""
    compile_seconds: float = 0.0
    state: Any = field(default=None, repr=False)

    @property
    def x_mean(self) -> np.ndarray:
        """The mean (p,) of the iterates over nodes."""
        mean: np.ndarray = self.x.mean(axis=0)
        return mean

    @property
    def steps(self) -> int:
        """The step of the last record."""
        return int(self.table["step"].iloc[-1])

    def __repr__(self) -> str:
        last = self.table.iloc[-1]
        return (
            f"Trace({self.identity.method}, {self.status}, {self.steps} steps, loss {last['loss']:.6g}, "
            f"grad_norm {last['grad_norm']:.3g})"
        )

    def summary(self) -> dict[str, Any]:
        """Final metrics, counts, status, versions: what `summary.json` holds."""
        import platform

        import jax

        import peerdescent

        final = {k: (None if v != v else v) for k, v in self.table.iloc[-1].to_dict().items()}
        versions = {"peerdescent": peerdescent.__version__, "jax": jax.__version__, "python": platform.python_version()}
        device = jax.devices()[0].device_kind
        return {
            **asdict(self.identity),
            "status": str(self.status),
            "message": self.message,
            "final": final,
            "compile_seconds": self.compile_seconds,
            "device": device,
            "versions": versions,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `trace.csv`, `summary.json` and `checkpoint/` into a run folder, each file in one move."""
        import jax
        import numpy as np
        from safetensors.numpy import save

        folder = Path(folder)
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        arrays = {f"state/{i}": np.ascontiguousarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.state))}
        arrays |= {"x": np.ascontiguousarray(self.x), "x_tilde": np.ascontiguousarray(self.x_tilde)}
        _write(folder / "checkpoint" / "state.safetensors", save(arrays))
        _write(folder / "trace.csv", self.table.to_csv(index=False).encode())
        _write(folder / "summary.json", (json.dumps(self.summary(), indent=2) + "\n").encode())
        return folder

    @staticmethod
    def load(folder: str | Path) -> Trace:
        """The trace saved in a run folder; its `state` is a flat list, which `run(resume=...)` knows how to use."""
        import pandas as pd
        from safetensors.numpy import load_file

        folder = Path(folder)
        for name in ("summary.json", "trace.csv", "checkpoint/state.safetensors"):
            require((folder / name).is_file(), f"{folder} is not a run folder: it has no {name}")
        summary = json.loads((folder / "summary.json").read_text())
        arrays = load_file(folder / "checkpoint" / "state.safetensors")
        state = [arrays[f"state/{i}"] for i in range(sum(name.startswith("state/") for name in arrays))]
        return Trace(
            table=pd.read_csv(folder / "trace.csv"),
            x=arrays["x"],
            x_tilde=arrays["x_tilde"],
            status=Status(summary["status"]),
            identity=Identity(**{name: summary[name] for name in Identity.__dataclass_fields__}),
            message=summary["message"],
            compile_seconds=summary["compile_seconds"],
            state=state or None,
        )


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
    precision: int = 32,
    record: int | Grid | Iterable[int] = 100,
    progress: Any = None,
    resume: Trace | str | Path | None = None,
) -> Trace:
    """Run a method on a problem over a network.

    Exactly one of `steps` (iterations, the first included) and `epochs` (a budget: the run ends with the last
    iteration whose gradients still fit) is given. `x0` is (p,) or (n, p) and defaults to the problem's start, else to
    zeros. `precision` is 32 or 64. `record` is a number of points, spread evenly over the epochs or steps, a
    `record.Grid`, or a list of steps. `progress` is True, False, None (a bar on a terminal only) or an object with
    `begin`, `update`, `end`. `resume` continues an earlier trace or run folder to a larger number of steps.

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
    import numpy as np

    from peerdescent import engines
    from peerdescent.progress import choose
    from peerdescent.record import costs, recording_steps, visited

    check(method, problem, network)
    require(precision in (32, 64), f"precision = {precision}: must be 32 or 64")
    require(0 <= seed < 2**32, f"seed = {seed}: must lie in 0..2^32 - 1")
    total = _total_steps(method, problem, steps, epochs)
    degrees = np.atleast_2d(network.degree).mean(axis=1)
    spent = costs(method, total, problem.samples, degrees)
    grid = recording_steps(record, spent.gradients if epochs is not None else np.arange(total + 1.0))
    identity = Identity(
        str(method), problem.name, str(network), problem.nodes, problem.dimension, seed, precision, engine
    )
    dtype = np.dtype(f"float{precision}")

    with jax.enable_x64(precision == 64), jax.default_matmul_precision("highest"):
        start = _starting_point(x0, problem, dtype)
        machine = engines.make(engine, method, problem, network, seed, dtype)
        keeper = _Keeper(machine, problem, spent, dtype, start, identity)
        bar = choose(progress)
        bar.begin(method.name, total)
        try:
            keeper.warm_up()
            if resume is None:
                keeper.begin(visited(seed, -1, 0, problem.nodes))
            else:
                grid = keeper.resume(resume, grid)
            bar.update(keeper.step, keeper.loss)
            for left, right in pairwise(grid):
                keeper.advance(right, visited(seed, left, right, problem.nodes))
                bar.update(right, keeper.loss)
                if keeper.diverged():
                    return keeper.trace(Status.diverged, f"loss {keeper.loss:g} at step {right}")
        except KeyboardInterrupt:
            if not keeper.rows:
                raise
            return keeper.trace(Status.interrupted)
        except NotFinite as error:
            return keeper.trace(Status.diverged, str(error))
        finally:
            bar.end()
        return keeper.trace(Status.done)


class _Keeper:
    """Keeps what a run has recorded, and the last state that was recorded, safe from an interruption."""

    def __init__(
        self, machine: Any, problem: Problem, spent: Any, dtype: Any, x0: np.ndarray, identity: Identity
    ) -> None:
        self.machine, self.problem, self.spent, self.dtype, self.x0 = machine, problem, spent, dtype, x0
        self.identity, self.compiling = identity, 0.0
        self.rows: list[dict[str, float]] = []
        self.step, self.seconds, self.state, self.x, self.x_tilde = 0, 0.0, None, x0, x0[0]

    @property
    def loss(self) -> float:
        return self.rows[-1]["loss"]

    def warm_up(self) -> None:
        clock = time.perf_counter()
        self.machine.warm_up(self.x0)
        self.compiling = time.perf_counter() - clock

    def begin(self, move: tuple[int, int] | None) -> None:
        assert move is not None
        self.x_tilde = self.x0[move[1]].copy()
        self._record(0, self.x0, None)

    def resume(self, earlier: Trace | str | Path, grid: list[int]) -> list[int]:
        import jax
        import numpy as np

        trace = earlier if isinstance(earlier, Trace) else Trace.load(earlier)
        for name, mine in asdict(self.identity).items():
            theirs = getattr(trace.identity, name)
            require(mine == theirs, f"cannot resume: {name} is {mine!r} here and was {theirs!r} in the earlier run")
        require(trace.status != Status.diverged, "cannot resume a run that diverged: start again with a smaller step")
        require(trace.steps < grid[-1], f"nothing to resume: the earlier run has {trace.steps} of {grid[-1]} steps")
        self.rows = trace.table.to_dict("records")  # type: ignore[assignment]
        self.step, self.seconds = trace.steps, self.rows[-1]["seconds"]
        self.x, self.x_tilde = trace.x, trace.x_tilde
        if trace.state is not None:
            _, structure = jax.tree.flatten(jax.eval_shape(lambda: self.machine.start(self.x0)))
            leaves = [np.array(leaf) for leaf in jax.tree.leaves(trace.state)]
            self.state = jax.tree.unflatten(structure, leaves)
        return [self.step, *(step for step in grid if step > self.step)]

    def advance(self, until: int, move: tuple[int, int] | None) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        x_tilde, seconds, step = self.x_tilde, self.seconds, self.step
        state = jax.tree.map(jnp.array, self.state) if self.state is not None else None
        for stop in sorted({until, *(move or ())[:1]}):
            clock = time.perf_counter()
            if state is None:
                state, step = self.machine.start(self.x0), 1
            state = self.machine.advance(state, step, stop)
            seconds += time.perf_counter() - clock
            step = stop
            if move and stop == move[0]:
                x_tilde = np.array(state.x[move[1]])
        kept = jax.tree.map(np.array, state)
        self.seconds, self.x_tilde = seconds, x_tilde
        self._record(until, kept.x, kept)

    def _record(self, step: int, x: np.ndarray, state: Any) -> None:
        from peerdescent.record import COLUMNS, tracking_error

        row = self.machine.evaluate(x)
        gradients = float(self.spent.gradients[step])
        row |= {
            "step": step,
            "epoch": gradients / self.problem.samples if self.problem.samples else float("nan"),
            "tracking": tracking_error(state),
            "gradients": gradients,
            "rounds": int(self.spent.rounds[step]),
            "bytes": float(self.spent.vectors[step]) * self.problem.dimension * self.dtype.itemsize,
            "seconds": self.seconds,
        }
        self.rows.append({name: row[name] for name in COLUMNS})
        self.step, self.x, self.state = step, x, state

    def diverged(self) -> bool:
        import math

        first = abs(self.rows[0]["loss"])
        return not math.isfinite(self.loss) or (first > 0 and self.loss > DIVERGED * first)

    def trace(self, status: Status, message: str = "") -> Trace:
        import pandas as pd

        table = pd.DataFrame(self.rows)
        return Trace(table, self.x, self.x_tilde, status, self.identity, message, self.compiling, self.state)


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


def _total_steps(method: Method, problem: Problem, steps: int | None, epochs: float | None) -> int:
    from peerdescent.record import steps_within

    require((steps is None) != (epochs is None), f"steps = {steps}, epochs = {epochs}: give exactly one of them")
    if steps is not None:
        require(isinstance(steps, int) and steps >= 1, f"steps = {steps}: must be a whole number of at least 1")
        return steps
    assert epochs is not None
    require(epochs > 0, f"epochs = {epochs}: must be positive")
    require(problem.samples is not None, f"{problem.name} has no epochs, since its samples never end: give steps")
    assert problem.samples is not None
    return steps_within(method, epochs * problem.samples, problem.samples)


def _starting_point(x0: Any, problem: Problem, dtype: Any) -> np.ndarray:
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


def _write(path: Path, content: bytes) -> None:
    """All of the file or nothing: written beside it, forced to disk, then moved."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
