"""Fusions: how nodes combine their estimates v_t with their neighbours and compute x_{t+1}.

Each is a dataclass derived from `Part`. Its fields declare its hyperparameters, and `needs` its requirements on the
weights W. `init` and `step` use arithmetic and the verbs of `net` only. A new fusion is a class here and an entry of
`FUSIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

from peerdescent.compressors import Compressor, top_k
from peerdescent.errors import require
from peerdescent.methods.contract import Needs, Net, Vector
from peerdescent.methods.parameters import Part, compression, count, number, step_size, switch


class Tracked(NamedTuple):
    """The gradient tracker y_{t+1}, and the estimate v_t it was updated with."""

    y: Vector
    v: Vector


@dataclass(frozen=True)
class consensus(Part):
    """Average, then descend: x_{t+1} = W x_t - alpha v_t; with `atc`, x_{t+1} = W(x_t - alpha v_t).

    Lian et al. 2017.
    """

    alpha: float = step_size(0.1)
    atc: bool = switch(False)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Any]:
        """The rule of `step`, also in iteration 0."""
        return self.step(x, v, (), net)

    def step(self, x: Vector, v: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """One round."""
        if self.atc:
            return net.mix(x - self.alpha * v), ()
        return net.mix(x) - self.alpha * v, ()


@dataclass(frozen=True)
class tracking(Part):
    """Gradient tracking: y_{t+1} = W(y_t + v_t - v_{t-1}); x_{t+1} = W(x_t - alpha y_{t+1}).

    The mean of y_{t+1} is the mean of v_t at all times. With `atc=False`: y_{t+1} = W y_t + v_t - v_{t-1},
    x_{t+1} = W x_t - alpha y_{t+1}. Di Lorenzo and Scutari 2016; Xu et al. 2015; Algorithm 1 of the paper.
    """

    alpha: float = step_size(0.1)
    atc: bool = switch(True)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Tracked]:
        """Iteration 0, with y_0 = 0 and v_{-1} = 0."""
        nothing = 0 * v
        return self.step(x, v, Tracked(nothing, nothing), net)

    def step(self, x: Vector, v: Vector, previous: Tracked, net: Net) -> tuple[Vector, Tracked]:
        """Two rounds: one for y, one for x."""
        if self.atc:
            y = net.mix(previous.y + v - previous.v)
            return net.mix(x - self.alpha * y), Tracked(y, v)
        y = net.mix(previous.y) + v - previous.v
        return net.mix(x) - self.alpha * y, Tracked(y, v)


@dataclass(frozen=True)
class exact_diffusion(Part):
    """D2: z_t = x_t - alpha v_t - u_t; x_{t+1} = W z_t; u_{t+1} = u_t + z_t - W z_t, with u_0 = 0.

    This is x_1 = W(x_0 - alpha v_0), x_{t+1} = W(2 x_t - x_{t-1} - alpha(v_t - v_{t-1})) in a form whose rounding does
    not accumulate: there, rounding in the mean of x is summed twice. Needs W symmetric, its smallest eigenvalue above
    -1/3, and the same at every step. Yuan et al. 2019; Tang et al. 2018.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(symmetric=True, smallest_eigenvalue=-1 / 3, static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u_0 = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is u_{t+1}."""
        z = x - self.alpha * v - u
        disagreement = net.disagree(z)
        return z - disagreement, u + disagreement


@dataclass(frozen=True)
class nids(Part):
    """Exact diffusion with (I + W)/2 in place of W, and without a round in iteration 0.

    x_1 = x_0 - alpha v_0; x_{t+1} = (I + W)/2 (2 x_t - x_{t-1} - alpha(v_t - v_{t-1})), computed as `exact_diffusion`
    is. Any symmetric W that stays will do, since all eigenvalues of (I + W)/2 are positive. Li, Shi and Yan 2019.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(symmetric=True, static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u_1 = 0: no round."""
        return x - self.alpha * v, 0 * v

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is u_{t+1}."""
        z = x - self.alpha * v - u
        disagreement = net.disagree(z) / 2
        return z - disagreement, u + disagreement


def _by_step_size(coupling: float, row: Mapping[str, Any], samples: float | None) -> float:
    """Divided by eta."""
    eta = row["eta"]
    known = isinstance(eta, Real)
    require(
        known,
        f"alpha and kappa are tuned as parts of 1/eta, and eta = {eta} is no number: give both",
    )
    return coupling / float(eta)


@dataclass(frozen=True)
class primal_dual(Part):
    """Primal-dual: x_{t+1} = x_t - eta(alpha Lx_t + kappa u_t + v_t); u_{t+1} = u_t + eta kappa Lx_t.

    Lx = x - W x is the disagreement with the neighbours. Needs W symmetric. Yi et al. 2020.
    """

    eta: float = step_size(0.1)
    alpha: float = number(
        1.0,
        low=0,
        above=True,
        tuned=(0.25, 0.5, 1.0),
        scaled=_by_step_size,
    )
    kappa: float = number(
        1.0,
        low=0,
        above=True,
        tuned=(0.1, 0.35, 0.7),
        scaled=_by_step_size,
    )
    needs: ClassVar[Needs] = Needs(symmetric=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u_0 = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is u_{t+1}."""
        disagreement = net.disagree(x)
        x = x - self.eta * (self.alpha * disagreement + self.kappa * u + v)
        return x, u + self.eta * self.kappa * disagreement


@dataclass(frozen=True)
class push_pull(Part):
    """Gradient tracking on any strongly connected directed graph: y_t = B y_{t-1} + v_t - v_{t-1}, with y_0 = v_0.

    x_{t+1} = A(x_t - alpha y_t). The rows of A sum to 1 (`mix`), the columns of B do (`push`); both are W where that is
    doubly stochastic. Xin and Khan 2018; Pu et al. 2020.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(doubly_stochastic=False)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Tracked]:
        """Iteration 0, with y_0 = v_0: one round."""
        return net.mix(x - self.alpha * v), Tracked(v, v)

    def step(self, x: Vector, v: Vector, previous: Tracked, net: Net) -> tuple[Vector, Tracked]:
        """Two rounds: one for y, one for x."""
        y = net.push(previous.y) + v - previous.v
        return net.mix(x - self.alpha * y), Tracked(y, v)


class Pushed(NamedTuple):
    """The vector u that is pushed, and the number w that is pushed with it: x = u / w."""

    u: Vector
    w: Any


@dataclass(frozen=True)
class push_sum(Part):
    """Push-sum: u_{t+1} = B(u_t - alpha v_t), w_{t+1} = B w_t, x_{t+1} = u_{t+1} / w_{t+1}, with u_0 = x_0 and w_0 = 1.

    w is a number at every node. Any strongly connected directed graph will do. Where B is doubly stochastic, w stays 1,
    and it is `consensus` with `atc`. Nedich and Olshevsky 2016; Assran et al. 2019.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(doubly_stochastic=False)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Pushed]:
        """The rule of `step`, also in iteration 0."""
        return self.step(x, v, Pushed(x, 1.0), net)

    def step(self, x: Vector, v: Vector, last: Pushed, net: Net) -> tuple[Vector, Pushed]:
        """One round."""
        u, w = net.push(last.u - self.alpha * v, last.w)
        return u / w, Pushed(u, w)


class PushedTracked(NamedTuple):
    """The vector and the number that are pushed, the gradient tracker, and the estimate it was updated with."""

    u: Vector
    w: Any
    y: Vector
    v: Vector


@dataclass(frozen=True)
class push_sum_tracking(Part):
    """Gradient tracking by push-sum: y_t = B y_{t-1} + v_t - v_{t-1}, with y_0 = v_0.

    u_{t+1} = B u_t - alpha y_t, w_{t+1} = B w_t, x_{t+1} = u_{t+1} / w_{t+1}, with u_0 = x_0 and w_0 = 1. Any strongly
    connected directed graph will do. Xi, Xin and Khan 2018.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(doubly_stochastic=False)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, PushedTracked]:
        """Iteration 0, with y_0 = v_0: one round."""
        return self._descend(PushedTracked(x, 1.0, v, v), net)

    def step(
        self, x: Vector, v: Vector, last: PushedTracked, net: Net
    ) -> tuple[Vector, PushedTracked]:
        """Two rounds: one for y, one for u and w."""
        return self._descend(last._replace(y=net.push(last.y) + v - last.v, v=v), net)

    def _descend(self, now: PushedTracked, net: Net) -> tuple[Vector, PushedTracked]:
        u, w = net.push(now.u, now.w)
        u = u - self.alpha * now.y
        return u / w, now._replace(u=u, w=w)


@dataclass(frozen=True)
class extra(Part):
    """EXTRA: x_1 = W x_0 - alpha v_0; x_{t+1} = x_t + W x_t - (x_{t-1} + W x_{t-1})/2 - alpha (v_t - v_{t-1}).

    Computed as x_{t+1} = W x_t - alpha v_t - u_t, u_{t+1} = u_t + (x_t - W x_t)/2 with u_0 = 0, which is the same, and
    whose rounding does not accumulate. Needs W symmetric and the same at every step. Shi et al. 2015.
    """

    alpha: float = step_size(0.1)
    needs: ClassVar[Needs] = Needs(symmetric=True, static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u_0 = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is u_{t+1}."""
        disagreement = net.disagree(x)
        return x - disagreement - self.alpha * v - u, u + disagreement / 2


def _momentum(default: float) -> Any:
    """Declare a weight of what is remembered."""
    tuned = (0.5, 0.7, 0.9, 0.95)
    return number(default, low=0, high=1, note="0 remembers nothing", tuned=tuned)


@dataclass(frozen=True)
class quasi_global(Part):
    """Momentum by what neighbours agreed on: x_{t+1} = W(x_t - alpha (v_t + mu m)).

    m = mu m + (1 - mu)(x_t - x_{t+1})/alpha, from 0. Lin et al. 2021.
    """

    alpha: float = step_size(0.1)
    mu: float = _momentum(0.9)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with m = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, m: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is m."""
        new = net.mix(x - self.alpha * (v + self.mu * m))
        return new, self.mu * m + (1 - self.mu) * (x - new) / self.alpha


@dataclass(frozen=True)
class decentlam(Part):
    """Momentum without the bias that it adds to `consensus`: m = mu m + (x_t - W(x_t - alpha v_t))/alpha, from 0.

    x_{t+1} = x_t - alpha m. Yuan et al. 2021.
    """

    alpha: float = step_size(0.1)
    mu: float = _momentum(0.9)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with m = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, m: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is m."""
        m = self.mu * m + (x - net.mix(x - self.alpha * v)) / self.alpha
        return x - self.alpha * m, m


def _consensus_step(default: float) -> Any:
    """Declare a step towards the neighbours."""
    tuned = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
    return number(default, low=0, high=1, above=True, tuned=tuned)


class Public(NamedTuple):
    """What neighbours know of a vector, z, and the mean of theirs, W z, kept without sending z."""

    z: Vector
    mixed: Vector

    def told(self, x: Vector, operator: Compressor, net: Net) -> Public:
        """After a compressed correction towards x was sent: one round."""
        q = net.compress(x - self.z, operator)
        return Public(self.z + q, self.mixed + net.mix(q))


@dataclass(frozen=True)
class choco(Part):
    """Compressed consensus with error feedback: h = x_t - alpha v_t; z += C(h - z); x_{t+1} = h + gamma (W z - z).

    z, which is what neighbours know of h, is 0 at first. Needs W to be the same at every step. Koloskova et al. 2019.
    """

    alpha: float = step_size(0.1)
    gamma: float = _consensus_step(0.2)
    compressor: Compressor = compression(top_k(0.1))
    needs: ClassVar[Needs] = Needs(static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Public]:
        """Iteration 0, with z = 0."""
        return self.step(x, v, Public(0 * v, 0 * v), net)

    def step(self, x: Vector, v: Vector, public: Public, net: Net) -> tuple[Vector, Public]:
        """One round, of q."""
        h = x - self.alpha * v
        public = public.told(h, self.compressor, net)
        return h + self.gamma * (public.mixed - public.z), public


class Compressed(NamedTuple):
    """The tracker and the estimate it was updated with, and what neighbours know of the tracker and of x."""

    y: Vector
    v: Vector
    of_y: Public
    of_x: Public


@dataclass(frozen=True)
class compressed_tracking(Part):
    """Gradient tracking with compressed messages and error feedback, G and H being what neighbours know of y and x.

    y_0 = v_0; then y += gamma (W G - G) + v_t - v_{t-1}, G += C(y - G). Always x_{t+1} = x_t + gamma (W H - H) -
    alpha y; H += C(x_{t+1} - H). G = H = 0 at first. Needs W to be the same at every step. Zhao et al. 2022.
    """

    alpha: float = step_size(0.1)
    gamma: float = _consensus_step(0.2)
    compressor: Compressor = compression(top_k(0.1))
    needs: ClassVar[Needs] = Needs(static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Compressed]:
        """Iteration 0, with y_0 = v_0: one round."""
        nothing = Public(0 * v, 0 * v)
        return self._descend(x, Compressed(v, v, nothing, nothing), net)

    def step(self, x: Vector, v: Vector, last: Compressed, net: Net) -> tuple[Vector, Compressed]:
        """Two rounds: one for y, one for x."""
        y = last.y + self.gamma * (last.of_y.mixed - last.of_y.z) + v - last.v
        return self._descend(
            x, Compressed(y, v, last.of_y.told(y, self.compressor, net), last.of_x), net
        )

    def _descend(self, x: Vector, now: Compressed, net: Net) -> tuple[Vector, Compressed]:
        x = x + self.gamma * (now.of_x.mixed - now.of_x.z) - self.alpha * now.y
        return x, now._replace(of_x=now.of_x.told(x, self.compressor, net))


def _interval(default: int) -> Any:
    """Declare a number of local steps."""
    return count(default, tuned=(2, 4, 8, 16, 32))


class Corrected(NamedTuple):
    """The correction of local gradients, and the iterate after the last round."""

    c: Vector
    a: Vector


@dataclass(frozen=True)
class local_tracking(Part):
    """Local steps x' = x_t - alpha (v_t + c), with a tracked correction c that is updated every `interval` iterations.

    When t + 1 is a multiple of K = interval: z = (a - x')/(K alpha), c = c - z + W z, x_{t+1} = W(a - K alpha outer z),
    a = x_{t+1}; else x_{t+1} = x'. c = 0, a = x_0 at first. Liu et al. 2023.
    """

    alpha: float = step_size(0.1)
    outer: float = number(1.0, low=0, above=True, tuned=(0.5, 0.8, 1.0))
    interval: int = _interval(8)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Corrected]:
        """Iteration 0, with c = 0 and a = x_0."""
        return self.step(x, v, Corrected(0 * v, x), net)

    def step(self, x: Vector, v: Vector, last: Corrected, net: Net) -> tuple[Vector, Corrected]:
        """Two rounds at the end of an interval."""
        local = x - self.alpha * (v + last.c)

        def meet() -> tuple[Vector, Corrected]:
            length = self.interval * self.alpha
            z = (last.a - local) / length
            met = net.mix(last.a - length * self.outer * z)
            return met, Corrected(last.c - net.disagree(z), met)

        met: tuple[Vector, Corrected] = net.every(
            self.interval, meet, lambda: (local, last), phase=-1
        )
        return met


@dataclass(frozen=True)
class local_diffusion(Part):
    """Local steps x' = x_t - alpha v_t - dual u, with a round of exact diffusion every `interval` iterations.

    When t + 1 is a multiple of the interval: x_{t+1} = W x', u += x' - x_{t+1}; else x_{t+1} = x'. u = 0 at first.
    Needs W symmetric, its smallest eigenvalue above -1/3, and the same at every step. Alghunaim 2023.
    """

    alpha: float = step_size(0.1)
    dual: float = number(0.1, low=0, above=True, tuned=(0.03, 0.1, 0.3, 1.0))
    interval: int = _interval(8)
    needs: ClassVar[Needs] = Needs(symmetric=True, smallest_eigenvalue=-1 / 3, static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round at the end of an interval; the memory is u."""
        local = x - self.alpha * v - self.dual * u

        def meet() -> tuple[Vector, Vector]:
            disagreement = net.disagree(local)
            return local - disagreement, u + disagreement

        met: tuple[Vector, Vector] = net.every(self.interval, meet, lambda: (local, u), phase=-1)
        return met


@dataclass(frozen=True)
class skip(Part):
    """Local steps z = x_t - alpha v_t - u, with a round when a coin says so, the same for all nodes.

    Then x_{t+1} = z - (z - W z)/(2 chi), u += dual (z - x_{t+1}); else x_{t+1} = z. u = 0 at first. Needs W symmetric
    and the same at every step. Mishchenko et al. 2022; Guo et al. 2023.
    """

    alpha: float = step_size(0.1)
    dual: float = number(0.2, low=0, above=True, tuned=(0.03, 0.1, 0.3, 1.0))
    chi: float = number(1.0, low=0.5, note="below 1/2 it may not contract")
    probability: float = number(0.2, low=0, high=1, above=True, tuned=(0.05, 0.1, 0.25, 0.5))
    needs: ClassVar[Needs] = Needs(symmetric=True, static=True)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round if the coin says so; the memory is u."""
        z = x - self.alpha * v - u

        def meet() -> tuple[Vector, Vector]:
            move = net.disagree(z) / (2 * self.chi)
            return z - move, u + self.dual * move

        met: tuple[Vector, Vector] = net.chance(self.probability, meet, lambda: (z, u))
        return met


@dataclass(frozen=True)
class proximal_tracking(Part):
    """Gradient tracking with proximal steps: y_{t+1} = W(y_t + v_t - v_{t-1}); x_{t+1} = W prox(x_t - alpha y_{t+1}).

    The step of prox is alpha. Without `atc`, x_{t+1} = prox(W x_t - alpha y_{t+1}). For composite problems.
    Xin, Das, Khan and Kar 2021.
    """

    alpha: float = step_size(0.1)
    atc: bool = switch(True)
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Tracked]:
        """Iteration 0, with y_0 = 0 and v_{-1} = 0."""
        return self.step(x, v, Tracked(0 * v, 0 * v), net)

    def step(self, x: Vector, v: Vector, previous: Tracked, net: Net) -> tuple[Vector, Tracked]:
        """Two rounds: one for y, one for x."""
        y = net.mix(previous.y + v - previous.v)
        if self.atc:
            return net.mix(net.prox(x - self.alpha * y, self.alpha)), Tracked(y, v)
        return net.prox(net.mix(x) - self.alpha * y, self.alpha), Tracked(y, v)


TINY = 1e-37
"""Added to squares that are divided by, so that 0 / 0 is 0; in single precision, too."""


@dataclass(frozen=True)
class normalized_tracking(Part):
    """Gradient tracking with steps of one length: y_{t+1} = W(y_t + v_t - v_{t-1}); x_{t+1} = W(x_t - alpha y / ||y||).

    The norm is that of each node's own y_{t+1}. For noise with heavy tails. Yu et al. 2025.
    """

    alpha: float = step_size(0.1)
    unit: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Tracked]:
        """Iteration 0, with y_0 = 0 and v_{-1} = 0."""
        return self.step(x, v, Tracked(0 * v, 0 * v), net)

    def step(self, x: Vector, v: Vector, previous: Tracked, net: Net) -> tuple[Vector, Tracked]:
        """Two rounds: one for y, one for x."""
        y = net.mix(previous.y + v - previous.v)
        return net.mix(x - self.alpha * (y / (net.dot(y, y) + TINY) ** 0.5)), Tracked(y, v)


class Adapted(NamedTuple):
    """The tracker, the estimate it was updated with, and the moving averages of the tracker and of its square."""

    y: Vector
    v: Vector
    m: Vector
    s: Vector


@dataclass(frozen=True)
class adaptive_tracking(Part):
    """Adam on trackers: y = v_0 at first, then y = W y + v_t - v_{t-1}; m and s are moving averages of y and y y.

    x_{t+1} = W x_t - alpha m / sqrt(s + epsilon). Carnevale et al. 2020.
    """

    alpha: float = step_size(0.1)
    decay: float = number(0.9, low=0, high=1)
    decay_square: float = number(0.999, low=0, high=1)
    epsilon: float = number(1e-8, low=0, above=True)
    unit: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Adapted]:
        """Iteration 0, with y = v_0: one round."""
        return self._descend(x, Adapted(v, v, 0 * v, 0 * v), net)

    def step(self, x: Vector, v: Vector, last: Adapted, net: Net) -> tuple[Vector, Adapted]:
        """Two rounds: one for y, one for x."""
        return self._descend(x, last._replace(y=net.mix(last.y) + v - last.v, v=v), net)

    def _descend(self, x: Vector, now: Adapted, net: Net) -> tuple[Vector, Adapted]:
        m = self.decay * now.m + (1 - self.decay) * now.y
        s = self.decay_square * now.s + (1 - self.decay_square) * now.y * now.y
        return net.mix(x) - self.alpha * m / (s + self.epsilon) ** 0.5, now._replace(m=m, s=s)


FUSIONS = {
    "consensus": consensus,
    "tracking": tracking,
    "exact-diffusion": exact_diffusion,
    "nids": nids,
    "primal-dual": primal_dual,
    "push-pull": push_pull,
    "push-sum": push_sum,
    "push-sum-tracking": push_sum_tracking,
    "extra": extra,
    "quasi-global": quasi_global,
    "decentlam": decentlam,
    "choco": choco,
    "compressed-tracking": compressed_tracking,
    "local-tracking": local_tracking,
    "local-diffusion": local_diffusion,
    "skip": skip,
    "proximal-tracking": proximal_tracking,
    "normalized-tracking": normalized_tracking,
    "adaptive-tracking": adaptive_tracking,
}
