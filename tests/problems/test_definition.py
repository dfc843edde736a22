"""Stored results are of one problem: also its functions, not their names alone, tell whether it is the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from children import python
from peerdescent.problems.definition import digest
from peerdescent.problems.finite_sum import FiniteSum
from small import PROBLEMS

ROWS = np.random.default_rng(0).normal(size=(6, 5, 3)), np.ones((6, 5))
RING = peer.Network(peer.topology.ring(6))


def squared(w, batch):
    return jnp.mean((batch[0] @ w - batch[1]) ** 2)


def absolute(w, batch):
    return jnp.mean(jnp.abs(batch[0] @ w - batch[1]))


def around(values):
    """A loss with values from around it, which are not in its text."""
    return lambda w, batch: jnp.mean((batch[0] @ (w - jnp.asarray(values)) - batch[1]) ** 2)


def scaled(factor):
    return lambda w, batch: factor * squared(w, batch)


def halved(w, batch):
    """The same values as `scaled(0.5)`, inside a function that is compiled on its own."""
    return jax.jit(scaled(0.5))(w, batch)


def drawn(seed):
    """A loss with noise from a key of its own."""
    key = jax.random.key(seed)
    return lambda w, batch: squared(w + 0.1 * jax.random.normal(key, w.shape), batch)


FUNCTIONS = [
    drawn(0),
    drawn(1),
    squared,
    absolute,
    around([0.0, 0, 1]),
    around([0.0, 0, 2]),
    scaled(2.0),
    scaled(3.0),
]
FUNCTIONS += [jax.jit(around(np.arange(3.0))), jax.jit(around(np.arange(3.0) + 1)), halved]


def problem(function):
    return peer.problems.loss(function, np.zeros(3), ROWS, name="loss")


def test_every_function_has_its_own_definition():
    found = [digest(problem(function).definition) for function in FUNCTIONS]
    assert len(set(found)) == len(FUNCTIONS)
    assert found == [digest(problem(function).definition) for function in FUNCTIONS]


@pytest.mark.parametrize("name", PROBLEMS)
def test_equal_problems_have_equal_definitions(name):
    assert digest(PROBLEMS[name]().definition) == digest(PROBLEMS[name]().definition)


def test_oracles_of_this_package_differ_by_their_fields():
    data = peer.datasets.synthetic(12, 3).partition(6)
    found = {
        digest(peer.problems.logistic(data, regulariser=r).definition)
        for r in ("nonconvex", "l2", "none")
    }
    assert len(found) == 3


def test_an_oracle_of_ones_own_is_traced():
    @dataclass(frozen=True)
    class Shifted:
        shift: float
        finite: bool = True

        def draw(self, key, data, batch):
            return jax.random.randint(key, (batch,), 0, 5)

        def grad(self, x, sample, data):
            return x - self.shift + 0.0 * data.rows[0][sample].sum()

        def exact(self, x, data):
            return ((x - self.shift) ** 2).sum() / 2, x - self.shift

    found = [
        digest(replace(problem(squared), oracle=Shifted(shift)).definition)
        for shift in (1.0, 1.0, 2.0)
    ]
    assert found[0] == found[1] != found[2]


def test_what_cannot_be_traced_is_never_taken_for_another():
    class Picky(FiniteSum):
        """An oracle of one's own, which engine `debug` can run."""

        def grad(self, x, sample, data):
            return super().grad(x, sample, data) if float(jnp.sum(x)) < 100 else 0 * x

    first, second = (
        replace(own, oracle=Picky(own.oracle.value_and_grad))
        for own in (problem(squared), problem(squared))
    )
    assert digest(first.definition) == digest(first.definition) != digest(second.definition)


def test_a_definition_is_the_same_in_another_process():
    code = (
        "import jax, jax.numpy as jnp, numpy as np, peerdescent as peer\n"
        "from peerdescent.problems.definition import digest\n"
        "def f(p, b): return jnp.mean(jax.nn.softplus(jax.nn.gelu(jax.nn.relu(b @ p['w'])).sum(1)))\n"
        "print(digest(peer.problems.loss(f, {'w': np.ones((3, 4))}, np.ones((2, 5, 3))).definition))"
    )
    said = [python("-c", code) for _ in range(2)]
    assert said[0].stdout == said[1].stdout != "", said[0].stderr


def test_a_run_is_not_resumed_with_another_function(tmp_path):
    method = peer.methods.dsgd()
    first = peer.run(method, problem(squared), RING, steps=10, record=2)
    folder = first.save(tmp_path)
    for earlier in (first, folder):
        with pytest.raises(ValueError, match="cannot resume: values is"):
            peer.run(method, problem(absolute), RING, steps=20, record=2, resume=earlier)
    peer.run(method, problem(squared), RING, steps=20, record=2, resume=folder)


def test_a_sweep_is_not_continued_with_another_function(tmp_path):
    options = {"steps": 10, "out": tmp_path}
    table = peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, problem(scaled(2.0)), RING, **options)
    with pytest.raises(ValueError, match="is about something else: values is"):
        peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, problem(scaled(3.0)), RING, **options)
    again = peer.sweep("dsgd", {"alpha": [0.1, 0.2]}, problem(scaled(2.0)), RING, **options)
    assert again["loss"].tolist() == table["loss"].tolist()
