"""The course of runs that advance together, from one record to the next: those of some seeds, or of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from peerdescent.engines.crew import Crew
from peerdescent.errors import StreamEnded
from peerdescent.runs.pace import Pace
from peerdescent.runs.recorder import Recorder
from peerdescent.runs.trace import Position, Status, Trace
from peerdescent.runs.watch import Watch


class Course:
    """Runs of a crew, each with a recorder. All are at the same step until they end, each by itself."""

    def __init__(
        self, crew: Crew, recorders: Sequence[Recorder], watch: Watch, show: Callable[[], None]
    ) -> None:
        self.crew, self.recorders, self.watch, self.show = crew, recorders, watch, show
        for place, recorder in enumerate(recorders):
            recorder.engine = crew.engine(place)

    @property
    def running(self) -> list[int]:
        """The places of those that have not ended."""
        return [place for place, recorder in enumerate(self.recorders) if not recorder.is_over]

    @property
    def step(self) -> int:
        """Where those are that have not ended."""
        return self.recorders[self.running[0]].at.step

    def begin(self, known: Sequence[Trace | None]) -> None:
        """Compile everything, and record x_0 or go back to where each run was."""
        first = self.recorders[0]
        clock = time.perf_counter()
        first.engine.warm_up(first.x0, first.points)
        for recorder in self.recorders:
            recorder.compiling = time.perf_counter() - clock
        if any(trace is not None and trace.end.state is not None for trace in known):
            like = self.crew.hold(self.crew.start(first.x0), 0)
        for recorder, trace in zip(self.recorders, known, strict=True):
            if trace is not None:
                recorder.restore(trace, like if trace.end.state is not None else None)
                self.watch.decide(recorder)
            else:
                recorder.begin()
        self.record([place for place, trace in enumerate(known) if trace is None])
        self.finish()

    def follow(self, grid: Sequence[int]) -> None:
        """Run to the end, recording at the steps of `grid`, and write checkpoints on the way if there are folders."""
        first = self.recorders[0]
        pace = Pace(first.folder, first.engine.gather)
        for until in grid:
            if not self.running:
                return
            due = [place for place in self.running if self.recorders[place].step < until]
            if until < self.step or not due:
                continue
            moves = {place: self.recorders[place].next_moves(until) for place in due}
            while self.step < until:
                self.advance(pace.next(self.step, until), moves)
                if self.step < until and pace.is_due():
                    pace.save(lambda _: self.save())
            self.record(due)
            self.finish()
            if self.running and pace.is_due(recorded=True):
                pace.save(lambda _: self.save())

    def advance(self, until: int, moves: dict[int, list[tuple[int, int]]]) -> None:
        """Run to a later step; a move is a (step, node) whose iterate x_tilde becomes, if it is on the way.

        Where samples end before, the run is at the last step that had any, and the error is raised.
        """
        crew, running, step = self.crew, self.running, self.step
        passed = [
            (place, *move)
            for place, some in moves.items()
            for move in some
            if step < move[0] <= until
        ]
        x_tilde = {place: self.recorders[place].at.x_tilde for place in running}
        before = list(crew.seconds)
        if step == 0:
            states, step = crew.start(self.recorders[0].x0), 1
        else:
            states = crew.scatter([recorder.at.state for recorder in self.recorders])
        ended = None
        for stop in sorted({until, *(at for _, at, _ in passed)}):
            try:
                states, step = crew.advance(states, step, stop, running), stop
            except StreamEnded as error:
                ended, states, step = (
                    error,
                    [error.state],
                    error.step,
                )  # a stream is read by one seed alone
                break
            for place, at, node in passed:
                if at == stop:
                    x_tilde[place] = (
                        self.recorders[place].whole(crew.iterates(states, place))[node].copy()
                    )
        for place in running:
            recorder = self.recorders[place]
            seconds = recorder.at.seconds + crew.seconds[place] - before[place]
            recorder.at = Position(step, crew.hold(states, place), x_tilde[place], seconds)
        if ended is not None:
            raise ended

    def record(self, due: Sequence[int]) -> None:
        """Add a row to each, and see which end. An error in a user's function leaves a checkpoint of all."""
        recorders = [self.recorders[place] for place in due]
        found = self.crew.each(Recorder.look, recorders)
        try:
            for recorder, seen in zip(recorders, found, strict=True):
                recorder.record(*seen)
                self.watch.decide(recorder)
            self.show()
            for recorder in recorders:
                self.watch.call(recorder)
        except Exception:
            self.save()
            raise

    def cut(self, message: str) -> None:
        """End where samples have ended, after a last record."""
        self.record(
            [
                place
                for place in self.running
                if self.recorders[place].step < self.recorders[place].at.step
            ]
        )
        self.end(Status.interrupted, message)

    def end(self, status: Status, message: str) -> None:
        """End those that have not ended."""
        for place in self.running:
            self.recorders[place].end(status, message)
        self.finish()

    def finish(self) -> None:
        """Finish those that have ended since the last time."""
        for recorder in self.recorders:
            if recorder.is_over and recorder.result is None:
                recorder.finish()

    def save(self) -> None:
        """Write checkpoints, of those that have ended as well; what is there already is not written again."""
        for recorder in self.recorders:
            recorder.save()
