"""Progress as an object with a null default: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from rich import progress as bars
from rich.console import Console


class Progress(Protocol):
    """What `run` tells while it works."""

    def begin(self, label: str, total: int) -> None:
        """A run of `total` steps starts."""

    def update(self, step: int, loss: float) -> None:
        """The run has reached `step`, where the loss is `loss`."""

    def end(self) -> None:
        """The run is over, however it ended."""


class Silent:
    """Says nothing."""

    def begin(self, label: str, total: int) -> None:
        """Nothing."""

    def update(self, step: int, loss: float) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Bar:
    """A bar with the loss and the time left, on standard error, gone when the run is over."""

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
    """True for a bar, False for silence, None for a bar on a terminal only; or any object of your own."""
    if progress is None:
        progress = sys.stderr.isatty()
    if isinstance(progress, bool):
        return Bar() if progress else Silent()
    chosen: Progress = progress
    return chosen
