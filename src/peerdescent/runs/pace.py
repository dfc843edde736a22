"""When a run writes checkpoints: often, so that a kill loses little, but not so often that they cost much time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LOST = 2.0
"""Seconds of work that a kill may lose, if checkpoints are cheap enough."""
SHARE = 0.015
"""The most that checkpoints on the way may cost, as a share of the time so far. With the one at the end it is less than
2 % of a run of three seconds."""
GUESS = 0.01
"""The assumed time of the first checkpoint, in seconds."""


class Pace:
    """Divides the steps between two records, and decides when to save.

    Processes have different clocks, so they agree on decisions through `gather`. Without a folder
    nothing is saved.
    """

    def __init__(self, folder: Path | None, gather: Callable[[Any], Any]) -> None:
        self.folder, self.gather = folder, gather
        self.begun = self.saved = self.looked = time.perf_counter()
        self.spent, self.cost, self.steps = 0.0, GUESS, 1

    def next(self, step: int, until: int) -> int:
        """The step at which to look at the clock again: `until`, or an earlier one if that is far away."""
        if self.folder is None:
            return until
        now = time.perf_counter()
        taken, self.looked = now - self.looked, now
        # As many steps as take half of LOST, by the speed of the last ones; at most twice as many
        # as then.
        wanted = self.steps * 2 if taken < LOST / 4 else max(1, int(self.steps * LOST / 2 / taken))
        self.steps = min(self._agreed(wanted, min), until - step)
        return step + self.steps

    def is_due(self, recorded: bool = False) -> bool:
        """Whether to save now: at a record, or after `LOST` seconds, and only if checkpoints stay within `SHARE`."""
        if self.folder is None:
            return False
        now = time.perf_counter()
        affordable = self.spent + self.cost <= (now - self.begun) * SHARE
        return bool(self._agreed(affordable and (recorded or now - self.saved >= LOST), max))

    def save(self, write: Callable[[Path], Any]) -> None:
        """Write a checkpoint, by a function of the folder."""
        assert self.folder is not None
        clock = time.perf_counter()
        write(self.folder)
        self.saved = time.perf_counter()
        self.cost = self.saved - clock
        self.spent += self.cost

    def _agreed(self, own: int, which: Callable[[Any], Any]) -> int:
        return int(which(np.asarray(self.gather(np.array([int(own)]))).ravel().tolist()))
