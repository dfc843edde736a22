"""Tuning: how configurations rank, what is searched and said, equal budgets, other seeds, and folders that go on."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.sweeps import tuning, tuning_grid
from small import Spy, by_hand, small_logistic, small_streaming

MAPS = Path("/proc/self/maps")
RING = peer.Network(peer.topology.ring(6))
SHORT = {"steps": 20, "seed": [7, 8], "fresh": range(2)}
GRID = {"alpha": [0.5, 2.0, 1e9], "beta": [0.01, 0.3], "initial_batch": [4]}


def steep(factor):
    """A quadratic problem whose curvature, and that of its noise, is larger by a factor."""
    rng = np.random.default_rng(0)
    return peer.problems.quadratic(
        factor * np.stack([np.eye(3)] * 6), factor * rng.normal(size=(6, 3)), 0.1 * factor
    )


def test_a_grid_is_a_sweep_ranked_by_the_worst_of_the_last_fifth_and_a_seed_that_diverges_is_last():
    problem = small_logistic()
    tuned = peer.tune("gt-hsgd[batch=2]", problem, RING, grid=GRID, **SHORT)
    swept = peer.sweep(
        "gt-hsgd[batch=2]", GRID, problem, RING, steps=20, at=[16, 17, 18, 19], seed=[7, 8]
    )
    pd.testing.assert_frame_equal(tuned.table[list(swept)], swept, rtol=1e-6)
    for (alpha, beta), rows in tuned.table.groupby(["alpha", "beta"]):
        worst = np.inf
        if alpha < 1e9:
            method = peer.methods.gt_hsgd(alpha=alpha, beta=beta, batch=2, initial_batch=4)
            tables = [
                peer.run(method, problem, RING, steps=20, seed=s, record=20).table for s in (7, 8)
            ]
            worst = np.mean([table.query("step >= 16")["loss"].max() for table in tables])
        assert rows["score"].tolist() == pytest.approx([worst, worst], rel=1e-5)
    first = tuned.table.loc[tuned.table["score"].idxmin()]
    assert (tuned.score, tuned.configurations) == (first["score"], 6)
    assert tuned.best == {"alpha": first["alpha"], "beta": first["beta"], "initial_batch": 4}
    assert (
        tuned.method
        == peer.methods.parse(tuned.selector)
        == peer.methods.gt_hsgd(batch=2, **tuned.best)
    )
    again = peer.run(tuned.method, problem, RING, steps=20, seed=1)
    assert tuned.fresh["seed"].tolist() == [0, 1]
    assert again.table["loss"].iloc[-1] == pytest.approx(tuned.fresh["loss"].iloc[1], rel=1e-6)
    with pytest.raises(ValueError, match="every configuration diverged: give smaller step sizes"):
        peer.tune("dsgd", problem, RING, grid={"alpha": [1e9, 1e10]}, **SHORT)


def test_what_is_about_to_explode_does_not_win():
    """A step leads far away, and the next to the minimum itself: its last loss is the smallest."""
    rng = np.random.default_rng(0)
    problem = peer.problems.quadratic(
        np.stack([np.eye(3)] * 6), np.tile(rng.normal(size=3), (6, 1)), 0.0
    )

    def jumping(late=0):
        size = peer.schedules.function(
            lambda t: jnp.where(t == late, 5.0, jnp.where(t == late + 1, 1.0, 0.2))
        )
        return peer.methods.dsgd(alpha=size)

    options = SHORT | {"grid": {"late": [17, 30]}}
    tuned = peer.tune(jumping, problem, RING, **options)
    last = tuned.table.groupby("late")["loss"].mean()
    assert last[17] < last[30], "what this is about"
    assert tuned.best == {"late": 30}


@pytest.mark.parametrize("factor", [1e5, 1e-4])
def test_the_step_size_is_followed_to_where_the_problem_is(factor):
    tuned = peer.tune("dsgd[batch=1]", steep(factor), RING, steps=60, seed=[7, 8], fresh=())
    assert 0.02 < tuned.best["alpha"] * factor < 2, "a step size is relative to the curvature"
    tried = tuned.table["alpha"]
    assert tried.min() < tuned.best["alpha"] < tried.max()
    assert "alpha is at" not in tuned.how
    assert len(tuned.fresh) == 0


def test_limits_are_said():
    searched = peer.tune("dsgd[alpha=0.1]", small_logistic(), RING, epochs=2, fresh=())
    assert searched.best == {"batch": 1}
    assert "batch is at its smallest" in searched.how
    assert "budget" not in searched.how
    cut = peer.tune("dsgd", small_logistic(), RING, epochs=2, fresh=(), budget=2 * 3 * 5)
    assert cut.configurations == 5
    assert "the budget is spent" in cut.how
    grid = {"alpha": [0.01, 0.1, 0.2], "batch": [1]}
    edge = peer.tune("dsgd", small_logistic(), RING, grid=grid, **SHORT)
    assert edge.best == {"alpha": 0.2, "batch": 1}
    assert "alpha = 0.2 is at an edge" in edge.how
    inside = peer.tune("dsgd", small_logistic(), RING, grid={"alpha": [0.01, 4, 1e9]}, **SHORT)
    assert "edge" not in inside.how


def test_all_methods_have_the_same_budget(tmp_path):
    methods = ["dsgd", "gt-hsgd", ("gt-dsgd", {"alpha": [0.1, 1.0]})]
    options = {"epochs": 2, "seed": [7, 8], "fresh": ()}
    found = peer.tune(methods, small_logistic(), RING, budget=2 * 2 * 9, out=tmp_path, **options)
    assert [one.configurations for one in found] == [9, 9, 2]
    for one in found:
        configurations = one.table.drop(columns=["seed"])[list(one.best)].drop_duplicates()
        assert len(configurations) == one.configurations == len(one.table) / 2
        assert one.table["epoch"].max() <= 2
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "dsgd",
        "gt-hsgd",
        "gt-dsgd",
    }
    [more] = peer.tune(["gt-hsgd[batch=1,initial_batch=1]"], small_logistic(), RING, **options)
    assert 20 < more.configurations <= 150


def test_by_an_accuracy_the_largest_of_the_smallest_wins():
    problem = small_logistic()
    share = peer.metric(
        lambda x_mean, x, problem: -float(np.abs(x_mean - 1).max()), name="closeness", rising=True
    )
    options = SHORT | {"grid": {"alpha": [0.01, 0.3, 3.0]}, "metrics": [share]}
    tuned = peer.tune("dsgd", problem, RING, by="closeness", **options)
    scores = {}
    for alpha in (0.01, 0.3, 3.0):
        traces = peer.run(
            peer.methods.dsgd(alpha),
            problem,
            RING,
            steps=20,
            seed=[7, 8],
            record=20,
            metrics=[share],
        )
        scores[alpha] = np.mean(
            [trace.table.query("step >= 16")["closeness"].min() for trace in traces]
        )
    assert tuned.best == {"alpha": max(scores, key=scores.get)}
    assert tuned.score == pytest.approx(max(scores.values()), rel=1e-5)
    assert tuned.table["score"].max() == pytest.approx(tuned.score)
    again = peer.run(tuned.method, problem, RING, steps=20, seed=[0, 1], metrics=[share])
    assert tuned.fresh["closeness"].tolist() == pytest.approx(
        [one.table["closeness"].iloc[-1] for one in again]
    )
    assert "by the largest closeness" in tuned.how
    empty = peer.metric(lambda x_mean, x, problem: float("nan"), name="empty")
    with pytest.raises(ValueError, match="by = 'empty': it is empty or not a number"):
        peer.tune("dsgd", problem, RING, by="empty", **options | {"metrics": [empty]})
    by_loss = peer.tune("dsgd", problem, RING, **options)
    assert by_loss.by == "loss"


@pytest.mark.parametrize("grid", [None, GRID])
def test_a_tuning_goes_on_where_it_stopped(tmp_path, monkeypatch, grid):
    problem, options = (
        small_logistic(),
        {"epochs": 2, "seed": [7, 8], "fresh": [1], "budget": 2 * 2 * 12, "grid": grid},
    )
    whole = peer.tune("gt-hsgd", problem, RING, **options)
    real, calls = tuning.sweep, []

    def second(*arguments, **own):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **own)

    with pytest.raises(KeyboardInterrupt):
        peer.tune("gt-hsgd", problem, RING, out=tmp_path, progress=Spy(0), **options)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "sweep", second)
        with pytest.raises(KeyboardInterrupt):
            peer.tune("gt-hsgd", problem, RING, out=tmp_path, **options)
    assert (tmp_path / "sweep.csv").exists()
    assert not (tmp_path / "tuned.json").exists()
    again = peer.tune("gt-hsgd", problem, RING, out=tmp_path, **options)
    assert (again.selector, again.how) == (whole.selector, whole.how)
    pd.testing.assert_frame_equal(again.table, whole.table, rtol=1e-6)
    pd.testing.assert_frame_equal(again.fresh, whole.fresh, rtol=1e-6)
    assert json.loads((tmp_path / "tuned.json").read_text())["method"] == again.selector
    monkeypatch.setattr("peerdescent.engines.fleet.Fleet.follow", None)  # nothing runs again
    assert peer.tune("gt-hsgd", problem, RING, out=tmp_path, **options).selector == whole.selector


def test_refusals():
    def refused(message, method="gt-dsgd", **options):
        with pytest.raises(ValueError, match=message) as told:
            peer.tune(method, small_logistic(), RING, **{"epochs": 2, **options})
        assert "\n" not in str(told.value)

    refused(r"seed \[2\]: searched and evaluated", seed=range(2, 4), fresh=range(3))
    refused("alpha is in the grid and fixed", "gt-dsgd[alpha=1]", grid={"alpha": [1, 2]})
    refused("alpah.*did you mean 'alpha'", grid={"alpah": [1, 2]})
    refused("unknown parameter of gt.dsgd 'beta'", grid={"alpha": [1], "beta": [1, 2]})
    refused("unknown parameter of gt-dsgd 'beta'", "gt-dsgd[beta=0.1]")
    refused("grid = 'big'", grid="big")
    refused("budget = 5: must be finite; one configuration takes 6 passes", budget=5)
    refused("budget = inf", budget=float("inf"))
    refused("by_hand does not say over which values alpha are tuned: give a grid", by_hand)
    refused(
        "unknown parameter of by_hand 'alhpa': did you mean 'alpha'", by_hand, grid={"alhpa": [1]}
    )
    refused("unknown metric 'los': did you mean 'loss'", by="los")
    refused("unknown metric 'accuracy'", by="accuracy")
    refused("give a function such as", 3)
    refused("has all its hyperparameters", peer.methods.dsgd())
    refused("atc = False: gt-dsgd has True", "gt-dsgd[atc=False]")


def test_values_that_are_none_or_whole_or_given_in_units_of_the_problem():
    grid = {"alpha": [0.1], "period": [5], "batch": [2], "large_batch": [None, 8]}
    tuned = peer.tune("spider*tracking", small_logistic(), RING, grid=grid, **SHORT)
    assert tuned.best["large_batch"] in (None, 8)
    strict = tuning_grid("d-get", 100, batch=1)
    assert {one["batch"] for one in strict} == {1}
    assert {5, 100, 2000} <= {one["period"] for one in strict}
    found = peer.tune("d-get", small_logistic(), RING, epochs=4, seed=7, fresh=(), budget=4 * 6)
    assert all(type(found.best[name]) is int for name in ("period", "batch", "large_batch"))
    assert (
        found.selector
        == f"d-get[{','.join(f'{name}={value:g}' for name, value in found.best.items())}]"
    )
    streamed = peer.tune("d-get[batch=1]", small_streaming(), RING, steps=20, seed=7, fresh=())
    assert streamed.best["period"] >= 1


def test_functions_are_tuned_as_names_are():
    def mine(alpha=0.1, scale=3):
        return peer.compose(peer.estimators.sgd(), peer.fusions.tracking(alpha=alpha * scale))

    def scheduled(scale=1.0):
        return peer.methods.dsgd(alpha=peer.schedules.function(lambda t: scale + 0 * t))

    problem, options = small_logistic(), {"epochs": 1, "seed": 7, "fresh": ()}
    named, given = (
        peer.tune(one, problem, RING, **options) for one in ("gt-dsgd", peer.methods.gt_dsgd)
    )
    assert (given.selector, given.score) == (named.selector, named.score)
    own = peer.tune(mine, problem, RING, **options)
    assert list(own.best) == ["alpha"]
    assert own.selector == f"mine[alpha={own.best['alpha']:g}]"
    assert own.method == mine(own.best["alpha"])
    printed = peer.tune(
        str(peer.methods.parse("gt-dsgd[alpha=0.5]")), problem, RING, grid={}, **options
    )
    assert printed.method == peer.methods.parse("gt-dsgd[alpha=0.5]")
    tuned = peer.tune(scheduled, problem, RING, grid={"scale": [0.01, 0.1, 1.0]}, **options)
    assert tuned.table["method"].nunique() == 1, "all have one text"
    assert tuned.best == {"scale": 1.0}


@pytest.mark.skipif(not MAPS.is_file(), reason="a list of Linux")
def test_programs_of_a_search_do_not_stay():
    """A process that tunes all day would have more memory maps than the system allows."""
    peer.tune("dsgd", small_logistic(), RING, **SHORT)
    before = MAPS.read_text().count("\n")
    peer.tune("gt-hsgd", small_logistic(), RING, **SHORT)
    assert MAPS.read_text().count("\n") < before + 100
