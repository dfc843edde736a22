"""Progress reports: a bar on a terminal, and by default nothing elsewhere."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from rich import progress as bars
from rich.console import Console


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

    def begin(self, label: str, total: int) -> None:
        """Draw the bar."""
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
        self._task = self._bar.add_task(label.replace("[", r"\["), total=total, loss="...")
        self._bar.start()

    def update(self, step: int, loss: float) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step, loss=f"{loss:.6g}" if loss == loss else "...")

    def end(self) -> None:
        """Remove the bar."""
        self._bar.stop()


def choose(progress: Any) -> Progress:
    """From the argument `progress`: True for a bar, False for none, None for a bar on a terminal, or an object."""
    if progress is None:
        progress = sys.stderr.isatty()
    if isinstance(progress, bool):
        return Bar() if progress else Silent()
    chosen: Progress = progress
    return chosen
