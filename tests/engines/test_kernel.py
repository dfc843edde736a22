"""The GPU kernel, interpreted on the CPU, against the plain program."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import pytest

import children
import peerdescent as peer
from peerdescent.engines import fleet, routing
from peerdescent.engines.gpu import kernel, speeds, tiles
from peerdescent.methods import METHODS
from peerdescent.methods.parameters import size
from small import PROBLEMS, small_logistic, some

RING = peer.Network(peer.topology.ring(6))
SUPPORTED = [*list(METHODS)[:9], "gt-svrg", "extra", "decentlam", "gt-adam"]
"""The methods of the paper, and others whose branches and arithmetic are new to the kernel."""
# Every size is compiled by the plain program, so not all go with all.
GRIDS = {
    "gt-hsgd": [{"batch": b, "initial_batch": i} for b, i in ((1, 20), (3, 1), (40, 20))],
    "d-get": [
        {"period": q, "batch": b, "large_batch": large}
        for q in (2, 5)
        for b, large in ((1, 33), (9, 4))
    ],
    "d-spider-sfo": [{"period": q, "large_batch": 9} for q in (2, 100)],
    "gt-sarah": [{"period": q, "batch": 2} for q in (2, 5)],
    "gt-svrg": [{"period": q, "batch": 2} for q in (2, 5)],
}


def iterates(kind, members, problem, network):
    """The mean iterates of all members at all their marks."""
    with jax.default_matmul_precision("highest"):
        x0 = np.full((problem.nodes, problem.dimension), 0.01, np.float32)
        ship = kind(members, problem, network, x0, np.dtype("float32"))
        alive, found = np.ones(len(members), dtype=bool), {}
        for piece in ship.pieces():
            for seen in ship.follow(piece, alive):
                found |= {(int(k), int(m)): x for k, m, x in zip(*seen[:3], strict=True)}
    return found


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *((name, False) for name in some(SUPPORTED, 12, "gt-adam")),
        # These three cover all cases of the code for several tiles.
        *((name, True) for name in some(("d-get", "gt-hsgd", "gt-sarah"), 3)),
    ],
)
def test_kernel_equals_the_plain_program(name, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(tiles, "WHOLE", 16)
        monkeypatch.setattr(tiles, "COLUMNS", 16)
    kernel._launch.clear_cache()
    problem = small_logistic(samples=40, features=37)
    step = "eta" if name == "d-pd-sgd" else "alpha"
    methods = [
        METHODS[name].build(**{step: 0.2}, **sizes)
        for sizes in GRIDS.get(name, [{"batch": 1}, {"batch": 13}])
    ]
    network = (
        RING
        if getattr(methods[0].parts[1], "symmetric", False)
        else peer.Network(peer.topology.exponential(6))
    )
    assert kernel.supports(methods[0], problem, network, np.dtype("float32"))
    members = [fleet.Member(method, seed, (3, 11)) for method in methods for seed in (0, 5)]
    plain, ours = (
        iterates(kind, members, problem, network) for kind in (fleet.Fleet, kernel.Kernel)
    )
    assert plain.keys() == ours.keys()
    assert len(plain) == 2 * len(members)
    for key, x in plain.items():
        assert np.abs(ours[key] - x).max() < 2e-6 * np.abs(x).max(), (members[key[0]].method, key)
    kernel._launch.clear_cache()


@pytest.mark.parametrize("regulariser", ["l2", "none"])
def test_other_regularisers_uneven_nodes_and_directed_graphs(regulariser):
    data = peer.datasets.synthetic(50, 5, seed=1)
    partition = data.partition(6, by="dirichlet", concentration=5.0, seed=2)
    assert len(set(partition.sizes.tolist())) > 1
    problem = peer.problems.logistic(partition, strength=0.1, regulariser=regulariser)
    network = peer.Network(peer.topology.directed_exponential(6))
    members = [
        fleet.Member(peer.methods.gt_sarah(alpha=0.3, period=3, batch=b), 1, (7,)) for b in (1, 20)
    ]
    plain, ours = (
        iterates(kind, members, problem, network) for kind in (fleet.Fleet, kernel.Kernel)
    )
    for key, x in plain.items():
        assert np.abs(ours[key] - x).max() < 2e-6 * np.abs(x).max()


STEP = 0.1


class stepping(peer.fusions.consensus):
    """Its step size is around it."""

    def step(self, x, v, memory, net):
        return net.mix(x) - STEP * v, ()


def test_values_around_a_users_method_are_those_of_now(monkeypatch):
    members = [fleet.Member(peer.compose(peer.estimators.sgd(), stepping()), 0, (3,))]
    found = {}
    for step in (0.1, 1.0):
        monkeypatch.setitem(globals(), "STEP", step)
        plain, ours = (
            iterates(kind, members, small_logistic(), RING) for kind in (fleet.Fleet, kernel.Kernel)
        )
        assert np.abs(ours[0, 0] - plain[0, 0]).max() < 2e-6 * np.abs(plain[0, 0]).max()
        found[step] = plain[0, 0]
    assert np.abs(found[0.1] - found[1.0]).max() > 0.01


def test_what_it_does_not_support_is_left_to_the_plain_program():
    method, logistic, single = peer.methods.gt_hsgd(), small_logistic(), np.dtype("float32")
    assert kernel.supports(method, logistic, RING, single)
    assert not kernel.supports(method, logistic, RING, np.dtype("float64"))
    assert not kernel.supports(method, PROBLEMS["quadratic"](), RING, single)
    assert not kernel.supports(method, logistic, peer.Network([peer.topology.ring(6)] * 2), single)
    assert not kernel.supports(method, small_logistic(features=2000), RING, single)
    for name in ("gt-page", "d-adam", "choco-sgd", "k-gt", "proxskip", "proxgt", "gt-nsgdm"):
        assert not kernel.supports(METHODS[name].build(), logistic, RING, single), name
    assert not kernel.supports(method.replace(alpha="0.5*cosine(100)"), logistic, RING, single)
    ring = peer.Network(peer.topology.ring(100))
    assert not kernel.supports(method, small_logistic(nodes=100), ring, single)

    class elsewhere(peer.estimators.sgd):
        """Takes a gradient at a vector that is not in the state."""

        def step(self, x, memory, net):
            return net.grad(0.5 * x, net.sample(self.batch)), ()

    assert not kernel.supports(
        peer.compose(elsewhere(), peer.fusions.tracking()), logistic, RING, single
    )

    class literal(peer.estimators.sgd):
        """Draws a sample whose size is not a parameter."""

        def step(self, x, memory, net):
            return net.grad(x, net.sample(2)), ()

    assert not kernel.supports(
        peer.compose(literal(), peer.fusions.tracking()), logistic, RING, single
    )

    @dataclass(frozen=True)
    class gossip(peer.fusions.consensus):
        """Mixes several times: a size that changes the program."""

        rounds: int = size(3)

        def step(self, x, v, memory, net):
            for _ in range(self.rounds):
                x = net.mix(x)
            return x - self.alpha * v, ()

    assert not kernel.supports(
        peer.compose(peer.estimators.sgd(), gossip()), logistic, RING, single
    )


def test_who_runs_a_sweep(monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    single = np.dtype("float32")

    def chosen(methods, problem=None, precision="highest"):
        members = [fleet.Member(method, 0, (2,)) for method in methods]
        with jax.default_matmul_precision(precision):
            x0 = np.zeros((6, 5), np.float32)
            return type(routing.fleet_for(members, problem or small_logistic(), RING, x0, single))

    assert chosen([peer.methods.gt_hsgd(), peer.methods.gt_hsgd(batch=9)]) is kernel.Kernel
    assert chosen([peer.methods.gt_hsgd()], precision="tensorfloat32") is fleet.Fleet
    assert chosen([peer.methods.gt_hsgd()], problem=PROBLEMS["quadratic"]()) is fleet.Fleet
    assert chosen([]) is fleet.Fleet
    whole = [peer.methods.gt_hsgd(alpha=a) for a in (1, 0.5)]
    assert chosen(whole) is kernel.Kernel, (
        "a step size is a real number, whatever the type of its value"
    )


def test_each_size_goes_to_the_faster_program():
    """Measured on an H200: wide vectors and large batches are the plain program's, if that is worth its compilation."""
    long, short = [10**6] * 4096, [1000] * 4096
    assert not speeds.plain_is_faster(123, 1, long)
    assert speeds.plain_is_faster(477, 1, long)
    assert speeds.plain_is_faster(123, 256, long)
    assert not speeds.plain_is_faster(477, 1, short)
    assert not speeds.plain_is_faster(123, 256, [1000])
    assert not speeds.plain_is_faster(123, 16, [10**6, *[10] * 4095]), (
        "all would run as long as the longest"
    )


def measured_with_restarts():
    """The cases of benchmarks/results/gpu_restarts.md: columns, batch, periods, and microseconds of either program."""
    text = (children.TESTS.parent / "benchmarks" / "results" / "gpu_restarts.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| d-")
    ]
    for _, columns, batch, period, count, _, by_kernel, by_plain, *_ in rows:
        p, b, c = int(columns), int(batch), int(count.replace(",", ""))
        m = {123: 2442, 477: 3750}[p]
        parts = [*(1 / k for k in range(20, 0, -1)), *range(2, 21)]
        grid = [max(1, round(k * m / b)) for k in parts for _ in range(11)]
        periods = grid if period == "grid" else [int(period)] * c
        yield p, b, periods, float(by_kernel.split()[0]), float(by_plain.split()[0])


@pytest.mark.parametrize("steps", [10_000, 100_000, 1_000_000])
def test_with_restarts_the_choice_costs_little_by_what_was_measured(steps):
    """Compilation included: 15 s and 20 s for a plain program, once the kernel is there."""
    lost = []
    for columns, batch, periods, kernel_us, plain_us in measured_with_restarts():
        times = [
            kernel_us * steps * len(periods),
            plain_us * steps * len(periods) + (15e6 if columns < 200 else 20e6),
        ]
        chosen = speeds.plain_is_faster(columns, batch, [steps] * len(periods), periods)
        lost.append(times[chosen] / min(times))
    assert len(lost) == 34
    assert np.mean(np.array(lost) > 1.2) <= 0.1, "where it is the slower one by more than a fifth"
    assert max(lost) < 2.5


def test_restarts_of_the_paper_grid_go_to_the_kernel():
    """Where the plain program would be compiled a hundred times."""
    problem = small_logistic()
    methods = [
        peer.methods.d_get(alpha=0.1, period=q, batch=b) for b in (1, 16, 256) for q in (1, 5, 200)
    ]
    members = [fleet.Member(method, 0, (3000,)) for method in methods]
    ship = kernel.Kernel(members, problem, RING, np.zeros((6, 5), np.float32), np.dtype("float32"))
    ship.pieces()
    assert ship.plain == set()
    long = [fleet.Member(peer.methods.d_get(batch=256, period=64), 0, (10**7,))]
    ship = kernel.Kernel(long, problem, RING, np.zeros((6, 5), np.float32), np.dtype("float32"))
    ship.pieces()
    assert ship.plain == {0}


def test_a_fleet_of_both_programs_equals_each(monkeypatch):
    """Batches of 3 are sent to the plain program here, those of 1 to the kernel."""
    monkeypatch.setattr(
        kernel, "plain_is_faster", lambda columns, batch, steps, periods: batch == 3
    )
    problem, x0 = small_logistic(), np.zeros((6, 5), np.float32)
    members = [
        fleet.Member(peer.methods.gt_hsgd(alpha=a, batch=b), seed, (4, 9))
        for b in (1, 3)
        for a in (0.1, 0.3)
        for seed in (0, 2)
    ]
    found = []
    for kind in (kernel.Kernel, fleet.Fleet):
        ship = kind(members, problem, RING, x0, np.dtype("float32"))
        ends = {}
        for piece in ship.pieces():
            for seen in ship.follow(piece, np.ones(len(members), dtype=bool)):
                ends |= {
                    (int(k), int(m)): x
                    for k, m, x in zip(seen.member, seen.mark, seen.x, strict=True)
                }
        found.append(ends)
        if kind is kernel.Kernel:
            assert ship.plain == {
                k for k, member in enumerate(members) if member.method.sizes["batch"] == 3
            }
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 2 * len(members)
    for key, x in found[1].items():
        np.testing.assert_allclose(found[0][key], x, rtol=1e-4, atol=1e-6)


def test_a_sweep_by_the_kernel_equals_runs(monkeypatch):
    monkeypatch.setattr("peerdescent.sweeps.sweeping.fleet_for", kernel.Kernel)
    problem, grid = (
        small_logistic(),
        {"alpha": [0.1, 0.4, 1e30], "period": [2, 7], "batch": [1, 3], "large_batch": [5]},
    )
    table = peer.sweep("d-get", grid, problem, RING, epochs=6, at=[3], seed=[0, 4])
    assert (table.loc[table["alpha"] == 1e30, "status"] == "diverged").all()
    sane = table[table["alpha"] < 1]
    assert (sane["status"] == "done").all()
    for row in sane.to_dict("records")[::3]:
        method = peer.methods.d_get(row["alpha"], row["period"], row["batch"], row["large_batch"])
        trace = peer.run(method, problem, RING, epochs=6, seed=row["seed"], record=1)
        assert row["steps"] == trace.steps
        assert row["loss"] == pytest.approx(trace.table["loss"].iloc[-1], rel=1e-5)


def test_the_dead_stand_still():
    members = [fleet.Member(peer.methods.dsgd(alpha=a), 0, (2, 4, 6)) for a in (0.1, 0.2)]
    ship = kernel.Kernel(
        members, small_logistic(), RING, np.zeros((6, 5), np.float32), np.dtype("float32")
    )
    alive = np.ones(2, dtype=bool)
    (piece,) = ship.pieces()
    seen = (seen for seen in ship.follow(piece, alive) if len(seen.member))
    first = next(seen)
    alive[int(first.member[0])] = False
    second = next(seen)
    assert np.array_equal(second.x[0], first.x[0])
    assert not np.array_equal(second.x[1], first.x[1])
    alive[:] = False
    assert list(seen) == []
