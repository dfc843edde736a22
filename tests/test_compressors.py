"""Compressors: contractive, encoded exactly in as many bytes as they say, and alike in NumPy and JAX."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.compressors import (
    COMPRESSORS,
    Compressor,
    identity,
    parse,
    quantize,
    random_k,
    sign,
    top_k,
)
from peerdescent.engines.fleet import Fleet, Member
from peerdescent.threefry import COMPRESSION, source
from small import assert_close, coins, compiled, small_logistic, some

EVERY = [
    top_k(0.1),
    top_k(1.0),
    random_k(0.3),
    sign(),
    quantize(2),
    quantize(4),
    quantize(9),
    identity(),
]
NODES, P = 5, 37


def draws(xp, seed, t=0, nodes=NODES):
    return source(xp, seed, t, COMPRESSION, 0).of(xp.arange(nodes))


def vectors(dtype="float64"):
    x = np.random.default_rng(0).normal(size=(NODES, P)).astype(dtype) ** 3
    x[0, :5] = 0
    x[1] = 0
    return x


@pytest.mark.parametrize("operator", some(EVERY, 2), ids=str)
def test_it_contracts(operator):
    """E||C(x) - x||^2 < ||x||^2, measured over draws."""
    x = vectors()[2:]
    apart = [
        np.sum((operator.apply(x, draws(np, seed, nodes=3)) - x) ** 2, axis=1)
        for seed in range(400)
    ]
    ratio = np.mean(apart, axis=0) / np.sum(x**2, axis=1)
    assert (ratio < 1).all()
    if isinstance(operator, random_k):
        assert ratio == pytest.approx(1 - operator.kept(P) / P, abs=0.06)
    if isinstance(operator, quantize):  # it is the unbiased rounding, divided
        mean = np.mean(
            [operator.apply(x, draws(np, seed, nodes=3)) for seed in range(4000)], axis=0
        )
        assert mean * operator.shrink(P) == pytest.approx(x, abs=0.15 * np.abs(x).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operator", EVERY, ids=str)
def test_the_message_is_exact_and_as_long_as_it_says(operator, dtype):
    x = vectors(dtype)
    applied = operator.apply(x, draws(np, 3, 7))
    for node in range(NODES):
        by = source(np, 3, 7, COMPRESSION, 0).of(np.array([node]))
        message = operator.encode(x[node], by)
        assert message.dtype == np.uint8
        assert message.size == operator.size(P, x.itemsize)
        found = operator.decode(message, P, x.dtype, by)
        assert found.dtype == x.dtype
        assert np.array_equal(found, applied[node])


@pytest.mark.parametrize("operator", some(EVERY, 2), ids=str)
def test_jax_computes_the_same_with_configurations_between(operator):
    x = vectors()
    with jax.enable_x64(True):
        found = jax.jit(lambda x: operator.apply(x, draws(jnp, 3, 7)))(
            jnp.stack([x, 2 * x], axis=1)
        )
    assert_close(found[:, 0], operator.apply(x, draws(np, 3, 7)))
    assert_close(found[:, 1], operator.apply(2 * x, draws(np, 3, 7)))


def test_sizes():
    """Bytes of 37 entries of 4 or 8 bytes."""
    assert [top_k(0.1).size(P, s) for s in (4, 8)] == [4 * 8, 4 * 12]
    assert [random_k(0.1).size(P, s) for s in (4, 8)] == [4 * 4, 4 * 8]
    assert [sign().size(P, s) for s in (4, 8)] == [5 + 4, 5 + 8]
    assert [quantize(4).size(P, s) for s in (4, 8)] == [19 + 4, 19 + 8]
    assert [identity().size(P, s) for s in (4, 8)] == [37 * 4, 37 * 8]


def test_top_k_prefers_the_lower_index():
    x = np.array([[1.0, -2.0, 2.0, 2.0, 0.5]])
    for xp in (np, jnp):
        assert np.asarray(top_k(0.4).apply(xp.asarray(x), draws(xp, 0, nodes=1))).tolist() == [
            [0, -2, 2, 0, 0]
        ]


def test_random_choices_differ_between_nodes_and_iterations():
    ones = np.ones((NODES, P))
    one, again, later = (random_k(0.3).apply(ones, draws(np, 0, t)) for t in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, later)
    assert not np.array_equal(one[0], one[1])
    assert (one.sum(axis=1) == 12).all()


def test_texts_are_read_back():
    for operator in EVERY:
        assert parse(str(operator)) == operator
    ours = {kind for kind in COMPRESSORS.values() if kind.__module__ == Compressor.__module__}
    assert {type(operator) for operator in EVERY} == ours
    for text, message in {
        "top-k(2)": r"fraction of top_k = 2: must lie in \(0, 1\]",
        "top-k": r"compressor 'top-k': must be top-k\(fraction\)",
        "quantize(1)": "bits of quantize = 1: must be a whole number of 2 to 24",
        "quantize(2.5)": "must be a whole number of 2 to 24",
        "topk(0.1)": "unknown compressor 'topk'",
        "top-k(a)": r"'a' is not a number; give top-k\(fraction\)",
        "top-k(0.1": r"must be of the form name\(number\)",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse(text)
    with pytest.raises(ValueError, match="compressor = 3: must be one of top-k"):
        peer.fusions.choco(compressor=3)


@dataclass(frozen=True)
class half(Compressor):
    """A user's own: half precision."""

    def apply(self, x, draw):
        return x.astype("float16").astype(x.dtype)

    def encode(self, x, draw):
        return x.astype("float16").view(np.uint8)

    def decode(self, message, entries, dtype, draw):
        return message.view("float16").astype(dtype)

    def size(self, entries, item):
        return 2 * entries


def test_a_compressor_of_ones_own():
    problem, ring = compiled(small_logistic()), peer.Network(peer.topology.ring(6))
    method = peer.methods.choco_sgd(gamma=0.8, compressor=half(), batch=2)
    fast, slow = (
        peer.run(method, problem, ring, steps=30, precision=64, record=1, engine=e)
        for e in ("stacked", "debug")
    )
    assert_close(fast.x, slow.x)
    assert fast.table["bytes"].iloc[-1] == 30 * 2 * 2 * 5
    assert (
        fast.identity.facts["computes"]
        != peer.run(
            method.replace(compressor=sign()), problem, ring, steps=3, precision=64
        ).identity.facts["computes"]
    )


def test_what_would_be_compressed_twice_or_not_at_all_is_refused():
    problem, graph = small_logistic(), peer.topology.ring(6)
    method = peer.methods.beer()
    with pytest.raises(
        ValueError, match="beer compresses what it mixes, and 3 rounds would send sums"
    ):
        peer.run(method, problem, peer.Network(graph, rounds=3), steps=3)
    with pytest.raises(
        ValueError, match="beer compresses what it mixes, and quantize=4 would again"
    ):
        peer.run(method, problem, peer.Network(graph, faults=[peer.faults.quantize(4)]), steps=3)


def test_coins_have_their_probability():
    found = coins(0, 0.3, 20_000)
    assert abs(found.mean() - 0.3) < 4 * np.sqrt(0.21 / 20_000)
    assert coins(0, 1.0, 100).all()
    assert not np.array_equal(found, coins(1, 0.3, 20_000))


class first(Compressor):
    """Keeps the first k entries; no dataclass, so that k is no field."""

    def __init__(self, k):
        object.__setattr__(self, "k", k)

    def apply(self, x, draw):
        return x

    encode = decode = size = apply


@dataclass(frozen=True)
class halved(Compressor):
    """Halves the precision, and says or sends something else if told so."""

    wrong: str = ""

    def apply(self, x, draw):
        return (x.astype("float16") * (2 if self.wrong == "apply" else 1)).astype(x.dtype)

    def encode(self, x, draw):
        return x.astype("float16").view(np.uint8)

    def decode(self, message, entries, dtype, draw):
        return message.view("float16").astype(dtype)

    def size(self, entries, item):
        return (3 if self.wrong == "size" else 2) * entries


def test_compressors_that_contradict_themselves_are_refused():
    problem, ring = small_logistic(), peer.Network(peer.topology.ring(6))

    def run(compressor):
        return peer.run(peer.methods.choco_sgd(compressor=compressor), problem, ring, steps=3)

    assert run(halved()).table["bytes"].iloc[-1] == 3 * 2 * 2 * problem.dimension
    for bad, message in {
        first(2): "compressor first has k, which is no field: make it a frozen dataclass",
        halved("size"): r"says that 5 numbers take 15 bytes, and sends 10: correct its size",
        halved(
            "apply"
        ): "differs from what its message decodes to: make apply, encode and decode agree",
    }.items():
        with pytest.raises(ValueError, match=message):
            run(bad)
    with pytest.raises(ValueError, match=r"compressor = sign: give a compressor, as in sign\(\)"):
        run(peer.compressors.sign)


@pytest.mark.parametrize("fault", ["drop", "burst", "inactive"])
def test_methods_that_compress_refuse_links_that_lose_messages(fault):
    faults = {
        "drop": peer.faults.drop(0.1),
        "burst": peer.faults.burst(0.1, 0.5),
        "inactive": peer.faults.inactive(0.1),
    }
    network = peer.Network(peer.topology.ring(6), faults=[faults[fault]])
    with pytest.raises(
        ValueError, match=f"beer keeps what neighbours were told, and with {fault}=.* never hear it"
    ):
        peer.run(peer.methods.beer(), small_logistic(), network, steps=3)


@pytest.mark.parametrize("entries", [1, 2, 17, 300])
def test_random_entries_are_those_of_the_message(entries):
    """Applied without sorting, in NumPy and JAX, and encoded by places."""
    x = np.random.default_rng(1).normal(size=(3, entries))
    for fraction in (0.01, 0.3, 1.0):
        operator, nodes = random_k(fraction), np.arange(3)
        draw = source(np, 5, 2, COMPRESSION, 1).of(nodes)
        applied = operator.apply(x, draw)
        kept = np.take_along_axis(np.zeros_like(x), operator.places(x, draw), axis=-1)
        assert (applied != 0).sum() == 3 * operator.kept(entries) == kept.size
        for k in nodes:
            own = source(np, 5, 2, COMPRESSION, 1).of(nodes[k : k + 1])
            assert np.array_equal(
                operator.decode(operator.encode(x[k], own), entries, x.dtype, own), applied[k]
            )
        with jax.enable_x64(True):
            again = operator.apply(
                jnp.asarray(x), source(jnp, 5, 2, COMPRESSION, 1).of(jnp.asarray(nodes))
            )
            assert np.array_equal(again, applied)


FACTOR = 1.0


@dataclass(frozen=True)
class times(Compressor):
    """What it does depends on a value around it."""

    def apply(self, x, draw):
        return FACTOR * x

    def encode(self, x, draw):
        return (FACTOR * x).view(np.uint8)

    def decode(self, message, entries, dtype, draw):
        return message.view(dtype)

    def size(self, entries, item):
        return entries * item


def test_what_a_compressor_reads_now_counts(monkeypatch):
    problem, ring = small_logistic(), peer.Network(peer.topology.ring(6))

    def run(engine="stacked"):
        method = peer.methods.choco_sgd(alpha=0.3, compressor=times())
        return peer.run(method, problem, ring, steps=5, precision=64, engine=engine).x

    first = run()
    monkeypatch.setitem(globals(), "FACTOR", 0.1)
    assert np.abs(run() - first).max() > 1e-3
    assert_close(run(), run("debug"))


@dataclass(frozen=True)
class flipped(identity):
    """It draws in a shape that does not fit configurations."""

    def apply(self, x, draw):
        return draw.xp.where(draw.uniform(x.shape[-1], x.dtype) < 0.5, x, 0 * x)


@dataclass(frozen=True)
class another(identity):
    """It has the name of another."""


another.__name__ = "sign"


def test_sweeps_take_compressors_for_what_they_are():
    problem, ring = small_logistic(), peer.Network(peer.topology.ring(6))
    operator = flipped()
    with pytest.raises(
        ValueError, match=r"makes vectors of shape \(6, 6, 5\) of \(6, 1, 5\): keep it"
    ):
        fleet_of(problem, ring, peer.methods.choco_sgd(compressor=operator))
    with pytest.raises(
        ValueError, match="is not read as the same again; give it a name of its own"
    ):
        peer.sweep(
            peer.methods.choco_sgd,
            {"alpha": [0.1], "compressor": [another()]},
            problem,
            ring,
            steps=5,
        )


def fleet_of(problem, network, method):
    x0 = np.zeros((network.n, problem.dimension), np.float32)
    fleet = Fleet([Member(method, 0, (2,))], problem, network, x0, np.dtype("float32"))
    return next(iter(fleet.follow(np.array([[0]]), np.ones(1, dtype=bool))))


@pytest.mark.parametrize("operator", [top_k(0.1), random_k(0.1), sign(), quantize(4)], ids=str)
def test_nothing_is_put_into_places(operator):
    """XLA joins two scatters of one step into one kernel of a GPU, which wrote wrong values: MoTEF diverged there."""
    traced = str(jax.make_jaxpr(lambda x: operator.apply(x, draws(jnp, 0)))(jnp.asarray(vectors())))
    assert "scatter" not in traced
