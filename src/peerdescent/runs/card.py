"""What a notebook shows of runs: what they were, curves of what was recorded, and the values at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from peerdescent import display
from peerdescent.runs.bands import band, quantities
from peerdescent.runs.cells import over_seeds
from peerdescent.runs.labels import counted
from peerdescent.runs.metrics import METRICS, Metric

if TYPE_CHECKING:
    from peerdescent.runs.trace import Trace

UP = ("loss", "grad_norm", "consensus")
OWN = 3
"""The most of the user's own metrics that have a chart."""
COSTS = ("gradients", "rounds", "bytes", "clock")


def html(kind: str, traces: Sequence[Trace], ended: bool = True) -> str:
    """The card of one trace, or of several that differ in seed; unless all `ended`, without means at the end."""
    first = traces[0]
    kept = [trace for trace in traces if trace.status != "diverged"]
    metrics = quantities(first.table.columns, first.metrics)
    up = [*(metrics[name] for name in UP if name in first.table), *first.metrics[:OWN]]
    costs = [
        first.metric(name)
        for name in COSTS
        if name in first.table and first.table[name].notna().any()
    ]
    counts = Counter(f"{trace.status}, {counted(trace.steps, 'step')}" for trace in traces)
    several = len(traces) > 1
    about = {
        "problem": first.identity.problem,
        "network": first.identity.network,
        "seeds" if several else "seed": ", ".join(str(trace.identity.seed) for trace in traces),
        "status": "; ".join(
            f"{count} {ended}" if several else ended for ended, count in counts.items()
        ),
        "message": "; ".join(dict.fromkeys(trace.message for trace in traces if trace.message)),
        "curves": _which(len(kept), len(traces)),
    }
    last = traces if ended else ()
    ends = [
        over_seeds(one, [float(trace.table[one.name].iloc[-1]) for trace in last])
        for one in (*up, *costs)
    ]
    names = [one.title for one in (*up, *costs)]
    title = f"{kind}: {first.identity.method}"
    return display.card(
        title,
        display.facts(about),
        display.row(*charts({"": traces}, up)),
        display.table(names, [ends]),
    )


def charts(groups: Mapping[str, Sequence[Trace]], metrics: Sequence[Metric]) -> list[Element]:
    """A chart of each metric, with a line for each group of traces that differ in seed.

    A line is the mean, with the band of figures. What diverged is in no mean; if all of a group
    did, its line is that of the first.
    """
    kept = {
        name: [t.table for t in own if t.status != "diverged"] or [own[0].table]
        for name, own in groups.items()
    }
    every = [table for tables in kept.values() for table in tables]
    across = METRICS["epoch" if all(table["epoch"].notna().all() for table in every) else "step"]
    found = []
    for one in metrics:
        bands = {name: band(tables, across.name, one.name) for name, tables in kept.items()}
        curves = [
            display.Curve(each.x, each.mean, name, *each.edges(one.log))
            for name, each in bands.items()
        ]
        found.append(display.chart(curves, across.title, one.title, one.log))
    return found


def _which(kept: int, count: int) -> str | None:
    """Of which runs the curves are, if not of all."""
    if kept == count or count == 1:
        return None
    return f"means of the {kept} that did not diverge" if kept else "of the first; all diverged"
