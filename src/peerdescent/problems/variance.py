"""The variance of sample gradients: at a point, over all samples or some of them, and a bound for all points."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peerdescent.errors import whole
from peerdescent.keys import node_keys
from peerdescent.problems.finite_sum import FiniteSum
from peerdescent.problems.linear_models import model_of, rows_of, scale_of
from peerdescent.problems.problem import Oracle, Problem, cast

SAMPLES = 10_000
"""Samples per node for an estimate of the variance, used if it cannot be computed."""

AT_ONCE = 256
"""Gradients in memory at once."""


def variances(
    problem: Problem, x: Any, samples: int | None = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient variance E||g_i(x, xi) - grad f_i(x)||^2 at each node.

    Args:
        problem: The problem.
        x: One point (p,).
        samples: How many samples to draw per node. None for all samples of a finite sum, else
            10,000.
        seed: For the samples.

    Returns:
        The variances (n,), and the half-widths of their 95 % confidence intervals (n,), zero if all
        samples were used.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> exact, sampled = variances(problem, np.zeros(64)), variances(problem, np.zeros(64), samples=1000)
    >>> exact[1].tolist(), bool((abs(exact[0] - sampled[0]) < 3 * sampled[1]).all())
    ([0.0, 0.0, 0.0, 0.0], True)
    """
    count = None if isinstance(problem.oracle, FiniteSum) else SAMPLES
    count, problem = count if samples is None else whole("samples", samples, least=2), problem.now()
    with jax.enable_x64(True):
        found = _variances(
            problem.oracle,
            count,
            jnp.asarray(x, float),
            jnp.uint32(seed),
            cast(problem.data, float),
        )
        return np.asarray(found[0]), np.asarray(found[1])


def loss_gradients(problem: Problem) -> np.ndarray | None:
    """A bound for all x on the mean squared norm of a node's sample gradients of the loss, s^2 mean_j ||theta_ij||^2.

    The gradient of a row's loss is the row times a slope, of norm s at most. The regulariser's
    gradient is the same for all rows and nodes. So the bound is one on the variance of a node's
    sample gradients, too, and its mean over nodes one on the mean over nodes of ||grad f_i(x) -
    grad F(x)||^2.

    Args:
        problem: The problem.

    Returns:
        The bounds (n,). None if there are none: for other problems than linear models, and for
        losses whose slope has no bound, such as least squares.

    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")  # with rows of norm 1
    >>> loss_gradients(peer.problems.logistic(data.partition(3))).round(6).tolist()
    [1.0, 1.0, 1.0]
    """
    model = model_of(problem)
    steepness = model.loss.steepness(scale_of(problem)) if model else np.inf
    if steepness == np.inf:
        return None
    return np.array(
        [steepness**2 * (rows * rows).sum() / rows.shape[0] for rows in rows_of(problem)]
    )


@partial(jax.jit, static_argnums=(0, 1))
def _variances(
    oracle: Oracle, count: int | None, x: jax.Array, seed: jax.Array, data: Any
) -> tuple[jax.Array, jax.Array]:
    def node(number: jax.Array, own: Any) -> tuple[jax.Array, jax.Array]:
        exact = oracle.exact(x, own)[1]

        def square(k: jax.Array) -> jax.Array:
            """The squared deviation for the k-th sample: of the node's data, or drawn."""
            sample = k[None] if count is None else oracle.draw(node_keys(seed, number, k), own, 1)
            return jnp.sum((oracle.grad(x, sample, own) - exact) ** 2)

        if count is None:
            places = jnp.arange(jax.tree.leaves(own.rows)[0].shape[0])
            squares = lax.map(square, places, batch_size=AT_ONCE)
            return jnp.where(places < own.size, squares, 0).sum() / own.size, jnp.zeros((), x.dtype)
        squares = lax.map(square, jnp.arange(count), batch_size=AT_ONCE)
        return squares.mean(), 1.96 * squares.std(ddof=1) / count**0.5

    numbers = jnp.arange(jax.tree.leaves(data)[0].shape[0])
    found: tuple[jax.Array, jax.Array] = lax.map(lambda both: node(*both), (numbers, data))
    return found
