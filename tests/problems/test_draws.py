"""Oracles that would see one sample for ever are refused: randomness of NumPy, Python or the clock, and unused keys."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.problems import definition
from small import PROBLEMS, Compiled, assert_close

GENERATOR = np.random.default_rng(0)
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


def listed(rows):
    """Its constants are arrays, which are not in the text of what is traced."""
    return lambda key, batch: jax.random.choice(key, jnp.asarray(rows())) + jnp.zeros(3)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (lambda key, batch: jax.random.normal(key, (3,)) + np.random.normal(), TWICE),  # noqa: NPY002
        (lambda key, batch: GENERATOR.normal(size=3), TWICE),
        (lambda key, batch: jnp.zeros(3) + random.random(), TWICE),
        (lambda key, batch: jax.random.normal(key, (3,)) + time.perf_counter(), TWICE),
        (listed(lambda: GENERATOR.normal(size=(50, 3))), TWICE),
        (lambda key, batch: jnp.ones(3), KEY),
        (lambda key, batch: jax.random.normal(jax.random.key(0), (3,)), KEY),
        (lambda key, batch: np.random.default_rng(0).normal(size=3), KEY),
    ],
)
@pytest.mark.parametrize("kind", [Noisy, CompiledNoisy])
def test_a_frozen_sample_is_refused(noise, message, kind):
    with pytest.raises(ValueError, match=f"{kind.__name__}.{message}"):
        problem(noise, kind)


@pytest.mark.parametrize("kind", [Noisy, CompiledNoisy])
def test_samples_by_the_key_are_not(kind):
    problem(listed(lambda: np.ones((50, 3))), kind)
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
    with pytest.raises(ValueError, match=rf"{kind.__name__}\.grad does not do the same twice: .* that `draw` gets"):
        problem(lambda sample, batch: sample + GENERATOR.normal(size=3), kind)
    problem(lambda sample, batch: sample, kind)


def test_an_oracle_of_functions_is_checked_too():
    noisy = problem(lambda key, batch: jax.random.normal(key, (3,)))
    functions = {name: getattr(noisy.oracle, name) for name in ("grad", "exact", "finite")}
    with pytest.raises(ValueError, match=TWICE):
        replace(noisy, oracle=SimpleNamespace(draw=lambda key, data, batch: GENERATOR.normal(size=3), **functions))


def test_gradients_without_noise_draw_nothing():
    found = peer.run(peer.methods.gt_dsgd(0.3), problem(lambda key, batch: None), RING, steps=200, record=2)
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
