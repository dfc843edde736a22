"""Fusions: how nodes combine their estimates v_t with their neighbours and compute x_{t+1}.

Each is a dataclass derived from `Part`. Its fields declare its hyperparameters, and `needs` its requirements on the
weights W. `init` and `step` use arithmetic, `net.mix`, `net.disagree` and `net.push` only. A new fusion is a class here
and an entry of `FUSIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from peerdescent.methods.contract import Needs, Net, Vector
from peerdescent.methods.parameters import Part, number, step_size, switch


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


def _by_step_size(coupling: float, row: Mapping[str, Any], samples: float | None) -> float:
    """Divided by eta."""
    return coupling / float(row["eta"])


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
        tuned={"paper": (0.25, 0.5, 1.0), "medium": (0.5, 1.0), "small": (1.0,)},
        scaled=_by_step_size,
    )
    kappa: float = number(
        1.0,
        low=0,
        above=True,
        tuned={"paper": (0.1, 0.35, 0.7), "medium": (0.1, 0.7), "small": (0.1, 0.7)},
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


FUSIONS = {
    "consensus": consensus,
    "tracking": tracking,
    "exact-diffusion": exact_diffusion,
    "primal-dual": primal_dual,
    "push-pull": push_pull,
}
