"""Which state a run continues from: any number of checkpoints, an earlier trace, or both."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import peerdescent as peer
from conftest import Spy, small_logistic, small_quadratic
from peerdescent.runs import checkpoint, pace

GT = peer.methods.gt_hsgd(alpha=0.5, beta=0.1)
RING = peer.Network(peer.topology.ring(6))


@pytest.fixture(autouse=True)
def _at_every_record(monkeypatch):
    """Write checkpoints at every record, whatever they cost."""
    monkeypatch.setattr(pace, "SHARE", 1e9)


def run(folder=None, steps=60, **options):
    return peer.run(GT, small_logistic(), RING, steps=steps, record=6, checkpoint=folder, **options)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_checkpoints_is_taken(tmp_path, monkeypatch, count):
    """A kill between writing a checkpoint and removing the oldest leaves one more than usual."""
    whole = run()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "KEPT", count)
        assert run(tmp_path, progress=Spy(interrupt_at=40)).status == "interrupted"
    assert len(list(tmp_path.glob("step-*"))) == min(count, 4)
    again = run(tmp_path)
    assert np.array_equal(again.x, whole.x)
    assert len(list(tmp_path.glob("step-*"))) == checkpoint.KEPT


def test_the_one_with_more_steps_is_continued(tmp_path):
    whole = run()
    short, long = run(steps=20), run(steps=40)
    for folder in ("a", "b"):
        run(tmp_path / folder, progress=Spy(interrupt_at=30))
    spy = Spy()
    assert np.array_equal(run(tmp_path / "a", resume=short, progress=spy).x, whole.x)
    assert spy.seen[0][0] == 30, "the checkpoint has more steps than the trace"
    spy = Spy()
    assert np.array_equal(run(tmp_path / "b", resume=long, progress=spy).x, whole.x)
    assert spy.seen[0][0] == 40, "the trace has more steps than the checkpoint"
    spy = Spy()
    assert np.array_equal(run(tmp_path / "none", resume=short, progress=spy).x, whole.x)
    assert spy.seen[0][0] == 20


def test_an_earlier_trace_of_another_run_is_refused_also_where_a_checkpoint_would_win(tmp_path):
    run(tmp_path, progress=Spy(interrupt_at=30))
    other = run(steps=20, seed=5)
    with pytest.raises(
        ValueError, match="cannot resume: seed is 0 here and was 5 in the earlier run"
    ):
        run(tmp_path, resume=other, seed=0)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path, progress=Spy(interrupt_at=30))
    shutil.copytree(tmp_path, tmp_path / "copy")
    with pytest.raises(
        ValueError, match="cannot resume: seed is 1 here and was 0 in the earlier run"
    ):
        run(tmp_path / "copy", seed=1)


def test_a_checkpoint_beyond_the_length_asked_for_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(
        ValueError,
        match="has 60 steps, and 20 are asked for: give as many or more, or another folder",
    ):
        run(tmp_path, steps=20)


def test_a_run_that_diverged_stays_diverged(tmp_path):
    def wild():
        method = peer.methods.dsgd(alpha=1e6)
        return peer.run(method, small_quadratic(), RING, steps=10, record=1, checkpoint=tmp_path)

    assert wild().status == wild().status == "diverged"


def test_with_as_many_steps_the_checkpoint_is_continued(tmp_path):
    short = run(steps=30)
    run(tmp_path, progress=Spy(interrupt_at=30))
    assert np.array_equal(run(tmp_path, resume=short).x, run().x)
