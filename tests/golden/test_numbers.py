"""Numbers that never change, whatever the package looks like inside: the stored ones are those of naive loops.

Every method runs on each of its networks with two of the four engines. `record.py` says where the numbers come from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cases
import numpy as np
import pytest

import children
import peerdescent as peer
from small import assert_close

STORED = cases.numbers()
BOOKS = ["gradients", "rounds", "bytes"]
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", cases.METHODS)
def test_iterates_and_books(name):
    for _, network, engine in (
        case for case in cases.spread("stacked", "debug") if case[0] == name
    ):
        trace, stored = cases.run(name, network, engine=engine), STORED[f"{name} {network}"]
        assert_close(trace.x, stored["x"], 1e-13)
        assert trace.table[BOOKS].iloc[-1].tolist() == [stored[column] for column in BOOKS]


def test_four_processes(tmp_path):
    """Engine `processes`, the PyTorch optimizer, and engine `sharded` over four devices of the first process."""
    paths = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    options = ["--standalone", "--nproc-per-node", str(cases.NODES)]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *options,
        HERE / "worker.py",
        tmp_path,
    ]
    ended = children.run(
        command,
        240,
        env=os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    seen = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(cases.NODES)]
    for name, network, engine in cases.spread("processes", "sharded", None):
        stored, key = STORED[f"{name} {network}"], f"{name} {network} {engine}"
        assert_close(seen[0][key], stored["x"], 1e-13)
        assert seen[0][f"books {key}"].tolist() == [stored[column] for column in BOOKS]
    for name in cases.TRAINED:
        assert_close([one[f"torch {name}"] for one in seen], STORED[f"torch {name}"], 1e-13)


def ring(**options):
    """The problem, the network and the length of most runs here."""
    return {
        "problem": cases.problem(), "network": cases.NETWORKS["ring"], "steps": cases.STEPS, "x0": cases.START,
        "precision": 64, "progress": False, **options,
    }  # fmt: skip


def d_get(**numbers):
    return cases.method("d-get").replace(**numbers)


def test_a_sweep_whose_configurations_differ_in_their_periods():
    table = peer.sweep(d_get, cases.PERIODS, **ring(seed=cases.SEED))
    assert_close(table["loss"], [STORED[f"sweep {row}"] for row in cases.PERIODS], 1e-13)


def test_tuning_over_a_grid_is_a_sweep_whose_best_is_run_with_other_seeds():
    found = peer.tune(d_get, grid=cases.PERIODS, seed=cases.SEED, fresh=[0], **ring())
    losses = [STORED[f"sweep {row}"] for row in cases.PERIODS]
    assert_close(found.table["loss"], losses, 1e-13)
    assert (
        found.best == found.table.loc[found.table["score"].idxmin(), ["alpha", "period"]].to_dict()
    )
    assert found.fresh["seed"].tolist() == [0]


def test_a_comparison_of_methods_whose_parameters_are_given():
    methods = {name: cases.method(name) for name in cases.COMPARED}
    found = peer.compare(methods, seed=list(cases.SEEDS), **ring())
    for name in cases.COMPARED:
        losses = STORED[f"compare {name}"]
        assert_close(
            [found[name].of(seed).table["loss"].iloc[-1] for seed in cases.SEEDS], losses, 1e-13
        )
    assert_close(
        found.table["loss"], [np.mean(STORED[f"compare {name}"]) for name in cases.COMPARED], 1e-13
    )


@pytest.mark.parametrize("name", ["gt-hsgd", "gt-page", "gt-adam"])
def test_a_run_that_was_cut_twice(name):
    network = "faults"
    trace = None
    for steps in (7, 19, cases.STEPS):
        trace = cases.run(name, network, steps=steps, record=[steps], resume=trace)
    stored = STORED[f"{name} {network}"]
    assert_close(trace.x, stored["x"], 1e-13)
    assert trace.table[BOOKS].iloc[-1].tolist() == [stored[column] for column in BOOKS]


def test_a_stop_rule_and_the_order_of_callbacks():
    whole = cases.run("gt-hsgd", "ring", record=range(1, cases.STEPS + 1)).table
    level = 0.56
    first = int(whole.loc[whole["loss"] <= level, "step"].iloc[0])
    assert 1 < first < cases.STEPS
    seen = []
    trace = cases.run(
        "gt-hsgd", "ring", record=range(1, cases.STEPS + 1), stop=peer.stop.loss(level),
        callback=lambda trace: seen.append(int(trace.table["step"].iloc[-1])),
    )  # fmt: skip
    assert (trace.status, trace.table["step"].iloc[-1]) == (peer.Status.stopped, first)
    assert trace.message.endswith(f"{level} at step {first}")
    assert seen == list(range(first + 1))


def test_the_clock():
    """A node of the ring sends 40 bytes to each neighbour twice an iteration, and waits for theirs."""
    clock = peer.clock(compute=1e-3, latency=1e-2, bandwidth=1e6)
    trace = cases.run("gt-dsgd", "ring", clock=clock)
    assert_close(trace.table["clock"].iloc[-1], cases.STEPS * (2 * 1e-3 + 2 * (1e-2 + 40 / 1e6)))
