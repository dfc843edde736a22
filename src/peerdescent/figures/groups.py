"""The runs that a figure is given, in whatever form: one line for each group of traces, by its label."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from peerdescent.errors import require
from peerdescent.runs.trace import Trace
from peerdescent.runs.traces import Traces

Runs = (
    Trace
    | Sequence[Trace | Sequence[Trace] | Mapping[str, Trace | Sequence[Trace]]]
    | Mapping[str, Trace | Sequence[Trace]]
)
"""One `Trace`, the `Traces` of several seeds, a `Comparison`, a list of these, or {label: traces}."""
REMEDY = "give a Trace, Traces, a Comparison, a list of these, or {label: traces}"


def grouped(runs: Runs) -> dict[str, Sequence[Trace]]:
    """The traces of each line, by its label.

    Traces without a label go by the name of their method; where different methods share it, with
    their hyperparameters. Labels that are still equal are numbered. Several traces of one line
    differ in seed only.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> list(grouped(trace)), list(grouped([trace, trace])), list(grouped([trace, {"mine": trace}]))
    (['dsgd'], ['dsgd 1', 'dsgd 2'], ['dsgd', 'mine'])
    """
    found = list(_pairs(runs))
    require(len(found) > 0, f"no traces to draw: {REMEDY}")
    methods = [traces[0].identity.method for _, traces in found]
    heads = [
        label or method.partition("[")[0] for (label, _), method in zip(found, methods, strict=True)
    ]
    sharing = {
        head: {methods[k] for k, other in enumerate(heads) if other == head} for head in heads
    }
    labels = [
        label or (head if len(sharing[head]) == 1 else method)
        for (label, _), head, method in zip(found, heads, methods, strict=True)
    ]
    groups: dict[str, Sequence[Trace]] = {}
    for name, (_, traces) in zip(labels, found, strict=True):
        numbered = (f"{name} {k}" for k in itertools.count(1))
        free = (
            name
            if labels.count(name) == 1
            else next(n for n in numbered if n not in groups and n not in labels)
        )
        groups[free] = traces
    return groups


def _pairs(runs: Any) -> Iterator[tuple[str, Sequence[Trace]]]:
    """The labels, empty where there is none, and the traces."""
    if isinstance(runs, Mapping):
        for label, traces in runs.items():
            own = [traces] if isinstance(traces, Trace) else traces
            require(
                isinstance(own, Sequence) and not isinstance(own, str),
                _refusal(f"{label!r} is", own),
            )
            require(len(own) > 0, f"{label!r} has no traces: give at least one")
            for trace in own:
                require(isinstance(trace, Trace), _refusal(f"{label!r} has one", trace))
            yield (
                str(label),
                own if len(own) == 1 or isinstance(own, Traces) else _over_seeds(label, own),
            )
    elif isinstance(runs, Trace):
        yield "", [runs]
    elif isinstance(runs, Traces):
        yield "", runs
    else:
        require(
            isinstance(runs, Sequence) and not isinstance(runs, str),
            _refusal("the runs to draw are", runs),
        )
        for one in runs:
            require(
                isinstance(one, Trace | Traces | Mapping), _refusal("a list of runs has one", one)
            )
            yield from _pairs(one)


def _over_seeds(label: object, traces: Sequence[Trace]) -> Traces:
    """The traces of one line, which may differ in seed only, and in metrics that not all have."""
    common = set.intersection(*({one.name for one in trace.metrics} for trace in traces))
    kept = [
        replace(trace, metrics=tuple(one for one in trace.metrics if one.name in common))
        for trace in traces
    ]
    try:
        return Traces(kept)
    except ValueError as error:
        raise ValueError(f"{label!r}: {error}") from None


def _refusal(where: str, what: object) -> str:
    return f"{where} of type {type(what).__name__}, which is no trace of peer.run: {REMEDY}"
