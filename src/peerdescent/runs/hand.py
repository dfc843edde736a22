"""The hand of a clock: when every node has finished an iteration, by a recursion over the messages that arrived."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import peerdescent.engines.mixing  # noqa: F401  makes a pytree of Rounds
from peerdescent.engines.outline import Chance, Either, Every, Gradient, Message, Mix, outline
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import EVER, Rounds, slots
from peerdescent.problems.problem import Problem
from peerdescent.threefry import source

PURPOSE = 1 << 17
"""The purpose of draws of computing times; those of faults and random graphs have other numbers."""


class Work(NamedTuple):
    """A number of gradients at every node; None for one of each of the node's samples."""

    gradients: int | None


class Talk(NamedTuple):
    """A round of communication, by its number, and its messages."""

    number: int
    message: Message


class Turns(NamedTuple):
    """What is done in some iterations, and in others."""

    when: Every | Chance
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...]


def _plan(events: list[Any], rounds: int) -> tuple[Any, ...]:
    """What takes time among the events of an iteration, in order."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, Gradient):
            found.append(Work(None if event.sample is None else event.sample.batch))
        elif isinstance(event, Mix):
            found += [Talk(event.number * rounds + k, event.message) for k in range(rounds)]
        elif isinstance(event, Either):
            found.append(Turns(event.when, *(_plan(side, rounds) for side in event[1:])))
    return tuple(found)


class Speeds(NamedTuple):
    """The arrays of a clock on a network."""

    numbers: tuple[Any, ...]
    """The seconds a gradient of each node (n,), or the numbers of their distribution."""
    samples: Any
    """The gradients that an exact one of each node counts as, (n,)."""
    neighbours: Any
    """The nodes that a node may hear from, (n, d)."""
    places: Any
    """Where their messages are in the flattened (E, 2), and 2 E for none, (n, d)."""
    delays: Any
    """The seconds that messages take, (period, n, d), by what is in them; -inf where there is never one."""


class Kind(NamedTuple):
    """What shapes the program of a clock."""

    start: tuple[Any, ...]
    step: tuple[Any, ...]
    distribution: Any
    overlap: bool
    messages: tuple[Message, ...]
    """The messages that differ."""
    decided: bool
    """Whether links are decided round by round."""


def _iteration(
    plan: tuple[Any, ...],
    kind: Kind,
    speeds: Speeds,
    rounds: Rounds,
    seed: Any,
    t: Any,
    memory: Any,
    now: jax.Array,
) -> jax.Array:
    """When the nodes have finished iteration t, (n,), from when they began it."""
    happens = rounds.at(jnp, seed, t, memory)
    pace = speeds.numbers[0]
    if kind.distribution is not None:
        pace = kind.distribution.drawn(
            source(jnp, seed, t, PURPOSE, EVER), rounds.nodes, *speeds.numbers
        )

    def talk(number: int, message: Message, now: jax.Array) -> jax.Array:
        delays = speeds.delays[kind.messages.index(message)]
        delays = delays[t % len(delays)]
        if kind.decided:
            delays = jnp.where(
                jnp.append(happens.arrives(number).ravel(), False)[speeds.places], delays, -jnp.inf
            )
        return jnp.maximum(now, (now[speeds.neighbours] + delays).max(axis=1))

    def go(plan: tuple[Any, ...], at: tuple[Any, Any]) -> tuple[Any, Any]:
        """When gradients and rounds are done; both the same unless they overlap."""
        for event in plan:
            if isinstance(event, Turns):
                due = event.when.due(jnp, seed, t)
                at = jax.tree.map(
                    partial(jnp.where, due), go(event.then, at), go(event.otherwise, at)
                )
            elif isinstance(event, Work):
                worked = (
                    at[0] + (speeds.samples if event.gradients is None else event.gradients) * pace
                )
                at = worked, at[1] if kind.overlap else worked
            else:
                talked = talk(event.number, event.message, at[1])
                at = at[0] if kind.overlap else talked, talked
        return at

    done = jnp.maximum(*go(plan, (now, now)))
    return done if happens.awake is None else jnp.where(happens.awake, done, now)


@partial(jax.jit, static_argnames="kind")
def _begun(kind: Kind, speeds: Speeds, rounds: Rounds, seed: Any) -> tuple[Any, jax.Array]:
    """The memory of the links, and when nodes have finished iteration 0."""
    memory = rounds.begin(jnp, seed)
    return memory, _iteration(
        kind.start, kind, speeds, rounds, seed, 0, memory, jnp.zeros(rounds.nodes)
    )


@partial(jax.jit, static_argnames="kind")
def _moved(
    kind: Kind, speeds: Speeds, rounds: Rounds, seed: Any, first: Any, until: Any, state: Any
) -> Any:
    """The same after iterations first, ..., until - 1."""

    def body(t: Any, state: Any) -> Any:
        memory = rounds.later(jnp, seed, t, state[0])
        return memory, _iteration(kind.step, kind, speeds, rounds, seed, t, memory, state[1])

    return lax.fori_loop(first, until, body, state)


class Hand:
    """The hand of a clock, which moves on with a run.

    Args:
        compute: The distribution of the seconds a gradient, or None for given seconds.
        numbers: Its numbers at each node, or the seconds themselves, each (n,).
        delays: The seconds that a message takes on all links, (E, 2).
        overlap: Whether gradients and rounds of an iteration overlap.
        method: What the run does.
        problem: The problem, for the samples of exact gradients.
        network: The network.
        seed: The seed of the run.
    """

    def __init__(
        self,
        compute: Any,
        numbers: Sequence[np.ndarray],
        delays: Callable[[Message], np.ndarray],
        overlap: bool,
        method: Method,
        problem: Problem,
        network: Network,
        seed: int,
    ) -> None:
        links, told = network.links, outline(method)
        start, step = (_plan(events, network.rounds) for events in (told.start, told.step))
        neighbours, places = slots(links.ends, network.n, dense=False)
        messages = tuple(dict.fromkeys(mix.message for mix in told.messages))
        exists = links.weights > 0 if network.graph is None else np.ones((1, links.links, 2), bool)
        ever = np.stack([np.append(each.ravel(), False)[places] for each in exists])
        seconds = (np.append(delays(message).ravel(), -np.inf)[places] for message in messages)
        self._kind = Kind(
            start, step, compute, overlap, messages, bool(network.faults or network.graph)
        )
        samples = np.ones(network.n) if problem.sizes is None else problem.sizes.astype(float)
        speeds = Speeds(
            tuple(numbers),
            samples,
            neighbours,
            places,
            tuple(np.where(ever, s, -np.inf) for s in seconds),
        )
        self._arguments: Any = speeds, links, np.uint32(seed)
        self.nodes = np.zeros(network.n)
        """When each node has finished, (n,)."""
        self._step = 0
        self._state: Any = None

    def at(self, step: int) -> float:
        """The simulated seconds at a step. It is quick if steps come in order."""
        if step == 0:
            return 0.0
        with jax.enable_x64(True), _on_cpu():
            if step < self._step or self._state is None:
                self._step, self._state = 1, _begun(self._kind, *self._arguments)
            self._state = _moved(self._kind, *self._arguments, self._step, step, self._state)
            self._step, self.nodes = step, np.asarray(self._state[1])
        return float(self.nodes.max())


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """A loop of small operations is fastest there; where JAX was told to leave it out, the device is another."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        device = None
    with jax.default_device(device):
        yield
