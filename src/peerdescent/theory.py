"""The paper's results as functions: what Theorem 1 and Corollary 1 promise GT-HSGD, and the complexities of Table 1.

Nothing is hidden in constants, so the bounds can be set beside what runs measure. Equations are those of Xin, Khan and
Kar, ICML 2021. n is the number of nodes, lam is lambda = ||W - 11'/n||, and where lam is 0 the terms of the network
vanish.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from peerdescent.errors import require, whole

if TYPE_CHECKING:
    import pandas as pd


class Constants(NamedTuple):
    """What the bounds need to know of a problem and its start."""

    smoothness: float
    """L of Assumption 1: E||g_i(x, xi) - g_i(y, xi)||^2 <= L^2 ||x - y||^2."""
    variance: float
    """The mean over nodes of nu_i^2, which bounds E||g_i(x, xi) - grad f_i(x)||^2."""
    gradient: float
    """||grad f(x_0)||^2 = sum_i ||grad f_i(x_0)||^2."""
    gap: float
    """F(x_0) - F*."""


def largest_step_size(smoothness: float, nodes: int, lam: float) -> float:
    """The step sizes of Theorem 1 lie below this: min{(1-l^2)^2/(90 l^2), sqrt(n(1-l))/(26 l), 1/(4 sqrt 3)} / L.

    >>> round(largest_step_size(1.0, 20, 0.0), 4), round(largest_step_size(1.0, 20, 0.75), 6)
    (0.1443, 0.003781)
    """
    nodes = _check(nodes, lam)
    require(smoothness > 0, f"smoothness = {smoothness}: must be positive")
    # Divided twice, since the square of a tiny lam would be 0.
    network = [(1 - lam**2) ** 2 / 90 / lam / lam, math.sqrt(nodes * (1 - lam)) / 26 / lam] if lam else []
    return min(*network, 1 / (4 * math.sqrt(3)), math.inf) / smoothness


def weight(alpha: float, smoothness: float, nodes: int) -> float:
    """beta = 48 L^2 alpha^2 / n, the weight that Theorem 1 asks for."""
    return 48 * smoothness**2 * alpha**2 / nodes


TERMS = ("optimality", "noise", "start noise", "network start", "network start noise", "network noise")
"""The six terms of Theorem 1, in its order."""


def bound(
    constants: Constants, nodes: int, lam: float, alpha: float, steps: int, initial_batch: int = 1
) -> dict[str, float]:
    """Theorem 1's bound on E||grad F(x~_T)||^2, T = `steps` >= 2, term by term, for its own weight beta.

    >>> terms = bound(Constants(1.0, 1.0, 1.0, 1.0), nodes=20, lam=0.75, alpha=0.003, steps=10**6)
    >>> max(terms, key=terms.get), round(sum(terms.values()), 5)
    ('start noise', 0.01126)
    """
    nodes, steps, b0 = _check(nodes, lam), whole("steps", steps, least=2), whole("initial_batch", initial_batch, 1)
    most = largest_step_size(constants.smoothness, nodes, lam)
    require(0 < alpha < most, f"alpha = {alpha:g}: Theorem 1 holds below {most:g}; take a smaller step size")
    beta, noise, gap = weight(alpha, constants.smoothness, nodes), constants.variance, (1 - lam**2) ** 3
    values = (
        4 * constants.gap / (alpha * steps),
        8 * beta * noise / nodes,
        4 * noise / (beta * b0 * nodes * steps),
        64 * lam**4 * constants.gradient / (gap * nodes * steps),
        96 * lam**2 * noise / (gap * b0 * steps),
        256 * lam**2 * beta**2 * noise / gap,
    )
    return dict(zip(TERMS, values, strict=True))


def steady_state(variance: float, nodes: int, lam: float, beta: float) -> float:
    """Equation (SSE): what remains of Theorem 1's bound as T grows, 8 beta nu^2/n + 256 l^2 beta^2 nu^2/(1-l^2)^3."""
    nodes = _check(nodes, lam)
    return 8 * beta * variance / nodes + 256 * lam**2 * beta**2 * variance / (1 - lam**2) ** 3


class Parameters(NamedTuple):
    """Those of Corollary 1."""

    alpha: float
    beta: float
    initial_batch: int


def parameters(smoothness: float, nodes: int, steps: int) -> Parameters:
    """Corollary 1: alpha = n^(2/3)/(8 L T^(1/3)), beta = 3 n^(1/3)/(4 T^(2/3)), b_0 = ceil(T^(1/3)/n^(2/3)).

    >>> parameters(1.0, 8, 10**6)
    Parameters(alpha=0.005, beta=0.00015, initial_batch=25)
    """
    nodes, steps = whole("nodes", nodes, 1), whole("steps", steps, 1)
    root, scale = math.cbrt(steps), math.cbrt(nodes)
    alpha, beta = scale**2 / (8 * smoothness * root), 3 * scale / (4 * root**2)
    return Parameters(alpha, beta, math.ceil(root / scale**2))


def least_steps(nodes: int, lam: float) -> float:
    """Corollary 1 holds for T above this: max{1424 l^6 n^2/(1-l^2)^6, 35 l^3 n^0.5/(1-l)^1.5}, and (3/4)^1.5 n^2.

    The last is not in the corollary, but follows from Theorem 1, whose step size must be below 1/(4 sqrt(3) L); it is
    the only one that is left where lam is 0.
    """
    nodes = _check(nodes, lam)
    network = 1424 * lam**6 * nodes**2 / (1 - lam**2) ** 6, 35 * lam**3 * nodes**0.5 / (1 - lam) ** 1.5
    return max(*network, 0.75**1.5 * nodes**2)


def corollary(constants: Constants, nodes: int, lam: float, steps: int) -> dict[str, float]:
    """Corollary 1's bound on E||grad F(x~_T)||^2: the part without the network, and the two with it."""
    nodes, steps = _check(nodes, lam), whole("steps", steps, 1)
    gap = (1 - lam**2) ** 3
    return {
        "optimality and noise": (32 * constants.smoothness * constants.gap + 12 * constants.variance)
        / (nodes * steps) ** (2 / 3),
        "network start": 64 * lam**4 * constants.gradient / (gap * nodes * steps),
        "network noise": 240 * lam**2 * nodes ** (2 / 3) * constants.variance / (gap * steps ** (4 / 3)),
    }


class Complexity(NamedTuple):
    """Gradients a node needs for E||grad F|| <= epsilon, up to a universal constant."""

    optimal: float
    """H_opt, which does not depend on the network."""
    network: float
    """H_net."""

    @property
    def total(self) -> float:
        """The larger one."""
        return max(self)


def complexity(constants: Constants, nodes: int, lam: float, epsilon: float) -> Complexity:
    """H_opt and H_net of Corollary 1."""
    nodes = _check(nodes, lam)
    require(epsilon > 0, f"epsilon = {epsilon}: must be positive")
    scale = constants.smoothness * constants.gap + constants.variance
    start = lam**4 * constants.gradient / ((1 - lam**2) ** 3 * nodes * epsilon**2)
    noise = lam**1.5 * nodes**0.5 * constants.variance**0.75 / ((1 - lam**2) ** 2.25 * epsilon**1.5)
    return Complexity(scale**1.5 / (nodes * epsilon**3), max(start, noise))


def independent_below(nodes: int, lam: float) -> float:
    """The epsilon below which the rate no longer depends on the topology: min{l^-4 (1-l)^3, l^-1 (1-l)^1.5} / n.

    Up to a constant that depends on the problem, as in section 3.

    >>> independent_below(20, 0.0), independent_below(20, 0.5)
    (inf, 0.035355339059327376)
    """
    nodes = _check(nodes, lam)
    # Divided one by one, since a power of a tiny lam would be 0.
    return min((1 - lam) ** 3 / lam / lam / lam / lam, (1 - lam) ** 1.5 / lam) / nodes if lam else math.inf


def table1(nodes: int, lam: float, epsilon: float, exponent: float = 2.0) -> pd.DataFrame:
    """Table 1: the oracle complexity of each method at each node, without constants.

    Four rows have an exponent of 1 - lam that its paper does not give: `exponent` stands for it, and the column
    `exponent assumed` says where.

    >>> table1(20, 0.75, 1e-4).set_index("method")["complexity"].idxmin()
    'gt-hsgd'
    """
    import pandas as pd

    nodes, gap = _check(nodes, lam), 1 - lam
    require(epsilon > 0, f"epsilon = {epsilon}: must be positive")
    speedup, unknown = 1 / (nodes * epsilon**4), 1 / gap**exponent
    rows = [
        ("dsgd", "max{1/(n e^4), l^2 n/((1-l)^2 e^2)}", max(speedup, lam**2 * nodes / (gap**2 * epsilon**2)), False),
        ("d2", "max{1/(n e^4), n/((1-l)^b e^2)}", max(speedup, nodes * unknown / epsilon**2), True),
        ("gt-dsgd", "max{1/(n e^4), l^2 n/((1-l)^3 e^2)}", max(speedup, lam**2 * nodes / (gap**3 * epsilon**2)), False),
        ("d-pd-sgd", "max{1/(n e^4), n/((1-l)^c e^2)}", max(speedup, nodes * unknown / epsilon**2), True),
        ("d-get", "1/((1-l)^d e^3)", unknown / epsilon**3, True),
        ("d-spider-sfo", "1/((1-l)^h e^3)", unknown / epsilon**3, True),
        (
            "gt-hsgd",
            "max{1/(n e^3), l^4/((1-l)^3 e^2), l^1.5 n^0.5/((1-l)^2.25 e^1.5)}",
            max(
                1 / (nodes * epsilon**3),
                lam**4 / (gap**3 * epsilon**2),
                lam**1.5 * nodes**0.5 / (gap**2.25 * epsilon**1.5),
            ),
            False,
        ),
    ]
    return pd.DataFrame(rows, columns=["method", "order", "complexity", "exponent assumed"])


def _check(nodes: int, lam: float) -> int:
    require(0 <= lam < 1, f"lam = {lam}: must lie in [0, 1)")
    return whole("nodes", nodes, least=1)
