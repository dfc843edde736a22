"""Models of flax and equinox: they train as the same model in plain JAX, and stored results know them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import peerdescent as peer
from children import python
from peerdescent.digests import fingerprint
from peerdescent.problems.definition import digest
from small import assert_close, some

DATA = peer.datasets.load("digits", rows=180, labels="classes")
RING = peer.Network(peer.topology.ring(6))
METHOD = peer.methods.gt_dsgd(alpha=0.5, batch=8)


class Nnx(nnx.Module):
    def __init__(self, rngs, activation=jnp.tanh):
        self.first, self.last = nnx.Linear(64, 5, rngs=rngs), nnx.Linear(5, 10, rngs=rngs)
        self.activation = activation

    def __call__(self, x):
        return self.last(self.activation(self.first(x)))


class Linen(nn.Module):
    width: int = 5
    activation: Any = jnp.tanh

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(self.activation(nn.Dense(self.width, name="first")(x)))


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear
    activation: Any

    def __init__(self, key, activation=jnp.tanh):
        one, two = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(64, 5, key=one), eqx.nn.Linear(5, 10, key=two)
        self.activation = activation

    def __call__(self, x):
        return self.last(self.activation(self.first(x)))


def nnx_module(*more):
    return Nnx(nnx.Rngs(0), *more), lambda model, x: model(x)


def nnx_split(*more):
    graph, params = nnx.split(Nnx(nnx.Rngs(0), *more), nnx.Param)
    return params, lambda params, x: nnx.merge(graph, params)(x)


def linen(*more):
    model = Linen(5, *more)
    return model.init(jax.random.key(0), jnp.zeros((1, 64))), model.apply


def equinox(*more):
    params, static = eqx.partition(Equinox(jax.random.key(0), *more), eqx.is_inexact_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


MODELS = {each.__name__: each for each in (nnx_module, nnx_split, linen, equinox)}


def weights(params):
    """The arrays of any of these models, in one order and orientation."""
    if isinstance(params, Equinox):
        return [a for layer in (params.first, params.last) for a in (layer.weight.T, layer.bias)]
    if isinstance(params, Nnx):
        return [a[...] for layer in (params.first, params.last) for a in (layer.kernel, layer.bias)]
    layers = (
        (params["params"][name] for name in ("first", "Dense_0"))
        if "params" in params
        else params.values()
    )
    return [np.asarray(layer[name]) for layer in layers for name in ("kernel", "bias")]


def plain(params, x):
    W1, b1, W2, b2 = params
    return jnp.tanh(x @ W1 + b1) @ W2 + b2


def problem(params, predict):
    def cross_entropy(params, batch):
        scores = jax.nn.log_softmax(predict(params, batch[0]))
        return -jnp.take_along_axis(scores, batch[1][:, None], axis=1).mean()

    return peer.problems.loss(cross_entropy, params, DATA.partition(6, by="label"), name="mlp")


@pytest.mark.parametrize("name", some(MODELS, 2))
def test_a_model_trains_as_the_same_one_in_plain_jax(name):
    params, predict = MODELS[name]()
    own, other = problem(params, predict), problem([np.asarray(a) for a in weights(params)], plain)
    found, expected = (
        peer.run(
            METHOD,
            each,
            RING,
            steps=200,
            record=2,
            precision=64,
            metrics=[peer.accuracy(how, *rows)],
        )
        for each, how, rows in ((own, predict, rows()), (other, plain, rows()))
    )
    for x, y in zip(found.x, expected.x, strict=True):
        for a, b in zip(weights(own.unflatten(x)), other.unflatten(y), strict=True):
            assert_close(a, b, 1e-12)
    table = found.table
    assert table["loss"].iloc[-1] < 0.8 * table["loss"].iloc[0]
    assert table["test accuracy"].iloc[-1] > table["test accuracy"].iloc[0] + 0.2
    assert table["test accuracy"].tolist() == expected.table["test accuracy"].tolist()


def rows():
    return DATA.features, DATA.labels


def test_an_unflattened_module_can_be_called():
    params, predict = nnx_module()
    own = problem(params, predict)
    assert_close(
        own.unflatten(own.start.astype(np.float32))(DATA.features[:3]),
        params(DATA.features[:3]),
        1e-6,
    )


@pytest.mark.parametrize("name", MODELS)
def test_another_model_is_another_problem_and_has_another_fingerprint(name):
    """The parameters are of the same form, so nothing but what the model does tells them apart."""
    problems = [
        problem(*MODELS[name](*more)) for more in ((), (), (jax.nn.relu,), (lambda x: 2 * x,))
    ]
    found = [digest(each.definition) for each in problems]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    if (
        name != "nnx_module"
    ):  # whose parts are in the structure of the parameters, not in the function
        codes = [each.oracle.value_and_grad.code for each in problems]
        assert codes[0] == codes[1]
        assert len(set(codes)) == 3


def called(base, factor):
    """A model whose method is called, which has a name with underscores."""
    if base is nn.Module:

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return factor * nn.Dense(3)(x)

        return Model().apply
    if base is nnx.Module:

        class Model(nnx.Module):
            def __init__(self):
                self.layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))

            def __call__(self, x):
                return factor * self.layer(x)

        graph, _ = nnx.split(Model())
        return lambda params, x: nnx.merge(graph, params)(x)

    class Model(eqx.Module):
        w: Any = None

        def __call__(self, x):
            return factor * self.w @ x

    static = Model()
    return lambda params, x: eqx.combine(params, static)(x)


@pytest.mark.parametrize("base", [nn.Module, nnx.Module, eqx.Module])
def test_the_text_of_a_model_counts(base):
    assert (
        fingerprint(called(base, 2)) == fingerprint(called(base, 2)) != fingerprint(called(base, 3))
    )


@pytest.mark.parametrize(
    "make", [lambda seed: Nnx(nnx.Rngs(seed)), lambda seed: Equinox(jax.random.key(seed))]
)
def test_the_weights_of_a_model_that_a_function_holds_count(make):
    def held(model):
        return lambda params, x: model(x) + params

    assert fingerprint(held(make(0))) == fingerprint(held(make(0))) != fingerprint(held(make(1)))


def test_state_beside_the_parameters_counts():
    def held(mean):
        layer = nnx.BatchNorm(2, use_running_average=True, rngs=nnx.Rngs(0))
        layer.mean[...] = jnp.full(2, mean)
        graph, _, rest = nnx.split(layer, nnx.Param, ...)
        return lambda params, x: nnx.merge(graph, params, rest)(x)

    assert fingerprint(held(0.0)) == fingerprint(held(0.0)) != fingerprint(held(1.0))


def test_the_fingerprint_of_a_model_is_the_same_in_another_process_and_after_others_were_made():
    code = (
        "import jax\nfrom flax import nnx\nfrom peerdescent.digests import fingerprint\n"
        "def made():\n"
        "    graph, _ = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))\n"
        "    return lambda params, x: nnx.merge(graph, params)(x)\n"
        "print(fingerprint(made()))\n"
        "class Other(nnx.Module): pass\n"
        "nnx.split(Other())\n"
        "print(fingerprint(made()))\n"
    )
    said = [python("-c", code) for _ in range(2)]
    assert len({*said[0].stdout.split(), *said[1].stdout.split()}) == 1, said[0].stderr


@pytest.mark.parametrize(
    ("params", "what"),
    [
        (
            lambda: eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)),
            r"params.activation is of type custom_jvp",
        ),
        (
            lambda: {"w": np.ones(2), "step": jnp.zeros((), int)},
            r"params\['step'\] is an array of int32",
        ),
        (lambda: [1.0, 2], r"params\[1\] is an array of int64"),
        (lambda: {"mask": np.ones(2, bool)}, r"params\['mask'\] is an array of bool"),
        (lambda: {"w": np.ones(2, complex)}, r"params\['w'\] is an array of complex128"),
        (lambda: {"key": jax.random.key(0)}, r"params\['key'\] is an array of key<fry>"),
        (
            lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)),
            r"params.rngs.count.value is an array of uint32",
        ),
        (lambda: {"name": "mlp"}, r"params\['name'\] is an array of <U3"),
    ],
    ids=["function", "counter", "whole number", "mask", "complex", "key", "count", "text"],
)
def test_leaves_that_have_no_gradient_are_refused(params, what):
    with pytest.raises(
        ValueError,
        match=what + ": parameters are floating-point arrays; convert it, or split it off",
    ):
        peer.problems.loss(lambda params, batch: 0.0, params(), np.ones((6, 2, 2)))


def test_parameters_of_any_precision_have_that_of_the_run():
    seen = []

    def squared(w, batch):
        seen.append(w.dtype.name)
        return jnp.mean((batch @ w) ** 2)

    half = peer.problems.loss(squared, jnp.full(3, 0.1, "bfloat16"), np.ones((6, 2, 3)))
    assert half.start.tolist() == [float(jnp.bfloat16(0.1))] * 3
    for precision in (32, 64):
        seen.clear()
        peer.run(peer.methods.dsgd(), half, RING, steps=2, record=1, precision=precision)
        assert f"float{precision}" in seen
        assert "bfloat16" not in seen


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nnx.BatchNorm, "batch normalisation and dropout give no such mean"),
        (lambda size, rngs: nnx.Dropout(0.5, rngs=rngs), "so it is random: leave dropout out"),
    ],
)
def test_layers_that_make_a_loss_no_mean_over_rows_are_refused(layer, message):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.layer = nnx.Linear(64, 10, rngs=rngs), layer(10, rngs=rngs)

        def __call__(self, x):
            return self.layer(self.linear(x))

    graph, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)
    with pytest.raises(ValueError, match=message):
        problem(params, lambda params, x: nnx.merge(graph, params, rest)(x))
