"""What a user writes is what it does now: faults and random graphs are compiled, counted and stored so, methods too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.methods.parameters import choice
from peerdescent.networks.faults import Fault
from peerdescent.networks.random_graphs import RandomGraph
from small import assert_close, count_compilations, small_logistic, some

RING = peer.topology.ring(6)
RATE = 0.1


@dataclass(frozen=True)
class lossy(Fault):
    """What `drop(RATE)` does."""

    balanced: ClassVar[bool] = True

    @property
    def is_nothing(self):
        return RATE == 0

    def cut(self, draw, memory, links):
        return draw.chance(RATE, links)

    @property
    def moments(self):
        return 1 - RATE, (1 - RATE) ** 2


@dataclass(frozen=True)
class told(Fault):
    """The same by a function."""

    rate: Any
    balanced: ClassVar[bool] = True

    def cut(self, draw, memory, links):
        return draw.chance(self.rate(), links)

    @property
    def moments(self):
        return 1 - self.rate(), (1 - self.rate()) ** 2


@dataclass(frozen=True)
class Pairs(RandomGraph):
    """What `erdos_renyi(n, RATE)` is."""

    @property
    def degrees(self):
        return RATE * (self.n - 1)

    def joined(self, draw, ends):
        return draw.chance(RATE, len(ends))


def now():
    return RATE


OWN = {
    "a fault": lambda: peer.Network(RING, faults=[lossy()]),
    "a function of a fault": lambda: peer.Network(RING, faults=[told(now)]),
    "a graph": lambda: peer.Network(Pairs(6)),
}


def library(name, rate):
    """The same network of this package."""
    if name == "a graph":
        return peer.Network(peer.topology.erdos_renyi(6, rate))
    return peer.Network(RING, faults=[peer.faults.drop(rate)])


@pytest.fixture(scope="module")
def problem():
    return small_logistic()


def run(problem, network, steps=30, **options):
    options = {
        "record": 3,
        "clock": peer.clock(latency=0.1, compute=0.01),
        "precision": 64,
        **options,
    }
    return peer.run("dsgd[alpha=2]", problem, network, steps=steps, progress=False, **options)


def assert_same(problem, network, other):
    mine, theirs = (run(problem, one) for one in (network, other))
    np.testing.assert_array_equal(mine.x, theirs.x)
    pd.testing.assert_frame_equal(*(one.table.drop(columns="seconds") for one in (mine, theirs)))
    assert_close(run(problem, network, engine="sharded").x, theirs.x)
    swept = [
        peer.sweep("dsgd", {"alpha": [1.0, 2.0]}, problem, one, steps=30)
        for one in (network, other)
    ]
    assert swept[0]["loss"].tolist() == swept[1]["loss"].tolist()
    assert (network.lam, network.lam_interval) == (other.lam, other.lam_interval)
    np.testing.assert_array_equal(network.degree, other.degree)
    for drawn, theirs in zip(network.examples, other.examples, strict=True):
        np.testing.assert_array_equal(drawn.toarray(), theirs.toarray())


@pytest.mark.parametrize("name", some(OWN, 3))
def test_values_around_a_users_fault_or_graph_are_those_of_now(name, problem, monkeypatch):
    network = OWN[name]()
    assert_same(problem, network, library(name, RATE))
    monkeypatch.setitem(globals(), "RATE", 0.9)
    assert_same(problem, network, library(name, 0.9))


@pytest.mark.parametrize("name", OWN)
def test_stored_results_know_a_users_fault_or_graph_by_what_it_does(name, problem, monkeypatch):
    network = OWN[name]()
    before = run(problem, network)
    assert run(problem, OWN[name](), 40, resume=before).identity == before.identity
    monkeypatch.setitem(globals(), "RATE", 0.9)
    for changed in (network, OWN[name]()):
        with pytest.raises(ValueError, match="cannot resume: "):
            run(problem, changed, 40, resume=before)
        with pytest.raises(ValueError, match="the traces are of different experiments"):
            peer.Traces([before, run(problem, changed, seed=1)])


def test_classes_of_one_name_with_other_code_are_two(problem):
    def made(rate):
        @dataclass(frozen=True)
        class own(Fault):
            balanced: ClassVar[bool] = True

            def cut(self, draw, memory, links):
                return draw.chance(rate, links)

        return peer.Network(RING, faults=[own()])

    first, second = made(0.1), made(0.9)
    before = run(problem, first)
    np.testing.assert_array_equal(run(problem, second).x, run(problem, library("a fault", 0.9)).x)
    with pytest.raises(ValueError, match="cannot resume: weights is"):
        run(problem, second, 40, resume=before)
    assert run(problem, made(0.1), 40, resume=before).identity == before.identity
    assert count_compilations(lambda: run(problem, peer.Network(RING, faults=first.faults))) == 0


def test_a_fault_that_did_nothing_may_begin_to(problem, monkeypatch):
    monkeypatch.setitem(globals(), "RATE", 0)
    network = OWN["a fault"]()
    assert network.faults == ()
    np.testing.assert_array_equal(run(problem, network).x, run(problem, peer.Network(RING)).x)
    monkeypatch.setitem(globals(), "RATE", 0.9)
    np.testing.assert_array_equal(run(problem, network).x, run(problem, library("a fault", 0.9)).x)
    assert network.lam == library("a fault", 0.9).lam


def test_a_random_graph_has_its_values_in_fields():
    class Hidden(Pairs):
        def __init__(self, n, rate):
            super().__init__(n)
            self.rate = rate

    with pytest.raises(
        ValueError,
        match="random graph Hidden has rate, which is no field: make it a frozen dataclass",
    ):
        peer.Network(Hidden(6, 0.5))


@dataclass(frozen=True)
class shrunk(peer.compressors.identity):
    """A compressor of a function."""

    by: Any

    def apply(self, x, draw):
        return self.by() * x

    def encode(self, x, draw):
        return super().encode(self.by() * x, draw)


@dataclass(frozen=True)
class scaled(peer.fusions.consensus):
    """A fusion with a choice of functions."""

    of: Any = choice(max, max, now)  # noqa: RUF009

    def step(self, x, v, memory, net):
        return super().step(x, self.of() * v, memory, net)


METHODS = {
    "a compressor": lambda: peer.methods.choco_sgd(alpha=2.0, compressor=shrunk(now)),
    "a choice": lambda: peer.compose(peer.estimators.sgd(), scaled(alpha=2.0, of=now)),
}


@pytest.mark.parametrize("name", METHODS)
def test_functions_that_a_method_is_given_are_those_of_now(name, problem, monkeypatch):
    def ran(engine="stacked", steps=10, **options):
        return peer.run(
            METHODS[name](), problem, peer.Network(RING), steps=steps, engine=engine, **options
        )

    before = ran(precision=64)
    assert_close(before.x, ran("debug", precision=64).x)
    monkeypatch.setitem(globals(), "RATE", 0.9)
    after = ran(precision=64)
    assert_close(after.x, ran("debug", precision=64).x)
    assert np.abs(after.x - before.x).max() > 1e-2
    with pytest.raises(ValueError, match="cannot resume: computes is"):
        ran(steps=20, precision=64, resume=before)


@dataclass(frozen=True)
class absolute:
    """What `l1=RATE` of `composite` is."""

    def value(self, x):
        return RATE * abs(x).sum(axis=-1)

    def prox(self, x, step):
        return x - x.clip(-step * RATE, step * RATE)

    def __str__(self):
        return "absolute"


def test_values_around_a_users_penalty_are_those_of_now(problem, monkeypatch):
    def ran(problem, steps=10, **options):
        return peer.run(
            "proxgt[alpha=1]",
            problem,
            peer.Network(RING),
            steps=steps,
            precision=64,
            record=1,
            **options,
        )

    own, before = replace(problem, penalty=absolute()), None
    for rate in (0.1, 0.01):
        monkeypatch.setitem(globals(), "RATE", rate)
        mine, theirs = ran(own), ran(peer.problems.composite(problem, l1=rate))
        assert_close(mine.x, theirs.x)
        assert mine.table["loss"].iloc[-1] == pytest.approx(
            theirs.table["loss"].iloc[-1], rel=1e-12
        )
        before = before or mine
    assert str(own.now()).endswith("absolute)")
    assert own.now().now().penalty == own.now().penalty
    with pytest.raises(ValueError, match="cannot resume: "):
        ran(own, 20, resume=before)
