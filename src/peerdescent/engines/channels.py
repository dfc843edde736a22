"""Messages between processes over `torch.distributed`, each of which says what it is.

All communication is an `Exchange`: concurrent point-to-point sends and receives, each with a time
limit. So a process that has ended or does not answer is reported by its rank, and no process waits
for ever.

Every tensor is announced by a line of fixed length that says what it is; a small tensor is in the
same message. Only if both processes have the same line is the tensor received, so none is taken for
another, and sizes agree. A process that cannot go on sends the reason instead of its next line, to
all others, and waits until it has theirs. So all of them stop, each with an error that has the
cause, and no message is left behind.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist

from peerdescent.engines import joining, meeting
from peerdescent.engines.meeting import seconds
from peerdescent.errors import NotFinite, PeerLost, require

LINE = 512
"""Bytes of the line that announces a tensor; longer ones end in a digest and shorter ones are padded."""

INLINE = 1 << 16
"""Up to this number of bytes, a tensor is in the message of its line."""

PIECE = 1 << 21
"""Bytes of the pieces of larger tensors. Few of them are in memory at a time, and each is used while it is in cache."""

AHEAD = 2
"""Pieces of one sender that may have arrived before they are used."""

ANNOUNCEMENT = 7331
"""The tag of lines, so that messages of the program itself are not taken for them."""

STOPPED = {"stop ": ValueError, "stop, not finite ": NotFinite}
"""The prefixes of lines that have the reason for an error, and the types of those errors."""

LOST = re.compile(
    r"connection|broken pipe|reset by peer|timed out|timeout|unreachable|remote process",
    re.IGNORECASE,
)
"""What errors of a lost connection say; gloo has no type for them."""

NOTHING = torch.empty(0, dtype=torch.uint8)
"""What is sent where a line says it all."""

_unended: set[Exchange] = set()
"""Exchanges that have begun, also those that nobody waits for any more: their messages must find who they are for."""

Begun = list[tuple[int, Any]]
"""Messages on their way: the other process of each, and PyTorch's handle."""


class Envelope:
    """Memory for a line, and for a small tensor that comes with it; what is not used of it costs nothing."""

    def __init__(self) -> None:
        self.memory = torch.empty(LINE + INLINE, dtype=torch.uint8)
        self.bytes = memoryview(self.memory.numpy().data)
        self.known: dict[Any, torch.Tensor] = {}

    @property
    def line(self) -> bytes:
        """The line that is in it."""
        return bytes(self.bytes[:LINE])

    def part(self, size: int) -> torch.Tensor:
        """The line and so many bytes, as one tensor to send."""
        if size not in self.known:
            self.known[size] = self.memory[: LINE + size]
        return self.known[size]

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """What comes with the line, flat and of the size and type of `like`."""
        key = like.dtype, like.numel()
        if key not in self.known:
            self.known[key] = self.memory[LINE : LINE + like.numel() * like.element_size()].view(
                like.dtype
            )
        return self.known[key]


class Channel:
    """Announced messages between processes that are joined.

    `rank` is the number of this process among them. Tensors on `device` are sent without a copy.
    `name` is what errors call it, the same in all processes.
    """

    made: ClassVar[Iterator[int]] = itertools.count(1)

    @classmethod
    def over(cls, name: str, group: Any = None) -> Channel:
        """A channel between the processes of a group, which make their channels in the same order."""
        return cls(f"{name} {next(cls.made)}", joining.Circle.of(group))

    def __init__(self, name: str, circle: joining.Circle, limit: float | None = None) -> None:
        self.rank, self.names, self.wires, self.group = circle
        self.world = len(self.names)
        self.others = [rank for rank in range(self.world) if rank != self.rank]
        self.limit = timedelta(seconds=limit or seconds())
        self.step, self.round = 0, 0
        self.failure = ""
        # gloo sends tensors in CPU memory, NCCL those in GPU memory.
        backend = "gloo" if self.group is None else dist.get_backend(self.group)
        backends = str(dist.distributed_c10d.BackendConfig(dist.Backend(backend)))
        self.staged = "nccl" not in backends
        self.device = torch.device("cpu" if "cpu:gloo" in backends else "cuda")
        self.name = name
        self.open: list[Exchange] = []
        """Exchanges that have begun and not ended, in their order."""
        self.envelopes: list[Envelope] = []
        """Memory to be used again."""
        self.shelves: list[torch.Tensor] = []
        """Memory for the pieces of larger tensors, likewise."""

    def begin(self, step: int) -> None:
        """Begin a step: what is sent from now on is announced with its number."""
        self.step, self.round = step, 0

    def everyone(self, x: torch.Tensor, what: str = "gather") -> torch.Tensor:
        """The tensors of all processes (world, ...), equal in each of them."""
        heard = self.exchange(dict.fromkeys(self.others, x), self.others, x, what)
        heard[self.rank] = x
        return torch.stack([heard[rank] for rank in range(self.world)])

    def mean(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """The mean over all processes, equal in each of them."""
        return self._together(x, what, "allreduce") / self.world

    def first(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """What rank 0 has."""
        return self._together(x, what, "broadcast")

    def _together(self, x: torch.Tensor, what: str, operation: str) -> torch.Tensor:
        """The result of a collective operation on tensors of one shape, in memory of its own."""
        size = f"{what}, {x.numel()} of {x.dtype}"
        self.exchange(dict.fromkeys(self.others, NOTHING), self.others, NOTHING, size)
        found = x.detach().cpu().clone() if self.staged else x.detach().clone()
        if self.world > 1 and x.numel():
            try:
                if self.staged:
                    begun = getattr(self.wires, operation)(
                        found, *([0] if operation == "broadcast" else [])
                    )
                elif operation == "broadcast":
                    begun = dist.broadcast(found, group_src=0, group=self.group, async_op=True)
                else:
                    begun = dist.all_reduce(found, group=self.group, async_op=True)
                begun.wait(self.limit)
            except RuntimeError as error:
                self._lost(None, error)
        return found.to(x.device)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise a ValueError if processes differ in a fact, and say in which."""
        meeting.agree(
            facts,
            lambda rows: (
                self.everyone(torch.from_numpy(rows).to(self.device), "meet").cpu().numpy()
            ),
        )

    def exchange(
        self,
        sends: Mapping[int, torch.Tensor],
        sources: Sequence[int],
        like: torch.Tensor,
        what: str,
        number: int | None = None,
    ) -> dict[int, torch.Tensor]:
        """Send and receive tensors, all concurrently; every tensor has the shape and type of `like`, and is `what`."""
        begun = self.begin_exchange(sends, sources, like, what, number)
        into = {
            rank: torch.empty(like.shape, dtype=like.dtype, device=like.device) for rank in sources
        }
        for piece, heard in begun.pieces():
            for rank, received in heard.items():
                into[rank].view(-1)[piece] = received
        return into

    def begin_exchange(
        self,
        sends: Mapping[int, torch.Tensor],
        sources: Sequence[int],
        like: torch.Tensor,
        what: str,
        number: int | None = None,
        whole: bool = False,
    ) -> Exchange:
        """Begin to send and receive tensors of the shape and type of `like`, which are `what`.

        `number` is that of a round of a step, in which a process may have no part; all others are
        counted here. The tensors must not change before the exchange has ended. With `whole` they
        arrive in one piece.
        """
        require(
            not self.failure,
            f"{self.name} has stopped, so make a new one; the cause was: {self.failure}",
        )
        size = f"{like.numel()} of {str(like.dtype).removeprefix('torch.')}"
        text = f"{self.name}, step {self.step}, message {self.round if number is None else number}, {size}: {what}"
        self.round += number is None
        return Exchange(self, sends, sources, like, _line(text), whole)

    def close(self) -> None:
        """Close all connections: whoever waits for this process learns at once that it is gone."""
        self.failure = self.failure or "its connections are closed"
        _unended.difference_update(self.open)
        self.open.clear()
        if self.wires is not None:
            self.wires.abort()
            self.wires = None

    def stop(self, reason: str, error: type[Exception]) -> NoReturn:
        """Raise an error in this process, and in all others as soon as they communicate; all learn the reason.

        It waits until the others have stopped too, except those that are gone or do not answer in
        time.
        """
        self.part(reason, error, [])
        raise error(reason)

    def part(self, reason: str, error: type[Exception], parted: Sequence[int]) -> None:
        """Tell all others why this process stops, and wait until they have too; those in `parted` have said so."""
        self.failure = reason
        letter, told = self.envelope(), []
        letter.bytes[:LINE] = _line(
            next(begins for begins, kind in STOPPED.items() if kind is error) + reason
        )
        for rank in self.others:
            with suppress(PeerLost):
                told += self.post([(rank, "send", letter.part(0))], ANNOUNCEMENT)
        for rank in self.others:
            with suppress(PeerLost):
                expected = [
                    exchange.line_from(rank) for exchange in self.open if rank in exchange.peers
                ]
                while rank not in parted:
                    heard, begun = expected.pop(0) if expected else self.listen(rank)
                    self.wait(begun)
                    if reason_in(heard.line):
                        break
        for each in told:
            with suppress(PeerLost):
                self.wait([each])

    def listen(self, rank: int) -> tuple[Envelope, Begun]:
        """The next line of a process and what comes with it, once it has arrived, and what to wait for."""
        envelope = self.envelope()
        return envelope, self.post([(rank, "recv", envelope.memory)], ANNOUNCEMENT)

    def envelope(self) -> Envelope:
        """Memory for a line and what comes with it."""
        return self.envelopes.pop() if self.envelopes else Envelope()

    def post(self, asked: Sequence[tuple[int, str, torch.Tensor]], tag: int) -> Begun:
        """Begin to send and receive over gloo."""
        begun: Begun = []
        for rank, verb, tensor in asked:
            try:
                begun.append((rank, getattr(self.wires, verb)([tensor], rank, tag)))
            except RuntimeError as error:
                self._lost(rank, error)
        return begun

    def post_at_once(self, asked: Sequence[tuple[int, str, torch.Tensor]]) -> Begun:
        """Begin to send and receive over NCCL, which wants all at once, and may return a single handle."""
        if not asked:
            return []
        verbs = {"send": dist.isend, "recv": dist.irecv}
        operations = [
            dist.P2POp(verbs[verb], tensor, group=self.group, group_peer=rank)
            for rank, verb, tensor in asked
        ]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            self._lost(asked[0][0], error)
        return [(rank, work) for (rank, _, _), work in zip(asked, works, strict=False)]

    def wait(self, begun: Begun) -> None:
        """Wait for messages, within the time limit."""
        for rank, work in begun:
            try:
                work.wait(self.limit)
            except RuntimeError as error:
                self._lost(rank, error)

    def _lost(self, rank: int | None, error: RuntimeError) -> NoReturn:
        """Raise the error of a lost connection as one that names the other process; all others stay as they are."""
        if not LOST.search(str(error)):
            raise error
        late = "imed out" in str(error)
        what = f"did not answer within {self.limit.total_seconds():g} s" if late else "is gone"
        who = "a process" if rank is None else f"rank {self.names[rank]}"
        raise PeerLost(
            f"rank {self.names[self.rank]}: {who} {what}, in step {self.step}"
        ) from error


class Exchange:
    """Tensors on their way to and from other processes, all of one size, type and meaning; large ones in pieces."""

    def __init__(
        self,
        channel: Channel,
        sends: Mapping[int, torch.Tensor],
        sources: Sequence[int],
        like: torch.Tensor,
        line: bytes,
        whole: bool,
    ) -> None:
        self.channel, self.sources, self.like, self.line = channel, sources, like, line
        self.peers = sorted({*sends, *sources})
        self.size = like.numel() * like.element_size()
        self.inline = channel.staged and self.size <= INLINE
        self.length = max(1, like.numel() if whole else PIECE // like.element_size())
        # Tensors need not wait for lines, since their tag is made of it: another tensor never
        # arrives.
        self.tag = 0 if self.inline else 1 << 30 | zlib.crc32(line) >> 2
        self.heard = {rank: channel.listen(rank) for rank in self.peers}
        count = -(-like.numel() // self.length) if channel.staged and not self.inline else 0
        self.places = [
            slice(k * self.length, min((k + 1) * self.length, like.numel())) for k in range(count)
        ]
        """Those of the pieces."""
        self.rows = min(AHEAD, count)
        self.shelves = {rank: self._shelf(self.rows * self.length) for rank in sources if self.rows}
        # Whoever is waited for sends at once: so memory is there before anything is sent.
        self.waiting = [self._ask(k) for k in range(self.rows)]
        self.used: list[Envelope] = []
        # A tensor that goes to several processes is copied once.
        tensors = {id(x): x.detach().reshape(-1) for x in sends.values()}
        letters = {key: self._letter(x) for key, x in tensors.items()} if self.inline else {}
        alone = [rank for rank in self.peers if not self.inline or rank not in sends]
        lines = [(rank, "send", letters[id(x)]) for rank, x in sends.items() if self.inline]
        lines += [(rank, "send", self._letter(None)) for rank in alone]
        self.told = channel.post(lines, ANNOUNCEMENT)
        place = torch.device("cpu") if channel.staged else like.device
        copies = (
            {} if self.inline else {key: x.to(place).contiguous() for key, x in tensors.items()}
        )
        self.asked = [(rank, "send", copies[id(x)]) for rank, x in sends.items() if copies]
        self.sent = [
            channel.post([(rank, verb, x[place]) for rank, verb, x in self.asked], self.tag)
            for place in self.places
        ]
        channel.open.append(self)
        _unended.add(self)

    def _letter(self, x: torch.Tensor | None) -> torch.Tensor:
        """The line, and the tensor if there is one, in one message."""
        envelope = self.channel.envelope()
        self.used.append(envelope)
        envelope.bytes[:LINE] = self.line
        if x is not None:
            envelope.tensor(self.like).copy_(x)
        return envelope.part(0 if x is None else self.size)

    def line_from(self, rank: int) -> tuple[Envelope, Begun]:
        """The line of a process, once it has arrived, and what to wait for."""
        return self.heard[rank]

    def pieces(self, after_sends: bool = False) -> Iterator[tuple[slice, dict[int, torch.Tensor]]]:
        """What arrives from each source, piece by piece, in memory that is used again for the next.

        With `after_sends` a piece of what this process sends may be changed after it was yielded.
        """
        channel = self.channel
        for _, begun in self.heard.values():
            channel.wait(begun)
        channel.open.remove(self)
        alike = [rank for rank, (envelope, _) in self.heard.items() if envelope.line == self.line]
        arriving = self._arriving(
            [rank for rank in self.sources if rank in alike], alike, after_sends
        )
        if len(alike) < len(self.peers):
            # Where two processes agree, they exchange what they announced, even if one of them then
            # stops.
            for _ in arriving:
                pass
            self._differ()
        yield from arriving
        for begun in (self.told, *self.sent):
            channel.wait(begun)
        _unended.discard(self)
        channel.envelopes += [*self.used, *(envelope for envelope, _ in self.heard.values())]

    def _arriving(
        self, sources: Sequence[int], alike: Sequence[int], after_sends: bool
    ) -> Iterator[tuple[slice, dict[int, torch.Tensor]]]:
        channel, like = self.channel, self.like
        if self.inline:
            yield (
                slice(None),
                {rank: self.heard[rank][0].tensor(like).to(like.device) for rank in sources},
            )
        elif not channel.staged:
            into = {
                rank: torch.empty(like.numel(), dtype=like.dtype, device=like.device)
                for rank in sources
            }
            asked = [(rank, "recv", x) for rank, x in into.items()]
            asked += [message for message in self.asked if message[0] in alike]
            channel.wait(
                channel.post_at_once(asked if like.numel() else [])
            )  # where a line says it all, it is all
            yield slice(None), into
        else:
            yield from self._by_pieces(sources, alike, after_sends)

    def _by_pieces(
        self, sources: Sequence[int], alike: Sequence[int], after_sends: bool
    ) -> Iterator[tuple[slice, dict[int, torch.Tensor]]]:
        channel, like = self.channel, self.like
        for k, place in enumerate(self.places):
            into, begun = self.waiting.pop(0)
            channel.wait([message for message in begun if message[0] in sources])
            if after_sends:
                channel.wait(
                    [message for message in self.sent.pop(0) if message[0] in alike]
                )  # gloo waits only once
            piece = slice(None) if len(self.places) == 1 else place
            yield piece, {rank: into[rank].to(like.device) for rank in sources}
            if k + self.rows < len(self.places):
                self.waiting.append(self._ask(k + self.rows))
        channel.shelves += self.shelves.values()

    def _ask(self, k: int) -> tuple[dict[int, torch.Tensor], Begun]:
        """Begin to receive the k-th piece from every source."""
        begin, size = k % self.rows * self.length, self.places[k].stop - self.places[k].start
        into = {
            rank: shelf.view(self.like.dtype)[begin : begin + size]
            for rank, shelf in self.shelves.items()
        }
        return into, self.channel.post([(rank, "recv", x) for rank, x in into.items()], self.tag)

    def _shelf(self, numbers: int) -> torch.Tensor:
        """Memory for so many numbers."""
        each, shelves = self.like.element_size(), self.channel.shelves
        size = max(numbers * each, AHEAD * PIECE)
        fits = next((k for k, shelf in enumerate(shelves) if len(shelf) >= size), None)
        shelf = torch.empty(size, dtype=torch.uint8) if fits is None else shelves.pop(fits)
        return shelf[: len(shelf) // each * each]

    def _differ(self) -> NoReturn:
        """Stop, since a process announced something else, or has itself stopped."""
        channel, lines = (
            self.channel,
            {rank: envelope.line for rank, (envelope, _) in self.heard.items()},
        )
        reasons = {rank: found for rank, line in lines.items() if (found := reason_in(line))}
        for rank, line in lines.items():
            if rank not in reasons and line != self.line:
                here, there = _text(self.line), _text(line)
                mine, theirs = channel.names[channel.rank], channel.names[rank]
                reason = f"rank {mine} expected '{here}', and rank {theirs} sent '{there}': all processes must "
                reason += (
                    "make the same steps and calls, in the same order and with the same numbers"
                )
                channel.part(reason, ValueError, [*reasons])
                raise ValueError(reason)
        reason, error = next(iter(reasons.values()))
        channel.part(reason, error, [*reasons])
        raise error(
            f"rank {channel.names[channel.rank]} stops in step {channel.step}, since {reason}"
        )


def _line(text: str) -> bytes:
    return meeting.fitted(text, LINE).ljust(LINE, b"\0")


def _text(line: bytes) -> str:
    return line.rstrip(b"\0").decode(errors="replace")


def reason_in(line: bytes) -> tuple[str, type[Exception]] | None:
    """Why the process that sent the line has stopped, and the type of its error; None if it has not."""
    text = _text(line)
    return next(
        ((text.removeprefix(b), error) for b, error in STOPPED.items() if text.startswith(b)), None
    )
