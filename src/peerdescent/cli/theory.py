"""The commands about the paper's theory: `theory constants`, `parameters`, `bound` and `table1`."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment, figures, files, theory
from peerdescent.cli import console, signals
from peerdescent.cli.options import folder, with_options
from peerdescent.errors import require
from peerdescent.experiment import Options

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.networks import Network
    from peerdescent.problems import Problem

STEPS = 100_000
"""The default of T."""
Lam = Annotated[float, typer.Option("--lam", help="lambda of Table 1, in \\[0, 1).")]
Epsilon = Annotated[
    float, typer.Option("--epsilon", help="The accuracy that complexities are for.")
]
Exponents = Annotated[
    str,
    typer.Option(
        "--exponents", metavar="b=<float>,...", help="Of 1 - lambda, where papers do not give them."
    ),
]


def _variance(text: str) -> float | str:
    with suppress(ValueError):
        return float(text)
    return text


Variance = Annotated[
    Any,
    typer.Option(
        "--variance",
        metavar="everywhere|start|<float>",
        parser=_variance,
        help="Bound for all x, value at the start, or your own. \\[default: everywhere, where there is a bound]",
    ),
]

app = typer.Typer(
    help="The paper's theory for a problem and a network: constants, parameters, bounds, Table 1.",
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Show the help without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def _experiment(given: dict[str, Any]) -> tuple[Options, Problem, Network]:
    options = experiment.settle({}, {"steps": STEPS, **given})
    with console.waiting(f"loading {options.data}", options.quiet):
        problem, network = experiment.build(options, note=console.note(options.quiet))
    theory.check_network(network)  # before any long computation
    return options, problem, network


def _facts(rows: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        [(name, float(value)) for name, value in rows.items()], columns=["what", "value"]
    )


@app.command(
    "constants",
    epilog="""[bold]Examples[/bold]
peerdescent theory constants
peerdescent theory constants --data a9a --variance start --format json

Exit status: 0, 2 bad input.""",
)
@with_options("Data", "Problem", "nodes", "seed", "format", "quiet")
def constants_command(variance: Variance = None, *, given: dict[str, Any]) -> int:
    """L, the variance, ||grad f(x_0)||^2 and F(x_0) - F* of the problem."""
    options, problem, _ = _experiment(given)
    with console.waiting("computing", options.quiet):
        found = theory.constants(problem, variance=variance)
    rows = {
        "L, mean-squared smoothness": found.smoothness,
        f"variance {found.basis}, mean over nodes": found.variance,
        f"variance {found.basis}, smallest": min(found.variances),
        f"variance {found.basis}, largest": max(found.variances),
        "||grad f(x_0)||^2": found.gradient,
        "F(x_0) - F*": found.gap,
    }
    console.result(options.format, _facts(rows), console.plain)
    return 0


@app.command(
    "parameters",
    epilog="""[bold]Examples[/bold]
peerdescent theory parameters --steps 1000000
peerdescent theory parameters --data a9a --topology complete --epsilon 0.01

T is --steps, by default 100,000.

Exit status: 0, 2 bad input.""",
)
@with_options("Data", "Problem", "Network", "steps", "seed", "format", "quiet")
def parameters_command(
    epsilon: Epsilon = 0.01,
    variance: Variance = None,
    *,
    given: dict[str, Any],
) -> int:
    """Corollary 1 for the problem and the network: alpha, beta, b_0, the T it needs, its bound, H_opt and H_net."""
    require(epsilon > 0, f"--epsilon {epsilon:g}: must be positive")  # before any long computation
    options, problem, network = _experiment(given)
    assert options.steps is not None
    with console.waiting("computing", options.quiet):
        known = theory.constants(problem, variance=variance)
        # `corollary` warns where T is too small; `gt_hsgd_parameters` would say it again.
        chosen = theory.parameters(known.smoothness, network.n, options.steps)
    needed = theory.complexity(known, network.n, network.lam, epsilon)
    most = theory.largest_step_size(known.smoothness, network.n, network.lam)
    limit = math.nan  # without a promise, `corollary` says so
    if chosen.alpha < most:
        limit = theory.steady_state(known.variance, network.n, network.lam, chosen.beta)
    total = "bound" if known.bounded else "no bound"
    terms = theory.corollary(known, network.n, network.lam, options.steps)
    rows = {
        "alpha": chosen.alpha,
        "beta": chosen.beta,
        "b_0": chosen.initial_batch,
        "largest alpha of Theorem 1": most,
        f"variance {known.basis}": known.variance,
        "T": options.steps,
        "gradients a node, b_0 + 2 (T - 1)": theory.gradients_for(network.n, options.steps),
        "T from which Corollary 1 holds": theory.least_steps(network.n, network.lam),
        **{f"{total}: {name}": value for name, value in terms.items()},
        "steady-state error": limit,
        f"H_opt for epsilon = {epsilon:g}": needed.optimal,
        f"H_net for epsilon = {epsilon:g}": needed.network,
        f"queries a node for epsilon = {epsilon:g}": needed.queries,
        "epsilon where H_opt = H_net": theory.independent_below(network.n, network.lam, known),
        "its order, without the problem's constants": theory.independent_below(
            network.n, network.lam
        ),
    }
    console.result(options.format, _facts(rows), console.plain)
    return 0


@app.command(
    "bound",
    epilog="""[bold]Examples[/bold]
peerdescent theory bound
peerdescent theory bound --data a9a --topology complete --steps 200000 --seeds 10 --out runs/bound

The bound holds for Theorem 1's step sizes, which are small; --alpha must lie among them. T is --steps, by default \
100,000. With --out: bound.csv (all T), bound.png, .pdf and .svg; what was interrupted or killed continues.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C.""",
)
@with_options("Data", "Problem", "Network", "steps", "seed", "precision", "Output")
def bound_command(
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="Step size. \\[default: Corollary 1's, if allowed]"),
    ] = None,
    initial_batch: Annotated[
        int | None,
        typer.Option(
            "--initial-batch", metavar="<int>", min=1, help="b_0. \\[default: Corollary 1's]"
        ),
    ] = None,
    variance: Variance = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="<int>", min=1, help="Runs that the gap is averaged over."),
    ] = 5,
    *,
    given: dict[str, Any],
) -> int:
    """Theorem 1's bound term by term, beside the gap that runs measure."""
    options, problem, network = _experiment(given)
    assert options.steps is not None
    out = folder(options)
    if alpha is not None:  # before any long computation
        theory.check_step_size(alpha, theory.smoothness_of(problem), network.n, network.lam)
    with console.waiting("computing the constants", options.quiet):
        known = theory.constants(problem, variance=variance)
    found = theory.measured.measure(
        problem,
        network,
        options.steps,
        alpha=alpha,
        initial_batch=initial_batch,
        seeds=seeds,
        seed=options.one_seed,
        constants=known,
        precision=options.precision,
        progress=not options.quiet,
        out=out and out / "runs",
    )
    if out is not None:
        with signals.writing():
            files.write(out / "bound.csv", found.curve.to_csv(index=False).encode())
            shown = re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", str(network))
            figure = figures.theory.bound(found, f"{problem.name}  ·  {shown}")
            for suffix in figures.SUFFIXES:
                figures.save(figure, out / f"bound{suffix}", force=True)
    console.result(options.format, found.table, console.plain)
    if not options.quiet:
        used, largest = (
            found.parameters,
            found.curve.iloc[-1][list(theory.TERMS)].astype(float).idxmax(),
        )
        console.say(
            f"alpha {used.alpha:.3g}, beta {used.beta:.3g}, b_0 {used.initial_batch}, T {options.steps:,}, "
            f"lambda {found.lam:.3g}, variance {found.constants.variance:.3g} {known.basis}: {largest} is the largest "
            f"term; the {'bound' if known.bounded else 'sum'} is {found.looseness:.3g} times the gap; "
            + (f"written to {out}" if out else "nothing was written: add --out DIR for the figure")
        )
    return 0


@app.command(
    "table1",
    epilog="""[bold]Examples[/bold]
peerdescent theory table1
peerdescent theory table1 --nodes 100 --lam 0.9 --epsilon 1e-3
peerdescent theory table1 --exponents b=3,h=4

Exit status: 0, 2 bad input.""",
)
@with_options("nodes", "format")
def table1_command(
    lam: Lam = 0.75,
    epsilon: Epsilon = 0.001,
    exponents: Exponents = "b=2,c=2,d=2,h=2",
    *,
    given: dict[str, Any],
) -> int:
    """The oracle complexities of Table 1, without constants, for given n, lambda and epsilon."""
    options = experiment.settle({}, given)
    assert options.nodes is not None
    try:
        powers = {
            name: float(value) for name, value in (each.split("=") for each in exponents.split(","))
        }
    except ValueError:
        raise ValueError(
            f"exponents = {exponents!r}: give numbers by name, as in b=2,c=2,d=2,h=2"
        ) from None
    console.result(
        options.format, theory.table1(options.nodes, lam, epsilon, powers), console.plain
    )
    return 0
