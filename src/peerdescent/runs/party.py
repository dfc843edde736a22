"""All seeds of one call of `run`: what they show, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from peerdescent.runs.progress import Progress
from peerdescent.runs.recorder import Record, Recorder
from peerdescent.runs.trace import Status, Trace


class Party:
    """The runs by seed: their recorders, what was known of them before, and those of it that had nothing left to do."""

    def __init__(
        self,
        recorders: Mapping[int, Recorder],
        known: Mapping[int, Trace | None],
        over: Mapping[int, Trace],
        bar: Progress,
    ) -> None:
        self.recorders, self.known, self.over, self.bar = recorders, known, over, bar

    @property
    def begun(self) -> list[Recorder]:
        """The recorders of runs that have a record."""
        return [recorder for recorder in self.recorders.values() if recorder.last.rows]

    def show(self) -> None:
        """Show all runs as one: the sum of their steps and the mean of their last losses. Ended runs count as whole."""
        alone, losses, steps = len(self.recorders) == 1, [], 0
        for recorder in self.begun:
            losses.append(recorder.loss)
            steps += recorder.step if alone or not recorder.is_over else recorder.total
        for seed, trace in self.over.items():
            losses.append(float(trace.table["loss"].iloc[-1]))
            steps += trace.steps if alone else self.recorders[seed].total
        if losses:
            with np.errstate(all="ignore"):  # a run that diverged has no finite loss
                self.bar.update(steps, float(np.mean(losses)))

    def traces(self) -> list[Trace]:
        """The traces of all seeds, as far as they are."""
        return [
            self.over.get(seed) or self._trace(seed, recorder)
            for seed, recorder in self.recorders.items()
        ]

    def _trace(self, seed: int, recorder: Recorder) -> Trace:
        if not recorder.last.rows:
            before = self.known[seed]
            if before is not None:
                return replace(before, status=Status.interrupted, message="", asked=recorder.total)
            # It waited when another was interrupted. At x_0 all seeds have the same row.
            recorder.begin()
            others: list[Any] = [other.last.rows for other in self.begun]
            others += [trace.table.to_dict("records") for trace in self.over.values()]
            recorder.last = Record([dict(others[0][0])], recorder.x0, recorder.at.x_tilde, None)
        return recorder.result or recorder.so_far()
