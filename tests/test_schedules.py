"""Schedules: numbers of a method that depend on the iteration, evaluated by the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
import pytest

import peerdescent as peer
from peerdescent.engines import debug
from peerdescent.runs.costs import Costs
from peerdescent.schedules import (
    SCHEDULES,
    STATIC,
    Schedule,
    constant,
    cosine,
    formula,
    function,
    inverse_power,
    parse,
    piecewise,
    warmup,
)
from peerdescent.threefry import coin
from small import assert_close, compiled, count_compilations, small_logistic, some

RING = peer.Network(peer.topology.ring(6))
# schedule, and the same by Python's own arithmetic
EVERY = [
    (constant(0.2), lambda t: 0.2),
    (0.5 * inverse_power(1 / 3, 10), lambda t: 0.5 / (t + 10) ** (1 / 3)),
    (0.3 * cosine(30, 0.1), lambda t: 0.3 * (0.1 + 0.9 * (1 + math.cos(math.pi * min(t / 30, 1))) / 2)),
    (0.4 * warmup(8), lambda t: 0.4 * min((t + 1) / 8, 1)),
    (warmup(8, 0.4 * inverse_power(0.5, 2)), lambda t: min((t + 1) / 8, 1) * 0.4 / math.sqrt(max(t - 8, 0) + 2)),
    (piecewise({0: 0.4, 10: 0.1, 25: 0.01}), lambda t: 0.4 if t < 10 else 0.1 if t < 25 else 0.01),
    (formula("0.5/(t+10)^(1/3)"), lambda t: 0.5 / (t + 10) ** (1 / 3)),
    (2 * formula("min(0.1, exp(-t/9)) + sqrt(t)/99"), lambda t: 2 * (min(0.1, math.exp(-t / 9)) + math.sqrt(t) / 99)),
]  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    return compiled(small_logistic())


def by_iteration(build, values, problem):
    """The state of a run in which every iteration has a method of its own."""
    with jax.enable_x64(True):
        state: Any = None
        for t, value in enumerate(values):
            engine = debug.Debug(build(value), problem, RING, 0, np.dtype("float64"))
            state = engine.advance(state, t, t + 1) if t else engine.start(np.zeros((6, 5)))
    return state


def gt_dsgd(alpha):
    return peer.methods.gt_dsgd(alpha=alpha, batch=2)


@pytest.mark.parametrize(
    ("schedule", "value"), some(EVERY, 3), ids=[str(one) for one, _ in some(EVERY, 3)]
)
def test_a_run_has_the_number_of_every_iteration(schedule, value, problem):
    with jax.enable_x64(True):
        assert [float(schedule(t)) for t in range(40)] == pytest.approx(
            [value(t) for t in range(40)], rel=1e-13
        )
    expected = by_iteration(gt_dsgd, map(value, range(40)), problem).x
    for engine in ("stacked", "debug"):
        assert_close(
            peer.run(gt_dsgd(schedule), problem, RING, steps=40, precision=64, engine=engine).x,
            expected,
        )


def test_functions_and_texts_are_schedules(problem):
    def slower(t):
        return 0.5 / (t + 10.0) ** (1 / 3)

    given = (
        slower,
        "0.5/(t+10)^(1/3)",
        0.5 * inverse_power(1 / 3, 10),
        "0.5*inverse-power(0.3333333333333333,10)",
    )
    first, *others = (
        peer.run(gt_dsgd(alpha), problem, RING, steps=30, precision=64).x for alpha in given
    )
    for other in others:
        assert_close(other, first)
    assert isinstance(gt_dsgd(slower).parameters["alpha"], function)


def test_the_time_varying_beta_of_deepstorm(problem):
    """alpha_t = a / (t + k)^(1/3), beta_t = 1 - alpha_{t+1}/alpha_t + b alpha_{t+1}^2, on the command line's terms."""
    a, k, b = 0.3, 8, 2.0
    beta = f"1-((t+{k})/(t+{k + 1}))^(1/3)+{b}*({a}/(t+{k + 1})^(1/3))^2"
    method = peer.methods.parse(f"deepstorm[alpha={a}/(t+{k})^(1/3),beta={beta},batch=2]")

    def at(t):
        alpha, after = (a / (s + k) ** (1 / 3) for s in (t, t + 1))
        return peer.methods.deepstorm(alpha=alpha, beta=1 - after / alpha + b * after**2, batch=2)

    expected = by_iteration(at, range(40), problem)
    assert_close(peer.run(method, problem, RING, steps=40, precision=64).x, expected.x)
    assert peer.methods.parse(str(method)) == method


def test_numbers_of_schedules_are_swept_without_compilation():
    problem = small_logistic()
    grid = {"alpha": ["0.5*cosine(100)"], "alpha.scale": [0.1, 0.4], "alpha.steps": [50, 100]}
    table = peer.sweep("gt-dsgd", grid, problem, RING, steps=40, precision=64)
    for row in table.to_dict("records"):
        method = peer.methods.gt_dsgd(alpha=row["alpha.scale"] * cosine(row["alpha.steps"]))
        alone = peer.run(method, problem, RING, steps=40, precision=64, record=1).table
        assert row["loss"] == pytest.approx(alone["loss"].iloc[-1], rel=1e-12)
    assert table["loss"].nunique() == 4
    more = {**grid, "alpha.scale": [0.2, 0.3]}
    assert (
        count_compilations(
            lambda: peer.sweep("gt-dsgd", more, problem, RING, steps=40, precision=64)
        )
        == 0
    )
    texts = peer.sweep(
        "gt-dsgd", {"alpha": [0.1 * cosine(50), "0.4*cosine(50)"]}, problem, RING, steps=40
    )
    assert texts["alpha"].tolist() == ["0.1*cosine(50,0)", "0.4*cosine(50)"]
    with pytest.raises(ValueError, match="a table cannot tell functions apart"):
        peer.sweep("gt-dsgd", {"alpha": [lambda t: 0.1]}, problem, RING, steps=4)
    with pytest.raises(ValueError, match=r"alpha.scale: alpha = 0.1 is no schedule"):
        peer.sweep("gt-dsgd", {"alpha.scale": [0.1]}, problem, RING, steps=4)


def test_coins_of_a_scheduled_probability_are_counted():
    problem, method = (
        small_logistic(samples=11),
        peer.methods.gt_page(probability="1/(t+1)", batch=2),
    )
    expected = 11 + sum(11 / (t + 1) + 4 * t / (t + 1) for t in range(1, 30))
    assert Costs.of(method, problem, RING).gradients(30) == pytest.approx(expected)
    table = peer.run(method, problem, RING, steps=30, record=[30]).table
    restarts = sum(bool(coin(np, 0, t, 0, 1 / (t + 1))) for t in range(1, 30))
    assert table["gradients"].iloc[-1] == 11 + 11 * restarts + 4 * (29 - restarts)
    sweep = peer.sweep("gt-page", {"probability": [0.1, 0.9]}, problem, RING, epochs=20)
    assert sweep["steps"].iloc[0] > 1.5 * sweep["steps"].iloc[1]


def test_another_schedule_is_another_run(problem, tmp_path):
    trace = peer.run(gt_dsgd(cosine(100)), problem, RING, steps=10)
    with pytest.raises(ValueError, match=r"cannot resume: method is .*cosine\(50"):
        peer.run(gt_dsgd(cosine(50)), problem, RING, steps=20, resume=trace)
    fading = peer.run(gt_dsgd(lambda t: 0.1 / (1 + t)), problem, RING, steps=10)
    with pytest.raises(ValueError, match="cannot resume: computes is"):
        peer.run(gt_dsgd(lambda t: 0.1 / (2 + t)), problem, RING, steps=20, resume=fading)
    whole, part = (peer.run(gt_dsgd(cosine(100)), problem, RING, steps=steps) for steps in (20, 9))
    assert np.array_equal(
        peer.run(gt_dsgd(cosine(100)), problem, RING, steps=20, resume=part).x, whole.x
    )


def test_texts_are_read_back():
    for schedule, _ in EVERY:
        assert parse(str(schedule)) == schedule or isinstance(schedule, formula)
    assert set(SCHEDULES.values()) <= {type(schedule) for schedule, _ in EVERY}
    for text, message in {
        "0.5*cosin(3)": "'0.5[*]cosin[(]3[)]' is neither a number nor a schedule: give a number, a formula of t",
        "cosine(0)": "steps of cosine = 0.0: must be a finite number of at least 1",
        "cosine()": r"must be cosine\(steps, final\), with numbers",
        "inverse-power(-1)": "power of inverse_power = -1.0: must be a finite number of at least 0",
        "piecewise(5:1)": "give numbers by steps, from step 0 on",
        "0.5/(q+t)": r"'0.5/\(q\+t\)' is no formula of t",
        "t.__class__": "is no formula of t",
        "t+": "is no formula of t",
        "-0.1*cosine(9)": r"alpha = -0.1\*cosine\(9,0\) is -0.1 at t = 0: must be a positive finite number",
        "1/t": "alpha = 1/t is inf at t = 0: must be a positive finite number",
        "0.1*(t-5)^0.5": "is nan at t = 0: must be a positive finite number",
        "10^10^t": "is inf at t = 10: must be a positive finite number",
        "1-t": "alpha = 1-t is -9 at t = 10: must be a positive finite number",
    }.items():
        with pytest.raises(ValueError, match=message):
            gt_dsgd(text)
    with pytest.raises(ValueError, match="alpha = abc: must be a positive finite number"):
        gt_dsgd("abc")


def test_functions_that_give_no_number_are_refused():
    for bad, message in {
        lambda t: 0.5 / t: "is inf at t = 0",
        lambda t: [1, 2]: "has no value at t = 0 .*: give another schedule",
        lambda t: np.ones(3): "has no value at t = 0 .*: give another schedule",
    }.items():
        with pytest.raises(ValueError, match=message):
            gt_dsgd(bad)


def test_schedules_of_optax():
    """Some of them have variables around them that are never set."""
    problem = small_logistic()
    schedules = {
        "decay": optax.exponential_decay(0.1, 10, 0.9),
        "other decay": optax.exponential_decay(0.1, 10, 0.5),
        "warm": optax.warmup_exponential_decay_schedule(0.01, 0.1, 5, 10, 0.9),
    }
    ends = {
        name: peer.run(gt_dsgd(each), problem, RING, steps=30, precision=64).x
        for name, each in schedules.items()
    }
    same = peer.run(
        gt_dsgd(lambda t: 0.1 * 0.9 ** (t / 10)),
        problem,
        RING,
        steps=30,
        precision=64,
        engine="debug",
    )
    np.testing.assert_allclose(ends["decay"], same.x, rtol=1e-5)
    assert np.abs(ends["decay"] - ends["other decay"]).max() > 1e-4
    assert np.abs(ends["decay"] - ends["warm"]).max() > 1e-4


def test_functions_that_jax_cannot_trace_are_refused():
    for bad in (lambda t: 0.4 if t < 5 else 0.1, lambda t: float(np.exp(-t)) + 0.1):
        with pytest.raises(
            ValueError, match=r"is no function of t that JAX can trace .*: use jax.numpy"
        ):
            peer.run(gt_dsgd(bad), small_logistic(), RING, steps=3)


SCALE = 0.1


def scaled(t):
    return SCALE / (t + 1.0)


@dataclass(frozen=True)
class last(Schedule):
    """The last of some schedules."""

    parts: Any = field(metadata=STATIC)

    def factor(self, t):
        return self.parts[-1](t)


@pytest.mark.parametrize(
    "schedule",
    [
        scaled,
        warmup(3, function(scaled)),
        2 * warmup(3, 0.5 * warmup(2, function(scaled))),
        last((function(scaled),)),
        last((1.0, 2 * warmup(2, function(optax.join_schedules([scaled], []))))),
    ],
    ids=["alone", "inside", "twice inside", "in a tuple", "of optax, in a tuple"],
)
def test_what_a_function_reads_now_counts(schedule, monkeypatch):
    problem = small_logistic()
    first = peer.run(gt_dsgd(schedule), problem, RING, steps=10, precision=64)
    again = peer.run(gt_dsgd(schedule), problem, RING, steps=20, precision=64, resume=first)
    assert again.identity == first.identity
    monkeypatch.setitem(globals(), "SCALE", 0.001)
    second = peer.run(gt_dsgd(schedule), problem, RING, steps=10, precision=64)
    assert_close(
        second.x,
        peer.run(gt_dsgd(schedule), problem, RING, steps=10, precision=64, engine="debug").x,
    )
    assert np.abs(second.x - first.x).max() > 1e-4
    with pytest.raises(ValueError, match="cannot resume: computes is"):
        peer.run(gt_dsgd(schedule), problem, RING, steps=20, precision=64, resume=first)


def test_a_users_schedule_is_known_by_its_text(tmp_path):
    def ramp(factor):
        @dataclass(frozen=True)
        class ramp(Schedule):
            def factor(self, t):
                return factor / (t + 1.0)

        return ramp()

    problem = small_logistic()
    first = peer.run(gt_dsgd(ramp(0.1)), problem, RING, steps=5)
    with pytest.raises(ValueError, match="cannot resume: computes is"):
        peer.run(gt_dsgd(ramp(0.5)), problem, RING, steps=10, resume=first)
    with pytest.raises(
        ValueError, match="is not read as the same again; give it a name of its own"
    ):
        peer.sweep("dsgd", {"alpha": [ramp(0.1)]}, problem, RING, steps=5)


def test_pieces_are_in_order():
    assert piecewise([(0, 1.0), (100, 0.1), (50, 0.5)]) == piecewise({0: 1.0, 50: 0.5, 100: 0.1})
