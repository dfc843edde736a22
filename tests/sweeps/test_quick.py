"""The quick tune: the best of the small grid with its worst seed; what is given is kept, and narrow grids move."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.sweeps import quick, quick_tune, sweeping
from small import small_logistic, small_quadratic, small_streaming

RING = peer.Network(peer.topology.ring(6))


def worst(table):
    """The largest loss of each row at its end and shortly before."""
    losses = [name for name in table if name.startswith("loss")]
    assert len(losses) in (2, 3)
    return table.set_index(["alpha", *{"beta"} & set(table)])[losses].max(axis=1)


def steep(factor):
    """A quadratic problem whose curvature, and that of its noise, is larger by a factor."""
    rng = np.random.default_rng(0)
    return peer.problems.quadratic(factor * np.stack([np.eye(3)] * 6), factor * rng.normal(size=(6, 3)), 0.1 * factor)


def test_the_winner_is_the_best_with_its_worst_seed_and_no_seed_is_reported():
    found = quick_tune("gt-hsgd", small_logistic(), RING, epochs=4, apart=range(1000, 1003))
    assert sorted(found.table["seed"].unique()) == [1003, 1004, 1005]
    winner = found.values
    assert {name: found.method.parameters[name] for name in winner} == winner
    each = worst(found.table).groupby(["alpha", "beta"]).max()
    assert each.idxmin() == (winner["alpha"], winner["beta"])
    assert set(found.table["beta"]) == set(found.method.declared["beta"].tuned["small"])
    assert found.table["batch"].unique().tolist() == [1], "sizes are not searched"
    values = f"alpha = {winner['alpha']:g}, beta = {winner['beta']:g}, initial_batch = 2 by a quick tune: "
    assert found.how == f"{values}{len(each)} settings of 4 epochs, seeds 1003, 1004, 1005"


def test_what_is_given_is_kept_and_the_rest_is_chosen(monkeypatch):
    found = quick_tune("gt-hsgd[alpha=0.5,batch=2]", small_logistic(), RING, steps=20)
    assert found.method.parameters["alpha"] == 0.5
    assert found.method.parameters["batch"] == 2
    assert set(found.table.columns) & {"alpha", "batch"} == set()
    assert len(found.table) == 3 * 3
    assert found.how.endswith("3 settings of 20 steps, seeds 1001, 1002, 1003")
    monkeypatch.setattr(quick, "sweep", None)
    for given in ("gt-hsgd[alpha=0.5,beta=0.1]", "dsgd[alpha=0.5]", "dsgd[alpha=cosine(9)]"):
        found = quick_tune(given, small_logistic(), RING, epochs=4)
        assert found == (peer.methods.parse(given), {}, "", None), "nothing is left to choose, so nothing changes"


@pytest.mark.parametrize("factor", [1e4, 1e-3])
def test_the_grid_moves_to_where_the_problem_is(factor):
    found = quick_tune("dsgd", steep(factor), RING, steps=60)
    alpha, tried = found.method.parameters["alpha"], found.table["alpha"]
    assert tried.min() < alpha < tried.max()
    assert 0.05 < alpha * factor < 2, "a step size is relative to the curvature"
    blocks = 12 if factor > 1 else 8
    assert tried.nunique() == blocks + 2
    ratios = np.diff(np.log2(np.sort(tried.unique()[:blocks])))
    np.testing.assert_allclose(ratios, 2.0, err_msg="without a gap")


def test_the_step_size_is_refined_once_with_the_other_numbers_that_were_found():
    found = quick_tune("gt-hsgd", small_logistic(), RING, epochs=4)
    coarse, fine = found.table[:-6], found.table[-6:]
    each = worst(coarse).groupby(["alpha", "beta"]).max()
    alpha, beta = each.idxmin()
    assert sorted(fine["alpha"].unique()) == [alpha / 2, 2 * alpha]
    assert fine["beta"].unique().tolist() == [beta]
    assert sorted(fine["seed"].unique()) == sorted(coarse["seed"].unique())
    better = worst(fine).groupby("alpha").max()
    assert found.values["alpha"] == (better.idxmin() if better.min() < each.min() else alpha)


@pytest.mark.parametrize(("epochs", "size"), [(300, 64), (40, 22), (1, 1)])
def test_the_first_batch_takes_a_twentieth_of_a_run_at_most(epochs, size):
    """A node has 11 samples."""
    found = quick_tune("gt-hsgd[alpha=0.5]", small_logistic(), RING, epochs=epochs)
    assert found.values["initial_batch"] == size
    assert quick_tune("gt-hsgd[alpha=0.5,initial_batch=30]", small_logistic(), RING, epochs=1).values.keys() == {
        "beta",
        "batch",
    }


def test_a_step_size_is_halved_if_its_double_ends_above_the_start():
    """Here the best one is at the minimum soon, and with its double every step leads further to the other side."""
    rng = np.random.default_rng(0)
    problem = peer.problems.quadratic(1.1 * np.stack([np.eye(3)] * 6), rng.normal(size=(6, 3)), 1e-6)
    found = quick_tune("gt-dsgd", problem, peer.Network(peer.topology.complete(6)), steps=6)
    each = worst(found.table).groupby("alpha").max()
    assert each.idxmin() == 1
    assert each[2.0] > problem.loss(np.zeros(3))
    assert found.values["alpha"] == 0.5


def test_what_ends_above_the_start_does_not_win(monkeypatch):
    """Losses that grow linearly do not diverge: here the best one of the grid is inside of it, and above the start."""

    def swept(method, rows, problem, network, seed, **_):
        losses = {0.25: 5.0, 0.5: 4.0, 1.0: 3.0, 2.0: 3.5, 4.0: 4.0, 16.0: 6.0}
        table = [
            {**row, "seed": k, "loss": losses.get(row["alpha"], -1.0), "status": "done"} for row in rows for k in seed
        ]
        return pd.DataFrame(table)

    monkeypatch.setattr(quick, "sweep", swept)
    found = quick_tune("dsgd", steep(1.0), RING, steps=60)
    assert steep(1.0).loss(np.zeros(3)) == 0
    assert found.values["alpha"] < 0.25


def test_what_is_never_stable_keeps_its_defaults():
    found = quick_tune("dsgd", steep(1e30), RING, steps=60)
    assert found.method == peer.methods.dsgd()
    assert found.how == (
        "the defaults, since a quick tune found nothing that ends below the start: "
        "20 settings of 60 steps, seeds 1001, 1002, 1003"
    )


def test_long_runs_are_cut(monkeypatch):
    monkeypatch.setattr(quick, "GRADIENTS", 22)
    problem = small_logistic()
    found = quick_tune("dsgd", problem, RING, epochs=300)
    assert "settings of 2 epochs" in found.how
    assert found.table["steps"].unique().tolist() == [2 * problem.samples]
    assert "settings of 22 steps" in quick_tune("dsgd", problem, RING, steps=300).how


def test_values_that_the_problem_or_a_schedule_does_not_allow_stay_as_they_are():
    found = quick_tune("d-get", small_streaming(), RING, steps=10)
    assert found.method.parameters["period"] == peer.methods.d_get().parameters["period"]
    assert "period" not in found.how
    assert quick_tune("d-pd-sgd[eta=cosine(9)]", small_quadratic(), RING, steps=10).how == ""


def test_functions():
    def mine(alpha=0.1, scale=3):
        return peer.compose(peer.estimators.sgd(), peer.fusions.tracking(alpha=alpha * scale))

    def needy(alpha, batch=1):
        return peer.methods.dsgd(alpha, batch)

    found = quick_tune(mine, small_logistic(), RING, steps=20)
    assert found.method.parameters["alpha"] == 3 * found.values["alpha"]
    with pytest.raises(ValueError, match="needy has no default for alpha: give it one"):
        quick_tune(needy, small_logistic(), RING, steps=20)
    with pytest.raises(ValueError, match="steps = None, epochs = None: give exactly one"):
        quick_tune("dsgd", small_logistic(), RING)


def test_ctrl_c_is_passed_on(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quick_tune("dsgd", small_logistic(), RING, steps=9)
