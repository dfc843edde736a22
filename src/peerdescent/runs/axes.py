"""The names of the axes of curves, apart from the metrics so that the help of the command line loads nothing else."""

from __future__ import annotations

from typing import Literal

Across = Literal["epoch", "rounds", "bytes", "seconds", "clock", "step"]
"""The columns for the horizontal axis."""
UP = ("loss", "gap", "grad_norm", "stationarity", "consensus")
"""The columns for the vertical axis, besides a user's own metrics."""
