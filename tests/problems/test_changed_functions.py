"""A loss or an oracle that reads values from around it is computed with those of now, not with earlier ones."""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import peerdescent as peer
from small import some

ROWS = np.random.default_rng(0).normal(size=(4, 16, 3))
RING = peer.Network(peer.topology.ring(4))
AROUND: dict[str, object] = {}
CONTEXT = ContextVar("weight", default=0.1)
WEIGHT, LISTS, SPARSE = 0.1, [[0, 1], 2], sparse.BCOO.fromdense(jnp.eye(3))
LARGE, OBJECTS = np.zeros(5000), np.empty(1, object)
WINDOW, OBJECTS[0] = deque([LARGE]), LARGE


def fitted(w, a):
    return jnp.mean((a @ w - 1) ** 2)


def by_global(w, a):
    return fitted(w, a) + WEIGHT * jnp.sum(w**2)


def decorated(function):
    @functools.wraps(function)
    def wrapper(w, a):
        return function(w, a) + AROUND["weight"] * jnp.sum(w**2)

    return wrapper


def by_attribute(w, a):
    return fitted(w, a) + by_attribute.weight * jnp.sum(w**2)


def store():
    """Has a weight."""


def by_store(w, a):
    return fitted(w, a) + store.weight * jnp.sum(w**2)


def by_window(w, a):
    return fitted(w, a) + WINDOW[0].max() * jnp.sum(w**2)


def by_objects(w, a):
    return fitted(w, a) + OBJECTS[0].max() * jnp.sum(w**2)


package = types.ModuleType("their_package")
package.inner = types.ModuleType("their_package.inner")


def by_inner_module(w, a):
    return fitted(w, a) + package.inner.weight * jnp.sum(w**2)


def by_import(w, a):
    from their_package.inner import weight

    return fitted(w, a) + weight * jnp.sum(w**2)


def by_context(w, a):
    return fitted(w, a) + CONTEXT.get() * jnp.sum(w**2)


def by_sparse(w, a):
    return fitted(w, a) + w @ (SPARSE @ w)


def by_lists(w, a):
    return fitted(w, a) + len(LISTS) * jnp.sum(w**2)


def set_weight(value):
    global WEIGHT, SPARSE
    WEIGHT = AROUND["weight"] = by_attribute.weight = package.inner.weight = store.weight = LARGE[
        2500
    ] = value
    SPARSE = sparse.BCOO.fromdense(value * jnp.eye(3))
    CONTEXT.set(value)
    LISTS[:] = [[0, 1], 2] if value < 1 else [[0], 1, 2]


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "their_package", package)
    monkeypatch.setitem(sys.modules, "their_package.inner", package.inner)
    set_weight(0.1)


@dataclass(frozen=True)
class Own:
    """An oracle of a user's own."""

    finite: ClassVar[bool] = True

    def draw(self, key, data, batch):
        return data[jax.random.randint(key, (batch,), 0, data.shape[0])]

    def grad(self, x, sample, data):
        return 2 * (sample @ x - 1) @ sample / sample.shape[0] + 2 * WEIGHT * x

    def exact(self, x, data):
        return by_global(x, data), 2 * (data @ x - 1) @ data / data.shape[0] + 2 * WEIGHT * x


class Plain:
    """The same without a definition of equality."""

    finite, draw, grad, exact = True, Own.draw, Own.grad, Own.exact


def of(oracle):
    return peer.problems.Problem(
        name="own", oracle=oracle, data=ROWS, nodes=4, dimension=3, sizes=np.full(4, len(ROWS[0]))
    )


LOSSES = [
    by_global,
    decorated(fitted),
    by_attribute,
    by_inner_module,
    by_import,
    by_context,
    by_sparse,
    by_lists,
]
LOSSES += [by_store, by_window, by_objects]
NAMES = [
    "a global",
    "a wrapper",
    "an attribute",
    "a module",
    "an import",
    "a context",
    "a sparse array",
    "lists",
]
NAMES += ["an attribute of another function", "a deque", "an object array"]
MADE = {
    name: functools.partial(peer.problems.loss, one, np.zeros(3), ROWS)
    for name, one in zip(NAMES, LOSSES, strict=True)
}
FULLY = some(NAMES, 20, "Own")
MADE |= {kind.__name__: functools.partial(of, kind()) for kind in (Own, Plain)}


def seen(problem, name):
    """What is computed of a problem; in `make test` all of it for some, since all of them go the same way."""
    if name not in FULLY:
        return [problem.loss(np.ones(3))]
    ran = peer.run(peer.methods.dsgd(alpha=0.01), problem, RING, steps=3, record=1, progress=False)
    grads = problem.stochastic_grads(np.ones(3), batch=2)
    least = peer.problems.optimum(problem, starts=1).value
    return [
        problem.loss(np.ones(3)),
        *problem.grad(np.ones(3)),
        *grads.ravel(),
        *ran.x.ravel(),
        least,
    ]


@pytest.mark.parametrize("kind", [Own, Plain])
def test_stored_results_know_an_oracle_by_what_it_does(kind):
    before = of(kind()).now().facts
    assert before == of(kind()).now().facts
    set_weight(5.0)
    assert before != of(kind()).now().facts


@pytest.mark.parametrize("name", some(MADE, 4, "Own"))
def test_values_around_a_function_are_those_of_now(name):
    problem = MADE[name]()
    before = seen(problem, name)
    set_weight(5.0)
    after = seen(problem, name)
    jax.clear_caches()
    np.testing.assert_array_equal(after, seen(problem, name))
    assert after[0] > before[0] + 2
    set_weight(0.1)
    np.testing.assert_array_equal(seen(problem, name), before)


def test_an_unchanged_oracle_shares_its_programs():
    first = of(Own()).now()
    assert first.oracle == of(Own()).now().oracle
    assert first.now() is first
    set_weight(5.0)
    assert of(Own()).now().oracle != first.oracle
    assert first.now().oracle == of(Own()).now().oracle


def test_callbacks_are_known_by_what_they_do():
    def problem(k):
        def least(w, a):
            return jnp.mean((a @ w) ** 2) + jax.pure_callback(
                lambda: np.float64(k), jax.ShapeDtypeStruct((), float)
            )

        return peer.problems.loss(least, np.zeros(3), ROWS)

    with jax.enable_x64(True):
        assert problem(0).facts == problem(0).facts
        assert problem(0).facts != problem(5).facts
