"""The command `network`, and the check whether a method may run on a network."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment, figures, methods
from peerdescent.cli import console
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

Exit status: 0, 2 bad input.""",
)
@with_options("nodes", "weights", "fault", "rounds", "accelerate")
def network_command(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="See `list topologies`.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.png", help="Draw it, as .png, .pdf or .svg.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no such figure.", metavar="")] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Print W as CSV instead.", metavar="")] = False,
    *,
    given: dict[str, Any],
) -> int:
    """Show what is known about a network: lambda, degrees, which methods it allows."""
    options = experiment.settle({}, given)
    if matrix:
        require_memory(
            f"{options.nodes:,} x {options.nodes:,} weights as text", 100 * options.nodes**2, "use fewer nodes"
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
        for W in network.matrices:
            np.savetxt(text, W.toarray(), fmt="%.17g", delimiter=",")
        print(text.getvalue(), end="", flush=True)
    else:
        console.make().print(_facts(network), "", _permits(network), sep="\n")
    return 0


def check_network(method: Method, network: Network) -> None:
    """Refuse a method that cannot run on a network; the message has the reason and a remedy."""
    from peerdescent.runs import checks

    checks.check_network(method, network)


def _facts(network: Network) -> Table:
    import numpy as np

    degrees, yes = np.atleast_2d(network.degree), {True: "yes", False: "no"}
    interval = network.lam_interval
    rows = {
        "nodes": f"{network.n:,}",
        "lambda": _rounded(network.lam)
        + ("" if interval is None else f", estimated: {_rounded(interval[0])} to {_rounded(interval[1])}"),
        "spectral gap": _rounded(network.gap),
        "weights": network.rule,
        "degree min / mean / max": f"{degrees.min():g} / {degrees.mean():.4g} / {degrees.max():g}",
        "directed": yes[network.is_directed],
        "period": f"{network.period}",
        "symmetric W": yes[network.is_symmetric],
    }
    if network.graph is not None:
        rows["graph"] = "drawn anew in every round"
    if network.rounds > 1:
        rows["rounds a mix"] = f"{network.rounds}{', accelerated' if network.momentum else ''}"
    if network.faults:
        rows["faults"] = ", ".join(map(str, network.faults))
        rows["lambda is"] = "of E[W'W] on links that fail; noise and compression are not in it"
    if network.is_symmetric and network.graph is None:
        rows["smallest eigenvalue"] = _rounded(network.smallest_eigenvalue)
    shown = console.table(network.name, "")
    for name, value in rows.items():
        shown.add_row(name, value)
    return shown


def _permits(network: Network) -> Table:
    """A table of the named methods that may run on a network, and why the others may not."""
    shown = console.table("method", "runs here")
    for name, entry in methods.METHODS.items():
        try:
            check_network(entry.build(), network)
            shown.add_row(name, "yes")
        except ValueError as error:
            reason = str(error).removeprefix(f"{name} ").partition(": ")[0]
            shown.add_row(name, f"no, it {reason}")
    return shown


def _rounded(value: float) -> str:
    return f"{value if abs(value) > 1e-12 else 0:.6g}"  # smaller values are rounded zeros
