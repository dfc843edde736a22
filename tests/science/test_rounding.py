"""Rounding over long runs: methods in float32 end where they end in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import peerdescent as peer
from peerdescent.methods.contract import Needs
from peerdescent.methods.parameters import Part, step_size
from small import some

STEPS = 60_000
NETWORKS = {  # one is mixed by a dense matrix, the other by lists of neighbours
    "exponential": peer.Network(peer.topology.exponential(20)),
    "ring": peer.Network(peer.topology.ring(20)),
}


@dataclass(frozen=True)
class recursion(Part):
    """Exact diffusion as it is usually written: x_{t+1} = W(2 x_t - x_{t-1} - alpha(v_t - v_{t-1}))."""

    alpha: float = step_size(0.5)
    needs = Needs()

    def init(self, x, v, net):
        return net.mix(x - self.alpha * v), (x, v)

    def step(self, x, v, previous, net):
        return net.mix(2 * x - previous[0] - self.alpha * (v - previous[1])), (x, v)


@pytest.fixture(scope="module")
def problem():
    return peer.problems.logistic(peer.datasets.load("digits").partition(20))


def ends(method, problem, network):
    """The mean iterate and the loss at the end, in float64 and in float32."""
    traces = [
        peer.run(method, problem, network, steps=STEPS, precision=bits, record=1)
        for bits in (64, 32)
    ]
    return [trace.x_mean for trace in traces], [
        float(trace.table["loss"].iloc[-1]) for trace in traces
    ]


@pytest.mark.parametrize(
    ("method", "network"),
    some(
        [
            ("d2[alpha=0.5]", "ring"),
            ("d-spider-sfo[alpha=0.5,period=89,large_batch=89]", "exponential"),
            ("d-pd-sgd", "exponential"),
        ],
        3,
    ),
)
def test_float32_ends_where_float64_does(method, network, problem):
    (exact, rounded), (loss, loss_rounded) = ends(
        peer.methods.parse(method), problem, NETWORKS[network]
    )
    assert np.abs(rounded - exact).max() < 1e-3 * np.abs(exact).max()
    assert loss_rounded == pytest.approx(loss, rel=1e-5)


def test_the_usual_recursion_of_exact_diffusion_drifts(problem):
    """What the form of `exact_diffusion` is for; it is the same method, by the first few steps in float64."""
    usual, ours = (
        peer.compose(peer.estimators.sgd(), fusion)
        for fusion in (recursion(), peer.fusions.exact_diffusion(0.5))
    )
    network = NETWORKS["exponential"]
    left, right = (
        peer.run(method, problem, network, steps=100, precision=64).x for method in (usual, ours)
    )
    assert np.abs(left - right).max() < 1e-12 * np.abs(right).max()
    (exact, rounded), _ = ends(usual, problem, network)
    assert np.abs(rounded - exact).max() > 1e-2 * np.abs(exact).max()
