"""The other processes of a training, and how it goes on when some are lost or come.

`members` agrees on who is left, at a store. Here the rest happens: connections between them, a
network of those that are left, and that all start alike, with those that came at the average of
their neighbours.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from peerdescent.engines.channels import Channel
from peerdescent.engines.joining import connect, described, place
from peerdescent.engines.links import Links
from peerdescent.errors import PeerLost
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.runs.checks import check_network
from peerdescent.torch.flat import Flat
from peerdescent.torch.following import Following
from peerdescent.torch.groups import Groups
from peerdescent.torch.members import Final, Members, Roster, log
from peerdescent.torch.sharing import same_model, start_alike, welcome, words


class Peers:
    """The processes that train together, as one of them sees them; `channel` and `links` connect it to the others.

    How far a process is, is the number of its steps, and of calls to all others since the last one.

    Args:
        network: One node for each process.
        method: What the network has to serve, also without the nodes that were lost.
        message: The type in which vectors cross; None is their own.
        process_group: The processes, if they are not all.
        patience: Seconds without a sign of life after which a process counts as lost, and the
            others go on; None: all stop when one is lost.
        flat: The parameters.
        facts: All that must be the same in every process.
    """

    def __init__(
        self,
        network: Network,
        method: Method,
        message: torch.dtype | None,
        process_group: Any,
        patience: float | None,
        flat: Flat,
        facts: Mapping[str, Any],
    ) -> None:
        self.network, self.method, self.message, self.flat, self.facts = (
            network,
            method,
            message,
            flat,
            facts,
        )
        self.calls, self.earlier = 0, 0
        """Calls to all others since the last step, and bytes that were sent over links which are no more."""
        self.members: Members | None = None
        self.following: Following | None = None
        """Whose numbers hold, if a process has come later."""
        if patience is None:
            connect()
            Links.check(network, dist.get_world_size(process_group))
            self._link(Channel.over("optimizer", process_group))
        else:
            network.among(range(network.n))
            tensors = {f"parameter or buffer {k}": text for k, text in enumerate(words(flat))}
            self.members = _members(network, patience, {**facts, **tensors})
            circle = self.members.connected()
            self._link(
                Channel(f"optimizer, generation {self.members.roster.generation}", circle, patience)
            )

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.links.rank if self.members is None else self.members.rank

    @property
    def bytes_sent(self) -> int:
        """The bytes that this process has sent to its neighbours for mixing."""
        return self.earlier + self.links.sent

    @property
    def position(self) -> tuple[int, int]:
        """How far the furthest was when they last met: steps and calls."""
        return (0, 0) if self.members is None else self.members.roster.position

    def is_behind(self, steps: int) -> bool:
        """Whether the others are further than this process, which has made so many steps."""
        return (steps, self.calls) < self.position

    def begin(self) -> bool:
        """Agree with the others on the facts, and start alike; returns whether this process has come later."""
        if self.members is None:
            self._meet([])
            return False
        return self._regroup(self.members, None, 0)

    def regroup(self, lost: PeerLost, steps: int) -> bool:
        """Go on with those that are left, and with those that came; returns whether this process is one that came.

        It raises the loss again where nobody goes on after one.
        """
        if isinstance(lost, Final):
            raise lost
        if self.members is None:
            raise PeerLost(
                f"{lost}; it may have failed, as its output would show, be busy, or have fewer batches than the "
                "others: where loaders differ in length, iterate over optimizer.together(loader)"
            ) from lost
        return self._regroup(self.members, lost, steps)

    def _regroup(self, members: Members, lost: PeerLost | None, steps: int) -> bool:
        """The same; without a loss, with those that were just met."""
        before = members.roster.ranks
        while True:
            if lost is not None:
                log.warning("%s", lost)
                self.channel.close()
                self.earlier, self.links.sent = self.bytes_sent, 0
                members.meet((steps, self.calls))
            roster = members.roster
            slow = lost is not None and roster.ranks == before and not roster.new
            limit = self.channel.limit.total_seconds() * (
                2 if slow else 1
            )  # a step may take longer than the patience
            try:
                if lost is not None:
                    self._link(
                        Channel(
                            f"optimizer, generation {roster.generation}", members.circle(), limit
                        )
                    )
                self._meet([roster.ranks.index(rank) for rank in roster.new])
                break
            except Final:
                raise
            except PeerLost as error:
                lost = error
        members.agreed()
        came, members.is_new = members.is_new, False
        if came:
            self.calls = 0
            log.warning(
                "step %d: rank %d has joined %d others",
                roster.position[0],
                self.rank,
                len(roster.ranks) - 1,
            )
        elif steps < roster.position[0]:
            log.warning(
                "rank %d leaves out steps %d to %d", self.rank, steps, roster.position[0] - 1
            )
        self._follow(roster, came)
        return came

    def _follow(self, roster: Roster, came: bool) -> None:
        """Take the numbers of the others, or give them to those that came later, if there is any."""
        if not roster.later:
            self.following = None
        elif came or self.following is None:
            self.following = Following(self.rank, roster)
        else:
            self.following.regroup(roster)
        if came and roster.later:
            log.warning(
                "rank %d takes lr and all other numbers from rank %d, in every step",
                self.rank,
                roster.leader,
            )

    def _link(self, channel: Channel) -> None:
        """Use other connections to the processes that are there."""
        nodes = (
            self.network if self.members is None else self.network.among(self.members.roster.ranks)
        )
        if nodes is not self.network:
            check_network(self.method, nodes)
        self.channel, self.links = channel, Links(nodes, channel, message=self.message)
        channel.begin(self.position[0])

    def _meet(self, new: list[int]) -> None:
        """Agree on what is trained, and start alike; processes that came later take the average of their neighbours."""
        same_model(self.channel, self.flat)
        self.channel.agree(self.facts)
        if self.position != (0, 0) and len(new) < self.channel.world:
            welcome(self.channel, self.links, self.flat, new)
        elif self.facts["start"] == "rank 0":
            start_alike(self.channel, self.flat)

    def call(self, act: Callable[[], Any], otherwise: Callable[[], Any] | None, steps: int) -> Any:
        """What a call to all other processes returns.

        A process that is behind the others gets `otherwise`, since they have made that call
        already.
        """
        behind = self.is_behind(steps)
        found = act() if not behind else None if otherwise is None else otherwise()
        self.calls += 1
        if behind and otherwise is None:
            raise Final(
                f"rank {self.rank}: the others have made this call without it: go on without its result"
            )
        return found

    def align(self, groups: Groups, own: list[dict[str, Any]], when: str, step: int) -> None:
        """Bring the numbers of a process that came later to those of the others; `own` are its parameter groups."""
        if self.following is not None:
            if self.channel.step != step:
                self.channel.begin(step)
            self.following.align(self.channel, groups, own, when)

    def let_in(self, steps: int) -> None:
        """Raise a loss if a process asks to join, so that all meet, or if a newer one has the rank of this one."""
        if self.members is not None:
            self.members.check_place()
        if self.members is not None and self.members.knocked:
            raise PeerLost(f"rank {self.rank}: a process asks to join, in step {steps}")


def _members(network: Network, patience: float, facts: Mapping[str, Any]) -> Members:
    """The processes that meet at the store which `torchrun` describes, or that of the program's own group."""
    if dist.is_initialized():
        store, rank, world = (
            dist.distributed_c10d._get_default_store(),
            dist.get_rank(),
            dist.get_world_size(),
        )
    else:
        rank, world = described()
        store = place()
    Links.check(network, world)
    members = Members(store, rank, world, patience, facts)
    atexit.register(members.leave)
    return members
