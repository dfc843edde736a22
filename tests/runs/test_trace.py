"""Traces: interrupted, resumed, saved and loaded; and the output of Algorithm 1."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.files import write
from peerdescent.runs import checkpoint
from peerdescent.runs.output import visited
from small import Spy, assert_close, small_logistic, states

RING = peer.Network(peer.topology.ring(6))
GT_HSGD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1)


def test_interruption_keeps_what_was_recorded():
    spy = Spy(interrupt_at=30)
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=100, record=10, progress=spy)
    assert trace.status == "interrupted"
    assert trace.table["step"].tolist() == [0, 10, 20, 30]
    assert spy.ended
    unbroken = peer.run(GT_HSGD, small_logistic(), RING, steps=30, record=3)
    assert np.array_equal(trace.x, unbroken.x)


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("name", ["gt-hsgd", "d-spider-sfo", "d-pd-sgd", "dsgd"])
def test_interrupted_and_resumed_equals_unbroken(name, where, tmp_path):
    problem, method = small_logistic(), peer.methods.METHODS[name].build()
    options = {"steps": 100, "record": 10}
    unbroken = peer.run(method, problem, RING, **options)
    part = peer.run(method, problem, RING, progress=Spy(interrupt_at=40), **options)
    earlier = part.save(tmp_path / "run") if where == "folder" else part
    whole = peer.run(method, problem, RING, resume=earlier, **options)
    assert whole.status == "done"
    assert np.array_equal(whole.x, unbroken.x)
    assert np.array_equal(whole.x_tilde, unbroken.x_tilde)
    pd.testing.assert_frame_equal(
        whole.table.drop(columns="seconds"),
        unbroken.table.drop(columns="seconds"),
        check_dtype=False,
        rtol=1e-15,
    )
    assert whole.table["seconds"].is_monotonic_increasing


def test_the_debug_engine_resumes_too(tmp_path):
    problem, options = small_logistic(), {"steps": 12, "record": 3, "engine": "debug"}
    part = peer.run(GT_HSGD, problem, RING, progress=Spy(interrupt_at=4), **options)
    whole = peer.run(GT_HSGD, problem, RING, resume=part.save(tmp_path), **options)
    assert np.array_equal(whole.x, peer.run(GT_HSGD, problem, RING, **options).x)


def test_resuming_what_does_not_fit_is_refused(tmp_path):
    problem = small_logistic()
    part = peer.run(GT_HSGD, problem, RING, steps=20)
    with pytest.raises(
        ValueError,
        match=r"seed is 1 here and was 0 in the .*; make it the same, or leave out resume=$",
    ):
        peer.run(GT_HSGD, problem, RING, steps=40, seed=1, resume=part)
    with pytest.raises(ValueError, match="cannot resume: method is 'dsgd"):
        peer.run(peer.methods.dsgd(), problem, RING, steps=40, resume=part)
    with pytest.raises(ValueError, match=r"cannot resume: strength is 0.5 here and was 0.0001"):
        peer.run(GT_HSGD, small_logistic(strength=0.5), RING, steps=40, resume=part)
    with pytest.raises(ValueError, match="cannot resume: x_0 is"):
        peer.run(GT_HSGD, problem, RING, steps=40, x0=np.ones(5), resume=part)
    with pytest.raises(ValueError, match=r"cannot resume: problem is 'logistic.*, l2"):
        peer.run(GT_HSGD, small_logistic(regulariser="l2"), RING, steps=40, resume=part)
    with pytest.raises(ValueError, match="nothing to resume: the earlier run has 20 of 20 steps"):
        peer.run(GT_HSGD, problem, RING, steps=20, resume=part)
    with pytest.raises(ValueError, match="is not a run folder: it has no checkpoint"):
        peer.run(GT_HSGD, problem, RING, steps=40, resume=tmp_path)


def test_run_folder(tmp_path):
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=20, record=4)
    folder = trace.save(tmp_path / "a" / "b")
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    (stored,) = checkpoint._named(folder / "checkpoint")
    assert stored[0] == 20
    assert files == [f"checkpoint/{stored[1].name}", "summary.json", "trace.csv"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["seed"] == 0
    assert summary["final"]["gradients"] == 1 + 19 * 2
    assert {"peerdescent", "jax", "python"} <= set(summary["versions"])
    assert summary["commit"] is None or len(summary["commit"]) == 40
    loaded = peer.Trace.load(folder)
    assert np.array_equal(loaded.x, trace.x)
    assert loaded.identity == trace.identity
    pd.testing.assert_frame_equal(loaded.table, trace.table, check_exact=True)
    assert np.array_equal(loaded.x_mean, trace.x.mean(axis=0))
    with pytest.raises(
        ValueError,
        match="a checkpoint of the process of node 2, without iterates: continue the run",
    ):
        replace(trace, x=trace.x[:0], node=2).x_mean  # noqa: B018


@pytest.mark.parametrize("place", ["checkpoint", "."])
def test_a_saved_run_replaces_others_by_force(tmp_path, place):
    longer = peer.run(GT_HSGD, small_logistic(), RING, steps=20, record=4)
    other = peer.run(peer.methods.dsgd(alpha=0.1), small_logistic(), RING, steps=5, record=1)
    shorter = peer.run(peer.methods.dsgd(alpha=0.1), small_logistic(), RING, steps=10, record=2)
    for trace in (longer, other):
        trace.save_checkpoint(tmp_path / place)
    shorter.save(tmp_path, force=True)
    assert peer.Trace.load(tmp_path).identity == shorter.identity
    assert peer.Trace.load(tmp_path).steps == 10
    assert checkpoint.steps(tmp_path / "checkpoint") == ([10, 5] if place == "checkpoint" else [10])
    longer.save(tmp_path, force=True)
    assert checkpoint.steps(tmp_path / "checkpoint") == [20], "the others were of another method"
    assert peer.Trace.load(tmp_path).identity == longer.identity


def test_a_run_with_numpy_numbers_can_be_saved(tmp_path):
    method = peer.methods.gt_hsgd(alpha=np.float32(0.25), batch=np.int64(2))
    trace = peer.run(
        method, small_logistic(), RING, steps=np.int64(5), seed=np.int64(3), record=np.int64(2)
    )
    loaded = peer.Trace.load(trace.save(tmp_path))
    assert loaded.identity.seed == 3
    assert loaded.table["step"].tolist() == [0, 3, 5]


@pytest.mark.parametrize("seed", range(6))
def test_x_tilde_is_the_iterate_that_was_chosen(seed):
    problem, grid = small_logistic(), [0, 10, 20, 30, 40]
    trace = peer.run(GT_HSGD, problem, RING, steps=40, precision=64, record=4, seed=seed)
    step, node = [c for c in (visited(seed, a, b, 6) for a, b in pairwise([-1, *grid])) if c][-1]
    iterates = [
        np.zeros((6, 5)),
        *(state.x for state in states(GT_HSGD, problem, RING, 40, seed=seed)),
    ]
    assert_close(trace.x_tilde, iterates[step][node])


def test_interruption_during_evaluation_leaves_the_record_before(monkeypatch):
    """Whenever Ctrl-C comes, table, iterates, state and x_tilde belong to the same step."""
    from peerdescent.engines.stacked import Stacked

    problem, evaluate, calls = small_logistic(), Stacked.evaluate, []

    def impatient(self, points):
        calls.append(points)
        if len(calls) == 5:  # the warm-up, steps 0, 10 and 20, and then this one
            raise KeyboardInterrupt
        return evaluate(self, points)

    monkeypatch.setattr(Stacked, "evaluate", impatient)
    broken = peer.run(GT_HSGD, problem, RING, steps=100, record=10, seed=2)
    monkeypatch.undo()
    whole = peer.run(GT_HSGD, problem, RING, steps=20, record=2, seed=2)
    assert broken.status == "interrupted"
    assert broken.steps == 20
    assert np.array_equal(broken.x, whole.x)
    assert np.array_equal(broken.x_tilde, whole.x_tilde)


def test_x_tilde_is_uniform_over_steps_and_nodes():
    """Over seeds, the reservoir picks every step 0..T and every node equally often, whatever the intervals."""
    grid, nodes, seeds = [-1, 0, 1, 4, 9], 3, 6000
    steps, picked = np.zeros(10), np.zeros(nodes)
    for seed in range(seeds):
        chosen = None
        for left, right in pairwise(grid):
            chosen = visited(seed, left, right, nodes) or chosen
        steps[chosen[0]] += 1
        picked[chosen[1]] += 1
    assert (
        np.sum((steps - seeds / 10) ** 2 / (seeds / 10)) < 27.9
    )  # chi-square, 9 degrees of freedom, p = 0.001
    assert np.sum((picked - seeds / 3) ** 2 / (seeds / 3)) < 13.8


def test_results_are_for_whom_any_other_file_would_be(tmp_path):
    (tmp_path / "any").touch()
    write(tmp_path / "result", b"1")
    assert (tmp_path / "result").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_run_of_another_experiment_is_not_replaced(tmp_path):
    def run(step=0.1, steps=10, **options):
        return peer.run(
            peer.methods.dsgd(alpha=step), small_logistic(), RING, steps=steps, record=1, **options
        )

    first, folder = run(), tmp_path / "run"
    first.save(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for other, message in [
        (
            run(step=0.2),
            r"run has another run, whose method is 'dsgd\[.*alpha=0.1.*\]', and 'dsgd\[.*alpha=0.2",
        ),
        (run(seed=1), "has another run, whose seed is 0, and 1 here"),
        (
            replace(first, identity=replace(first.identity, values="0")),
            "has another run, whose values is .*, and '0' here",
        ),
        (run(steps=5), "run has 10 steps of this run, and 5 are here"),
    ]:
        with pytest.raises(ValueError, match=message + ".*: give another folder, or force=True$"):
            other.save(folder)
    assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run(steps=20).save(folder)
    assert peer.Trace.load(folder).steps == 20, "a longer run of the same replaces it"
    run(step=0.2, steps=5).save(folder, force=True)
    assert (peer.Trace.load(folder).steps, checkpoint.steps(folder / "checkpoint")) == (5, [5])
    first.save(tmp_path / "many" / "seed-3")
    with pytest.raises(
        ValueError,
        match="many has runs of several seeds, such as seed-3: give another folder, or f",
    ):
        first.save(tmp_path / "many")


def test_a_folder_with_checkpoints_of_something_else_is_refused(tmp_path):
    checkpoint.save(tmp_path, 5, {"x": np.zeros(2)}, {"seed": 0})
    with pytest.raises(
        ValueError, match=r"has another run, whose method is None, and 'gt-hsgd.*' here"
    ):
        peer.run(GT_HSGD, small_logistic(), RING, steps=5).save(tmp_path)
