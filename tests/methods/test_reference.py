"""Every named method against naive loops over nodes, written from the formulas; only the samples are the package's."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
from loops import STEPS, STRENGTH, Nodes, recursion, sgd

import peerdescent as peer
from small import LONG, assert_close, small_logistic, states

OPTIMISED = True  # compiled as users have it
NODES = 6


def spider(nodes, x, v, t, batch, period, large_batch):
    if t % period:
        return recursion(nodes, x, v, t, batch, 1.0)
    return nodes.exact(x[t]) if large_batch is None else sgd(nodes, x, t, large_batch)


def naive(name, q, nodes, steps=STEPS):
    """x_0, ..., x_T by the formulas of the named method with parameters q."""
    x, v, y, u = [nodes.zeros()], [], [nodes.zeros()], [nodes.zeros()]
    for t in range(steps):
        nodes.w, nodes.b = nodes.ws[t % len(nodes.ws)], nodes.bs[t % len(nodes.bs)]
        if name in ("dsgd", "d2", "gt-dsgd", "d-pd-sgd", "push-pull", "sgp", "add-opt"):
            v.append(sgd(nodes, x, t, q["batch"]))
        elif name == "gt-hsgd":
            first = t == 0
            v.append(
                sgd(nodes, x, 0, q["initial_batch"])
                if first
                else recursion(nodes, x, v, t, q["batch"], 1 - q["beta"])
            )
        else:
            v.append(spider(nodes, x, v, t, q["batch"], q["period"], q.get("large_batch")))

        before = v[t - 1] if t else nodes.zeros()
        if name == "dsgd":
            x.append(nodes.combine(lambda m, g: m - q["alpha"] * g, nodes.mix(x[t]), v[t]))
        elif name in ("d2", "d-spider-sfo"):
            if t == 0:
                x.append(nodes.mix(nodes.combine(lambda z, g: z - q["alpha"] * g, x[0], v[0])))
            else:
                inner = nodes.combine(
                    lambda z, zz, g, gg: 2 * z - zz - q["alpha"] * (g - gg),
                    x[t],
                    x[t - 1],
                    v[t],
                    v[t - 1],
                )
                x.append(nodes.mix(inner))
        elif name in ("gt-dsgd", "gt-hsgd"):
            y.append(nodes.mix(nodes.combine(lambda a, b, c: a + b - c, y[t], v[t], before)))
            x.append(nodes.mix(nodes.combine(lambda z, a: z - q["alpha"] * a, x[t], y[t + 1])))
        elif name == "push-pull":
            if t == 0:
                y.append(v[0])
            else:
                y.append(nodes.combine(lambda a, b, c: a + b - c, nodes.push(y[t]), v[t], before))
            x.append(nodes.mix(nodes.combine(lambda z, a: z - q["alpha"] * a, x[t], y[t + 1])))
        elif name == "sgp":
            if t == 0:
                u, w = [x[0]], np.ones(NODES)
            u.append(nodes.push(nodes.combine(lambda z, g: z - q["alpha"] * g, u[t], v[t])))
            w = nodes.push(w)
            x.append(nodes.combine(lambda z, k: z / k, u[t + 1], w))
        elif name == "add-opt":
            if t == 0:
                u, w = [x[0]], np.ones(NODES)
                y.append(v[0])
            else:
                y.append(nodes.combine(lambda a, b, c: a + b - c, nodes.push(y[t]), v[t], before))
            u.append(nodes.combine(lambda m, a: m - q["alpha"] * a, nodes.push(u[t]), y[t + 1]))
            w = nodes.push(w)
            x.append(nodes.combine(lambda z, k: z / k, u[t + 1], w))
        elif name in ("d-get", "gt-sarah"):
            y.append(nodes.combine(lambda a, b, c: a + b - c, nodes.mix(y[t]), v[t], before))
            x.append(nodes.combine(lambda m, a: m - q["alpha"] * a, nodes.mix(x[t]), y[t + 1]))
        elif name == "d-pd-sgd":
            apart = nodes.combine(lambda z, m: z - m, x[t], nodes.mix(x[t]))
            x.append(
                nodes.combine(
                    lambda z, a, d, g: z - q["eta"] * (q["alpha"] * a + q["kappa"] * d + g),
                    x[t],
                    apart,
                    u[t],
                    v[t],
                )
            )
            u.append(nodes.combine(lambda d, a: d + q["eta"] * q["kappa"] * a, u[t], apart))
    return np.array(x)


PARAMETERS = {
    "dsgd": {"alpha": 0.3, "batch": 2},
    "d2": {"alpha": 0.3, "batch": 2},
    "gt-dsgd": {"alpha": 0.3, "batch": 2},
    "d-pd-sgd": {"eta": 0.2, "alpha": 0.7, "kappa": 0.4, "batch": 2},
    "d-get": {"alpha": 0.2, "period": 7, "batch": 2, "large_batch": 5},
    "d-spider-sfo": {"alpha": 0.2, "period": 7, "batch": 2, "large_batch": 5},
    "gt-sarah": {"alpha": 0.2, "period": 7, "batch": 2},
    "gt-hsgd": {"alpha": 0.3, "beta": 0.1, "batch": 2, "initial_batch": 5},
    "push-pull": {"alpha": 0.3, "batch": 2},
    "sgp": {"alpha": 0.3, "batch": 2},
    "add-opt": {"alpha": 0.1, "batch": 2},
}
NETWORKS = {
    "ring": peer.Network(peer.topology.ring(NODES)),
    "directed-exponential": peer.Network(peer.topology.directed_exponential(NODES)),
    "time-varying": peer.Network(
        [peer.topology.ring(NODES), peer.topology.star(NODES), peer.topology.complete(NODES)]
    ),
}
NEED_SYMMETRY = {"d2", "d-pd-sgd", "d-spider-sfo"}


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        (name, net)
        for j, name in enumerate(PARAMETERS)
        for k, net in enumerate(NETWORKS)
        if LONG or k in (0, 1 + j % 2)
    ],
)
def test_method_equals_naive_loops(name, topology):
    problem, network = small_logistic(NODES, strength=STRENGTH), NETWORKS[topology]
    method = peer.methods.METHODS[name].build(**PARAMETERS[name])
    if topology == "directed-exponential" and name in NEED_SYMMETRY:
        with pytest.raises(
            ValueError, match=f"{name} needs a symmetric weight matrix; directed-exponential is not"
        ):
            peer.run(method, problem, network, steps=2)
        return
    # Exact diffusion needs a constant W. With another its iterates grow, so compare while they are of size one.
    steps = 20 if topology == "time-varying" and name in ("d2", "d-spider-sfo") else STEPS
    assert_equals_naive_loops(name, method, problem, network, steps)


UNBALANCED = nx.DiGraph([*((i, (i + 1) % NODES) for i in range(NODES)), (0, 3), (0, 2), (4, 1)])


@pytest.mark.parametrize("name", ["push-pull", "sgp", "add-opt"])
def test_on_an_unbalanced_graph_equals_naive_loops(name):
    """There A and B differ, and neither is doubly stochastic."""
    problem, network = (
        small_logistic(NODES, strength=STRENGTH),
        peer.Network(UNBALANCED, "push-pull"),
    )
    assert np.abs(network.W - network.pushed.toarray()).max() > 0.1
    method = peer.methods.METHODS[name].build(**PARAMETERS[name])
    assert_equals_naive_loops(name, method, problem, network, STEPS)


def unlike_quadratics():
    matrices = np.stack([curvature * np.eye(3) for curvature in (1, 2, 3, 1, 2, 3)])
    return peer.problems.quadratic(
        matrices, np.random.default_rng(0).normal(size=(NODES, 3)), noise=0.0
    )


def test_push_sum_ends_at_the_optimum_of_nodes_that_differ():
    """add-opt exactly, sgp to its step size, where nodes weigh unequally and without w would end elsewhere."""
    problem = unlike_quadratics()
    network, best = peer.Network(UNBALANCED, "push-pull"), peer.problems.optimum(problem).x
    exact = peer.run(
        peer.methods.add_opt(alpha=0.05), problem, network, steps=3000, precision=64, record=2
    )
    assert np.abs(exact.x - best).max() < 1e-12
    gap = [
        np.abs(
            peer.run(
                peer.methods.sgp(alpha=a), problem, network, steps=6000, precision=64, record=2
            ).x
            - best
        ).max()
        for a in (0.04, 0.004)
    ]
    assert gap[1] < 0.15 * gap[0]


def test_a_message_that_is_lost_takes_vector_and_number_with_it():
    """The sums of u and w over nodes are kept, so that x stays a mean of what nodes have."""
    problem = small_logistic(NODES, strength=STRENGTH)
    network = peer.Network(UNBALANCED, "push-pull", faults=[peer.faults.drop(0.3)])
    for state in states(
        peer.methods.sgp(alpha=1e-300),
        problem,
        network,
        40,
        x0=np.ones((NODES, 1)) * [1, 2, 3, 4, 5],
    ):
        assert_close(state.fusion.w.sum(), NODES)
        assert_close(state.x, np.ones((NODES, 1)) * [1, 2, 3, 4, 5])


def test_a_vector_and_its_number_are_one_message():
    problem = small_logistic(NODES, strength=STRENGTH)
    network = peer.Network(UNBALANCED, "push-pull")
    trace = peer.run(peer.methods.sgp(), problem, network, steps=10, precision=64)
    links = UNBALANCED.number_of_edges() / NODES
    assert trace.table["rounds"].iloc[-1] == 10
    assert trace.table["bytes"].iloc[-1] == pytest.approx(10 * links * (problem.dimension + 1) * 8)


def test_a_method_by_hand_that_only_pushes_runs_where_columns_sum_to_one():
    def init(x, net):
        return step(Pushing(x, x, 1.0), net)

    def step(state, net):
        u, w = net.push(state.u - 0.3 * net.grad(state.x, net.sample(2)), state.w)
        return Pushing(u / w, u, w)

    problem, network = (
        small_logistic(NODES, strength=STRENGTH),
        peer.Network(UNBALANCED, "push-pull"),
    )
    mine, ours = (
        peer.run(method, problem, network, steps=30, precision=64).x
        for method in (peer.Method(init, step, "mine"), peer.methods.sgp(**PARAMETERS["sgp"]))
    )
    assert_close(mine, ours)
    mixing = peer.Method(lambda x, net: Pushing(net.mix(x), x, x), lambda s, net: s, "mixing")
    with pytest.raises(ValueError, match="mixing needs a doubly stochastic W"):
        peer.run(mixing, problem, network, steps=2)


class Pushing(NamedTuple):
    x: object
    u: object
    w: object


def test_nids_ends_at_the_optimum_where_the_smallest_eigenvalue_is_far_below_minus_a_third():
    problem = unlike_quadratics()
    shift = np.roll(np.eye(NODES), 1, axis=0)
    network = peer.Network(0.2 * np.eye(NODES) + 0.4 * (shift + shift.T))
    assert network.smallest_eigenvalue == pytest.approx(-0.6)
    trace = peer.run(
        peer.methods.nids(alpha=0.2), problem, network, steps=2000, precision=64, record=2
    )
    assert np.abs(trace.x - peer.problems.optimum(problem).x).max() < 1e-12
    with pytest.raises(ValueError, match="d2 needs the smallest eigenvalue"):
        peer.run(peer.methods.d2(), problem, network, steps=2)


def assert_equals_naive_loops(name, method, problem, network, steps):
    expected = naive(name, PARAMETERS[name], Nodes(problem, network, seed=5), steps)
    actual = [state.x for state in states(method, problem, network, steps, seed=5)]
    for t in range(len(expected) - 1):
        assert_close(actual[t], expected[t + 1])
    assert np.ptp(expected[-1], axis=0).max() > 1e-6, (
        "the nodes agree so well that the network was not tested"
    )


@pytest.mark.parametrize("name", ["gt-hsgd", "d-get"])
def test_run_ends_where_the_loops_end(name):
    problem, network = small_logistic(NODES, strength=STRENGTH), NETWORKS["ring"]
    method = peer.methods.METHODS[name].build(**PARAMETERS[name])
    trace = peer.run(method, problem, network, steps=STEPS, seed=5, precision=64, record=7)
    assert_close(trace.x, naive(name, PARAMETERS[name], Nodes(problem, network, seed=5))[-1])
