"""Several seeds in one call of `run`: each is the run of that seed alone, whatever becomes of the others."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines import crew, stacked
from peerdescent.runs import checkpoint, pace
from peerdescent.runs.resuming import together
from small import Spy, compiled, small_logistic, small_quadratic, small_streaming, some

SEEDS = [3, 0, 7]
RING = peer.Network(peer.topology.ring(6))
GT_HSGD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1, batch=2)
KINDS = {"threads": (crew.Apart, False), "one program": (crew.Abreast, True)}


class Counted(NamedTuple):
    """A state made by hand, with a plain Python number in it."""

    x: object
    k: object


def _by_hand():
    def step(state, net):
        return Counted(net.mix(state.x - 0.1 * net.grad(state.x, net.sample(2))), state.k + 1)

    return peer.Method(lambda x, net: Counted(x, 1), step, "by-hand")


def _ragged():
    partition = peer.datasets.synthetic(50, 5, seed=1).partition(
        6, by="dirichlet", concentration=5.0, seed=2
    )
    assert len(set(partition.sizes.tolist())) > 1
    return peer.problems.logistic(partition, strength=0.1)


def _faulty():
    return peer.Network(
        peer.topology.ring(6), faults=[peer.faults.burst(0.2, 0.4), peer.faults.inactive(0.2)]
    )


def _composite():
    return peer.problems.composite(small_logistic(), l1=0.02)


CASES = {
    "faults, a clock and ragged nodes": (GT_HSGD, _ragged, _faulty, {"clock": "campus"}),
    "coins": (peer.methods.gt_page(alpha=0.2, probability=0.3), small_logistic, lambda: RING, {}),
    "a compressor": (
        peer.methods.choco_sgd(alpha=0.2, compressor=peer.compressors.quantize(4)), small_logistic, lambda: RING, {},
    ),
    "a schedule and a penalty": (
        peer.methods.proxgt(alpha=peer.schedules.cosine(30, 0.5)), _composite, lambda: RING, {},
    ),
    "restarts": (peer.methods.d_get(alpha=0.2, period=3, large_batch=4), small_quadratic, lambda: RING, {}),
    "by hand, from a stream": (_by_hand(), small_streaming, lambda: RING, {}),
}  # fmt: skip
LARGEST = peer.metric(lambda x_mean, x, problem: abs(x).max(), "largest")


def run(method=GT_HSGD, problem=None, network=RING, seed=SEEDS, **options):
    options = {"steps": 30, "record": 5, "precision": 64} | options
    return peer.run(
        method, small_logistic() if problem is None else problem, network, seed=seed, **options
    )


def assert_same(one, other, tolerance=1e-12):
    """Two traces of the same run, computed in different ways."""
    assert (one.status, one.message, one.identity) == (other.status, other.message, other.identity)
    assert one.table["step"].tolist() == other.table["step"].tolist()
    for name in one.table.columns.drop("seconds"):
        left, right = one.table[name].to_numpy(float), other.table[name].to_numpy(float)
        scale = max(1.0, np.nanmax(np.abs(right), initial=0))
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale, err_msg=name)
    pairs = [(one.x, other.x), (one.x_tilde, other.x_tilde)]
    pairs += zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True)
    for left, right in pairs:
        assert np.shape(left) == np.shape(right)
        np.testing.assert_allclose(
            left, right, rtol=0, atol=tolerance * max(1.0, np.abs(right).max())
        )


@pytest.fixture
def side_by_side(request, monkeypatch):
    """Makes a crew of a kind, whatever the device is, and counts them."""
    kind, on_gpu = KINDS[request.param]
    monkeypatch.setattr(crew, "on_gpu", lambda: on_gpu)
    monkeypatch.setattr(crew, "cores", lambda: 2)
    made, real = [], kind.__init__
    monkeypatch.setattr(
        kind,
        "__init__",
        lambda self, build, seeds, *n: made.append(len(seeds)) or real(self, build, seeds, *n),
    )
    return made


@pytest.mark.parametrize("case", some(CASES, 2))
def test_each_seed_is_the_run_of_that_seed_alone(case, monkeypatch):
    method, problem, network, options = CASES[case]
    problem, network = problem(), network()
    options |= {"steps": 12, "metrics": [LARGEST]}
    alone = [run(method, problem, network, seed, **options) for seed in SEEDS]
    assert len({trace.x.tobytes() for trace in alone}) == len(SEEDS), "the seeds differ in nothing"
    for on_gpu in (False, True):
        monkeypatch.setattr(crew, "on_gpu", lambda on_gpu=on_gpu: on_gpu)
        monkeypatch.setattr(crew, "cores", lambda: 2)
        traces = run(method, problem, network, **options)
        assert isinstance(traces, peer.Traces)
        assert traces.seeds == tuple(SEEDS)
        for one, other in zip(traces, alone, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_seeds_run_at_once(side_by_side):
    run(steps=4)
    assert side_by_side == [3]


def test_coins_are_tossed_one_seed_after_the_other_on_a_gpu(monkeypatch):
    """Along an axis of seeds every seed would compute both sides of each coin."""
    monkeypatch.setattr(crew, "on_gpu", lambda: True)
    assert isinstance(crew.crew_of(GT_HSGD, lambda seed: None, SEEDS), crew.Abreast)
    assert isinstance(crew.crew_of(peer.methods.gt_page(), lambda seed: None, SEEDS), crew.Apart)
    assert crew.crew_of(peer.methods.gt_page(), lambda seed: None, SEEDS).pool is None


def test_threads_compute_at_the_same_time(monkeypatch):
    """Each waits for the other in its first interval: one after the other, they would wait for ever."""
    monkeypatch.setattr(crew, "cores", lambda: 2)
    meet, real = threading.Barrier(2, timeout=60), stacked.Stacked.advance

    def advance(self, state, t, until):
        if t == 1:
            meet.wait()
        return real(self, state, t, until)

    monkeypatch.setattr(stacked.Stacked, "advance", advance)
    assert run(seed=[0, 1]).status == "done"


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_seeds_that_do_not_fit_into_memory_run_in_groups(side_by_side, monkeypatch):
    monkeypatch.setattr(
        crew, "memory", lambda: 4 * 4 * crew.needed(GT_HSGD, small_logistic(), np.dtype("float64"))
    )
    assert crew.at_once(GT_HSGD, small_logistic(), np.dtype("float64")) == 4
    spy = Spy()
    parts = run(seed=range(6), progress=spy)
    assert side_by_side == [3, 3], "groups are of equal size"
    for trace in parts[1::3]:
        assert_same(trace, run(seed=trace.identity.seed))
    assert spy.total == 6 * 30
    assert spy.seen[-1][0] == 180
    assert [step for step, _ in spy.seen] == sorted(step for step, _ in spy.seen)


@pytest.mark.parametrize("engine", ["debug", "sharded"])
def test_other_engines_run_one_seed_after_the_other(engine):
    options = {"problem": compiled(small_logistic()), "engine": engine, "steps": 4, "record": 2}
    for trace in run(seed=[1, 2], **options):
        assert_same(trace, run(seed=trace.identity.seed, **options))


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_a_seed_that_diverges_does_not_stop_the_others(side_by_side):
    method, problem = peer.methods.dsgd(alpha=1.9), _unlucky()
    alone = [run(method, problem, seed=seed, record=10) for seed in range(3)]
    assert {"done", "diverged"} == {str(trace.status) for trace in alone}
    traces = run(method, problem, seed=range(3), record=10)
    assert traces.status is peer.Status.diverged
    for one, other in zip(traces, alone, strict=True):
        assert_same(one, other, 1e-9 if one.status == "diverged" else 1e-12)
    ends = [trace.steps for trace in traces]
    first = min(ends)
    known = traces.mean["step"] <= first
    assert traces.mean["seeds"].tolist() == [
        sum(end >= step for end in ends) for step in traces.mean["step"]
    ]
    assert traces.mean["gradients"][~known].isna().all()
    assert np.isfinite(traces.mean["gradients"][known]).all()


def _unlucky():
    """f_i(x) = mean_j a_j x^2 / 2, where a few a_j are so large that a step with them multiplies x by -1e4."""
    import jax.numpy as jnp

    curvatures = np.ones((6, 300))
    curvatures[:, 0] = 6e3
    return peer.problems.loss(
        lambda params, a: jnp.mean(a) * (params**2).sum() / 2, np.ones(1), curvatures
    )


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_each_seed_stops_by_itself(side_by_side):
    alone = [run(seed=seed, steps=60, record=20) for seed in range(3)]
    target = float(np.median([trace.table["loss"].min() for trace in alone]))
    rule = peer.stop.loss(target)
    calls = []
    traces = run(seed=range(3), steps=60, record=20, stop=rule, callback=calls.append)
    for one, other in zip(
        traces, [run(seed=seed, steps=60, record=20, stop=rule) for seed in range(3)], strict=True
    ):
        assert_same(one, other)
    assert len({trace.steps for trace in traces}) > 1
    assert {"stopped", "done"} == {str(trace.status) for trace in traces}
    assert traces.status is peer.Status.stopped
    for trace in traces:
        seen = [one.steps for one in calls if one.identity.seed == trace.identity.seed]
        assert seen == trace.table["step"].tolist()


def test_all_seeds_may_stop_at_x_0():
    traces = run(stop=peer.stop.loss(1e3))
    assert [trace.steps for trace in traces] == [0, 0, 0]


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_one_seed_stops_at_x_0_and_the_others_go_on(side_by_side):
    told = []

    def first_call(row):
        told.append(row)
        return len(told) == 2

    traces = run(stop=first_call)
    assert [trace.steps for trace in traces] == [30, 0, 30]
    assert_same(traces[2], run(seed=SEEDS[2]))


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_ctrl_c_returns_all(side_by_side):
    traces = run(progress=Spy(interrupt_at=3 * 12))
    assert [str(trace.status) for trace in traces] == ["interrupted"] * 3
    assert [trace.steps for trace in traces] == [12] * 3
    resumed = run(resume=traces)
    for one, other in zip(resumed, run(), strict=True):
        assert_same(one, other)


def test_ctrl_c_ends_threads_in_the_middle_of_an_interval(monkeypatch):
    """The iterations of an interval are many; threads do not run to its end."""
    monkeypatch.setattr(crew, "cores", lambda: 2)
    begun, went_on, real = threading.Event(), [], stacked.Stacked.some

    def some(self, state, t, until):
        begun.set()
        if t > 10**6:
            went_on.append(t)
            raise RuntimeError
        return real(self, state, t, until)

    def wait(futures, timeout=None):
        if timeout is not None and begun.is_set():
            raise KeyboardInterrupt
        return crew_wait(futures, timeout)

    crew_wait = crew.wait
    monkeypatch.setattr(stacked.Stacked, "some", some)

    def press(trace):
        monkeypatch.setattr(crew, "wait", wait)

    traces = run(seed=[0, 1], steps=10**9, record=1, callback=press)
    assert [str(trace.status) for trace in traces] == ["interrupted"] * 2
    assert [trace.steps for trace in traces] == [0, 0]
    assert not went_on


def test_seeds_that_wait_when_another_is_interrupted_are_at_x_0(tmp_path):
    """Debug runs one after the other: the first is done, the second is interrupted, the third never began."""
    options = {"problem": compiled(small_logistic()), "engine": "debug", "steps": 4, "record": 2}
    traces = run(progress=Spy(interrupt_at=4 + 2), checkpoint=tmp_path, **options)
    assert [str(trace.status) for trace in traces] == ["done", "interrupted", "interrupted"]
    assert [trace.steps for trace in traces] == [4, 2, 0]
    for one, other in zip(run(checkpoint=tmp_path, **options), run(**options), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("side_by_side", KINDS, indirect=True)
def test_checkpoints_of_all_seeds_continue_bit_for_bit(tmp_path, monkeypatch, side_by_side):
    monkeypatch.setattr(pace, "SHARE", 1e9)
    options = {"record": 10}
    whole = run(**options)
    broken = run(**options, checkpoint=tmp_path, progress=Spy(interrupt_at=3 * 15))
    assert [trace.steps for trace in broken] == [15] * 3
    folders = [tmp_path / f"seed-{seed}" / "checkpoint" for seed in SEEDS]
    assert [checkpoint.steps(folder) for folder in folders] == [[15, 12, 9]] * 3
    # One seed has lost its newest: all go back to the newest step that all have.
    newest = max(checkpoint._named(folders[1]))[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert peer.Traces.load(tmp_path).seeds == tuple(sorted(SEEDS))
    spy = Spy()
    again = run(**options, checkpoint=tmp_path, progress=spy)
    assert spy.seen[0][0] == 3 * 12
    for one, other in zip(again, whole, strict=True):
        assert_same(one, other, 0)
    spy = Spy()
    finished = run(**options, checkpoint=tmp_path, progress=spy)
    assert [step for step, _ in spy.seen] == [90]
    assert finished.status == "done"


def test_seeds_can_be_added(tmp_path):
    """Those that are finished are kept; with more steps, all go on, those that begin in a group of their own."""
    run(seed=[0, 1], checkpoint=tmp_path)
    spy = Spy()
    more = run(seed=[0, 1, 2], checkpoint=tmp_path, progress=spy)
    assert [step for step, _ in spy.seen[:2]] == [60, 60]
    longer = run(seed=[1, 5, 0], steps=40, record=[30, 40], checkpoint=tmp_path)
    for trace in longer:
        assert np.array_equal(trace.x, run(seed=trace.identity.seed, steps=40, record=1).x)
    assert more.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("steps", "most", "expected"),
    [
        ({0: [], 1: [], 2: []}, 9, [(-1, [0, 1, 2])]),
        ({0: [], 1: [], 2: []}, 2, [(-1, [0, 1]), (-1, [2])]),
        ({0: [], 1: [], 2: [], 3: []}, 3, [(-1, [0, 1]), (-1, [2, 3])]),
        ({0: [9, 6, 3], 1: [6, 3, 1], 2: [3, 1]}, 9, [(3, [0, 1, 2])]),
        ({0: [9, 6], 1: [], 2: [6, 3], 3: []}, 9, [(6, [0, 2]), (-1, [1, 3])]),
        ({0: [9], 1: [6]}, 9, [(9, [0]), (6, [1])]),
        ({0: [0], 1: []}, 9, [(0, [0]), (-1, [1])]),
        ({}, 9, []),
    ],
)
def test_seeds_with_a_step_in_common_continue_together(steps, most, expected):
    assert together(steps, most) == expected


def test_earlier_traces_are_continued():
    whole, short = run(record=[10, 30]), run(steps=10, record=1)
    for one, other in zip(run(resume=short, record=[10, 30]), whole, strict=True):
        assert_same(one, other, 0)
    with pytest.raises(
        ValueError, match="nothing to resume: all of the earlier runs diverged or have 10 steps"
    ):
        run(steps=10, resume=short)
    with pytest.raises(
        ValueError, match="resume is a Trace: with several seeds, give traces or a folder"
    ):
        run(resume=short[0])
    for one, other in zip(run(seed=None, resume=short, record=[10, 30]), whole, strict=True):
        assert_same(one, other, 0)
    assert_same(run(seed=None, resume=short[2], record=[10, 30]), whole[2], 0)
    with pytest.raises(ValueError, match="resume is a Traces: give one trace, or leave out seed"):
        run(seed=3, resume=short)


def test_an_error_in_a_callback_has_the_traces_of_all_seeds():
    def broken(trace):
        if (trace.steps, trace.identity.seed) == (12, 0):
            raise OSError("full")

    with pytest.raises(OSError, match="full") as caught:
        run(callback=broken)
    assert caught.value.__notes__[0] == "in the callback, at step 12, with seed 0"
    for one, other in zip(run(resume=caught.value.trace), run(), strict=True):
        assert_same(one, other)


def test_seconds_of_seeds(monkeypatch):
    """Of an axis of seeds each has its share; a thread has its own time. Those that ended pay no more."""
    now = [0.0]
    monkeypatch.setattr(crew.time, "perf_counter", lambda: now[0])

    def pass_time(seconds):
        now[0] += seconds

    steady = crew.Abreast(lambda seeds: None, [0, 1, 2])
    steady._timed(lambda: pass_time(6), [0, 1, 2])
    assert steady.seconds == [2, 2, 2]
    steady._timed(lambda: pass_time(6), [1])
    assert steady.seconds == [2, 8, 2]
    apart = crew.Apart(lambda seed: None, [0, 1, 2])
    apart._timed(pass_time, [1, 2])
    assert apart.seconds == [0, 1, 2]


def test_one_seed_in_a_list_is_several_of_one():
    traces = run(seed=[4])
    assert isinstance(traces, peer.Traces)
    assert_same(traces[0], run(seed=4), 0)
    assert traces.deviation["loss"].isna().all()


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ([], r"seed = \[\]: give one or several"),
        ([0, 1, 0], "seed 0 is given twice: leave one out"),
        ([0, -1], "seed = -1: must be a whole number of at least 0"),
        ([0.5], "seed = 0.5: must be a whole number"),
    ],
)
def test_bad_seeds_are_refused(seed, message):
    with pytest.raises(ValueError, match=message):
        run(seed=seed)


@pytest.fixture(scope="module")
def traces():
    return run(seed=range(4), record=6)


def test_they_are_a_sequence(traces):
    assert len(traces) == 4
    assert traces[0] is next(iter(traces))
    assert isinstance(traces[1:], peer.Traces)
    assert traces[1:].seeds == (1, 2, 3)
    assert traces.of(2) is traces[2]
    with pytest.raises(ValueError, match="unknown seed 9"):
        traces.of(9)
    assert repr(traces).startswith("Traces(gt-hsgd[")
    assert ", 4 seeds, done, loss " in repr(traces)


def test_mean_and_deviation_are_those_of_the_tables(traces):
    values = np.stack([trace.table["grad_norm"] for trace in traces])
    np.testing.assert_allclose(traces.mean["grad_norm"], values.sum(axis=0) / 4)
    apart = values - values.sum(axis=0) / 4
    np.testing.assert_allclose(
        traces.deviation["grad_norm"], np.sqrt((apart**2).sum(axis=0) / 3), rtol=1e-9
    )
    assert traces.mean["step"].tolist() == traces[0].table["step"].tolist()
    assert (traces.mean["seeds"] == 4).all()
    table = traces.table
    assert table.columns[0] == "seed"
    pd.testing.assert_frame_equal(
        table[table["seed"] == 2].drop(columns="seed").reset_index(drop=True), traces[2].table
    )
    band = traces.band("epoch", "loss")
    np.testing.assert_allclose(band.mean, traces.mean["loss"])


def test_there_is_no_mean_at_a_step_that_a_seed_has_not_recorded():
    """A curve may be drawn between records; a table has no values that were not measured."""
    both = peer.Traces([run(seed=0, record=[10, 30]), run(seed=1, record=[20, 30])])
    found = both.mean
    assert found["step"].tolist() == [0, 10, 20, 30]
    assert found["seeds"].tolist() == [2, 1, 1, 2]
    for column in ("loss", "gradients"):
        ends = np.stack([trace.table[column].to_numpy()[[0, -1]] for trace in both])
        np.testing.assert_allclose(
            found[column], [ends[:, 0].mean(), np.nan, np.nan, ends[:, 1].mean()]
        )
    assert both.deviation["loss"].isna().tolist() == [False, True, True, False]
    assert both.band("step", "loss").x.tolist() == [0, 10, 20, 30]


def test_the_text_has_a_mean_over_all_seeds_or_none(traces):
    losses = [trace.table["loss"].iloc[-1] for trace in traces]
    text = f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"  # a deviation of 0.01 to 0.1 has two digits then
    assert 0.01 < np.std(losses, ddof=1) < 0.1
    assert f", 4 seeds, done, loss {text})" in repr(traces)
    assert text in traces._repr_html_()
    for status in ("diverged", "interrupted"):
        part = peer.Traces([replace(traces[0], status=peer.Status(status)), *traces[1:]])
        assert repr(part).endswith(f", 4 seeds, 1 {status}, 3 done)")
        assert "±" not in part._repr_html_()
    short = peer.Traces([run(seed=9, steps=20, record=1), traces[0]])
    assert repr(short).endswith(", 2 seeds, 1 done at step 20, 1 done at step 30)")
    assert "loss 0." in repr(part[:1]), "that of one seed is its last record"


def test_a_figure_has_a_line_and_a_band(traces):
    figure = peer.figures.curves({"gt-hsgd": traces})
    (line,) = [
        line for line in figure.axes[0].get_lines() if not str(line.get_label()).startswith("_")
    ]
    np.testing.assert_allclose(line.get_ydata(), traces.mean["loss"])
    assert len(figure.axes[0].collections) == 1


def test_a_band_is_over_what_rises(traces):
    with pytest.raises(ValueError, match="unknown horizontal axis 'loss'"):
        traces.band("loss", "step")


def test_they_are_saved_and_loaded(tmp_path, traces):
    traces.save(tmp_path)
    assert json.loads((tmp_path / "seed-3" / "summary.json").read_text())["seed"] == 3
    loaded = peer.Traces.load(tmp_path)
    for one, other in zip(loaded, traces, strict=True):
        assert_same(one, other, 0)
    assert_same(
        run(seed=range(4), steps=40, resume=tmp_path)[2], run(seed=2, steps=40, resume=traces[2])
    )
    with pytest.raises(
        ValueError, match=r"has runs of other seeds, seed-0, seed-3: give another folder"
    ):
        traces[1:3].save(tmp_path)
    with pytest.raises(
        ValueError, match="has no runs of several seeds: it has no folder such as seed-0"
    ):
        peer.Traces.load(tmp_path / "seed-0")


def test_runs_of_another_experiment_are_not_replaced(tmp_path, traces):
    def names():
        return sorted(path.name for path in tmp_path.rglob("*"))

    others = run(peer.methods.dsgd(), seed=[0, 1], steps=5)
    others[1].save(tmp_path / "seed-1")
    before = names()
    with pytest.raises(
        ValueError, match=r"seed-1 has another run, whose method is 'dsgd.*'gt-.*, or force=True$"
    ):
        traces.save(tmp_path)
    assert names() == before, "seed 0 is not written either"
    traces.save(tmp_path, force=True)
    assert peer.Traces.load(tmp_path)[1].steps == traces[1].steps
    with pytest.raises(
        ValueError, match=r"has runs of other seeds, seed-2, seed-3: give another folder"
    ):
        others.save(tmp_path, force=True)
    with pytest.raises(
        ValueError, match=r"seed-1 has a run itself: give another folder, or force=True$"
    ):
        others.save(tmp_path / "seed-1")


def test_traces_of_different_experiments_are_refused(traces):
    other = run(peer.methods.dsgd(), seed=9)
    with pytest.raises(
        ValueError,
        match=r"of different experiments: method is 'gt-hsgd.* with seed 9; give traces that",
    ):
        peer.Traces([traces[0], other])
    changed = replace(traces[1], identity=replace(traces[1].identity, values="changed"))
    with pytest.raises(
        ValueError, match="x_0 are not the same with seed 0 and with seed 1, whose facts are"
    ):
        peer.Traces([traces[0], changed])
    drawn = replace(changed.identity, facts=changed.identity.facts | {"data seed": 1})
    assert len(peer.Traces([traces[0], replace(changed, identity=drawn)])) == 2
    with pytest.raises(ValueError, match="there are 2 traces with seed 0: give one of each seed"):
        peer.Traces([traces[0], traces[0]])
    with pytest.raises(ValueError, match="no traces: give at least one"):
        peer.Traces([])
    with pytest.raises(ValueError, match="a int is no trace"):
        peer.Traces([3])
