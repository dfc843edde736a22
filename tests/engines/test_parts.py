"""Vectors in parts: the same iterates as with single arrays, and products of matrices on a GPU as they should be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import peerdescent as peer
from peerdescent.engines import mixing, parts, products, program, stacked
from peerdescent.methods.contract import State
from small import assert_close, some

NODES, ROWS = 14, 12
RNG = np.random.default_rng(0)
PARAMS = {
    "W": RNG.normal(size=(5, 4)) / 2,
    "b": np.zeros(4),
    "out": RNG.normal(size=(4,)) / 2,
    "shift": np.ones(()),
}
DATA = RNG.normal(size=(NODES, ROWS, 5)), RNG.normal(size=(NODES, ROWS))
RING = peer.Network(peer.topology.ring(NODES))  # sparse: mixed by neighbours
THREE = peer.Network(peer.topology.ring(NODES), rounds=3)
TOP_K = peer.Network(peer.topology.ring(NODES), faults=[peer.faults.top_k(0.5)])


def squared(params, batch):
    features, targets = batch
    hidden = jnp.tanh(features @ params["W"] + params["b"])
    return jnp.mean((hidden @ params["out"] + params["shift"] - targets) ** 2)


PROBLEM = peer.problems.loss(squared, PARAMS, DATA)
METHODS = {
    "dsgd": (peer.methods.dsgd(alpha=0.1, batch=3), peer.Network(peer.topology.complete(NODES))),
    "gt-hsgd": (peer.methods.gt_hsgd(alpha=0.1, beta=0.1, batch=3), RING),
    "gt-nsgdm (dot)": (peer.methods.gt_nsgdm(alpha=0.1, batch=3), RING),
    "gt-adam (powers)": (peer.methods.gt_adam(alpha=0.1, batch=3), RING),
    "d-adam (numbers of nodes)": (peer.methods.d_adam(alpha=0.1, batch=3), RING),
    "gt-page (chance)": (peer.methods.gt_page(alpha=0.1, probability=0.5, batch=3), RING),
    "d-get (every)": (peer.methods.d_get(alpha=0.1, period=3, batch=3, large_batch=5), RING),
    "gt-sarah (exact gradients)": (peer.methods.gt_sarah(alpha=0.1, period=3), RING),
    "d2 (disagree)": (peer.methods.d2(alpha=0.1, batch=3), RING),
    "push-pull": (peer.methods.push_pull(alpha=0.1, batch=3), RING),
    "sgp (vectors with a number)": (peer.methods.sgp(alpha=0.1, batch=3), RING),
    "k-gt, three rounds": (peer.methods.k_gt(alpha=0.1, interval=2, batch=3), THREE),
}  # fmt: skip


def run(method, network, problem=PROBLEM):
    return peer.run(method, problem, network, steps=7, precision=64, record=2)


@pytest.mark.parametrize("name", some(METHODS, 4))
def test_the_same_iterates_in_parts(name, monkeypatch):
    method, network = METHODS[name]
    single = run(method, network)
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    used = []
    monkeypatch.setattr(
        program, "joined", lambda x: used.append(isinstance(x, parts.Parts)) or parts.joined(x)
    )
    divided = run(method, network)
    assert any(used), "it was compiled anew"
    assert_close(divided.x, single.x)
    assert np.abs(single.x - single.x.mean(axis=0)).max() > 1e-4, "nodes differ"


def test_devices_of_a_mesh_in_parts(monkeypatch):
    """Engine `sharded` has the same program."""
    method = METHODS["d-adam (numbers of nodes)"][0]
    single = run(method, RING)
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    divided = peer.run(method, PROBLEM, RING, steps=7, precision=64, record=2, engine="sharded")
    assert_close(divided.x, single.x)


def test_constant_vectors_in_a_method(monkeypatch):
    """A hand-made method may have them, of NumPy or JAX."""
    weights = np.linspace(0.5, 1.5, PROBLEM.dimension)

    def init(x, net):
        return State(x, (), ())

    def step(state, net):
        return State(net.mix(state.x) - 0.1 * (weights * net.grad(state.x, net.sample(3))), (), ())

    method = peer.Method(init, step, "weighted")
    single = run(method, RING)
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    assert_close(run(method, RING).x, single.x)


@pytest.mark.parametrize("batch", [1, program.MERGED_FROM])
def test_constant_vectors_in_a_sweep(batch):
    weights = np.linspace(0.5, 1.5, PROBLEM.dimension)

    class weighted(peer.estimators.sgd):
        def step(self, x, memory, net):
            return weights * net.grad(x, net.sample(self.batch)), ()

        def init(self, x, net):
            return self.step(x, (), net)

    def method(alpha=0.1):
        return peer.compose(weighted(batch=batch), peer.fusions.consensus(alpha=alpha))

    swept = peer.sweep(method, {"alpha": [0.1]}, PROBLEM, RING, steps=7, precision=64)
    assert swept["loss"].tolist() == pytest.approx(
        run(method(), RING).table["loss"].tolist()[-1:], rel=1e-12
    )


@pytest.mark.parametrize(
    ("method", "network", "problem"),
    [
        (peer.methods.choco_sgd(alpha=0.1), RING, PROBLEM),
        (peer.methods.dsgd(alpha=0.1), TOP_K, PROBLEM),
        (peer.methods.proxgt(alpha=0.1), RING, peer.problems.composite(PROBLEM, group=(0.1, np.arange(29) // 3))),
    ],
    ids=["a compressor", "a fault", "a penalty"],
)  # fmt: skip
def test_what_acts_on_whole_vectors_gets_them_whole(method, network, problem, monkeypatch):
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    engine = stacked.Stacked(method, problem, network, 0, np.dtype("float32"))
    assert engine.program.parts == ()


def test_nodes_of_different_sizes_in_parts(monkeypatch):
    """Exact gradients are then weighted sums."""
    data = peer.datasets.load("digits").partition(10, by="dirichlet")
    params = {"w": np.zeros(64), "b": np.zeros(())}

    def logistic(params, batch):
        features, labels = batch
        return jnp.mean(jnp.log1p(jnp.exp(-labels * (features @ params["w"] + params["b"]))))

    problem = peer.problems.loss(logistic, params, data)
    assert len(set(problem.sizes)) > 1
    method, ring = peer.methods.gt_sarah(alpha=0.1, period=2), peer.Network(peer.topology.ring(10))
    single = run(method, ring, problem)
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    assert_close(run(method, ring, problem).x, single.x)


def test_a_run_in_parts_continues(monkeypatch):
    """What is stored are vectors, whatever they were computed in."""
    method = METHODS["gt-hsgd"][0]
    short = run(method, RING)
    monkeypatch.setattr(stacked, "IN_PARTS_FROM", 1)
    longer = peer.run(method, PROBLEM, RING, steps=14, precision=64, resume=short, record=2)
    monkeypatch.undo()
    assert_close(longer.x, peer.run(method, PROBLEM, RING, steps=14, precision=64, record=2).x)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 50])
def test_blocks_of_iterations_are_the_same_iterations(count, monkeypatch):
    def body(i, state):
        total, number = state
        return total * 3 + i, number + 1

    def all_of_them(skip, count):
        return program._repeated(body, skip, count, (jnp.int32(1), jnp.int32(0)))

    plain = [int(a) for a in jax.jit(lambda skip, count: all_of_them(skip, count))(5, count)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [
        int(a) for a in jax.jit(lambda skip, count: all_of_them(skip, count))(5, count)
    ] == plain
    assert plain[1] == count


def test_a_sum_is_a_product(monkeypatch):
    network, x = peer.Network(peer.topology.star(6), rounds=2), jnp.asarray(RNG.normal(size=(6, 9)))
    weights = mixing.weights_of(network, np.dtype("float32"))
    product = weights.at(0, 1, ()).mix(0, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    sums = mixing.in_sums(weights)
    assert sums.each.summed
    np.testing.assert_allclose(sums.at(0, 1, ()).mix(0, x), product, rtol=1e-5, atol=1e-6)


def deep(params, batch):
    """Products in a loop, in a branch, in a compiled function and as they come; a convolution; one in bfloat16."""
    hidden = jax.jit(jnp.matmul)(batch, params["a"])

    def layer(h, _):
        return lax.cond(h.sum() > 0, lambda h: h @ params["b"], lambda h: h, h), None

    hidden = lax.scan(layer, hidden, None, length=2)[0]
    image, kernel = hidden.reshape(1, 3, 5, 1), jnp.ones((3, 3, 1, 1), hidden.dtype)
    image = lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    short = hidden.astype(jnp.bfloat16) @ jnp.ones((5, 2), jnp.bfloat16)
    return (image**2).sum() + (short.astype(hidden.dtype) ** 2).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_only_products_in_float32_are_three(dtype):
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        params = {"a": jnp.ones((4, 5), dtype), "b": jnp.ones((5, 5), dtype)}
        gradient = jax.jit(products.by_three(jax.grad(deep)))
        text = export.export(gradient, platforms=["cuda"])(
            params, jnp.ones((3, 4), dtype)
        ).mlir_module()
    lines = text.splitlines()
    dots, convolutions = (
        [line for line in lines if f"stablehlo.{kind}" in line]
        for kind in ("dot_general", "convolution")
    )
    single = [line for line in dots if "xf32>" in line]
    assert len(single) == (5 if dtype == "float32" else 0)
    assert all("num_primitive_operations = 3" in line for line in single)
    others = [line for line in dots if line not in single]
    assert others
    assert not any("num_primitive_operations" in line for line in others)
    assert convolutions
    assert all("HIGHEST" in line for line in convolutions)


def test_a_function_by_three_is_the_same_function(monkeypatch):
    monkeypatch.setattr(products, "ALGORITHM", products.FULL)  # a CPU has no other
    params, batch = (
        {"a": jnp.ones((4, 5)), "b": jnp.ones((5, 5))},
        jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32),
    )
    with jax.default_matmul_precision("highest"):
        one, other = jax.grad(deep)(params, batch), products.by_three(jax.grad(deep))(params, batch)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))


def test_arithmetic_of_parts():
    x, y = (RNG.random((3, 7)) + 0.5 for _ in range(2))
    a, b = (parts.split(jnp.asarray(v), (2, 1, 4)) for v in (x, y))
    each = np.array([[1.0], [2.0], [3.0]])
    for ours, theirs in (
        (a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y), (2 / a, 2 / x), (2 - a, 2 - x),
        (a**0.5, x**0.5), (-a, -x), (0.5 * a + 1, 0.5 * x + 1), (1 + a, 1 + x), (a / jnp.asarray(each), x / each),
        (jnp.asarray(each) * a, x * each),
    ):  # fmt: skip
        np.testing.assert_allclose(parts.joined(ours), theirs, rtol=1e-5, atol=1e-6)
