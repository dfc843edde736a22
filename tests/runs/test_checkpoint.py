"""Checkpoints: written atomically, and an interrupted run continues from one bit for bit, on any engine."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.runs import checkpoint, pace
from small import Spy, small_logistic, some

ARRAYS = {"x": np.arange(6.0).reshape(2, 3), "k": np.array(3)}


@pytest.fixture(autouse=True)
def _at_every_record(monkeypatch):
    """Write checkpoints at every record, whatever they cost."""
    monkeypatch.setattr(pace, "SHARE", 1e9)


def test_they_come_back_as_they_were(tmp_path):
    facts = {"rows": [{"loss": 0.1, "tracking": float("nan")}], "seed": 3}
    checkpoint.save(tmp_path, 5, ARRAYS, facts)
    arrays, found = checkpoint.load(tmp_path, 5)
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    assert json.dumps(found) == json.dumps(facts)


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 20, 3, 100, 1000):
        checkpoint.save(tmp_path, step, ARRAYS, {})
    assert checkpoint.steps(tmp_path) == [1000, 100, 20]
    checkpoint.clear(tmp_path)
    assert checkpoint.steps(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 1, 100, -1])
def test_a_damaged_one_does_not_count(tmp_path, place):
    for step in (1, 2):
        path = checkpoint.save(tmp_path, step, ARRAYS, {})
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    assert checkpoint.steps(tmp_path) == [1]


@pytest.mark.parametrize("length", [0, 7, 100])
def test_one_that_was_cut_short_does_not_count(tmp_path, length):
    for step in (1, 2):
        path = checkpoint.save(tmp_path, step, ARRAYS, {})
    path.write_bytes(path.read_bytes()[:length])
    assert checkpoint.steps(tmp_path) == [1]


def test_a_crash_while_writing_leaves_the_ones_before(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, ARRAYS, {})

    def crash(*_):
        raise OSError("power is gone")

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(OSError, match="power is gone"):
        checkpoint.save(tmp_path, 2, ARRAYS, {})
    assert checkpoint.steps(tmp_path) == [1]


@pytest.mark.parametrize("engine", some(["stacked", "debug", "sharded"], 2))
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, engine):
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    method = peer.methods.d_get(alpha=0.1, period=7, large_batch=4)
    options = {"steps": 40, "record": 8, "engine": engine, "precision": 64}
    whole = peer.run(method, problem, network, **options)
    broken = peer.run(
        method, problem, network, **options, checkpoint=tmp_path, progress=Spy(interrupt_at=20)
    )
    assert broken.steps == 20
    assert checkpoint.steps(tmp_path)[0] == 20
    # The newest is damaged, so the run continues from the one before.
    newest = max(checkpoint._named(tmp_path))[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    spy = Spy()
    again = peer.run(method, problem, network, **options, checkpoint=tmp_path, progress=spy)
    assert spy.seen[0][0] == 15
    pd.testing.assert_frame_equal(
        again.table.drop(columns="seconds"), whole.table.drop(columns="seconds"), check_exact=True
    )
    assert np.array_equal(again.x, whole.x)
    assert np.array_equal(again.x_tilde, whole.x_tilde)


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    peer.run(peer.methods.dsgd(), problem, network, steps=5, checkpoint=tmp_path)
    with pytest.raises(
        ValueError,
        match=r"cannot resume: seed is 1 here and was 0 in the earlier run; give another folder$",
    ):
        peer.run(peer.methods.dsgd(), problem, network, steps=9, seed=1, checkpoint=tmp_path)


def test_a_finished_run_is_not_run_again(tmp_path):
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    first = peer.run(peer.methods.dsgd(), problem, network, steps=5, checkpoint=tmp_path)
    spy = Spy()
    second = peer.run(
        peer.methods.dsgd(), problem, network, steps=5, checkpoint=tmp_path, progress=spy
    )
    assert spy.seen == [(5, first.table["loss"].iloc[-1])]
    assert second.status == "done"
