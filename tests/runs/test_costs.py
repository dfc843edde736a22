"""Costs: gradients, rounds and bytes of a run equal the table of costs, and the verbs that are really called."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.engines import debug
from peerdescent.engines.outline import outline
from peerdescent.methods.estimators import ESTIMATORS, spider
from peerdescent.methods.fusions import FUSIONS
from peerdescent.runs.costs import Books, Costs
from peerdescent.runs.schedule import Grid, recording_steps
from small import LONG, coins, small_logistic, small_quadratic, some

RING = peer.Network(peer.topology.ring(6))
STEPS, M = 10, 11
TOP = peer.compressors.top_k(0.4)

# name, parameters, gradients of iterations 0..9 at each node, rounds of each iteration or of all
TABLE = [
    ("dsgd", {"batch": 3}, [3] * 10, 1),
    ("d2", {"batch": 3}, [3] * 10, 1),
    ("gt-dsgd", {"batch": 3}, [3] * 10, 2),
    ("d-pd-sgd", {"batch": 3}, [3] * 10, 1),
    ("gt-hsgd", {"batch": 3, "initial_batch": 32}, [32] + [6] * 9, 2),
    ("d-get", {"batch": 2, "period": 4, "large_batch": 20}, [20, 4, 4, 4] * 2 + [20, 4], 2),
    ("d-spider-sfo", {"batch": 2, "period": 4, "large_batch": 20}, [20, 4, 4, 4] * 2 + [20, 4], 1),
    ("gt-sarah", {"batch": 2, "period": 4}, [M, 4, 4, 4] * 2 + [M, 4], 2),
    ("push-pull", {"batch": 3}, [3] * 10, [1] + [2] * 9),
    ("sgp", {"batch": 3}, [3] * 10, 1),
    ("add-opt", {"batch": 3}, [3] * 10, [1] + [2] * 9),
    ("nids", {"batch": 3}, [3] * 10, [0] + [1] * 9),
    ("dsgdm", {"batch": 3}, [3] * 10, 1),
    ("gt-momentum", {"batch": 3}, [3] * 10, 2),
    ("edm", {"batch": 3}, [3] * 10, 1),
    ("gt-svrg", {"batch": 2, "period": 4}, [M, 4, 4, 4] * 2 + [M, 4], 2),
    ("gt-page", {"batch": 2, "probability": 1.0}, [M] * 10, 2),
    ("extra", {"batch": 3}, [3] * 10, 1),
    ("qg-dsgdm", {"batch": 3}, [3] * 10, 1),
    ("decentlam", {"batch": 3}, [3] * 10, 1),
    ("d-adam", {"batch": 3}, [3] * 10, 1),
    ("gt-adam", {"batch": 3}, [3] * 10, [1] + [2] * 9),
    ("choco-sgd", {"batch": 3, "compressor": TOP}, [3] * 10, 1),
    ("beer", {"batch": 3, "compressor": TOP}, [3] * 10, [1] + [2] * 9),
    ("motef", {"batch": 3, "compressor": TOP}, [3] * 10, [1] + [2] * 9),
    ("docom", {"batch": 3, "initial_batch": 32, "compressor": TOP}, [32] + [6] * 9, [1] + [2] * 9),
    ("k-gt", {"batch": 3, "interval": 4}, [3] * 10, [0, 0, 0, 2] * 2 + [0, 0]),
    ("led", {"batch": 3, "interval": 4}, [3] * 10, [0, 0, 0, 1] * 2 + [0, 0]),
    ("proxskip", {"batch": 3, "probability": 1.0}, [3] * 10, 1),
    ("proxgt", {"batch": 3}, [3] * 10, 2),
    ("deepstorm", {"batch": 3, "initial_batch": 32}, [32] + [6] * 9, 2),
    ("gt-nsgdm", {"batch": 3}, [3] * 10, 2),
]


@pytest.mark.parametrize(
    ("name", "parameters", "gradients", "rounds"),
    some(TABLE, 3),
    ids=[row[0] for row in some(TABLE, 3)],
)
def test_counts_equal_the_table(name, parameters, gradients, rounds):
    method, problem = peer.methods.METHODS[name].build(**parameters), small_logistic(samples=M)
    table = peer.run(method, problem, RING, steps=STEPS, record=range(STEPS + 1)).table
    assert table["gradients"].tolist() == np.cumsum([0, *gradients]).tolist()
    rounds = np.cumsum([0, *np.broadcast_to(rounds, STEPS)])
    assert table["rounds"].tolist() == rounds.tolist()
    assert table["epoch"].tolist() == pytest.approx((np.cumsum([0, *gradients]) / M).tolist())
    # two of five entries, with their places, where messages are compressed
    message = 2 * (4 + 4) if "compressor" in parameters else problem.dimension * 4
    numbers = STEPS if name in ("sgp", "add-opt") else 0  # beside a vector, one in every step
    assert table["bytes"].iloc[-1] == 2 * (rounds[-1] * message + numbers * 4)


def test_every_method_is_in_the_table():
    assert {row[0] for row in TABLE} == set(peer.methods.METHODS)


def test_bytes_follow_degree_precision_and_time():
    problem = small_quadratic()
    method = peer.methods.dsgd()
    star = peer.run(
        method, problem, peer.Network(peer.topology.star(6)), steps=4, precision=64
    ).table
    assert star["bytes"].iloc[-1] == pytest.approx(
        4 * (10 / 6) * problem.dimension * 8
    )  # 5 edges, both ways
    sequence = peer.Network([peer.topology.ring(6), peer.topology.complete(6)])
    table = peer.run(method, problem, sequence, steps=4, record=range(5)).table
    assert table["bytes"].tolist() == [problem.dimension * 4 * sent for sent in (0, 2, 7, 9, 14)]


class Counting(debug.Net):
    """The verbs of the debug engine, which count what is really computed."""

    def grad(self, x, sample):
        self.engine.counted["gradients"] += len(sample[0])
        return super().grad(x, sample)

    def full_grad(self, x):
        self.engine.counted["gradients"] += M
        return super().full_grad(x)

    def compress(self, x, operator):
        compressed = super().compress(x, operator)
        self.engine.kept.append((compressed, operator))
        return compressed

    def mix(self, x):
        self.round(x)
        return super().mix(x)

    def disagree(self, x):
        self.round(x)
        return super().disagree(x)

    def push(self, x, w=None):
        self.round(x, 0 if w is None else 8)
        return super().push(x, w)

    def round(self, x, more=0):
        self.engine.counted["rounds"] += 1
        sizes = [
            operator.size(5, 8) for compressed, operator in self.engine.kept if compressed is x
        ]
        self.engine.counted["bytes"] += 2 * (sizes[0] if sizes else 5 * 8 + more)


@pytest.mark.parametrize(
    ("estimator", "fusion"),
    [
        (estimator, fusion)
        for j, estimator in enumerate([*ESTIMATORS, "sarah"])
        for k, fusion in enumerate(FUSIONS)
        if LONG or (j + k) % 12 == 0
    ],
)
def test_costs_equal_what_is_computed(estimator, fusion):
    part = (
        spider(3, 2)
        if estimator == "sarah"
        else spider(3, 2, 7)
        if estimator == "spider"
        else ESTIMATORS[estimator](batch=2)
    )
    method, problem = peer.compose(part, FUSIONS[fusion]()), small_logistic(samples=M)
    method = method.replace(
        **{name: 0.5 for name in method.parameters if name.endswith("probability")}
    )
    books = Books(Costs.of(method, problem, RING, 8), problem, RING, 3)
    with jax.enable_x64(True):
        engine = debug.Debug(method, problem, RING, 3, np.dtype("float64"))
        engine.counted, engine.kept = {"gradients": 0, "rounds": 0, "bytes": 0}, []
        state = method.init(np.zeros((6, problem.dimension)), Counting(engine, 0, ()))
        for t in range(1, 13):
            assert tuple(engine.counted.values()) == books.at(t)
            state = method.step(state, Counting(engine, t, ())) if t < 12 else state


def test_coins_are_expected_before_a_run_and_counted_in_it():
    method, problem = peer.methods.gt_page(probability=0.25, batch=2), small_logistic(samples=M)
    costs = Costs.of(method, problem, RING)
    assert costs.gradients(101) == pytest.approx(M + 100 * (0.25 * M + 0.75 * 4))
    restarts = coins(5, 0.25, 101)[1:].sum()
    table = peer.run(method, problem, RING, steps=101, seed=5, record=[101]).table
    assert table["gradients"].iloc[-1] == M + restarts * M + (100 - restarts) * 4
    assert 10 < restarts < 40


def test_nested_every_is_counted():
    def step(state, net):
        def inner():
            return net.every(
                4, lambda: net.grad(state, net.sample(100)), lambda: net.grad(state, net.sample(10))
            )

        return net.every(2, inner, lambda: net.grad(state, net.sample(1)))

    method = peer.Method(lambda x, net: x, step)
    costs = Costs(method, None, [0.0])
    assert np.diff(costs.gradients(np.arange(10))).tolist() == [0, 1, 10, 1, 100, 1, 10, 1, 100]


def two_clocks(state, net):
    """Restarts every 6 and every 10 iterations, the two overlapping every 30."""
    outer = net.every(
        6, lambda: net.mix(net.grad(state, net.sample(50))), lambda: net.grad(state, net.sample(3))
    )
    return outer + net.every(10, lambda: net.full_grad(state), lambda: net.mix(state))


def test_costs_of_a_long_run_keep_one_period_and_equal_the_sum_of_all():
    method, degrees = (
        peer.Method(lambda x, net: net.mix(net.grad(x, net.sample(7))), two_clocks),
        np.array([2.0, 5, 1, 4]),
    )
    costs = Costs(method, 11.0, degrees)
    t = np.arange(1, 1000)
    gradients = np.where(t % 6 == 0, 50, 3) + np.where(t % 10 == 0, 11, 0)
    rounds = np.where(t % 6 == 0, 1, 0) + np.where(t % 10 == 0, 0, 1)
    every = np.arange(1001)
    assert costs.gradients(every).tolist() == np.cumsum([0, 7, *gradients]).tolist()
    assert costs.rounds(every).tolist() == np.cumsum([0, 1, *rounds]).tolist()
    assert costs.sent(every) == pytest.approx(np.cumsum([0, 2, *rounds * degrees[t % 4]]))
    assert len(costs._table) == 61, "the common period of 6, 10 and 4 is 60"
    for budget in [
        1,
        7,
        9.9,
        10,
        500,
        5000.5,
        float(costs.gradients(777)),
        float(costs.gradients(777)) - 1,
    ]:
        spent = costs.gradients(every)
        assert costs.steps_within(budget) == max(1, int(np.flatnonzero(spent <= budget)[-1]))
        assert costs.reaching(np.array([budget])).tolist() == [
            int(np.flatnonzero(spent >= budget)[0])
        ]
    assert costs.gradients(10**15) > 1e15, "no array of that length is made"


def test_a_long_period_is_not_tabulated_beyond_need():
    costs = Costs(peer.methods.d_get(period=2**30, batch=1, large_batch=5), 100.0, [1.0])
    assert costs.gradients([3, 1000]).tolist() == [9, 5 + 2 * 999]
    assert costs.steps_within(5 + 2 * 999) == 1000
    assert len(costs._table) < 5000


def test_vectors_that_are_always_equal_are_found():
    def aliases(method):
        return outline(method).aliases

    assert aliases(peer.methods.gt_hsgd()) == (0, 1, 2, 3, 2), (
        "the v of the estimator is the v of the tracker"
    )
    assert aliases(peer.methods.d_get()) == (0, 1, 2, 3, 2), "also when it comes out of an every"
    assert aliases(peer.methods.gt_dsgd()) == (0, 1, 2)
    assert aliases(peer.methods.d_spider_sfo()) == (0, 1, 2, 3)
    equal_at_first = peer.Method(lambda x, net: (x, x), lambda s, net: (s[0] + s[1], s[1]))
    assert aliases(equal_at_first) == (0, 1)
    equal_later = peer.Method(lambda x, net: (x, x + x), lambda s, net: (s[0], s[0]))
    assert aliases(equal_later) == (0, 1)
    one_sided = peer.Method(
        lambda x, net: (x, x),
        lambda s, net: (s[0], net.every(3, lambda: s[0] + s[1], lambda: s[0])),
    )
    assert aliases(one_sided) == (0, 1), "equal on one side of every only"


def test_epochs_are_a_budget():
    method = peer.methods.d_get(
        period=4, batch=2, large_batch=20
    )  # iterations cost 20 4 4 4 20 4 4 4 20 ...
    for budget, steps in [
        (1, 1),
        (20, 1),
        (23.9, 1),
        (24, 2),
        (31, 3),
        (32, 4),
        (51.9, 4),
        (52, 5),
    ]:
        assert Costs(method, 11, [1.0]).steps_within(budget) == steps
    trace = peer.run(method, small_logistic(samples=M), RING, epochs=5, record=3)
    last = trace.table.iloc[-1]
    assert last["epoch"] <= 5
    assert last["epoch"] == 52 / M
    assert last["step"] == 5
    long = Costs(peer.methods.gt_dsgd(), 100, [1.0]).steps_within(1e6)
    assert long == 1_000_000


def test_grids():
    even = recording_steps(10, 100)
    assert even == list(range(0, 101, 10))
    log = recording_steps(Grid(5, "log"), 10_000)
    assert log == [0, 1, 10, 100, 1000, 10_000]
    assert recording_steps([5, 3, 3], 8) == [0, 3, 5, 8]
    costs = Costs(peer.methods.d_get(period=70, large_batch=500), 100, [0.0])
    spent = costs.gradients(np.arange(201))
    by_epochs = recording_steps(4, 200, costs)
    assert by_epochs != recording_steps(4, 200), "even in epochs is not even in steps"
    for step, target in zip(by_epochs, np.linspace(0, spent[-1], 5), strict=True):
        assert spent[step] >= target - 1e-9
        assert step == 0 or spent[step - 1] < target
    with pytest.raises(ValueError, match="unknown spacing 'lin'"):
        recording_steps(Grid(3, "lin"), 8)
    with pytest.raises(ValueError, match="record = 0: must be a whole number of at least 1"):
        recording_steps(0, 8)
    with pytest.raises(ValueError, match=r"record has steps 1..99: must lie in 0..8"):
        recording_steps([1, 99], 8)
    with pytest.raises(ValueError, match="record is empty"):
        recording_steps([], 8)


def test_epochs_are_not_a_step_short_by_rounding():
    problem = small_logistic(samples=100)
    for epochs, steps in ((0.29, 29), (0.57, 57), (0.58, 58), (1.13, 113), (1.15, 115)):
        assert peer.run(peer.methods.dsgd(), problem, RING, epochs=epochs, record=1).steps == steps
