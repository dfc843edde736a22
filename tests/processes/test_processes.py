"""Engine `processes`: it computes what others do, counts what it sends, notices who is gone, and is resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shards
from ranks import adaptive, command, compute, group

import peerdescent as peer
from children import free_port, spawn, until
from peerdescent import experiment as config
from peerdescent.cli.main import main
from peerdescent.engines import connect
from peerdescent.engines.meeting import agree
from peerdescent.runs import checkpoint
from peerdescent.runs.loop import _facts
from small import LONG, assert_close, compiled, small_logistic

RANKS = 4


def measured(folder):
    """A trace without the time that it took, and without the simulated one that it does not have."""
    return pd.read_csv(folder / "trace.csv").drop(columns=["seconds", "clock"])


def reached(folder, step, ranks=RANKS):
    """Whether every rank has a checkpoint of that step or a later one."""
    places = [folder / "checkpoint" / f"rank-{rank}" for rank in range(ranks)]
    return all(any(s >= step for s, _ in checkpoint._named(place)) for place in places)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of what four processes computed and said."""
    folder = tmp_path_factory.mktemp("ranks")
    with group(RANKS, folder, compute, folder) as started:
        codes, said = started.wait(240)
        assert codes == [0] * RANKS, said
    return folder


@pytest.fixture(scope="module")
def computed(ran):
    """What they computed, rank by rank."""
    return [dict(np.load(ran / f"{rank}.npz")) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def told(ran):
    """The exit status and the output of their command lines, rank by rank."""
    return [json.loads((ran / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_it_computes_what_the_others_do(computed, engine):
    """`stacked` without faults, as in `test_sharded`."""
    names = []
    for name, method, problem, network, steps in shards.cases(RANKS):
        if engine == "debug" or network.is_known:
            expected = shards.iterates(method, compiled(problem), network, steps, engine)
            for rank in computed:
                assert_close(rank[name], expected)
            names.append(name)
    if LONG:
        assert {name.split()[0] for name in names} == set(peer.methods.METHODS)
        more = 6 + 5 * (engine == "debug")
        assert len(names) == len(peer.methods.METHODS) + more, (
            "five more networks, numbers, five with faults"
        )


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


def test_resumed_under_a_burst_bit_for_bit(computed):
    for rank in computed:
        assert np.array_equal(rank["resumed"], rank["whole"])


def test_tracking_errors_are_those_of_other_engines(computed):
    """With noise on links, by which trackers lose the mean."""
    case = next(each for each in shards.cases(RANKS) if each[0] == "gt-hsgd drop-noise")
    name, method, problem, network, steps = case
    options = {"steps": steps, "precision": 64, "record": 2}
    for engine in ("stacked", "debug"):
        table = peer.run(method, problem, network, engine=engine, **options).table.drop(
            columns=["seconds", "clock"]
        )
        expected, column = table["tracking"].to_numpy(), table.columns.get_loc("tracking")
        assert expected[-1] > 1e-3
        for rank in computed:
            assert_close(rank[f"table {name}"][1:, column], expected[1:])


def test_records_send_iterates_and_means(computed, told):
    """Not states, of which a method may have many vectors."""
    p, others = 5, RANKS - 1

    def mean(numbers):
        """Each process sums a part, the last of which may be padded."""
        return [["mean", 8 * others * -(-numbers // RANKS)]] * 2

    x, evaluation = ["gather", 8 * others * p], mean((RANKS + 1) * (p + 1))
    for rank in told:
        first, *later = rank["sent"]["record"]
        assert first == evaluation
        assert later == [[x, *evaluation]] * 4
        assert rank["sent by a tracker"]["record"] == [first, *[[x, *evaluation, *mean(p)]] * 4]
        for name in ("sent", "sent by a tracker"):
            assert len(rank[name]["advance"]) == 4
            assert all(between in ([], [x]) for between in rank[name]["advance"]), (
                "x for x_tilde, at most"
            )
            assert [] in rank[name]["advance"]


def test_an_interrupted_run_has_the_state_of_its_node(computed, told):
    for rank, (found, said) in enumerate(zip(computed, told, strict=True)):
        assert said["part"] == ["interrupted", 9, rank, [RANKS, 5], [5]]
        assert np.array_equal(found["resumed from a part"], found["whole"])
        assert np.array_equal(found["resumed from its folder"], found["whole"])
        assert (
            "process 0 is at step 9 and process 2 at step 5; give checkpoint="
            in said["other steps"]
        )
        assert (
            "process 1 was given the state of node 0 alone; give each process its own"
            in said["another's part"]
        )


def test_process_0_decides_where_seeds_stop(computed, told):
    """The callback is called in process 0 alone, and what goes wrong in it ends all of them."""
    _, method, problem, *_ = next(iter(shards.cases(RANKS)))
    faults = [peer.faults.burst(0.3, 0.4), peer.faults.drop(0.2)]
    network = peer.Network(peer.topology.ring(RANKS), faults=faults)
    alone = [
        peer.run(method, problem, network, steps=5, record=1, seed=seed, precision=64)
        for seed in (5, 6)
    ]
    for rank, (found, said) in enumerate(zip(computed, told, strict=True)):
        assert said["stopped"] == [["stopped", "the function given as stop, at step 5", 5]] * 2
        assert_close(found["seeds"], np.stack([trace.x for trace in alone]))
        assert said["calls"] == ([] if rank else [[5, 0], [5, 5], [6, 0], [6, 5]])
        broken = "ZeroDivisionError: division by zero"
        assert said["broken"] == (
            f"PeerLost: process 0 has ended, by an error: {broken}" if rank else broken
        )


def test_the_state_of_a_finished_run_has_the_numbers_of_all_nodes(computed):
    debug = peer.run(
        *adaptive(), steps=8, record=1, precision=64, engine="debug"
    ).state.estimator.of_m
    assert len(np.unique(debug)) > 1
    for rank in computed:
        assert_close(rank["adaptive"], debug)


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
def unbroken(ran, told):
    """The folder of a run from the beginning to the end."""
    assert [rank["unbroken"][0] for rank in told] == [0] * RANKS, told
    return ran / "run"


def test_it_writes_the_run_folder_of_the_other_engines(unbroken, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(
            [
                "run",
                "--config",
                str(unbroken / "config.toml"),
                "--engine",
                "stacked",
                "--out",
                str(tmp_path),
            ]
        )
    assert left.value.code == 0
    for path in tmp_path.rglob("*"):
        stored = path.name.startswith("step-")  # its name has a digest of its content
        assert stored or (unbroken / path.relative_to(tmp_path)).exists(), path
    mine, theirs = measured(unbroken), measured(tmp_path)
    assert list(mine.columns) == list(theirs.columns)
    assert np.allclose(
        mine.drop(columns="tracking"), theirs.drop(columns="tracking"), rtol=1e-9, atol=1e-15
    )
    assert json.loads((unbroken / "summary.json").read_text())["engine"] == "processes"
    assert_close(peer.Trace.load(unbroken).x, peer.Trace.load(tmp_path).x, 1e-10)


def test_a_killed_rank_is_named_and_the_run_goes_on_from_a_good_checkpoint(unbroken, tmp_path):
    out = tmp_path / "run"
    with group(RANKS, tmp_path, main, command(out)) as started:
        until(lambda: reached(out, 50), 120)
        for process in started.processes:
            addresses = listening(process.pid)
            assert addresses
            assert set(addresses) <= LOOPBACK
        started.processes[2].kill()
        codes, said = started.wait(90)
    assert codes == [3, 3, -signal.SIGKILL, 3], said
    assert_lost(said, 2, "is gone")
    assert not (out / "summary.json").exists()
    # The newest of rank 1 is cut short, and that of rank 3 has one bit turned: the one before them is used.
    for rank, damage in (
        (1, lambda b: b[: len(b) // 2]),
        (3, lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:]),
    ):
        place = out / "checkpoint" / f"rank-{rank}"
        newest = max(checkpoint._named(place))[1]
        newest.write_bytes(damage(newest.read_bytes()))
        assert len(checkpoint.steps(place)) == checkpoint.KEPT - 1
    with group(RANKS, tmp_path, main, ["run", "--resume", "--out", str(out)]) as started:
        codes, said = started.wait(120)
    assert codes == [0] * RANKS, said
    assert_bit_for_bit(out, unbroken)


def assert_lost(said, lost, how):
    """Every other rank names one: the lost one, or one that had left by then because of it."""
    named = {}
    for rank, text in enumerate(said):
        if rank != lost:
            found = re.search(rf"lost: rank {rank}: rank (\d) (is gone|{how}), in step", text)
            assert found, text
            assert "Traceback" not in text
            named[rank] = int(found[1]), found[2]
            assert found[2] == how or int(found[1]) != lost, text
    assert (lost, how) in named.values(), "the first to leave knows who was lost"


def assert_bit_for_bit(folder, unbroken):
    pd.testing.assert_frame_equal(measured(folder), measured(unbroken), check_exact=True)
    mine, theirs = peer.Trace.load(folder), peer.Trace.load(unbroken)
    assert np.array_equal(mine.x_tilde, theirs.x_tilde)
    assert all(np.array_equal(a, b) for a, b in zip(mine.state, theirs.state, strict=True))


@pytest.mark.long
def test_torchrun_restarts_from_the_last_checkpoint(tmp_path):
    """With two nodes, since `torchrun` starts whole programs, and all of them again."""
    out, unbroken, length = tmp_path / "run", tmp_path / "unbroken", {"steps": 900, "record": 90}
    with group(2, tmp_path, main, command(unbroken, "--nodes", "2", **length)) as started:
        assert started.wait(90)[0] == [0, 0]
    options = ["--nproc-per-node", "2", "--master-port", free_port(), "--max-restarts", "2"]
    words = command(out, "--nodes", "2", **length)
    start = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "peerdescent", *words]
    with spawn(start, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        until(lambda: reached(out, 50, 2), 120)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [
            pid for pid in children if b"peerdescent" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        killed = max(step for step, _ in checkpoint._named(out / "checkpoint" / "rank-0"))
        os.kill(int(workers[1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert killed < 900
    assert_bit_for_bit(out, unbroken)


def test_a_silent_rank_is_named_within_the_time_limit(tmp_path):
    out = tmp_path / "run"
    with group(
        RANKS, tmp_path, main, command(out, steps=200_000, record=2000), timeout=10.0
    ) as started:
        until(lambda: reached(out, 50), 120)
        os.kill(started.processes[2].pid, signal.SIGSTOP)
        codes, said = started.wait(90, but=(2,))
    assert codes == [3, 3, None, 3], said
    assert_lost(said, 2, "did not answer within 10 s")


def test_a_silent_listener_in_the_place_of_the_others_is_left_within_the_time_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as groups:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        host, _, port = address.partition(":")
        ways = {
            "processes": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port},
            "sharded": {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "1",
            },
        }
        started = []
        for engine, variables in ways.items():
            words, variables = (
                ["run", "dsgd", "--engine", engine],
                variables | {"PEERDESCENT_TIMEOUT": "1"},
            )
            started.append(
                groups.enter_context(
                    group(1, tmp_path / engine, main, words, variables=[variables])
                )
            )
        for own in started:
            codes, (said,) = own.wait(60)
            assert codes == [3], said
            assert f"could not meet the others within 1 s: {address} does not answer" in said
            assert "Traceback" not in said


def test_ranks_of_different_runs_are_told_apart(told):
    for rank in told:
        code, said = rank["another seed"]
        assert code == 2, said
        assert "processes 0 and 1 are not of one run: seed is '0' in one, '7' in the other" in said
        assert "Traceback" not in said
        for what in ("another strength", "another data seed", "other rows"):
            code, said = rank[what]
            assert code == 2, said
            assert "processes 0 and 1 are not of one run: the problem is '" in said


def test_a_network_of_another_size_is_refused(told):
    messages = [
        "the network has 3 nodes and there are 4 processes, one a node: start torchrun with 3 processes"
    ] * 3
    messages.append("node = 3: the data are divided over 3 nodes, 0 to 2; start 3 processes")
    for rank, message in zip(told, messages, strict=True):
        code, said = rank["three nodes"]
        assert code == 2, said
        assert message in said


def test_every_fact_counts():
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    trace = peer.run(peer.methods.dsgd(), problem, network, steps=5)
    mine = _facts(trace.identity, [0], ("jax",), [0, 5])
    for name in (
        "version",
        "jax",
        "method",
        "problem",
        "network",
        "seed",
        "precision",
        "the problem",
        "steps",
    ):
        theirs = mine | {name: "another"}
        with pytest.raises(
            ValueError, match=f"processes 0 and 1 are not of one run: {name} is .* 'another'"
        ):
            agree(mine, lambda rows, theirs=theirs: np.stack([rows, _rows(theirs)]))
    assert _facts(trace.identity, [0], ("jax",), [0, 4, 5])["records"] != mine["records"]
    for changed in ({"strength": 0.5}, {"regulariser": "l2"}):
        other = peer.run(peer.methods.dsgd(), small_logistic(**changed), network, steps=5)
        assert _facts(other.identity, [0], ("jax",), [0, 5])["the problem"] != mine["the problem"]
    assert "values" not in mine


def _rows(told):
    from peerdescent.engines.meeting import _rows

    return _rows(told)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {},
            "engine processes runs one process per node, and there is none: start it with torchrun --nproc-per-node",
        ),
        ({"RANK": "one"}, "RANK = 'one': must be a whole number; torchrun sets it"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_PORT": "1",
                "MASTER_ADDR": "h",
                "PEERDESCENT_TIMEOUT": "soon",
            },
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
        name
        for name in sys.modules
        if name in ("peerdescent.engines.processes", "peerdescent.engines.links")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ValueError, match="engine processes needs torch, which is not installed: pip install torch"
    ):
        connect("processes")
