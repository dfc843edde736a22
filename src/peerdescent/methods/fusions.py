"""The fusion rules: how the network turns the local estimates v_t into descent.

Each is a frozen dataclass whose fields are its hyperparameters; `symmetric` and `spectrum_above` say what it needs of
the weight matrix W. Inside `init` and `step`: arithmetic and `net.mix`, nothing else. A new fusion is one more class
here and its name in `FUSIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from peerdescent.methods.contract import Net, Vector, check_positive, fixed


class Tracked(NamedTuple):
    """The gradient tracker y_{t+1} and the estimate v_t it has absorbed."""

    y: Vector
    v: Vector


class Diffused(NamedTuple):
    """The previous iterate and the previous estimate."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class consensus:
    """Average, then descend: x_{t+1} = W x_t - alpha v_t; with `atc`, x_{t+1} = W(x_t - alpha v_t).

    Lian et al. 2017.
    """

    alpha: float = 0.1
    atc: bool = fixed(False)
    symmetric: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Any]:
        """The same rule from the start."""
        return self.step(x, v, (), net)

    def step(self, x: Vector, v: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """One round."""
        if self.atc:
            return net.mix(x - self.alpha * v), ()
        return net.mix(x) - self.alpha * v, ()


@dataclass(frozen=True)
class tracking:
    """Gradient tracking: y_{t+1} = W(y_t + v_t - v_{t-1}); x_{t+1} = W(x_t - alpha y_{t+1}).

    The mean of y_{t+1} is the mean of v_t at all times. With `atc=False`: y_{t+1} = W y_t + v_t - v_{t-1},
    x_{t+1} = W x_t - alpha y_{t+1}. Di Lorenzo and Scutari 2016; Xu et al. 2015; Algorithm 1 of the paper.
    """

    alpha: float = 0.1
    atc: bool = fixed(True)
    symmetric: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha)

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
class exact_diffusion:
    """D2: x_1 = W(x_0 - alpha v_0); x_{t+1} = W(2 x_t - x_{t-1} - alpha(v_t - v_{t-1})).

    Needs W symmetric with its smallest eigenvalue above -1/3, and a W that stays: where it changes with t, x may grow
    without bound. Yuan et al. 2019; Tang et al. 2018.
    """

    alpha: float = 0.1
    symmetric: ClassVar[bool] = True
    spectrum_above: ClassVar[float] = -1 / 3

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Diffused]:
        """x_1 = W(x_0 - alpha v_0)."""
        return net.mix(x - self.alpha * v), Diffused(x, v)

    def step(self, x: Vector, v: Vector, previous: Diffused, net: Net) -> tuple[Vector, Diffused]:
        """One round."""
        return net.mix(2 * x - previous.x - self.alpha * (v - previous.v)), Diffused(x, v)


@dataclass(frozen=True)
class primal_dual:
    """Primal-dual: x_{t+1} = x_t - eta(alpha Lx_t + kappa u_t + v_t); u_{t+1} = u_t + eta kappa Lx_t.

    Lx = x - W x is the disagreement with the neighbours. Needs W symmetric. Yi et al. 2020.
    """

    eta: float = 0.1
    alpha: float = 1.0
    kappa: float = 1.0
    symmetric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(eta=self.eta, alpha=self.alpha, kappa=self.kappa)

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Vector]:
        """Iteration 0, with u_0 = 0."""
        return self.step(x, v, 0 * v, net)

    def step(self, x: Vector, v: Vector, u: Vector, net: Net) -> tuple[Vector, Vector]:
        """One round; the memory is u_{t+1}."""
        disagreement = x - net.mix(x)
        x = x - self.eta * (self.alpha * disagreement + self.kappa * u + v)
        return x, u + self.eta * self.kappa * disagreement


FUSIONS = {
    "consensus": consensus,
    "tracking": tracking,
    "exact-diffusion": exact_diffusion,
    "primal-dual": primal_dual,
}
