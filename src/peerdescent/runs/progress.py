"""Progress reports: a bar on a terminal or in a notebook, and elsewhere a line now and then, if asked for."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta
from typing import Any, Protocol

from rich import progress as bars
from rich.console import Console

PATIENCE, PAUSE = 2.0, 0.5
"""Seconds before a notebook's bar is drawn, so that a quick run leaves no empty place, and between two drawings."""
EVERY = 10.0
"""Seconds between plain lines."""


class Progress(Protocol):
    """Receives the progress of a run."""

    def begin(self, label: str, total: int) -> None:
        """A run of `total` steps begins."""

    def update(self, step: int, loss: float) -> None:
        """The run has reached `step`, where the loss is `loss`."""

    def end(self) -> None:
        """The run has ended, in whatever way."""


class Silent:
    """Shows no progress."""

    def begin(self, label: str, total: int) -> None:
        """Nothing."""

    def update(self, step: int, loss: float) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Bar:
    """A bar on standard error with the loss and the remaining time. It is removed when the run ends."""

    _bar: bars.Progress | None = None
    _task: bars.TaskID

    def begin(self, label: str, total: int) -> None:
        """Draw the bar, or give one that is there another label."""
        label = label.replace("[", r"\[")
        if self._bar is not None:
            self._bar.update(self._task, description=label, total=total)
            return
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TextColumn("loss {task.fields[loss]}"),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=total, loss="...")
        self._bar.start()

    def update(self, step: int, loss: float) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._bar.update(self._task, completed=step, loss=f"{loss:.6g}" if loss == loss else "...")

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None


class Lines:
    """A plain line on standard error every ten seconds, for files and pipes."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY

    def begin(self, label: str, total: int) -> None:
        """Remember what runs."""
        self._label, self._total = label, total

    def update(self, step: int, loss: float) -> None:
        """Print a line, if none was printed for a while."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY
            known = f", loss {loss:.6g}" if loss == loss else ""
            print(
                f"{self._label}: {step / max(1, self._total):.0%}{known}",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        """Nothing."""


class Share:
    """The progress of one part of a whole, from one fraction of it to another, with the smallest loss so far.

    The whole is ended by whoever has it.
    """

    def __init__(self, progress: Any, first: float, last: float, label: str = "") -> None:
        self._bar, self._first, self._last, self._label = choose(progress), first, last, label
        self._best = math.nan

    def begin(self, label: str, total: int) -> None:
        """The part begins."""
        self._total = max(1, total)
        self._bar.begin(self._label or label, PARTS)
        self._bar.update(round(PARTS * self._first), self._best)

    def update(self, step: int, loss: float) -> None:
        """The part has reached `step`."""
        if loss == loss and not loss >= self._best:
            self._best = loss
        self._bar.update(
            round(PARTS * (self._first + (self._last - self._first) * step / self._total)),
            self._best,
        )

    def end(self) -> None:
        """Nothing: other parts follow."""


PARTS = 1000
"""The steps of the progress of a whole."""


class NotebookBar:
    """The same in the output of a notebook's cell, drawn anew in one place."""

    def begin(self, label: str, total: int) -> None:
        """Wait for the first update."""
        self._label, self._total, self._began = label, total, time.monotonic()
        self._first: tuple[float, int] | None = None
        self._shown: Any = getattr(self, "_shown", None)  # one place for all parts of a whole

    def update(self, step: int, loss: float) -> None:
        """Draw the bar, unless that was done just now."""
        now = time.monotonic()
        if self._first is None:  # until here the program was compiled
            self._first, self._due = (now, step), now + PATIENCE
        if now < self._due:
            return
        self._due = now + PAUSE
        pace = (now - self._first[0]) / max(1, step - self._first[1])
        passed, left = (
            timedelta(seconds=round(seconds))
            for seconds in (now - self._began, pace * (self._total - step))
        )
        known = f"{loss:.6g}" if loss == loss else "..."
        words = f"{step / max(1, self._total):.0%}  loss {known}  {passed}  left {left}"
        self._draw(f"{self._label}  {words}")

    def _draw(self, text: str) -> None:
        content = {"text/plain": text}
        if self._shown is None:
            # IPython is loaded wherever there is a notebook, and elsewhere it need not be
            # installed.
            self._shown = sys.modules["IPython"].display.display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)

    def end(self) -> None:
        """Remove the bar."""
        if self._shown is not None:
            self._draw("")


def choose(progress: Any) -> Progress:
    """From the argument `progress`: True for a bar, or for plain lines where there is no terminal; False; an object.

    With None there is a bar on a terminal and in a notebook, and nothing elsewhere.
    """
    notebook, terminal = Console().is_jupyter, sys.stderr.isatty()
    if progress is None:
        progress = notebook or terminal
    if isinstance(progress, bool):
        return (
            Silent()
            if not progress
            else NotebookBar()
            if notebook
            else Bar()
            if terminal
            else Lines()
        )
    chosen: Progress = progress
    return chosen
