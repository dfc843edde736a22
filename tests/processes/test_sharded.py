"""Nodes over devices: what crosses and when, and that devices or processes compute what one array does."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial

import jax
import numpy as np
import pytest
import shards
from ranks import group

import peerdescent as peer
from children import free_port
from peerdescent.engines import connect, sharded
from peerdescent.runs.schedule import Grid
from small import LONG, PROBLEMS, Spy, assert_close, compiled, count_compilations, small_logistic

GT_HSGD = peer.methods.gt_hsgd(alpha=0.3, beta=0.1)
LIMIT = 240
"""Seconds after which processes that do not end are killed."""


@contextmanager
def running(folder, nodes: int, devices: int, processes: int, kind: str):
    """Start them; what is yielded waits for their facts, process by process, and their iterates."""
    common = {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    }
    if processes > 1:
        common |= {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_NUM_PROCESSES": str(processes),
        }
    each = [common | {"JAX_PROCESS_ID": str(own)} for own in range(processes)]
    with group(processes, folder, shards.compute, folder, nodes, kind, variables=each) as started:

        def results():
            codes, said = started.wait(LIMIT)
            assert codes == [0] * processes, said
            facts = [json.loads((folder / f"{own}.json").read_text()) for own in range(processes)]
            return facts, [dict(np.load(folder / f"{own}.npz")) for own in range(processes)]

        yield results


@cache
def expected(nodes: int, kind: str):
    """What the engine `debug` computes, which compiles no methods.

    It agrees with `stacked` on every method by `test_contract`, and on every kind of fault by `test_faulty`.
    """
    cases = shards.cases(nodes, kind)
    return {
        name: shards.iterates(method, compiled(p), *rest, "debug")
        for name, method, p, *rest in cases
    }


@cache
def expected_facts(nodes: int):
    """What `stacked` says of the same runs."""
    problem, ring = small_logistic(nodes), peer.Network(peer.topology.ring(nodes))
    options = {"record": 5, "precision": 64}
    whole = peer.run(GT_HSGD, problem, ring, steps=40, **options)
    by_hand = peer.run(shards.by_hand(), problem, ring, steps=9, x0=np.arange(5.0), **options)
    return whole, by_hand


def check(facts, found, nodes: int, kind: str):
    assert list(found) == [name for name, *_ in shards.cases(nodes, kind)]
    if kind == "all":
        assert not LONG or {name.split()[0] for name in found} == set(peer.methods.METHODS)
    assert {name.split()[1] for name in found} >= set(shards.NETWORKS)
    for name, x in expected(nodes, kind).items():
        assert_close(found[name], x, 1e-12)
    whole, by_hand = expected_facts(nodes)
    for column, values in facts["table"].items():
        assert_close(values, whole.table[column], 1e-11)
    assert_close(facts["x_tilde"], whole.x_tilde)
    assert facts["resumed"], "an interrupted run did not go on as it would have"
    assert_close(facts["by hand"][0], by_hand.x)
    assert facts["by hand"][1] == int(by_hand.state.k)


@pytest.mark.parametrize("nodes", [8, pytest.param(16, marks=pytest.mark.long)])
def test_eight_devices(nodes, tmp_path):
    """One node a device, and two; on a ring, a directed graph and one that changes, against the engine `debug`."""
    kind = "all" if nodes == 8 else "some"
    with running(tmp_path, nodes, devices=8, processes=1, kind=kind) as results:
        expected(nodes, kind)  # meanwhile
        (facts,), (found,) = results()
    assert (facts["devices"], facts["processes"], facts["used"]) == (8, 1, 8)
    assert facts["held"] == [nodes // 8]
    if nodes == 8:
        assert facts["refused"] == [None, None]  # five or seven devices take five or seven nodes
    check(facts, found, nodes, kind)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_processes(processes, tmp_path):
    """Processes that talk over sockets, with four devices in all, two nodes each: all end with all that one array has.

    They run the programs of eight devices, each compiles them, so one method for each way to communicate will do.
    """
    with running(tmp_path, 8, devices=4 // processes, processes=processes, kind="few") as results:
        expected(8, "few")  # meanwhile
        facts, found = results()
    for own, (fact, iterates) in enumerate(zip(facts, found, strict=True)):
        assert (fact["devices"], fact["processes"], fact["number"], fact["used"]) == (
            4,
            processes,
            own,
            4,
        )
        assert fact["held"] == [2], "a process holds the data of nodes that are not its own"
        assert fact["seen"] == (6 if own == 0 else 0), "only the first process shows its progress"
        assert fact["refused"] == [
            f"{n} nodes on 4 devices of {processes} processes: every device holds as many nodes; take a multiple of 4 "
            "nodes, or start other processes"
            for n in (5, 7)
        ]
        check(fact, iterates, 8, "few")


NETWORKS = {
    "ring": peer.topology.ring,
    "exponential": peer.topology.exponential,
    "directed-exponential": peer.topology.directed_exponential,
    "star": peer.topology.star,
    "complete": peer.topology.complete,
    "erdos-renyi": partial(peer.topology.erdos_renyi, seed=0),
}


def needed(W, devices: int) -> dict[tuple[int, int], set[int]]:
    """The nodes whose vectors each pair of devices (source, target) must pass on."""
    k, pairs = W.shape[0] // devices, {}
    for i, j in np.argwhere(W):
        if i // k != j // k:
            pairs.setdefault((j // k, i // k), set()).add(j)
    return pairs


def busiest(pairs) -> int:
    return max(
        [*Counter(s for s, _ in pairs).values(), *Counter(t for _, t in pairs).values()], default=0
    )


@pytest.mark.parametrize("devices", [1, 2, 4, 12])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_vector_crosses_once_in_as_few_rounds_as_there_can_be(name, devices):
    """The rounds played by hand: each device hears what it needs, once, and the weighted sums are W x."""
    network = peer.Network(NETWORKS[name](12))
    (turn,) = sharded.permuted(network, devices, np.float64).turns
    k, pairs = 12 // devices, needed(network.W, devices)
    assert len(turn.rounds) == busiest(pairs)
    assert sorted(message for together in turn.rounds for message in together) == sorted(pairs)
    x = np.random.default_rng(0).normal(size=(12, 3))
    held = [[x[i] for i in range(device * k, device * k + k)] for device in range(devices)]
    for together, send in zip(turn.rounds, turn.sends, strict=True):
        sources, targets = zip(*together, strict=True)
        assert len(set(sources)) == len(sources)
        assert len(set(targets)) == len(targets)
        assert send.shape[2] == max(len(pairs[message]) for message in together)
        heard = dict.fromkeys(range(devices), np.zeros((send.shape[2], 3)))
        for source, target in together:
            sent = send[0, source, : len(pairs[source, target])] + source * k
            assert set(sent.tolist()) == pairs[source, target]
            heard[target] = x[send[0, source] + source * k]
        for device, vectors in heard.items():
            held[device].extend(vectors)
    rows = np.split(np.arange(12), devices)
    local = [jax.tree.map(lambda a, r=r: a[:, r], turn.local) for r in rows]
    mixed = [
        np.asarray(own.mix(0, np.stack(vectors))) for own, vectors in zip(local, held, strict=True)
    ]
    np.testing.assert_allclose(
        np.concatenate(mixed), network.W @ x, rtol=0, atol=1e-6
    )  # JAX here is in float32


@pytest.mark.parametrize(("nodes", "devices"), [(8, 8), (16, 8), (24, 4)])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_mix_is_one_ppermute_a_round(name, nodes, devices):
    network = peer.Network(NETWORKS[name](nodes))
    weights = sharded.permuted(network, devices, np.float32)
    own = jax.tree.map(lambda a: a[:, : a.shape[1] // devices], weights)
    x = np.zeros((nodes // devices, 3), np.float32)
    jaxpr = str(jax.make_jaxpr(lambda x: own.mix(0, x), axis_env=[(sharded.AXIS, devices)])(x))
    rounds = busiest(needed(network.W, devices))
    assert jaxpr.count("ppermute[") == rounds
    if nodes == devices:
        receives = (network.W != 0).sum(axis=1).max() - 1
        assert rounds == max(network.degree.max(), receives)


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_device_will_do(name):
    problem, network = PROBLEMS[name](), peer.Network(peer.topology.ring(6))
    options = {"steps": 12, "precision": 64, "record": 2, "x0": problem.start}
    one, other = (
        peer.run(GT_HSGD, problem, network, engine=engine, **options)
        for engine in ("stacked", "sharded")
    )
    assert_close(other.x, one.x)
    for column in (
        "loss",
        "grad_norm",
        "stationarity",
        "consensus",
        "gradients",
        "rounds",
        "bytes",
    ):
        assert_close(other.table[column], one.table[column], 1e-11)


def test_stationarity_can_be_left_out():
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    grid = Grid(2, stationarity=False)
    one, other = (
        peer.run(GT_HSGD, problem, network, steps=12, record=grid, engine=e).table
        for e in ("stacked", "sharded")
    )
    assert other["stationarity"].isna().all()
    assert_close(other["loss"], one["loss"], 1e-6)


def test_an_interrupted_run_is_resumed_from_its_folder(tmp_path):
    problem, network = small_logistic(), peer.Network(peer.topology.one_peer_exponential(6))
    options = {"steps": 30, "record": 6, "engine": "sharded"}
    whole = peer.run(GT_HSGD, problem, network, **options)
    part = peer.run(GT_HSGD, problem, network, progress=Spy(interrupt_at=10), **options)
    assert part.status == "interrupted"
    resumed = peer.run(GT_HSGD, problem, network, resume=part.save(tmp_path), **options)
    assert np.array_equal(resumed.x, whole.x)
    assert np.array_equal(resumed.x_tilde, whole.x_tilde)
    with pytest.raises(
        ValueError, match="cannot resume: engine is 'stacked' here and was 'sharded'"
    ):
        peer.run(GT_HSGD, problem, network, resume=part, **options | {"engine": "stacked"})


def test_a_second_run_compiles_nothing():
    problem, ring = small_logistic(samples=14), peer.Network(peer.topology.ring(6))
    options = {"record": 3, "engine": "sharded"}
    assert count_compilations(lambda: peer.run(GT_HSGD, problem, ring, steps=20, **options)) > 0
    other = peer.methods.gt_hsgd(alpha=0.1, beta=0.2)
    assert (
        count_compilations(lambda: peer.run(other, problem, ring, steps=33, seed=5, **options)) == 0
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"JAX_COORDINATOR_ADDRESS": "here"},
            "JAX_COORDINATOR_ADDRESS = 'here': must be host:port",
        ),
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_PROCESS_ID = '': must be a whole number where JAX_COORDINATOR_ADDRESS",
        ),
        (
            {"JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
            "JAX_NUM_PROCESSES = 'two': must be a whole number",
        ),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "JAX_PROCESS_ID = 2: must be below JAX_NUM_PROCESSES = 2",
        ),
        (
            {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
            r"process 0 of 1 cannot join .* before anything else",
        ),
    ],
)
def test_processes_that_cannot_join_are_told_why(variables, message, monkeypatch):
    """The last of them would be a good one if JAX had not started in this process already."""
    jax.devices()
    for name, value in {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        peer.run(
            GT_HSGD,
            small_logistic(),
            peer.Network(peer.topology.ring(6)),
            steps=2,
            engine="sharded",
        )
    assert connect("stacked") == 0, "an engine of one process asks nobody"
