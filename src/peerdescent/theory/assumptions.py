"""The paper's constants of a problem and a network: L, variance, gap at the start, lambda."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from peerdescent.errors import require, whole
from peerdescent.networks.network import Network
from peerdescent.problems.linear_models import model_of, rows_of, scale_of
from peerdescent.problems.minimise import optimum
from peerdescent.problems.problem import Problem
from peerdescent.problems.quadratics import Quadratic
from peerdescent.problems.regularisers import CURVATURES
from peerdescent.problems.streams import Stream
from peerdescent.problems.variance import loss_gradients
from peerdescent.problems.variance import variances as variances_at
from peerdescent.runs.checks import starting_point

LARGE = 2000
"""From this size on, the largest eigenvalue of a matrix is found by iteration."""


class Constants(NamedTuple):
    """The constants of a problem and its starting point that the bounds depend on."""

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
    """Half the width of the 95 % confidence interval of `variance`; 0 if that is exact."""
    uncertainties: tuple[float, ...] = ()
    """The same for `variances`."""
    bounded: bool = True
    """True if the variances hold at all x; else they are those at some points, and no bound."""

    @property
    def basis(self) -> str:
        """Where the variances hold, in words."""
        return "for all x" if self.bounded else "estimated at the start, no bound"


def constants(
    problem: Problem,
    x0: Any = None,
    *,
    variance: float | str | None = None,
    points: Sequence[Any] = (),
    samples: int | None = None,
    smoothness: float | None = None,
    starts: int = 4,
    seed: int = 0,
) -> Constants:
    """The constants of a problem that starts at x_0.

    - L is exact for quadratics. For linear models it is max_i c sqrt(e_i) + s, where e_i is the largest eigenvalue of
      mean_j ||theta_ij||^2 theta_ij theta_ij', s the smoothness of the regulariser and c the largest second derivative
      of the loss of a row: 1/4 for logistic and 1/2 for softmax regression, 1 for least squares and robust losses,
      1 / smoothing for an SVM. For a stream it follows from the fourth moments of its Gaussian regressors. For other
      losses it is unknown: pass it as `smoothness`.
    - nu_i^2 is by `variance`. "everywhere" is a bound for all x, as Assumption 1 asks: exact for quadratics, and
      s^2 mean_j ||theta_ij||^2 for linear models whose loss has slopes of norm s at most: s^2 is 1 for logistic
      regression and SVM, 2 for softmax regression. Least squares, streams and losses of your own have no such bound.
      "start" is the largest value of E||g_i(x, xi) - grad f_i(x)||^2 over x_0 and `points`, no bound, computed over all
      samples of a finite sum, or estimated from `samples` draws per node, with a confidence interval. A number is a
      bound that you know.
    - F* is the smallest value that `problems.optimum` finds in `starts` searches.

    Args:
        problem: The problem.
        x0: The starting point, (p,), or (n, p) with equal rows; by default the problem's, else
            zeros.
        variance: "everywhere", "start" or a number; by default "everywhere" where there is a bound,
            else "start", which it also is where `points` or `samples` are given.
        points: More points (p,) at which "start" computes the variance.
        samples: How many samples "start" draws per node. None for all samples of a finite sum, else
            10,000.
        smoothness: L; by default `smoothness_of(problem)`.
        starts: The number of searches for F*.
        seed: For the samples and the random starting points of the searches.

    Returns:
        The constants.

    >>> import numpy as np
    >>> import peerdescent as peer
    >>> found = constants(peer.problems.quadratic(np.stack([np.eye(2), 3 * np.eye(2)]), noise=2.0), [1.0, 1.0])
    >>> found.smoothness, found.variance, found.gradient, round(found.gap, 9)
    (3.0, 4.0, 20.0, 2.0)
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(20))
    >>> round(constants(problem).variance, 3), round(constants(problem, variance="start").variance, 3)
    (1.0, 0.242)
    """
    check_problem(problem)
    bounds = loss_gradients(problem) if problem.variance is None else problem.variance
    if variance is None:
        variance = "start" if bounds is None or samples or len(points) else "everywhere"
    words: dict[str, Any] = {"start": 0.0, "everywhere": bounds}
    known: Any = words.get(variance) if isinstance(variance, str) else variance
    is_number = isinstance(variance, Real) and 0 <= float(variance) < math.inf
    require(
        is_number or (isinstance(variance, str) and known is not None),
        f"variance = {variance!r}: must be 'start', a number of at least 0, or 'everywhere' where a bound for all x is "
        f"known, and {problem.name} has {'none' if bounds is None else 'one'}",
    )
    each = np.broadcast_to(known, problem.nodes)
    if smoothness is not None:
        require(
            0 < smoothness < math.inf, f"smoothness = {smoothness}: must be positive and finite"
        )
    for point in points:
        shape = np.shape(point)
        require(
            shape == (problem.dimension,),
            f"a point has shape {shape}: must be {(problem.dimension,)}",
        )
    start = _common(x0, problem)
    found = Constants(
        smoothness=smoothness_of(problem) if smoothness is None else float(smoothness),
        variance=float(each.mean()),
        gradient=float((problem.exact(start)[1] ** 2).sum()),
        gap=problem.loss(start) - optimum(problem, starts, seed).value,
        variances=tuple(each.tolist()),
        uncertainties=(0.0,) * problem.nodes,
        bounded=variance != "start" or problem.variance is not None,
    )
    require(
        math.isfinite(found.gap),
        f"{problem.name} has no smallest value, which Assumption 2 asks for: give a problem that is bounded below",
    )
    return (
        visiting(found, problem, [start, *points], samples, seed) if variance == "start" else found
    )


def visiting(
    known: Constants,
    problem: Problem,
    points: Sequence[Any],
    samples: int | None = None,
    seed: int = 0,
) -> Constants:
    """The same constants with variances that hold at these points as well.

    Args:
        known: The constants so far.
        problem: The problem.
        points: The points (p,).
        samples: How many samples to draw per node. None for all samples of a finite sum, else
            10,000.
        seed: For the samples.

    Returns:
        The constants. Each nu_i^2 is the largest of the value in `known` and those at the points,
        or the problem's own if it is known exactly.
    """
    if problem.variance is not None:
        each, errors = np.asarray(problem.variance, dtype=float), np.zeros(problem.nodes)
    else:
        found = [variances_at(problem, point, samples, seed) for point in points]
        values, halves = (np.stack(part) for part in zip(*found, strict=True))
        if known.variances:
            values, halves = (
                np.vstack([values, known.variances]),
                np.vstack([halves, known.uncertainties]),
            )
        each, errors = values.max(axis=0), halves.max(axis=0)
    return known._replace(
        variance=float(each.mean()),
        variances=tuple(each.tolist()),
        uncertainty=float(np.linalg.norm(errors)) / problem.nodes,
        uncertainties=tuple(errors.tolist()),
    )


def heterogeneity(problem: Problem, x: Any = None) -> float:
    """zeta^2, the mean over nodes of ||grad f_i(x) - grad F(x)||^2 at x (p,), by default x_0.

    >>> import peerdescent as peer
    >>> digits = peer.datasets.load("digits")
    >>> uniform, skewed = (peer.problems.logistic(digits.partition(20, by)) for by in ("uniform", "label"))
    >>> round(heterogeneity(uniform), 3), round(heterogeneity(skewed), 3)
    (0.003, 0.17)
    """
    grads = problem.exact(_common(x, problem))[1]
    return float(((grads - grads.mean(axis=0)) ** 2).sum()) / problem.nodes


def heterogeneity_bound(problem: Problem) -> float:
    """A bound on zeta^2 for all x, as DSGD's rate in Table 1 assumes; infinite if none is known.

    It is known for linear models whose loss has bounded slopes, as the variance of `constants` is.
    For `streaming`, and for quadratics with one matrix, zeta^2 is the same at all x.

    >>> import peerdescent as peer
    >>> heterogeneity_bound(peer.problems.quadratic(np.ones((2, 1, 1)), [[1.0], [5.0]]))
    4.0
    """
    oracle, bounds = problem.oracle, loss_gradients(problem)
    if isinstance(oracle, Stream) or (
        isinstance(oracle, Quadratic) and not np.ptp(problem.data.matrix, axis=0).any()
    ):
        return heterogeneity(problem)
    return math.inf if bounds is None else float(bounds.mean())


def check_problem(problem: Problem) -> None:
    """Refuse a problem with a non-smooth term, since the paper's F is smooth."""
    require(
        problem.penalty is None,
        f"{problem.name} has a non-smooth term, and the theory is for smooth problems: give the problem without it",
    )


def smoothness_of(problem: Problem) -> float:
    """L of Assumption 1; a ValueError if it is not known for the problem."""
    if problem.smoothness is not None:
        return problem.smoothness
    model = model_of(problem)
    if model is None or model.regulariser not in CURVATURES:
        text = f"nobody knows the smoothness of {problem.name}"
        raise ValueError(f"{text}: give it, as in constants(problem, smoothness=10.0)")
    curvature = model.loss.curvature(scale_of(problem))
    # The mean of ||theta||^2 theta theta' is A'A, where the rows of A are ||theta|| theta /
    # sqrt(m).
    largest = 0.0
    for rows in rows_of(problem):
        A = sparse.diags_array(np.sqrt((rows * rows).sum(axis=1) / rows.shape[0])) @ rows
        if min(A.shape) > LARGE:
            first = np.ones(min(A.shape))
            found = float(svds(A, k=1, v0=first, return_singular_vectors=False)[0]) ** 2
        else:
            gram = A.T @ A if rows.shape[0] > rows.shape[1] else A @ A.T
            gram = gram.toarray() if sparse.issparse(gram) else gram
            found = float(np.linalg.eigvalsh(gram)[-1])
        largest = max(largest, found)
    return math.sqrt(largest) * curvature + CURVATURES[model.regulariser] * float(
        problem.data.numbers.strength[0]
    )


def check_network(network: Network) -> None:
    """Refuse a network outside Assumption 3: W is known, doubly stochastic and constant."""
    reason = "has push-pull weights" if network.pushed is not None else "changes with t"
    if network.faults:
        reason = f"has {' and '.join(map(str, network.faults))}"
    require(
        network.is_known and network.period == 1,
        f"{network.name} {reason}; the theory is for a W that is known, doubly stochastic and the same at every step: "
        "give a static network, without faults or push-pull weights",
    )


def _common(x: Any, problem: Problem) -> np.ndarray:
    """A point (p,) that all nodes share."""
    start = starting_point(x, problem, np.dtype("float64"))
    require(
        bool((start == start[0]).all()),
        "x0 differs between nodes: the paper starts all of them at one point",
    )
    return start[0]


def check_sizes(nodes: int, lam: float) -> int:
    """`nodes` as an int; refuse sizes and lambdas that no network has."""
    require(0 <= lam < 1, f"lam = {lam}: must lie in [0, 1)")
    return whole("nodes", nodes, least=1)
