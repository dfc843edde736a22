"""Losses of users: one that is no mean over the rows of a batch is refused, whichever rows show it; a mean is not."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(5, 200, 3))


def errors(w, batch):
    return (batch[0] @ w - batch[1]) ** 2


def class_weighted(w, batch):
    weights = jnp.where(batch[1] > 0, 9.0, 1.0)
    return jnp.sum(weights * errors(w, batch)) / jnp.sum(weights)


def labels(*positive):
    """Labels of all rows: 1 at these places, and -1 elsewhere."""
    found = np.full((5, 200), -1.0)
    found[tuple(zip(*positive, strict=True))] = 1
    return found


def check(function, y, x=FEATURES, start=np.zeros(3)):  # noqa: B008
    return peer.problems.loss(function, start, (x, y))


@pytest.mark.parametrize(
    "y",
    [
        np.sign(RNG.normal(size=(5, 200))) * np.where(np.arange(200) % 199, 1, np.nan),
        labels((3, 77)),
        labels((0, 1)),
    ],
    ids=["many", "one row", "the second row"],
)
def test_weights_that_are_divided_by_their_sum_are_refused(y):
    """The first and the last row have one class; a single row of another class is found."""
    with pytest.raises(
        ValueError,
        match=r"the loss of \d+ rows is .* alone .*: return the mean .* divided by their sum",
    ):
        check(class_weighted, np.where(np.isnan(y), -1, y))


def test_a_rare_class_of_many_is_found():
    y = np.zeros((5, 200), int)
    y[:, 100:] = 2
    y[2, 50] = 1

    def by_class(w, batch):
        weights = jnp.array([1.0, 9.0, 1.0])[batch[1]]
        return jnp.sum(weights * errors(w, batch)) / jnp.sum(weights)

    with pytest.raises(ValueError, match="return the mean over the rows of a batch"):
        check(by_class, y)
    one_hot = np.eye(3)[y]
    with pytest.raises(ValueError, match="return the mean over the rows of a batch"):
        check(lambda w, batch: by_class(w, (batch[0], batch[1].argmax(axis=1))), one_hot)


@pytest.mark.parametrize("reduce", [jnp.median, lambda e: jnp.sum(e) / (len(e) - (len(e) > 2))])
def test_what_is_a_mean_of_two_rows_only_is_refused(reduce):
    with pytest.raises(ValueError, match=r"the loss of \d+ rows is"):
        check(lambda w, batch: reduce(errors(w, batch)), labels((0, 0)))


def overflows(w, batch):
    return jnp.mean(jnp.where(jnp.abs(w).max() > 0, jnp.nan, errors(w, batch)))


def halves(w, batch):
    with jax.numpy_dtype_promotion("standard"):
        rows, y = (a.astype(jnp.bfloat16) for a in batch)
        return jnp.mean(errors(w.astype(jnp.bfloat16), (rows, y)).astype(jnp.float32))


def of_32_bits(w, batch):
    """Fails in 64 bits: the sum has another type than what it starts with."""
    total, _ = jax.lax.scan(lambda c, e: (c + e, None), jnp.float32(0), errors(w, batch))
    return total / len(batch[1])


FINE = {
    "plain": (lambda w, batch: jnp.mean(errors(w, batch)), {}),
    "NaN away from the start": (overflows, {}),
    "half precision": (halves, {"x": 10 * FEATURES}),
    "half precision in the mean": (
        lambda w, batch: jnp.mean(errors(w, batch).astype(jnp.bfloat16)),
        {},
    ),
    "half precision of the start": (halves, {"start": np.ones(3)}),
    "32 bits only": (of_32_bits, {}),
    "large features, small errors": (
        lambda w, batch: jnp.mean((batch[0] @ w - batch[0].sum(axis=-1)) ** 2),
        {"x": 1e6 + FEATURES, "start": np.full(3, 1 + 1e-6)},
    ),
    "large and small losses": (lambda w, batch: jnp.mean(jnp.exp(5 * batch[0] @ (w + 1))), {}),
    "whole numbers": (
        lambda w, batch: jnp.mean(errors(w, batch)),
        {"x": RNG.integers(0, 255, (5, 200, 3), np.uint8)},
    ),
    "flags": (lambda w, batch: jnp.mean(errors(w, batch)), {"x": FEATURES > 0}),
    "no features": (
        lambda w, batch: jnp.mean(batch[1]) + jnp.sum(w**2),
        {"x": np.zeros((5, 200, 0))},
    ),
    "one node": (
        lambda w, batch: jnp.mean(errors(w, batch)),
        {"x": FEATURES[:1, :1], "y": np.ones((1, 1))},
    ),
    "NaN in a row": (
        lambda w, batch: jnp.mean(errors(w, batch)),
        {"y": np.where(labels((2, 9)) > 0, np.nan, 1.0)},
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_means_are_not_refused(name):
    function, given = FINE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = check(function, **{"y": labels((0, 0)), **given})
    assert problem.nodes in (1, 5)


def test_rows_may_be_a_tree():
    rows = {"a": FEATURES, "more": [np.sign(FEATURES[..., 0]), {"weight": np.ones((5, 200, 2, 2))}]}
    peer.problems.loss(
        lambda w, batch: jnp.mean(errors(w, (batch["a"], batch["more"][0]))), np.zeros(3), rows
    )
    with pytest.raises(ValueError, match="return the mean over the rows of a batch"):
        peer.problems.loss(
            lambda w, batch: class_weighted(w, (batch["a"], batch["more"][0])), np.zeros(3), rows
        )
