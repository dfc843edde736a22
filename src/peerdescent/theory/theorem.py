"""The paper's results as functions: what Theorem 1 and Corollary 1 promise GT-HSGD, and the complexities of Table 1.

Nothing is hidden in constants, so the bounds can be set beside what runs measure; `constants` finds those of a problem.
Equations are those of Xin, Khan and Kar, ICML 2021. n is the number of nodes, lam is lambda = ||W - 11'/n||, and where
lam is 0 the terms of the network vanish. Everything heavy is imported inside functions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from peerdescent.errors import require, whole

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem


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
    variances: tuple[float, ...] = ()
    """nu_i^2 at each node."""
    uncertainty: float = 0.0
    """Half the width of the 95 % confidence interval of `variance`; 0 where it is exact."""
    uncertainties: tuple[float, ...] = ()
    """The same for `variances`."""


def constants(
    problem: Problem,
    x0: Any = None,
    *,
    points: Sequence[Any] = (),
    samples: int | None = None,
    smoothness: float | None = None,
    starts: int = 4,
    seed: int = 0,
) -> Constants:
    """The constants of a problem that is started at x_0 (p,), by default where `run` starts it.

    - L is exact for quadratics. For logistic regression it is max_i sqrt(e_i) / 4 + s, where e_i is the largest
      eigenvalue of mean_j ||theta_ij||^2 theta_ij theta_ij' and s the smoothness of the regulariser: the slope of the
      logistic function is at most 1/4. For a stream it follows from the fourth moments of its Gaussian regressors. For
      other losses nobody knows it: give it as `smoothness`.
    - nu_i^2 is known for quadratics. Elsewhere it is the largest value of E||g_i(x, xi) - grad f_i(x)||^2 over x_0 and
      `points`, computed over all samples of a finite sum, or estimated from `samples` draws a node, with a confidence
      interval. Assumption 1 asks for a bound at all x that a run visits: give points that it visited.
    - F* is the smallest value that `problems.optimum` finds in `starts` searches.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> found = constants(peer.problems.quadratic(np.stack([np.eye(2), 3 * np.eye(2)]), noise=2.0), [1.0, 1.0])
    >>> found.smoothness, found.variance, found.gradient, round(found.gap, 9)
    (3.0, 4.0, 20.0, 2.0)
    """
    import numpy as np

    from peerdescent.problems import optimum
    from peerdescent.runs.checks import starting_point

    if smoothness is not None:
        require(0 < smoothness < math.inf, f"smoothness = {smoothness}: must be positive and finite")
    for point in points:
        shape = np.shape(point)
        require(shape == (problem.dimension,), f"a point has shape {shape}: must be {(problem.dimension,)}")
    start = starting_point(x0, problem, np.dtype("float64"))
    require(bool((start == start[0]).all()), "x0 differs between nodes: the paper starts all of them at one point")
    found = Constants(
        smoothness=smoothness_of(problem) if smoothness is None else float(smoothness),
        variance=0.0,
        gradient=float((problem.exact(start[0])[1] ** 2).sum()),
        gap=problem.loss(start[0]) - optimum(problem, starts, seed).value,
    )
    require(
        math.isfinite(found.gap),
        f"{problem.name} has no smallest value, which Assumption 2 asks for: give a problem that is bounded below",
    )
    return visiting(found, problem, [start[0], *points], samples, seed)


def visiting(
    known: Constants, problem: Problem, points: Sequence[Any], samples: int | None = None, seed: int = 0
) -> Constants:
    """The same constants with variances that hold at these points as well."""
    import numpy as np

    from peerdescent.problems.variance import variances as at

    if problem.variance is not None:
        each, errors = np.asarray(problem.variance, dtype=float), np.zeros(problem.nodes)
    else:
        found = [at(problem, point, samples, seed) for point in points]
        values, halves = (np.stack(part) for part in zip(*found, strict=True))
        if known.variances:
            values, halves = np.vstack([values, known.variances]), np.vstack([halves, known.uncertainties])
        each, errors = values.max(axis=0), halves.max(axis=0)
    return known._replace(
        variance=float(each.mean()),
        variances=tuple(each.tolist()),
        uncertainty=float(np.linalg.norm(errors)) / problem.nodes,
        uncertainties=tuple(errors.tolist()),
    )


def smoothness_of(problem: Problem) -> float:
    """L of Assumption 1, where it is known."""
    import numpy as np
    from scipy import sparse

    from peerdescent.problems.regression import Logistic, rows_of

    if problem.smoothness is not None:
        return problem.smoothness
    require(
        isinstance(problem.oracle, Logistic),
        f"nobody knows the smoothness of {problem.name}: give it, as in constants(problem, smoothness=10.0)",
    )
    assert isinstance(problem.oracle, Logistic)
    # The mean of ||theta||^2 theta theta' is A'A, where the rows of A are ||theta|| theta / sqrt(m).
    largest = 0.0
    for rows in rows_of(problem):
        A = sparse.diags_array(np.sqrt((rows * rows).sum(axis=1) / rows.shape[0])) @ rows
        gram = A.T @ A if rows.shape[0] > rows.shape[1] else A @ A.T
        gram = gram.toarray() if sparse.issparse(gram) else gram
        largest = max(largest, float(np.linalg.eigvalsh(gram)[-1]))
    return math.sqrt(largest) / 4 + problem.oracle.curvature * float(problem.data.numbers[0])


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
    check_step_size(alpha, constants.smoothness, nodes, lam)
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
    """Equation (3): what remains of Theorem 1's bound as T grows, 8 beta nu^2/n + 256 l^2 beta^2 nu^2/(1-l^2)^3."""
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
    require(smoothness > 0, f"smoothness = {smoothness}: must be positive")
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
    return _corollary(constants, _check(nodes, lam), lam, whole("steps", steps, 1))


def _corollary(constants: Constants, nodes: int, lam: float, steps: float) -> dict[str, float]:
    gap = (1 - lam**2) ** 3
    return {
        "optimality and noise": (32 * constants.smoothness * constants.gap + 12 * constants.variance)
        / (nodes * steps) ** (2 / 3),
        "network start": 64 * lam**4 * constants.gradient / (gap * nodes * steps),
        "network noise": 240 * lam**2 * nodes ** (2 / 3) * constants.variance / (gap * steps ** (4 / 3)),
    }


def gt_hsgd_parameters(
    problem: Problem, network: Network, steps: int, *, smoothness: float | None = None
) -> Parameters:
    """Corollary 1's alpha, beta and b_0 for this problem, this network and a run of `steps` iterations.

    Where the corollary's condition on T = `steps` fails, a warning names the T that would be needed.

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
    check_static(network)
    found = parameters(smoothness_of(problem) if smoothness is None else smoothness, network.n, steps)
    needed = least_steps(network.n, network.lam)
    if steps <= needed:
        warnings.warn(
            f"steps = {steps:,}: Corollary 1 holds for more than {needed:,.0f} steps on {network.name} "
            f"(n = {network.n}, lambda = {network.lam:.3g}); these parameters come without its promise",
            stacklevel=2,
        )
    return found


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


def steps_for(constants: Constants, nodes: int, lam: float, epsilon: float) -> float:
    """The T at which Corollary 1's bound has fallen to epsilon^2; its condition on T may ask for more.

    >>> known = Constants(1.0, 1.0, 1.0, 1.0)
    >>> round(steps_for(known, 1, 0.0, 0.1)), round(44**1.5 / 0.1**3)
    (291863, 291863)
    """
    from scipy.optimize import brentq

    require(epsilon > 0, f"epsilon = {epsilon}: must be positive")
    nodes = _check(nodes, lam)

    def above(log: float) -> float:
        return math.log(sum(_corollary(constants, nodes, lam, math.exp(log)).values()) / epsilon**2)

    return math.exp(brentq(above, -300.0, 300.0, xtol=1e-12))


def independent_below(nodes: int, lam: float, constants: Constants | None = None) -> float:
    """The epsilon below which the rate no longer depends on the topology: min{l^-4 (1-l)^3, l^-1 (1-l)^1.5} / n.

    This is section 3's order, without the problem's constants. With them it is where H_opt of Corollary 1 equals H_net.

    >>> independent_below(20, 0.0), independent_below(20, 0.5)
    (inf, 0.035355339059327376)
    """
    nodes = _check(nodes, lam)
    if lam and constants is not None:
        scale, gap = constants.smoothness * constants.gap + constants.variance, 1 - lam**2
        start = scale**1.5 * gap**3 / lam / lam / lam / lam / constants.gradient if constants.gradient else math.inf
        noise = scale * gap**1.5 / (nodes * lam * math.sqrt(constants.variance)) if constants.variance else math.inf
        return min(start, noise)
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
    require(0 < epsilon < math.inf, f"epsilon = {epsilon}: must be positive and finite")
    require(math.isfinite(exponent), f"exponent = {exponent}: must be finite")
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


def check_step_size(alpha: float, smoothness: float, nodes: int, lam: float) -> None:
    """Refuse step sizes outside Theorem 1's range."""
    most = largest_step_size(smoothness, nodes, lam)
    require(0 < alpha < most, f"alpha = {alpha:g}: must be positive, and below {most:g} for Theorem 1 to hold")


def check_static(network: Network) -> None:
    """Refuse networks that change with t."""
    static = network.period == 1
    require(static, f"{network.name} changes with t, and the paper's W does not: give a network that stays")


def _check(nodes: int, lam: float) -> int:
    require(0 <= lam < 1, f"lam = {lam}: must lie in [0, 1)")
    return whole("nodes", nodes, least=1)
