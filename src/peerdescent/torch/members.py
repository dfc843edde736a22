"""Who trains: the processes that are left, as they agree on at a store whenever one is lost or one comes back.

Each process shows that it lives by counting up a number at the store. When a process is lost to
another, that one closes its connections, so that soon all notice, and each comes to a meeting at
the store. It ends when all have arrived that live, and the first to see that writes who they are.
Whoever is not on that list has to ask to join again. So there is one list, written once, whatever
each process believes about the others.

A process is known by a token of its own. Of two processes of one rank, the one that came last holds
the rank, and the other one ends.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from peerdescent.engines.joining import Circle, gloo, prefixed
from peerdescent.engines.meeting import FIELD, fitted, seconds
from peerdescent.errors import PeerLost, require

log = logging.getLogger("peerdescent.torch")

LOOK = 0.05
"""Seconds between two looks at the store in a meeting."""


class Final(PeerLost):
    """A loss after which a process does not go on."""


class StoreLost(Final):
    """The store is gone, without which processes cannot agree on who goes on."""


class Roster(NamedTuple):
    """The result of a meeting: who goes on, from which position, and who of them is new."""

    generation: int
    ranks: tuple[int, ...]
    position: tuple[int, int]
    new: tuple[int, ...]
    since: tuple[int, ...]
    """For each the generation in which it came; 0 for those that have begun together."""
    tokens: tuple[str, ...] = ()
    """For each what its process is known by."""

    @property
    def later(self) -> tuple[int, ...]:
        """Who has come since the beginning."""
        return tuple(rank for rank, since in zip(self.ranks, self.since, strict=True) if since)

    @property
    def leader(self) -> int:
        """Who has been there the longest, and of those the first."""
        return min(zip(self.since, self.ranks, strict=True))[1]


class Members:
    """The processes that train together, seen from one of them.

    Args:
        store: A store of PyTorch that outlives every single process.
        rank: The number of this process among all that may take part.
        world: The number of all.
        patience: Seconds without a sign of life after which a process counts as lost.
        facts: What must be the same in every process; who differs in them cannot join those that
            have begun.
    """

    def __init__(
        self, store: Any, rank: int, world: int, patience: float, facts: Mapping[str, Any]
    ) -> None:
        require(patience > 0, f"patience = {patience}: must be a positive number of seconds")
        self.store, self.rank, self.world, self.patience = (
            prefixed("members", store),
            rank,
            world,
            patience,
        )
        self.facts = {
            name: fitted(str(value), FIELD).decode(errors="replace")
            for name, value in facts.items()
        }
        self.token = uuid.uuid4().hex
        self.roster = Roster(-1, tuple(range(world)), (0, 0), (), (0,) * world)
        self.knocked = False
        """Whether a process asks to join."""
        self.is_new = False
        """Whether this process has joined and has not got the others' parameters yet."""
        self.replaced = False
        """Whether a newer process holds the rank of this one."""
        self._ended = threading.Event()
        # The thread has a connection of its own: a store makes one request at a time.
        another = prefixed("members", store.clone())
        self._heart = threading.Thread(target=self._beat, args=(another,), daemon=True)

    def _beat(self, store: Any) -> None:
        """Show that this process lives; the first of all members also looks whether somebody asks to join."""
        try:
            while not self._ended.wait(self.patience / 10):
                store.add(f"alive/{self.token}", 1)
                self.replaced = self._holder(store, self.rank) != self.token
                generation = self.roster.generation
                if self.roster.ranks[0] == self.rank and generation >= 0:
                    self.knocked = any(
                        store.check([f"knock/{rank}/{generation}"]) for rank in range(self.world)
                    )
        except RuntimeError:  # the store is gone: the next meeting says so
            return

    def leave(self) -> None:
        """Say that this process has ended, so that nobody waits for it."""
        self._ended.set()
        try:
            self.store.set(f"left/{self.token}", "")
        except RuntimeError:
            return

    def check_place(self) -> None:
        """End this process if a newer one holds its rank."""
        if self.replaced:
            raise Final(
                f"rank {self.rank}: a process that was started later has taken this rank, and goes on in its place; "
                "this one ends"
            )

    def agreed(self) -> None:
        """All have the same facts: who comes later is to have them, too."""
        with self._named():
            self.store.compare_set("facts", "", json.dumps(self.facts))

    def _check_facts(self) -> None:
        """Refuse to join a training of something else."""
        theirs = json.loads(self.store.get("facts")) if self.store.check(["facts"]) else self.facts
        for name in {**theirs, **self.facts}:
            there, here = (repr(facts.get(name, "nothing")) for facts in (theirs, self.facts))
            require(
                there == here,
                f"rank {self.rank} cannot join the others, which go on without it: {name} is {here} here and {there} "
                "there; start it with the program, the arguments and the versions of the others",
            )

    def first(self) -> Roster:
        """Meet all others at the beginning, or join those that have begun already."""
        with self._named():
            self._check_facts()
            self.store.set(f"holder/{self.rank}", self.token)
            self._heart.start()
            begun = self.store.check(["generation"])
            return (
                self._join() if begun else self._in(self._meet(0, range(self.world), (0, 0), False))
            )

    def meet(self, position: tuple[int, int]) -> Roster:
        """Meet those that are left, after a process was lost; `position` is how far this process is."""
        last = self.roster
        with self._named():
            return self._in(self._meet(last.generation + 1, last.ranks, position, self.is_new))

    def _in(self, found: Roster) -> Roster:
        """The roster if this process is on it, else one that it joins."""
        return found if self.token in found.tokens else self._join()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say what it means if the store does not answer."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise StoreLost(
                f"rank {self.rank}: the store where the processes meet is gone: {reason}"
            ) from error

    def _join(self) -> Roster:
        """Ask to join until a meeting has let this process in."""
        began, self.is_new = time.monotonic(), True
        log.warning("rank %d asks to join", self.rank)
        while True:
            generation = int(self.store.get("generation"))
            while self.store.check([f"{generation + 1}/roster"]):
                generation += 1
            ranks = json.loads(self.store.get(f"{generation}/roster"))["ranks"]
            self.store.set(f"knock/{self.rank}/{generation}", "")
            found = self._meet(generation + 1, ranks, (0, 0), True)
            if self.token in found.tokens:
                return found
            late = time.monotonic() - began > max(seconds(), 3 * self.patience)
            if late:
                raise PeerLost(
                    f"rank {self.rank}: the others did not let it join within {seconds():g} s"
                )

    def _meet(
        self, generation: int, before: Iterable[int], position: tuple[int, int], new: bool
    ) -> Roster:
        """One meeting: who has arrived when all are there that live."""
        since = dict(zip(self.roster.ranks, self.roster.since, strict=True)).get(self.rank, 0)
        mine, key = {"position": position, "new": new, "since": since}, f"{generation}/roster"
        self.store.set(f"{generation}/arrived/{self.token}", json.dumps(mine))
        began, seen = time.monotonic(), dict[str, tuple[int, float]]()
        while not self.store.check([key]):
            holders = {rank: self._holder(self.store, rank) for rank in range(self.world)}
            self.replaced = holders[self.rank] != self.token
            self.check_place()
            there = [
                rank
                for rank in holders
                if self.store.check([f"{generation}/arrived/{holders[rank]}"])
            ]
            arrived = [rank for rank in there if rank in before or self._lives(holders[rank], seen)]
            # At the beginning all are waited for.
            away = [rank for rank in before if rank not in arrived]
            missing = [rank for rank in away if not generation or self._lives(holders[rank], seen)]
            facts = [
                json.loads(self.store.get(f"{generation}/arrived/{holders[rank]}"))
                for rank in arrived
            ]
            positions = [tuple(fact["position"]) for fact in facts if not fact["new"]]
            # Those who ask to join wait for those who are in.
            if not missing and positions:
                joined = [rank for rank, fact in zip(arrived, facts, strict=True) if fact["new"]]
                times = [generation if fact["new"] else fact["since"] for fact in facts]
                lists = {
                    "ranks": arrived,
                    "position": max(positions),
                    "new": joined,
                    "since": times,
                }
                text = json.dumps({**lists, "tokens": [holders[rank] for rank in arrived]})
                self.store.compare_set(key, "", text)
            elif not missing:
                raise Final(
                    f"rank {self.rank} cannot join: the training at this store has ended, or all its processes were "
                    "lost; start all processes anew, with a new store, to train or to go on from checkpoints"
                )
            elif time.monotonic() - began > max(seconds(), 3 * self.patience):
                waits = ", ".join(map(str, missing))
                raise PeerLost(
                    f"rank {self.rank}: waited for ranks {waits}, which live and do not come to the meeting"
                )
            time.sleep(LOOK)
        found = json.loads(self.store.get(key))
        self.store.set("generation", str(generation))
        told = (tuple(found[name]) for name in ("ranks", "position", "new", "since", "tokens"))
        roster = Roster(generation, *told)
        if self.token in roster.tokens:
            stayed = set(roster.ranks) - set(roster.new)
            gone, came = {*before} - stayed - {self.rank}, {*roster.new} - {self.rank}
            for rank in sorted(gone | came):
                how = (
                    "left"
                    if rank not in came
                    else f"left, and rank {rank} came back"
                    if rank in gone
                    else "came"
                )
                log.warning(
                    "step %d: rank %d %s; %d go on",
                    roster.position[0],
                    rank,
                    how,
                    len(roster.ranks),
                )
            self.roster, self.knocked = roster, False
        return roster

    def _holder(self, store: Any, rank: int) -> str:
        """The token of the process that holds a rank; empty if there was none yet."""
        return store.get(f"holder/{rank}").decode() if store.check([f"holder/{rank}"]) else ""

    def _lives(self, token: str, seen: dict[str, tuple[int, float]]) -> bool:
        """Whether a process has shown a sign of life within the patience; `seen` has the last one, and when it came."""
        if self.store.check([f"left/{token}"]):
            return False
        count, now = self.store.add(f"alive/{token}", 0), time.monotonic()
        if token not in seen or seen[token][0] != count:
            seen[token] = count, now
        return now - seen[token][1] < self.patience

    def connected(self) -> Circle:
        """Meet the others and connect, at the beginning; if somebody is lost in between, meet again."""
        self.first()
        while True:
            try:
                return self.circle()
            except PeerLost as lost:
                log.warning("%s", lost)
                self.meet((0, 0))

    def circle(self) -> Circle:
        """Connect the members; all of them do."""
        roster = self.roster
        own, world = roster.ranks.index(self.rank), len(roster.ranks)
        store = prefixed(f"{roster.generation}/wires", self.store)
        wires = gloo(store, own, world, 3 * self.patience) if world > 1 else None
        return Circle(own, roster.ranks, wires)
