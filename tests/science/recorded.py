"""For `test_lemmas`: all iterates of runs with many seeds, the paper's inequalities on them, and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

import peerdescent as peer
from peerdescent import theory
from peerdescent.engines.compiled import _draw
from peerdescent.engines.mixing import weights_of
from peerdescent.engines.outline import outline
from peerdescent.engines.program import Net, Program, begin, number
from peerdescent.methods.estimators import hybrid
from peerdescent.methods.fusions import tracking
from peerdescent.problems.problem import cast

DOUBT = 1e-6
"""A verdict is wrong with at most this probability."""


def verdict(left: np.ndarray, right: np.ndarray, *, sure: bool = False) -> str:
    """Whether left <= right (seeds, times): "holds", "fails", or "open" if the seeds do not decide.

    `sure` inequalities must hold for every seed and time, up to rounding. The others are about expectations: each time
    has an interval for the mean of left - right, and by Bonferroni all of them are true together with probability
    1 - `DOUBT` on either side (normal approximation to the mean over a hundred seeds or more). "holds" requires that
    all intervals lie below zero, "fails" that one of them lies above. Noise alone gives neither.
    """
    excess = left - right
    rounding = (
        1e-9 * np.abs(right) + 1e-20
    )  # the latter for squares of what is zero, among numbers around 1
    if sure:
        return "holds" if (excess <= rounding).all() else "fails"
    seeds, times = excess.shape
    mean, room = excess.mean(axis=0), rounding.mean(axis=0)
    radius = norm.isf(DOUBT / times) * excess.std(axis=0, ddof=1) / math.sqrt(seeds)
    if (mean - radius > room).any():
        return "fails"
    return "holds" if (mean + radius <= room).all() else "open"


def smoothness(problem) -> float:
    """L of Assumption 1.

    Logistic: the slope of the loss is 1/4-Lipschitz, so E||g(x) - g(y)||^2 <= (x - y)' M (x - y) / 16 for its part of
    g, with M = mean_j ||theta_j||^2 theta_j theta_j'; the regulariser's part is (2 strength)-Lipschitz, and roots add.
    """
    if problem.name == "quadratic":
        return problem.smoothness
    rows, strength = (
        np.asarray(a, dtype=float) for a in (problem.data.rows, problem.data.numbers.strength)
    )
    fourth = np.einsum("imp,imq,im->ipq", rows, rows, square(rows)) / rows.shape[1]
    return float((np.sqrt(np.linalg.eigvalsh(fourth)[:, -1]) / 4 + 2 * strength).max())


def variance(problem) -> float:
    """The mean over nodes of nu_i^2; logistic: E||g - grad f||^2 <= mean_j ||theta_j||^2, wherever x is."""
    if problem.name == "quadratic":
        return float(problem.variance.mean())
    return float(square(np.asarray(problem.data.rows, dtype=float)).mean())


def minimum(problem) -> np.ndarray:
    """Where a quadratic F is least."""
    return np.linalg.solve(problem.data.matrix.mean(axis=0), problem.data.linear.mean(axis=0))


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem, a network, and the parameters that the lemmas use; a broken method may ignore them."""

    problem: peer.problems.Problem
    network: peer.Network
    alpha: float
    beta: float = 0.2
    initial_batch: int = 1

    @property
    def n(self) -> int:
        return self.network.n

    @cached_property
    def lam(self) -> float:
        return self.network.lam

    @cached_property
    def L(self) -> float:
        return smoothness(self.problem)

    @cached_property
    def noise(self) -> float:
        """nu_bar^2."""
        return variance(self.problem)

    def gap(self, x: np.ndarray) -> float:
        """F(x) - F*; the logistic cost is never negative, and 0 stands for its F*."""
        quadratic = self.problem.name == "quadratic"
        return self.problem.loss(x) - (
            self.problem.loss(minimum(self.problem)) if quadratic else 0.0
        )

    def run(
        self, steps: int = 40, seeds: int = 1000, *, x0=0.0, estimator=hybrid, fusion=tracking
    ) -> Run:
        """Iterations 0, ..., steps for every seed below `seeds`, with the package's own methods in one program."""
        method = peer.compose(estimator(self.beta, 1, self.initial_batch), fusion(self.alpha))
        with jax.enable_x64(True):
            x0 = jnp.broadcast_to(jnp.asarray(x0, float), (self.n, self.problem.dimension))
            numbers = {name: number(value, float) for name, value in method.numbers.items()}
            data, weights = cast(self.problem.data, float), weights_of(self.network, float)
            program = Program(method.pattern, self.problem.oracle, ())
            every, does = jnp.arange(seeds, dtype=jnp.uint32), outline(method)
            draw = partial(
                _draw, self.problem.oracle, None
            )  # a program of its own, which many share
            first = {one: draw(*one, 1, data, every, np.int32(0)) for one in does.first_requests}
            later = {one: draw(*one, steps, data, every, np.int32(1)) for one in does.requests}
            kept = _record(program, steps, numbers, data, weights, every, first, later, x0)
        return Run(self, *(np.asarray(a) for a in kept))


# There are dozens of programs that run for a fraction of a second each. Compilation takes most of the time, so the
# compiler's optimisation is off.
@partial(jax.jit, static_argnums=(0, 1), compiler_options={"xla_backend_optimization_level": 0})
def _record(program, steps, numbers, data, weights, seeds, first, later, x0):
    method = program.method.replace(**numbers)

    def kept(state):
        return state.x, state.fusion.v, state.fusion.y

    def one(seed, first, later):
        def body(state, step):
            t, drawn = step
            state = method.step(state, Net(program, data, weights, seed, t, drawn))
            return state, kept(state)

        start = begin(program, numbers, data, weights, seed, first, x0)
        rest = jax.lax.scan(body, start, (jnp.arange(1, steps + 1), later))[1]
        x, v, y = (jnp.concatenate([a[None], b]) for a, b in zip(kept(start), rest, strict=True))
        x = jnp.concatenate([x0[None], x])
        return (
            x,
            v,
            y,
            jax.vmap(lambda points: jax.vmap(program.oracle.exact)(points, data)[1])(x[:-1]),
        )

    return jax.vmap(one)(seeds, first, later)


@partial(jax.jit, static_argnums=0)
def _slopes(oracle, data, points):
    return jax.lax.map(
        lambda x: jax.vmap(oracle.exact, (None, 0))(x, data)[1].mean(axis=0),
        points,
        batch_size=4096,
    )


def square(a: np.ndarray) -> np.ndarray:
    """||a||^2 of vectors (..., p)."""
    return (a**2).sum(axis=-1)


def spread(a: np.ndarray) -> np.ndarray:
    """||a - Ja||^2 over nodes (..., n, p)."""
    return square(a - a.mean(axis=-2, keepdims=True)).sum(axis=-1)


def total(a: np.ndarray) -> np.ndarray:
    """Sums over times 0, ..., T, for every T."""
    return a.cumsum(axis=1)


class Run(NamedTuple):
    """x_0, ..., x_{T+1}; v_0, ..., v_T; y_1, ..., y_{T+1}; grad f(x_0), ..., grad f(x_T): all (seeds, times, n, p)."""

    setting: Setting
    x: np.ndarray
    v: np.ndarray
    y: np.ndarray
    local: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """||x_t - Jx_t||^2 for t = 0, ..., T, as in all of the following."""
        return spread(self.x[:, :-1])

    @property
    def mean(self) -> np.ndarray:
        """||v_bar_t||^2."""
        return square(self.v.mean(axis=2))

    @property
    def mean_error(self) -> np.ndarray:
        """||v_bar_t - mean grad f(x_t)||^2."""
        return square((self.v - self.local).mean(axis=2))

    @property
    def error(self) -> np.ndarray:
        """||v_t - grad f(x_t)||^2."""
        return square(self.v - self.local).sum(axis=2)

    @property
    def start(self) -> float:
        """||grad f(x_0)||^2."""
        return float(square(self.local[0, 0]).sum())

    def slopes(self, points: np.ndarray) -> np.ndarray:
        """The gradient of F at points (..., p)."""
        problem = self.setting.problem
        with jax.enable_x64(True):
            found = _slopes(
                problem.oracle, cast(problem.data, float), points.reshape(-1, problem.dimension)
            )
        return np.asarray(found).reshape(points.shape)


# The two sides of each lemma of section 5, in its order of terms. T is the last time of the sum, for every T there is.


def lemma_1a_y(run: Run):
    """||y_{t+1} - Jy_{t+1}|| <= lam ||z - Jz||, where y_{t+1} is the mix of z = y_t + v_t - v_{t-1}."""
    y, v = (np.concatenate([0 * a[:, :1], a], axis=1) for a in (run.y, run.v))
    return spread(run.y), run.setting.lam**2 * spread(y[:, :-1] + v[:, 1:] - v[:, :-1])


def lemma_1a_x(run: Run):
    """||x_{t+1} - Jx_{t+1}|| <= lam ||z - Jz||, where x_{t+1} is the mix of z = x_t - alpha y_{t+1}."""
    return spread(run.x[:, 1:]), run.setting.lam**2 * spread(
        run.x[:, :-1] - run.setting.alpha * run.y
    )


def lemma_1b(run: Run):
    """y_bar_{t+1} = v_bar_t."""
    away = square(run.y.mean(axis=2) - run.v.mean(axis=2))
    return away, 0 * away


def lemma_1c(run: Run):
    """||mean grad f(x_t) - grad F(x_bar_t)||^2 <= L^2/n ||x_t - Jx_t||^2."""
    away = square(run.local.mean(axis=2) - run.slopes(run.x[:, :-1].mean(axis=2)))
    return away, run.setting.L**2 / run.setting.n * run.apart


def lemma_2(run: Run):
    """Descent."""
    s = run.setting
    later = -run.mean / 2 + 2 * run.mean_error + 2 * s.L**2 / s.n * run.apart
    left = total(square(run.slopes(run.x[:, :-1].mean(axis=2))))
    return left, 2 * s.gap(run.x[0, 0, 0]) / s.alpha + total(later)


def lemma_3_mean(run: Run):
    """The variance of v_bar_t, t >= 1."""
    s, keep = run.setting, (1 - run.setting.beta) ** 2
    right = keep * (run.mean_error + 6 * s.L**2 * s.alpha**2 / s.n * run.mean)[:, :-1]
    right = right + 2 * s.beta**2 * s.noise / s.n
    return run.mean_error[:, 1:], right + 6 * s.L**2 / s.n**2 * keep * (
        run.apart[:, 1:] + run.apart[:, :-1]
    )


def lemma_3_all(run: Run):
    """The variances of all v_t^i, t >= 1."""
    s, keep = run.setting, (1 - run.setting.beta) ** 2
    right = keep * (run.error + 6 * s.n * s.L**2 * s.alpha**2 * run.mean)[:, :-1]
    right = right + 2 * s.n * s.beta**2 * s.noise
    return run.error[:, 1:], right + 6 * s.L**2 * keep * (run.apart[:, 1:] + run.apart[:, :-1])


def lemma_4_first(run: Run):
    """Consensus: contraction by (1 + lam^2) / 2."""
    s, squared = run.setting, run.setting.lam**2
    right = (1 + squared) / 2 * run.apart + 2 * s.alpha**2 * squared / (1 - squared) * spread(run.y)
    return spread(run.x[:, 1:]), right


def lemma_4_second(run: Run):
    """Consensus: the bound with 2 lam^2."""
    s, squared = run.setting, run.setting.lam**2
    return spread(run.x[:, 1:]), 2 * squared * run.apart + 2 * s.alpha**2 * squared * spread(run.y)


def lemma_5a(run: Run):
    """The first tracking error."""
    s = run.setting
    left = spread(run.y[:, :1])
    return left, np.full_like(left, s.lam**2 * (run.start + s.n * s.noise / s.initial_batch))


def lemma_5b(run: Run):
    """The tracking errors of y_{t+1}, t >= 1."""
    s, squared = run.setting, run.setting.lam**2
    right = (
        21 * s.n * s.L**2 * s.alpha**2 * run.mean
        + 63 * s.L**2 * run.apart
        + 7 * s.beta**2 * run.error
    )
    right = (3 + squared) / 4 * spread(run.y) + squared / (1 - squared) * right
    return spread(run.y[:, 1:]), right[:, :-1] + 3 * squared * s.n * s.beta**2 * s.noise


def lemma_7_mean(run: Run):
    """The accumulated variance of v_bar_t, T >= 1."""
    s, T = run.setting, np.arange(1, run.v.shape[1])
    moved = (
        6 * s.L**2 * s.alpha**2 / s.n * total(run.mean)[:, :-1]
        + 12 * s.L**2 / s.n**2 * total(run.apart)[:, 1:]
    )
    right = (s.noise / (s.initial_batch * s.n) + moved) / s.beta + 2 * s.beta * s.noise * T / s.n
    return total(run.mean_error)[:, 1:], right


def lemma_7_all(run: Run):
    """The accumulated variances of all v_t^i, T >= 1."""
    s, T = run.setting, np.arange(1, run.v.shape[1])
    moved = (
        6 * s.n * s.L**2 * s.alpha**2 * total(run.mean)[:, :-1]
        + 12 * s.L**2 * total(run.apart)[:, 1:]
    )
    right = (s.n * s.noise / s.initial_batch + moved) / s.beta + 2 * s.n * s.beta * s.noise * T
    return total(run.error)[:, 1:], right


def lemma_8(run: Run):
    """The accumulated consensus error, T >= 2."""
    s, gap, T = run.setting, 1 - run.setting.lam**2, np.arange(2, run.v.shape[1])
    right = 2016 * s.L**2 * s.alpha**2 / gap * total(run.mean)[:, :-2] + 32 * run.start / s.n
    right = right + (7 * s.beta / gap + 1) * 32 * s.noise / s.initial_batch
    right = right + (14 * s.beta / gap + 3) * 32 * s.beta**2 * s.noise * T
    return total(run.apart)[:, 2:] / s.n, s.lam**4 * s.alpha**2 / gap**3 * right


def theorem_1(run: Run, **weight: float):
    """The mean of ||grad F(x_t^i)||^2 over nodes and t = 0, ..., T, whose expectation Theorem 1 bounds, for some T."""
    s, horizons = run.setting, np.array([2, 10, 100, 300, run.v.shape[1] - 1])
    constants = theory.Constants(s.L, s.noise, run.start, s.gap(run.x[0, 0, 0]))
    terms = [
        theory.bound(constants, s.n, s.lam, s.alpha, int(T), s.initial_batch, **weight)
        for T in horizons
    ]
    left = total(square(run.slopes(run.x[:, :-1])).mean(axis=2))[:, horizons] / (horizons + 1)
    return left, np.broadcast_to([sum(each.values()) for each in terms], left.shape)


def theorem_1_wider(run: Run):
    """The same, bounded by the theorem's proof for a larger beta than the theorem's."""
    return theorem_1(run, beta=run.setting.beta)


SURE = lemma_1a_y, lemma_1a_x, lemma_1b, lemma_1c, lemma_2, lemma_4_first, lemma_4_second
"""Those that hold for every run; the others are about expectations."""


def judge(run: Run, *lemmas) -> dict[str, str]:
    """The verdict on each."""
    return {lemma.__name__: verdict(*lemma(run), sure=lemma in SURE) for lemma in lemmas}


def all_of(word: str, *lemmas) -> dict[str, str]:
    """The same verdict on each."""
    return {lemma.__name__: word for lemma in lemmas}
