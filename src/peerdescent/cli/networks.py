"""The command `network`, and the check whether a method may run on a network."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment, figures, methods
from peerdescent.cli import completion, console
from peerdescent.cli.options import with_options
from peerdescent.errors import require_memory

if TYPE_CHECKING:
    from rich.table import Table

    from peerdescent.methods import Method
    from peerdescent.networks import Network

app = typer.Typer()


@app.command(
    "network",
    epilog="""[bold]Examples[/bold]
peerdescent network ring --nodes 20
peerdescent network torus --nodes 64 --out torus.png
peerdescent network star --weights metropolis --matrix > W.csv
peerdescent network exponential --fault drop=0.1 --fault inactive=0.2
peerdescent network random-matching --rounds 3
peerdescent network torus --format json

Exit status: 0, 2 bad input.""",
)
@with_options("nodes", "weights", "fault", "rounds", "accelerate", "format")
def network_command(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="See `list topologies`.",
            show_default=False,
            autocompletion=completion.topologies,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.png", help="Draw it, as .png, .pdf or .svg."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is no such figure.", metavar="")
    ] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print W, as CSV or JSON.", metavar="")
    ] = False,
    *,
    given: dict[str, Any],
) -> int:
    """Show what is known about a network: lambda, degrees, which methods it allows."""
    options = experiment.settle({}, given)
    assert options.nodes is not None
    if matrix:
        require_memory(
            f"{options.nodes:,} x {options.nodes:,} weights as text",
            100 * options.nodes**2,
            "use fewer nodes",
        )
    network = experiment.network_of(replace(options, topology=topology))
    if out:
        figures.save(figures.drawing(network), out, force)
    if matrix:
        import numpy as np

        if network.graph is not None:
            console.say("this is the mean of many draws; every round has its own")
        elif network.faults:
            console.say("this is the ideal network; faults change it in every round")

        text = io.StringIO()
        for W in network.matrices if options.format != "json" else ():
            np.savetxt(text, W.toarray(), fmt="%.17g", delimiter=",")
        if options.format == "json":
            text.write(json.dumps([W.toarray().tolist() for W in network.matrices]) + "\n")
        print(text.getvalue(), end="", flush=True)
    elif options.format == "table":
        console.make().print(_facts_table(network), "", _permits_table(_permits(network)), sep="\n")
    elif options.format == "json":
        methods_here = {
            name: {"runs": not reason, "reason": reason}
            for name, reason in _permits(network).items()
        }
        print(json.dumps({**_facts(network), "methods": methods_here}, indent=2))
    else:
        console.records(
            "csv",
            [_facts(network) | {name: not reason for name, reason in _permits(network).items()}],
        )
    return 0


def check_network(method: Method, network: Network) -> None:
    """Refuse a method that cannot run on a network; the message has the reason and a remedy."""
    from peerdescent.runs import checks

    checks.check_network(method, network)


def _facts(network: Network) -> dict[str, Any]:
    """What is known about a network, as plain data; None for what it does not have."""
    import numpy as np

    degrees, interval = np.atleast_2d(network.degree), network.lam_interval
    return {
        "network": network.name,
        "nodes": network.n,
        "lambda": float(network.lam),
        "lambda_interval": None if interval is None else [float(end) for end in interval],
        "spectral_gap": float(network.gap),
        "weights": network.rule,
        "degree_min": float(degrees.min()),
        "degree_mean": float(degrees.mean()),
        "degree_max": float(degrees.max()),
        "directed": bool(network.is_directed),
        "period": network.period,
        "symmetric": bool(network.is_symmetric),
        "random": network.graph is not None,
        "rounds": network.rounds,
        "accelerated": bool(network.momentum),
        "faults": list(map(str, network.faults)),
        "smallest_eigenvalue": float(network.smallest_eigenvalue)
        if network.is_symmetric and network.graph is None
        else None,
    }


def _facts_table(network: Network) -> Table:
    facts, yes = _facts(network), {True: "yes", False: "no"}
    interval, least = facts["lambda_interval"], facts["smallest_eigenvalue"]
    rows = {
        "nodes": f"{facts['nodes']:,}",
        "lambda": _rounded(facts["lambda"])
        + (
            ""
            if interval is None
            else f", estimated: {_rounded(interval[0])} to {_rounded(interval[1])}"
        ),
        "spectral gap": _rounded(facts["spectral_gap"]),
        "weights": facts["weights"],
        "degree min / mean / max": f"{facts['degree_min']:g} / {facts['degree_mean']:.4g} / {facts['degree_max']:g}",
        "directed": yes[facts["directed"]],
        "period": f"{facts['period']}",
        "symmetric W": yes[facts["symmetric"]],
    }
    if facts["random"]:
        rows["graph"] = "drawn anew in every round"
    if facts["rounds"] > 1:
        rows["rounds a mix"] = f"{facts['rounds']}{', accelerated' if facts['accelerated'] else ''}"
    if facts["faults"]:
        rows["faults"] = ", ".join(facts["faults"])
        rows["lambda is"] = "of E[W'W] on links that fail; noise and compression are not in it"
    if least is not None:
        rows["smallest eigenvalue"] = _rounded(least)
    shown = console.table(facts["network"], "")
    for name, value in rows.items():
        shown.add_row(name, value)
    return shown


def _permits(network: Network) -> dict[str, str]:
    """For each named method, why it may not run on a network, or an empty text."""
    reasons = {}
    for name, entry in methods.METHODS.items():
        try:
            check_network(entry.build(), network)
            reasons[name] = ""
        except ValueError as error:
            reasons[name] = str(error).removeprefix(f"{name} ").partition(": ")[0]
    return reasons


def _permits_table(reasons: dict[str, str]) -> Table:
    """A table of the named methods that may run on a network, and why the others may not."""
    shown = console.table("method", "runs here")
    for name, reason in reasons.items():
        shown.add_row(name, f"no, it {reason}" if reason else "yes")
    return shown


def _rounded(value: float) -> str:
    return f"{value if abs(value) > 1e-12 else 0:.6g}"  # smaller values are rounded zeros
