"""Spectra of weight matrices: how fast they bring nodes to agree.

Up to DENSE_UP_TO nodes matrices are dense and spectra exact up to rounding; beyond, they are found
by Lanczos' method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from peerdescent.errors import require_memory
from peerdescent.networks.rounds import Rounds, matrix

DENSE_UP_TO = 400  # nodes; a dense spectrum of this size takes 0.1 s
ROUNDING = 1e-12
"""Smaller values are rounded zeros."""

Floats = NDArray[np.float64]


def several(W: sparse.csr_array, rounds: int, momentum: float) -> sparse.csr_array:
    """The matrix of several rounds."""
    before = now = sparse.eye_array(W.shape[0], format="csr")
    for _ in range(rounds):
        before, now = now, (1 + momentum) * (W @ now) - momentum * before
    return W if rounds == 1 else sparse.csr_array(now)


def expected_square(W: sparse.csr_array, up: float, both: float) -> float:
    """The largest eigenvalue of E[W_t' W_t] on vectors of mean zero, for failing links.

    A link is up with probability `up`, and two links of one node are both up with probability
    `both`. With L_e the Laplacian of a link e, W_t = I - sum_e b_e w_e L_e. The product of two
    Laplacians is zero unless their links share a node, and L_e^2 = 2 L_e.
    """
    n = W.shape[0]
    M = sparse.csr_array(sparse.eye_array(n) - W)
    off = W - sparse.diags_array(W.diagonal())
    squares = off.multiply(off)
    D = sparse.csr_array(sparse.diags_array(squares.sum(axis=1)) - squares)  # the sum of w_e^2 L_e
    if n <= DENSE_UP_TO:
        M, D = M.toarray(), D.toarray()
        E = np.eye(n) - 2 * up * M + both * (M @ M) + 2 * (up - both) * D
        return float(np.linalg.eigvalsh(E - 1 / n)[-1])

    def apply(v: Floats) -> Floats:
        v = _centred(v)
        once = M @ v
        return _centred(v - 2 * up * once + both * (M @ once) + 2 * (up - both) * (D @ v))

    return _largest_eigenvalue(apply, n)


def estimated(
    links: Rounds, period: int, rounds: int, momentum: float
) -> tuple[float, tuple[float, float]]:
    """The root of the largest eigenvalue of the mean of P' (I - J) P, with a 95 % interval.

    P is the product of all rounds of a period, and the root is taken for one step.
    """
    n = links.nodes
    require_memory(f"draws of W with {n:,} nodes", 64 * n**2, "use fewer nodes")
    draws, found = max(20, min(1000, 10**8 // n**3)), []
    for seed in range(draws):
        # Iterations of different runs, so that draws are independent also where links remember.
        memory, product = links.begin(np, seed), np.eye(n)
        for t in range(1, 1 + period):  # in iteration 0 all are awake
            memory = links.later(np, seed, t, memory)
            happens = links.at(np, seed, t, memory)
            before = now = product
            for number in range(rounds):
                W = matrix(links, happens.weights(number)[1])
                before, now = now, (1 + momentum) * (W @ now) - momentum * before
            product = now
        found.append(product - product.mean(axis=0))
    # The eigenvector is of the first half, and its value is measured on the other: the largest
    # eigenvalue of a mean of few draws would be too large.
    half = draws // 2
    mean = sum(P.T @ P for P in found[:half]) / half
    worst = np.linalg.eigh(mean - mean.mean(axis=0) - mean.mean(axis=1)[:, None] + mean.mean())[1][
        :, -1
    ]
    each = np.array([np.sum((P @ worst) ** 2) for P in found[half:]])
    error = 1.96 * each.std(ddof=1) / math.sqrt(len(each))
    power = 1 / (2 * period)
    low, value, high = (max(float(each.mean()) + side * error, 0.0) ** power for side in (-1, 0, 1))
    return value, (low, high)


def disagreement(matrices: Sequence[sparse.csr_array]) -> float:
    """||P - 11'/n||_2 for the product P over a period."""
    n = matrices[0].shape[0]
    if n <= DENSE_UP_TO:
        product = reduce(lambda done, W: W @ done, matrices, np.eye(n))
        return float(np.linalg.norm(product - 1 / n, 2))
    chain = [*matrices, *(W.T.tocsr() for W in reversed(matrices))]

    def apply(v: Floats) -> Floats:
        return _centred(reduce(lambda v, W: W @ v, chain, _centred(v)))

    try:
        return float(np.sqrt(_largest_eigenvalue(apply, n)))
    except ArpackNoConvergence:
        # Many eigenvalues lie close to 1, as for long rings. Such graphs are cheap to factorise, so
        # use shift-invert.
        P = reduce(lambda done, W: W @ done, matrices)
        twin = sparse.block_array([[None, P], [P.T, None]], format="csc")
        _check_factors(twin)
        return float(
            eigsh(twin, k=2, sigma=1 + 1e-7, v0=_start(2 * n), return_eigenvectors=False).min()
        )


def smallest_eigenvalue(W: sparse.csr_array) -> float:
    """The smallest eigenvalue of a symmetric W."""
    if W.shape[0] <= DENSE_UP_TO:
        return float(np.linalg.eigvalsh(W.toarray())[0])
    try:
        return 1 - _largest_eigenvalue(lambda v: v - W @ v, W.shape[0])
    except ArpackNoConvergence:
        _check_factors(W)
        bound = 2 * W.diagonal().min() - 1  # Gershgorin
        return float(
            eigsh(
                W.tocsc(), k=1, sigma=bound - 1e-7, v0=_start(W.shape[0]), return_eigenvectors=False
            )[0]
        )


def _check_factors(W: sparse.csr_array) -> None:
    """Refuse a symmetric pattern whose factors may not fit into memory."""
    place = np.argsort(csgraph.reverse_cuthill_mckee(sparse.csr_array(W), symmetric_mode=True))
    row, column = W.nonzero()
    size = 16 * W.shape[0] * int(abs(place[row] - place[column]).max())
    require_memory(
        f"the spectrum of W with {W.shape[0]:,} rows",
        size,
        "use fewer nodes, or a graph of fewer links",
    )


def _largest_eigenvalue(apply: Callable[[Floats], Floats], n: int) -> float:
    """The largest eigenvalue of a positive semidefinite operator, by a few thousand products."""
    start = apply(_start(n))
    if np.linalg.norm(start) < 1e-20:  # Lanczos cannot start from the zero operator
        return 0.0
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    return float(
        eigsh(
            operator, k=1, which="LA", v0=start, maxiter=100, tol=1e-12, return_eigenvectors=False
        )[0]
    )


def _start(n: int) -> Floats:
    return np.random.default_rng(0).standard_normal(n)


def _centred(v: Floats) -> Floats:
    return v - float(v.mean())
