"""Processes that came later follow the numbers of the one that has been there the longest: lr, weight decay and others.

Their own schedulers began when they came, so what these set is not what the others have. In every
step the process that leads sends its numbers to all that came later, which take them. If no process
is left that was there from the beginning, the first of those that came leads, and says whether its
own schedulers can be relied on.
"""

from __future__ import annotations

from typing import Any

import torch

from peerdescent.engines.channels import Channel
from peerdescent.torch.groups import Groups
from peerdescent.torch.members import Roster, log


class Following:
    """Whose numbers hold among the processes of a roster, as one of them sees it."""

    def __init__(self, rank: int, roster: Roster) -> None:
        self.rank, self.roster = rank, roster
        self.taken: list[float] | None = None
        """The numbers that this process last took from another one."""
        self.in_step = True
        """Whether all that it took were its own, too."""
        self.changed = False
        """Whether these have changed: if all were its own, its schedulers are then where those of the others are."""
        self.began = roster.position[0]

    def regroup(self, roster: Roster) -> None:
        """Follow, or lead, among others than before."""
        before, self.roster = self.roster, roster
        if self.rank == roster.leader != before.leader and self.rank in roster.later:
            own = "its own, which have been those of the others since it came"
            doubt = (
                f"{own} at step {self.began}; but those have not changed since, so if they come from schedulers that "
                f"began when it came, they change {self.began} steps too late: start all anew to go on with a schedule"
            )
            last = "those of the last step, since its own were others; start all anew to go on with a schedule"
            log.warning(
                "step %d: rank %d leads in lr and all other numbers from now on: %s",
                *(
                    roster.position[0],
                    self.rank,
                    last if not self.in_step else own if self.changed else doubt,
                ),
            )

    def align(self, channel: Channel, groups: Groups, own: list[dict[str, Any]], when: str) -> None:
        """Bring the parameter groups of this process to the numbers that hold now."""
        roster, later = self.roster, self.rank in self.roster.later
        leads = self.rank == roster.leader
        if leads and later and self.taken is not None and not self.in_step:
            groups.unpack(own, self.taken)
        values = torch.tensor(groups.packed(own), dtype=torch.float64)
        what = f"numbers of rank {roster.leader} for those that came later, {when}: {groups}"
        if leads:
            told = [roster.ranks.index(rank) for rank in roster.later if rank != self.rank]
            channel.exchange(dict.fromkeys(told, values), [], values, what, number=0)
        elif later:
            source = roster.ranks.index(roster.leader)
            before, self.taken = (
                self.taken,
                channel.exchange({}, [source], values, what, number=0)[source].tolist(),
            )
            self.changed = self.changed or before not in (None, self.taken)
            self.in_step = self.in_step and self.taken == values.tolist()
            groups.unpack(own, self.taken)
