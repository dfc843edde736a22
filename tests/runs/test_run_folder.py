"""Run folders: one checkpoint is all of a run, whatever happens to the files, and between records too."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines.stacked import Stacked
from peerdescent.runs import checkpoint, pace
from small import small_logistic

RING = peer.Network(peer.topology.ring(6))
METHOD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1)
OPTIONS = {"steps": 60, "record": 3, "seed": 2}


def run(**more):
    return peer.run(METHOD, small_logistic(), RING, **OPTIONS | more)


def assert_same(one, other):
    pd.testing.assert_frame_equal(
        one.table.drop(columns="seconds"), other.table.drop(columns="seconds"), check_exact=True
    )
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.x_tilde, other.x_tilde)


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.mark.parametrize("stop", [1, 2, 7, 19, 20, 21, 33, 59])
def test_a_run_that_is_killed_between_records_goes_on_from_there(
    tmp_path, monkeypatch, whole, stop
):
    """Every step is saved, and the run dies when it is to take another one: nothing is written after that."""
    monkeypatch.setattr(pace, "LOST", 0.0)
    monkeypatch.setattr(pace, "SHARE", 1e9)
    monkeypatch.setattr(pace.Pace, "next", lambda self, step, until: step + 1)
    advance = Stacked.advance

    class Killed(BaseException):
        pass

    def mortal(self, state, t, until):
        if until > stop:
            raise Killed
        return advance(self, state, t, until)

    monkeypatch.setattr(Stacked, "advance", mortal)
    with pytest.raises(Killed):
        run(checkpoint=tmp_path)
    monkeypatch.undo()
    assert checkpoint.steps(tmp_path)[0] == stop
    left = peer.Trace.from_checkpoint(tmp_path, stop)
    assert left.status == "interrupted"
    assert left.steps == stop // 20 * 20
    assert (left.position is None) == (stop % 20 == 0)
    assert_same(run(checkpoint=tmp_path), whole)


def test_interruption_between_records_keeps_the_way_so_far(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(pace.Pace, "next", lambda self, step, until: step + 1)
    advance = Stacked.advance

    def impatient(self, state, t, until):
        if until == 34:
            raise KeyboardInterrupt
        return advance(self, state, t, until)

    monkeypatch.setattr(Stacked, "advance", impatient)
    part = run(checkpoint=tmp_path / "a")
    monkeypatch.undo()
    assert (part.status, part.steps, part.end.step) == ("interrupted", 20, 33)
    assert_same(run(checkpoint=tmp_path / "a"), whole)
    assert_same(run(resume=part), whole)
    assert_same(run(resume=part.save(tmp_path / "b")), whole)
    loaded = peer.Trace.load(tmp_path / "b")
    assert np.array_equal(loaded.x, part.x), "the iterates are those of the last record"


def test_no_damage_gives_another_number(tmp_path, monkeypatch, whole):
    """Bytes are changed, files cut short, emptied or removed; a run goes on to the right end, or is refused."""
    monkeypatch.setattr(pace, "SHARE", 1e9)
    folder = tmp_path / "run"
    part = peer.run(
        METHOD,
        small_logistic(),
        RING,
        **OPTIONS | {"steps": 40, "record": 2},
        checkpoint=folder / "checkpoint",
    )
    part.save(folder)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert len(files) == 4
    rng, ended, refused = random.Random(0), 0, 0
    for _ in range(40):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder, broken)
        for file in rng.sample(files, rng.randint(1, 3)):
            content = bytearray((broken / file).read_bytes())
            kind = rng.choice(["flip", "cut", "empty", "remove"])
            if kind == "flip":
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            content = (
                content[: rng.randrange(len(content))]
                if kind == "cut"
                else b""
                if kind == "empty"
                else content
            )
            (broken / file).unlink() if kind == "remove" else (broken / file).write_bytes(content)
        try:
            found = run(resume=broken)
        except ValueError as error:
            refused += "is not a run folder: it has no checkpoint that is whole" in str(error)
        else:
            ended += 1
            assert_same(found, whole)
    assert ended + refused == 40
    assert min(ended, refused) > 0


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    checkpoint.save(tmp_path / "checkpoint", 5, {"x": np.zeros(2)}, {"seed": 0})
    with pytest.raises(ValueError, match="has a checkpoint of something else"):
        peer.Trace.load(tmp_path)


def test_the_last_word_on_a_step_counts(tmp_path):
    """A run that could have ended at a record and did end there has one checkpoint of that step."""
    run(checkpoint=tmp_path)
    assert sorted(step for step, _ in checkpoint._named(tmp_path)) == sorted(
        set(checkpoint.steps(tmp_path))
    )
    assert peer.Trace.from_checkpoint(tmp_path, 60).status == "done"


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.3])
def test_checkpoints_cost_little_and_little_is_lost(tmp_path, monkeypatch, cost):
    """On a clock of its own: at most a fiftieth of the time, once the first one is paid for."""
    now, saves = [100.0], []
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])

    def slow(folder):
        saves.append(now[0] - 100)
        now[0] += cost

    saver = pace.Pace(tmp_path, lambda a: a)
    for tick in range(1, 6000):  # looks at the clock, every third of them at a record
        now[0] += 0.01
        if saver.is_due(recorded=tick % 3 == 0):
            saver.save(slow)
    spent = [k * cost for k in range(1, len(saves) + 1)]
    assert all(
        paid <= pace.SHARE * (at + cost) or k == 0
        for k, (paid, at) in enumerate(zip(spent, saves, strict=True))
    )
    assert saves[0] == pytest.approx(pace.GUESS / pace.SHARE, abs=0.04)
    assert np.diff(saves).max() <= max(2 * cost / pace.SHARE, 0.05)


def test_where_much_would_be_lost_is_saved_between_records(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    saver = pace.Pace(tmp_path, lambda a: a)
    now[0] = pace.LOST * 0.9
    assert saver.is_due(recorded=True)
    assert not saver.is_due()
    now[0] = pace.LOST * 1.1
    assert saver.is_due()
    saver.cost = 1.0
    assert not saver.is_due(recorded=True), "too dear as yet"


def test_a_run_that_is_finished_is_read_and_not_computed_again(tmp_path, monkeypatch, whole):
    assert_same(run(checkpoint=tmp_path), whole)

    def fail(*_):
        raise AssertionError("computed again")

    for part in ("warm_up", "start", "advance", "evaluate"):
        monkeypatch.setattr(Stacked, part, fail)
    again = run(checkpoint=tmp_path)
    assert_same(again, whole)
    assert (again.status, again.end.step) == ("done", 60)
    for more in (
        {"steps": 61},
        {"metrics": [peer.metric(lambda x_mean, x, problem: 0.0, "none")]},
        {"seed": 3},
    ):
        with pytest.raises((AssertionError, ValueError), match=r"computed again|cannot resume"):
            run(checkpoint=tmp_path, **more)


def test_a_metric_of_the_same_name_and_another_function_is_refused(tmp_path):
    def counted(k):
        return peer.metric(lambda x_mean, x, problem: k, "k")

    first = run(checkpoint=tmp_path, metrics=[counted(1)])
    assert (
        run(checkpoint=tmp_path, metrics=[counted(1)]).table["k"].tolist()
        == first.table["k"].tolist()
    )
    with pytest.raises(ValueError, match="metric 'k' computes something else here"):
        run(checkpoint=tmp_path, metrics=[counted(2)])
    with pytest.raises(ValueError, match="metric 'k' computes something else here"):
        run(steps=90, resume=first, metrics=[counted(2)])


def test_other_records_of_a_finished_run_are_warned_of(tmp_path, whole):
    run(checkpoint=tmp_path)
    with pytest.warns(
        UserWarning, match="is finished, and was recorded at other steps than those asked for"
    ):
        assert_same(run(checkpoint=tmp_path, record=6), whole)


def test_a_folder_of_checkpoints_can_be_loaded_too(tmp_path):
    run(steps=20, checkpoint=tmp_path).save(tmp_path)
    run(checkpoint=tmp_path)
    assert peer.Trace.load(tmp_path).steps == 60
