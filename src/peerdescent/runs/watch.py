"""What is done at records besides recording: the decision whether a run ends there, and the user's callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from peerdescent.engines.meeting import told
from peerdescent.errors import PeerLost, require
from peerdescent.runs.recorder import Recorder
from peerdescent.runs.stop import Asked, Rule, first_reason
from peerdescent.runs.trace import Status, Trace


class Watch:
    """Ends runs, and calls back.

    Processes have different clocks, and a user's functions may look at anything. So process 0 calls
    them, and tells the others what it has decided.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        callback: Callable[[Trace], Any] | None,
        process: int,
        gather: Callable[[Any], Any],
    ) -> None:
        require(
            callback is None or callable(callback),
            f"callback is a {type(callback).__name__}: give a function of the trace so far",
        )
        self.rules, self.callback, self.process, self.gather = rules, callback, process, gather

    def check(self, trace: Trace) -> None:
        """Refuse an earlier run in whose records a rule holds before the last one, where it would have ended.

        Functions are not asked about a run that was interrupted. They may look at a clock, and have
        been asked.
        """
        if not self.rules:
            return

        def earlier() -> str:
            cut = trace.status == Status.interrupted
            asked = [rule for rule in self.rules if not (cut and isinstance(rule, Asked))]
            rows: Any = trace.table.to_dict("records")
            return next(
                (reason for k in range(1, len(rows)) if (reason := first_reason(asked, rows[:k]))),
                "",
            )

        reason = self._by_first(earlier)
        require(
            not reason,
            f"the earlier run with seed {trace.identity.seed} has {trace.steps} steps, and would have ended before: "
            f"{reason}; start anew, in another folder, or give the rules that it had",
        )

    def is_over(self, trace: Trace, total: int) -> bool:
        """Whether nothing is left to run of a trace. One that was stopped goes on unless a rule stops it again."""
        if trace.status != Status.stopped or trace.position is not None or trace.node is not None:
            return trace.is_over(total)
        rows: Any = trace.table.to_dict("records")
        return trace.is_over(total) or bool(self._by_first(lambda: first_reason(self.rules, rows)))

    def decide(self, recorder: Recorder) -> None:
        """End a run, if it ends at its last record. A rule is asked at the last step, too."""
        if (
            recorder.step > 0 and recorder.diverged()
        ):  # after x_0, so that `debug` can say where it comes from
            recorder.end(Status.diverged, f"loss {recorder.loss:g} at step {recorder.step}")
            return
        rows = (
            list(map(MappingProxyType, recorder.last.rows)) if self.rules else []
        )  # which no rule can change
        reason = self._by_first(lambda: first_reason(self.rules, rows)) if self.rules else ""
        if reason:
            recorder.end(Status.stopped, reason)
        elif recorder.step == recorder.total:
            recorder.end(Status.done)

    def call(self, recorder: Recorder) -> None:
        """Call back, after a record."""
        callback = self.callback
        if callback is None:
            return

        def shown() -> str:
            try:
                callback(recorder.shown())
            except Exception as error:
                error.add_note(
                    f"in the callback, at step {recorder.step:,}, with seed {recorder.seed}"
                )
                error.add_note(
                    "the run so far is the attribute `trace` of this error; run(..., resume=...) continues it"
                )
                raise
            return ""

        self._by_first(shown)

    def _by_first(self, act: Callable[[], str]) -> str:
        """What `act` returns in process 0, in every process. An error in it ends all of them."""
        found, failure = "", None
        if not self.process:
            try:
                found = f"+{act()}"
            except Exception as error:
                found, failure = f"-{type(error).__name__}: {error}", error
        said = told(found, self.gather)
        if failure is not None:
            raise failure
        if said.startswith("-"):
            raise PeerLost(f"process 0 has ended, by an error: {said[1:]}")
        return said[1:]
