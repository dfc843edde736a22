"""Principal components: the subspace that explains most of the rows of all nodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require, whole
from peerdescent.problems.custom import Unflatten
from peerdescent.problems.finite_sum import FiniteSum, Held
from peerdescent.problems.linear_models import LinearModel, Numbers
from peerdescent.problems.losses import Unexplained
from peerdescent.problems.problem import Problem
from peerdescent.problems.rows import Labelled, Nonzeros, Partition, check_labels, shared_rows


def pca(partition: Partition, components: int = 2, seed: int = 0) -> Problem:
    """Principal components, as a low-rank factorisation: f_i(U) = mean_j ||U U' - theta_ij theta_ij'||^2 / 4.

    U is a matrix (p, components). F is ||U U' - A||^2 / 4 plus a constant, with A the mean over
    nodes of mean_j theta_ij theta_ij', and is smallest where U U' is the best approximation of A of
    that rank: the columns of U then span the eigenvectors of A with the largest eigenvalues. F is
    not convex, but all its local minima are global. A is the covariance if features have mean 0:
    subtract the mean before. Labels are not used.

    Args:
        partition: The rows of each node, as from `data.partition(20)`.
        components: The number of columns of U.
        seed: For the default x_0, small and random: U = 0 is a saddle point.

    Returns:
        The problem. `problem.unflatten(x)` is U, and `problem.predict(U, features)` are the
        projections of rows onto the span of its columns.

    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")
    >>> problem = pca(data.partition(3), components=2)
    >>> U = problem.unflatten(peer.problems.optimum(problem, starts=1).x)
    >>> eigenvalues = np.linalg.eigvalsh(data.features.T @ data.features / len(data))
    >>> np.allclose(np.linalg.svd(U)[1] ** 2, eigenvalues[[-1, -2]], rtol=1e-4)
    True
    """
    check_labels("pca", partition, Unexplained.labels)
    components = whole("components", components, least=1)
    p = partition.dimension
    require(
        components <= p, f"components = {components}: there are {p} features; take at most as many"
    )
    rows, _, sizes = shared_rows(partition, components, intercept=False)
    values = rows.values if isinstance(rows, Nonzeros) else rows
    fourth = (values.astype(float) ** 2).sum(axis=-1) ** 2
    return Problem(
        name=f"pca({partition.dataset.name}, {components})",
        oracle=FiniteSum(LinearModel(Unexplained(), quartic, components)),
        data=Held(Labelled(rows, fourth / 2), sizes, Numbers(np.ones(len(sizes)))),
        nodes=len(sizes),
        dimension=p * components,
        sizes=sizes,
        start=np.random.default_rng(whole("seed", seed, least=0)).normal(
            scale=0.1 / p**0.5, size=p * components
        ),
        unflatten=Unflatten(jax.tree.structure(0), ((p, components),)),
        predict=projections,
        names=partition.names,
        described=partition.described,
        about=partition.facts,
    )


def quartic(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """||U'U||^2 / 4 and its gradient U U'U, for a matrix U: the part of `pca` that no row is in."""
    gram = x.T @ x
    return 0.25 * jnp.sum(gram * gram), x @ gram


def projections(params: Any, features: Any) -> Any:
    """The projections (m, p) of rows onto the span of the columns of a matrix (p, k)."""
    basis = jnp.linalg.qr(jnp.asarray(params))[0]
    return features @ basis @ basis.T
