"""Convolutions as matrix products: the same numbers and derivatives, wherever they are in a model; others stay."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import peerdescent as peer
from peerdescent.engines import compiled, convolutions, program
from peerdescent.engines.convolutions import as_products, by_products
from peerdescent.engines.products import by_three
from small import assert_close, some

NODES, ROWS = 4, 6
RNG = np.random.default_rng(0)
IMAGES, KERNEL = ("NHWC", "HWIO", "NHWC"), (3, 2, 3, 4)
IMAGE = (2, 7, 6, 3)


def normal(*shape, dtype="float64"):
    return jnp.asarray(RNG.normal(size=shape), dtype)


def equations(function, *values):
    """The names of all operations of a function, with those inside of others."""
    return str(jax.make_jaxpr(function)(*values))


def compare(function, *values):
    """A function and its gradients are the same by products, in which there is no convolution; also over nodes."""

    def squared(*values):
        return (function(*values) ** 2).sum()

    gradients, ours = (
        jax.value_and_grad(each, tuple(range(len(values))))
        for each in (squared, as_products(squared))
    )
    jax.tree.map(assert_close, jax.jit(ours)(*values), jax.jit(gradients)(*values))
    stacked = jax.tree.map(lambda a: jnp.stack([a, -a, a / 2]), values)
    assert "feature_group_count=3" in equations(jax.vmap(gradients), *stacked)
    assert "conv_general_dilated" not in equations(jax.vmap(ours), *stacked)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


CASES = {
    "same": (IMAGE, KERNEL, IMAGES, (1, 1), "SAME", (1, 1)),
    "valid": (IMAGE, KERNEL, IMAGES, (1, 1), "VALID", (1, 1)),
    "strides": (IMAGE, KERNEL, IMAGES, (2, 3), "SAME", (1, 1)),
    "strides that leave a rest": (IMAGE, KERNEL, IMAGES, (3, 4), "VALID", (1, 1)),
    "dilation": (IMAGE, KERNEL, IMAGES, (1, 1), "SAME", (2, 3)),
    "strides and dilation": (IMAGE, KERNEL, IMAGES, (2, 1), [(3, 1), (0, 2)], (2, 2)),
    "negative padding": (IMAGE, KERNEL, IMAGES, (1, 1), [(-1, 2), (0, -1)], (1, 1)),
    "channels first": ((2, 3, 7, 6), (4, 3, 3, 2), ("NCHW", "OIHW", "NCHW"), (2, 1), "SAME", (1, 2)),
    "axes in any order": ((7, 3, 2, 6), (2, 4, 3, 3), ("HCNW", "WOIH", "WNCH"), (2, 1), [(0, 1), (2, 0)], (1, 2)),
    "one place": (IMAGE, (1, 1, 3, 4), IMAGES, (2, 2), "SAME", (1, 1)),
    "as large as the image": ((2, 3, 4, 3), (3, 4, 3, 2), IMAGES, (1, 1), "VALID", (1, 1)),
    "one dimension": ((2, 9, 3), (4, 3, 2), ("NWC", "WIO", "NWC"), (2,), "SAME", (2,)),
    "three dimensions": ((2, 3, 4, 5, 2), (4, 3, 2, 3, 2), ("NCDHW", "OIDHW", "NCDHW"), (1, 2, 1), "SAME", (1, 1, 2)),
    "none": ((5, 3), (3, 4), ("NC", "IO", "NC"), (), [], ()),
}  # fmt: skip


@pytest.mark.parametrize("name", some(CASES, 3))
def test_the_same_numbers_and_derivatives(name):
    image, kernel, axes, strides, padding, apart = CASES[name]
    convolve = partial(
        lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        rhs_dilation=apart,
        dimension_numbers=axes,
    )
    x, w = normal(*image), normal(*kernel)
    assert_close(as_products(convolve)(x, w), convolve(x, w))
    compare(convolve, x, w)


def same(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=IMAGES)


@jax.custom_jvp
def halved(x, w):
    return same(x, w)


@halved.defjvp
def _(values, directions):
    return same(*values), sum(jax.jvp(same, values, directions)[1:]) / 2


def pair(x, w):
    """A convolution in an outer function, and two in an inner one."""
    return jax.jit(lambda x: same(jnp.tanh(same(x, w)), w))(same(x, w))


WHERE = {
    "jit": pair,
    "scan": lambda x, w: lax.scan(lambda x, _: (jnp.tanh(same(x, w)), x.sum()), x, None, length=3)[
        0
    ],
    "fori": lambda x, w: lax.fori_loop(0, 3, lambda _, x: jnp.tanh(same(x, w)), x),
    "cond": lambda x, w: lax.cond(
        x.sum() > 0, lambda x: same(x, w), lambda x: jnp.tanh(same(x, 2 * w)), x
    ),
    "switch": lambda x, w: lax.switch(1, [lambda x: x, lambda x: same(x, w)], x),
    "remat": jax.checkpoint(pair),
    "remat with a policy": jax.checkpoint(pair, policy=jax.checkpoint_policies.dots_saveable),
    "vmap": lambda x, w: jax.vmap(lambda row: same(row[None], w)[0])(x),
    "linear": lambda x, w: jax.jvp(lambda w: same(x, w), (w,), (jnp.tanh(w),))[1],
}


@pytest.mark.parametrize("name", some(WHERE, 3))
def test_convolutions_inside_of_others(name):
    compare(WHERE[name], normal(2, 5, 4, 3), normal(3, 2, 3, 3))


def test_in_a_loop_of_unknown_length():
    def loop(x, w):
        return lax.while_loop(lambda x: jnp.abs(x).sum() > 1, lambda x: same(x, w) / 20, x)

    values = normal(2, 5, 4, 3), normal(3, 2, 3, 3)
    assert_close(as_products(loop)(*values), loop(*values))
    assert "conv_general_dilated" not in equations(as_products(loop), *values)


def test_derivatives_of_ones_own_stay():
    x, w = normal(2, 5, 4, 3), normal(3, 2, 3, 3)
    for function in (halved, _by_vjp()):
        assert_close(as_products(function)(x, w), function(x, w))
        assert (
            "conv_general_dilated"
            not in equations(as_products(function), x, w).split("jvp_jaxpr_fun")[0]
        )
        one, other = (
            jax.grad(lambda *v, f=f: (f(*v) ** 2).sum(), 1)(x, w)
            for f in (as_products(function), function)
        )
        assert_close(one, other)
        right = jax.grad(lambda *v: (same(*v) ** 2).sum(), 1)(x, w)
        assert_close(2 * one, right)


def _by_vjp():
    function = jax.custom_vjp(same)
    function.defvjp(
        lambda x, w: (same(x, w), (x, w)),
        lambda kept, g: tuple(a / 2 for a in jax.vjp(same, *kept)[1](g)),
    )
    return function


def unusual(x, w, **settings):
    return lax.conv_general_dilated(
        x, w, (1, 1), [(1, 1), (6, 6)], dimension_numbers=IMAGES, **settings
    )


@pytest.mark.parametrize(
    ("function", "image", "kernel", "dtype"),
    [
        (partial(unusual, feature_group_count=3), (2, 5, 5, 3), (3, 3, 1, 3), "float64"),
        (partial(unusual, feature_group_count=2), (2, 5, 5, 4), (3, 3, 2, 4), "float64"),
        (partial(unusual, batch_group_count=2), (2, 5, 5, 3), (3, 3, 3, 4), "float64"),
        (partial(unusual, lhs_dilation=(2, 1)), (2, 5, 5, 3), (3, 3, 3, 4), "float64"),
        (unusual, (2, 5, 5, 3), (3, 3, 3, 4), "int32"),
        (unusual, (2, 5, 5, 3), (3, 3, 3, 4), "complex128"),
        (unusual, (2, 15, 5, 3), (13, 13, 3, 1), "float64"),
        (unusual, (0, 5, 5, 3), (3, 3, 3, 4), "float64"),
        (
            lambda x, w: unusual(*(lax.broadcast(1.0, a.shape) for a in (x, w))),
            (2, 5, 5, 3),
            (3, 3, 3, 4),
            "float64",
        ),
    ],
    ids=[
        "depthwise",
        "groups",
        "rows in groups",
        "transposed",
        "whole numbers",
        "complex",
        "large",
        "empty",
        "weak",
    ],
)
def test_unusual_ones_stay(function, image, kernel, dtype):
    values = normal(*image, dtype=dtype), normal(*kernel, dtype=dtype)
    assert equations(as_products(function), *values) == equations(function, *values)


def test_without_convolutions_nothing_changes():
    """The function itself is called, and not what was traced of it."""
    calls = []

    def function(x, w):
        calls.append(type(x).__name__)
        return jnp.tanh(x @ w).sum()

    as_products(function)(normal(2, 3), normal(3, 4))
    assert calls == ["DynamicJaxprTracer", "ArrayImpl"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "bf16[2,5,15,4] = dot_general"),
        ({"precision": "highest"}, "precision=(Precision.HIGHEST, Precision.HIGHEST)"),
        ({"preferred_element_type": jnp.float32}, "preferred_element_type=float32"),
    ],
)
def test_precision_is_that_of_the_convolution(settings, said):
    values = normal(2, 5, 5, 3, dtype="bfloat16"), normal(3, 3, 3, 4, dtype="bfloat16")
    function = partial(unusual, **settings)
    text = equations(as_products(function), *values)
    assert said in text
    assert "conv_general_dilated" not in text
    one, other = as_products(function)(*values), function(*values)
    assert one.dtype == other.dtype
    assert_close(one.astype(float), other.astype(float), 2e-2)


def test_products_of_convolutions_are_three_on_a_gpu():
    values = normal(2, 5, 4, 3, dtype="float32"), normal(3, 2, 3, 3, dtype="float32")
    with jax.default_matmul_precision("highest"):
        text = equations(
            by_three(jax.grad(lambda *v: (as_products(same)(*v) ** 2).sum(), (0, 1))), *values
        )
    assert text.count("= dot_general") == text.count("TF32_TF32_F32_X3") == 3


def convolutional(params, batch):
    x, labels = batch
    x = jax.nn.relu(
        lax.conv_general_dilated(x, params["w"], (2, 2), "SAME", dimension_numbers=IMAGES)
        + params["b"]
    )
    x = jnp.tanh(same(x, params["v"])).reshape(len(x), -1)
    return -jnp.take_along_axis(
        jax.nn.log_softmax(x @ params["out"]), labels[:, None], axis=1
    ).mean()


DATA = RNG.normal(size=(NODES, ROWS, 6, 6, 2)), RNG.integers(0, 3, size=(NODES, ROWS))
PARAMS = {
    "w": RNG.normal(size=(3, 3, 2, 3)) / 4,
    "b": np.zeros(3),
    "v": RNG.normal(size=(3, 3, 3, 2)) / 4,
    "out": RNG.normal(size=(18, 3)) / 4,
}
PROBLEM = peer.problems.loss(convolutional, PARAMS, DATA)
RING = peer.Network(peer.topology.ring(NODES))


METHOD = peer.methods.dsgd(alpha=0.2, batch=3)


def run(engine):
    return peer.run(METHOD, PROBLEM, RING, steps=3, precision=64, record=1, engine=engine)


@pytest.fixture
def products(monkeypatch):
    """How many convolutions became products."""
    seen = []
    own = convolutions.convolution
    monkeypatch.setattr(
        convolutions, "convolution", lambda *values, **more: seen.append(1) or own(*values, **more)
    )
    return seen


def test_a_run_is_that_of_the_debug_engine(products):
    plain = run(engine="debug")
    assert not products
    for engine in ("stacked", "sharded"):
        products.clear()
        assert_close(run(engine=engine).x, plain.x)
        assert products
    assert np.abs(plain.x - plain.x.mean(axis=0)).max() > 1e-3, "nodes differ"


@pytest.mark.parametrize(
    ("nodes", "gpu", "expected"), [(1, False, 6), (2, False, 6), (1, True, 0), (2, True, 2)]
)
def test_where_convolutions_are_products(nodes, gpu, expected, products, monkeypatch):
    """On a GPU only for minibatches of several nodes: of a step's gradients and exact ones, and of an evaluation."""
    some = peer.problems.loss(convolutional, PARAMS, tuple(a[:nodes] for a in DATA))
    monkeypatch.setattr(program, "on_gpu", lambda: gpu)
    data, x = jax.tree.map(jnp.asarray, some.data), jnp.tile(some.start, (nodes, 1))
    step = program.Program(METHOD.pattern, some.oracle, ())
    net = program.Net(step, data, None, jnp.uint32(0), 0, {})
    jax.eval_shape(lambda x: (net.grad(x, net.sample(2)), net.full_grad(x)), x)
    jax.eval_shape(lambda x: compiled._average(some.oracle, x, data), x)
    assert len(products) == expected


class Flax(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Conv(2, 3, (3, 3), rngs=rngs), nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)).mean(axis=(1, 2)))


class Equinox(eqx.Module):
    first: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first, self.last = (
            eqx.nn.Conv2d(2, 3, 3, padding=1, key=key),
            eqx.nn.Linear(3, 3, key=key),
        )

    def __call__(self, x):
        return self.last(jax.nn.relu(self.first(x.transpose(2, 0, 1))).mean(axis=(1, 2)))


def flax():
    graph, params = nnx.split(Flax(nnx.Rngs(0)), nnx.Param)
    return params, lambda params, x: nnx.merge(graph, params)(x)


def equinox():
    params, static = eqx.partition(Equinox(jax.random.key(0)), eqx.is_inexact_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


@pytest.mark.parametrize("model", [flax, equinox])
def test_models_of_libraries(model, products):
    params, predict = model()

    def loss(params, batch):
        return -jnp.take_along_axis(
            jax.nn.log_softmax(predict(params, batch[0])), batch[1][:, None], axis=1
        ).mean()

    problem = peer.problems.loss(loss, params, DATA)
    values = (
        jnp.asarray(problem.start),
        jnp.arange(3),
        jax.tree.map(lambda a: jnp.asarray(a[0]), problem.data),
    )
    expected = jax.jit(problem.oracle.grad)(*values)
    assert not products
    assert_close(jax.jit(by_products(problem.oracle).grad)(*values), expected)
    assert products
