"""The interface as it is, a line each: public names with their signatures, flags of commands, columns of tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import cases
from typer.testing import CliRunner

import peerdescent as peer
from peerdescent.cli.main import app

MODULES = (
    *(
        "clocks",
        "compressors",
        "datasets",
        "estimators",
        "faults",
        "figures",
        "fusions",
        "methods",
        "networks",
    ),
    *(
        "problems",
        "report",
        "runs",
        "schedules",
        "sklearn",
        "stop",
        "studies",
        "sweeps",
        "theory",
        "topology",
        "torch",
    ),
)
MEMBERS = {
    "Trace": "table x x_mean x_tilde status message steps metric summary save load",
    "Traces": "seeds of status table mean deviation band save load",
    "Comparison": "table differences verdict best how missing tuned to_reach protocol to_markdown to_latex save load",
    "Method": "name parameters replace",
    "Network": "n W lam gap neighbours degree faults",
    "sweeps.Tuned": "name method best score by table fresh how selector configurations",
    "problems.Problem": "nodes samples dimension loss grad local_grads",
    "datasets.Dataset": "partition",
    "torch.DecentralizedOptimizer": "step steps zero_grad state_dict load_state_dict add_param_group",
}
"""What users read of objects and call on them; other members are nobody's but ours."""
RESULTS = ("Trace", "Traces", "Comparison", "Tuned", "Problem", "Dataset")
"""Classes that users do not call."""
COMMANDS = ("run", "compare", "tune", "plot", "report", "network", "list", "reproduce", "theory")


def lines() -> list[str]:
    """All of it, sorted by kind and name."""
    found = list(_names("peer", peer))
    for module in MODULES:
        found += _names(f"peer.{module}", getattr(peer, module))
    return [*found, *_commands(), *_columns()]


def _names(place: str, module: Any) -> Iterator[str]:
    """The public functions and classes of a module, with what classes have."""
    for name in sorted(getattr(module, "__all__", ())):
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        yield f"{place}.{name}{'' if name in RESULTS else _signature(value)}"
        for member in MEMBERS.get(f"{place}.{name}".removeprefix("peer."), "").split():
            yield f"{place}.{name}.{member}{_signature(getattr(value, member, None))}"


def _signature(value: Any) -> str:
    """The parameters with their defaults; types are the type checker's, and addresses nobody's."""
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    shown = found.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return re.sub(r" at 0x[0-9a-f]+", "", str(shown))


def _commands() -> Iterator[str]:
    """The flags of every command, and of the commands in it."""
    for command in COMMANDS:
        for words in ([command], *([command, sub] for sub in _inside(command))):
            said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "400"}).output
            flags = sorted(set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", said)))
            yield f"{' '.join(words)}: {' '.join(flags)}"


def _inside(command: str) -> list[str]:
    said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400"}).output
    _, found, after = said.partition("Commands")
    return re.findall(r"^[│ ]+([a-z][\w-]*) ", after, re.MULTILINE) if found else []


def _columns() -> Iterator[str]:
    """The columns of every table."""
    options = {"steps": 4, "progress": False}
    problem, network = cases.problem(), cases.NETWORKS["ring"]
    trace = peer.run("dsgd", problem, network, **options)
    yield f"trace.table: {' '.join(trace.table)}"
    traces = peer.run("dsgd", problem, network, seed=[0, 1], **options)
    yield f"traces.table: {' '.join(traces.table)}"
    table = peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, problem, network, at=[2], **options)
    yield f"sweep: {' '.join(table)}"
    tuned = peer.tune("dsgd", problem, network, grid={"alpha": [0.1, 0.2]}, fresh=[0, 1], **options)
    yield f"tuned.table: {' '.join(tuned.table)}"
    yield f"tuned.fresh: {' '.join(tuned.fresh)}"
    found = peer.compare(
        ["dsgd[alpha=0.1,batch=1]", "d2[alpha=0.1,batch=1]"],
        problem,
        network,
        seed=[0, 1],
        **options,
    )
    yield f"comparison.table: {' '.join(found.table)}"
    yield f"comparison.differences: {' '.join(found.differences)}"
    yield f"comparison.to_reach: {' '.join(found.to_reach(loss=0.69))}"
