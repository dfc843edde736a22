"""Any JAX loss over any pytree of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.finite_sum import FiniteSum, Held
from peerdescent.problems.problem import Problem


@dataclass(frozen=True)
class Unflatten:
    """From a vector (p,) back to the parameters; the inverse of `flatten`."""

    structure: Hashable
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, x: Any) -> Any:
        """The pytree whose leaves are cut from x."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()
        leaves = [x[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(self.shapes, ends, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


@dataclass(frozen=True)
class Averaged:
    """The value and gradient of a batch loss, as a function of the flat vector."""

    function: Callable[[Any, Any], Any]
    unflatten: Unflatten

    def __call__(self, x: jax.Array, rows: Any, weights: jax.Array | None, _: Any) -> tuple[jax.Array, jax.Array]:
        """The loss of the batch, or the weighted mean of the losses of its rows taken alone."""

        def value(x: jax.Array) -> jax.Array:
            params = self.unflatten(x)
            if weights is None:
                return jnp.asarray(self.function(params, rows))
            alone = jax.vmap(lambda row: self.function(params, jax.tree.map(lambda a: a[None], row)))(rows)
            return weights @ alone

        return jax.value_and_grad(value)(x)


@dataclass(frozen=True)
class Even(FiniteSum):
    """A finite sum whose nodes all hold equally many rows: the exact cost is the loss of one large batch."""

    def exact(self, x: jax.Array, data: Held) -> tuple[jax.Array, jax.Array]:
        """One call of the loss on all rows."""
        return self.value_and_grad(x, data.rows, None, data.numbers)


def loss(function: Callable[[Any, Any], Any], params: Any, data: Any, name: str | None = None) -> Problem:
    """Minimise the average of any JAX function `function(params, batch)` over a pytree of parameters.

    `function` returns the mean over the batch of per-row losses. `data` is a partition (a batch is then
    `(features, labels)`) or a pytree of arrays (nodes, m, ...), from which a batch takes rows. `params` are flattened
    to one vector, which is also the default x_0; `problem.unflatten(x)` gives them back. `name` is by default that of
    the function.

    >>> def squared(params, batch):
    ...     return jnp.mean((batch["a"] @ params["w"] + params["b"] - batch["b"]) ** 2)
    >>> rows = {"a": np.ones((4, 8, 3)), "b": np.zeros((4, 8))}
    >>> problem = loss(squared, {"w": np.zeros(3), "b": np.ones(())}, rows)
    >>> problem.dimension, problem.loss(problem.start)
    (4, 1.0)
    """
    if hasattr(data, "stacked"):
        features, labels, sizes = data.stacked()
        rows: Any = (features, labels)
    else:
        rows = jax.tree.map(np.asarray, data)
        leading = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(rows)}
        require(
            len(leading) == 1 and len(next(iter(leading))) == 2,
            f"arrays of data start with {sorted(leading)}: all must start with the same (nodes, m)",
        )
        nodes, m = leading.pop()
        sizes = np.full(nodes, m)
    leaves, structure = jax.tree.flatten(params)
    require(bool(leaves), "params has no arrays: give the parameters to train")
    start = np.concatenate([np.asarray(leaf, dtype=float).ravel() for leaf in leaves])
    unflatten = Unflatten(structure, tuple(np.shape(leaf) for leaf in leaves))
    kind = Even if len(set(sizes.tolist())) == 1 else FiniteSum
    return Problem(
        name=name or str(getattr(function, "__name__", "loss")),
        oracle=kind(Averaged(function, unflatten)),
        data=Held(rows, sizes),
        nodes=len(sizes),
        dimension=start.size,
        samples=float(sizes.mean()),
        start=start,
        unflatten=unflatten,
    )
