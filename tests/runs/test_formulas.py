"""Formulas of costs: they have the value that the books of a run have, for every cell of the grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import peerdescent as peer
from peerdescent.methods.contract import Net, Vector, compose
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from peerdescent.methods.named import METHODS
from peerdescent.methods.parameters import Part, size
from peerdescent.runs.costs import Costs
from peerdescent.runs.formulas import formulas

M = 30


def values(method, **given):
    """Numbers for all symbols, and the method with them."""
    numbers = {"batch": 3, "large_batch": 20, "initial_batch": 7, "period": 4, "interval": 6}
    own = {name: value for name, value in (numbers | given).items() if name in method.parameters}
    return method.replace(**own), {**method.replace(**own).parameters, "m": M}


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_means_are_those_of_the_ledger(estimator, fusion):
    method, known = values(compose(ESTIMATORS[estimator](), FUSIONS[fusion]()))
    found, costs = formulas(method), Costs(method, M, [1.0])
    period = 4 * 6
    spent = [
        np.diff(counted(np.array([1, 1 + period])))[0] / period
        for counted in (costs.gradients, costs.rounds)
    ]
    assert [found.gradients.mean(known), found.rounds.mean(known)] == pytest.approx(spent)
    assert found.first_gradients.mean(known) == costs.gradients(1)
    assert bool(found.compressors) == ("compressor" in method.parameters)


def test_formulas_in_words():
    shown = {
        "gt-hsgd": ("2 batch", "2 batch", "2"),
        "d-get": ("large_batch every period iterations, else 2 batch",
                  "large_batch / period + 2 batch (1 - 1 / period)", "2"),
        "gt-svrg": ("m every period iterations, else 2 batch", "m / period + 2 batch (1 - 1 / period)", "2"),
        "gt-page": ("large_batch with probability probability, else 2 batch",
                    "large_batch probability + 2 batch (1 - probability)", "2"),
        "k-gt": ("batch", "batch", "2 every interval iterations"),
        "proxskip": ("batch", "batch", "1 with probability probability"),
    }  # fmt: skip
    for name, words in shown.items():
        found = formulas(METHODS[name].build(), METHODS[name].parameters)
        assert (found.gradients.text(), found.gradients.expected(), found.rounds.text()) == words
    assert formulas(peer.methods.k_gt()).rounds.expected(str.upper) == "2 / INTERVAL"


@dataclass(frozen=True)
class doubled(Part):
    """Samples of twice the batch, and one of four points more."""

    batch: int = size(1)

    def init(self, x: Vector, net: Net) -> tuple[Vector, Vector]:
        return self.step(x, x, net)

    def step(self, x: Vector, memory: Vector, net: Net) -> tuple[Vector, Vector]:
        v = net.grad(x, net.sample(4))
        return net.grad(x, net.sample(2 * self.batch)) + v, v


def test_a_method_that_computes_with_its_sizes_has_numbers():
    found = formulas(compose(doubled(batch=3), peer.fusions.tracking()))
    assert (found.gradients.text(), found.rounds.text()) == ("10", "2")


def test_a_method_by_hand_has_formulas():
    def step(x: Vector, net: Net) -> Vector:
        return net.mix(x - net.grad(x, net.sample(2)))

    found = formulas(peer.Method(step, step, "plain"))
    assert (found.gradients.text(), found.rounds.text(), found.compressors) == ("2", "1", ())
    lazy = peer.Method(step, lambda x, net: x, "lazy")
    assert formulas(lazy).gradients.text() == formulas(lazy).gradients.expected() == "0"
