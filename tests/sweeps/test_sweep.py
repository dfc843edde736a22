"""Sweeps: many configurations in one program equal single runs, for all pieces, seeds and interruptions."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines import compiled, fleet, program
from peerdescent.methods import METHODS, estimators, fusions, parse
from peerdescent.methods.estimators import BATCHES
from peerdescent.methods.parameters import declared
from peerdescent.sweeps import best, tuning_grid
from small import PROBLEMS, assert_close, compilations, small_logistic, small_quadratic, some

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
    return peer.run(
        METHODS[name].build(**parameters), problem, network, seed=row["seed"], **options
    )


@pytest.mark.parametrize("name", some(METHODS, 20, "gt-hsgd", "d-get", "gt-page"))
def test_configurations_equal_runs(name):
    problem, options = small_logistic(), {"epochs": 14, "precision": 64}
    table = peer.sweep(name, grid_of(name), problem, RING, at=[2, 4.5], **options)
    assert (table["status"] == "done").all()
    for row in table.to_dict("records"):
        trace = alone(name, row, problem, RING, record=1, **options)
        assert row["steps"] == trace.steps
        if (
            name != "gt-page"
        ):  # its gradients are left to coins, and the table has the expected ones
            assert row["epoch"] == trace.table["epoch"].iloc[-1]
        assert row["epoch"] <= 14
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)
        assert row["grad_norm"] == pytest.approx(trace.table["grad_norm"].iloc[-1], rel=1e-9)
        short = alone(name, row, problem, RING, record=1, epochs=4.5, precision=64)
        assert row["loss@4.5"] == pytest.approx(short.table["loss"].iloc[-1], rel=1e-12)
    assert table["loss"].nunique() == len(table), "every configuration has a result of its own"


@pytest.mark.parametrize(
    ("problem", "topology"),
    some([(name, kind) for name in PROBLEMS for kind in ("directed", "changing")], 3),
)
def test_all_problems_and_networks(problem, topology):
    problem = PROBLEMS[problem]()
    directed = peer.topology.directed_exponential(6)
    network = peer.Network(
        directed if topology == "directed" else [peer.topology.ring(6), directed]
    )
    table = peer.sweep(
        "d-get",
        {"alpha": [0.02, 0.1], "period": [3, 4]},
        problem,
        network,
        steps=9,
        precision=64,
        at=[5],
    )
    for row in table.to_dict("records"):
        method = peer.methods.d_get(alpha=row["alpha"], period=row["period"])
        trace = peer.run(method, problem, network, steps=9, precision=64, record=[5])
        assert trace.table["loss"].tolist()[1:] == pytest.approx(
            [row["loss@5"], row["loss"]], rel=1e-12
        )


@pytest.mark.parametrize(
    ("capacity", "seed"),
    some([(capacity, seed) for seed in (3, [0, 3, 4, 8, 9]) for capacity in (1, 5, 1000)], 2),
)
def test_pieces_and_seeds_change_nothing(capacity, seed, monkeypatch):
    problem = small_logistic()
    grid = {"alpha": [0.1, 0.2, 0.4], "period": [2, 5], "batch": [1, 2]}
    monkeypatch.setattr(fleet.Fleet, "_capacity", lambda *_: capacity)
    table = peer.sweep("d-get", grid, problem, RING, epochs=5, seed=seed, precision=64)
    assert len(table) == 12 * np.size(seed)
    for row in table.to_dict("records")[:: len(table) // 6]:
        method = peer.methods.d_get(row["alpha"], row["period"], row["batch"])
        trace = peer.run(method, problem, RING, epochs=5, seed=row["seed"], precision=64, record=1)
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


def test_pieces_are_even_and_hold_everyone_once():
    method = peer.methods.gt_hsgd()
    for count, seeds, capacity, workers in [
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
        members = [
            fleet.Member(method.replace(alpha=0.1 + k), s, (5,))
            for k in range(count)
            for s in range(seeds)
        ]
        ship = fleet.Fleet(members, small_logistic(), RING, np.zeros((6, 5)), np.float32)
        ship._capacity = lambda *_, capacity=capacity: capacity
        pieces = ship.pieces(workers)
        assert sorted(k for piece in pieces for k in piece.ravel()) == list(range(count * seeds))
        assert all(piece.size <= capacity for piece in pieces)
        assert len(pieces) >= min(workers, count)
        assert len(pieces) <= 2 * max(workers, seeds * -(-count // capacity)), (
            "no smaller than they need be"
        )
        assert all(len(piece) == 1 for piece in pieces), "on a CPU a piece has one seed"


def test_seeds_that_share_a_piece_as_on_a_gpu_change_nothing():
    method, problem = peer.methods.d_get(period=3), small_logistic()
    members = [
        fleet.Member(method.replace(alpha=a), seed, (4, 9))
        for seed in (0, 1)
        for a in (0.1, 0.2, 0.3)
    ]
    with jax.enable_x64():
        ship = fleet.Fleet(members, problem, RING, np.zeros((6, 5)), np.float64)

        def means(pieces):
            seen = (one for piece in pieces for one in ship.follow(piece, np.ones(6, dtype=bool)))
            return {
                (k, m): x
                for one in seen
                for k, m, x in zip(one.member, one.mark, one.x, strict=True)
            }

        apart, together = means(ship.pieces()), means([np.arange(6).reshape(2, 3)])
    assert len(apart) == len(together) == 12
    for key, x in together.items():
        assert_close(x, apart[key])


def test_batches_of_the_first_iteration_alone_compile_no_further_steps():
    compiled, problem = [], small_logistic()
    with compilations(compiled):
        table = peer.sweep(
            "gt-hsgd",
            {"batch": [3], "initial_batch": [3, 5, 7]},
            problem,
            RING,
            steps=20,
            precision=64,
        )
    assert compiled.count("jit(_interval)") == 1
    for row in table.to_dict("records"):
        method = peer.methods.gt_hsgd(batch=3, initial_batch=row["initial_batch"])
        trace = peer.run(method, problem, RING, steps=20, precision=64)
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


def test_longer_configurations_share_a_piece_with_their_like():
    periods = [1, 2, 50, 60]
    members = [fleet.Member(peer.methods.d_get(period=q), 0, (q,)) for q in [50, 1, 60, 2]]
    ship = fleet.Fleet(members, small_logistic(), RING, np.zeros((6, 5)), np.float32)
    ship._capacity = lambda *_: 2
    assert [[members[k].marks[0] for k in piece[0]] for piece in ship.pieces()] == [
        periods[2:],
        periods[:2],
    ]


def test_what_diverges_is_frozen_and_disturbs_nobody():
    problem = small_quadratic()
    sane = peer.sweep(
        "gt-hsgd", {"alpha": [0.1, 0.2]}, problem, RING, steps=400, precision=64, at=[100, 200]
    )
    wild = peer.sweep(
        "gt-hsgd",
        {"alpha": [0.1, 1e3, 0.2, 30]},
        problem,
        RING,
        steps=400,
        precision=64,
        at=[100, 200],
    )
    assert wild["status"].tolist() == ["done", "diverged", "done", "diverged"]
    kept = wild[wild["status"] == "done"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, sane, rtol=1e-12)
    lost = wild.iloc[1]
    assert lost["steps"] == 100, "where it was first seen to have diverged"
    assert not lost["loss@100"] < 1e3 * sane["loss"].abs().max()
    assert np.isnan(lost["loss@200"])
    trace = peer.run(
        peer.methods.gt_hsgd(alpha=30), problem, RING, steps=400, precision=64, record=[100, 200]
    )
    assert (trace.status, trace.steps) == ("diverged", 100)
    assert best(wild) == best(sane)


def test_all_diverged():
    table = peer.sweep(
        "dsgd", {"alpha": [1e4, 1e5]}, small_quadratic(), RING, steps=10_000, at=[50]
    )
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
    monkeypatch.setattr(
        importlib.import_module("peerdescent.sweeps.sweeping"), "cores", lambda: 1
    )  # one piece
    problem, periods, steps = small_logistic(), [2, 3, 5, 7, 11, 13, 17, 50], 31
    oracle = Counted(problem.oracle, large=17)
    counted = peer.problems.Problem("counted", oracle, problem.data, 6, 5, problem.sizes)
    grid = {"alpha": [0.1], "period": periods, "batch": [1], "large_batch": [17]}
    table = peer.sweep("d-get", grid, counted, RING, steps=steps)
    jax.effects_barrier()
    due = [sum(t % q == 0 for q in periods) for t in range(1, steps)]
    blocks = sum(-(-d // together) * together for d in due)
    assert oracle.count == 6 * (len(periods) + blocks), (
        "nodes x (the first batch of each, then those that are due)"
    )
    assert (table["status"] == "done").all()


def test_samples_are_common_to_all_configurations():
    table = peer.sweep(
        "gt-dsgd",
        {"alpha": [0.1, 0.1 + 1e-9], "batch": [3]},
        small_logistic(),
        RING,
        steps=50,
        precision=64,
    )
    assert table["loss"].iloc[0] == pytest.approx(table["loss"].iloc[1], rel=1e-7)
    seeds = peer.sweep(
        "gt-dsgd", {"alpha": [0.1], "batch": [3]}, small_logistic(), RING, steps=50, seed=[0, 1]
    )
    assert seeds["loss"].iloc[0] != pytest.approx(seeds["loss"].iloc[1], rel=1e-5)


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
    """The matrix products in a sweep's program, when the caller's default precision is lower."""
    seen = []
    real = compiled._advance.lower

    def spied(*a):
        seen.append(real(*a).as_text())
        return compiled._advance_small(*a)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_advance", spied)
        peer.sweep("gt-hsgd", {"alpha": [0.1, 0.2], "batch": [8]}, small_logistic(), RING, steps=9)
    return "\n".join(line for text in seen for line in text.splitlines() if "dot_general" in line)


def test_other_ways_to_name_a_method():
    problem = small_logistic()
    by_name = peer.sweep("hybrid*exact-diffusion", {"alpha": [0.1, 0.2]}, problem, RING, steps=9)

    def build(alpha):
        return peer.compose(peer.estimators.hybrid(), peer.fusions.exact_diffusion(alpha))

    pd.testing.assert_frame_equal(
        by_name, peer.sweep(build, {"alpha": [0.1, 0.2]}, problem, RING, steps=9)
    )


def test_numpy_integers_have_budgets_of_their_own():
    def build(q):
        return peer.methods.d_get(0.1, np.int64(q), 1, 50)

    table = peer.sweep(build, {"q": [1, 1000]}, small_logistic(), RING, epochs=20)
    assert table["steps"].tolist() == [4, 86]


def test_losses_at_close_steps_have_columns_of_their_own():
    tiny, pair = small_quadratic(nodes=2, p=1), peer.Network(peer.topology.complete(2))
    table = peer.sweep("dsgd", {}, tiny, pair, steps=1_000_003, at=[1_000_001, 1_000_002])
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
    """Takes a gradient in one branch of an `every` and does not use it."""

    def step(self, x, memory, net):
        def then():
            net.grad(x, net.sample(9))
            return 2 * x

        v = net.every(3, then, lambda: x)
        return v + net.grad(x, net.sample(9)), ()


def test_a_gradient_that_is_asked_for_and_dropped():
    def build(alpha):
        return peer.compose(dropping(), peer.fusions.tracking(alpha))

    table = peer.sweep(
        build, {"alpha": [0.01, 0.02]}, small_logistic(), RING, steps=9, precision=64
    )
    trace = peer.run(build(0.02), small_logistic(), RING, steps=9, precision=64)
    assert table["loss"].iloc[1] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-12)


def test_the_papers_grid():
    steps, betas = (
        declared(kind)[name].tuned
        for kind, name in ((fusions.tracking, "alpha"), (estimators.hybrid, "beta"))
    )
    assert (
        len(tuning_grid("d-get", 2442))
        == len(tuning_grid("d-spider-sfo", 2442))
        == 10 * 10 * 39 * len(steps)
    )
    assert len(tuning_grid("gt-dsgd", 2442)) == 10 * len(steps)
    strict = tuning_grid("gt-hsgd", 2442, batch=1)
    assert (
        len(tuning_grid("gt-hsgd", 2442)) == 10 * len(strict) == 10 * 10 * len(betas) * len(steps)
    )
    assert {c["batch"] for c in strict} == {1}
    assert {c["initial_batch"] for c in strict} == set(BATCHES)
    assert (min(steps), max(steps), min(betas), max(betas)) == (2**-6, 2**4, 1e-4, 0.7)
    periods = [c["period"] for c in tuning_grid("d-get", 2000, alpha=1, batch=1, large_batch=1)]
    assert periods[:2] == [100, 105]
    assert periods[18:22] == [1000, 2000, 4000, 6000]
    assert (len(periods), periods[-1]) == (39, 40_000)
    assert min(c["period"] for c in tuning_grid("d-get", 2000, batch=1024)) == 1


def test_every_method_has_a_grid():
    for name in [*METHODS, "hybrid*exact-diffusion"]:
        grid = tuning_grid(name, 100)
        assert len(grid) > 1
        for one in grid[:: len(grid) // 3]:
            parse(f"{name}[{','.join(f'{k}={v}' for k, v in one.items())}]")
    with pytest.raises(ValueError, match="unknown parameter of dsgd 'beta'"):
        tuning_grid("dsgd", 100, beta=0.1)
    with pytest.raises(
        ValueError, match="periods are tuned as parts of an epoch, and the problem has none"
    ):
        tuning_grid("d-get", None)


@pytest.mark.parametrize(
    ("name", "given"), [("dsgd", None), ("gt-svrg", "period"), ("gt-page", "probability")]
)
def test_grids_on_a_stream_refuse_periods_with_a_remedy(name, given):
    """Whatever the remedy names may be given, and is then no longer a part of an epoch."""
    if given is None:
        assert tuning_grid(name, None) == tuning_grid(name, 100)
        return
    with pytest.raises(ValueError, match=f"the problem has none: give a {given}"):
        tuning_grid(name, None)
    assert {one[given] for one in tuning_grid(name, None, **{given: 1})} == {1}


def test_directions_of_unit_size_have_small_steps():
    """Adam moves every entry by alpha; the best steps on a9a are 0.01 to 0.1, where others have 1 to 10."""
    for name in ("d-adam", "gt-adam", "gt-nsgdm", "adam*primal-dual", "hybrid*adaptive-tracking"):
        steps = {one[parse(name).step_size] for one in tuning_grid(name, 100)}
        assert min(steps) < 0.01
        assert max(steps) <= 1
    assert max(one["alpha"] for one in tuning_grid("dsgdm", 100)) == 16


def test_a_selector_may_fix_some_parameters():
    found = peer.sweep("gt-dsgd[batch=4]", {"alpha": [0.1, 0.2]}, small_logistic(), RING, steps=5)
    assert found["method"].tolist() == [
        str(peer.methods.gt_dsgd(alpha=a, batch=4)) for a in (0.1, 0.2)
    ]
    with pytest.raises(ValueError, match=r"batch is in the grid and fixed by gt-dsgd\[batch=4\]"):
        peer.sweep("gt-dsgd[batch=4]", {"batch": [1, 2]}, small_logistic(), RING, steps=5)


def test_a_seed_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="seed 0 is given twice: leave one out"):
        peer.sweep("dsgd", {"alpha": [0.1]}, small_logistic(), RING, steps=5, seed=[0, 1, 0])


def test_a_method_is_swept_over_what_the_grid_replaces():
    method = peer.compose(
        peer.estimators.momentum(rho=0.5, batch=2), peer.fusions.tracking(alpha=0.1)
    )
    grid, options = {"alpha": [0.1, 0.4]}, {"steps": 20, "progress": False}
    found = peer.sweep(method, grid, small_logistic(), RING, **options)
    named = peer.sweep(
        "momentum*tracking[rho=0.5,batch=2]", grid, small_logistic(), RING, **options
    )
    assert found["loss"].tolist() == named["loss"].tolist()
    assert found["method"].tolist() == named["method"].tolist()
    with pytest.raises(
        ValueError, match=r"unknown parameter of momentum\*tracking 'alfa': did you mean 'alpha'"
    ):
        peer.sweep(method, {"alfa": [1]}, small_logistic(), RING, **options)
    with pytest.raises(ValueError, match="has all its hyperparameters: give a name, a selector"):
        peer.tune(method, small_logistic(), RING, grid=grid)
