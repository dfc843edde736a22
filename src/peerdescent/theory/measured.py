"""Theorem 1's bound, term by term, compared with the gap measured in runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.integrate import cumulative_trapezoid

from peerdescent.errors import require, whole
from peerdescent.methods.named import gt_hsgd
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.loop import run
from peerdescent.runs.schedule import Grid, recording_steps
from peerdescent.runs.trace import Status
from peerdescent.theory import assumptions, theorem

POINTS = 60
"""Records of a run spread evenly, and as many again on a log scale."""


def marks(steps: int, points: int = POINTS) -> list[int]:
    """The steps to record for a mean gap: evenly spaced, and dense at the start."""
    return sorted({*recording_steps(points, steps), *recording_steps(Grid(points, "log"), steps)})


class Measured(NamedTuple):
    """Theorem 1's bound, and the gap that was measured with the same parameters."""

    constants: assumptions.Constants
    parameters: theorem.Parameters
    nodes: int
    lam: float
    curve: pd.DataFrame
    """A row per T = `steps`: six terms, their sum `bound`, and the `measured` gap.

    The gap is the mean over seeds, with the smallest (`least`) and the largest (`most`).
    """

    @property
    def looseness(self) -> float:
        """The ratio of the bound to the measured gap, at the end."""
        last = self.curve.iloc[-1]
        return float(last["bound"] / last["measured"])

    @property
    def table(self) -> pd.DataFrame:
        """The terms at the end: value, share of the bound, and ratio to the measured gap."""
        last = self.curve.iloc[-1]
        rows = [(name, last[name]) for name in (*theorem.TERMS, "bound", "measured")]
        if not self.constants.bounded:
            rows[-2] = f"sum, {self.constants.basis}", last["bound"]
        found = pd.DataFrame(rows, columns=["term", "value"])
        return found.assign(
            share=found["value"] / last["bound"], by_measured=found["value"] / last["measured"]
        )


def measure(
    problem: Problem,
    network: Network,
    steps: int,
    *,
    alpha: float | None = None,
    initial_batch: int | None = None,
    seeds: int = 5,
    seed: int = 0,
    constants: assumptions.Constants | None = None,
    precision: int | str = 32,
    progress: Any = None,
    out: Path | None = None,
) -> Measured:
    """Run GT-HSGD with a step size that Theorem 1 allows, and compare its gap with the bound.

    The comparison is for all T up to `steps`.

    The gap is the mean over nodes and t = 0..T of ||grad F(x_t^i)||^2, between records by the
    trapezoidal rule, and averaged over the runs. The weight beta is Theorem 1's.

    Args:
        problem: The problem.
        network: A static network without faults, with as many nodes as the problem.
        steps: The length of a run, and the largest T; at least 2.
        alpha: The step size. By default the smaller of Corollary 1's and 99 % of the largest that
            Theorem 1 allows.
        initial_batch: The minibatch size b_0 at t = 0; by default Corollary 1's.
        seeds: The number of runs.
        seed: The seed of the first run; the others have the seeds that follow.
        constants: The constants in the bound; by default those of the problem. If their variances
            are no bound, the largest of these and of the variances at the ends of the runs is used.
        precision: As for `run`.
        progress: As for `run`.
        out: A folder for the runs. Unfinished runs there are continued.

    Returns:
        The bound and the measured gap, with the constants and parameters used.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> found = measure(problem, peer.Network(peer.topology.ring(4)), steps=1000, seeds=2)
    >>> bool((found.curve["bound"] > found.curve["most"]).all())
    True
    """
    steps, seeds = whole("steps", steps, least=2), whole("seeds", seeds, least=1)
    assumptions.check_network(network)
    known, lam, n = constants or assumptions.constants(problem), network.lam, network.n
    most, usual = (
        theorem.largest_step_size(known.smoothness, n, lam),
        theorem.parameters(known.smoothness, n, steps),
    )
    if alpha is None:
        alpha = min(usual.alpha, 0.99 * most)
    theorem.check_step_size(alpha, known.smoothness, n, lam)
    first = usual.initial_batch if initial_batch is None else initial_batch
    chosen = theorem.Parameters(alpha, theorem.weight(alpha, known.smoothness, n), first)
    record = marks(steps)
    traces = []
    for number in range(seed, seed + seeds):
        trace = run(
            gt_hsgd(**chosen._asdict()), problem, network, steps=steps, seed=number, record=record,
            precision=precision, progress=progress, checkpoint=out and out / f"seed-{number}",
        )  # fmt: skip
        if trace.status == Status.interrupted:
            raise KeyboardInterrupt
        require(
            trace.status == Status.done,
            f"alpha = {alpha:g} diverged, which Theorem 1 rules out: L = {known.smoothness:g} is too small",
        )
        traces.append(trace)
    if not known.bounded:
        known = assumptions.visiting(known, problem, [trace.x_mean for trace in traces])
    lengths = np.array([step for step in record if step >= 2])
    gaps = np.stack([running_gap(trace.table)[-len(lengths) :] for trace in traces])
    terms = [theorem.bound(known, n, lam, alpha, int(length), first) for length in lengths]
    curve = pd.DataFrame(terms).assign(
        measured=gaps.mean(axis=0), least=gaps.min(axis=0), most=gaps.max(axis=0)
    )
    curve.insert(0, "steps", lengths)
    curve["bound"] = curve[list(theorem.TERMS)].sum(axis=1)
    return Measured(known, chosen, n, lam, curve)


def running_gap(table: pd.DataFrame) -> np.ndarray:
    """The mean stationarity over t = 0..T for T at every record; linear between records."""
    steps, values = table["step"].to_numpy(float), table["stationarity"].to_numpy(float)
    # A sum over t = 0..T is the trapezoids' area and half of either end.
    sums: np.ndarray = cumulative_trapezoid(values, steps, initial=0) + (values[0] + values) / 2
    return sums / (steps + 1)
