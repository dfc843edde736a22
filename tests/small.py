"""Small problems for the tests, ways to watch a run, and what is expected of it; without pytest, for children too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import peerdescent as peer
from peerdescent.engines.registry import engine_class
from peerdescent.keys import below, node_keys
from peerdescent.threefry import coin

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "random"
"""Whether these are the tests of `make test-long`, which have all cases."""


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?")


def some(cases: Iterable[Any], share: int, *always: Any) -> list[Any]:
    """All cases in `make test-long`; in `make test` one in so many of them, and those that are always there.

    For cases whose code is the same, and whose differences other tests cover.
    """
    listed = list(cases)
    return [case for k, case in enumerate(listed) if LONG or k % share == 0 or case in always]


def alike(stored, found, rtol=0.02):
    """Whether texts are the same but for the last digits of numbers, which differ between processors."""
    if NUMBER.sub("#", stored) != NUMBER.sub("#", found):
        return False
    left, right = (
        [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (stored, found)
    )
    return bool(np.allclose(left, right, rtol=rtol, atol=1e-6))


def small_logistic(nodes: int = 6, samples: int = 11, features: int = 5, **options):
    data = peer.datasets.synthetic(nodes * samples, features, seed=3)
    return peer.problems.logistic(data.partition(nodes), **options)


def small_quadratic(nodes: int = 6, p: int = 5, seed: int = 0, noise: float = 0.3):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(nodes, p, p))
    return peer.problems.quadratic(
        (root + root.transpose(0, 2, 1)) / 8 + np.eye(p), rng.normal(size=(nodes, p)), noise
    )


def small_streaming(nodes: int = 6):
    return peer.problems.streaming(nodes, features=5)


def _mlp(params, batch):
    features, labels = batch
    hidden = jnp.tanh(features @ params["in"] + params["bias"])
    return jnp.mean(jax.nn.softplus(-labels * (hidden @ params["out"])))


def small_loss(nodes: int = 6):
    rng = np.random.default_rng(5)
    params = {"in": rng.normal(size=(4, 3)) / 2, "bias": np.zeros(3), "out": rng.normal(size=3)}
    return peer.problems.loss(
        _mlp, params, peer.datasets.synthetic(nodes * 9, 4, seed=4).partition(nodes)
    )


PROBLEMS = {
    "logistic": small_logistic,
    "quadratic": small_quadratic,
    "streaming": small_streaming,
    "loss": small_loss,
}


def unmeasured(*_: Any) -> tuple[float, tuple[float, float]]:
    """In the place of `spectra.estimated`, where lambda is only part of a network's name."""
    return 0.5, (0.5, 0.5)


@dataclass(frozen=True)
class Compiled:
    """An oracle whose functions are compiled, so that the debug engine, which calls them node by node, is quick."""

    oracle: Any

    @property
    def finite(self):
        return self.oracle.finite

    @partial(jax.jit, static_argnums=(0, 3), inline=True)
    def draw(self, key, data, batch):
        return self.oracle.draw(key, data, batch)

    @partial(jax.jit, static_argnums=0, inline=True)
    def grad(self, x, sample, data):
        return self.oracle.grad(x, sample, data)

    @partial(jax.jit, static_argnums=0, inline=True)
    def exact(self, x, data):
        return self.oracle.exact(x, data)


def compiled(problem):
    """The same problem, quick on the debug engine."""
    return replace(problem, oracle=Compiled(problem.oracle))


@cache
def drawn(seed: int, nodes: int, samples: int, batch: int, steps: int) -> np.ndarray:
    """The rows that the package draws in iterations 0, ..., steps - 1, of as many samples a node (steps, n, batch)."""

    def draw(seed, t):
        return jax.vmap(lambda key: below(key, jnp.asarray(samples), batch))(
            node_keys(seed, jnp.arange(nodes), t)
        )

    return np.asarray(jax.jit(jax.vmap(draw, (None, 0)))(jnp.uint32(seed), jnp.arange(steps)))


def coins(seed: int, probability: float, steps: int) -> np.ndarray:
    """The coins that all nodes share in iterations 0, ..., steps - 1: whether each shows `then` (steps,)."""
    return coin(np, seed, np.arange(steps), 0, probability)


def states(
    method, problem, network, steps: int, *, seed: int = 0, x0=None, engine: str = "stacked"
) -> Iterator:
    """The states after iterations 0, 1, ..., steps - 1, as NumPy float64 (they hold x_1, x_2, ..., x_steps)."""
    x0 = np.zeros((problem.nodes, problem.dimension)) if x0 is None else x0
    with jax.enable_x64(True):
        machine = engine_class(engine)(method, problem, network, seed, np.dtype("float64"))
        machine.chunk = 1  # it advances by one step at a time here: draw no further ahead
        state = machine.start(x0)
        kept = [jax.tree.map(np.array, state)]
        for t in range(1, steps):
            state = machine.advance(state, t, t + 1)
            kept.append(jax.tree.map(np.array, state))
    return kept


class Spy:
    """A progress meter that remembers, and that may press Ctrl-C."""

    def __init__(self, interrupt_at: int | None = None):
        self.seen, self.ended, self.interrupt_at = [], False, interrupt_at

    def begin(self, label, total):
        self.label, self.total = label, total

    def update(self, step, loss):
        self.seen.append((step, loss))
        if self.interrupt_at is not None and step >= self.interrupt_at:
            raise KeyboardInterrupt

    def end(self):
        self.ended = True


def assert_close(actual, expected, relative: float = 1e-12) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    scale = max(np.abs(expected).max(), 1e-300)
    assert np.abs(actual - expected).max() <= relative * scale, (
        np.abs(actual - expected).max() / scale
    )


@contextmanager
def compilations(seen):
    """Appends the name of every function that is compiled meanwhile."""

    listening = True  # there is no public way to remove a listener in JAX 0.8

    def listener(event, duration, fun_name="", **_):
        if listening and event.endswith("backend_compile_duration"):
            seen.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield
    finally:
        listening = False


def count_compilations(action):
    seen = []
    with compilations(seen):
        action()
    return len(seen)


class State(NamedTuple):
    """The state of a method written by hand."""

    x: Any


def by_hand(alpha=0.1):
    """DSGD as a user writes it, whose arguments nothing declares."""

    def init(x, net):
        return State(x)

    def step(state, net):
        return State(net.mix(state.x - alpha * net.grad(state.x, net.sample(1))))

    return peer.Method(init, step, "by hand")
