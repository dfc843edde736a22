"""Iterations and gradients for a given accuracy: GT-HSGD by Corollary 1, all methods by Table 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from scipy.optimize import brentq

from peerdescent.errors import require
from peerdescent.theory.assumptions import Constants, check_sizes
from peerdescent.theory.theorem import corollary_at, parameters


class Complexity(NamedTuple):
    """What GT-HSGD needs for E||grad F|| <= epsilon by Corollary 1, up to a universal constant."""

    optimal: float
    """H_opt iterations, which do not depend on the network."""
    network: float
    """H_net iterations."""
    nodes: int
    """n."""

    @property
    def total(self) -> float:
        """H, the iterations: the larger of the two."""
        return max(self.optimal, self.network)

    @property
    def queries(self) -> int:
        """ceil(H + H^(1/3) n^(-2/3)): the paper's oracle queries per node, b_0 included."""
        return math.ceil(self.total + math.cbrt(self.total / self.nodes**2))


def complexity(constants: Constants, nodes: int, lam: float, epsilon: float) -> Complexity:
    """H_opt and H_net of Corollary 1: the iterations that GT-HSGD needs for E||grad F|| <= epsilon.

    Args:
        constants: The constants of the problem.
        nodes: The number of nodes n.
        lam: lambda of the network.
        epsilon: The accuracy.

    Returns:
        Both numbers of iterations, up to a universal constant.

    >>> found = complexity(Constants(1.0, 1.0, 1.0, 1.0), nodes=8, lam=0.0, epsilon=0.01)
    >>> round(found.total), found.queries
    (353553, 353572)
    """
    nodes = check_sizes(nodes, lam)
    require(epsilon > 0, f"epsilon = {epsilon}: must be positive")
    scale = constants.smoothness * constants.gap + constants.variance
    start = lam**4 * constants.gradient / ((1 - lam**2) ** 3 * nodes * epsilon**2)
    noise = lam**1.5 * nodes**0.5 * constants.variance**0.75 / ((1 - lam**2) ** 2.25 * epsilon**1.5)
    return Complexity(scale**1.5 / (nodes * epsilon**3), max(start, noise), nodes)


def gradients_for(nodes: int, steps: int) -> int:
    """The gradients of a node in T = `steps` iterations with Corollary 1's b_0: b_0 + 2 (T - 1).

    Iteration 0 takes b_0 = ceil(T^(1/3)/n^(2/3)). Every later iteration takes two, of one sample at
    two points, which the paper counts as one query of the oracle, so that it counts b_0 + T - 1
    queries.

    >>> gradients_for(20, 10_800)
    21601
    """
    # b_0 and the number of gradients do not depend on L.
    return parameters(1.0, nodes, steps).initial_batch + 2 * (steps - 1)


def steps_for(constants: Constants, nodes: int, lam: float, epsilon: float) -> float:
    """The T at which Corollary 1's bound has fallen to epsilon^2.

    Args:
        constants: The constants of the problem.
        nodes: The number of nodes n.
        lam: lambda of the network.
        epsilon: The accuracy.

    Returns:
        T, a real number. The corollary's own condition on T may require more; see `least_steps`.

    >>> known = Constants(1.0, 1.0, 1.0, 1.0)
    >>> round(steps_for(known, 1, 0.0, 0.1)), round(44**1.5 / 0.1**3)
    (291863, 291863)
    """
    require(epsilon > 0, f"epsilon = {epsilon}: must be positive")
    nodes = check_sizes(nodes, lam)

    def above(log: float) -> float:
        return math.log(
            sum(corollary_at(constants, nodes, lam, math.exp(log)).values()) / epsilon**2
        )

    return math.exp(brentq(above, -300.0, 300.0, xtol=1e-12))


def independent_below(nodes: int, lam: float, constants: Constants | None = None) -> float:
    """The epsilon below which the topology does not matter: min{l^-4 (1-l)^3, l^-1 (1-l)^1.5} / n.

    Args:
        nodes: The number of nodes n.
        lam: lambda of the network, l in the formula.
        constants: The constants of the problem. None for the order in section 3 of the paper,
            without constants.

    Returns:
        The epsilon; with `constants`, the one at which H_opt of Corollary 1 equals H_net. Infinite
        if lam is 0.

    >>> independent_below(20, 0.0), independent_below(20, 0.5)
    (inf, 0.035355339059327376)
    """
    nodes = check_sizes(nodes, lam)
    if lam and constants is not None:
        scale, gap = constants.smoothness * constants.gap + constants.variance, 1 - lam**2
        start = (
            scale**1.5 * gap**3 / lam / lam / lam / lam / constants.gradient
            if constants.gradient
            else math.inf
        )
        noise = (
            scale * gap**1.5 / (nodes * lam * math.sqrt(constants.variance))
            if constants.variance
            else math.inf
        )
        return min(start, noise)
    # Divided one by one, since a power of a tiny lam would be 0.
    return (
        min((1 - lam) ** 3 / lam / lam / lam / lam, (1 - lam) ** 1.5 / lam) / nodes
        if lam
        else math.inf
    )


def table1(
    nodes: int, lam: float, epsilon: float, exponents: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Table 1: the oracle complexity of each method per node, without constants.

    Args:
        nodes: The number of nodes n.
        lam: lambda of the network.
        epsilon: The accuracy.
        exponents: The exponents b, c, d and h of 1 / (1 - lam), which four papers do not give; 2
            for those left out.

    Returns:
        A table with one row per method: the `order` as a formula, its value `complexity`, whether
        the method needs mean-squared smoothness (`MSS`), and `remarks`; λ_n is the smallest
        eigenvalue of W.

    >>> table1(20, 0.75, 1e-4).set_index("method")["complexity"].idxmin()
    'gt-hsgd'
    >>> table1(20, 0.75, 1e-4, {"b": 3}).query("method == 'd2'")["remarks"].item()
    'b not explicit, 3 here; λ_n omitted'
    """
    nodes, gap = check_sizes(nodes, lam), 1 - lam
    require(0 < epsilon < math.inf, f"epsilon = {epsilon}: must be positive and finite")
    assumed = dict.fromkeys("bcdh", 2.0) | dict(exponents or {})
    for name, value in assumed.items():
        good = name in ("b", "c", "d", "h") and 0 < value < math.inf
        require(good, f"exponents: {name} = {value}: give positive numbers for b, c, d and h")
    slowed = {name: gap**-value for name, value in assumed.items()}
    said = {name: f"{name} not explicit, {value:g} here" for name, value in assumed.items()}

    def sampled(network: float) -> float:
        return max(1 / (nodes * epsilon**4), network * nodes / epsilon**2)

    rows = [
        (
            "dsgd",
            "max{1/(n e^4), l^2 n/((1-l)^2 e^2)}",
            sampled(lam**2 / gap**2),
            False,
            "bounded heterogeneity",
        ),
        (
            "d2",
            "max{1/(n e^4), n/((1-l)^b e^2)}",
            sampled(slowed["b"]),
            False,
            said["b"] + "; λ_n omitted",
        ),
        ("gt-dsgd", "max{1/(n e^4), l^2 n/((1-l)^3 e^2)}", sampled(lam**2 / gap**3), False, ""),
        ("d-pd-sgd", "max{1/(n e^4), n/((1-l)^c e^2)}", sampled(slowed["c"]), False, said["c"]),
        ("d-get", "1/((1-l)^d e^3)", slowed["d"] / epsilon**3, True, said["d"]),
        (
            "d-spider-sfo",
            "1/((1-l)^h e^3)",
            slowed["h"] / epsilon**3,
            True,
            said["h"] + "; λ_n omitted",
        ),
        (
            "gt-hsgd",
            "max{1/(n e^3), l^4/((1-l)^3 e^2), l^1.5 n^0.5/((1-l)^2.25 e^1.5)}",
            max(
                1 / (nodes * epsilon**3),
                lam**4 / (gap**3 * epsilon**2),
                lam**1.5 * nodes**0.5 / (gap**2.25 * epsilon**1.5),
            ),
            True,
            "",
        ),
    ]
    return pd.DataFrame(rows, columns=["method", "order", "complexity", "MSS", "remarks"])
