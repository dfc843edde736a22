"""The loop: what it records and when, how it ends, what it compiles, and that it can be taken up again."""

from __future__ import annotations

import io
import json
import sys
import time
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

import children
import peerdescent as peer
from peerdescent.runs import progress
from peerdescent.runs.metrics import METRICS
from peerdescent.runs.schedule import Grid
from small import (
    Spy,
    assert_close,
    compilations,
    count_compilations,
    small_logistic,
    small_quadratic,
    small_streaming,
    some,
    states,
)

OPTIMISED = True  # one test measures the time of records
RING = peer.Network(peer.topology.ring(6))
GT_HSGD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1)


def test_metrics_are_those_of_the_mathematics():
    problem = small_logistic(strength=0.01)
    trace = peer.run(GT_HSGD, problem, RING, steps=20, precision=64, record=range(21))
    assert list(trace.table.columns) == list(METRICS)
    kept = states(GT_HSGD, problem, RING, 20)
    for t, row in trace.table.iterrows():
        x = kept[t - 1].x if t else np.zeros((6, 5))
        mean = x.mean(axis=0)
        assert row["step"] == t
        assert row["loss"] == pytest.approx(problem.loss(mean), rel=1e-12)
        assert row["grad_norm"] == pytest.approx(np.linalg.norm(problem.grad(mean)), rel=1e-11)
        assert row["stationarity"] == pytest.approx(
            np.mean([np.sum(problem.grad(xi) ** 2) for xi in x]), rel=1e-11
        )
        assert row["consensus"] == pytest.approx(
            np.mean(np.sum((x - mean) ** 2, axis=1)), rel=1e-11
        )
        if t:
            y, v = kept[t - 1].fusion
            assert row["tracking"] == pytest.approx(
                np.linalg.norm(y.mean(axis=0) - v.mean(axis=0)), abs=1e-15
            )
    assert np.isnan(trace.table["tracking"].iloc[0])
    assert_close(trace.x_mean, trace.x.mean(axis=0))


def test_tracking_error_is_seen_when_the_tracker_is_broken():
    """The column can be other than zero: a W whose columns do not sum to one loses the mean."""

    class Leaky:
        def mix(self, x):
            return 0.9 * x

    from peerdescent.methods.contract import State
    from peerdescent.methods.fusions import tracking
    from peerdescent.runs.metrics import _tracking, untracked

    _, memory = tracking(0.1).init(np.ones((3, 2)), np.ones((3, 2)), Leaky())
    drift = untracked(State(None, (), memory)).mean(axis=0)
    assert _tracking(SimpleNamespace(drift=drift)) == pytest.approx(0.1 * np.sqrt(2))
    assert untracked(State(None, (), ())) is None
    assert np.isnan(_tracking(SimpleNamespace(drift=None)))


def test_fusions_without_a_tracker_leave_the_column_empty():
    table = peer.run(peer.methods.dsgd(), small_quadratic(), RING, steps=3).table
    assert table["tracking"].isna().all()


def test_records_do_not_change_the_run():
    problem = small_logistic()
    runs = [
        peer.run(GT_HSGD, problem, RING, steps=300, record=record)
        for record in (1, 7, Grid(20, "log"), range(301), [3, 150])
    ]
    assert all(np.array_equal(runs[0].x, other.x) for other in runs)
    assert runs[2].table["step"].tolist()[:4] == [0, 1, 2, 3]


def test_long_intervals_are_cut_into_pieces_without_a_seam(monkeypatch):
    from peerdescent.engines import compiled, stacked

    problem = small_logistic()
    whole = peer.run(GT_HSGD, problem, RING, steps=100, precision=64, record=1)
    monkeypatch.setattr(compiled, "DRAWN_AHEAD", 7 * 6 * 4)  # 7 steps of 6 nodes' 4-byte indices
    assert stacked.Stacked(GT_HSGD, problem, RING, 0, np.float32).chunk == 7
    assert np.array_equal(
        peer.run(GT_HSGD, problem, RING, steps=100, precision=64, record=1).x, whole.x
    )


def test_samples_drawn_ahead_are_kept_between_intervals(monkeypatch):
    from peerdescent.engines import compiled

    drawn = []
    real = compiled._draw
    monkeypatch.setattr(compiled, "_draw", lambda *a: drawn.append(int(a[-1])) or real(*a))
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=2500, record=500)
    assert drawn == [0, 1024, 2048]
    assert trace.steps == 2500


def test_x0():
    problem = small_quadratic(noise=0.0)
    rng = np.random.default_rng(0)
    for x0 in (rng.normal(size=5), rng.normal(size=(6, 5))):
        trace = peer.run(peer.methods.dsgd(0.1), problem, RING, steps=1, x0=x0, precision=64)
        everywhere = np.broadcast_to(x0, (6, 5))
        assert_close(trace.x, RING.W @ everywhere - 0.1 * problem.local_grads(everywhere))
        assert trace.table["loss"].iloc[0] == pytest.approx(problem.loss(everywhere.mean(axis=0)))


def test_float32_is_float32_whatever_the_caller_has_enabled():
    problem = small_logistic()
    plain = peer.run(GT_HSGD, problem, RING, steps=20)
    assert plain.x.dtype == np.float32
    with jax.enable_x64(True):
        inside = peer.run(GT_HSGD, problem, RING, steps=20)
    assert inside.x.dtype == np.float32
    assert np.array_equal(plain.x, inside.x)
    double = peer.run(GT_HSGD, problem, RING, steps=20, precision=64)
    assert double.x.dtype == np.float64
    assert np.abs(double.x - plain.x).max() < 1e-5


def test_same_samples_for_all_methods():
    """Common random numbers: on pure noise, the first estimates of two methods with one seed agree."""
    problem = small_streaming()
    left = states(peer.methods.gt_dsgd(0.1), problem, RING, 1, seed=4)[0]
    right = states(peer.methods.gt_hsgd(0.1), problem, RING, 1, seed=4)[0]
    assert np.array_equal(left.x, right.x)


class Counted(NamedTuple):
    """A state made by hand, with a plain Python number in it."""

    x: object
    k: object


@pytest.mark.parametrize("name", some(peer.methods.METHODS, 20, "gt-hsgd", "choco-sgd"))
def test_a_second_run_with_other_numbers_compiles_nothing(name):
    problem, network = small_logistic(samples=12), RING
    build = peer.methods.METHODS[name].build
    method = build()
    others = {
        k: 2 * v if 2 * v <= method.declared[k].high else v / 2 for k, v in method.numbers.items()
    }
    first = count_compilations(lambda: peer.run(build(), problem, network, steps=30, record=3))
    assert first > 0, "the counter of compilations counts nothing"
    other = build(**others)

    def again():
        peer.run(other, problem, network, steps=30, record=3)
        peer.run(other, problem, network, steps=71, record=Grid(5, "log"), seed=9)
        peer.run(other, small_logistic(samples=12, strength=0.3), peer.Network(network.W), steps=12)

    assert count_compilations(again) == 0


def test_a_whole_number_as_step_size_compiles_nothing():
    problem = small_quadratic()
    peer.run(peer.methods.gt_dsgd(alpha=0.5), problem, RING, steps=5)
    assert (
        count_compilations(lambda: peer.run(peer.methods.gt_dsgd(alpha=1), problem, RING, steps=5))
        == 0
    )


def test_clock_stops_while_metrics_are_evaluated(monkeypatch):
    """Every evaluation moves the clock on by a day."""
    from peerdescent.engines.stacked import Stacked

    evaluate, now, days = Stacked.evaluate, time.perf_counter, []

    def slow(self, points):
        days.append(86_400)
        return evaluate(self, points)

    monkeypatch.setattr(Stacked, "evaluate", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now() + sum(days))
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=40, record=20)
    assert len(days) > 20
    assert (trace.table["seconds"].diff().dropna() >= 0).all()
    assert trace.table["seconds"].iloc[0] == 0
    assert 0 < trace.table["seconds"].iloc[-1] < 86_400


def test_compilation_is_not_in_the_seconds():
    """No program is compiled after the first record; the shapes here are used by no other test."""
    from types import SimpleNamespace

    problem, network = small_logistic(samples=13, features=7), RING
    by_hand = peer.Method(
        lambda x, net: Counted(x, 1), lambda s, net: Counted(net.mix(s.x), s.k + 1), "by-hand"
    )
    for method in (peer.methods.gt_hsgd(), peer.methods.gt_sarah(), by_hand):
        events = []
        told = SimpleNamespace(
            begin=lambda *_: None,
            end=lambda: None,
            update=lambda step, _, e=events: e.append(f"record {step}"),
        )
        with compilations(events):
            peer.run(method, problem, network, steps=40, record=4, progress=told)
        before, timed = events[: events.index("record 0")], events[events.index("record 0") :]
        ours = {f"jit({name})" for name in ("_start", "_draw", "_interval", "evaluate")}
        assert "jit(_interval)" in before
        assert not ours & set(
            timed
        )  # reading x_tilde is a little program of its own, outside the clock
        assert timed[-1] == "record 40"


def test_float32_losses_are_good_to_six_digits():
    data = peer.datasets.synthetic(40_000, 3, seed=0)
    for nodes in (1, 4):
        problem = peer.problems.logistic(data.partition(nodes), strength=0.0)
        network = peer.Network(peer.topology.complete(nodes))
        trace = peer.run(peer.methods.dsgd(alpha=0.5), problem, network, steps=20, record=2)
        assert trace.table["loss"].iloc[0] == pytest.approx(np.log(2), rel=1e-6)
        assert trace.table["loss"].iloc[-1] == pytest.approx(problem.loss(trace.x_mean), rel=1e-6)


def test_diverged_runs_end_with_a_status():
    problem = small_quadratic()
    trace = peer.run(
        peer.methods.gt_dsgd(alpha=50.0), problem, RING, steps=1000, x0=np.ones(5), record=100
    )
    assert trace.status is peer.Status.diverged
    assert trace.steps < 1000
    assert "loss" in trace.message
    first, last = trace.table["loss"].iloc[0], trace.table["loss"].iloc[-1]
    assert not last <= 1e3 * abs(first)
    assert (trace.table["loss"].iloc[:-1].abs() <= 1e3 * abs(first)).all()
    json.loads(json.dumps(trace.summary(), allow_nan=False))


def test_nan_is_divergence_and_debug_names_node_step_and_stage():
    import jax.numpy as jnp

    def root(params, batch):
        return jnp.mean(jnp.sqrt(batch * params[0]))

    data = np.ones((6, 4))
    data[3] = -1.0  # node 3 takes the root of a negative number
    problem = peer.problems.loss(root, np.ones(1), data)
    fast = peer.run(peer.methods.dsgd(), problem, RING, steps=10)
    assert fast.status == "diverged"
    slow = peer.run(peer.methods.dsgd(), problem, RING, steps=10, engine="debug")
    assert slow.status == "diverged"
    assert slow.message == "node 3, step 0, grad: the result is not finite"


def test_debug_diverges_without_warnings():
    trace = peer.run(
        peer.methods.gt_dsgd(alpha=1e6),
        small_quadratic(),
        RING,
        steps=100,
        x0=np.ones(5),
        engine="debug",
        record=1,
    )
    assert trace.status == "diverged"
    assert "not finite" in trace.message


@pytest.mark.parametrize(("rows", "where"), [(1, "node 2, step 0, grad"), (4, "node 2, evaluate")])
def test_debug_says_where_an_error_came_from(rows, where):
    armed = []

    def picky(params, batch):
        if armed and len(batch) == rows and float(batch.sum()) > 100:
            raise RuntimeError("too much")
        return (params**2).sum()

    data = np.ones((6, 4))
    data[2] = 1000.0
    problem = peer.problems.loss(picky, np.ones(1), data)
    armed.append(True)  # a loss that fails is refused before
    with pytest.raises(RuntimeError, match="too much") as caught:
        peer.run(peer.methods.dsgd(), problem, RING, steps=3, engine="debug", record=1)
    assert where in caught.value.__notes__


def test_progress_meter_is_told():
    spy = Spy()
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=20, record=4, progress=spy)
    assert (spy.label, spy.total) == ("gt-hsgd", 20)
    assert spy.seen == [
        (int(s), loss) for s, loss in zip(trace.table["step"], trace.table["loss"], strict=True)
    ]
    assert spy.ended


def test_progress_is_a_bar_on_a_terminal_and_silence_elsewhere(monkeypatch, capsys):
    assert isinstance(progress.choose(None), progress.Silent)
    assert isinstance(progress.choose(True), progress.Lines)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    trace = peer.run(GT_HSGD, small_logistic(), RING, steps=20, record=4)
    assert "gt-hsgd" in terminal.getvalue()
    assert f"loss {trace.table['loss'].iloc[-1]:.6g}" in terminal.getvalue()
    assert "left" in terminal.getvalue()


def test_importing_the_package_does_not_load_jax():
    code = (
        "import sys, peerdescent as peer; dir(peer); import peerdescent.experiment, peerdescent.cli.main;"
        "assert not {'jax', 'pandas', 'matplotlib', 'networkx'} & set(sys.modules);"
        "assert callable(peer.run); import peerdescent.runs.loop, peerdescent.sweeps.sweeping;"
        "assert callable(peer.run) and callable(peer.sweep) and callable(peer.tune)"
    )
    done = children.python("-c", code)
    assert done.returncode == 0, done.stderr


GOOD = {"steps": 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "steps = None, epochs = None: give exactly one of them"),
        ({"steps": 3, "epochs": 2}, "steps = 3, epochs = 2: give exactly one of them"),
        ({"steps": 0}, "steps = 0: must be a whole number of at least 1"),
        ({"steps": 2.5}, "steps = 2.5: must be a whole number"),
        ({"epochs": -1}, "epochs = -1: must be a number, positive"),
        ({"epochs": float("inf")}, "epochs = inf: must be a number, positive and finite"),
        ({"epochs": 3}, "quadratic has no epochs, since its samples never end: give steps"),
        ({**GOOD, "precision": 16}, "precision = 16: must be 32, 64 or 'tf32'"),
        ({**GOOD, "seed": -1}, "seed = -1: must be a whole number of at least 0"),
        ({**GOOD, "engine": "stakced"}, "unknown engine 'stakced': did you mean 'stacked'"),
        (
            {**GOOD, "x0": "a"},
            r"x0 = 'a' is no array of numbers: give one of shape \(5,\) or \(6, 5\)",
        ),
        ({**GOOD, "x0": np.zeros(4)}, r"x0 has shape \(4,\): must be \(5,\), or \(6, 5\)"),
        ({**GOOD, "x0": np.full(5, np.nan)}, "x0 has values that are not finite"),
        ({**GOOD, "record": 0}, "record = 0: must be a whole number of at least 1"),
        (
            {**GOOD, "record": "log"},
            "record = 'log': must be a number of points, a Grid, or a list of steps",
        ),
        (
            {**GOOD, "record": 2.5},
            "record = 2.5: must be a number of points, a Grid, or a list of steps",
        ),
        ({**GOOD, "seed": 1.5}, "seed = 1.5: must be a whole number"),
        (
            {**GOOD, "seeds": 3},
            r"seeds=3: run has seed= instead, where seed=3 is seed 3 alone, and seed=range\(3\)",
        ),
        ({"step": 5}, "unknown argument of run 'step': did you mean 'steps'"),
        ({"steps": True}, "steps = True: must be a whole number"),
        ({"epochs": "3"}, "epochs = '3': must be a number, positive and finite"),
        ({**GOOD, "record": [6]}, r"record has steps 6..6: must lie in 0..5"),
    ],
)
def test_bad_runs_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        peer.run(GT_HSGD, small_quadratic(), RING, **options)


def test_a_method_may_be_text_or_a_function():
    problem = small_quadratic()
    for given in ("gt-dsgd[alpha=0.1]", peer.methods.gt_dsgd):
        trace = peer.run(given, problem, RING, steps=5)
        assert trace.identity.method == str(peer.methods.gt_dsgd(alpha=0.1))
    assert np.array_equal(
        trace.x, peer.run(peer.methods.gt_dsgd(alpha=0.1), problem, RING, steps=5).x
    )
    with pytest.raises(ValueError, match="unknown method 'gt-dsg': did you mean 'gt-dsgd'"):
        peer.run("gt-dsg", problem, RING, steps=5)
    with pytest.raises(ValueError, match="method is a int: give a Method"):
        peer.run(3, problem, RING, steps=5)


def test_combinations_that_cannot_work_are_refused():
    problem = small_quadratic()
    with pytest.raises(
        ValueError, match="the problem has 6 nodes and the network 5: partition the data over 5"
    ):
        peer.run(GT_HSGD, problem, peer.Network(peer.topology.ring(5)), steps=2)
    with pytest.raises(
        ValueError,
        match="d2 needs a symmetric weight matrix; directed-exponential is not symmetric: use gt-dsgd",
    ):
        peer.run(
            peer.methods.d2(), problem, peer.Network(peer.topology.directed_exponential(6)), steps=2
        )
    bipartite = peer.Network(peer.topology.ring(6), weights="metropolis").W * 1.2 - 0.2 * np.eye(6)
    almost = peer.Network(bipartite)
    assert almost.smallest_eigenvalue < -1 / 3
    with pytest.raises(
        ValueError, match=r"d2 needs the smallest eigenvalue of W above -0.333; matrix has -0.6"
    ):
        peer.run(peer.methods.d2(), problem, almost, steps=2)
    for engine in ("stacked", "debug"):
        with pytest.raises(
            ValueError, match="gt-sarah takes exact local gradients, and streaming has none"
        ):
            peer.run(peer.methods.gt_sarah(), small_streaming(), RING, steps=2, engine=engine)


def test_sparse_networks_are_mixed_by_gathering():
    from peerdescent.engines.mixing import Dense, Gather
    from peerdescent.engines.stacked import Stacked

    n = 18
    problem, ring = small_quadratic(nodes=n), peer.Network(peer.topology.ring(n))
    assert isinstance(Stacked(GT_HSGD, problem, ring, 0, np.float32).weights, Gather)
    assert isinstance(
        Stacked(GT_HSGD, problem, peer.Network(peer.topology.complete(n)), 0, np.float32).weights,
        Dense,
    )
    for network in (ring, peer.Network(peer.topology.one_peer_exponential(n))):
        fast = states(GT_HSGD, problem, network, 6)[-1].x
        assert_close(states(GT_HSGD, problem, network, 6, engine="debug")[-1].x, fast)
