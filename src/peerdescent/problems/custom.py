"""Any JAX loss over any pytree of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.digests import fingerprint
from peerdescent.errors import require
from peerdescent.problems.finite_sum import FiniteSum, Held
from peerdescent.problems.problem import Problem


@dataclass(frozen=True)
class Unflatten:
    """Turns a vector (p,), or the tuple of its parts, back into the pytree of parameters that was flattened."""

    structure: Hashable
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of entries of its leaves."""
        return tuple(math.prod(shape) for shape in self.shapes)

    def __call__(self, x: Any) -> Any:
        """The pytree whose leaves are slices of x."""
        ends = np.cumsum(self.sizes).tolist()
        parts = (
            x
            if isinstance(x, tuple)
            else [x[end - k : end] for k, end in zip(self.sizes, ends, strict=True)]
        )
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


@dataclass(frozen=True)
class Averaged:
    """The value and gradient of a batch loss, as a function of the flat vector."""

    function: Callable[[Any, Any], Any]
    unflatten: Unflatten
    code: str = ""
    """A checksum of the function, with the values that it takes from around it. With another one it is another loss."""

    def now(self) -> Averaged:
        """The loss as the function is now."""
        return replace(self, code=fingerprint(self.function))

    def __call__(
        self, x: Any, rows: Any, weights: jax.Array | None, _: Any
    ) -> tuple[jax.Array, Any]:
        """The loss of the batch; with weights, the weighted mean of the losses of its single rows."""

        def value(x: Any) -> jax.Array:
            params = self.unflatten(x)
            if weights is None:
                return jnp.asarray(self.function(params, rows))
            alone = jax.vmap(
                lambda row: self.function(params, jax.tree.map(lambda a: a[None], row))
            )(rows)
            return weights @ alone

        return jax.value_and_grad(value)(x)


@dataclass(frozen=True)
class Even(FiniteSum):
    """A finite sum whose nodes all hold equally many rows, so that the exact cost is the loss of one large batch."""

    def exact(self, x: Any, data: Held) -> tuple[jax.Array, Any]:
        """The loss of all rows as one batch, and its gradient."""
        return self.value_and_grad(x, data.rows, None, data.numbers)


def loss(
    function: Callable[[Any, Any], Any], params: Any, data: Any, name: str | None = None
) -> Problem:
    """A problem from any JAX function `function(params, batch)` of a pytree of parameters.

    f_i(x) is the mean of the loss over the rows of node i, with x (p,) the parameters flattened to
    one vector. `problem.unflatten(x)` turns x into parameters.

    Args:
        function: Returns the mean over the batch of the losses of its rows.
        params: The initial parameters, a pytree of floating-point arrays. Flattened, they are the
            default x_0. The function gets them in the precision of the run, whatever theirs is.
        data: A partition, so that a batch is `(features, labels)`; or a pytree of arrays (nodes, m,
            ...), so that a batch is that pytree with arrays (batch, ...).
        name: The problem's name; by default the function's.

    Returns:
        The problem.

    >>> def squared(params, batch):
    ...     return jnp.mean((batch["a"] @ params["w"] + params["b"] - batch["b"]) ** 2)
    >>> rows = {"a": np.ones((4, 8, 3)), "b": np.zeros((4, 8))}
    >>> problem = loss(squared, {"w": np.zeros(3), "b": np.ones(())}, rows)
    >>> problem.dimension, problem.loss(problem.start)
    (4, 1.0)
    """
    if hasattr(data, "stacked"):
        features, labels, sizes = data.stacked()
        # Weights of 0 do not help where the loss of a row of zeros is NaN: pad with a row of the
        # node itself.
        inside = np.arange(features.shape[1]) < sizes[:, None]
        places = np.where(inside, np.arange(features.shape[1]), 0)
        rows: Any = tuple(
            np.stack([own[place] for own, place in zip(a, places, strict=True)])
            for a in (features, labels)
        )
    else:
        whole = hasattr(data, "features")
        require(
            not whole, "the data are not shared over nodes: give a partition, as data.partition(20)"
        )
        rows = jax.tree.map(_copied, data)
        leading = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(rows)}
        require(
            len(leading) == 1 and len(next(iter(leading))) == 2,
            f"arrays of data start with {sorted(leading)}: all must start with the same (nodes, m)",
        )
        nodes, m = leading.pop()
        sizes = np.full(nodes, m)
    start, unflatten = flattened(params)
    check_mean(function, unflatten, start, rows)
    kind = Even if len(set(sizes.tolist())) == 1 else FiniteSum
    return Problem(
        name=name or str(getattr(function, "__name__", "loss")),
        oracle=kind(Averaged(function, unflatten).now()),
        data=Held(rows, sizes),
        nodes=len(sizes),
        dimension=start.size,
        sizes=sizes,
        start=start,
        unflatten=unflatten,
        parts=unflatten.sizes,
        names=getattr(data, "names", ()),
        described=getattr(data, "described", None),
        about=data.facts if hasattr(data, "facts") else {},
    )


def flattened(params: Any) -> tuple[np.ndarray, Unflatten]:
    """The parameters as one vector (p,), and how it becomes parameters again."""
    leaves, structure = jax.tree.flatten(params)
    require(bool(leaves), "params has no arrays: give the parameters to train")
    _check_trainable(params)
    start = np.concatenate([np.asarray(leaf, dtype=float).ravel() for leaf in leaves])
    return start, Unflatten(structure, tuple(np.shape(leaf) for leaf in leaves))


def _copied(a: Any) -> np.ndarray:
    """A copy of one's own, which nobody can change: results are stored under a digest of the data."""
    own = np.array(a)
    own.flags.writeable = False
    return own


def _check_trainable(params: Any) -> None:
    """Refuse leaves that have no gradient: counters, random keys, functions."""
    for path, leaf in jax.tree.leaves_with_path(params):
        kind = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        what = (
            f"of type {type(leaf).__name__}" if kind == np.dtype(object) else f"an array of {kind}"
        )
        require(
            jnp.issubdtype(kind, jnp.floating),
            f"params{jax.tree_util.keystr(path)} is {what}: parameters are floating-point arrays; convert it, or split "
            "it off and let the function hold it, as eqx.partition(model, eqx.is_inexact_array) and "
            "nnx.split(model, nnx.Param, ...) do",
        )


def check_mean(
    function: Callable[[Any, Any], Any], unflatten: Unflatten, start: np.ndarray, rows: Any
) -> None:
    """Refuse a function that does not return one number, or not a mean over rows (nodes, m, ...), by losses of some.

    Also one that is random, or that JAX cannot trace.
    """
    rows = _some(rows)
    count = len(jax.tree.leaves(rows)[0])
    parts = [*(slice(k, k + 1) for k in range(count)), slice(None), slice(None)]
    batches = [jax.tree.map(lambda a, part=part: a[part], rows) for part in parts]

    def value(x: Any, batch: Any) -> jax.Array:
        return jnp.asarray(function(unflatten(jnp.asarray(x)), batch))

    def precisely(act: Callable[[], Any]) -> Any:
        with jax.default_matmul_precision(
            "highest"
        ):  # a GPU's usual one differs between one row and more
            try:
                with jax.enable_x64(
                    True
                ):  # where small differences of large numbers are no errors of rounding
                    return act()
            except Exception:  # of a function that needs 32 bits
                pass
            try:
                return act()
            except Exception as error:
                error.add_note("in the loss, which is called with (params, batch)")
                raise

    rng = np.random.default_rng(0)
    points = [start, *(start + rng.normal(scale=s, size=start.shape) for s in (0.1, 1.0))]
    at_points = precisely(lambda: [[value(x, batch) for batch in batches] for x in points])
    shape = next((one.shape for one in at_points[0] if one.shape), ())
    require(not shape, f"the loss of a batch has shape {shape}: return one number")
    is_coarse, failure = False, None
    try:
        traced = precisely(lambda: jax.make_jaxpr(value)(start, batches[-1]))
        is_coarse = re.search(r"\bb?f(16|8)", str(traced)) is not None
    except Exception as error:  # of dropout, say, whose reason is another
        failure = error
    for found in at_points:
        *alone, together, again = map(float, found)
        mean = sum(alone) / count
        if not math.isfinite(mean + together + again):
            continue
        tolerance = (0.02 if is_coarse else 1e-4) * max(map(abs, alone)) + 1e-6
        require(
            abs(again - together) <= tolerance,
            f"the loss of the same {count} rows is {together:.6g} and then {again:.6g}, so it is random: leave dropout "
            "out, and give other random numbers as part of the rows",
        )
        require(
            abs(together - mean) <= tolerance,
            f"the loss of {count} rows is {together:.6g}, and the mean of the losses of each alone {mean:.6g}: return "
            "the mean over the rows of a batch, not their sum; batch normalisation and dropout give no such mean, nor "
            "do weights that are divided by their sum in the batch",
        )
    if isinstance(failure, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        reason = str(failure).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"JAX cannot trace the loss ({reason}): use jax.numpy instead of numpy, and jnp.where for if"
        ) from None
    if failure is not None:
        raise failure


def _some(rows: Any) -> Any:
    """Up to 16 of all rows (nodes, m, ...): four from everywhere, and of each array some with different values.

    So a label that few rows have is among them.
    """
    flat = jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), rows)
    count = len(jax.tree.leaves(flat)[0])
    step = -(-count // 100_000)  # sorting more rows would take long
    different = []
    for a in jax.tree.leaves(flat):
        few = a[::step].reshape(len(a[::step]), math.prod(a.shape[1:]))[:, :16].real.astype(float)
        _, firsts = np.unique(few @ np.arange(1, few.shape[1] + 1), return_index=True)
        different.append(step * firsts)
    chosen = np.linspace(0, count - 1, 4).astype(int).tolist()
    for firsts in sorted(different, key=len):  # labels before features
        chosen += firsts[np.linspace(0, len(firsts) - 1, 6).astype(int)].tolist()
    places = list(dict.fromkeys([*chosen, *range(min(count, 16))]))[
        :16
    ]  # as many each time: JAX compiles by shapes
    return jax.tree.map(lambda a: a[places], flat)
