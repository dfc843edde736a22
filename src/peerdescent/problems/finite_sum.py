"""The oracle of `logistic` and `loss`: costs that are averages over a node's samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from peerdescent.keys import below


class Held(NamedTuple):
    """The data of all nodes: rows (n, m, ...), padded at nodes with fewer than m; sizes (n,); numbers (n, ...)."""

    rows: Any
    size: Any
    numbers: Any = ()


@dataclass(frozen=True)
class FiniteSum:
    """An oracle that draws rows with replacement and averages over them.

    `value_and_grad(x, rows, weights, numbers)` gives the average loss and its gradient. `weights`
    sum to one; None means equal weights.
    """

    value_and_grad: Callable[[Any, Any, jax.Array | None, Any], tuple[jax.Array, Any]]
    finite: bool = True

    def draw(self, key: jax.Array, data: Held, batch: int) -> jax.Array:
        """Indices of rows (batch,)."""
        return below(key, data.size, batch)

    def grad(self, x: Any, sample: jax.Array, data: Held) -> Any:
        """The average gradient over those rows."""
        # `draw` gives valid indices, so bounds checks are not needed.
        rows = jax.tree.map(lambda a: a.at[sample].get(mode="promise_in_bounds"), data.rows)
        return self.value_and_grad(x, rows, None, data.numbers)[1]

    def exact(self, x: Any, data: Held) -> tuple[jax.Array, Any]:
        """The average over all rows of the node, without padding."""
        count = jax.tree.leaves(data.rows)[0].shape[0]
        dtype = jnp.result_type(*jax.tree.leaves(x))
        weights = (jnp.arange(count) < data.size).astype(dtype) / data.size.astype(dtype)
        return self.value_and_grad(x, data.rows, weights, data.numbers)
