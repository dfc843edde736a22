"""Communication between processes over `torch.distributed`, with one process per node.

All communication uses `exchange`: concurrent point-to-point sends and receives, each with a time limit. So a process
that has ended or does not answer is reported by its rank, and no process waits for ever.

Every tensor is announced: before it, the two processes send each other a line of fixed length that says what it is.
Only if both lines are equal is the tensor received, so none is taken for another, and sizes agree. A process that
cannot go on sends the reason instead of its next line, to all others, and waits until it has theirs. So all of them
stop, each with an error that has the cause, and no message is left behind.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from peerdescent.compressors import Compressor
from peerdescent.engines import meeting
from peerdescent.engines.meeting import is_loopback, seconds
from peerdescent.engines.mixing import Repeated
from peerdescent.errors import NotFinite, PeerLost, require
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import Iteration
from peerdescent.threefry import Draw

LINE = 512
"""Bytes of the line that announces a tensor; longer ones are truncated and shorter ones padded."""

ANNOUNCEMENT = 7331
"""The tag of these lines, so that messages of the program itself are not taken for them."""

STOPPED = {"stop ": ValueError, "stop, not finite ": NotFinite}
"""The prefixes of lines that have the reason for an error, and the types of those errors."""

LOST = re.compile(r"connection|broken pipe|reset by peer|timed out|timeout|unreachable|remote process", re.IGNORECASE)
"""What errors of a lost connection say; gloo has no type for them."""

Request = tuple[int, Any, torch.Tensor]
"""What `isend` or `irecv` is to do: a rank, the function, a tensor."""


def connect() -> None:
    """Join the process group that `torchrun` describes, unless the program has done so itself.

    The backend is NCCL if every process of a machine has its own GPU, else gloo. If the master address is a loopback
    address, no port is opened on other interfaces, except by `torchrun` itself.
    """
    if dist.is_initialized():
        return
    require(
        "RANK" in os.environ,
        "engine processes runs one process per node, and there is none: start it with torchrun --nproc-per-node N, "
        "followed by -m peerdescent run ... --engine processes, or by a program of yours",
    )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name, "")
        require(text.isdecimal(), f"{name} = {text!r}: must be a whole number; torchrun sets it")
    require("MASTER_ADDR" in os.environ, "MASTER_ADDR is not set: it is the address of rank 0; torchrun sets it")
    limit = timedelta(seconds=seconds())
    rank, world, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", str(world))) else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    if is_loopback(os.environ.get("MASTER_ADDR", "")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    try:
        store = meeting.in_time(lambda: _store(rank, world, limit), "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ))
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        if backend == "gloo":  # else its threads would outlive the interpreter
            atexit.register(_leave)
    except (RuntimeError, ValueError, TimeoutError) as error:
        reason = str(error).splitlines()[0]
        raise PeerLost(f"rank {rank} of {world} could not meet the others within {seconds():g} s: {reason}") from error


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(rank: int, world: int, limit: timedelta) -> Any:
    """The key-value store for the rendezvous: that of `torchrun`, else one of rank 0 on the master address."""
    kind, prefixed = dist.TCPStore, dist.PrefixStore  # type: ignore[attr-defined]
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # After a restart the store of `torchrun` still has the keys of the attempt before.
        return prefixed(f"attempt-{meeting.attempt()}", kind(host, port, world, is_master=False, timeout=limit))
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family)
    own = kind(
        host, port, world, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return prefixed("attempt-0", own)


class Turn:
    """The rounds of one step, at the node of this process."""

    def __init__(self, links: Links, happens: Iteration) -> None:
        self.links, self.happens = links, happens
        self.awake = happens.awake is None or bool(happens.awake[links.rank])
        self.squeezed: dict[int, Squeezed] = {}
        """The compressed vectors of this step, by the identity of their tensors."""

    def mix(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """sum_j w_ij x_j over this node i and the nodes it receives from, in the order of j."""
        weights, heard, noise = self._round(number, x, "mix")
        total = sum((w * heard[j] for j, w in weights.items()), start=torch.zeros_like(x))
        return total if noise is None else total + noise

    def disagree(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """x - sum_j w_ij x_j as sum_j w_ij (x_i - x_j): the two ends of a link have exactly opposite terms."""
        weights, heard, noise = self._round(number, x, "disagree")
        others = ((j, w) for j, w in weights.items() if j != self.links.rank)
        total = sum((w * (x - heard[j]) for j, w in others), start=torch.zeros_like(x))
        return total if noise is None else total - noise

    def push(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """sum_j b_ij x_j."""
        if self.links.links.pushed is None:
            return self.mix(number, x)
        weights, heard, noise = self._round(number, x, "push")
        total = sum((w * heard[j] for j, w in weights.items()), start=torch.zeros_like(x))
        return total if noise is None else total + noise

    def compress(self, x: torch.Tensor, operator: Compressor, draw: Draw) -> torch.Tensor:
        """C(x), as the neighbours will decode it; a round sends it as the bytes that it is encoded in."""
        own, by = x.detach().cpu().numpy(), draw.of(np.array([self.links.rank]))
        message = operator.encode(own, by)
        found = torch.from_numpy(operator.decode(message, own.size, own.dtype, by)).to(x.device)
        self.squeezed[id(found)] = Squeezed(found, operator, draw, torch.from_numpy(message).to(x.device))
        return found

    def _round(
        self, number: int, x: torch.Tensor, verb: str
    ) -> tuple[dict[int, float], dict[int, torch.Tensor], torch.Tensor | None]:
        """One round: this node's weights, the vectors that they are for, its own included, and the noise on them."""
        links = self.links
        what = f"{verb}, {links.numbers}" if links.numbers else verb
        if links.turns:
            weights, targets = links.turns[links.step % len(links.turns)]
            sources, message, noise = [j for j in weights if j != links.rank], x, None
        else:
            sent, arrived = self.happens.weights(number, verb == "push")
            weights = {j: float(arrived[e, side]) for j, e, side in links.places if arrived[e, side]}
            # A message that gets lost is sent; one over a link that is down is not.
            sources = [j for j, e, side in links.places if sent[e, side]]
            targets = [j for j, e, side in links.places if sent[e, 1 - side]]
            given = sum(float(arrived[e, 1 - side]) for _, e, side in links.places)
            weights[links.rank] = 1 - (given if verb == "push" else sum(weights.values()))
            weights = dict(sorted(weights.items()))
            message, noise = self._distorted(number, x, weights)
        packed = self.squeezed.get(id(x))
        if packed is not None:
            message, what = packed.message, f"{what}, {packed.operator}"
        heard = links.exchange(dict.fromkeys(targets, message), sources, message, what, number)
        links.sent += len(targets) * message.numel() * message.element_size()
        if packed is not None:
            heard = {j: packed.read(j, own) for j, own in heard.items()}
        return weights, {**heard, links.rank: x}, noise

    def _distorted(
        self, number: int, x: torch.Tensor, weights: Mapping[int, float]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What this node sends, and the noise on what it receives."""
        if not self.happens.distorts:
            return x, None
        own, node = x.detach().cpu().numpy()[None], np.array([self.links.rank])
        heard = np.array([[w for j, w in weights.items() if j != self.links.rank]], own.dtype)
        noise = np.broadcast_to(self.happens.noise(number, heard, own, node), own.shape)
        sent = np.ascontiguousarray(self.happens.message(number, own, node)[0])
        return torch.tensor(sent, device=x.device), torch.tensor(noise[0], device=x.device)


class Squeezed(NamedTuple):
    """A compressed vector, and the bytes that it is sent as."""

    x: torch.Tensor
    operator: Compressor
    draw: Draw
    message: torch.Tensor

    def read(self, sender: int, message: torch.Tensor) -> torch.Tensor:
        """The vector that another process has sent by the same operator."""
        dtype = torch.empty(0, dtype=self.x.dtype).numpy().dtype
        by = self.draw.of(np.array([sender]))
        found = self.operator.decode(message.cpu().numpy(), self.x.numel(), dtype, by)
        return torch.from_numpy(found).to(self.x.device)


class Links:
    """The links of this process to the others, in a network with as many nodes as there are processes.

    `rank` is the node of this process. `sent` counts the bytes sent by `mix`, without announcements. Tensors on
    `device` are sent without a copy. `name` is what errors call it, followed by a number: all processes make their
    links in the same order.
    """

    made: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self, network: Network, name: str, seed: int = 0) -> None:
        connect()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.others = [rank for rank in range(self.world) if rank != self.rank]
        self.limit = timedelta(seconds=seconds())
        self.sent, self.step, self.round, self.numbers = 0, 0, 0, ""
        self.failure = ""
        # gloo sends tensors in CPU memory, NCCL those in GPU memory.
        backends = str(dist.distributed_c10d.BackendConfig(dist.get_backend()))
        self.staged = "nccl" not in backends
        self.device = torch.device("cpu" if "cpu:gloo" in backends else "cuda")
        require(
            network.n == self.world,
            f"the network has {network.n} nodes and there are {self.world} processes, one a node: "
            f"start torchrun with {network.n} processes, or take a network of {self.world} nodes",
        )
        self.name = f"{name} {next(Links.made)}"
        self.announcers = None if self.device.type == "cpu" else _gloo(dist.group.WORLD)
        self.seed, self.links = seed, network.links
        self.repeats, self.momentum = network.rounds, network.momentum
        self.turns = []
        for W in network.matrices if network.is_known else ():
            heard, column = W[[self.rank]].tocoo(), W[:, [self.rank]].tocoo()
            weights = dict(sorted(zip(heard.col.tolist(), heard.data.tolist(), strict=True)))
            targets = sorted(i for i in column.row.tolist() if i != self.rank)
            self.turns.append((weights, targets))
        places = [(int(a == self.rank), e) for e, (a, b) in enumerate(self.links.ends.tolist()) if self.rank in (a, b)]
        self.places = [(int(self.links.ends[e, side]), e, side) for side, e in places]
        """For each link of this node its other end, its number, and the direction of messages from there."""

    def begin(self, step: int, numbers: str = "", memory: tuple[Any, ...] = ()) -> Any:
        """Begin a step; returns its rounds. What is mixed in it is announced with its number and the method's numbers.

        `memory` is what links remember in this step.
        """
        self.step, self.round, self.numbers = step, 0, numbers
        once = Turn(self, self.links.at(np, self.seed, step, memory))
        return once if self.repeats == 1 else Repeated(once, self.repeats, self.momentum)

    def everyone(self, x: torch.Tensor, what: str = "gather") -> torch.Tensor:
        """The tensors of all processes (world, ...), equal in each of them."""
        heard = self.exchange(dict.fromkeys(self.others, x), self.others, x, what)
        heard[self.rank] = x
        return torch.stack([heard[rank] for rank in range(self.world)])

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise a ValueError if processes differ in a fact, and say in which."""
        meeting.agree(facts, lambda rows: self.everyone(torch.from_numpy(rows).to(self.device), "meet").cpu().numpy())

    def exchange(
        self,
        sends: Mapping[int, torch.Tensor],
        sources: Sequence[int],
        like: torch.Tensor,
        what: str,
        number: int | None = None,
    ) -> dict[int, torch.Tensor]:
        """Send and receive tensors, all concurrently; every tensor has the shape and type of `like`, and is `what`.

        `number` is that of a round of a step, in which a process may have no part; all others are counted here.
        If a process announces something else, this raises a ValueError that has both announcements.
        """
        require(not self.failure, f"{self.name} has stopped, so make a new one; the cause was: {self.failure}")
        peers = sorted({*sends, *sources})
        if not peers:
            return {}
        size = f"{like.numel()} of {str(like.dtype).removeprefix('torch.')}"
        mine = _line(
            f"{self.name}, step {self.step}, message {self.round if number is None else number}, {size}: {what}"
        )
        self.round += number is None
        lines, listening = self._listen(peers)
        told = self._post([(rank, dist.isend, mine) for rank in peers], ANNOUNCEMENT)
        place = torch.device("cpu") if self.staged else like.device
        # A tensor that goes to several processes is copied once.
        copies = {id(tensor): tensor.detach().to(place).contiguous() for tensor in sends.values()}
        into = {rank: torch.empty(like.shape, dtype=like.dtype, device=place) for rank in sources}
        asked: list[Request] = [(rank, dist.irecv, tensor) for rank, tensor in into.items()]
        asked += [(rank, dist.isend, copies[id(tensor)]) for rank, tensor in sends.items()]
        # Tensors need not wait for announcements, since their tag is made of it: another tensor never arrives.
        begun = self._post(asked, 1 << 30 | zlib.crc32(mine.numpy().tobytes()) >> 2) if self.staged else []
        self._wait(listening)
        # Where two processes agree, they exchange what they announced, even if one of them then stops.
        alike = [rank for rank in peers if torch.equal(lines[rank], mine)]
        if not self.staged:
            begun = self._post_at_once([request for request in asked if request[0] in alike])
        self._wait([(rank, work) for rank, work in begun if rank in alike])
        if len(alike) < len(peers):
            self._differ(mine, lines)
        self._wait(told)
        return {rank: tensor.to(like.device) for rank, tensor in into.items()}

    def stop(self, reason: str, error: type[Exception]) -> NoReturn:
        """Raise an error in this process, and in all others as soon as they communicate; all learn the reason.

        It waits until the others have stopped too, except those that are gone or do not answer in time.
        """
        self._part(reason, error, [])
        raise error(reason)

    def _differ(self, mine: torch.Tensor, lines: Mapping[int, torch.Tensor]) -> NoReturn:
        """Stop, since a process announced something else, or has itself stopped."""
        reasons = {rank: found for rank, line in lines.items() if (found := _reason(line))}
        for rank, line in lines.items():
            if rank not in reasons and not torch.equal(line, mine):
                here, there = _text(mine), _text(line)
                reason = f"rank {self.rank} expected '{here}', and rank {rank} sent '{there}': all processes must make "
                reason += "the same steps and calls, in the same order and with the same numbers"
                self._part(reason, ValueError, [*reasons])
                raise ValueError(reason)
        reason, error = next(iter(reasons.values()))
        self._part(reason, error, [*reasons])
        raise error(f"rank {self.rank} stops in step {self.step}, since {reason}")

    def _part(self, reason: str, error: type[Exception], parted: Sequence[int]) -> None:
        """Tell all others why this process stops, and wait until they have too; those in `parted` have said so."""
        self.failure = reason
        line = _line(next(begins for begins, kind in STOPPED.items() if kind is error) + reason)
        told = []
        for rank in self.others:
            with suppress(PeerLost):
                told += self._post([(rank, dist.isend, line)], ANNOUNCEMENT)
        for rank in self.others:
            with suppress(PeerLost):
                while rank not in parted:
                    lines, listening = self._listen([rank])
                    self._wait(listening)
                    if _reason(lines[rank]):
                        break
        for each in told:
            with suppress(PeerLost):
                self._wait([each])

    def _listen(self, ranks: Sequence[int]) -> tuple[dict[int, torch.Tensor], list[tuple[int, Any]]]:
        """The next line of each process, once it has arrived, and what to wait for."""
        lines = {rank: torch.empty(LINE, dtype=torch.uint8) for rank in ranks}
        return lines, self._post([(rank, dist.irecv, line) for rank, line in lines.items()], ANNOUNCEMENT)

    def _post(self, asked: Sequence[Request], tag: int) -> list[tuple[int, Any]]:
        """Begin to send and receive over gloo; the rank and the handle of each."""
        begun = []
        for rank, verb, tensor in asked:
            with self._named(rank):
                begun.append((rank, verb(tensor, rank, group=self.announcers, tag=tag)))
        return begun

    def _post_at_once(self, asked: Sequence[Request]) -> list[tuple[int, Any]]:
        """Begin to send and receive over NCCL, which wants all at once, and may return a single handle."""
        if not asked:
            return []
        with self._named(asked[0][0]):
            works = dist.batch_isend_irecv([dist.P2POp(verb, tensor, rank) for rank, verb, tensor in asked])
        return [(rank, work) for (rank, _, _), work in zip(asked, works, strict=False)]

    def _wait(self, begun: Sequence[tuple[int, Any]]) -> None:
        for rank, work in begun:
            with self._named(rank):
                work.wait(self.limit)

    @contextmanager
    def _named(self, rank: int) -> Iterator[None]:
        """Turn the errors of a lost connection into one that names the other process; all others stay as they are."""
        try:
            yield
        except RuntimeError as error:
            if not LOST.search(str(error)):
                raise
            late = "imed out" in str(error)
            what = f"did not answer within {self.limit.total_seconds():g} s" if late else "is gone"
            raise PeerLost(f"rank {self.rank}: rank {rank} {what}, in step {self.step}") from error


def _line(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()[:LINE].ljust(LINE, b"\0")), dtype=torch.uint8)


def _text(line: torch.Tensor) -> str:
    return line.numpy().tobytes().rstrip(b"\0").decode(errors="replace")


def _reason(line: torch.Tensor) -> tuple[str, type[Exception]] | None:
    """Why the process that sent the line has stopped, and the type of its error; None if it has not."""
    text = _text(line)
    return next(((text.removeprefix(b), error) for b, error in STOPPED.items() if text.startswith(b)), None)


@cache
def _gloo(group: Any) -> Any:
    """A second group of all processes in `group`, for announcements: a wait in NCCL itself has no limit."""
    second = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds()))
    atexit.register(_dissolve, second)
    return second


def _dissolve(group: Any) -> None:
    with suppress(ValueError, RuntimeError, AssertionError):  # the program may have done so
        dist.destroy_process_group(group)
