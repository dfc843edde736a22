"""The links of a process to its neighbours in a network, with one process per node: the rounds of every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from peerdescent.compressors import Compressor
from peerdescent.engines.channels import Channel
from peerdescent.engines.mixing import Repeated
from peerdescent.engines.vectors import Vector, add, alone, combine, spent
from peerdescent.errors import require
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import Iteration
from peerdescent.threefry import Draw


class Turn:
    """The rounds of one step, at the node of this process."""

    def __init__(self, links: Links, happens: Iteration) -> None:
        self.links, self.happens = links, happens
        self.awake = happens.awake is None or bool(happens.awake[links.rank])
        self.squeezed: dict[int, Squeezed] = {}
        """The compressed vectors of this step, by their identity."""

    def mix(self, number: int, x: Any) -> Any:
        """sum_j w_ij x_j over this node i and the nodes it receives from, in the order of j after i."""
        return self._round(number, x, "mix")

    def disagree(self, number: int, x: Any) -> Any:
        """x - sum_j w_ij x_j as sum_j w_ij (x_i - x_j): the two ends of a link have exactly opposite terms."""
        return self._round(number, x, "disagree")

    def push(self, number: int, x: Any) -> Any:
        """sum_j b_ij x_j."""
        return self._round(number, x, "mix" if self.links.links.pushed is None else "push")

    def compress(self, x: Vector, operator: Compressor, draw: Draw) -> Vector:
        """C(x), as the neighbours will decode it; a round sends it as the bytes that it is encoded in."""
        own, by = x.tensor.cpu().numpy(), draw.of(np.array([self.links.rank]))
        message = operator.encode(own, by)
        found = x.pool.copy(torch.from_numpy(operator.decode(message, own.size, own.dtype, by)))
        self.squeezed[id(found)] = Squeezed(
            found, operator, draw, torch.from_numpy(message).to(x.pool.device)
        )
        return found

    def _round(self, number: int, x: Any, verb: str) -> Any:
        """Begin a round; its result waits for the neighbours at its first use."""
        if isinstance(x, torch.Tensor):  # a number of this node
            return self._round(number, alone(x), verb).tensor[0].clone()
        links, own = self.links, x.tensor
        combined: Combination = _differences if verb == "disagree" else _weigh
        what = f"{verb}, {links.numbers}" if links.numbers else verb
        message, noise = own, None
        if links.turns:
            weights, targets = links.turns[links.channel.step % len(links.turns)]
            sources = [j for j in weights if j != links.rank]
        else:
            sent, arrived = self.happens.weights(number, verb == "push")
            weights = {
                j: float(arrived[e, side]) for j, e, side in links.places if arrived[e, side]
            }
            # A message that gets lost is sent; one over a link that is down is not.
            sources = [j for j, e, side in links.places if sent[e, side]]
            targets = [j for j, e, side in links.places if sent[e, 1 - side]]
            given = sum(float(arrived[e, 1 - side]) for _, e, side in links.places)
            weights[links.rank] = 1 - (given if verb == "push" else sum(weights.values()))
            weights = dict(sorted(weights.items()))
            message, noise = self._distorted(number, own, weights)
        packed = self.squeezed.get(id(x))
        if packed is not None:
            message, what = packed.message, f"{what}, {packed.operator}"
        elif links.message is not None and links.message != own.dtype:
            message, combined = own.to(links.message), _rounded(combined)
        begun = links.channel.begin_exchange(
            dict.fromkeys(targets, message),
            sources,
            message,
            what,
            number,
            packed is not None,
        )
        links.sent += len(targets) * message.numel() * message.element_size()
        in_place, pool, vectors = (
            verb != "disagree",
            x.pool,
            [x],
        )  # x has its memory until it has been sent

        def fill() -> torch.Tensor:
            free = spent(vectors, 0) if in_place else None
            out = pool.take() if free is None else free
            for piece, heard in begun.pieces(after_sends=free is not None):
                if packed is not None:
                    heard = {j: packed.read(j, received) for j, received in heard.items()}
                combined(
                    out[piece], own[piece], links.rank, weights, {**heard, SENT: message[piece]}
                )
            if noise is not None:
                add(out, -1.0 if verb == "disagree" else 1.0, noise)
            return out

        return pool.later(fill)

    def _distorted(
        self, number: int, own: torch.Tensor, weights: Mapping[int, float]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What this node sends, and the noise on what it receives."""
        if not self.happens.distorts:
            return own, None
        values, node = own.cpu().numpy()[None], np.array([self.links.rank])
        heard = np.array([[w for j, w in weights.items() if j != self.links.rank]], values.dtype)
        noise = np.broadcast_to(self.happens.noise(number, heard, values, node), values.shape)
        sent = np.ascontiguousarray(self.happens.message(number, values, node)[0])
        return torch.tensor(sent, device=own.device), torch.tensor(noise[0], device=own.device)


SENT = -1
"""The number under which a round has what this process itself has sent."""

Combination = Callable[
    [torch.Tensor, torch.Tensor, int, Mapping[int, float], Mapping[int, torch.Tensor]], None
]
"""Writes what a round makes of a piece: out, this node's own x and rank, its weights, what arrived from whom.

`out` may be x, except for differences; what arrived may be changed."""


def _weigh(
    out: torch.Tensor,
    x: torch.Tensor,
    rank: int,
    weights: Mapping[int, float],
    heard: Mapping[int, torch.Tensor],
) -> None:
    near = [(w, heard[j]) for j, w in weights.items() if j != rank]
    combine(out, [(weights[rank], x), *near] if weights.get(rank) else near)


def _differences(
    out: torch.Tensor,
    x: torch.Tensor,
    rank: int,
    weights: Mapping[int, float],
    heard: Mapping[int, torch.Tensor],
) -> None:
    out.zero_()
    for j, w in weights.items():
        if j != rank:
            add(out, w, torch.sub(x, heard[j], out=heard[j]))


def _rounded(combined: Combination) -> Combination:
    """The same of rounded messages, as a disagreement of what was sent, so that the mean over all nodes is kept."""

    def act(
        out: torch.Tensor,
        x: torch.Tensor,
        rank: int,
        weights: Mapping[int, float],
        heard: Mapping[int, torch.Tensor],
    ) -> None:
        near = [(w, heard[j]) for j, w in weights.items() if j != rank]
        if combined is _weigh:
            given = 1 - weights.get(
                rank, 0.0
            )  # the neighbours' weights of it, whether rows or columns sum to 1
            combine(out, [(1.0, x), (-given, heard[SENT]), *near])
        else:
            own = sum(w for w, _ in near)
            combine(
                out, [(own, heard[SENT].to(x.dtype)), *((-w, received) for w, received in near)]
            )

    return act


class Squeezed(NamedTuple):
    """A compressed vector, and the bytes that it is sent as."""

    x: Vector
    operator: Compressor
    draw: Draw
    message: torch.Tensor

    def read(self, sender: int, message: torch.Tensor) -> torch.Tensor:
        """The vector that another process has sent by the same operator."""
        pool = self.x.pool
        dtype = torch.empty(0, dtype=pool.dtype).numpy().dtype
        by = self.draw.of(np.array([sender]))
        return torch.from_numpy(
            self.operator.decode(message.cpu().numpy(), pool.size, dtype, by)
        ).to(pool.device)


class Links:
    """The links of this process to the others, in a network with as many nodes as there are processes.

    `rank` is the node of this process. `sent` counts the bytes sent by `mix`, without
    announcements.
    """

    @staticmethod
    def check(network: Network, processes: int) -> None:
        """Refuse a network of another size, before anything is counted: some processes may see other errors."""
        require(
            network.n == processes,
            f"the network has {network.n} nodes and there are {processes} processes, one a node: start torchrun with "
            f"{network.n} processes, or take a network of {processes} nodes",
        )

    def __init__(
        self, network: Network, channel: Channel, seed: int = 0, message: torch.dtype | None = None
    ) -> None:
        self.channel = channel
        self.rank = self.channel.rank
        self.sent, self.numbers, self.message = 0, "", message
        self.seed, self.links = seed, network.links
        self.repeats, self.momentum = network.rounds, network.momentum
        self.turns = []
        for W in network.matrices if network.is_known else ():
            heard, column = W[[self.rank]].tocoo(), W[:, [self.rank]].tocoo()
            weights = dict(sorted(zip(heard.col.tolist(), heard.data.tolist(), strict=True)))
            targets = sorted(i for i in column.row.tolist() if i != self.rank)
            self.turns.append((weights, targets))
        places = [
            (int(a == self.rank), e)
            for e, (a, b) in enumerate(self.links.ends.tolist())
            if self.rank in (a, b)
        ]
        self.places = [(int(self.links.ends[e, side]), e, side) for side, e in places]
        """For each link of this node its other end, its number, and the direction of messages from there."""

    def begin(self, step: int, numbers: str = "", memory: tuple[Any, ...] = ()) -> Any:
        """Begin a step; returns its rounds. What is mixed in it is announced with its number and the method's numbers.

        `memory` is what links remember in this step.
        """
        self.channel.begin(step)
        self.numbers = numbers
        once = Turn(self, self.links.at(np, self.seed, step, memory))
        return once if self.repeats == 1 else Repeated(once, self.repeats, self.momentum)
