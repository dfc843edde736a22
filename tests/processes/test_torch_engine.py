"""Engine `processes`: equality with other engines, bytes sent, lost processes, checkpoints and restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shards
from ranks import HERE, free_port, group, until

import peerdescent as peer
from conftest import assert_close, small_logistic
from peerdescent import experiment as config
from peerdescent.cli.main import main
from peerdescent.engines import connect
from peerdescent.engines.meeting import agree
from peerdescent.runs import checkpoint
from peerdescent.runs.loop import _facts

RANKS = 4
EXPERIMENT = [
    "--engine",
    "processes",
    "--rows",
    "400",
    "--nodes",
    "4",
    "--topology",
    "ring",
    "--precision",
    "64",
    "--strength",
    "0.01",
]


def command(out, *more, steps=300, record=30):
    length = ["--steps", str(steps), "--record", str(record)]
    return ["-m", "peerdescent", "run", "gt-hsgd", *EXPERIMENT, *length, "--out", str(out), *more]


def measured(folder):
    """The table of a trace without its times."""
    return pd.read_csv(folder / "trace.csv").drop(columns="seconds")


def reached(folder, step):
    """Whether every rank has a checkpoint of that step or a later one."""
    return all(
        any(s >= step for s, _ in checkpoint._named(folder / "checkpoint" / f"rank-{rank}")) for rank in range(RANKS)
    )


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The results of four processes, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    with group([[str(HERE / "ranks.py"), str(folder)]] * RANKS, folder) as started:
        codes, said = started.wait(240)
        assert codes == [0] * RANKS, said
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(RANKS)]


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_it_computes_what_the_others_do(computed, engine):
    names = []
    for name, method, problem, network in shards.cases(RANKS):
        expected = shards.iterates(method, problem, network, engine)
        for rank in computed:
            assert_close(rank[name], expected)
        names.append(name.split()[0])
    assert set(names) == set(peer.methods.METHODS)
    assert len(names) == 8 + 5 + 8


def test_all_processes_record_the_same(computed):
    for name, first in computed[0].items():
        if not name.startswith("bytes"):
            for other in computed[1:]:
                assert np.array_equal(first, other[name], equal_nan=True), name


def test_bytes_counted_are_bytes_sent(computed):
    for name, counted in computed[0].items():
        if name.startswith("bytes"):
            handed_over = np.mean([rank[name][0] for rank in computed])
            assert handed_over == counted[1] > 0, name


def test_a_process_needs_its_own_data_only(computed):
    first = next(iter(shards.cases(RANKS)))[0]
    for rank in computed:
        assert rank["held"].tolist() == [1, 1, 1]
        assert np.array_equal(rank["own"], rank[first])


def test_what_a_rank_loads_is_its_own_part():
    options = config.settle({}, {"nodes": 4, "partition": "dirichlet", "steps": 5, "rows": 300})
    whole, _ = config.build(options)
    for node in range(4):
        own, _ = config.build(options, node)
        size = int(whole.data.size[node])
        assert own.data.rows.shape == (1, size, 64)
        assert np.array_equal(own.data.rows[0], whole.data.rows[node, :size])
        assert (own.nodes, own.samples, own.held) == (4, whole.samples, node)
        with pytest.raises(ValueError, match=f"holds the data of node {node} alone"):
            own.loss(np.zeros(64))
        with pytest.raises(ValueError, match=f"holds the data of node {node}: it has none of node"):
            own.part((node + 1) % 4)


def listening(pid):
    """The addresses that a process listens on."""
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(fields[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run without interruption, started as a user does."""
    folder = tmp_path_factory.mktemp("unbroken")
    torchrun(command(folder / "run"), timeout=180)
    return folder / "run"


def torchrun(arguments, timeout, *options, meanwhile=lambda process: None):
    options = ["--nproc-per-node", str(RANKS), "--master-port", str(free_port()), *options]
    start = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        start, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            meanwhile(process)
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    return out, err


def test_it_writes_the_run_folder_of_the_other_engines(unbroken, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["run", "--config", str(unbroken / "config.toml"), "--engine", "stacked", "--out", str(tmp_path)])
    assert left.value.code == 0
    for path in tmp_path.rglob("*"):
        assert (unbroken / path.relative_to(tmp_path)).exists(), path
    mine, theirs = measured(unbroken), measured(tmp_path)
    assert list(mine.columns) == list(theirs.columns)
    assert np.allclose(mine.drop(columns="tracking"), theirs.drop(columns="tracking"), rtol=1e-9, atol=1e-15)
    assert json.loads((unbroken / "summary.json").read_text())["engine"] == "processes"
    assert_close(peer.Trace.load(unbroken).x, peer.Trace.load(tmp_path).x, 1e-10)


def test_a_killed_rank_is_named_and_the_run_goes_on_from_a_good_checkpoint(unbroken, tmp_path):
    out = tmp_path / "run"
    with group([command(out)] * RANKS, tmp_path) as started:
        until(lambda: reached(out, 100), 120)
        for process in started.processes:
            addresses = listening(process.pid)
            assert addresses
            assert set(addresses) <= LOOPBACK
        started.processes[2].kill()
        codes, said = started.wait(90)
    assert codes == [3, 3, -signal.SIGKILL, 3], said
    for neighbour in (1, 3):
        assert f"lost: rank {neighbour}: rank 2 is gone, in step" in said[neighbour]
        assert "Traceback" not in said[neighbour]
    assert "lost: rank 0: rank" in said[0]
    assert not (out / "summary.json").exists()
    # The newest checkpoint of rank 1 is truncated, and that of rank 3 has a flipped bit, so the one before is used.
    for rank, damage in ((1, lambda b: b[: len(b) // 2]), (3, lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:])):
        place = out / "checkpoint" / f"rank-{rank}"
        newest = max(checkpoint._named(place))[1]
        newest.write_bytes(damage(newest.read_bytes()))
        assert len(checkpoint.steps(place)) == checkpoint.KEPT - 1
    again = ["-m", "peerdescent", "run", "--resume", "--out", str(out)]
    with group([again] * RANKS, tmp_path) as started:
        codes, said = started.wait(120)
    assert codes == [0] * RANKS, said
    assert_bit_for_bit(out, unbroken)


def assert_bit_for_bit(folder, unbroken):
    pd.testing.assert_frame_equal(measured(folder), measured(unbroken), check_exact=True)
    mine, theirs = peer.Trace.load(folder), peer.Trace.load(unbroken)
    assert np.array_equal(mine.x_tilde, theirs.x_tilde)
    assert all(np.array_equal(a, b) for a, b in zip(mine.state, theirs.state, strict=True))


def test_torchrun_restarts_from_the_last_checkpoint(unbroken, tmp_path):
    out = tmp_path / "run"
    killed = []

    def kill(process):
        until(lambda: reached(out, 100), 120)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [pid for pid in children if b"peerdescent" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        killed.append(max(step for step, _ in checkpoint._named(out / "checkpoint" / "rank-0")))
        os.kill(int(workers[1]), signal.SIGKILL)

    torchrun(command(out), 240, "--max-restarts", "2", meanwhile=kill)
    assert killed[0] < 300
    assert_bit_for_bit(out, unbroken)


def test_a_silent_rank_is_named_within_the_time_limit(tmp_path):
    out = tmp_path / "run"
    with group([command(out, steps=200_000, record=2000)] * RANKS, tmp_path, timeout=8.0) as started:
        until(lambda: reached(out, 100), 120)
        os.kill(started.processes[2].pid, signal.SIGSTOP)
        codes, said = started.wait(40, but=(2,))
    assert codes == [3, 3, None, 3], said
    for neighbour in (1, 3):
        assert f"rank {neighbour}: rank 2 did not answer within 8 s, in step" in said[neighbour]


def test_ranks_of_different_runs_are_told_apart(tmp_path):
    commands = [command(tmp_path / "run"), command(tmp_path / "run", "--seed", "7", "--data-seed", "0")]
    commands = [[*words, "--nodes", "2"] for words in commands]
    with group(commands, tmp_path) as started:
        codes, said = started.wait(120)
    assert codes == [2, 2], said
    for line in said:
        assert "processes 0 and 1 are not of one run: seed is '0' in one, '7' in the other" in line
        assert "Traceback" not in line


def test_every_fact_counts():
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    trace = peer.run(peer.methods.dsgd(), problem, network, steps=5)
    mine = _facts(trace.identity, ("jax",), [0, 5], "abc")
    for name in ("version", "jax", "method", "problem", "network", "seed", "precision", "weights and x_0", "steps"):
        theirs = mine | {name: "another"}
        with pytest.raises(ValueError, match=f"processes 0 and 1 are not of one run: {name} is .* 'another'"):
            agree(mine, lambda rows, theirs=theirs: np.stack([rows, _rows(theirs)]))
    assert _facts(trace.identity, ("jax",), [0, 4, 5], "abc")["records"] != mine["records"]
    assert "values" not in mine


def _rows(told):
    from peerdescent.engines.meeting import _rows

    return _rows(told)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "engine processes runs one process per node, and there is none: start it with torchrun --nproc-per-node"),
        ({"RANK": "one"}, "RANK = 'one': must be a whole number; torchrun sets it"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "MASTER_ADDR": "h", "PEERDESCENT_TIMEOUT": "soon"},
            "PEERDESCENT_TIMEOUT = 'soon': must be a positive number",
        ),
    ],
)
def test_refusals(variables, message, monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PEERDESCENT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        main(["run", "dsgd", "--engine", "processes", "--nodes", "2", "--steps", "3"])
    assert left.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_without_pytorch_the_engine_says_so(monkeypatch):
    for name in [
        name for name in sys.modules if name in ("peerdescent.engines.processes", "peerdescent.engines.links")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="engine torch needs PyTorch, which is not installed: pip install torch"):
        connect("processes")


def test_a_network_of_another_size_is_refused(tmp_path):
    words = [
        "-m",
        "peerdescent",
        "run",
        "dsgd",
        "--engine",
        "processes",
        "--nodes",
        "3",
        "--steps",
        "5",
        "--rows",
        "90",
    ]
    with group([words] * 2, tmp_path) as started:
        codes, said = started.wait(120)
    assert codes == [2, 2], said
    assert "the network has 3 nodes and there are 2 processes, one a node: start torchrun with 3 processes" in said[0]
