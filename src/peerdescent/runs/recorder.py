"""The recorder of a run: rows of metrics, and the last recorded state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from peerdescent.engines.contract import Engine, Running
from peerdescent.errors import require
from peerdescent.problems.problem import Problem
from peerdescent.runs import checkpoint
from peerdescent.runs.checks import diverged
from peerdescent.runs.costs import Books
from peerdescent.runs.metrics import METRICS, Cost, Metric, Snapshot, measure
from peerdescent.runs.trace import Identity, Position, Status, Trace


class Record(NamedTuple):
    """All rows so far, and the iterates, x_tilde and state of the last row."""

    rows: list[dict[str, float]]
    x: np.ndarray
    x_tilde: np.ndarray
    state: Any


class Recorder:
    """Advances an engine, and records where it is.

    `at` is where the run is, and `last` what was last recorded. Each is replaced in one assignment, so that an
    interruption at any moment leaves both complete.
    """

    def __init__(
        self,
        engine: Engine,
        problem: Problem,
        books: Books,
        x0: np.ndarray,
        identity: Identity,
        metrics: Sequence[Metric],
        stationarity: bool,
        total: int,
    ) -> None:
        self.engine, self.problem, self.books, self.x0 = engine, problem, books, x0
        self.identity, self.compiling, self.own, self.total = identity, 0.0, tuple(metrics), total
        columns = [one for one in METRICS.values() if stationarity or one.cost < Cost.nodes]
        self.metrics = [*columns, *metrics]
        self.at_nodes = any(one.cost == Cost.nodes for one in self.metrics)
        self.last = Record([], x0, x0[0], None)
        self.at = Position(0, None, x0[0], 0.0)
        self.clock: Callable[[int], float] = lambda step: math.nan
        """The simulated seconds at a step."""

    @property
    def loss(self) -> float:
        """The loss of the last record."""
        return self.last.rows[-1]["loss"]

    @property
    def step(self) -> int:
        """The step of the last record."""
        return int(self.last.rows[-1]["step"])

    def warm_up(self) -> None:
        """Compile everything."""
        clock = time.perf_counter()
        self.engine.warm_up(self.x0, 1 + len(self.x0) * self.at_nodes)
        self.compiling = time.perf_counter() - clock

    def begin(self, move: tuple[int, int] | None) -> None:
        """Record x_0."""
        assert move is not None
        self.at = Position(0, None, self.x0[move[1]].copy(), 0.0)
        self.record()

    def known(self, earlier: Trace | None, folder: Path | None) -> Trace | None:
        """The part of this run that is done: an earlier trace, the newest checkpoint that every process has, or None.

        If there are both, the one with more steps.
        """
        if earlier is not None:
            self._check_same(earlier)
            require(
                earlier.status != Status.diverged, "cannot resume a run that diverged: start again with a smaller step"
            )
        newest = -1 if folder is None else self._newest(folder)
        if newest >= (0 if earlier is None else earlier.end.step):
            assert folder is not None
            found = Trace.from_checkpoint(folder, newest)
            self._check_same(found)
            return found
        return earlier

    def restore(self, trace: Trace, whole: Callable[[Any], Any]) -> None:
        """Continue from a trace; `whole` makes the state of all nodes of the one that the trace has."""
        end = trace.end
        state = None
        if end.state is not None:
            like, leaves = self.engine.start(self.x0), jax.tree.leaves(end.state)
            same = len(jax.tree.leaves(like)) == len(leaves)
            require(same, "cannot resume: the earlier run had a state of another form")
            state = whole(jax.tree.unflatten(jax.tree.structure(like), leaves))
        rows: Any = trace.table.to_dict("records")
        x = self.x0 if state is None else state.x if trace.position is None else trace.x
        self.last = Record(rows, x, trace.x_tilde, state if trace.position is None else None)
        self.at = end._replace(state=state)

    def _newest(self, folder: Path) -> int:
        """The newest step that has a valid checkpoint in every process; -1 if there is none."""
        own = np.array(checkpoint.steps(folder), dtype=np.int64)
        # Processes may have different numbers of checkpoints. All must send arrays of one length, so find the largest.
        most = int(np.max(self.engine.gather(np.array([len(own)]))))
        padded = np.concatenate([own, np.full(most - len(own), -1)])
        everywhere = np.asarray(self.engine.gather(padded)).reshape(-1, most) if most else np.zeros((1, 0))
        return int(max(set.intersection(*(set(row) for row in everywhere.tolist())) | {-1}))

    def save(self, folder: Path, status: Status, message: str = "") -> None:
        """Write a checkpoint of this process, of where it is."""
        trace = self.trace(status, message)
        own = self.engine.own(trace.end.state)
        trace.save_checkpoint(folder, jax.tree.leaves(own), whole=own is trace.end.state)

    def _check_same(self, trace: Trace) -> None:
        # What is made of several facts comes last, so that the message names the fact.
        own, earlier = (_in_order(one) for one in (self.identity, trace.identity))
        for name in dict.fromkeys([*own, *(["clock"] if "clock" in earlier else [])]):
            mine, theirs = own.get(name), earlier.get(name)
            require(
                mine == theirs,
                f"cannot resume: {name} is {mine!r} here and was {theirs!r} in the earlier run; give another folder",
            )
        columns = [str(name) for name in trace.table.columns]
        here, there = ([name for name in names if name not in METRICS] for names in (self._columns, columns))
        require(here == there, f"cannot resume: the metrics added are {here} here and were {there} in the earlier run")
        for mine, other in zip(self.own, trace.metrics, strict=True):
            require(
                mine.code == other.code,
                f"cannot resume: metric {mine.name!r} computes something else here than in the earlier run; rename it",
            )

    @property
    def _columns(self) -> list[str]:
        return [*METRICS, *(one.name for one in self.own)]

    def advance(self, until: int, move: tuple[int, int] | None) -> None:
        """Run to a later step; `move` is a (step, node) whose iterate x_tilde becomes, if it is on the way."""
        step, state, x_tilde, seconds = self.at
        passed = move is not None and step < move[0] <= until
        state = None if state is None else self.engine.scatter(state)
        for stop in sorted({until, move[0]} if move is not None and passed else {until}):
            clock = time.perf_counter()
            if state is None:
                state, step = self.engine.start(self.x0), 1
            state = self.engine.advance(state, step, stop)
            seconds += time.perf_counter() - clock
            step = stop
            if move is not None and passed and stop == move[0]:
                x_tilde = self.engine.gather(state.x)[move[1]].copy()
        self.at = Position(until, self.engine.gather(state), x_tilde, seconds)

    def record(self) -> None:
        """Add a row about where the run is."""
        step, state, x_tilde, seconds = self.at
        x = self.x0 if state is None else state.x
        gradients, rounds, sent = self.books.at(step)
        with np.errstate(all="ignore"):  # a diverging run has values that are not finite; its status says so
            mean = x.mean(axis=0)
            points = np.vstack([mean, x]) if self.at_nodes else mean[None]
            values, grads = self.problem.penalised(points, *self.engine.evaluate(points))
            seen = Snapshot(
                problem=self.problem,
                step=step,
                x=_read_only(x),
                x_mean=_read_only(mean),
                state=jax.tree.map(_read_only, Running.parts(state)[0]),
                values=_read_only(values),
                grads=_read_only(grads),
                gradients=gradients,
                rounds=rounds,
                bytes=sent,
                seconds=seconds,
                clock=self.clock(step),
            )
            row = dict.fromkeys(self._columns, float("nan")) | measure(self.metrics, seen)
        self.last = Record([*self.last.rows, row], x, x_tilde, state)

    def diverged(self) -> bool:
        """Whether the run has diverged, by the loss of the last record."""
        return diverged(self.loss, self.last.rows[0]["loss"])

    def trace(self, status: Status, message: str = "") -> Trace:
        """The trace of all records, and where the run is beyond the last one."""
        rows, x, x_tilde, state = self.last
        beyond = self.at if self.at.step > self.step else None
        return Trace(
            pd.DataFrame(rows), x, x_tilde, status, self.identity, message, self.compiling, state, self.own, beyond,
            self.total,
        )  # fmt: skip


def _in_order(identity: Identity) -> dict[str, Any]:
    known = asdict(identity)
    facts, values = known.pop("facts"), known.pop("values")
    return {**known, **facts, "values": values}


def _read_only(a: Any) -> Any:
    """A view that a metric cannot change: the run continues from these arrays."""
    if not isinstance(a, np.ndarray):
        return a
    view = a.view()
    view.flags.writeable = False
    return view
