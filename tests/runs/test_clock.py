"""The clock: simulated seconds equal those of a discrete-event simulation, and are a column like any other."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.cli.main import main
from peerdescent.methods.contract import State
from peerdescent.networks.rounds import EVER
from peerdescent.runs.clocks import CLOCKS, read
from peerdescent.runs.hand import PURPOSE
from peerdescent.threefry import source
from small import small_logistic, small_quadratic, some

N, SEED, STEPS = 6, 5, 40
PROBLEM = small_logistic(N)
P = PROBLEM.dimension
RING, TORUS = peer.topology.ring(N), peer.topology.exponential(N)
DSGD = peer.methods.dsgd(batch=3)


def simulate(network, work, rounds, pace, delay, overlap, steps=STEPS, seed=SEED):
    """When the last node has finished iterations 0, ..., steps - 1: message by message, with a heap of events.

    `work(t)` are the gradients of an iteration, `rounds(t)` the numbers of its rounds, `pace(t)` (n,) seconds a
    gradient, and `delay(source, target)` the seconds of a message.
    """
    links, n = network.links, network.n
    awake, messages = [], defaultdict(list)  # (iteration, round, source): targets that hear of it
    wanted = defaultdict(int)  # (iteration, round, target): messages that it waits for
    memory = links.begin(np, seed)
    for t in range(steps):
        memory = links.later(np, seed, t, memory) if t else memory
        happens = links.at(np, seed, t, memory)
        awake.append(np.ones(n, bool) if happens.awake is None else happens.awake)
        for number in rounds(t):
            arrived = happens.weights(number)[1]
            for link, (i, j) in enumerate(links.ends.tolist()):
                for sender, target, weight in ((i, j, arrived[link, 0]), (j, i, arrived[link, 1])):
                    if weight > 0:
                        messages[t, number, sender].append(target)
                        wanted[t, number, target] += 1
    order = itertools.count()
    events = [(0.0, next(order), "begin", node, 0) for node in range(n)]
    inbox, inside, left = defaultdict(int), {}, {}
    finished = np.zeros((steps, n))

    def enter(now, node, t, place):
        numbers = rounds(t)
        if place == len(numbers):
            heapq.heappush(events, (now, next(order), "part", node, t))
            return
        inside[node] = t, place
        for target in messages[t, numbers[place], node]:
            heapq.heappush(
                events,
                (now + delay(node, target), next(order), "message", target, (t, numbers[place])),
            )
        leave(now, node)

    def leave(now, node):
        t, place = inside[node]
        key = (t, rounds(t)[place], node)
        if inbox[key] == wanted[key]:
            inside[node] = None
            enter(now, node, t, place + 1)

    while events:
        now, _, what, node, about = heapq.heappop(events)
        if what == "message":
            inbox[(*about, node)] += 1
            if (
                inside.get(node)
                and (inside[node][0], rounds(inside[node][0])[inside[node][1]]) == about
            ):
                leave(now, node)
            continue
        t = about
        if what == "begin" and t < steps:
            if not awake[t][node]:
                finished[t, node] = now
                heapq.heappush(events, (now, next(order), "begin", node, t + 1))
                continue
            left[node] = 2
            done = now + work(t) * pace(t)[node]
            heapq.heappush(events, (done, next(order), "part" if overlap else "worked", node, t))
            if overlap:
                enter(now, node, t, 0)
        elif what == "worked":
            left[node] = 1
            enter(now, node, t, 0)
        elif what == "part":
            left[node] -= 1
            if left[node] == 0:
                finished[t, node] = now
                heapq.heappush(events, (now, next(order), "begin", node, t + 1))
    return finished.max(axis=1)


DIGRAPH = peer.topology.directed_exponential(N)
DIGRAPH.remove_edge(0, 1)
FAULTS = peer.faults
NETWORKS = {
    "ideal": peer.Network(TORUS),
    "directed": peer.Network(peer.topology.directed_exponential(N)),
    "sequence": peer.Network(peer.topology.one_peer_exponential(N)),
    "drop": peer.Network(TORUS, faults=[FAULTS.drop(0.4)]),
    "one way": peer.Network(TORUS, faults=[FAULTS.drop(0.4, one_way=True)]),
    "inactive": peer.Network(TORUS, faults=[FAULTS.inactive(0.4)]),
    "burst": peer.Network(RING, faults=[FAULTS.burst(0.3, 0.3)]),
    "all": peer.Network(
        TORUS, faults=[FAULTS.burst(0.2, 0.4), FAULTS.inactive(0.2), FAULTS.drop(0.2)]
    ),
    "matching": peer.Network(peer.topology.random_matching(N)),
    "regular, lossy": peer.Network(
        peer.topology.random_regular(N, 3),
        faults=[FAULTS.drop(0.3, one_way=True), FAULTS.inactive(0.2)],
    ),
    "matching, drop": peer.Network(peer.topology.random_matching(N), faults=[FAULTS.drop(0.3)]),
    "rounds": peer.Network(RING, rounds=3),
    "accelerated, drop": peer.Network(RING, rounds=2, accelerate=True, faults=[FAULTS.drop(0.3)]),
}
PUSHED = {
    "push-pull": peer.Network(DIGRAPH, weights="push-pull"),
    "push-pull, drop": peer.Network(DIGRAPH, weights="push-pull", faults=[FAULTS.drop(0.3)]),
}
# name: method, gradients of iteration t, mixes of iteration t
METHODS = {
    "dsgd": (DSGD, lambda t: 3, lambda t: [0]),
    "gt-hsgd": (
        peer.methods.gt_hsgd(batch=2, initial_batch=7),
        lambda t: 4 if t else 7,
        lambda t: [0, 1],
    ),
    "d-get": (
        peer.methods.d_get(batch=2, period=4, large_batch=9),
        lambda t: 4 if t % 4 else 9,
        lambda t: [64, 65] if t else [0, 1],
    ),
}
SLOW = [0.3, 1.0, 0.2, 0.5, 2.5, 0.4]
RANDOM = np.random.default_rng(0).uniform(0.1, 2.0, size=(2, N, N))


def normals(draw, n):
    """Box and Muller, once more."""
    half = (n + 1) // 2
    u = (draw.words(2 * half).astype(float) + 0.5) / 2**32
    radius, angle = np.sqrt(-2 * np.log(u[:half])), 2 * math.pi * u[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]


def drawn(t):
    return source(np, SEED, t, PURPOSE, EVER)


# name: arguments of the clock, seconds a gradient of iteration t, seconds of a message
CLOCKED = {
    "unequal": (
        {"compute": SLOW, "latency": RANDOM[0], "bandwidth": 30 * RANDOM[1]},
        lambda t: SLOW,
        lambda i, j: RANDOM[0, j, i] + 4 * P / (30 * RANDOM[1, j, i]),
    ),
    "exponential": (
        {"compute": peer.clocks.exponential(0.3), "latency": 0.7},
        lambda t: -0.3 * np.log((drawn(t).words(N).astype(float) + 0.5) / 2**32),
        lambda i, j: 0.7,
    ),
    "lognormal": (
        {"compute": peer.clocks.lognormal(SLOW, 0.8), "bandwidth": 11.0},
        lambda t: np.array(SLOW) * np.exp(0.8 * normals(drawn(t), N)),
        lambda i, j: 4 * P / 11,
    ),
}


def numbered(mixes, network):
    return lambda t: [
        number * network.rounds + k for number in mixes(t) for k in range(network.rounds)
    ]


EVERY = list(itertools.product(CLOCKED, (False, True)))
# Every network with a method and a clock, in turn; two of them with all methods, and with all clocks.
NAMES = [*METHODS]
CASES = (
    {(net, NAMES[k % 3], *EVERY[k % len(EVERY)]): None for k, net in enumerate(NETWORKS)}
    | {(net, name, *EVERY[k]): None for net in ("ideal", "all") for k, name in enumerate(METHODS)}
    | {(net, "gt-hsgd", *each): None for net in ("ideal", "all") for each in EVERY}
)


@pytest.mark.parametrize(("net", "name", "clock", "overlap"), some(CASES, 5))
def test_times_equal_a_discrete_event_simulation(net, name, clock, overlap):
    network, (method, work, mixes) = NETWORKS[net], METHODS[name]
    given, pace, delay = CLOCKED[clock]
    found = peer.clock(**given, overlap=overlap).times(
        method, PROBLEM, network, np.arange(STEPS + 1), SEED
    )
    expected = simulate(network, work, numbered(mixes, network), pace, delay, overlap)
    assert found[0] == 0
    np.testing.assert_allclose(found[1:], expected, rtol=1e-9)
    assert (np.diff(found) >= 0).all()
    assert found[-1] > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("net", PUSHED)
def test_push_pull(net, overlap):
    network, (given, pace, delay) = PUSHED[net], CLOCKED["unequal"]
    method = peer.methods.push_pull(batch=2)
    found = peer.clock(**given, overlap=overlap).times(
        method, PROBLEM, network, np.arange(1, STEPS + 1), SEED
    )
    expected = simulate(network, lambda t: 2, lambda t: [0, 1] if t else [0], pace, delay, overlap)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def times(method, network, steps, problem=None, **given):
    return (
        peer.clock(**given)
        .times(method, problem or small_quadratic(network.n, noise=0.3), network, steps)
        .tolist()
    )


PAIR = peer.Network([[0.75, 0.25], [0.25, 0.75]])


def test_two_nodes_by_hand():
    """The slow node 1 works 10 s and never waits; node 0 works 1 s, and waits for messages, which take 2 s."""
    assert times(peer.methods.dsgd(), PAIR, [1, 2, 3], compute=[1, 10], latency=2) == [12, 22, 32]
    # from node 0 to node 1 it takes 20 s: node 1 is done at 1 + 20, and node 0 at 10
    assert times(
        peer.methods.dsgd(), PAIR, [1, 2], compute=[1, 10], latency={(0, 1): 0, (1, 0): 20}
    ) == [21, 31]
    assert times(
        peer.methods.dsgd(), PAIR, [1, 2, 3], compute=[1, 10], latency=2, overlap=True
    ) == [10, 20, 30]
    assert times(peer.methods.gt_dsgd(), PAIR, [1], compute=[1, 10], latency=2) == [14]
    # 5 entries of 4 bytes at 10 bytes a second
    assert times(peer.methods.dsgd(), PAIR, [2], bandwidth=10) == [4]
    assert times(peer.methods.dsgd(), PAIR, [3, 0, 1], latency=1) == [3, 0, 1]


def test_a_chain_waits_as_long_as_news_travels():
    """On a path, the slow end is felt one hop further in each iteration."""
    path = peer.Network(peer.topology.grid(5))
    found = times(peer.methods.dsgd(), path, [1, 2], compute=[100, 1, 1, 1, 1])
    assert found == [100, 200]
    hand = peer.clock(compute=[100, 1, 1, 1, 1]).started(
        peer.methods.dsgd(), small_quadratic(5), path, 0, 4
    )
    assert hand.at(3) == 300
    assert hand.nodes.tolist() == [300, 300, 201, 102, 3]


def test_exact_gradients_count_all_samples():
    method = peer.methods.gt_sarah(batch=2, period=4)
    found = peer.clock(compute=1).times(
        method, small_logistic(N, samples=11), peer.Network(RING), range(6)
    )
    assert found.tolist() == [0, 11, 15, 19, 23, 34]


def test_exact_gradients_take_as_long_as_a_node_has_samples():
    rows = np.random.default_rng(0).normal(size=(20, 3))
    parts = peer.datasets.Dataset(rows, np.sign(rows[:, 0]), "rows").partition(
        2, indices=[range(4), range(4, 20)]
    )
    uneven, method = peer.problems.logistic(parts), peer.methods.gt_sarah(batch=1, period=3)
    # node 0 has 4 samples and takes 5 s each, node 1 has 16 and takes 1 s; later both take two gradients
    assert times(method, PAIR, range(1, 5), uneven, compute=[5, 1]) == [20, 30, 40, 60]
    assert times(method, PAIR, range(1, 5), uneven, compute=[1, 1]) == [16, 18, 20, 36]


def test_rounds_in_an_every_and_gradients_after_a_round():
    def step(state, net):
        x = net.every(3, lambda: net.mix(state.x), lambda: state.x)
        return state._replace(x=x - net.grad(x, net.sample(2)))

    method = peer.Method(lambda x, net: State(x, (), ()), step, "local")
    # one round of 1 s in iterations 3 and 6, and gradients of 2 s in all but iteration 0
    assert times(method, PAIR, range(1, 9), compute=1, latency=1) == [0, 2, 4, 7, 9, 11, 14, 16]
    assert times(method, PAIR, range(1, 9), compute=1, latency=1, overlap=True) == [
        0,
        2,
        4,
        6,
        8,
        10,
        12,
        14,
    ]
    # the round comes first: node 0 gets on as soon as it has heard of node 1, and works while node 1 does
    assert times(method, PAIR, [3, 4], compute=[1, 10], latency=1) == [40, 60]


def test_one_node_and_compressed_messages():
    alone = peer.Network([[1.0]])
    assert times(peer.methods.dsgd(), alone, [3], compute=2, latency=9) == [6]
    squeezed = peer.Network(PAIR.W, faults=[FAULTS.quantize(8)])
    assert times(peer.methods.dsgd(), squeezed, [1], bandwidth=1) == [
        5 + 4
    ]  # a byte an entry, and the norm
    assert peer.clock(bandwidth=1).times(
        DSGD, small_quadratic(2), PAIR, [1], itemsize=8
    ).tolist() == [40]


def test_a_lost_message_is_not_waited_for_and_a_sleeper_stays():
    lossy = peer.Network(PAIR.W, faults=[FAULTS.drop(0.5, one_way=True)])
    steps = np.arange(200)
    found = np.diff(times(peer.methods.dsgd(), lossy, steps, latency=1))
    assert set(found.round(9)) == {0.0, 1.0}
    asleep = peer.Network(PAIR.W, faults=[FAULTS.inactive(0.5)])
    found = times(peer.methods.dsgd(), asleep, steps, compute=1)
    happens = [asleep.links.at(np, 0, t, ()).awake for t in steps]
    together = np.zeros(2)
    for awake in happens[:-1]:
        together = together + awake
        together = np.full(2, together.max()) if awake.all() else together
    assert found[-1] == together.max() < 199


def test_the_seed_and_nothing_else_decides():
    clock, network = peer.clock("phones"), NETWORKS["all"]
    first, again, other = (clock.times(DSGD, PROBLEM, network, [30], seed) for seed in (1, 1, 2))
    assert first == again != other
    hand = clock.started(DSGD, PROBLEM, network, 1, 4)
    assert [hand.at(step) for step in (7, 30, 30)][1:] == [*first, *first]
    assert hand.at(7) < first[0]  # it goes back if asked to


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_a_run_has_the_column_and_a_finished_run_gets_it(engine, tmp_path):
    clock, network = (
        peer.clock(compute=peer.clocks.exponential(1.0), bandwidth=100),
        NETWORKS["drop"],
    )
    options = {"steps": 20, "record": 5, "seed": 3, "precision": 64, "engine": engine}
    trace = peer.run(DSGD, PROBLEM, network, clock=clock, **options)
    expected = clock.times(
        DSGD, PROBLEM, network, trace.table["step"].astype(int), seed=3, itemsize=8
    )
    assert trace.table["clock"].tolist() == expected.tolist()
    bare = peer.run(DSGD, PROBLEM, network, **options)
    assert bare.table["clock"].isna().all()
    applied = clock.apply(bare, DSGD, PROBLEM, network)
    assert applied.table["clock"].tolist() == expected.tolist()
    assert applied.identity == trace.identity != bare.identity
    loaded = peer.Trace.load(bare.save(tmp_path))
    assert clock.apply(loaded, DSGD, PROBLEM, network).table["clock"].tolist() == expected.tolist()
    columns = [name for name in trace.table if name not in ("seconds", "clock")]
    assert trace.table[columns].equals(bare.table[columns])


def test_a_clock_is_not_applied_to_another_run():
    clock, network = peer.clock("campus"), NETWORKS["drop"]
    trace = peer.run(DSGD, PROBLEM, network, steps=5)
    with pytest.raises(
        ValueError, match=r"the trace is of another run: its method is 'dsgd\[batch=3,"
    ):
        clock.apply(trace, peer.methods.dsgd(batch=4), PROBLEM, network)
    with pytest.raises(ValueError, match="another run: its network is"):
        clock.apply(trace, DSGD, PROBLEM, NETWORKS["ideal"])
    with pytest.raises(ValueError, match="another run: its weights is"):
        clock.apply(
            peer.run(DSGD, PROBLEM, peer.Network(EVEN), steps=5),
            DSGD,
            PROBLEM,
            peer.Network(NEARLY),
        )
    with pytest.raises(ValueError, match=r"another run: its strength is 0.0001, and 0.5 is given"):
        clock.apply(trace, DSGD, small_logistic(N, strength=0.5), network)


EVEN = np.full((N, N), 1 / N)
NEARLY = EVEN + 1e-11 * (np.eye(N) - EVEN)


def test_resuming_keeps_the_clock(tmp_path):
    clock, network = peer.clock("phones"), NETWORKS["burst"]
    whole = peer.run(DSGD, PROBLEM, network, steps=40, record=4, clock=clock)
    part = peer.run(DSGD, PROBLEM, network, steps=20, record=2, clock=clock, checkpoint=tmp_path)
    resumed = peer.run(DSGD, PROBLEM, network, steps=40, record=4, clock=clock, resume=part)
    assert resumed.table["clock"].tolist() == whole.table["clock"].tolist()
    resumed = peer.run(DSGD, PROBLEM, network, steps=40, record=4, clock=clock, checkpoint=tmp_path)
    assert resumed.table["clock"].tolist() == whole.table["clock"].tolist()
    bare = peer.run(DSGD, PROBLEM, network, steps=20, record=2)
    for other, earlier in ((peer.clock("campus"), part), (None, part), (clock, bare)):
        with pytest.raises(ValueError, match="cannot resume: clock is"):
            peer.run(DSGD, PROBLEM, network, steps=40, clock=other, resume=earlier)
    assert peer.run(DSGD, PROBLEM, network, steps=40, resume=bare).steps == 40


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bandwidth": 0}, r"bandwidth = 0: must be above 0 \(infinite: no limit\); give a number"),
        ({"bandwidth": -1.0}, "bandwidth = -1.0: must be above 0"),
        ({"bandwidth": math.nan}, "bandwidth = nan: must be above 0"),
        (
            {"latency": -0.1},
            "latency = -0.1: must be a finite number of at least 0; give a number, an array",
        ),
        ({"latency": math.inf}, "latency = inf: must be a finite"),
        ({"latency": [[0, 1], [math.nan, 0]]}, r"latency\[1, 0\] = nan: must be a finite"),
        ({"bandwidth": [[0, 0], [1, 0]]}, r"bandwidth\[0, 1\] = 0: must be above 0"),
        ({"latency": [1, 2, 3]}, r"latency of shape \(3,\): give a number, an array \(n, n\)"),
        ({"latency": np.ones((2, 3))}, r"latency of shape \(2, 3\)"),
        ({"latency": "slow"}, "latency = 'slow'"),
        (
            {"latency": {0: 1.0}},
            r"latency of 0: must be of a pair of nodes, as in \{\(0, 1\): 0.01\}",
        ),
        ({"latency": {(0, 1): -1}}, r"latency of \(0, 1\) = -1: must be a finite"),
        (
            {"compute": -1},
            "compute = -1: must be a finite number of at least 0; give a number, or a list",
        ),
        ({"compute": [1, math.nan]}, "compute = nan"),
        ({"compute": []}, "compute is an empty list"),
        ({"compute": "fast"}, "compute = 'fast'"),
        ({"compute": True}, "compute = True"),
        ({"latency": 1, "overlap": 1}, "overlap = 1: must be true or false"),
        ({}, "a clock without numbers stands still: give compute"),
        ({"preset": "campsu"}, "unknown clock 'campsu': did you mean 'campus'"),
        ({"preset": "campus", "bandwidth": 0}, "bandwidth = 0"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises(ValueError, match=message):
        peer.clock(**given)


def test_bad_distributions_and_clocks_of_other_networks():
    with pytest.raises(ValueError, match="mean of exponential = -1: must be a finite number"):
        peer.clocks.exponential(-1)
    with pytest.raises(ValueError, match="sigma of lognormal = nan"):
        peer.clocks.lognormal(1, math.nan)
    network = peer.Network(RING)
    for given, message in (
        (
            {"compute": [1, 2]},
            "compute has 2 numbers, and the network 6 nodes: give one number, or one a node",
        ),
        ({"compute": peer.clocks.lognormal([1, 2], 1)}, "compute has 2 numbers"),
        ({"latency": np.ones((4, 4))}, r"latency has the shape \(4, 4\), and the network 6 nodes"),
        (
            {"bandwidth": {(0, 1): 5}},
            r"bandwidth has no number of the link of nodes 0 and 5: add \(0, 5\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            peer.run(DSGD, PROBLEM, network, steps=2, clock=peer.clock(**given))
    with pytest.raises(ValueError, match=r"clock is a int: give a clock, as peer.clock"):
        peer.run(DSGD, PROBLEM, network, steps=2, clock=3)
    with pytest.raises(ValueError, match=r"unknown clock 'campos': did you mean 'campus'"):
        peer.run(DSGD, PROBLEM, network, steps=2, clock="campos")
    with pytest.raises(ValueError, match=r"steps = .*: must be a list of whole numbers"):
        peer.clock("campus").times(DSGD, PROBLEM, network, [-1])


def test_pairs_stand_for_both_directions():
    ring = peer.Network(RING)
    pairs = {(i, (i + 1) % N): 1.0 + i for i in range(N)}
    array = np.zeros((N, N))
    for (i, j), value in pairs.items():
        array[i, j] = array[j, i] = value
    compute = peer.clocks.exponential(1.0)
    one, other = (
        peer.clock(compute=compute, latency=each).times(DSGD, PROBLEM, ring, [20])
        for each in (pairs, array)
    )
    assert one == other


def test_files(tmp_path):
    file = tmp_path / "clock.toml"
    file.write_text(
        'preset = "phones"\ncompute = {exponential = 0.5}\noverlap = true\nlatency = {"0-1" = 0.25}\n'
    )
    clock = read(str(file))
    assert str(clock.compute) == "exponential(0.5)"
    assert (clock.latency, clock.bandwidth, clock.overlap) == (
        {(0, 1): 0.25},
        CLOCKS["phones"].bandwidth,
        True,
    )
    file.write_text("compute = {lognormal = [[1, 2], 0.5]}\nbandwidth = [[1, 2], [3, 4]]\n")
    assert str(read(str(file)).compute) == "lognormal([1.0, 2.0], 0.5)"
    for text, message in (
        ("latnecy = 1", r"unknown key in .*clock.toml 'latnecy': did you mean 'latency'"),
        ("latency = ", "is not TOML"),
        ("compute = {gamma = 1}", "unknown distribution 'gamma'"),
        ("compute = {lognormal = 1}", r"must be \[median, sigma\]"),
        ("bandwidth = 0", r"bandwidth = 0: must be above 0 .*\(in .*clock.toml\)"),
        ('latency = {"a" = 1}', "latency of 'a': must be of a pair of nodes"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read(str(file))
    with pytest.raises(
        ValueError, match=r"unknown clock 'phone': did you mean 'phones'\?.*or give the path"
    ):
        read("phone")


def test_the_identity_names_every_number():
    clocks = [
        peer.clock(latency=each)
        for each in (1.0, np.ones((2, 2)), 2 * np.ones((2, 2)), {(0, 1): 1.0})
    ]
    clocks += [
        peer.clock(latency=1.0, overlap=True),
        peer.clock(latency={(0, 1): 2.0}),
        *CLOCKS.values(),
    ]
    clocks += [peer.clock(compute=each) for each in (1, [1, 2], peer.clocks.exponential(1))]
    assert len({str(clock) for clock in clocks}) == len(clocks)
    assert (
        str(peer.clock("phones")) == "compute=lognormal(0.01, 0.5) latency=0.06 bandwidth=625000.0"
    )


def test_figures_and_pages_show_it(tmp_path):
    network = NETWORKS["ideal"]
    traces = {
        f"dsgd {alpha}": peer.run(
            DSGD.replace(alpha=alpha),
            PROBLEM,
            network,
            steps=20,
            record=5,
            clock=peer.clock("campus"),
        )
        for alpha in (0.1, 0.2, 0.3)
    }
    drawn = peer.figures.comparison(traces)
    assert [axes.get_xlabel() for axes in drawn.axes][-1] == "simulated seconds"
    bare = peer.run(DSGD, PROBLEM, network, steps=20, record=5)
    assert len(peer.figures.comparison({**traces, "bare": bare}).axes) == 4
    with pytest.raises(ValueError, match="'bare' has no finite clock at any record"):
        peer.figures.curves({"bare": [bare]}, [("clock", "loss")])
    for clock in ("campus", "phones"):
        peer.clock(clock).apply(bare, DSGD, PROBLEM, network).save(tmp_path / clock)
    page = peer.report.write(tmp_path).read_text()
    assert "simulated seconds" in page
    assert f"clock {CLOCKS['phones']}" in page  # two clocks are two lines
    bare.save(tmp_path / "bare")
    assert "simulated seconds" not in peer.report.write(tmp_path / "bare").read_text()


def command(*arguments, code=0):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert (ended.value.code or 0) == code


SMALL = ("--nodes", "4", "--steps", "20", "--record", "4")


def test_the_command_line(tmp_path, capsys):
    file = tmp_path / "slow.toml"
    file.write_text("compute = [1, 1, 1, 10]\nlatency = 0.5\n")
    command("run", "dsgd", *SMALL, "--clock", file, "--out", tmp_path / "a")
    assert capsys.readouterr().out.splitlines()[0].split()[-1] == "clock"
    table = pd.read_csv(tmp_path / "a" / "trace.csv")
    assert table["clock"].tolist() == [
        0,
        50.5,
        100.5,
        150.5,
        200.5,
    ]  # the slow node waits for nobody
    command("run", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "again")
    assert pd.read_csv(tmp_path / "again" / "trace.csv")["clock"].equals(table["clock"])
    command("run", "--resume", "--out", tmp_path / "a", "--steps", "40")
    assert pd.read_csv(tmp_path / "a" / "trace.csv")["clock"].iloc[-1] == 400.5
    file.write_text("latency = 0.25\n")
    command("run", "--resume", "--out", tmp_path / "a", "--steps", "60", code=2)
    assert "cannot resume: clock is" in capsys.readouterr().err
    command("run", "--resume", "--out", tmp_path / "a", "--clock", "campus", code=2)
    assert "clock is campus here and was" in capsys.readouterr().err
    command(
        "compare",
        "dsgd",
        "gt-dsgd",
        *SMALL,
        "--defaults",
        "--seed",
        "0-1",
        "--clock",
        "continent",
        "--out",
        tmp_path / "b",
    )
    assert "clock" in capsys.readouterr().out.splitlines()[0].split()
    command("plot", tmp_path / "b", "--x", "clock", "--out", tmp_path / "clock.svg")
    assert (tmp_path / "clock.svg").stat().st_size > 5000
    command("run", "dsgd", *SMALL, "--clock", "moon", code=2)
    assert "unknown clock 'moon'" in capsys.readouterr().err
