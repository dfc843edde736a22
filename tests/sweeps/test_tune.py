"""Tuning: the winner is the best of its grid, halving is cheaper, and the winner is run with other seeds."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.sweeps import tuning_grid
from small import small_logistic

RING = peer.Network(peer.topology.ring(6))
GRID = {"alpha": [0.1, 0.5, 2.0], "beta": [0.01, 0.3], "initial_batch": [4]}


def test_the_winner_alone_gives_the_loss_that_the_search_reported():
    problem = small_logistic()
    tuned = peer.tune("gt-hsgd[batch=2]", problem, RING, grid=GRID, epochs=6, seeds=3)
    assert len(tuned.table) == 6
    assert tuned.loss == tuned.table["loss"].min()
    assert tuned.best["batch"] == 2
    method = peer.methods.parse(tuned.selector)
    trace = peer.run(method, problem, RING, epochs=6, seed=0)
    assert trace.table["loss"].iloc[-1] == pytest.approx(tuned.loss, rel=1e-6)
    assert tuned.fresh["seed"].tolist() == [1, 2, 3]
    again = peer.run(method, problem, RING, epochs=6, seed=2)
    assert again.table["loss"].iloc[-1] == pytest.approx(tuned.fresh["loss"].iloc[1], rel=1e-6)


def test_halving_gives_all_a_ninth_and_the_last_everything():
    problem = small_logistic()
    grid = {"alpha": [0.01 * 2**k for k in range(9)]}
    whole = peer.tune("gt-dsgd", problem, RING, grid=grid, epochs=18, seeds=0)
    halved = peer.tune("gt-dsgd", problem, RING, grid=grid, epochs=18, seeds=0, search="halving")
    assert len(halved.table) == 9
    assert halved.table["rung"].value_counts().to_dict() == {1: 6, 2: 2, 3: 1}
    assert halved.table.groupby("rung")["epoch"].max().tolist() == pytest.approx([2, 6, 18])
    assert halved.selector == whole.selector
    assert halved.loss == pytest.approx(whole.loss, rel=1e-5)
    spent = halved.table["epoch"].sum() + 2 * 3 + 6  # the epochs of promoted configurations on earlier rungs
    assert spent < 0.4 * whole.table["epoch"].sum()


def test_finalists_are_judged_by_their_mean_over_other_seeds(tmp_path):
    problem = small_logistic()
    grid = {"alpha": [0.5, 1.0, 2.0, 4.0, 8.0]}
    tuned = peer.tune("dsgd", problem, RING, grid=grid, epochs=4, seeds=2, finalists=3, out=tmp_path)
    judged = pd.read_csv(tmp_path / "finalists" / "sweep.csv")
    assert sorted(judged["seed"].unique()) == [1001, 1002, 1003, 1004, 1005]
    assert set(judged["alpha"]) == set(tuned.table.nsmallest(3, "loss")["alpha"])
    means = judged.groupby("alpha")["loss"].mean()
    assert tuned.best == {"alpha": means.idxmin()}
    assert tuned.loss == tuned.table.set_index("alpha").loc[means.idxmin(), "loss"]
    assert tuned.fresh["seed"].tolist() == [1, 2]


def test_values_that_are_none_or_whole_stay_so():
    grid = {"alpha": [0.1], "period": [5], "batch": [2], "large_batch": [None, 8]}
    for finalists in (1, 2):
        tuned = peer.tune("spider*tracking", small_logistic(), RING, grid=grid, epochs=4, seeds=0, finalists=finalists)
        assert tuned.best["large_batch"] in (None, 8)
        assert tuned.loss == pytest.approx(tuned.table["loss"].min(), rel=0.1)


def test_halving_survives_divergence_and_says_when_nothing_is_left():
    problem = small_logistic()
    tuned = peer.tune("dsgd", problem, RING, grid={"alpha": [0.1, 1e30]}, epochs=9, seeds=0, search="halving")
    assert tuned.best == {"alpha": 0.1}
    with pytest.raises(ValueError, match="every configuration diverged"):
        peer.tune("dsgd", problem, RING, grid={"alpha": [1e30]}, epochs=9, seeds=0, search="halving")


def test_a_tuning_goes_on_where_it_stopped(tmp_path, monkeypatch):
    problem = small_logistic()
    first = peer.tune("gt-hsgd", problem, RING, grid=GRID, epochs=3, seeds=2, out=tmp_path)
    assert json.loads((tmp_path / "tuned.json").read_text())["method"] == first.selector

    def fail(*_, **__):
        raise AssertionError("run again")

    monkeypatch.setattr("peerdescent.engines.fleet.Fleet.follow", fail)
    again = peer.tune("gt-hsgd", problem, RING, grid=GRID, epochs=3, seeds=2, out=tmp_path)
    assert (again.selector, again.loss) == (first.selector, first.loss)


def test_ctrl_c_is_passed_on_after_saving(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["peerdescent.sweeps.sweeping"], "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        peer.tune("gt-dsgd", small_logistic(), RING, grid={"alpha": [0.1, 0.2]}, epochs=3, out=tmp_path)
    assert not (tmp_path / "tuned.json").exists()


def test_refusals():
    problem = small_logistic()
    with pytest.raises(ValueError, match="unknown search 'random'"):
        peer.tune("gt-dsgd", problem, RING, search="random")
    with pytest.raises(ValueError, match="alpha is in the grid and fixed"):
        peer.tune("gt-dsgd[alpha=1]", problem, RING, grid={"alpha": [1, 2]})
    with pytest.raises(ValueError, match="unknown grid 'big'"):
        peer.tune("gt-dsgd", problem, RING, grid="big")
    with pytest.raises(ValueError, match="unknown parameter of gt-dsgd 'beta'"):
        peer.tune("gt-dsgd[beta=0.1]", problem, RING)


def test_fixed_parameters_leave_the_rest_of_the_grid():
    strict = tuning_grid("d-get", 100, "medium", batch=1)
    assert {one["batch"] for one in strict} == {1}
    assert {one["period"] for one in strict} == {25, 100, 400}
    assert len(strict) == 6 * 3 * 2, "step sizes, periods, large batches"


def test_functions_are_tuned_as_names_are():
    def mine(alpha=0.1, scale=3):
        return peer.compose(peer.estimators.sgd(), peer.fusions.tracking(alpha=alpha * scale))

    options = {"epochs": 1, "seeds": 0}
    named, given = (peer.tune(one, small_logistic(), RING, **options) for one in ("gt-dsgd", peer.methods.gt_dsgd))
    assert (given.selector, given.loss) == (named.selector, named.loss)
    own = peer.tune(mine, small_logistic(), RING, **options)
    assert own.table["alpha"].tolist() == sorted(set(named.table["alpha"]))
    assert own.selector == f"mine[alpha={own.best['alpha']}]"
    with pytest.raises(ValueError, match="method is a int: give a function such as"):
        peer.tune(3, small_logistic(), RING)


def test_several_seeds_of_a_search_are_refused_before_it_runs():
    with pytest.raises(ValueError, match=r"seed = \[0, 1\]"):
        peer.tune("dsgd", small_logistic(), RING, epochs=1, seed=[0, 1])


def test_a_winner_that_ends_above_the_start_is_said():
    with pytest.warns(UserWarning, match=r"dsgd\[alpha=128\]: 2 of 2 other seeds end above .* the start, 0\.6931, or"):
        peer.tune("dsgd", small_logistic(), RING, grid={"alpha": [128]}, epochs=20, seeds=2)


def test_methods_with_one_text_are_all_ranked():
    def scheduled(scale=1.0):
        return peer.methods.dsgd(alpha=peer.schedules.function(lambda t: scale + 0 * t))

    tuned = peer.tune(scheduled, small_logistic(), RING, grid={"scale": [0.01, 0.1, 1.0]}, epochs=2, seeds=0)
    assert tuned.table["method"].nunique() == 1
    assert tuned.best == {"scale": 1.0}
    assert tuned.loss == tuned.table["loss"].min()


def test_selectors_that_are_printed_are_tuned():
    """They have switches, which the function of a named method does not take."""
    problem = small_logistic()
    tuned = peer.tune(str(peer.methods.parse("gt-dsgd[alpha=0.5]")), problem, RING, grid="small", epochs=1, seeds=1)
    assert tuned.best == {"alpha": 0.5, "batch": 1}
    with pytest.raises(ValueError, match="atc = False: gt-dsgd has True"):
        peer.tune("gt-dsgd[atc=False]", problem, RING, epochs=1)
    with pytest.raises(ValueError, match="parameter of gt-dsgd 'alpa': did you mean 'alpha'"):
        peer.tune("gt-dsgd[alpa=1]", problem, RING, epochs=1)
    with pytest.raises(ValueError, match=r"seeds = \[5, 6\]: give how many other seeds"):
        peer.tune("gt-dsgd", problem, RING, epochs=1, seeds=[5, 6])
