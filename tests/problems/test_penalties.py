"""Composite problems: proximal operators against numerical minimisation, metrics, the optimum, and bad input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import peerdescent as peer
from peerdescent.problems.penalties import Penalty
from small import assert_close, compiled, small_logistic

RING = peer.Network(peer.topology.ring(6))
GROUPS = (0, 1, 0, 2, 1)
PENALTIES = {
    "l1": Penalty(l1=0.3),
    "group": Penalty(group=0.2, groups=GROUPS),
    "l1 and group": Penalty(l1=0.1, group=0.2, groups=GROUPS),
    "box": Penalty(low=-0.2, high=0.5),
    "l1 and box": Penalty(l1=0.3, low=-0.2, high=0.5),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_prox_minimises(name):
    """No point nearby, and none that a search finds, has a smaller h(z) + ||z - x||^2 / (2 step)."""
    penalty, random = PENALTIES[name], np.random.default_rng(0)
    for step in (0.1, 0.7, 2.0):
        x = random.normal(size=5)
        z = penalty.prox(x, step)
        assert ((z >= penalty.low) & (z <= penalty.high)).all()

        def value(z, x=x, step=step):
            return penalty.value(z) + ((z - x) ** 2).sum() / (2 * step)

        bounds = [(penalty.low, penalty.high)] * 5
        searched = min(
            minimize(
                value, start, method="Powell", bounds=bounds, options={"xtol": 1e-10, "ftol": 1e-14}
            ).fun
            for start in (
                np.clip(x, penalty.low, penalty.high),
                np.clip(z + 0.01, penalty.low, penalty.high),
            )
        )
        assert value(z) <= searched + 1e-9
        for _ in range(200):
            near = np.clip(z + 1e-3 * random.normal(size=5), penalty.low, penalty.high)
            assert value(z) <= value(near) + 1e-12


@pytest.mark.parametrize("name", PENALTIES)
def test_prox_in_jax_and_of_many_with_steps_of_their_own(name):
    penalty, x, steps = (
        PENALTIES[name],
        np.random.default_rng(1).normal(size=(4, 3, 5)),
        np.array([[0.1], [0.5], [2]]),
    )
    with jax.enable_x64(True):
        found = jax.jit(penalty.prox)(jnp.asarray(x), jnp.asarray(steps))
        values = jax.jit(penalty.value)(jnp.asarray(x))
    for i in range(4):
        for c in range(3):
            assert_close(found[i, c], penalty.prox(x[i, c], steps[c, 0]))
            assert float(values[i, c]) == pytest.approx(float(penalty.value(x[i, c])), rel=1e-12)


def test_prox_of_zeros_is_zero():
    for penalty in PENALTIES.values():
        assert not penalty.prox(np.zeros(5), 1.0).any()


def test_metrics_are_those_of_the_sum():
    smooth = compiled(small_logistic())
    problem = peer.problems.composite(smooth, l1=0.02)
    method = peer.methods.proxgt(alpha=0.3, batch=3)
    for engine in ("stacked", "debug"):
        trace = peer.run(method, problem, RING, steps=40, precision=64, record=4, engine=engine)
        last, x = trace.table.iloc[-1], trace.x_mean
        assert last["loss"] == pytest.approx(smooth.loss(x) + 0.02 * np.abs(x).sum(), rel=1e-12)
        assert last["loss"] == pytest.approx(problem.loss(x), rel=1e-12)

        def mapping(x):
            moved = x - smooth.grad(x)
            return x - np.sign(moved) * np.maximum(np.abs(moved) - 0.02, 0)

        assert last["grad_norm"] == pytest.approx(np.linalg.norm(mapping(x)), rel=1e-10)
        nodes = np.mean([np.sum(mapping(own) ** 2) for own in trace.x])
        assert last["stationarity"] == pytest.approx(nodes, rel=1e-10)
        assert last["nonzeros"] == np.count_nonzero(x) <= 5
    row = peer.sweep(
        "proxgt", {"alpha": [0.3], "batch": [3]}, problem, RING, steps=40, precision=64
    ).iloc[0]
    assert (row["loss"], row["grad_norm"]) == pytest.approx(
        (last["loss"], last["grad_norm"]), rel=1e-10
    )
    assert "nonzeros" not in peer.run(method, smooth, RING, steps=3).table


@pytest.mark.parametrize(
    "given", [{"l1": 0.05}, {"box": (-0.1, 0.2)}, {"l1": 0.02, "box": (-0.1, 0.2)}], ids=str
)
def test_the_optimum_is_a_fixed_point_that_methods_find(given):
    problem = peer.problems.composite(small_logistic(), **given)
    best = peer.problems.optimum(problem)
    assert best.grad_norm < 1e-7
    assert best.value == pytest.approx(problem.loss(best.x), rel=1e-9)
    mapping = best.x - problem.penalty.prox(best.x - problem.grad(best.x), 1.0)
    assert np.abs(mapping).max() < 1e-7
    exact = peer.compose(
        peer.estimators.page(probability=1.0), peer.fusions.proximal_tracking(alpha=0.5, atc=False)
    )
    found = peer.run(exact, problem, RING, steps=2000, precision=64, record=1)
    assert found.table["loss"].iloc[-1] == pytest.approx(best.value, rel=1e-6)


def test_another_penalty_is_another_problem():
    problems = [peer.problems.composite(small_logistic(), l1=l1) for l1 in (0.1, 0.2)]
    trace = peer.run(peer.methods.proxgt(), problems[0], RING, steps=5)
    with pytest.raises(ValueError, match="cannot resume"):
        peer.run(peer.methods.proxgt(), problems[1], RING, steps=9, resume=trace)
    again = peer.run(peer.methods.proxgt(), problems[0], RING, steps=9, resume=trace)
    assert again.steps == 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "without a non-smooth term: give l1, group or box"),
        ({"l1": -1}, "l1 = -1: must be a finite number of at least 0"),
        ({"l1": float("nan")}, "l1 = nan: must be a finite number"),
        ({"group": (0.1, [0, 1])}, "with the number of the group of each of 5 entries"),
        ({"group": (0.1, [0, 1, 3, 0, 1])}, "from 0 on without gaps"),
        (
            {"group": (0.1, GROUPS), "box": (0, 1)},
            "group with box: their proximal operator is not in closed form",
        ),
        ({"box": (1, 1)}, r"box = \(1, 1\): must be \(low, high\) with low below high"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises(ValueError, match=message):
        peer.problems.composite(small_logistic(), **given)


def test_methods_without_proximal_steps_are_refused():
    problem = peer.problems.composite(small_logistic(), l1=0.1)
    message = "gt-dsgd takes no proximal steps, .*: use proxgt, deepstorm, or the smooth problem"
    with pytest.raises(ValueError, match=message):
        peer.run(peer.methods.gt_dsgd(), problem, RING, steps=3)
    with pytest.raises(ValueError, match=message):
        peer.sweep("gt-dsgd", {"alpha": [0.1]}, problem, RING, steps=3)


def test_what_is_not_found_or_is_there_already_is_refused():
    group = peer.problems.composite(small_logistic(), group=(0.1, GROUPS))
    with pytest.raises(ValueError, match="the optimum of a problem with group norms is not found"):
        peer.problems.optimum(group)
    with pytest.raises(ValueError, match="has a non-smooth term already"):
        peer.problems.composite(group, l1=0.1)
    with pytest.raises(ValueError, match="a box without 0"):
        peer.problems.optimum(peer.problems.composite(small_logistic(), l1=0.1, box=(0.5, 1)))


def test_the_default_start_lies_in_the_box():
    problem = peer.problems.composite(small_logistic(), box=(1.0, 2.0))
    assert np.array_equal(problem.start, np.ones(problem.dimension))
    assert (
        peer.problems.composite(small_logistic(), box=(-1.0, 2.0)).start is small_logistic().start
    )


@pytest.mark.parametrize("given", [{"box": 1}, {"group": np.arange(5)}, {"box": (1, 2, 3)}])
def test_halves_of_pairs_are_refused(given):
    with pytest.raises(ValueError, match=r"give \((low, high|strength, numbers)\)"):
        peer.problems.composite(small_logistic(), **given)


def test_norms_of_groups_are_those_of_their_entries():
    """In NumPy and JAX, for groups in any order."""
    penalty = Penalty(group=0.7, groups=(2, 0, 1, 0, 2, 2))
    x = np.random.default_rng(0).normal(size=(3, 6))
    expected = np.stack(
        [np.linalg.norm(x[:, [g == k for g in penalty.groups]], axis=1) for k in range(3)], axis=1
    )
    for own in (x, jnp.asarray(x)):
        np.testing.assert_allclose(penalty._norms(own), expected, rtol=1e-6)


def test_groups_of_tiny_entries_become_zeros():
    """Their squares are 0 in single precision."""
    penalty = Penalty(group=0.1, groups=(0, 0, 1))
    for x in (
        np.array([1e-25, 1e-25, 1.0], np.float32),
        jnp.array([1e-25, 1e-25, 1.0], jnp.float32),
    ):
        assert np.asarray(penalty.prox(x, 1.0))[:2].tolist() == [0.0, 0.0]
