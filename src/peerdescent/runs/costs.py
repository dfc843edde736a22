"""The costs of a run: gradients, rounds and bytes sent per node.

`Costs` are known before a run begins, for any number of steps: they follow from the method's
outline, the problem (samples of an exact gradient) and the network (how many neighbours a vector is
sent to, in how many rounds). They turn a budget in epochs into a number of steps. Where nodes
sleep, links fail or graphs are drawn, they are expected values, and `Books` count what the run with
a certain seed has in fact spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peerdescent.engines import mixing  # noqa: F401  (it makes networks known to JAX)
from peerdescent.engines.outline import Chance, Either, Gradient, Message, Mix, outline
from peerdescent.errors import require
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import Rounds
from peerdescent.problems.problem import Problem

CHUNK = 4096
"""How many iterations `Books` count at once."""


def message_size(problem: Problem, network: Network, itemsize: int) -> Callable[[Message], float]:
    """The bytes of a message."""

    def size(message: Message) -> float:
        if message.operator is not None:
            return message.size(problem.dimension, itemsize)
        return network.message_bytes(message.entries(problem.dimension), itemsize)

    return size


class Turnout(NamedTuple):
    """How many nodes and messages take part in some iterations (k,)."""

    awake: Any
    """The share of nodes that are awake, (k,)."""
    samples: Any
    """The samples of those, summed and divided by the number of nodes, (k,): what exact gradients count as."""
    sent: dict[int, Any]
    """For each round by number, the messages that a node sends on average, (k,)."""


class Costs:
    """The costs of a node up to x_t, for any t: gradients, rounds and bytes sent. They are means over nodes.

    From iteration 1 on, costs repeat with the common period of the method and the network, so only
    one period is tabulated; those of coins whose probability is a schedule do not.

    Args:
        method: The method.
        samples: How many gradients an exact local gradient counts as. None for 1, if the cost is
            not a finite sum.
        degrees: The mean number of messages that a node sends in a round if all are awake, for each
            W of the period.
        rounds: How many rounds a mix has.
        awake: The probability that a node is awake; in iteration 0 all are.
        message: The bytes of a message; by default every message counts as one.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> method, network = peer.methods.gt_hsgd(batch=4, initial_batch=32), peer.Network(peer.topology.ring(4))
    >>> costs = Costs.of(method, problem, network)
    >>> costs.gradients([0, 1, 2, 3]).tolist(), int(costs.gradients(1_000_000_000))
    ([0.0, 32.0, 40.0, 48.0], 8000000024)
    """

    def __init__(
        self,
        method: Method,
        samples: float | None,
        degrees: Sequence[float] | np.ndarray,
        rounds: int = 1,
        awake: float = 1.0,
        message: Callable[[Message], float] = lambda message: 1.0,
    ) -> None:
        self._name, self._outline = method.name, outline(method)
        self._samples, self._degrees = (
            1.0 if samples is None else samples,
            np.asarray(degrees, dtype=float),
        )
        self._rounds, self._awake, self._message = rounds, awake, message
        self._first = self._charge(self._outline.start, np.zeros(1, np.int64))[0]
        changing = any(
            isinstance(when, Chance) and when.is_scheduled for when in self._outline.branches
        )
        self._cycle = 2**31 if changing else math.lcm(len(self._degrees), *self._outline.periods)
        self._table = np.zeros((1, 3))

    @classmethod
    def of(cls, method: Method, problem: Problem, network: Network, itemsize: int = 4) -> Costs:
        """The costs of a method on a problem and a network, with numbers of so many bytes.

        Exact gradients of an infinite stream are refused.
        """
        require(
            problem.oracle.finite or not outline(method).takes_exact,
            f"{method.name} takes exact local gradients, and {problem.name} has none, since its samples never end: "
            "use a method without exact gradients, such as d-get",
        )
        awake = math.prod(fault.awake for fault in network.faults)
        up = (
            math.prod(
                1.0 if fault.moments is None else fault.moments[0] for fault in network.faults
            )
            / awake**2
        )
        degrees = np.atleast_2d(network.degree).mean(axis=1) * up
        return cls(
            method,
            problem.samples,
            degrees,
            network.rounds,
            awake,
            message_size(problem, network, itemsize),
        )

    def gradients(self, t: Any) -> np.ndarray:
        """Gradients that a node has computed up to x_t."""
        return self._spent(t)[..., 0]

    def rounds(self, t: Any) -> np.ndarray:
        """Rounds of communication up to x_t."""
        return self._spent(t)[..., 1]

    def sent(self, t: Any) -> np.ndarray:
        """Bytes sent up to x_t: those of a message times the out-degree, the mean over nodes."""
        return self._spent(t)[..., 2]

    def steps_within(self, budget: float) -> int:
        """How many iterations fit into a budget of gradients per node; at least 1."""
        budget *= 1 + 1e-12  # 0.29 epochs of 100 samples are 28.999999999999996 gradients
        later, total = budget - self._first[0], self._reach(budget)
        whole = int(later // total) if later > 0 else 0
        rest = later - whole * total
        return max(
            1,
            1
            + whole * (len(self._table) - 1)
            + int(np.searchsorted(self._table[:, 0], rest, "right"))
            - 1,
        )

    def reaching(self, targets: np.ndarray) -> np.ndarray:
        """The first t at which a node has computed at least `targets` gradients."""
        later, total = targets - self._first[0], self._reach(float(np.max(targets)))
        whole = np.maximum(np.ceil(later / total) - 1, 0)
        found = np.searchsorted(self._table[:, 0], later - whole * total, "left")
        steps = 1 + whole.astype(np.int64) * (len(self._table) - 1) + found
        return np.where(targets <= 0, 0, np.where(later <= 0, 1, steps))

    def _spent(self, t: Any) -> np.ndarray:
        t = np.asarray(t, dtype=np.int64)
        later = np.maximum(t - 1, 0)
        self._extend(int(later.max(initial=1)))
        whole, rest = np.divmod(later, len(self._table) - 1)
        return (
            (t > 0)[..., None] * self._first
            + whole[..., None] * self._table[-1]
            + self._table[rest]
        )

    def _reach(self, budget: float) -> float:
        """Extend the table to a whole period or to the budget; returns its total of gradients."""
        length = 1024
        while True:
            self._extend(length)
            total = float(self._table[-1, 0])
            if len(self._table) > self._cycle:
                require(
                    total > 0,
                    f"{self._name} computes no gradients, so epochs mean nothing: give steps",
                )
                return total
            if total + self._first[0] > budget:
                return total
            length *= 2

    def _extend(self, length: int) -> None:
        """Make the table cover iterations 1..length, or one whole period if that is shorter."""
        length = min(self._cycle, length)
        if length < len(self._table):
            return
        each = self._charge(self._outline.step, np.arange(1, length + 1))
        self._table = np.concatenate([np.zeros((1, 3)), each.cumsum(axis=0)])

    def _charge(
        self,
        events: list[Any],
        t: np.ndarray,
        seed: int | None = None,
        turnout: Turnout | None = None,
    ) -> np.ndarray:
        """The gradients, rounds and bytes sent (k, 3) of each of the iterations t (k,).

        With a seed the coins are those of its run, and with a turnout the nodes and messages are;
        else they are expected values.
        """
        spent = np.zeros((len(t), 3))
        awake = np.where(t > 0, self._awake, 1.0) if turnout is None else turnout.awake
        exact = awake * self._samples if turnout is None else turnout.samples
        for event in events:
            if isinstance(event, Gradient):
                spent[:, 0] += exact if event.sample is None else awake * event.sample.batch
            elif isinstance(event, Mix):
                for number in self._numbers(event):
                    spent[:, 1] += awake
                    usual = (
                        self._degrees[t % len(self._degrees)] * awake**2
                    )  # a message needs both its nodes
                    messages = usual if turnout is None else turnout.sent[number]
                    spent[:, 2] += messages * self._message(event.message)
            elif isinstance(event, Either):
                when = event.when
                if isinstance(when, Chance) and seed is None:
                    share = np.broadcast_to(np.asarray(when.likely(t), float), len(t))
                else:
                    share = np.asarray(when.due(np, seed, t), float)
                then, otherwise = (
                    self._charge(side, t, seed, turnout) for side in (event.then, event.otherwise)
                )
                spent += share[:, None] * then + (1 - share[:, None]) * otherwise
        return spent

    def _numbers(self, event: Mix) -> range:
        """The numbers of the rounds of a mix."""
        return range(event.number * self._rounds, (event.number + 1) * self._rounds)


class Books:
    """What a run has spent up to x_t: the costs of a node with the nodes and messages that in fact took part.

    They are counted from the draws of the run's seed, so every engine has the same books.
    """

    def __init__(self, costs: Costs, problem: Problem, network: Network, seed: int) -> None:
        self.costs, self.links, self.seed = costs, network.links, jnp.uint32(seed)
        sizes = (
            np.ones(network.n, np.int32)
            if problem.sizes is None
            else problem.sizes.astype(np.int32)
        )
        self.sizes = jnp.asarray(sizes)
        known = network.graph is None and all(
            f.awake == 1 and (f.moments or (1,))[0] == 1 for f in network.faults
        )
        does = costs._outline
        self.numbers = tuple(
            sorted({number for mix in does.messages for number in costs._numbers(mix)})
        )
        certain = not any(isinstance(when, Chance) for when in does.branches)
        self.known, self.next, self.total = known, 0, None if known and certain else np.zeros(3)
        self.memory = () if known else self.links.begin(jnp, self.seed)

    def at(self, t: int) -> tuple[float, float, float]:
        """The gradients, rounds and bytes of a node up to x_t; t must not decrease from call to call."""
        if self.total is None:
            gradients, rounds, sent = self.costs._spent(t)
            return float(gradients), int(rounds), float(sent)
        while self.next < t:
            count = min(CHUNK, t - self.next)
            steps, does, seed = (
                np.arange(self.next, self.next + count),
                self.costs._outline,
                int(self.seed),
            )
            turnout = None if self.known else self._turnout(count)
            spent = self.costs._charge(does.step, steps, seed, turnout)
            if self.next == 0:
                first = jax.tree.map(lambda each: each[:1], turnout)
                spent[0] = self.costs._charge(does.start, steps[:1], seed, first)[0]
            self.total, self.next = self.total + spent.sum(axis=0), self.next + count
        gradients, rounds, sent = self.total.tolist()
        return gradients, rounds, sent

    def _turnout(self, count: int) -> Turnout:
        """Who takes part in the next iterations."""
        *counted, self.memory = _turnout(
            self.numbers, CHUNK, self.links, self.sizes, self.seed, self.next, self.memory, count
        )
        awake, samples, sent = (np.asarray(each)[:count] / self.links.nodes for each in counted)
        return Turnout(awake, samples, dict(zip(self.numbers, sent.T, strict=True)))


@partial(jax.jit, static_argnums=(0, 1))
def _turnout(
    numbers: tuple[int, ...],
    chunk: int,
    links: Rounds,
    sizes: Any,
    seed: Any,
    first: Any,
    memory: Any,
    count: Any,
) -> tuple[Any, Any, Any, Any]:
    """How many nodes are awake (chunk,), their samples (chunk,), the messages of each round (chunk, rounds), and the
    last memory.

    Only the first `count` iterations are computed.
    """

    def step(i: Any, done: Any) -> Any:
        before, awake, samples, sent = done
        later = links.later(jnp, seed, first + i, before)
        memory = jax.tree.map(lambda a, b: jnp.where(first + i == 0, a, b), before, later)
        now = links.at(jnp, seed, first + i, memory)
        own = jnp.array([(now.weights(number)[0] > 0).sum() for number in numbers], jnp.int32)
        up = jnp.ones(links.nodes, bool) if now.awake is None else now.awake
        held = jnp.where(up, sizes, 0).sum(dtype=jnp.int32)
        return (
            memory,
            awake.at[i].set(up.sum(dtype=jnp.int32)),
            samples.at[i].set(held),
            sent.at[i].set(own),
        )

    nothing = (jnp.zeros(chunk, jnp.int32),) * 2, jnp.zeros((chunk, len(numbers)), jnp.int32)
    memory, awake, samples, sent = lax.fori_loop(0, count, step, (memory, *nothing[0], nothing[1]))
    return awake, samples, sent, memory
