"""The figure of a study of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peerdescent.figures.sheets import sheet
from peerdescent.figures.style import finish, line_style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def latencies(table: pd.DataFrame, title: str, ax: Any = None) -> Figure:
    """Simulated seconds to a target against the latency of links; one line for each `line` of the table."""
    place = sheet(ax, 1, (8.0, 4.8), pads=(0.04, 0.04))
    (axes,) = place.axes
    for index, (label, own) in enumerate(table.groupby("line", sort=False)):
        axes.loglog(
            own["latency"], own["seconds"], label=str(label), markersize=5, **line_style(index)
        )
    finish(axes, "latency of a link in seconds", "simulated seconds to the target")
    place.legend(*axes.get_legend_handles_labels(), "right upper")
    place.title(title)
    return place.figure
