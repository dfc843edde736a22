"""Runs that end early by a rule, and callbacks: where, why, and that nothing is lost."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.runs import pace
from peerdescent.runs.stop import rules
from small import small_logistic

RING = peer.Network(peer.topology.ring(6))
METHOD = peer.methods.gt_hsgd(alpha=0.5, beta=0.1)


def run(steps=100, record=20, **options):
    return peer.run(
        METHOD, small_logistic(), RING, steps=steps, record=record, precision=64, **options
    )


@pytest.fixture(scope="module")
def whole():
    return run()


def rows_of(*losses):
    return [{"step": 10 * k, "loss": loss, "seconds": k} for k, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("rule", "losses", "reason"),
    [
        (peer.stop.loss(1), (3, 2, 1.5), ""),
        (peer.stop.loss(1), (3, 2, 1), "loss 1 <= 1 at step 20"),
        (peer.stop.loss(1), (float("nan"),), ""),
        (peer.stop.seconds(2), (3, 3), ""),
        (peer.stop.seconds(2), (3, 3, 3), "seconds 2 >= 2 at step 20"),
        (peer.stop.patience(2), (3, 3), ""),
        (peer.stop.patience(2), (3, 3, 3), "loss has not fallen for 2 records, at step 20"),
        (peer.stop.patience(2), (3, 4, 2.9), ""),
        (peer.stop.patience(2), (3, 2, 4, 2.5), "loss has not fallen for 2 records, at step 30"),
        (
            peer.stop.patience(1, least=0.5),
            (3, 2.6),
            "loss has not fallen by more than 0.5 for 1 records, at step 10",
        ),
        (peer.stop.patience(1, least=0.5), (3, 2.4), ""),
        (peer.stop.patience(1, rising=True), (3, 4), ""),
        (
            peer.stop.patience(1, rising=True),
            (3, 2),
            "loss has not risen for 1 records, at step 10",
        ),
        (peer.stop.patience(1), (float("nan"), 2, float("nan")), ""),
    ],
)
def test_rules_give_their_reason_or_none(rule, losses, reason):
    assert rule.reason(rows_of(*losses)) == reason


def test_patience_waits_for_the_best_of_all_records_before():
    """A slow rise and fall below an old best is no progress; the old best counts however long ago it was."""
    rule = peer.stop.patience(3)
    assert not rule.reason(rows_of(1, 5, 4))
    assert rule.reason(rows_of(1, 5, 4, 3))
    assert rule.reason(rows_of(1, 5, 4, 3, 2))
    assert not rule.reason(rows_of(1, 5, 4, 3, 0.9))


def test_a_run_ends_at_the_first_record_that_reaches_the_target(whole):
    target = float(whole.table["loss"].iloc[7])
    trace = run(stop=peer.stop.loss(target))
    first = int(np.argmax(whole.table["loss"] <= target))
    assert trace.status is peer.Status.stopped
    assert trace.steps == whole.table["step"].iloc[first] < 100
    pd.testing.assert_frame_equal(
        trace.table.drop(columns="seconds"), whole.table[: first + 1].drop(columns="seconds")
    )
    assert (
        trace.message
        == f"loss {trace.table['loss'].iloc[-1]:.4g} <= {target:g} at step {trace.steps}"
    )
    norm = float(whole.table["grad_norm"].iloc[5])
    ended = run(stop=[peer.stop.loss(-1), peer.stop.grad_norm(norm)])
    assert ended.steps == whole.table["step"][whole.table["grad_norm"] <= norm].iloc[0]
    assert ended.message.startswith("grad_norm ")


def test_a_function_of_the_row_ends_a_run(whole):
    def far_enough(row):
        return row["step"] >= 35 and row["loss"] < 1

    trace = run(stop=far_enough)
    assert (trace.steps, trace.message) == (35, "far_enough, at step 35")
    assert (
        run(stop=lambda row: row["step"] > 9 and "it is late").message == "it is late, at step 10"
    )
    assert run(stop=lambda row: row["step"] > 9).message == "the function given as stop, at step 10"
    assert run(stop=lambda row: row.clear()).table["loss"].tolist() == whole.table["loss"].tolist()


def test_a_metric_of_ones_own_can_end_a_run():
    largest = peer.metric(lambda x_mean, x, problem: abs(x_mean).max(), "largest")
    trace = run(metrics=[largest], stop=peer.stop.patience(1, of="largest", least=1e9))
    assert trace.message == "largest has not fallen by more than 1e+09 for 1 records, at step 5"


def test_a_rule_cannot_change_the_record(whole):
    class Meddling(peer.runs.stop.Rule):
        def reason(self, rows):
            rows[-1]["loss"] = 123.0

    with pytest.raises(TypeError, match="does not support item assignment"):
        run(stop=Meddling())


def test_rules_are_asked_at_x_0_and_at_the_last_step(whole):
    at_once = run(stop=peer.stop.loss(1e3))
    assert (at_once.steps, at_once.status) == (0, "stopped")
    last = float(whole.table["loss"].iloc[-1])
    assert whole.table["loss"].iloc[:-1].min() > last
    assert (run(stop=peer.stop.loss(last)).status, whole.status) == ("stopped", "done")


def test_divergence_comes_before_a_rule():
    trace = peer.run(
        peer.methods.dsgd(alpha=1e6),
        small_logistic(strength=1.0),
        RING,
        steps=40,
        record=4,
        stop=lambda row: row["step"],
    )
    assert trace.status == "diverged"


@pytest.mark.parametrize("way", ["trace", "folder", "checkpoint"])
def test_a_run_that_was_stopped_goes_on(tmp_path, whole, way):
    target = float(whole.table["loss"].iloc[7])
    options = {"checkpoint": tmp_path} if way == "checkpoint" else {}
    stopped = run(stop=peer.stop.loss(target), **options)
    assert stopped.steps == 35
    if way == "checkpoint":  # with the same rule it has ended, and runs no further
        again = run(
            stop=peer.stop.loss(target), callback=lambda trace: pytest.fail("it ran"), **options
        )
        assert (again.steps, again.status, again.message) == (35, "stopped", stopped.message)
        later = run(stop=peer.stop.loss(float(whole.table["loss"].iloc[12])), **options)
        assert (later.steps, later.status) == (60, "stopped")
    if way != "checkpoint":
        options = {"resume": stopped if way == "trace" else stopped.save(tmp_path)}
    finished = run(**options)
    assert finished.status == "done"
    assert np.array_equal(finished.x, whole.x)
    assert np.array_equal(finished.x_tilde, whole.x_tilde)
    pd.testing.assert_frame_equal(
        finished.table.drop(columns="seconds"), whole.table.drop(columns="seconds")
    )


def test_a_run_that_would_have_ended_earlier_is_refused(tmp_path, whole):
    """It has records that a run with these rules would not have, so it is no run with these rules."""
    losses = [float(loss) for loss in whole.table["loss"]]
    early, late = peer.stop.loss(losses[7]), peer.stop.loss(losses[12])

    def refused(**options):
        message = "seed 0 has {} steps, and would have ended before: "
        message += f"loss {losses[7]:.4g} <= .* at step 35; start anew"
        with pytest.raises(ValueError, match=message.format(options.pop("has"))):
            run(**options)

    for name, length in (("done", {"stop": None}), ("stopped", {"stop": late})):
        home = tmp_path / name
        first = run(checkpoint=home, **length)
        assert first.status == name
        refused(stop=early, checkpoint=home, has=first.steps)
        refused(stop=[peer.stop.loss(-1), early], resume=first, steps=120, has=first.steps)
        refused(
            stop=lambda row: row["step"] >= 35 and f"loss {losses[7]:.4g} <= mine",
            resume=first,
            steps=120,
            has=first.steps,
        )
        again = run(checkpoint=home, stop=peer.stop.loss(first.table["loss"].iloc[-1]))
        assert (again.status, again.steps) == (first.status, first.steps), (
            "one that holds at its end changes nothing"
        )
    both = tmp_path / "both"
    run(seed=[0, 1], checkpoint=both)
    refused(seed=[0, 1, 2], checkpoint=both, stop=early, has=100)
    assert not (both / "seed-2").exists()


def test_an_interrupted_run_that_would_have_ended_earlier_is_refused(whole):
    def press(trace):
        if trace.steps == 50:
            raise KeyboardInterrupt

    broken = run(callback=press)
    with pytest.raises(ValueError, match="has 50 steps, and would have ended before"):
        run(resume=broken, stop=peer.stop.loss(float(whole.table["loss"].iloc[7])))
    # A function may look at a clock. It was asked at these records, and said no.
    assert run(resume=broken, stop=lambda row: True).steps == 50


def test_a_run_folder_says_why_it_ended(tmp_path):
    trace = run(stop=lambda row: row["step"] >= 20 and "enough")
    trace.save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["message"]) == ("stopped", "enough, at step 20")
    loaded = peer.Trace.load(tmp_path)
    assert (loaded.status, loaded.message) == (trace.status, trace.message)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (
            0.2,
            r"stop = 0.2: give a rule such as peer.stop.loss\(0.2\), a function of a row, or a list of such",
        ),
        ("loss", "stop = 'loss': give a rule"),
        ([peer.stop.loss(1), 3], "give a rule"),
        (peer.stop.patience, "give a rule"),
        (peer.stop.patience(3, of="los"), "unknown column 'los': did you mean 'loss'"),
    ],
)
def test_what_is_no_rule_is_refused(stop, message):
    with pytest.raises(ValueError, match=message):
        run(stop=stop)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: peer.stop.loss("low"), "target loss = 'low': must be a number"),
        (lambda: peer.stop.loss(float("nan")), "target loss = nan: must be a number"),
        (lambda: peer.stop.grad_norm(0), "target grad_norm = 0: must be a positive number"),
        (lambda: peer.stop.seconds(-1), "seconds = -1: must be a positive number"),
        (lambda: peer.stop.patience(0), "records = 0: must be a whole number of at least 1"),
        (lambda: peer.stop.patience(3, least=-1), "least = -1: must be 0 or more"),
    ],
)
def test_bad_rules_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_callback_sees_the_trace_so_far(whole):
    seen = []
    trace = run(callback=seen.append)
    assert [one.steps for one in seen] == trace.table["step"].tolist()
    assert [len(one.table) for one in seen] == list(range(1, 22))
    assert [str(one.status) for one in seen] == ["interrupted"] * 20 + ["done"]
    assert np.array_equal(seen[-1].x_mean, trace.x_mean)
    assert np.array_equal(trace.x, whole.x)
    halfway = run(resume=seen[10])  # it is a trace like any other
    assert np.array_equal(halfway.x, whole.x)


def test_the_callback_knows_the_reason():
    seen = []
    run(callback=seen.append, stop=lambda row: row["step"] >= 10)
    assert [str(one.status) for one in seen] == ["interrupted"] * 2 + ["stopped"]
    assert seen[-1].message == "the function given as stop, at step 10"


def test_the_callback_cannot_change_the_run(whole):
    def meddle(trace):
        with pytest.raises(ValueError, match="read-only"):
            trace.x[:] = 0
        if trace.state is not None:
            with pytest.raises(ValueError, match="read-only"):
                trace.state.x[:] = 0

    assert np.array_equal(run(callback=meddle).x, whole.x)


def test_an_error_in_the_callback_says_where_and_loses_nothing(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(pace, "SHARE", 0.0)  # no checkpoints on the way

    def broken(trace):
        if trace.steps == 40:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        run(callback=broken, checkpoint=tmp_path)
    assert caught.value.__notes__[0] == "in the callback, at step 40, with seed 0"
    known = caught.value.trace
    assert (known.steps, known.status) == (40, "interrupted")
    calls = []
    for options in ({"resume": known}, {"checkpoint": tmp_path}):
        again = run(callback=calls.append, **options)
        assert np.array_equal(again.x, whole.x)
    assert [one.steps for one in calls] == 2 * list(range(45, 101, 5)), (
        "it is not called again for the same record"
    )


def test_an_error_in_a_stopping_function_says_where():
    with pytest.raises(KeyError) as caught:
        run(stop=lambda row: row["lost"])
    (note,) = caught.value.__notes__
    assert (
        note
        == "in the function given as stop, which is to stop the run, at step 0; it is called with a row of the table"
    )


def test_ctrl_c_in_a_callback_interrupts(whole):
    def press(trace):
        if trace.steps == 40:
            raise KeyboardInterrupt

    trace = run(callback=press)
    assert (trace.steps, trace.status) == (40, "interrupted")
    assert np.array_equal(run(resume=trace).x, whole.x)


def test_a_callback_is_a_function():
    with pytest.raises(ValueError, match="callback is a int: give a function of the trace so far"):
        run(callback=3)


class Group:
    """Two processes in one: what process 0 says reaches process 1."""

    def __init__(self):
        self.said = []

    def gather(self, process):
        def exchange(rows):
            if process == 0:
                self.said.append(rows)
            return np.stack([rows if process == 0 else self.said.pop(0), rows])

        return exchange


def test_process_0_decides_for_all():
    """A time or a user's function may differ between processes; what process 0 finds is what all of them do."""
    from types import SimpleNamespace

    from peerdescent.errors import PeerLost
    from peerdescent.runs.stop import rules
    from peerdescent.runs.watch import Watch

    def recorder(seconds):
        ended = []
        return SimpleNamespace(
            diverged=lambda: False, step=10, total=100, seed=0, shown=lambda: "trace", ended=ended,
            end=lambda *how: ended.append(how), last=SimpleNamespace(rows=[{"step": 10, "seconds": seconds}]),
        )  # fmt: skip

    group, calls = Group(), []
    watches = [
        Watch(
            rules(peer.stop.seconds(5), [peer.runs.METRICS["seconds"]]),
            calls.append,
            k,
            group.gather(k),
        )
        for k in (0, 1)
    ]
    for seconds, expected in (
        ((6, 1), [(peer.Status.stopped, "seconds 6 >= 5 at step 10")]),
        ((1, 6), []),
    ):
        both = [recorder(each) for each in seconds]
        for watch, one in zip(watches, both, strict=True):
            watch.decide(one)
            assert one.ended == expected
    for watch in watches:
        watch.call(recorder(1))
    assert calls == ["trace"], "only process 0 calls back"

    def broken(trace):
        raise OSError("disk is full")

    watches = [Watch((), broken, k, group.gather(k)) for k in (0, 1)]
    with pytest.raises(OSError, match="disk is full"):
        watches[0].call(recorder(1))
    with pytest.raises(PeerLost, match="process 0 has ended, by an error: OSError: disk is full"):
        watches[1].call(recorder(1))


def test_patience_waits_for_what_is_better():
    """A metric says whether that is larger; a rule may say otherwise."""
    of = [
        peer.metric(lambda x_mean, x, problem: 0.0, "mine", rising=True),
        peer.runs.METRICS["loss"],
    ]
    for rule, rising in (
        (peer.stop.patience(2, of="mine"), True),
        (peer.stop.patience(2, of="mine", rising=False), False),
        (peer.stop.patience(2), False),
    ):
        assert rules(rule, of)[0].rising is rising
    assert peer.accuracy(lambda params, features: features @ params, np.eye(2), [1, -1]).rising
