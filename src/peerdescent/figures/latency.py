"""The figure of a study of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from peerdescent.figures.style import finish, line_style

if TYPE_CHECKING:
    import pandas as pd


def latencies(table: pd.DataFrame, title: str) -> Figure:
    """Simulated seconds to a target against the latency of links; one line for each `line` of the table."""
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    for index, (label, own) in enumerate(table.groupby("line", sort=False)):
        axes.loglog(own["latency"], own["seconds"], label=str(label), markersize=5, **line_style(index))
    finish(axes, "latency of a link in seconds", "simulated seconds to the target")
    figure.legend(loc="outside right upper", frameon=False)
    figure.suptitle(title, fontsize=12)
    return figure
