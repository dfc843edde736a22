"""Who trains: the processes that are left, as they agree on at a store whenever one is lost or one comes back.

Each process shows that it lives by counting up a number at the store. When a process is lost to another, that one
closes its connections, so that soon all notice, and each comes to a meeting at the store. It ends when all have arrived
that live, and the first to see that writes who they are. Whoever is not on that list has to ask to join again. So there
is one list, written once, whatever each process believes about the others.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from peerdescent.engines.joining import Circle, gloo, prefixed
from peerdescent.engines.meeting import seconds
from peerdescent.errors import PeerLost, require

log = logging.getLogger("peerdescent.torch")

LOOK = 0.05
"""Seconds between two looks at the store in a meeting."""


class StoreLost(PeerLost):
    """The store is gone, without which processes cannot agree on who goes on."""


class Roster(NamedTuple):
    """The result of a meeting: who goes on, from which position, and who of them is new."""

    generation: int
    ranks: tuple[int, ...]
    position: tuple[int, int]
    new: tuple[int, ...]


class Members:
    """The processes that train together, seen from one of them.

    Args:
        store: A store of PyTorch that outlives every single process.
        rank: The number of this process among all that may take part.
        world: The number of all.
        patience: Seconds without a sign of life after which a process counts as lost.
    """

    def __init__(self, store: Any, rank: int, world: int, patience: float) -> None:
        require(patience > 0, f"patience = {patience}: must be a positive number of seconds")
        self.store, self.rank, self.world, self.patience = prefixed("members", store), rank, world, patience
        self.roster = Roster(-1, tuple(range(world)), (0, 0), ())
        self.knocked = False
        """Whether a process asks to join."""
        self.is_new = False
        """Whether this process has joined and has not got the others' parameters yet."""
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, args=(self._another(store),), daemon=True)
        self._heart.start()

    def _another(self, store: Any) -> Any:
        """A connection of its own for the thread: a store makes one request at a time."""
        return prefixed("members", store.clone())

    def _beat(self, store: Any) -> None:
        """Show that this process lives; the first of all members also looks whether somebody asks to join."""
        try:
            while not self._ended.wait(self.patience / 10):
                store.add(f"alive/{self.rank}", 1)
                if self.roster.ranks[0] == self.rank and self.roster.generation >= 0:
                    others = [rank for rank in range(self.world) if rank not in self.roster.ranks]
                    self.knocked = any(store.check([f"knock/{rank}/{self.roster.generation}"]) for rank in others)
        except RuntimeError:  # the store is gone: the next meeting says so
            return

    def leave(self) -> None:
        """Say that this process has ended, so that nobody waits for it."""
        self._ended.set()
        try:
            self.store.set(f"left/{self.rank}", "")
        except RuntimeError:
            return

    def first(self) -> Roster:
        """Meet all others at the beginning, or join those that have begun already."""
        with self._named():
            self.store.delete_key(f"left/{self.rank}")
            begun = self.store.check(["generation"])
            return self._join() if begun else self._meet(0, range(self.world), (0, 0), False)

    def meet(self, position: tuple[int, int]) -> Roster:
        """Meet those that are left, after a process was lost; `position` is how far this process is."""
        last = self.roster
        with self._named():
            found = self._meet(last.generation + 1, last.ranks, position, self.is_new)
            return found if self.rank in found.ranks else self._join()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say what it means if the store does not answer."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise StoreLost(f"rank {self.rank}: the store where the processes meet is gone: {reason}") from error

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
            if self.rank in found.ranks:
                return found
            late = time.monotonic() - began > max(seconds(), 3 * self.patience)
            if late:
                raise PeerLost(f"rank {self.rank}: the others did not let it join within {seconds():g} s")

    def _meet(self, generation: int, before: Iterable[int], position: tuple[int, int], new: bool) -> Roster:
        """One meeting: who has arrived when all are there that live."""
        mine, key = {"position": position, "new": new}, f"{generation}/roster"
        self.store.set(f"{generation}/arrived/{self.rank}", json.dumps(mine))
        began, seen = time.monotonic(), dict[int, tuple[int, float]]()
        while not self.store.check([key]):
            there = [rank for rank in range(self.world) if self.store.check([f"{generation}/arrived/{rank}"])]
            arrived = [rank for rank in there if rank in before or self._lives(rank, seen)]
            # At the beginning all are waited for.
            missing = [rank for rank in before if rank not in arrived and (not generation or self._lives(rank, seen))]
            old = [rank for rank in arrived if rank in before and rank != self.rank]
            # Those who ask to join wait for those who are in, unless nobody is left of them.
            if not missing and (not new or not old):
                facts = [json.loads(self.store.get(f"{generation}/arrived/{rank}")) for rank in arrived]
                positions = [tuple(fact["position"]) for fact in facts if not fact["new"]] or [(0, 0)]
                joined = [rank for rank, fact in zip(arrived, facts, strict=True) if fact["new"]]
                text = json.dumps({"ranks": arrived, "position": max(positions), "new": joined})
                self.store.compare_set(key, "", text)
            elif time.monotonic() - began > max(seconds(), 3 * self.patience):
                waits = ", ".join(map(str, missing)) or "the members"
                raise PeerLost(f"rank {self.rank}: waited for ranks {waits}, which live and do not come to the meeting")
            time.sleep(LOOK)
        found = json.loads(self.store.get(key))
        self.store.set("generation", str(generation))
        roster = Roster(generation, tuple(found["ranks"]), tuple(found["position"]), tuple(found["new"]))
        if self.rank in roster.ranks:
            stayed = set(roster.ranks) - set(roster.new)
            gone, came = sorted(set(before) - stayed), [rank for rank in roster.new if rank != self.rank]
            for rank in gone:
                log.warning("step %d: rank %d left; %d go on", roster.position[0], rank, len(roster.ranks))
            for rank in came:
                log.warning("step %d: rank %d came; %d go on", roster.position[0], rank, len(roster.ranks))
            self.roster, self.knocked = roster, False
        return roster

    def _lives(self, rank: int, seen: dict[int, tuple[int, float]]) -> bool:
        """Whether a process has shown a sign of life within the patience; `seen` has the last one, and when it came."""
        if self.store.check([f"left/{rank}"]):
            return False
        count, now = self.store.add(f"alive/{rank}", 0), time.monotonic()
        if rank not in seen or seen[rank][0] != count:
            seen[rank] = count, now
        return now - seen[rank][1] < self.patience

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
