"""The table of a sweep: saved as it grows, resumed, refused if it is of another sweep; and its best configuration."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines import compiled, fleet
from peerdescent.engines.gpu import kernel
from peerdescent.report import findings
from peerdescent.runs import pace, store
from peerdescent.sweeps import best, sweeping
from small import PROBLEMS, Spy, small_logistic, some

RING = peer.Network(peer.topology.ring(6))


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    problem, grid = small_logistic(), {"alpha": [0.1, 0.2, 0.4], "period": [2, 7], "batch": [1, 3]}
    monkeypatch.setattr(fleet.Fleet, "_capacity", lambda *_: 2)
    monkeypatch.setattr(
        sweeping, "cores", lambda: 1
    )  # with more, all could be finished before the interruption
    options = {"epochs": 5, "at": [1, 2], "seed": [0, 1]}
    whole = peer.sweep("d-get", grid, problem, RING, **options)

    class Impatient(Spy):
        def update(self, step, loss):
            super().update(step, loss)
            if (tmp_path / "s" / "sweep.csv").exists():
                raise KeyboardInterrupt

    part = peer.sweep(
        "d-get", grid, problem, RING, progress=Impatient(), out=tmp_path / "s", **options
    )
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
    table = peer.sweep(
        "dsgd",
        {"alpha": [0.1, 0.2]},
        small_logistic(),
        RING,
        steps=9,
        progress=Spy(0),
        out=tmp_path,
    )
    assert table["status"].tolist() == ["interrupted"] * 2
    assert not (tmp_path / "sweep.csv").exists()


def test_the_table_is_saved_as_it_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet.Fleet, "_capacity", lambda *_: 1)
    lengths = []

    class Reader(Spy):
        def update(self, step, loss):
            super().update(step, loss)
            file = tmp_path / "sweep.csv"
            lengths.append(len(pd.read_csv(file)) if file.exists() else 0)

    spy = Reader()
    table = peer.sweep(
        "dsgd",
        {"alpha": [0.1, 0.2, 0.3, 0.4]},
        small_logistic(),
        RING,
        steps=30_000,
        progress=spy,
        out=tmp_path,
    )
    assert lengths[0] == 0
    assert max(lengths[:-1]) > 0, "some rows were on disk before the last came"
    assert spy.ended
    assert (spy.total, spy.seen[-1][0]) == (120_000, 120_000)
    assert spy.seen[-1][1] == table["loss"].min()
    assert pd.read_csv(tmp_path / "sweep.csv", dtype=str)["loss"].tolist() == [
        repr(loss) for loss in table["loss"]
    ]


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
        with pytest.raises(ValueError, match=r"is about something else: .* give another folder"):
            peer.sweep("dsgd", grid, problem, RING, **({"steps": 9, "out": tmp_path} | change))
    with pytest.raises(ValueError, match="is about something else: method is 'gt-dsgd'"):
        peer.sweep("gt-dsgd", grid, problem, RING, steps=9, out=tmp_path)
    with pytest.raises(ValueError, match="is about something else: parameters"):
        peer.sweep("dsgd", {"alpha": [0.1], "batch": [1]}, problem, RING, steps=9, out=tmp_path)
    other = peer.sweep("dsgd", {"alpha": [0.2]}, problem, RING, steps=9, out=tmp_path)
    assert len(other) == 1
    saved = pd.read_csv(tmp_path / "sweep.csv")
    assert sorted(saved["alpha"]) == [0.1, 0.2], "rows of an earlier grid stay"
    spy = Spy()
    both = peer.sweep(
        "dsgd", {"alpha": [0.1, 0.2]}, problem, RING, steps=9, out=tmp_path, progress=spy
    )
    assert spy.seen[0][0] == 18, "both are known"
    assert both["loss"].iloc[1] == other["loss"].iloc[0]
    assert json.loads((tmp_path / "sweep.json").read_text())["budget"] == "9 steps"


def test_a_configuration_given_twice_is_run_once():
    spy = Spy()
    table = peer.sweep(
        "dsgd",
        [{"alpha": a} for a in (0.1, 0.2, 0.1)],
        small_logistic(),
        RING,
        steps=9,
        progress=spy,
    )
    assert spy.total == 18
    assert table["loss"].iloc[0] == table["loss"].iloc[2] != table["loss"].iloc[1]


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
        (
            {"alpha": [0.1]},
            {"steps": 9, "at": [10]},
            "at = .*: must lie above 0 and within the budget 9",
        ),
        (
            {"alpha": [0.1]},
            {"epochs": 2, "at": [0]},
            "at = .*: must lie above 0 and within the budget 2",
        ),
        ({"alpha": [0.1]}, {"steps": 9, "seed": []}, "seed = .*: give one or several"),
        ({"alpha": [0.1]}, {"steps": 9, "seed": -1}, "seed = -1"),
        (
            {"alpha": [0.1]},
            {"steps": 9, "precision": 16},
            "precision = 16: must be 32, 64 or 'tf32'",
        ),
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
    with pytest.raises(ValueError, match="method is a int: give a function"):
        peer.sweep(3, {"alpha": [0.1]}, problem, RING, steps=9)
    with pytest.raises(ValueError, match="d2 needs a symmetric weight matrix"):
        peer.sweep(
            "d2",
            {"alpha": [0.1]},
            problem,
            peer.Network(peer.topology.directed_exponential(6)),
            steps=9,
        )
    with pytest.raises(ValueError, match="gt-sarah takes exact local gradients"):
        peer.sweep("gt-sarah", {"alpha": [0.1]}, PROBLEMS["streaming"](), RING, steps=9)


def test_a_folder_knows_the_parameters_that_are_not_in_the_grid(tmp_path):
    problem = small_logistic()
    peer.sweep(
        lambda alpha: peer.methods.gt_hsgd(alpha, 0.01),
        {"alpha": [0.1]},
        problem,
        RING,
        steps=9,
        out=tmp_path,
    )
    with pytest.raises(ValueError, match="is about something else: a configuration is gt-hsgd"):
        peer.sweep(
            lambda alpha: peer.methods.gt_hsgd(alpha, 0.9),
            {"alpha": [0.1]},
            problem,
            RING,
            steps=9,
            out=tmp_path,
        )


def test_switches_and_nothing_as_parameters(tmp_path):
    def build(atc, large_batch):
        return peer.compose(
            peer.estimators.spider(3, 1, large_batch), peer.fusions.tracking(0.1, atc)
        )

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


def mine(factor):
    """An estimator whose text differs, under one name and with the same numbers."""

    @dataclass(frozen=True)
    class own(peer.estimators.sgd):
        def step(self, x, memory, net):
            return factor * net.grad(x, net.sample(self.batch)), ()

    return lambda alpha: peer.compose(own(), peer.fusions.consensus(alpha))


def test_a_folder_knows_what_the_method_computes(tmp_path):
    problem, grid = small_logistic(), {"alpha": [0.1]}
    peer.sweep(mine(1.0), grid, problem, RING, steps=9, out=tmp_path)
    assert peer.sweep(mine(1.0), grid, problem, RING, steps=9, out=tmp_path)["status"].tolist() == [
        "done"
    ]
    with pytest.raises(
        ValueError, match=r"own\*consensus.* computes something else here than there"
    ):
        peer.sweep(mine(2.0), grid, problem, RING, steps=9, out=tmp_path)


@pytest.mark.parametrize("name", ["seed", "loss", "steps", "status", "method"])
def test_parameters_with_the_name_of_a_column_are_refused(name):
    def build(**values):
        return peer.methods.dsgd(alpha=values[name])

    with pytest.raises(
        ValueError, match=f"the hyperparameter '{name}' has the name of a column of the table"
    ):
        peer.sweep(build, {name: [0.1, 0.2]}, small_logistic(), RING, steps=3)


class Killed(BaseException):
    """What ends a sweep at once, as a kill would."""


PROGRAMS = [
    (kind, program)
    for kind in ("killed", "interrupted")
    for program in (fleet.Fleet, kernel.Kernel)
]


@pytest.mark.parametrize(("kind", "program"), some(PROGRAMS, 3))
def test_a_piece_goes_on_from_where_it_was(kind, program, tmp_path, monkeypatch):
    """Some members have diverged and some marks are behind when it ends; what comes after is bit for bit the same."""
    monkeypatch.setattr(sweeping, "cores", lambda: 1)
    monkeypatch.setattr(compiled, "_chunk", lambda *_: 16)
    monkeypatch.setattr(sweeping, "fleet_for", program)
    far = (
        130 if program is fleet.Fleet else 2 * kernel.PARTS + 300
    )  # behind the second of three marks
    grid, options = (
        {"alpha": [0.1, 0.3, 1e6], "period": [4, 9]},
        {"steps": 200, "at": [20, 90], "seed": 0},
    )
    whole = peer.sweep("d-get", grid, small_logistic(), RING, **options)
    assert set(whole["status"]) == {"done", "diverged"}

    begun = []
    follow = program.follow

    def watched(self, piece, alive, since=None):
        begun.append(1 if since is None else since[0])
        for seen in follow(self, piece, alive, since):
            if kind == "killed" and seen.step > far and since is None:
                raise Killed
            yield seen
            if kind == "interrupted" and seen.step > far and since is None:
                alive[:] = False

    monkeypatch.setattr(program, "follow", watched)
    with monkeypatch.context() as patch:
        patch.setattr(pace, "LOST", 0.0)
        patch.setattr(pace, "SHARE", 1e9 if kind == "killed" else 0.0)
        patch.setattr(
            sweeping.Rows, "save", lambda self: False
        )  # a kill comes before the table is written
        with pytest.raises(Killed) if kind == "killed" else nullcontext():
            peer.sweep("d-get", grid, small_logistic(), RING, out=tmp_path, **options)
    stored = list((tmp_path / sweeping.UNFINISHED).rglob("step-*.safetensors"))
    assert stored
    assert not findings._places(tmp_path), "they are not runs"
    again = peer.sweep("d-get", grid, small_logistic(), RING, out=tmp_path, **options)
    pd.testing.assert_frame_equal(again, whole, check_exact=True)
    assert begun[-1] > 3 * far // 4
    assert not (tmp_path / sweeping.UNFINISHED).exists(), "what is finished leaves nothing behind"
    (tmp_path / sweeping.UNFINISHED / "0").mkdir(
        parents=True
    )  # as after a kill that came before it was removed
    peer.sweep("d-get", grid, small_logistic(), RING, out=tmp_path, **options)
    assert not (tmp_path / sweeping.UNFINISHED).exists()


def test_another_sweep_does_not_take_what_is_unfinished(tmp_path):
    members = [fleet.Member(peer.methods.dsgd(alpha=a), 0, (9,)) for a in (0.1, 0.2)]
    x0 = np.zeros((6, 5), np.float32)
    places = {
        sweeping._place(
            tmp_path,
            {"values": values},
            program(own, small_logistic(), RING, x0, x0.dtype),
            np.arange(len(own))[None],
        )
        for values in ("1", "2")
        for own in (members, members[:1], members[::-1], [m._replace(seed=1) for m in members])
        for program in (fleet.Fleet, kernel.Kernel)
    }
    assert len(places) == 16


def test_a_full_disk_loses_no_row(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "sweep.csv")

    monkeypatch.setattr("peerdescent.runs.store.write", full)
    monkeypatch.setattr("peerdescent.runs.checkpoint.write", full)
    monkeypatch.setattr(store, "_check_about", lambda *_: None)
    monkeypatch.setattr(pace, "SHARE", 1e9)
    monkeypatch.setattr(pace, "LOST", 0.0)
    with pytest.warns(
        UserWarning, match=r"sweep.csv: No space left on device; the table is not saved"
    ):
        table = peer.sweep(
            "dsgd", {"alpha": [0.1, 0.2]}, small_logistic(), RING, steps=300, out=tmp_path
        )
    assert table["status"].tolist() == ["done", "done"]
    assert table["loss"].notna().all()


def test_folders_of_others_are_not_taken(tmp_path):
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(ValueError, match="has files that are not results of peerdescent"):
        peer.sweep("dsgd", {"alpha": [0.1]}, small_logistic(), RING, steps=3, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_tables_of_several_sweeps_are_no_sweep():
    """Rows of one would be taken for those of another."""
    problem = small_logistic()
    tables = [
        peer.sweep(name, {"alpha": [0.5]}, problem, RING, steps=5) for name in ("dsgd", "gt-dsgd")
    ]
    with pytest.raises(
        ValueError, match=r"the table has rows of dsgd and gt-dsgd, .* give those of one"
    ):
        peer.sweeps.best(pd.concat(tables))
    longer = peer.sweep("dsgd", {"alpha": [0.5]}, problem, RING, steps=9)
    with pytest.raises(ValueError, match="different loss for one configuration and seed"):
        peer.sweeps.best(pd.concat([tables[0], longer]))
    assert peer.sweeps.best(pd.concat([longer, longer])) == {"alpha": 0.5}
