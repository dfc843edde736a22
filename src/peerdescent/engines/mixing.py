"""Mixing: the weights W in compiled programs, as dense matrices or as lists of neighbours, and as faults leave them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as Spec
from scipy import sparse

from peerdescent.engines.devices import on_gpu
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import Decided, Iteration, Rounds, slots

AXIS = "nodes"
"""The name of the mesh axis."""
SUMMED_UP_TO = 16
"""The number of nodes up to which `in_sums` changes something."""
SAME, FIRST, SECOND = Spec(), Spec(AXIS), Spec(None, AXIS)
"""Arrays that are replicated on all devices of a mesh, and those sharded along their first or second axis."""

jax.tree_util.register_dataclass(
    Rounds, ["ends", "weights", "pushed"], ["nodes", "faults", "graph", "code"]
)


class Turn(ABC):
    """The network in one iteration. Rounds of communication are numbered within it."""

    awake: Any = None
    """Which of the nodes are awake, (k,); None if all are."""

    @abstractmethod
    def mix(self, number: int, x: jax.Array) -> jax.Array:
        """W x."""

    @abstractmethod
    def disagree(self, number: int, x: jax.Array) -> jax.Array:
        """x - W x."""

    def push(self, number: int, x: jax.Array) -> jax.Array:
        """B x, where B is W unless the network has push-pull weights."""
        return self.mix(number, x)

    def kept(self, new: Any, old: Any) -> Any:
        """The new state, but for nodes that sleep, whose state stays."""
        if self.awake is None:
            return new
        awake = self.awake
        # A number that all nodes share, in the state of a method made by hand, belongs to none of
        # them.
        return jax.tree.map(
            lambda a, b: jnp.where(_by_node(awake, a), a, b) if jnp.ndim(a) else a, new, old
        )


class Weights(ABC):
    """The weights of a network in a compiled program."""

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return 1

    @property
    def cut(self) -> Any:
        """How they are divided over the devices of a mesh."""
        return SECOND

    def begin(self, seed: Any) -> tuple[Any, ...]:
        """What links remember, in iteration 0; empty for links without memory."""
        return ()

    def later(self, seed: Any, t: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        """What links remember in iteration t, from the one before."""
        return ()

    def ahead(self, seed: Any, t: Any, memory: tuple[Any, ...], numbers: Sequence[int]) -> Any:
        """What is computed for the rounds of iteration t before it begins.

        A loop carries it from one iteration to the next, since the compiler would otherwise repeat
        every draw wherever it is used.
        """
        return {}

    @abstractmethod
    def at(self, seed: Any, t: Any, memory: tuple[Any, ...], ahead: Any = None) -> Turn:
        """The network in iteration t."""


class Fixed(Weights):
    """Weights that depend on the iteration alone, so all its rounds have the same."""

    def at(self, seed: Any, t: Any, memory: tuple[Any, ...], ahead: Any = None) -> Turn:
        """The network in iteration t."""
        return Steady(self, t)

    @abstractmethod
    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """W_t x."""

    def disagree(self, t: Any, x: jax.Array) -> jax.Array:
        """x - W_t x."""
        return disagreement(x, lambda apart: self.mix(t, apart))


class Steady(Turn):
    """The weights of iteration t, the same in all its rounds."""

    def __init__(self, weights: Fixed, t: Any) -> None:
        self.weights, self.t = weights, t

    def mix(self, number: int, x: jax.Array) -> jax.Array:
        """W x."""
        return self.weights.mix(self.t, x)

    def disagree(self, number: int, x: jax.Array) -> jax.Array:
        """x - W x."""
        return self.weights.disagree(self.t, x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense(Fixed):
    """Dense weights (period, n, n)."""

    matrices: Any
    summed: bool = field(default=False, metadata={"static": True})
    """Whether W x is computed as a sum."""

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.matrices.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """W_t x."""
        W = _turn(self.matrices, t)
        return (W[:, :, None] * x).sum(axis=1) if self.summed else product(W, x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gather(Fixed):
    """The nodes that each node receives from (period, n, d) and their weights (period, n, d), padded with zeros."""

    neighbours: Any
    weights: Any

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.weights.shape[-1])

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """sum_j w_ij x_j over the neighbours of i, one neighbour at a time."""
        return gathered(_turn(self.neighbours, t), _turn(self.weights, t), x)


def product(W: jax.Array, x: jax.Array) -> jax.Array:
    """W x for a dense W."""
    return jnp.tensordot(W, x, 1, precision=lax.Precision.HIGHEST)


def gathered(neighbours: jax.Array, weights: jax.Array, x: jax.Array) -> jax.Array:
    """The sums of the neighbours' vectors, with weights (n, d)."""

    x = jnp.asarray(x)

    def heard(neighbours: jax.Array, weights: jax.Array) -> jax.Array:
        return reduce(
            add, (weights[..., k] * x[neighbours[..., k]] for k in range(neighbours.shape[-1]))
        )

    if on_gpu():
        return heard(neighbours, weights.reshape(*weights.shape, *[1] * (x.ndim - 1)))
    # Node by node: otherwise the compiler computes anew for every neighbour what x consists of.
    return lax.map(lambda own: heard(*own), (neighbours, weights))


def disagreement(x: jax.Array, mix: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """x - W x for the first rows of x, as many as `mix` returns.

    All is taken relative to one node, since the rows of W sum to 1: rounding is then that of the
    differences.
    """
    apart = x - x[:1]
    mixed = mix(apart)
    return apart[: len(mixed)] - mixed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Realised(Weights):
    """Weights that are decided round by round: by faults, random graphs, or push-pull weights.

    `neighbours` (1, n, d) are the nodes that a node may hear from, and `places` (1, n, d) where the
    weights of their messages are among those of all links. `dense` has all nodes in order.
    """

    rounds: Rounds
    neighbours: Any
    places: Any
    dense: bool = field(metadata={"static": True})

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.places.shape[-1])

    @property
    def cut(self) -> Any:
        """Links are known to all devices."""
        known = replace(self.rounds, ends=SAME, weights=SAME, pushed=SAME)
        return Realised(known, SECOND, SECOND, self.dense)

    def begin(self, seed: Any) -> tuple[Any, ...]:
        """What links remember, in iteration 0."""
        return self.rounds.begin(jnp, seed)

    def later(self, seed: Any, t: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        """What links remember in iteration t."""
        return self.rounds.later(jnp, seed, t, memory)

    def ahead(self, seed: Any, t: Any, memory: tuple[Any, ...], numbers: Sequence[int]) -> Any:
        """What is drawn for each round."""
        happens = self.rounds.at(jnp, seed, t, memory)
        return {number: happens.decided(number) for number in numbers}

    def at(self, seed: Any, t: Any, memory: tuple[Any, ...], ahead: Any = None) -> Turn:
        """The network in iteration t."""
        nodes = jnp.arange(self.rounds.nodes)
        return Happening(
            self, self.rounds.at(jnp, seed, t, memory), nodes, lambda vectors: vectors, ahead or {}
        )


class Happening(Turn):
    """What happens in one iteration, to the nodes (k,) of this device.

    `hear` adds the vectors received from other devices to those of this one.
    """

    def __init__(
        self,
        weights: Realised,
        iteration: Iteration,
        nodes: jax.Array,
        hear: Callable[[jax.Array], jax.Array],
        ahead: dict[int, Decided],
    ) -> None:
        self.weights, self.iteration, self.nodes, self.hear, self.ahead = (
            weights,
            iteration,
            nodes,
            hear,
            ahead,
        )
        self.awake = None if iteration.awake is None else iteration.awake[nodes]

    def mix(self, number: int, x: jax.Array) -> jax.Array:
        """What arrives, and its own vector with the weight that is left."""
        heard = self._arrived(number, x.dtype)
        own = 1 - heard.sum(axis=1)
        if self.weights.dense and not self.iteration.distorts:
            return product(jnp.where(jnp.eye(len(own), dtype=bool), own, heard), x)
        return _by_node(own, x) * x + self._received(number, heard, x, 0)

    def disagree(self, number: int, x: jax.Array) -> jax.Array:
        """The same by differences to one node, as in `disagreement`."""
        heard = self._arrived(number, x.dtype)
        apart = x - x[:1]
        return _by_node(heard.sum(axis=1), x) * apart - self._received(number, heard, x, x[:1])

    def push(self, number: int, x: jax.Array) -> jax.Array:
        """What arrives, and what a node did not send of its own vector."""
        if self.weights.rounds.pushed is None:
            return self.mix(number, x)
        flat = self._flat(number, x.dtype, push=True)
        heard, sent = flat[self.weights.places[0]], flat[self.weights.places[0] ^ 1]
        return _by_node(1 - sent.sum(axis=1), x) * x + self._received(number, heard, x, 0)

    def _arrived(self, number: int, dtype: Any) -> jax.Array:
        """The weights of the messages that this device's nodes hear."""
        return self._flat(number, dtype)[self.weights.places[0]]

    def _flat(self, number: int, dtype: Any, push: bool = False) -> jax.Array:
        """The weights of all messages that arrive, by place, and two zeros for no message."""
        arrived = self.iteration.weights(number, push, self.ahead.get(number))[1]
        return jnp.concatenate([arrived.astype(dtype).ravel(), jnp.zeros(2, dtype)])

    def _received(self, number: int, heard: jax.Array, x: jax.Array, origin: Any) -> jax.Array:
        """The sum of the messages received, relative to an origin, with noise."""
        messages = self.hear(self.iteration.message(number, x, self.nodes)) - origin
        total = (
            product(heard, messages)
            if self.weights.dense
            else gathered(self.weights.neighbours[0], heard, messages)
        )
        return total + self.iteration.noise(number, heard, x, self.nodes)


def _by_node(a: jax.Array, x: jax.Array) -> jax.Array:
    return a.reshape(-1, *[1] * (x.ndim - 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Several(Weights):
    """Several rounds for each `mix`, with Chebyshev's weights if `momentum` is not 0."""

    each: Any
    rounds: int = field(metadata={"static": True})
    momentum: float = field(metadata={"static": True})

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return int(self.each.width) * self.rounds

    @property
    def cut(self) -> Any:
        """As that of the weights of one round."""
        return Several(self.each.cut, self.rounds, self.momentum)

    def begin(self, seed: Any) -> tuple[Any, ...]:
        """What links remember, in iteration 0."""
        found: tuple[Any, ...] = self.each.begin(seed)
        return found

    def later(self, seed: Any, t: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        """What links remember in iteration t."""
        found: tuple[Any, ...] = self.each.later(seed, t, memory)
        return found

    def ahead(self, seed: Any, t: Any, memory: tuple[Any, ...], numbers: Sequence[int]) -> Any:
        """That of all rounds."""
        each = [number * self.rounds + k for number in numbers for k in range(self.rounds)]
        return self.each.ahead(seed, t, memory, each)

    def at(self, seed: Any, t: Any, memory: tuple[Any, ...], ahead: Any = None) -> Turn:
        """The network in iteration t."""
        return Repeated(self.each.at(seed, t, memory, ahead), self.rounds, self.momentum)


class Repeated(Turn):
    """Several rounds of another turn; it serves vectors of any kind."""

    def __init__(self, turn: Any, rounds: int, momentum: float) -> None:
        self.turn, self.rounds, self.momentum = turn, rounds, momentum
        self.awake = turn.awake

    def mix(self, number: int, x: Any) -> Any:
        """z_0 = z_{-1} = x; z_{k+1} = (1 + c) W z_k - c z_{k-1}."""
        return self._repeated(self.turn.mix, number, x)

    def push(self, number: int, x: Any) -> Any:
        """The same with B."""
        return self._repeated(self.turn.push, number, x)

    def compress(self, *given: Any) -> Any:
        """As in a single round; a method that mixes what it compressed is refused with several."""
        return self.turn.compress(*given)

    def disagree(self, number: int, x: Any) -> Any:
        """x - z_K, as a sum of disagreements: z_k - z_{k+1} = (1 + c) (z_k - W z_k) + c (z_{k-1} - z_k)."""
        step, total, now = 0 * x, 0 * x, x
        for k in range(self.rounds):
            step = (1 + self.momentum) * self.turn.disagree(
                number * self.rounds + k, now
            ) + self.momentum * step
            total, now = total + step, now - step
        return total

    def _repeated(self, once: Callable[[int, Any], Any], number: int, x: Any) -> Any:
        before = now = x
        for k in range(self.rounds):
            mixed = once(number * self.rounds + k, now)
            before, now = (
                now,
                (1 + self.momentum) * mixed - self.momentum * before if self.momentum else mixed,
            )
        return now


def weights_of(network: Network, dtype: Any, batch: int = 1) -> Weights:
    """The weights of a network as a compiled program with minibatches of that size uses them, on the device."""
    if not network.is_known:
        links = network.links
        neighbours, places = slots(
            links.ends, network.n, dense=_is_dense(network.n, _widest(links.ends, network.n))
        )
        dense = places.shape[1] == network.n
        once: Weights = Realised(links, neighbours[None], places[None], dense)
    else:
        once = packed(network.matrices, dtype, batch)
    found: Weights = jax.tree.map(jnp.asarray, repeated(once, network))
    return found


def in_sums(weights: Any) -> Any:
    """The same weights, whose products with arrays (n, k) are computed as sums if that is faster.

    It is on a GPU and for few nodes: a sum becomes one operation with what is added to it, a
    product does not.
    """
    if isinstance(weights, Several):
        return replace(weights, each=in_sums(weights.each))
    few = isinstance(weights, Dense) and weights.width <= SUMMED_UP_TO and on_gpu()
    return replace(weights, summed=True) if few else weights


def repeated(once: Weights, network: Network) -> Weights:
    """The weights of one round, as often as the network has them."""
    return once if network.rounds == 1 else Several(once, network.rounds, network.momentum)


def _widest(ends: np.ndarray, nodes: int) -> int:
    return 1 + int(np.bincount(ends.ravel(), minlength=nodes).max(initial=0))


def _is_dense(columns: int, widest: int, batch: int = 1) -> bool:
    """On a CPU, n = 8 to 1,024, a gather is faster if less than half of W is nonzero; for GPUs 8 is a guess.

    Where gradients cost much more than the mix, a product with W keeps XLA from making one function
    of the loop, which has one thread: at batch 512 a step then takes half as long.
    """
    return columns <= (8 * widest if on_gpu() else max(2 * widest, batch // 4))


def packed(matrices: Sequence[sparse.csr_array], dtype: Any, batch: int = 1) -> Dense | Gather:
    """The weights in NumPy arrays: dense matrices, or lists of neighbours if they are sparse."""
    heard = [np.diff(matrix.indptr) for matrix in matrices]
    widest = max(int(h.max()) for h in heard)
    rows, columns = matrices[0].shape
    if _is_dense(columns, widest, batch if len(matrices) == 1 else 1):
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
