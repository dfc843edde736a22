"""The problem: private data at every node, and an oracle that computes one node's samples and gradients.

An oracle is a hashable object of pure JAX functions of one node's data. An engine applies it to all
nodes, by an array axis, a loop or processes. All numbers are in `data` and none in the oracle, so
problems of one shape share one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.digests import fingerprint, is_library
from peerdescent.errors import require
from peerdescent.keys import node_keys
from peerdescent.problems.definition import check_random, definition, digest


class Oracle(Protocol):
    """How one node draws samples and computes gradients of its cost; `data` is that node's data."""

    @property
    def finite(self) -> bool:
        """Whether `net.full_grad` may use `exact`; false for an infinite stream of samples."""

    def draw(self, key: jax.Array, data: Any, batch: int) -> Any:
        """A sample of `batch` points."""

    def grad(self, x: Any, sample: Any, data: Any) -> Any:
        """The minibatch gradient at x (p,) on that sample; of a problem in parts, also at the tuple of them."""

    def exact(self, x: Any, data: Any) -> tuple[jax.Array, Any]:
        """f_i(x) and its gradient, of the form of x."""


@dataclass(frozen=True)
class Predictor:
    """What a model predicts, from its parameters or from the vector x (p,) of them."""

    function: Callable[[Any, Any], Any]
    unflatten: Any
    dimension: int

    def __call__(self, params: Any, features: Any) -> Any:
        """The predictions for rows of features."""
        is_flat = getattr(params, "shape", None) == (self.dimension,)
        return self.function(self.unflatten(params) if is_flat else params, features)


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """Minimise F = (1/n) sum_i f_i, where node i holds the i-th slice of every array in `data`.

    `sizes` are the numbers of samples of all nodes, (n,), or None for an infinite stream. `start`
    is the default x_0. `smoothness` (L) and `variance` (nu_i^2, one per node) are set if they are
    known. If `held` is set, this process has the data of that node only, and `data` is its slice.
    The methods of this class compute in float64.
    """

    name: str
    oracle: Oracle
    data: Any
    nodes: int
    dimension: int
    sizes: np.ndarray | None = None
    start: np.ndarray | None = None
    smoothness: float | None = None
    variance: np.ndarray | None = None
    unflatten: Any = None
    parts: tuple[int, ...] = ()
    """The sizes of the arrays that x consists of, if the oracle also takes x as a tuple of them."""
    predict: Any = field(default=None, repr=False)
    """What a model predicts: a function of parameters and features; None if it has none.

    Parameters are as `unflatten` returns them, or x itself, as `trace.x_mean`. It is what `peer.accuracy` takes."""
    names: tuple[Any, ...] = ()
    """What the nodes are called, such as hospitals; empty if they have numbers only."""
    described: Any = field(default=None, repr=False)
    """What its rows are, such as columns and classes, if it is made of a partition; `peer.accuracy` asks it."""
    held: int | None = None
    streams: Any = field(default=None, repr=False)
    """For each node where its samples come from, if that is an iterator on the host; else None."""
    penalty: Any = None
    """The non-smooth term h, with `value` and `prox`; None if there is none."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its data and numbers are, by name, if they have names.

    A partition that is drawn has a `data seed`, rows a `row seed`."""

    def __post_init__(self) -> None:
        shape = None if self.sizes is None else np.shape(self.sizes)
        require(
            shape in (None, (self.nodes,)),
            f"sizes has shape {shape}: must be ({self.nodes},), the number of samples of each node",
        )
        check_random(self.oracle, self.data, self.dimension)
        if not (
            self.predict is None or self.unflatten is None or isinstance(self.predict, Predictor)
        ):
            object.__setattr__(
                self, "predict", Predictor(self.predict, self.unflatten, self.dimension)
            )

    def __repr__(self) -> str:
        more = "" if self.penalty is None else f", {self.penalty}"
        more += "" if self.held is None else f", data of node {self.held} only"
        return f"Problem({self.name}, n={self.nodes}, p={self.dimension}, {self._amount}{more})"

    @property
    def _amount(self) -> str:
        """How many samples the nodes have."""
        if self.sizes is None:
            return "endless samples"
        low, high = int(self.sizes.min()), int(self.sizes.max())
        return f"{low:,} samples each" if low == high else f"{low:,} to {high:,} samples each"

    @cached_property
    def samples(self) -> float | None:
        """m, the mean number of samples per node; None for an infinite stream."""
        return None if self.sizes is None else float(self.sizes.mean())

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What defines the problem, by name; checksums of what has no name."""
        _, *oracle = self.definition
        return (
            {**self.about, "oracle": digest(oracle)}
            if self.about
            else {"values": digest(self.definition)}
        )

    def now(self) -> Problem:
        """The problem with a user's functions as they are now: they may read values around them, which may change."""
        oracle, penalty = self._oracle_now(), _as_of_now(self.penalty)
        same = (oracle, penalty) == (self.oracle, self.penalty)
        return self if same else replace(self, oracle=oracle, penalty=penalty)

    def _oracle_now(self) -> Any:
        inner: Any = getattr(self.oracle, "value_and_grad", None)
        if hasattr(inner, "now"):
            return replace(self.oracle, value_and_grad=inner.now())  # type: ignore[type-var]
        return _as_of_now(self.oracle)

    @cached_property
    def definition(self) -> tuple[Any, ...]:
        """All that defines the problem, as arrays for a digest: the data, and the text of the oracle."""
        text, constants = definition(self.oracle, self.data, self.dimension)
        text += "" if self.penalty is None else repr(self.penalty)
        return self.data, np.frombuffer(text.encode(), np.uint8), constants

    def only(self, node: int) -> Problem:
        """The same problem with the data of one node only, for a process that runs that node."""
        if self.held is None:
            part = jax.tree.map(lambda a: np.array(a[node : node + 1]), self.data)
            return replace(self, data=part, held=node, about=self.about or self.facts)
        require(
            self.held == node,
            f"this process holds the data of node {self.held}: it has none of node {node}",
        )
        return self

    def part(self, node: int) -> Any:
        """The data of one node."""
        own = self.only(node).data if self.held is not None else self.data
        return jax.tree.map(lambda a: a[0 if self.held is not None else node], own)

    def loss(self, x: Any) -> float:
        """F(x) at one point x (p,), with the non-smooth term if there is one."""
        value = float(self.exact(x)[0].mean())
        return (
            value
            if self.penalty is None
            else value + float(self.penalty.value(np.asarray(x, float)))
        )

    def penalised(
        self, points: np.ndarray, values: np.ndarray, grads: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """F + h (k,) and proximal gradient mappings (k, p) at points (k, p), from F and its gradients there.

        The mapping is x - prox(x - grad F(x)), with step 1: the gradient itself where there is no
        h.
        """
        if self.penalty is None:
            return values, grads
        return values + self.penalty.value(points), points - self.penalty.prox(points - grads, 1.0)

    def grad(self, x: Any) -> np.ndarray:
        """The gradient of F at one point x (p,)."""
        return self.exact(x)[1].mean(axis=0)

    def local_grads(self, x: Any) -> np.ndarray:
        """The exact local gradients (n, p) at one point (p,), or at one point per node (n, p)."""
        require(
            self.oracle.finite, f"{self.name} has no exact local gradient: its samples never end"
        )
        return self.exact(x)[1]

    def stochastic_grads(
        self, x: Any, *, batch: int = 1, seed: int = 0, draw: int = 0
    ) -> np.ndarray:
        """The minibatch gradients (n, p) at x (p,) or (n, p), on the samples of draw number `draw`."""
        self._whole()
        with jax.enable_x64(True):
            keys = node_keys(jnp.uint32(seed), jnp.arange(self.nodes), jnp.uint32(draw))
            x = self._points(x)
            return np.asarray(
                _stochastic(self._oracle_now(), batch, keys, x, cast(self.data, x.dtype))
            )

    def exact(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """All f_i (n,) and their gradients (n, p) at one point (p,), or at one point per node (n, p)."""
        self._whole()
        with jax.enable_x64(True):
            x = self._points(x)
            values, grads = _exact(self._oracle_now(), x, cast(self.data, x.dtype))
            return np.asarray(values), np.asarray(grads)

    def _whole(self) -> None:
        require(
            self.held is None,
            f"this process holds the data of node {self.held} alone: ask where all data are",
        )

    def _points(self, x: Any) -> jax.Array:
        x = jnp.asarray(x, dtype=float)
        require(
            x.shape in ((self.dimension,), (self.nodes, self.dimension)),
            f"x has shape {x.shape}: must be {(self.dimension,)}, or {(self.nodes, self.dimension)} for one per node",
        )
        return jnp.broadcast_to(x, (self.nodes, self.dimension))


@dataclass(frozen=True)
class AsOf:
    """A user's oracle or penalty as it is now. Compiled programs are kept by them, and another checksum is another."""

    given: Any
    code: str

    def __getattr__(self, name: str) -> Any:
        if name == "given":  # which is not there yet while it is copied
            raise AttributeError(name)
        return getattr(self.given, name)

    def __str__(self) -> str:
        return str(self.given)


def _as_of_now(thing: Any) -> Any:
    given = thing.given if isinstance(thing, AsOf) else thing
    return given if is_library(type(given)) else AsOf(given, fingerprint(given))


@partial(jax.jit, static_argnums=(0, 1))
def _stochastic(oracle: Oracle, batch: int, keys: jax.Array, x: jax.Array, data: Any) -> jax.Array:
    def local(key: jax.Array, x: jax.Array, data: Any) -> jax.Array:
        return oracle.grad(x, oracle.draw(key, data, batch), data)

    return jax.vmap(local)(keys, x, data)


@partial(jax.jit, static_argnums=0)
def _exact(oracle: Oracle, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(oracle.exact)(x, data)


def cast(data: Any, dtype: Any) -> Any:
    """The data as JAX arrays; floating-point arrays are converted to `dtype`, and whole numbers stay as they are."""

    def placed(path: Any, a: Any) -> jax.Array:
        kind = jnp.result_type(a)
        check_fits(f"data{jax.tree_util.keystr(path)}", a, kind)
        return jnp.asarray(a, dtype if jnp.issubdtype(kind, jnp.floating) else None)

    return jax.tree.map_with_path(placed, data)


def check_fits(what: str, a: Any, kind: Any) -> None:
    """Refuse an array with whole numbers that would be others in this type, which JAX has in 32 bits."""
    if not jnp.issubdtype(kind, jnp.integer) or np.can_cast(a.dtype, kind) or a.size == 0:
        return
    low, high, limits = int(a.min()), int(a.max()), np.iinfo(kind)
    require(
        limits.min <= low and high <= limits.max,
        f"{what} has {low if low < limits.min else high:,}, and whole numbers of a run with precision=32 lie in "
        f"{limits.min:,} to {limits.max:,}: use precision=64, or smaller numbers, as by counting from 0",
    )
