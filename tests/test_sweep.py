"""Sweeps: many configurations in one program equal as many runs, whatever the pieces, seeds and interruptions."""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from conftest import PROBLEMS, Spy, small_logistic, small_quadratic
from peerdescent.engines import fleet, program
from peerdescent.methods import METHODS
from peerdescent.sweep import BATCHES, BETAS, STEP_SIZES, best, paper_grid, paper_periods

RING = peer.Network(peer.topology.ring(6))
STEPPED = {"d-pd-sgd": "eta"}
GRIDS = {
    "gt-hsgd": {"beta": [0.01, 0.3], "batch": [1, 9], "initial_batch": [4]},
    "d-get": {"period": [2, 3, 7, 100], "batch": [1, 9], "large_batch": [5]},
    "d-spider-sfo": {"period": [2, 3, 7, 100], "batch": [2], "large_batch": [5, 9]},
    "gt-sarah": {"period": [2, 3, 7, 100], "batch": [2]},
}


def grid_of(name):
    return {STEPPED.get(name, "alpha"): [0.05, 0.2, 0.4]} | GRIDS.get(name, {"batch": [1, 9]})


def alone(name, row, problem, network, **options):
    """The same configuration as a run of its own."""
    parameters = {k: v for k, v in row.items() if k in grid_of(name)}
    return peer.run(METHODS[name].build(**parameters), problem, network, seed=row["seed"], **options)


@pytest.mark.parametrize("name", METHODS)
def test_configurations_equal_runs(name):
    problem, options = small_logistic(), {"epochs": 14, "precision": 64}
    table = peer.sweep(name, grid_of(name), problem, RING, at=[2, 4.5], **options)
    assert (table["status"] == "done").all()
    for row in table.to_dict("records"):
        trace = alone(name, row, problem, RING, record=1, **options)
        assert row["steps"] == trace.steps
        assert row["epoch"] == trace.table["epoch"].iloc[-1]
        assert row["epoch"] <= 14
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)
        assert row["grad_norm"] == pytest.approx(trace.table["grad_norm"].iloc[-1], rel=1e-9)
        short = alone(name, row, problem, RING, record=1, epochs=4.5, precision=64)
        assert row["loss@4.5"] == pytest.approx(short.table["loss"].iloc[-1], rel=1e-12)
    assert table["loss"].nunique() == len(table), "every configuration has a result of its own"


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("topology", ["directed", "changing"])
def test_all_problems_and_networks(problem, topology):
    problem = PROBLEMS[problem]()
    directed = peer.topology.directed_exponential(6)
    network = peer.Network(directed if topology == "directed" else [peer.topology.ring(6), directed])
    table = peer.sweep(
        "d-get", {"alpha": [0.02, 0.1], "period": [3, 4]}, problem, network, steps=9, precision=64, at=[5]
    )
    for row in table.to_dict("records"):
        method = peer.methods.d_get(alpha=row["alpha"], period=row["period"])
        trace = peer.run(method, problem, network, steps=9, precision=64, record=[5])
        assert trace.table["loss"].tolist()[1:] == pytest.approx([row["loss@5"], row["loss"]], rel=1e-12)


@pytest.mark.parametrize("room", [1, 5, 1000])
@pytest.mark.parametrize("seed", [3, [0, 3, 4, 8, 9]])
def test_pieces_and_seeds_change_nothing(room, seed, monkeypatch):
    problem = small_logistic()
    grid = {"alpha": [0.1, 0.2, 0.4], "period": [2, 5], "batch": [1, 2]}
    monkeypatch.setattr(fleet.Fleet, "_room", lambda self, pattern: room)
    table = peer.sweep("d-get", grid, problem, RING, epochs=5, seed=seed, precision=64)
    assert len(table) == 12 * np.size(seed)
    for row in table.to_dict("records")[:: len(table) // 6]:
        method = peer.methods.d_get(row["alpha"], row["period"], row["batch"])
        trace = peer.run(method, problem, RING, epochs=5, seed=row["seed"], precision=64, record=1)
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


def test_pieces_are_even_and_hold_everyone_once():
    method = peer.methods.gt_hsgd()
    for count, seeds, room, workers in [
        (32, 1, 26, 2),
        (33, 1, 16, 2),
        (7, 3, 4, 2),
        (1, 64, 16, 2),
        (1, 1, 9, 4),
        (3, 5, 1, 2),
        (32, 1, 26, 8),
        (64, 1, 26, 8),
        (64, 1, 26, 64),
    ]:
        members = [fleet.Member(method.replace(alpha=0.1 + k), s, (5,)) for k in range(count) for s in range(seeds)]
        ship = fleet.Fleet(members, small_logistic(), RING, np.zeros((6, 5)), np.float32)
        ship._room = lambda pattern, room=room: room
        pieces = ship.pieces(workers)
        assert sorted(k for piece in pieces for k in piece.ravel()) == list(range(count * seeds))
        assert all(piece.size <= room for piece in pieces)
        assert len(pieces) >= min(workers, count * seeds)
        assert len(pieces) <= max(2 * workers, -(-count * seeds // room) * 2), "no smaller than they need be"
        for piece in pieces:
            assert all(len({members[k].seed for k in row}) == 1 for row in piece), "a row is one seed"
            assert all(len({members[k].method.parameters["alpha"] for k in column}) == 1 for column in piece.T)


def test_longer_configurations_share_a_piece_with_their_like():
    periods = [1, 2, 50, 60]
    members = [fleet.Member(peer.methods.d_get(period=q), 0, (q,)) for q in [50, 1, 60, 2]]
    ship = fleet.Fleet(members, small_logistic(), RING, np.zeros((6, 5)), np.float32)
    ship._room = lambda pattern: 2
    assert [[members[k].marks[0] for k in piece[0]] for piece in ship.pieces()] == [periods[2:], periods[:2]]


def test_what_diverges_is_frozen_and_disturbs_nobody():
    problem = small_quadratic()
    sane = peer.sweep("gt-hsgd", {"alpha": [0.1, 0.2]}, problem, RING, steps=400, precision=64, at=[100, 200])
    wild = peer.sweep("gt-hsgd", {"alpha": [0.1, 1e3, 0.2, 30]}, problem, RING, steps=400, precision=64, at=[100, 200])
    assert wild["status"].tolist() == ["done", "diverged", "done", "diverged"]
    kept = wild[wild["status"] == "done"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, sane, rtol=1e-12)
    lost = wild.iloc[1]
    assert lost["steps"] == 100, "where it was first seen to have diverged"
    assert not lost["loss@100"] < 1e3 * sane["loss"].abs().max()
    assert np.isnan(lost["loss@200"])
    trace = peer.run(peer.methods.gt_hsgd(alpha=30), problem, RING, steps=400, precision=64, record=[100, 200])
    assert (trace.status, trace.steps) == ("diverged", 100)
    assert best(wild) == best(sane)


def test_all_diverged():
    table = peer.sweep("dsgd", {"alpha": [1e4, 1e5]}, small_quadratic(), RING, steps=10_000, at=[50])
    assert table["status"].tolist() == ["diverged"] * 2
    assert table["steps"].tolist() == [50, 50]
    with pytest.raises(ValueError, match="no configuration is done"):
        best(table)


class Counted:
    """An oracle that counts how often a large minibatch gradient is really computed."""

    finite = True

    def __init__(self, oracle, large):
        self.oracle, self.large, self.count = oracle, large, 0
        self.draw, self.exact = oracle.draw, oracle.exact

    def grad(self, x, sample, data):
        if len(sample) == self.large:
            jax.debug.callback(self.tick, x[0])
        return self.oracle.grad(x, sample, data)

    def tick(self, _):
        self.count += 1


@pytest.mark.parametrize("together", [1, 3])
def test_a_restart_of_some_is_not_paid_by_all(together, monkeypatch):
    monkeypatch.setattr(program, "RESTARTED_TOGETHER", together)
    monkeypatch.setattr(sys.modules["peerdescent.sweep"], "_cores", lambda: 1)  # one piece
    problem, periods, steps = small_logistic(), [2, 3, 5, 7, 50], 31
    oracle = Counted(problem.oracle, large=17)
    counted = peer.problems.Problem("counted", oracle, problem.data, 6, 5, 11.0)
    grid = {"alpha": [0.1], "period": periods, "batch": [1], "large_batch": [17]}
    table = peer.sweep("d-get", grid, counted, RING, steps=steps)
    jax.effects_barrier()
    due = [sum(t % q == 0 for q in periods) for t in range(1, steps)]
    blocks = sum(-(-d // together) * together for d in due)
    assert oracle.count == 6 * (len(periods) + blocks), "nodes x (the first batch of each, then those that are due)"
    assert (table["status"] == "done").all()


def test_samples_are_common_to_all_configurations():
    table = peer.sweep(
        "gt-dsgd", {"alpha": [0.1, 0.1 + 1e-9], "batch": [3]}, small_logistic(), RING, steps=50, precision=64
    )
    assert table["loss"].iloc[0] == pytest.approx(table["loss"].iloc[1], rel=1e-7)
    seeds = peer.sweep("gt-dsgd", {"alpha": [0.1], "batch": [3]}, small_logistic(), RING, steps=50, seed=[0, 1])
    assert seeds["loss"].iloc[0] != pytest.approx(seeds["loss"].iloc[1], rel=1e-5)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    problem, grid = small_logistic(), {"alpha": [0.1, 0.2, 0.4], "period": [2, 7], "batch": [1, 3]}
    monkeypatch.setattr(fleet.Fleet, "_room", lambda self, pattern: 2)
    options = {"epochs": 5, "at": [1, 2], "seed": [0, 1]}
    whole = peer.sweep("d-get", grid, problem, RING, **options)

    class Impatient(Spy):
        def update(self, step, loss):
            super().update(step, loss)
            if (tmp_path / "s" / "sweep.csv").exists():
                raise KeyboardInterrupt

    part = peer.sweep("d-get", grid, problem, RING, progress=Impatient(), out=tmp_path / "s", **options)
    finished = part["status"] == "done"
    assert 0 < finished.sum() < len(part)
    assert set(part["status"]) == {"done", "interrupted"}
    assert part.loc[~finished, "loss"].isna().all()
    saved = pd.read_csv(tmp_path / "s" / "sweep.csv")
    assert len(saved) == finished.sum()
    spy = Spy()
    again = peer.sweep("d-get", grid, problem, RING, progress=spy, out=tmp_path / "s", **options)
    assert spy.seen[0][0] == part.loc[finished, "steps"].sum(), "what was finished is not run again"
    pd.testing.assert_frame_equal(again, whole, rtol=1e-6)
    pd.testing.assert_frame_equal(again[finished], part[finished], check_exact=True)
    monkeypatch.setattr(fleet.Fleet, "follow", None)
    finally_ = peer.sweep("d-get", grid, problem, RING, out=tmp_path / "s", **options)
    pd.testing.assert_frame_equal(finally_, again, check_exact=True)


def test_an_interruption_at_once_leaves_nothing_half_done(tmp_path):
    table = peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, small_logistic(), RING, steps=9, progress=Spy(0), out=tmp_path)
    assert table["status"].tolist() == ["interrupted"] * 2
    assert not (tmp_path / "sweep.csv").exists()


def test_the_table_is_saved_as_it_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet.Fleet, "_room", lambda self, pattern: 1)
    lengths = []

    class Reader(Spy):
        def update(self, step, loss):
            super().update(step, loss)
            file = tmp_path / "sweep.csv"
            lengths.append(len(pd.read_csv(file)) if file.exists() else 0)

    spy = Reader()
    table = peer.sweep(
        "dsgd", {"alpha": [0.1, 0.2, 0.3, 0.4]}, small_logistic(), RING, steps=30_000, progress=spy, out=tmp_path
    )
    assert lengths[0] == 0
    assert max(lengths[:-1]) > 0, "some rows were on disk before the last came"
    assert spy.ended
    assert (spy.total, spy.seen[-1][0]) == (120_000, 120_000)
    assert spy.seen[-1][1] == table["loss"].min()
    assert pd.read_csv(tmp_path / "sweep.csv", dtype=str)["loss"].tolist() == [repr(loss) for loss in table["loss"]]


def test_progress_is_told_while_a_piece_runs():
    spy = Spy()
    peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, small_logistic(), RING, steps=400_000, progress=spy)
    steps = [step for step, _ in spy.seen]
    assert steps == sorted(steps)
    assert steps[-1] == spy.total == 800_000
    assert any(0 < step < spy.total for step in steps), "not only at the end"


def test_a_folder_of_another_sweep_is_refused(tmp_path):
    problem, grid = small_logistic(), {"alpha": [0.1]}
    peer.sweep("dsgd", grid, problem, RING, steps=9, out=tmp_path)
    for change in ({"steps": 10}, {"precision": 64}, {"x0": np.ones(5)}, {"at": [3]}):
        with pytest.raises(ValueError, match=r"holds another sweep: .* give another folder"):
            peer.sweep("dsgd", grid, problem, RING, **({"steps": 9, "out": tmp_path} | change))
    with pytest.raises(ValueError, match="holds another sweep: method is 'gt-dsgd'"):
        peer.sweep("gt-dsgd", grid, problem, RING, steps=9, out=tmp_path)
    with pytest.raises(ValueError, match="holds another sweep: parameters"):
        peer.sweep("dsgd", {"alpha": [0.1], "batch": [1]}, problem, RING, steps=9, out=tmp_path)
    other = peer.sweep("dsgd", {"alpha": [0.2]}, problem, RING, steps=9, out=tmp_path)
    assert len(other) == 1
    saved = pd.read_csv(tmp_path / "sweep.csv")
    assert sorted(saved["alpha"]) == [0.1, 0.2], "rows of an earlier grid stay"
    spy = Spy()
    both = peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, problem, RING, steps=9, out=tmp_path, progress=spy)
    assert spy.seen[0][0] == 18, "both are known"
    assert both["loss"].iloc[1] == other["loss"].iloc[0]
    assert json.loads((tmp_path / "sweep.json").read_text())["budget"] == "9 steps"


def test_a_configuration_given_twice_is_run_once():
    spy = Spy()
    table = peer.sweep("dsgd", [{"alpha": a} for a in (0.1, 0.2, 0.1)], small_logistic(), RING, steps=9, progress=spy)
    assert spy.total == 18
    assert table["loss"].iloc[0] == table["loss"].iloc[2] != table["loss"].iloc[1]


def test_precision_is_said_and_kept():
    options = ("dsgd", {"alpha": [0.1]}, small_logistic(), RING)
    for precision, name in [(32, "float32"), (64, "float64"), ("tf32", "tf32")]:
        table = peer.sweep(*options, steps=9, precision=precision)
        assert table["precision"].tolist() == [name]
    with jax.default_matmul_precision("bfloat16"):
        lowered = program_text()
    assert "HIGHEST" in lowered
    assert "DEFAULT" not in lowered


def program_text():
    """The products of a sweep's program, as the compiler gets them, for a caller who asked for less."""
    seen = []
    real = fleet._advance.lower

    def spied(*a):
        seen.append(real(*a).as_text())
        return fleet._advance_small(*a)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_advance", spied)
        peer.sweep("gt-hsgd", {"alpha": [0.1, 0.2], "batch": [8]}, small_logistic(), RING, steps=9)
    return "\n".join(line for text in seen for line in text.splitlines() if "dot_general" in line)


def test_refusals():
    problem = small_logistic()
    for grid, options, message in [
        ({}, {"steps": 9}, None),
        ({"alpha": []}, {"steps": 9}, "alpha = .*: give at least one value"),
        ([], {"steps": 9}, "the grid is empty"),
        ([{"alpha": 1}, {"batch": 1}], {"steps": 9}, "does not have the parameters"),
        ({"alhpa": [0.1]}, {"steps": 9}, "unknown parameter of dsgd 'alhpa': did you mean 'alpha'"),
        ({"alpha": [0.1, -1]}, {"steps": 9}, "alpha = -1: must be a positive finite number"),
        ({"alpha": [0.1]}, {}, "give exactly one of them"),
        ({"alpha": [0.1]}, {"steps": 9, "at": [5, 3]}, "at = .*: must increase"),
        ({"alpha": [0.1]}, {"steps": 9, "at": [10]}, "at = .*: must lie above 0 and within the budget 9"),
        ({"alpha": [0.1]}, {"epochs": 2, "at": [0]}, "at = .*: must lie above 0 and within the budget 2"),
        ({"alpha": [0.1]}, {"steps": 9, "seed": []}, "seed = .*: give one or several"),
        ({"alpha": [0.1]}, {"steps": 9, "seed": -1}, "seed = -1"),
        ({"alpha": [0.1]}, {"steps": 9, "precision": 16}, "precision = 16: must be 32, 64 or 'tf32'"),
    ]:
        if message is None:
            assert len(peer.sweep("dsgd", grid, problem, RING, **options)) == 1, (
                "the defaults alone are a configuration"
            )
            continue
        with pytest.raises(ValueError, match=message):
            peer.sweep("dsgd", grid, problem, RING, **options)
    with pytest.raises(ValueError, match="unknown method 'dgsd': did you mean 'dsgd'"):
        peer.sweep("dgsd", {"alpha": [0.1]}, problem, RING, steps=9)
    with pytest.raises(ValueError, match="problem is a Network: give a Problem"):
        peer.sweep("dsgd", {"alpha": [0.1]}, RING, problem, steps=9)
    with pytest.raises(ValueError, match="method is a Method: give a function"):
        peer.sweep(peer.methods.dsgd(), {"alpha": [0.1]}, problem, RING, steps=9)
    with pytest.raises(ValueError, match="d2 needs a symmetric weight matrix"):
        peer.sweep("d2", {"alpha": [0.1]}, problem, peer.Network(peer.topology.directed_exponential(6)), steps=9)
    with pytest.raises(ValueError, match="gt-sarah takes exact local gradients"):
        peer.sweep("gt-sarah", {"alpha": [0.1]}, PROBLEMS["streaming"](), RING, steps=9)


def test_other_ways_to_name_a_method():
    problem = small_logistic()
    by_name = peer.sweep("hybrid*exact-diffusion", {"alpha": [0.1, 0.2]}, problem, RING, steps=9)

    def build(alpha):
        return peer.compose(peer.estimators.hybrid(), peer.fusions.exact_diffusion(alpha))

    pd.testing.assert_frame_equal(by_name, peer.sweep(build, {"alpha": [0.1, 0.2]}, problem, RING, steps=9))


def test_a_folder_knows_the_parameters_that_are_not_in_the_grid(tmp_path):
    problem = small_logistic()
    peer.sweep(lambda alpha: peer.methods.gt_hsgd(alpha, 0.01), {"alpha": [0.1]}, problem, RING, steps=9, out=tmp_path)
    with pytest.raises(ValueError, match="holds another sweep: a configuration is gt-hsgd"):
        peer.sweep(
            lambda alpha: peer.methods.gt_hsgd(alpha, 0.9), {"alpha": [0.1]}, problem, RING, steps=9, out=tmp_path
        )


def test_switches_and_nothing_as_parameters(tmp_path):
    def build(atc, large_batch):
        return peer.compose(peer.estimators.spider(3, 1, large_batch), peer.fusions.tracking(0.1, atc))

    grid = {"atc": [True, False], "large_batch": [None, 8]}
    first = peer.sweep(build, grid, small_logistic(), RING, steps=9, out=tmp_path, precision=64)
    again = peer.sweep(build, grid, small_logistic(), RING, steps=9, out=tmp_path, precision=64)
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert first["loss"].nunique() == 4
    winner = best(first)
    assert winner in [{"atc": a, "large_batch": b} for a in (True, False) for b in (None, 8)]
    build(**winner)


def test_values_may_be_added_where_a_builder_derives_others(tmp_path):
    def build(ratio):
        return peer.methods.d_get(0.1, round(11 * ratio))

    for ratios in ([1, 2], [0.5, 1, 2]):
        table = peer.sweep(build, {"ratio": ratios}, small_logistic(), RING, steps=9, out=tmp_path)
    assert table["method"].str.contains("period=6").tolist() == [True, False, False]


def test_numpy_integers_have_budgets_of_their_own():
    def build(q):
        return peer.methods.d_get(0.1, np.int64(q), 1, 50)

    table = peer.sweep(build, {"q": [1, 1000]}, small_logistic(), RING, epochs=20)
    assert table["steps"].tolist() == [4, 86]


def test_losses_at_close_steps_have_columns_of_their_own():
    table = peer.sweep("dsgd", {}, small_quadratic(), RING, steps=1_000_003, at=[1_000_001, 1_000_002])
    assert {"loss@1000001", "loss@1000002"} <= set(table.columns)
    assert "loss@5" in peer.sweep("dsgd", {}, small_quadratic(), RING, steps=9, at=5).columns


def test_one_method_at_a_time_chosen_by_text_or_not():
    def build(kind):
        return {"plain": peer.methods.dsgd, "tracked": peer.methods.gt_dsgd}[kind](alpha=0.1)

    with pytest.raises(ValueError, match="sweep one method at a time"):
        peer.sweep(build, {"kind": ["plain", "tracked"]}, small_logistic(), RING, steps=9)
    table = peer.sweep(build, {"kind": ["plain"]}, small_logistic(), RING, steps=9)
    assert best(table) == {"kind": "plain"}


class dropping(peer.estimators.sgd):
    """Asks for a gradient on one side of an `every` and does not use it."""

    def step(self, x, memory, net):
        def then():
            net.grad(x, net.sample(9))
            return 2 * x

        v = net.every(3, then, lambda: x)
        return v + net.grad(x, net.sample(9)), ()


def test_a_gradient_that_is_asked_for_and_dropped():
    def build(alpha):
        return peer.compose(dropping(), peer.fusions.tracking(alpha))

    table = peer.sweep(build, {"alpha": [0.01, 0.02]}, small_logistic(), RING, steps=9, precision=64)
    trace = peer.run(build(0.02), small_logistic(), RING, steps=9, precision=64)
    assert table["loss"].iloc[1] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


def test_best_is_the_mean_over_seeds():
    rows = [(1.0, 0, 3.0, "done"), (1.0, 1, 3.2, "done"), (2.0, 0, 1.0, "done"), (2.0, 1, np.inf, "diverged"),
            (3.0, 0, 2.0, "done"), (3.0, 1, 4.0, "done")]  # fmt: skip
    table = pd.DataFrame(rows, columns=["alpha", "seed", "loss", "status"])
    assert best(table) == {"alpha": 3.0}, "what diverges with one seed does not win with another"
    assert type(best(table)["alpha"]) is float
    twice = pd.concat([table, table[table["alpha"] == 1.0]])
    assert best(twice) == {"alpha": 3.0}, "a configuration that is listed twice has no advantage"
    with pytest.raises(ValueError, match="no configuration is done for every seed"):
        best(table[table["alpha"] == 2.0])
    assert best(peer.sweep("dsgd", {}, small_logistic(), RING, steps=3)) == {}


def test_the_papers_grid():
    assert len(paper_grid("d-get", 2442)) == len(paper_grid("d-spider-sfo", 2442)) == 10 * 10 * 39 * len(STEP_SIZES)
    assert len(paper_grid("gt-dsgd", 2442)) == 10 * len(STEP_SIZES)
    assert len(paper_grid("gt-hsgd", 2442)) == 10 * len(paper_grid("gt-hsgd-strict", 2442))
    assert {c["batch"] for c in paper_grid("gt-hsgd-strict", 2442)} == {1}
    assert {c["initial_batch"] for c in paper_grid("gt-hsgd-strict", 2442)} == set(BATCHES)
    assert (min(STEP_SIZES), max(STEP_SIZES), min(BETAS), max(BETAS)) == (2**-6, 2**4, 1e-4, 0.7)
    periods = paper_periods(2000, 1)
    assert periods[:2] == [100, 105]
    assert periods[18:22] == [1000, 2000, 4000, 6000]
    assert (len(periods), periods[-1]) == (39, 40_000)
    assert min(paper_periods(2000, 1024)) == 1
    with pytest.raises(ValueError, match="dsgd is not one of the paper's methods"):
        paper_grid("dsgd", 2442)
