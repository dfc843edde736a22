"""How many gradients GT-HSGD needs: against the number of nodes (`speedup`), and against lambda (`independence`).

A run of T iterations has Corollary 1's parameters for that T, and its gap is the mean of ||grad
F(x_t^i)||^2 over all nodes and t = 0..T, which the corollary bounds. A curve is the root of that
gap, averaged over seeds, against the gradients that a node has computed, for growing T. Where it
falls below epsilon, E||grad F(x~_T)|| <= epsilon.

The problem is `problems.streaming`. The variance of its gradients grows with the distance to a
node's planted coefficients, without a bound, so it breaks the paper's Assumption 1 (bounded
variance); the other assumptions hold.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import DegenerateDataWarning, bootstrap

from peerdescent import figures, methods, theory
from peerdescent.errors import require, unknown
from peerdescent.figures import theory as charts
from peerdescent.files import write
from peerdescent.networks import topology
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.problems.streams import streaming
from peerdescent.runs.loop import run
from peerdescent.runs.progress import choose
from peerdescent.runs.store import Store
from peerdescent.runs.trace import Status
from peerdescent.theory.measured import marks, running_gap

FEATURES, NOISE, STRENGTH = 10, 1.0, 4.0
"""Arguments of the stream, which is non-convex at this strength."""
SPEEDUP_GRAPHS = ("complete", "exponential")
NODES = 20
"""The number of nodes of `independence`."""
GRAPHS = ("ring", "grid", "torus", "exponential", "directed-exponential", "complete")
KEY = ("topology", "nodes", "steps", "seed", "points")
"""The columns that identify a run."""
MEASURED = ("lambda", "gradients", "gap")
"""The columns that are measured in a run."""


class Scale(NamedTuple):
    """How much is measured."""

    nodes: tuple[int, ...]
    """The numbers of nodes n of `speedup`."""
    budgets: tuple[int, ...]
    """The products n T of `speedup`."""
    speedup_epsilons: tuple[float, ...]
    steps: tuple[int, ...]
    """The lengths T of `independence`."""
    independence_epsilons: tuple[float, ...]
    seeds: int
    points: int = 100
    """Records of a run spread evenly, and as many again on a log scale."""


SCALES = {
    "tiny": Scale(
        (1, 2, 4), (2**8, 2**11, 2**14), (0.6, 0.4), (2**6, 2**9, 2**12), (0.8, 0.5), 2, 40
    ),
    "quick": Scale(
        (1, 2, 4, 8, 16, 32, 64),
        tuple(2**k for k in range(14, 21)),
        (0.3, 0.2, 0.13),
        tuple(2**k for k in range(6, 18)),
        (0.8, 0.6, 0.45, 0.3, 0.2, 0.15, 0.12),
        10,
    ),
}
SCALES["full"] = SCALES["quick"]._replace(
    budgets=tuple(2**k for k in range(14, 23)), speedup_epsilons=(0.3, 0.2, 0.13, 0.08), seeds=20
)
"""The scale "tiny" is for a test, "quick" takes minutes on two CPU cores, and "full" has longer runs and more seeds."""


class Needed(NamedTuple):
    """The result of `speedup` and `independence`."""

    table: pd.DataFrame
    """The gradients that a node needs, one row per topology, number of nodes and epsilon."""
    slopes: pd.DataFrame | None
    """`speedup`: the slope of log gradients against log n, with its 95 % confidence interval."""
    gaps: pd.DataFrame
    """The measurements, one row per run."""


def speedup(
    scale: str = "quick",
    out: str | Path | None = None,
    *,
    spread: float = 0.0,
    each: Callable[..., Iterable[Any]] = map,
    progress: Any = None,
    note: Callable[[str], None] = lambda text: None,
) -> Needed:
    """Gradients needed per node for E||grad F|| <= epsilon, for growing n; a linear speed-up is a slope of -1.

    By default all nodes draw from one distribution. With a `spread` they differ: in the mean over
    nodes and features, the squares of their planted coefficients' distances to the common ones are
    exactly spread^2, for every n above 1 (n = 1 is left out). Either way F, L and the mean variance
    at any x are the same for all n. The slope's confidence interval is from 2,000 bootstrap samples
    of the seeds.

    Args:
        scale: "tiny", "quick" or "full": sizes, lengths and seeds.
        out: A folder for the tables and the figure, by default runs/speedup. Runs in it are not
            repeated.
        spread: How far the nodes' planted coefficients are from their mean.
        each: Maps a function over the runs: `map`, or the `map` of a pool of processes.
        progress: As for `run`.
        note: Called with a line that says what was written.

    Returns:
        The gradients needed, the slopes, and all measurements.
    """
    size, folder = _scale(scale), _folder(out, "speedup")
    require(0 <= spread < math.inf, f"spread = {spread:g}: must be a number of at least 0")
    sizes = [n for n in size.nodes if n > 1 or spread == 0]
    wanted = [
        (graph, n, total // n) for graph in SPEEDUP_GRAPHS for n in sizes for total in size.budgets
    ]
    gaps = _measure(wanted, size, folder, _Run(spread, exact=True), each, progress, "speedup")
    rows, slopes = [], []
    for graph in SPEEDUP_GRAPHS:
        for epsilon in size.speedup_epsilons:
            curves = {n: _curve(gaps, graph, n) for n in sizes}
            found = {n: _needed(*curve, epsilon) for n, curve in curves.items()}
            rows += [
                {"topology": graph, "epsilon": epsilon, "nodes": n, "gradients": g}
                for n, g in found.items()
            ]
            slopes.append({"topology": graph, "epsilon": epsilon, **_slope(curves, epsilon)})
    result = Needed(pd.DataFrame(rows), pd.DataFrame(slopes), gaps)
    write(folder / "speedup.csv", result.table.to_csv(index=False).encode())
    write(folder / "slopes.csv", pd.DataFrame(slopes).to_csv(index=False).encode())
    figure = charts.speedup(result.table, pd.DataFrame(slopes), _means(gaps))
    for suffix in figures.SUFFIXES:
        figures.save(figure, folder / f"speedup{suffix}", force=True)
    note(f"written to {folder}: speedup.csv, slopes.csv, gaps.csv, speedup.png, .pdf and .svg")
    return result


def independence(
    scale: str = "quick",
    out: str | Path | None = None,
    *,
    each: Callable[..., Iterable[Any]] = map,
    progress: Any = None,
    note: Callable[[str], None] = lambda text: None,
) -> Needed:
    """Gradients needed per node for E||grad F|| <= epsilon on 20 nodes, for six graphs and falling epsilon.

    Nodes differ (`problems.streaming` with a spread of 1), since the network has little effect if
    they are identical. `ratio` is relative to the complete graph, and `predicted` is the ratio of
    the T at which Corollary 1's bounds fall to epsilon^2 (`theory.steps_for`), with the variance at
    x_0.

    Args:
        scale: "tiny", "quick" or "full": lengths, accuracies and seeds.
        out: A folder for the tables and the figure, by default runs/topology. Runs in it are not
            repeated.
        each: As for `speedup`.
        progress: As for `run`.
        note: Called with a line that says what was written.

    Returns:
        The gradients needed and all measurements; there are no slopes.
    """
    size, folder = _scale(scale), _folder(out, "topology")
    wanted = [(graph, NODES, steps) for graph in GRAPHS for steps in size.steps]
    gaps = _measure(wanted, size, folder, _Run(1.0, exact=False), each, progress, "topology")
    constants = theory.constants(_problem(NODES, 1.0))
    lambdas = gaps.groupby("topology")["lambda"].first()
    rows = []
    for epsilon in size.independence_epsilons:
        found = {graph: _needed(*_curve(gaps, graph, NODES), epsilon) for graph in GRAPHS}
        for graph, gradients in found.items():
            lam = float(lambdas[graph])
            own, best = (theory.steps_for(constants, NODES, value, epsilon) for value in (lam, 0.0))
            row = {"topology": graph, "lambda": lam, "epsilon": epsilon, "gradients": gradients}
            rows.append(row | {"ratio": gradients / found["complete"], "predicted": own / best})
    result = Needed(pd.DataFrame(rows), None, gaps)
    write(folder / "topology.csv", result.table.to_csv(index=False).encode())
    figure = charts.independence(result.table, _means(gaps))
    for suffix in figures.SUFFIXES:
        figures.save(figure, folder / f"topology{suffix}", force=True)
    note(f"written to {folder}: topology.csv, gaps.csv, topology.png, .pdf and .svg")
    return result


def _scale(name: str) -> Scale:
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]


def _folder(out: str | Path | None, name: str) -> Path:
    folder = Path("runs") / name if out is None else Path(out)
    require(not folder.is_file(), f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _problem(nodes: int, spread: float, exact: bool = False) -> Problem:
    """The stream. With `exact`, the root mean square of the nodes' distances to their mean is exactly `spread`."""
    if exact and spread:
        planted = streaming(nodes, FEATURES, spread=1.0).data.planted
        spread /= float((planted - planted.mean(axis=0)).std())
    return streaming(nodes, FEATURES, noise=NOISE, spread=spread, strength=STRENGTH)


def _measure(
    wanted: Iterable[tuple[str, int, int]],
    size: Scale,
    folder: Path,
    run_of: _Run,
    each: Callable[..., Iterable[Any]],
    progress: Any,
    label: str,
) -> pd.DataFrame:
    """The gap of every graph, number of nodes, T and seed; those already in the folder are not measured again."""
    about = {
        "problem": "streaming",
        "features": FEATURES,
        "noise": NOISE,
        "strength": STRENGTH,
        **run_of._asdict(),
    }
    store = Store(folder, "gaps", about, KEY)
    keys = [(*what, seed, size.points) for what in wanted for seed in range(1, size.seeds + 1)]
    missing = [key for key in keys if store.get(key) is None]
    bar = choose(progress)
    bar.begin(label, len(missing))
    try:
        for done, (key, row) in enumerate(zip(missing, each(run_of, missing), strict=True)):
            store.add({**dict(zip(KEY, key, strict=True)), **row})
            store.save()
            bar.update(done + 1, math.sqrt(row["gap"]))
    finally:
        bar.end()
    found = [
        (*key, *(float(row[name]) for name in MEASURED))
        for key in keys
        if (row := store.get(key)) is not None
    ]
    return pd.DataFrame(found, columns=[*KEY, *MEASURED])


class _Run(NamedTuple):
    """Measures the run of a key; an object, so that it can be sent to another process."""

    spread: float
    exact: bool

    def __call__(self, key: tuple[str, int, int, int, int]) -> dict[str, float]:
        graph, n, steps, seed, points = key
        network = Network(topology.build(graph, n)) if n > 1 else Network([[1.0]])
        gradients, gap = _gap(_problem(n, *self), network, steps, seed, points)
        return dict(zip(MEASURED, (network.lam, gradients, gap), strict=True))


def _gap(
    problem: Problem, network: Network, steps: int, seed: int, points: int
) -> tuple[float, float]:
    """The gradients that a node computes in a run with Corollary 1's parameters, and the run's gap."""
    assert problem.smoothness is not None
    chosen = theory.parameters(problem.smoothness, problem.nodes, steps)
    method, record = methods.gt_hsgd(**chosen._asdict()), marks(steps, points)
    trace = run(method, problem, network, steps=steps, seed=seed, record=record, progress=False)
    if trace.status == Status.interrupted:
        raise KeyboardInterrupt
    done = trace.status == Status.done
    return float(trace.table["gradients"].iloc[-1]), float(
        running_gap(trace.table)[-1]
    ) if done else math.inf


def _curve(gaps: pd.DataFrame, graph: str, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients per node (k,), and gaps (k, seeds), for growing T."""
    own = gaps[(gaps["topology"] == graph) & (gaps["nodes"] == nodes)]
    # By steps, since a run that diverged has computed fewer gradients than others of its length.
    by_seed = own.pivot(index="steps", columns="seed", values="gap").sort_index()
    return own.groupby("steps")["gradients"].max().to_numpy(float), by_seed.to_numpy()


def _means(gaps: pd.DataFrame) -> pd.DataFrame:
    """The root of the mean gap over seeds, by topology, nodes and gradients."""
    groups = gaps.groupby(["topology", "nodes", "lambda", "steps"], sort=False)
    means: pd.DataFrame = groups.agg(
        gradients=("gradients", "max"), rms=("gap", "mean")
    ).reset_index()
    return means.assign(rms=means["rms"] ** 0.5)


def _needed(gradients: np.ndarray, gaps: np.ndarray, epsilon: float) -> float:
    """The gradients at which the root of the mean gap first falls to epsilon, interpolated linearly on log axes.

    NaN if it starts below epsilon or never reaches it.
    """
    rms = np.sqrt(gaps.mean(axis=1))
    below = np.flatnonzero(rms <= epsilon)
    if len(below) == 0 or below[0] == 0:
        return math.nan
    k = below[0]
    if rms[k - 1] == math.inf:  # diverged: where between the two it fell is not known
        return float(gradients[k])
    share = math.log(rms[k - 1] / epsilon) / math.log(rms[k - 1] / rms[k])
    return float(gradients[k - 1] ** (1 - share) * gradients[k] ** share)


def _slope(curves: Mapping[int, tuple[np.ndarray, np.ndarray]], epsilon: float) -> dict[str, float]:
    """The slope of log gradients against log n by least squares, its 95 % interval, and the number of sizes used.

    The interval is between percentiles of 2,000 bootstrap samples of the seeds; NaN if one of them
    has no slope.
    """
    seeds = np.arange(next(iter(curves.values()))[1].shape[1])

    def fit(chosen: np.ndarray) -> float:
        needed = {
            n: _needed(gradients, gaps[:, chosen], epsilon)
            for n, (gradients, gaps) in curves.items()
        }
        points = [(math.log(n), math.log(g)) for n, g in needed.items() if not math.isnan(g)]
        return (
            statistics.linear_regression(*zip(*points, strict=True)).slope
            if len(points) > 1
            else math.nan
        )

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DegenerateDataWarning
        )  # from samples without a slope, which are expected
        low, high = bootstrap(
            (seeds,),
            fit,
            n_resamples=2000,
            vectorized=False,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
    sizes = sum(not math.isnan(_needed(*curve, epsilon)) for curve in curves.values())
    return {"slope": fit(seeds), "low": float(low), "high": float(high), "sizes": sizes}
