"""Theorem 1 and Corollary 1: their conditions on GT-HSGD's parameters, and their bounds.

All constants are explicit, so the bounds can be compared with measurements. Equations are those of
Xin, Khan and Kar, ICML 2021. n is the number of nodes, and lam is lambda = ||W - 11'/n||, written l
in formulas. If lam is 0, the terms of the network vanish.
"""

from __future__ import annotations

import bisect
import math
import sys
import warnings
from typing import NamedTuple

from peerdescent.errors import require, whole
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.theory.assumptions import (
    Constants,
    check_network,
    check_problem,
    check_sizes,
    smoothness_of,
)


def largest_step_size(smoothness: float, nodes: int, lam: float) -> float:
    """The bound on Theorem 1's step sizes.

    min{(1-l^2)^2/(90 l^2), sqrt(n(1-l))/(26 l), 1/(4 sqrt 3)} / L.

    Args:
        smoothness: L.
        nodes: The number of nodes n.
        lam: lambda of the network.

    Returns:
        The limit, which the step size must not reach.

    >>> round(largest_step_size(1.0, 20, 0.0), 4), round(largest_step_size(1.0, 20, 0.75), 6)
    (0.1443, 0.003781)
    """
    nodes = check_sizes(nodes, lam)
    require(smoothness > 0, f"smoothness = {smoothness}: must be positive")
    # Divided twice, since the square of a tiny lam would be 0.
    network = (
        [(1 - lam**2) ** 2 / 90 / lam / lam, math.sqrt(nodes * (1 - lam)) / 26 / lam] if lam else []
    )
    return min(*network, 1 / (4 * math.sqrt(3)), math.inf) / smoothness


def weight(alpha: float, smoothness: float, nodes: int) -> float:
    """The weight of Theorem 1, beta = 48 L^2 alpha^2 / n.

    Args:
        alpha: The step size.
        smoothness: L.
        nodes: The number of nodes n.

    Returns:
        beta.
    """
    return 48 * smoothness**2 * alpha**2 / nodes


TERMS = (
    "optimality",
    "noise",
    "start noise",
    "network start",
    "network start noise",
    "network noise",
)
"""The six terms of Theorem 1, in its order."""


def bound(
    constants: Constants,
    nodes: int,
    lam: float,
    alpha: float,
    steps: int,
    initial_batch: int = 1,
    *,
    beta: float | None = None,
) -> dict[str, float]:
    """Theorem 1's bound on E||grad F(x~_T)||^2, term by term; its proof's for another beta.

    The theorem has beta = 48 L^2 alpha^2 / n. Its proof, up to the bound on Phi_T, holds for any
    larger beta below 1. There the last two terms have 64 l^4 (7 beta/(1-l^2) + 1) for 96 l^2, and
    64 l^4 (14 beta/(1-l^2) + 3) for 256 l^2: no more than the theorem's where beta <= (1-l^2)/(14
    l^2), as for the theorem's beta.

    Args:
        constants: The constants of the problem.
        nodes: The number of nodes n.
        lam: lambda of the network.
        alpha: The step size, below `largest_step_size`.
        steps: T, at least 2.
        initial_batch: The minibatch size b_0 at t = 0.
        beta: The weight, from 48 L^2 alpha^2 / n to below 1; by default the theorem's.

    Returns:
        The six terms by name, in the order of `TERMS`; the bound is their sum.

    >>> terms = bound(Constants(1.0, 1.0, 1.0, 1.0), nodes=20, lam=0.75, alpha=0.003, steps=10**6)
    >>> max(terms, key=terms.get), round(sum(terms.values()), 5)
    ('start noise', 0.01126)
    """
    nodes, steps, b0 = (
        check_sizes(nodes, lam),
        whole("steps", steps, least=2),
        whole("initial_batch", initial_batch, 1),
    )
    check_step_size(alpha, constants.smoothness, nodes, lam)
    least, noise, gap = (
        weight(alpha, constants.smoothness, nodes),
        constants.variance,
        (1 - lam**2) ** 3,
    )
    first, later = 96 * lam**2, 256 * lam**2
    if beta is not None:
        require(
            least <= beta < 1,
            f"beta = {beta:g}: must be at least 48 L^2 alpha^2 / n = {least:g}, and below 1",
        )
        first, later = (
            64 * lam**4 * (k * beta / (1 - lam**2) + more) for k, more in ((7, 1), (14, 3))
        )
    beta = least if beta is None else beta
    values = (
        4 * constants.gap / (alpha * steps),
        8 * beta * noise / nodes,
        4 * noise / (beta * b0 * nodes * steps),
        64 * lam**4 * constants.gradient / (gap * nodes * steps),
        first * noise / (gap * b0 * steps),
        later * beta**2 * noise / gap,
    )
    return dict(zip(TERMS, values, strict=True))


def steady_state(variance: float, nodes: int, lam: float, beta: float) -> float:
    """Equation (3), the limit of the bound as T grows.

    8 beta nu^2/n + 256 l^2 beta^2 nu^2/(1-l^2)^3.

    Args:
        variance: nu^2, the mean over nodes.
        nodes: The number of nodes n.
        lam: lambda of the network.
        beta: The weight, positive and below that of the largest step size of Theorem 1.

    Returns:
        The limit.
    """
    nodes = check_sizes(nodes, lam)
    most = weight(largest_step_size(1.0, nodes, lam), 1.0, nodes)
    require(
        0 < beta < most,
        f"beta = {beta:g}: must be positive, and below {most:g} for Theorem 1 to hold",
    )
    return 8 * beta * variance / nodes + 256 * lam**2 * beta**2 * variance / (1 - lam**2) ** 3


class Parameters(NamedTuple):
    """The hyperparameters of GT-HSGD that Corollary 1 sets: the step size, the weight, and b_0."""

    alpha: float
    beta: float
    initial_batch: int


def parameters(smoothness: float, nodes: int, steps: int) -> Parameters:
    """Corollary 1's parameters.

    alpha = n^(2/3)/(8 L T^(1/3)), beta = 3 n^(1/3)/(4 T^(2/3)), b_0 = ceil(T^(1/3)/n^(2/3)).

    b_0 is computed in integers, as the smallest b with b^3 n^2 >= T: if T^(1/3)/n^(2/3) is a whole
    number, a rounding error in the roots could add one to it.

    Args:
        smoothness: L.
        nodes: The number of nodes n.
        steps: T.

    Returns:
        alpha, beta and b_0.

    >>> parameters(1.0, 8, 10**6)
    Parameters(alpha=0.005, beta=0.00015, initial_batch=25)
    """
    nodes, steps = whole("nodes", nodes, 1), whole("steps", steps, 1)
    require(smoothness > 0, f"smoothness = {smoothness}: must be positive")
    root, scale = math.cbrt(steps), math.cbrt(nodes)
    alpha, beta = scale**2 / (8 * smoothness * root), 3 * scale / (4 * root**2)
    return Parameters(
        alpha, beta, bisect.bisect_left(range(sys.maxsize), steps, key=lambda b: b**3 * nodes**2)
    )


def least_steps(nodes: int, lam: float) -> float:
    """The T above which Corollary 1 holds.

    max{1424 l^6 n^2/(1-l^2)^6, 35 l^3 n^0.5/(1-l)^1.5, (3/4)^1.5 n^2}.

    The last is not in the corollary, but follows from Theorem 1, whose step size must be below 1/(4
    sqrt(3) L). It is the only condition if lam is 0.
    """
    nodes = check_sizes(nodes, lam)
    network = (
        1424 * lam**6 * nodes**2 / (1 - lam**2) ** 6,
        35 * lam**3 * nodes**0.5 / (1 - lam) ** 1.5,
    )
    return max(*network, 0.75**1.5 * nodes**2)


def corollary(constants: Constants, nodes: int, lam: float, steps: int) -> dict[str, float]:
    """Corollary 1's bound on E||grad F(x~_T)||^2, term by term.

    If the corollary's condition on T does not hold, a warning names the T that would be needed.

    Args:
        constants: The constants of the problem.
        nodes: The number of nodes n.
        lam: lambda of the network.
        steps: T.

    Returns:
        Three terms by name, of which the first does not depend on the network; the bound is their
        sum.
    """
    nodes, steps = check_sizes(nodes, lam), whole("steps", steps, 1)
    _warn_below(steps, nodes, lam, "a network", "this bound comes")
    return corollary_at(constants, nodes, lam, steps)


def corollary_at(constants: Constants, nodes: int, lam: float, steps: float) -> dict[str, float]:
    """The formula of `corollary` for any T, without its condition and its warning."""
    gap = (1 - lam**2) ** 3
    return {
        "optimality and noise": (
            32 * constants.smoothness * constants.gap + 12 * constants.variance
        )
        / (nodes * steps) ** (2 / 3),
        "network start": 64 * lam**4 * constants.gradient / (gap * nodes * steps),
        "network noise": 240
        * lam**2
        * nodes ** (2 / 3)
        * constants.variance
        / (gap * steps ** (4 / 3)),
    }


def gt_hsgd_parameters(
    problem: Problem, network: Network, steps: int, *, smoothness: float | None = None
) -> Parameters:
    """Corollary 1's alpha, beta and b_0 for a problem, a network and `steps` iterations.

    If the corollary's condition on T = `steps` does not hold, a warning names the T that would be
    needed.

    Args:
        problem: The problem.
        network: A static network, with as many nodes as the problem.
        steps: T, the length of the run.
        smoothness: L; by default `smoothness_of(problem)`.

    Returns:
        The hyperparameters, for `methods.gt_hsgd(**found._asdict())`.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(20))
    >>> network = peer.Network(peer.topology.complete(20))
    >>> found = gt_hsgd_parameters(problem, network, steps=10_000)
    >>> round(found.alpha, 6), round(found.beta, 6), found.initial_batch
    (0.203101, 0.004386, 3)
    >>> method = peer.methods.gt_hsgd(**found._asdict())
    """
    require(
        problem.nodes == network.n,
        f"the problem has {problem.nodes} nodes and the network {network.n}: give those of one experiment",
    )
    check_network(network)
    check_problem(problem)
    found = parameters(
        smoothness_of(problem) if smoothness is None else smoothness, network.n, steps
    )
    _warn_below(steps, network.n, network.lam, network.name, "these parameters come")
    return found


def _warn_below(steps: int, nodes: int, lam: float, name: str, what: str) -> None:
    """Warn, at the caller's line, if T = `steps` is too small for Corollary 1."""
    needed = least_steps(nodes, lam)
    if steps <= needed:
        warnings.warn(
            f"steps = {steps:,}: Corollary 1 holds for more than {math.floor(needed):,} steps on {name} "
            f"(n = {nodes}, lambda = {lam:.3g}); {what} without its promise",
            stacklevel=3,
        )


def check_step_size(alpha: float, smoothness: float, nodes: int, lam: float) -> None:
    """Refuse step sizes outside Theorem 1's range.

    Args:
        alpha: The step size.
        smoothness: L.
        nodes: The number of nodes n.
        lam: lambda of the network.
    """
    most = largest_step_size(smoothness, nodes, lam)
    require(
        0 < alpha < most,
        f"alpha = {alpha:g}: must be positive, and below {most:g} for Theorem 1 to hold",
    )
