"""Oracles that would see one sample for ever are refused: randomness of NumPy, Python or the clock, and unused keys."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.random import default_rng
from scipy.stats import norm

import peerdescent as peer
from peerdescent.problems import definition
from small import PROBLEMS, Compiled, assert_close

GENERATOR = np.random.default_rng(0)
FIXED = np.random.default_rng(1).normal(size=(3, 3))
COUNT = itertools.count()
OTHER_KEY = jax.random.key(0)
RING = peer.Network(peer.topology.ring(6))


@dataclass(frozen=True)
class Noisy:
    """x - a, with the noise that a function makes of the key and the batch size."""

    noise: Callable
    finite: bool = True

    def draw(self, key, data, batch):
        return self.noise(key, batch)

    def grad(self, x, sample, data):
        return x - data if sample is None else x - data + sample

    def exact(self, x, data):
        return 0.5 * jnp.sum((x - data) ** 2), x - data


class CompiledNoisy(Noisy):
    @partial(jax.jit, static_argnums=(0, 3))
    def draw(self, key, data, batch):
        return self.noise(key, batch)


def problem(noise, kind=Noisy):
    return peer.problems.Problem("noisy", kind(noise), np.arange(18.0).reshape(6, 3), 6, 3)


TWICE = "draw does not do the same twice: .* draw from the key that `draw` gets"
KEY = "draw returns does not depend on the key, .*: draw from the key"
PART = "draw returns is drawn from another key than the given one, .*: draw from the key"


def calls(name):
    return (
        f"draw calls {name}: .* draw from the key that `draw` gets, .* make what is fixed outside"
    )


SEEDED, GLOBAL = calls("numpy.random.default_rng"), calls("numpy.random.normal")


def normal(key):
    return jax.random.normal(key, (3,))


@jax.jit
def helped(key):
    """It is traced once, however often `draw` is."""
    return normal(key) + np.random.normal(size=3)  # noqa: NPY002


@jax.jit
def counted(key):
    return normal(key) + next(COUNT)


def row(key):
    return jnp.asarray(FIXED)[jax.random.randint(key, (), 0, 3)]


def looped(key, noise):
    """The noise is in the body of a loop, which JAX traces once too."""
    return jax.lax.fori_loop(0, 3, lambda k, x: x + noise(), normal(key))


def branched(key, noise):
    return jax.lax.cond(
        jax.random.bernoulli(key), lambda: normal(key) + noise(), lambda: normal(key)
    )


def listed(rows):
    """Its constants are arrays, which are not in the text of what is traced."""
    return lambda key, batch: jax.random.choice(key, jnp.asarray(rows())) + jnp.zeros(3)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (lambda key, batch: normal(key) + np.random.normal(), GLOBAL),  # noqa: NPY002
        (lambda key, batch: helped(key), GLOBAL),
        (lambda key, batch: counted(key), TWICE),
        (lambda key, batch: looped(key, np.random.normal), GLOBAL),
        (lambda key, batch: looped(key, GENERATOR.normal), TWICE),
        (lambda key, batch: branched(key, GENERATOR.normal), TWICE),
        (lambda key, batch: GENERATOR.normal(size=3), TWICE),
        (lambda key, batch: normal(key) + np.random.Generator.normal(GENERATOR), TWICE),
        (lambda key, batch: jnp.zeros(3) + random.random(), calls("random.random")),
        (lambda key, batch: normal(key) + random.Random(0).random(), calls("random.Random")),
        (lambda key, batch: normal(key) + time.perf_counter(), TWICE),
        (listed(lambda: GENERATOR.normal(size=(50, 3))), TWICE),
        (lambda key, batch: jnp.ones(3), KEY),
        (lambda key, batch: normal(jax.random.key(0)), KEY),
        (lambda key, batch: np.random.default_rng(0).normal(size=3), SEEDED),
        (lambda key, batch: (normal(key), np.random.default_rng(0).normal(size=3)), SEEDED),
        (lambda key, batch: row(key) + default_rng(0).normal(size=3), SEEDED),
        (
            lambda key, batch: normal(key) + np.random.RandomState(0).normal(),
            calls("numpy.random.RandomState"),
        ),
        (
            lambda key, batch: normal(key) + np.random.Generator(np.random.PCG64(0)).normal(),
            calls("numpy.random.PCG64"),
        ),
        (
            lambda key, batch: normal(key) + norm.rvs(random_state=0),
            calls("numpy.random.RandomState"),
        ),
        (lambda key, batch: (normal(key), normal(jax.random.key(0))), PART),
        (lambda key, batch: (normal(key), jax.jit(normal)(OTHER_KEY) + 1), PART),
        (
            lambda key, batch: (
                normal(key),
                jnp.asarray(FIXED)[jax.random.permutation(jax.random.key(0), 3)],
            ),
            PART,
        ),
    ],
)
@pytest.mark.parametrize("kind", [Noisy, CompiledNoisy])
def test_a_frozen_sample_is_refused(noise, message, kind):
    for _ in range(2):  # what JAX remembers of the first time does not help
        with pytest.raises(ValueError, match=f"{kind.__name__}.{message}"):
            problem(noise, kind)


@pytest.mark.parametrize("kind", [Noisy, CompiledNoisy])
def test_samples_by_the_key_are_not(kind):
    problem(listed(lambda: np.ones((50, 3))), kind)
    for other in (
        lambda key, batch: (
            normal(key),
            1,
            jnp.ones(3),
            jnp.arange(3),
            np.array([0.5, 0.25, 0.25]),
        ),
        lambda key, batch: (normal(key) @ FIXED, FIXED),
        lambda key, batch: normal(key) * isinstance(GENERATOR, np.random.Generator),
        lambda key, batch: normal(
            jax.random.fold_in(jax.random.key(0), jax.random.randint(key, (), 0, 9))
        ),
        lambda key, batch: (
            jax.random.poisson(key, 3.0, (3,)) + jax.random.gamma(key, 2.0) * normal(key)
        ),
    ):
        problem(other, kind)
    noisy = problem(lambda key, batch: jax.random.normal(key, (batch, 3)).mean(axis=0), kind)
    draws = {noisy.stochastic_grads(np.zeros(3), draw=d).tobytes() for d in range(5)}
    assert len(draws) == 5


class NoisyGradient(Noisy):
    """The noise is made of the sample."""

    def draw(self, key, data, batch):
        return jax.random.normal(key, (3,))

    def grad(self, x, sample, data):
        return x - data + self.noise(sample, 1)


class CompiledGradient(NoisyGradient):
    grad = partial(jax.jit, static_argnums=0)(NoisyGradient.grad)


@pytest.mark.parametrize("kind", [NoisyGradient, CompiledGradient])
def test_frozen_noise_of_a_gradient_is_refused(kind):
    with pytest.raises(
        ValueError, match=rf"{kind.__name__}\.grad does not do the same twice: .* that `draw` gets"
    ):
        problem(lambda sample, batch: sample + GENERATOR.normal(size=3), kind)
    with pytest.raises(
        ValueError, match=rf"{kind.__name__}\.grad calls numpy.random.default_rng: .* fixed outside"
    ):
        problem(lambda sample, batch: sample + default_rng(0).normal(size=3), kind)
    problem(lambda sample, batch: sample @ FIXED, kind)


def test_a_part_of_a_sample_may_be_the_nodes_own():
    class Own(Noisy):
        def draw(self, key, data, batch):
            return normal(key), data, jax.random.normal(jax.random.key(data[0].astype(int)), (3,))

    problem(None, Own)


def test_values_that_changed_around_a_compiled_function_are_no_noise():
    scale = [1.0]
    scaled = jax.jit(lambda key: scale[0] * normal(key))
    with jax.enable_x64(True):
        scaled(OTHER_KEY)
    scale[0] = 2.0
    problem(lambda key, batch: scaled(key))


def test_random_numbers_elsewhere_are_left_alone():
    """Another thread may draw meanwhile, and afterwards NumPy and Python are as before."""
    before = {module: dict(vars(module)) for module in (np.random, random)} | {
        "here": dict(globals())
    }

    def noise(key, batch):
        thread = threading.Thread(target=lambda: (np.random.default_rng(0), random.random()))
        thread.start()
        thread.join()
        return normal(key)

    problem(noise)
    with pytest.raises(ValueError, match=SEEDED):
        problem(lambda key, batch: default_rng(0).normal(size=3))
    assert before == {module: dict(vars(module)) for module in (np.random, random)} | {
        "here": dict(globals())
    }


def test_an_oracle_of_functions_is_checked_too():
    noisy = problem(lambda key, batch: jax.random.normal(key, (3,)))
    functions = {name: getattr(noisy.oracle, name) for name in ("grad", "exact", "finite")}
    with pytest.raises(ValueError, match=TWICE):
        replace(
            noisy,
            oracle=SimpleNamespace(
                draw=lambda key, data, batch: GENERATOR.normal(size=3), **functions
            ),
        )


def test_gradients_without_noise_draw_nothing():
    found = peer.run(
        peer.methods.gt_dsgd(0.3), problem(lambda key, batch: None), RING, steps=200, record=2
    )
    assert_close(found.x, np.broadcast_to([7.5, 8.5, 9.5], (6, 3)), 1e-5)


def test_what_cannot_be_traced_is_left_to_the_run():
    problem(lambda key, batch: np.asarray(jax.random.normal(key, (3,))))


def everything():
    data = peer.datasets.load("digits", rows=60, labels="classes").partition(6)
    yield from (build() for build in PROBLEMS.values())
    yield from (getattr(peer.problems, name)(data) for name in ("softmax", "pca", "perceptron"))
    yield peer.problems.quadratic(np.stack([np.eye(3)] * 6), tails=3.0)


def test_oracles_of_this_package_pass(monkeypatch):
    """They are not checked when they are made, to save the time."""
    monkeypatch.setattr(definition, "is_library", lambda thing: False)
    for own in everything():
        definition.check_random(own.oracle, own.data, own.dimension)
        replace(own, oracle=Compiled(own.oracle))
