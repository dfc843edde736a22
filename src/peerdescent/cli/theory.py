"""The command line's `theory`: constants, parameters, bounds and Table 1.

Everything heavy is imported inside functions, so that `--help` answers at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerdescent import experiment as settings
from peerdescent.cli import console
from peerdescent.errors import require, unknown
from peerdescent.experiment import Options, with_options

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem

UNUSED = ("epochs", "engine", "record", "grid", "skip_stationarity")
"""Options of `run` that these commands have no use for."""
STEPS = 100_000
"""T, where none is given."""
FORMATS = ("table", "csv", "json")
Nodes = Annotated[str, typer.Option("--nodes", metavar="INT", help="n, for table1.")]
Lam = Annotated[str, typer.Option("--lam", metavar="NUMBER", help="lambda in \\[0, 1), for table1.")]
Epsilon = Annotated[str, typer.Option("--epsilon", metavar="NUMBER", help="The accuracy that complexities are for.")]

app = typer.Typer(
    help="The paper's theory for a problem and a network: constants, parameters, bounds, Table 1.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _experiment(given: dict[str, Any]) -> tuple[Options, Problem, Network]:
    options = settings.settle({}, {"steps": STEPS, **given})
    with console.waiting(f"loading {options.data}", options.quiet):
        return options, *settings.experiment(options)


def _facts(rows: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([(name, float(value)) for name, value in rows.items()], columns=["what", "value"])


@app.command(
    "constants",
    epilog="""[bold]Examples[/bold]
peerdescent theory constants
peerdescent theory constants --data a9a --format json""",
)
@with_options(without=(*UNUSED, "steps", "topology", "weights", "out", "precision"))
def constants_command(*, given: dict[str, Any]) -> int:
    """L, the variance, ||grad f(x_0)||^2 and F(x_0) - F* of the problem."""
    from peerdescent import theory

    options, problem, _ = _experiment(given)
    with console.waiting("computing", options.quiet):
        found = theory.constants(problem)
    rows = {
        "L, mean-squared smoothness": found.smoothness,
        "variance at x_0, mean over nodes": found.variance,
        "variance at x_0, smallest": min(found.variances),
        "variance at x_0, largest": max(found.variances),
        "||grad f(x_0)||^2": found.gradient,
        "F(x_0) - F*": found.gap,
    }
    console.result(options.format, _facts(rows), console.plain)
    return 0


@app.command(
    "parameters",
    epilog="""[bold]Examples[/bold]
peerdescent theory parameters --steps 1000000
peerdescent theory parameters --data a9a --topology complete --epsilon 0.01""",
)
@with_options(without=(*UNUSED, "out", "precision"))
def parameters_command(
    epsilon: Epsilon = "0.01",
    *,
    given: dict[str, Any],
) -> int:
    """Corollary 1 for the problem and the network: alpha, beta, b_0, the T it needs, its bound, H_opt and H_net."""
    from peerdescent import theory

    accuracy = settings.number("epsilon", epsilon, float)
    require(accuracy > 0, f"--epsilon {epsilon}: must be positive")
    options, problem, network = _experiment(given)
    assert options.steps is not None
    with console.waiting("computing", options.quiet):
        theory.check_static(network)
        known = theory.constants(problem)
        # `corollary` warns where T is too small; `gt_hsgd_parameters` would say it again.
        chosen = theory.parameters(known.smoothness, network.n, options.steps)
    needed = theory.complexity(known, network.n, network.lam, accuracy)
    rows = {
        "alpha": chosen.alpha,
        "beta": chosen.beta,
        "b_0": chosen.initial_batch,
        "largest alpha of Theorem 1": theory.largest_step_size(known.smoothness, network.n, network.lam),
        "T": options.steps,
        "gradients a node, b_0 + 2 (T - 1)": theory.gradients_for(network.n, options.steps),
        "T from which Corollary 1 holds": theory.least_steps(network.n, network.lam),
        **{f"bound: {name}": v for name, v in theory.corollary(known, network.n, network.lam, options.steps).items()},
        "steady-state error": theory.steady_state(known.variance, network.n, network.lam, chosen.beta),
        f"H_opt for epsilon = {accuracy:g}": needed.optimal,
        f"H_net for epsilon = {accuracy:g}": needed.network,
        f"queries a node for epsilon = {accuracy:g}": needed.queries,
        "epsilon where H_opt = H_net": theory.independent_below(network.n, network.lam, known),
        "its order, without the problem's constants": theory.independent_below(network.n, network.lam),
    }
    console.result(options.format, _facts(rows), console.plain)
    return 0


@app.command(
    "bound",
    epilog="""[bold]Examples[/bold]
peerdescent theory bound
peerdescent theory bound --data a9a --topology complete --steps 200000 --seeds 10 --out runs/bound

The bound holds for Theorem 1's step sizes, which are small; --alpha must lie among them. T is --steps, by default
100,000. With --out: bound.csv (all T), bound.png, .pdf and .svg.

Exit status: 0, 2 bad input, 130 interrupted by Ctrl-C.""",
)
@with_options(without=UNUSED)
def bound_command(
    alpha: Annotated[
        str | None, typer.Option("--alpha", metavar="NUMBER", help="Step size. \\[default: Corollary 1's, if allowed]")
    ] = None,
    initial_batch: Annotated[
        str | None, typer.Option("--initial-batch", metavar="INT", help="b_0. \\[default: Corollary 1's]")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="INT", help="Runs that the gap is averaged over.")] = "5",
    *,
    given: dict[str, Any],
) -> int:
    """Theorem 1's bound term by term, beside the gap that runs measure."""
    from peerdescent import figures, theory
    from peerdescent.figures import theory as charts
    from peerdescent.files import write
    from peerdescent.theory import measured as bounds

    options, problem, network = _experiment(given)
    assert options.steps is not None
    folder = None if options.out is None else Path(options.out)
    require(folder is None or not folder.is_file(), f"--out {folder} is a file: give a folder")
    step = None if alpha is None else settings.number("alpha", alpha, float)
    theory.check_static(network)
    if step is not None:  # before anything that takes its time
        theory.check_step_size(step, theory.smoothness_of(problem), network.n, network.lam)
    with console.waiting("computing the constants", options.quiet):
        known = theory.constants(problem)
    found = bounds.measure(
        problem,
        network,
        options.steps,
        alpha=step,
        initial_batch=None if initial_batch is None else settings.number("initial_batch", initial_batch, int),
        seeds=settings.number("seeds", seeds, int),
        seed=options.seed,
        constants=known,
        precision=options.precision,
        progress=False if options.quiet else None,
    )
    console.result(options.format, found.table, console.plain)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "bound.csv", found.curve.to_csv(index=False).encode())
        shown = re.sub(r"^Network\((.*)lam=(.*)\)$", r"\1λ = \2", str(network))
        figure = charts.bound(found, f"{problem.name}  ·  {shown}")
        for suffix in figures.SUFFIXES:
            figures.save(figure, folder / f"bound{suffix}")
    if not options.quiet:
        used, largest = found.parameters, found.curve.iloc[-1][list(theory.TERMS)].astype(float).idxmax()
        console.say(
            f"alpha {used.alpha:.3g}, beta {used.beta:.3g}, b_0 {used.initial_batch}, T {options.steps:,}, "
            f"lambda {found.lam:.3g}: {largest} is the largest term; the bound is {found.looseness:.3g} times the gap; "
            + (f"written to {folder}" if folder else "nothing was written: add --out DIR for the figure")
        )
    return 0


@app.command(
    "table1",
    epilog="""[bold]Examples[/bold]
peerdescent theory table1
peerdescent theory table1 --nodes 100 --lam 0.9 --epsilon 1e-3""",
)
def table1_command(
    nodes: Nodes = "20",
    lam: Lam = "0.75",
    epsilon: Epsilon = "0.001",
    exponent: Annotated[
        str, typer.Option("--exponent", metavar="NUMBER", help="Of 1 - lambda, where a paper does not give it.")
    ] = "2",
    form: Annotated[str, typer.Option("--format", metavar="table|csv|json", help="What goes to standard output.")] = (
        "table"
    ),
) -> int:
    """The oracle complexities of Table 1, without constants, for given n, lambda and epsilon."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    console.result(form, table1(nodes, lam, epsilon, exponent), console.plain)
    return 0


def table1(nodes: str, lam: str, epsilon: str, exponent: str = "2") -> pd.DataFrame:
    """Table 1 for flags as they were given."""
    from peerdescent import theory

    return theory.table1(
        settings.number("nodes", nodes, int),
        settings.number("lam", lam, float),
        settings.number("epsilon", epsilon, float),
        settings.number("exponent", exponent, float),
    )
