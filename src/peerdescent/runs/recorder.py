"""The recorder of a run: rows of metrics, and the last recorded state.

States are those that this process holds: of all nodes, or of its own. Of the others it learns what
metrics read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
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
from peerdescent.runs.metrics import METRICS, Cost, Metric, Snapshot, measure, untracked
from peerdescent.runs.output import moves, visited
from peerdescent.runs.trace import Identity, Position, Status, Trace, in_order


class Record(NamedTuple):
    """All rows so far, and of the last row the iterates of all nodes, x_tilde and the state."""

    rows: list[dict[str, float]]
    x: np.ndarray
    x_tilde: np.ndarray
    state: Any


class Recorder:
    """Records where the run of one seed is, and knows from where it continues.

    `at` is where the run is, and `last` what was last recorded. Each is replaced in one assignment,
    so that an interruption at any moment leaves both complete. Its checkpoints are in `folder`, if
    there is one.
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
        folder: Path | None,
    ) -> None:
        self.engine, self.problem, self.books, self.x0, self.folder = (
            engine,
            problem,
            books,
            x0,
            folder,
        )
        self.identity, self.compiling, self.own, self.total = identity, 0.0, tuple(metrics), total
        columns = [one for one in METRICS.values() if stationarity or one.cost < Cost.nodes]
        self.metrics = [*columns, *metrics]
        self.at_nodes = any(one.cost == Cost.nodes for one in self.metrics)
        self.last = Record([], x0, x0[0], None)
        self.at = Position(0, None, x0[0], 0.0)
        self.clock: Callable[[int], float] = lambda step: math.nan
        """The simulated seconds at a step."""
        self.status, self.message, self.is_over = Status.interrupted, "", False
        """How the run has ended; until then, as it will have if it is killed."""
        self.result: Trace | None = None
        """The trace of a run that has ended."""

    def end(self, status: Status, message: str = "") -> None:
        """The run has ended."""
        self.status, self.message, self.is_over = status, message, True

    def finish(self) -> None:
        """Write the last checkpoint of a run that has ended, and keep its trace.

        The trace has the state of all nodes, but for one that was interrupted: other processes may
        be gone then.
        """
        self.save()
        trace = self.so_far()
        whole = (
            trace.node is None or self.status == Status.interrupted or trace.position is not None
        )
        self.result = trace if whole else replace(trace, state=self.whole(trace.state), node=None)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.identity.seed

    @property
    def loss(self) -> float:
        """The loss of the last record."""
        return self.last.rows[-1]["loss"]

    @property
    def step(self) -> int:
        """The step of the last record."""
        return int(self.last.rows[-1]["step"])

    @property
    def points(self) -> int:
        """At how many points a record needs F."""
        return 1 + len(self.x0) * self.at_nodes

    def next_moves(self, until: int) -> list[tuple[int, int]]:
        """The (step, node) up to the next record, at `until`, whose iterates x_tilde becomes one after the other."""
        start, nodes = self.step if self.last.rows else -1, len(self.x0)
        if self.problem.streams is not None:  # which may end before
            return moves(self.seed, start, until, nodes)
        move = visited(self.seed, start, until, nodes)
        return [] if move is None else [move]

    def begin(self) -> None:
        """The run is at x_0."""
        ((_, node),) = self.next_moves(0)
        self.at = Position(0, None, self.x0[node].copy(), 0.0)

    def known(self, earlier: Trace | None) -> tuple[Trace | None, list[int]]:
        """The part of this run that is done, and the steps that it can continue from, the newest first.

        It is an earlier trace or the newest checkpoint that every process has, whichever has more
        steps; None, and no steps, if there is neither.
        """
        if earlier is not None:
            self._check_same(earlier, "make it the same, or leave out resume=")
        saved = [] if self.folder is None else self._saved()
        if saved and saved[0] >= (0 if earlier is None else earlier.end.step):
            found = self.load(saved[0])
            self._check_together(found)
            return found, saved
        self._check_together(earlier)
        return earlier, [] if earlier is None else [earlier.end.step]

    def load(self, step: int) -> Trace:
        """The trace in the checkpoint of a step."""
        assert self.folder is not None
        found = Trace.from_checkpoint(self.folder, step)
        self._check_same(found, "give another folder")
        return found

    def _check_together(self, trace: Trace | None) -> None:
        """Refuse traces of different steps, or of other nodes, in all processes at once."""
        own = (
            [-1, -1]
            if trace is None
            else [trace.end.step, -1 if trace.node is None else trace.node]
        )
        every = np.asarray(self.engine.gather(np.array(own))).reshape(-1, 2).tolist()
        for process, (step, node) in enumerate(every):
            require(
                step == every[0][0],
                f"cannot resume: process 0 is at step {max(every[0][0], 0)} and process {process} at step "
                f"{max(step, 0)}; give checkpoint=, which finds the last step that all of them have",
            )
            require(
                node in (-1, process),
                f"cannot resume: process {process} was given the state of node {node} alone; give each process its "
                "own trace or folder",
            )

    def restore(self, trace: Trace, like: Any) -> None:
        """Continue from a trace; `like` is a state of the same form as its."""
        end = trace.end
        state = None
        if end.state is not None:
            leaves = jax.tree.leaves(end.state)
            same = len(jax.tree.leaves(like)) == len(leaves)
            if same:
                state = jax.tree.unflatten(jax.tree.structure(like), leaves)
                state = (
                    state
                    if trace.node == self.engine.node
                    else _of_nodes(lambda a: a[self.engine.node], state)
                )
                same = [*map(np.shape, jax.tree.leaves(state))] == [
                    *map(np.shape, jax.tree.leaves(like))
                ]
            require(same, "cannot resume: the earlier run had a state of another form")
        rows: Any = trace.table.to_dict("records")
        x = self.x0 if state is None else self.whole(state.x) if trace.position is None else trace.x
        self.last = Record(rows, x, trace.x_tilde, state if trace.position is None else None)
        self.at = end._replace(state=state)

    def whole(self, held: Any) -> Any:
        """A state, or a vector, of all nodes in every process."""
        return held if self.engine.node is None else _of_nodes(self.engine.gather, held)

    def _saved(self) -> list[int]:
        """The steps that have a valid checkpoint in every process, the newest first."""
        assert self.folder is not None
        own = np.array(checkpoint.steps(self.folder), dtype=np.int64)
        # Processes may have different numbers of checkpoints. All must send arrays of one length,
        # so find the largest.
        most = int(np.max(self.engine.gather(np.array([len(own)]))))
        padded = np.concatenate([own, np.full(most - len(own), -1)])
        everywhere = (
            np.asarray(self.engine.gather(padded)).reshape(-1, most) if most else np.zeros((1, 0))
        )
        return sorted(
            set.intersection(*(set(row) for row in everywhere.tolist())) - {-1}, reverse=True
        )

    def save(self) -> None:
        """Write a checkpoint of this process, of where it is, if there is a folder and a record."""
        if self.folder is None or not self.last.rows:
            return
        trace = self.so_far()
        if (
            trace.node is not None and trace.position is None
        ):  # all processes together have x in their states
            trace = replace(trace, x=self.x0[:0])
        trace.save_checkpoint(self.folder)

    def _check_same(self, trace: Trace, remedy: str) -> None:
        own, earlier = (in_order(asdict(one)) for one in (self.identity, trace.identity))
        for name in dict.fromkeys([*own, *(["clock"] if "clock" in earlier else [])]):
            mine, theirs = own.get(name), earlier.get(name)
            require(
                mine == theirs,
                f"cannot resume: {name} is {mine!r} here and was {theirs!r} in the earlier run; {remedy}",
            )
        columns = [str(name) for name in trace.table.columns]
        here, there = (
            [name for name in names if name not in METRICS] for names in (self._columns, columns)
        )
        require(
            here == there,
            f"cannot resume: the metrics added are {here} here and were {there} in the earlier run",
        )
        for mine, other in zip(self.own, trace.metrics, strict=True):
            require(
                mine.code == other.code,
                f"cannot resume: metric {mine.name!r} computes something else here than in the earlier run; rename it",
            )

    @property
    def _columns(self) -> list[str]:
        return [*METRICS, *(one.name for one in self.own)]

    def look(self) -> tuple[np.ndarray, Snapshot]:
        """The iterates where the run is, and what metrics read. It may be called in a thread."""
        step, state, _, seconds = self.at
        x = self.x0 if state is None else self.whole(state.x)
        gradients, rounds, sent = self.books.at(step)
        with np.errstate(
            all="ignore"
        ):  # a diverging run has values that are not finite; its status says so
            mean = x.mean(axis=0)
            points = np.vstack([mean, x]) if self.at_nodes else mean[None]
            values, grads = self.problem.penalised(points, *self.engine.evaluate(points))
            apart = untracked(Running.parts(state)[0])
            return x, Snapshot(
                problem=self.problem,
                step=step,
                x=_read_only(x),
                x_mean=_read_only(mean),
                drift=None if apart is None else _read_only(self.engine.mean(apart)),
                values=_read_only(values),
                grads=_read_only(grads),
                gradients=gradients,
                rounds=rounds,
                bytes=sent,
                seconds=seconds,
                clock=self.clock(step),
            )

    def record(self, x: np.ndarray, seen: Snapshot) -> None:
        """Add a row about where the run is, from what `look` found there."""
        with np.errstate(all="ignore"):
            row = dict.fromkeys(self._columns, float("nan")) | measure(self.metrics, seen)
        self.last = Record([*self.last.rows, row], x, self.at.x_tilde, self.at.state)

    def diverged(self) -> bool:
        """Whether the run has diverged, by the loss of the last record."""
        return diverged(self.loss, self.last.rows[0]["loss"])

    def so_far(self) -> Trace:
        """The trace of all records, and where the run is beyond the last one, with the state of this process."""
        rows, x, x_tilde, state = self.last
        beyond = self.at if self.at.step > self.step else None
        return Trace(
            pd.DataFrame(rows), x, x_tilde, self.status, self.identity, self.message, self.compiling, state, self.own,
            beyond, self.total, self.engine.node,
        )  # fmt: skip

    def shown(self) -> Trace:
        """The trace so far, for a callback, which cannot change the arrays that the run continues from."""
        trace = self.so_far()
        x, x_tilde, state = jax.tree.map(_read_only, (trace.x, trace.x_tilde, trace.state))
        return replace(trace, x=x, x_tilde=x_tilde, state=state)


def _of_nodes(function: Callable[[Any], Any], state: Any) -> Any:
    """A function of the arrays of nodes in a state; numbers that nodes share and the memory of links stay."""
    own, memory = Running.parts(state)
    return Running.of(
        jax.tree.map(lambda leaf: function(leaf) if np.ndim(leaf) else leaf, own), memory
    )


def _read_only(a: Any) -> Any:
    """A view that a user's function cannot change: the run continues from these arrays."""
    if not isinstance(a, np.ndarray):
        return a
    view = a.view()
    view.flags.writeable = False
    return view
