"""Functions that read values from around them: what runs is what they do now, and results are stored as such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.engines.outline import definition
from peerdescent.methods.parameters import Part
from small import small_logistic

RING = peer.Network(peer.topology.ring(6))
FACTOR = 1.0


def read(w, batch):
    return jnp.mean((batch[0] @ w - FACTOR * batch[1]) ** 2)


def made():
    rng = np.random.default_rng(0)
    return peer.problems.loss(
        read, np.zeros(3), (rng.normal(size=(6, 5, 3)), rng.normal(size=(6, 5)))
    )


def loss(problem, **more):
    return (
        peer.run(peer.methods.dsgd(alpha=0.01), problem, RING, steps=20, record=1, **more)
        .table["loss"]
        .iloc[-1]
    )


@pytest.mark.parametrize("new", [True, False], ids=["a new problem", "the same problem"])
def test_a_loss_that_reads_a_global(monkeypatch, tmp_path, new):
    problem = made()
    before = loss(problem, checkpoint=tmp_path)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    again = made() if new else problem
    assert loss(again) == pytest.approx(9 * before, rel=1e-4)
    grid = {"alpha": [0.01]}
    swept = peer.sweep("dsgd", grid, again, RING, steps=20)["loss"][0]
    assert swept == pytest.approx(9 * before, rel=1e-4)
    with pytest.raises(ValueError, match="cannot resume: values"):
        loss(again, checkpoint=tmp_path)


@dataclass(frozen=True)
class scaled(Part):
    """A gradient times a global."""

    def init(self, x, net):
        return FACTOR * net.grad(x, net.sample(2)), ()

    def step(self, x, memory, net):
        return self.init(x, net)


def test_a_method_that_reads_a_global(monkeypatch, tmp_path):
    def ended(factor, **more):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        method = peer.compose(scaled(), peer.fusions.consensus(alpha=0.1), "scaled")
        return peer.run(method, small_logistic(), RING, steps=10, record=1, **more).x

    one = ended(1.0, checkpoint=tmp_path)
    assert np.array_equal(one, ended(1.0, checkpoint=tmp_path))
    assert not np.array_equal(one, ended(5.0))
    assert np.allclose(ended(5.0), ended(5.0, engine="debug"), rtol=1e-4)
    with pytest.raises(ValueError, match="cannot resume: computes is"):
        ended(5.0, checkpoint=tmp_path)


class Counted(NamedTuple):
    x: Any
    k: Any


def test_what_depends_on_a_number_in_the_state_is_in_the_definition():
    def decaying(power):
        def step(s, net):
            return Counted(
                net.mix(s.x - (0.5 / s.k**power) * net.grad(s.x, net.sample(2))), s.k + 1
            )

        return peer.Method(lambda x, net: Counted(x, 1.0), step, "decaying")

    assert definition(decaying(1)) == definition(decaying(1))
    assert len({definition(decaying(power)) for power in (0, 1, 2)}) == 3


def test_data_cannot_be_changed_after_they_are_given():
    rows = np.ones((6, 5, 3)), np.ones((6, 5))
    problem = peer.problems.loss(read, np.zeros(3), rows)
    before = problem.loss(np.ones(3))
    rows[0][:] = 7
    assert problem.loss(np.ones(3)) == before
    with pytest.raises(ValueError, match="read-only"):
        problem.data.rows[0][:] = 7


def test_a_part_that_is_a_sum_is_seen():
    def partly(w, batch):
        return jnp.mean((batch[0] @ w - batch[1]) ** 2) + jnp.sum((batch[0] @ w) ** 2)

    with pytest.raises(ValueError, match="mean"):
        peer.problems.loss(partly, np.zeros(3), (0.1 * np.ones((6, 5, 3)), np.ones((6, 5))))
