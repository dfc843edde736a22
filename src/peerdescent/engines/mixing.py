"""Mixing: the weights W in compiled programs, as dense matrices or as lists of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import sparse

from peerdescent.networks.network import Network


class Dense(NamedTuple):
    """Dense weights (period, n, n)."""

    matrices: Any

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.matrices.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """W_t x."""
        return jnp.tensordot(_turn(self.matrices, t), x, 1, precision=lax.Precision.HIGHEST)

    def disagree(self, t: Any, x: jax.Array) -> jax.Array:
        """x - W_t x."""
        return disagreement(x, lambda apart: self.mix(t, apart))


class Gather(NamedTuple):
    """The nodes that each node receives from (period, n, d) and their weights (period, n, d), padded with zeros."""

    neighbours: Any
    weights: Any

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.weights.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """sum_j w_ij x_j over the neighbours of i, one neighbour at a time."""
        neighbours, weights = _turn(self.neighbours, t), _turn(self.weights, t)
        weights = weights.reshape(*weights.shape, *[1] * (x.ndim - 1))
        return reduce(add, (weights[:, k] * x[neighbours[:, k]] for k in range(neighbours.shape[1])))

    def disagree(self, t: Any, x: jax.Array) -> jax.Array:
        """x - W_t x."""
        return disagreement(x, lambda apart: self.mix(t, apart))


def disagreement(x: jax.Array, mix: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """x - W x for the first rows of x, as many as `mix` returns.

    All is taken relative to one node, since the rows of W sum to 1: rounding is then that of the differences.
    """
    apart = x - x[:1]
    mixed = mix(apart)
    return apart[: len(mixed)] - mixed


def weights_of(network: Network, dtype: Any) -> Dense | Gather:
    """The weights of a network as a compiled program uses them, on the device."""
    return jax.tree.map(jnp.asarray, packed(network.matrices, dtype))


def packed(matrices: Sequence[sparse.csr_array], dtype: Any) -> Dense | Gather:
    """The weights in NumPy arrays: dense matrices, or lists of neighbours if they are sparse."""
    heard = [np.diff(matrix.indptr) for matrix in matrices]
    widest = max(int(h.max()) for h in heard)
    rows, columns = matrices[0].shape
    # On a CPU, with n = 20 to 1,024, a gather is faster if less than a quarter of W is nonzero. For GPUs 8 is a guess.
    if columns <= (4 if jax.default_backend() == "cpu" else 8) * widest:
        return Dense(np.stack([matrix.toarray() for matrix in matrices]).astype(dtype))
    neighbours = np.zeros((len(matrices), rows, widest), dtype=np.int32)
    weights = np.zeros((len(matrices), rows, widest), dtype)
    for turn, (matrix, counts) in enumerate(zip(matrices, heard, strict=True)):
        row = np.repeat(np.arange(rows), counts)
        slot = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
        neighbours[turn, row, slot], weights[turn, row, slot] = matrix.indices, matrix.data
    return Gather(neighbours, weights)


def _turn(a: jax.Array, t: Any) -> jax.Array:
    return a[0] if a.shape[0] == 1 else a[t % a.shape[0]]
