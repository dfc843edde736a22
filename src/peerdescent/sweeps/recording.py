"""Curves of configurations: those of a sweep that matter, run once more with all records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.labels import slugs
from peerdescent.runs.loop import run
from peerdescent.runs.trace import Status
from peerdescent.runs.traces import Traces
from peerdescent.sweeps.grids import make, short

FOLDER = "curves"
"""The folder, in that of a sweep, with the runs of curves."""


class Curve(NamedTuple):
    """A configuration to run with records, and the folder of the sweep that it is from, if that has one."""

    label: str
    values: Mapping[str, Any]
    problem: Problem
    network: Network
    folder: Path | None


def labelled(values: Mapping[str, Any], all_of: Iterable[Mapping[str, Any]]) -> str:
    """The name of a curve: those of its values in which configurations differ, or all of them.

    Of problems or networks of one name, it has what tells them apart.

    >>> labelled({"alpha": 16.0, "batch": 1}, [{"alpha": 4.0, "batch": 1}, {"alpha": 16.0, "batch": 1}])
    'alpha = 16'
    >>> labelled({"problem": "svm(a9a) (rows 9)"}, [{"problem": f"svm(a9a) (rows {rows})"} for rows in (5, 9)])
    'rows 9'
    """
    others = list(all_of)
    varied = [name for name in values if len({repr(other[name]) for other in others}) > 1] or list(
        values
    )
    return (
        ", ".join(_part(name, values[name], [other[name] for other in others]) for name in varied)
        or "defaults"
    )


def _part(name: str, value: Any, others: Sequence[Any]) -> str:
    """A value of a label: without its name where all are that name and, in brackets, what tells them apart."""
    split = [re.fullmatch(r"(.*?) \((.*)\)", str(one)) for one in (value, *others)]
    if split[0] and len(others) > 1 and len({one and one[1] for one in split}) == 1:
        return split[0][2]
    return f"{name} = {_shown(value)}"


def _shown(value: Any) -> str:
    return (
        short(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )


def record(
    curves: Sequence[Curve], build: Callable[..., Method], seeds: Sequence[int], **options: Any
) -> dict[str, Traces]:
    """Run these configurations with each seed; after Ctrl-C, those so far."""
    found: dict[str, Traces] = {}
    for one in curves:
        home = (
            None
            if one.folder is None
            else one.folder / FOLDER / slugs([labelled(one.values, [])])[0]
        )
        try:
            traces = run(
                make(build, one.values),
                one.problem,
                one.network,
                seed=list(seeds),
                checkpoint=home,
                **options,
            )
        except KeyboardInterrupt:
            break
        if home is not None:
            traces.save(home)
        found[one.label] = traces
        if any(trace.status == Status.interrupted for trace in traces):
            break
    return found
