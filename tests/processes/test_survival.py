"""Training goes on when a process is killed or stopped, and takes it in when it comes back."""

from __future__ import annotations

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from ranks import serve

import children
import peerdescent as peer
from peerdescent.torch.following import Following
from peerdescent.torch.groups import Groups
from peerdescent.torch.members import Final, Members, Roster
from peerdescent.torch.refusals import check_state, check_time


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        pytest.param(
            ["kill-back"],
            ["--steps", "70", "--seed", "29", "--patience", "3"],
            id="kill-back",
        ),
        *(
            pytest.param(kinds, ["--steps", "150"], id="-".join(kinds), marks=pytest.mark.long)
            for kinds in [["stop", "stop-back", "apart"], ["relay"]]
        ),
    ],
)
def test_the_others_go_on(kinds, options, monkeypatch, capsys):
    """With a scheduler in each process, that of one that came back not where the others' are.

    In a relay no process is left that has begun, so one that came leads in what schedulers set. By the seed given,
    rank 0 is lost early, and is away a little longer than the others have patience.
    """
    monkeypatch.syspath_prepend(children.TESTS.parent / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["losses.py", *kinds, *options])
    serve()
    failed, (said, errors) = importlib.import_module("losses").main(), capsys.readouterr()
    assert not failed, said + errors
    lines = said.splitlines()
    assert [line.partition(":")[0] for line in lines[: len(kinds)]] == kinds
    assert lines[-1] == "0 failed"


class Post:
    """A channel between processes that are one after the other: what the one sent, the next ones hear."""

    def __init__(self):
        self.sent = {}

    def exchange(self, sends, sources, like, what, number):
        self.sent |= sends
        assert "numbers of rank" in what
        assert all(value.shape == like.shape for value in sends.values())
        return dict.fromkeys(sources, self.sent.get(self.to))


def roster(generation, since, position=7):
    return Roster(generation, tuple(since), (position, 0), (), tuple(since.values()))


def aligned(channel, ranks, following, groups, own):
    """The numbers of each process after a step, in the order of ranks; the leader comes first."""
    leader = following[ranks[0]].roster.leader
    for rank in sorted(ranks, key=lambda rank: rank != leader):
        channel.to = ranks.index(rank)
        following[rank].align(channel, groups, own[rank], "in the step")
    return {rank: tuple(group["lr"] for group in own[rank]) for rank in ranks}


def test_who_came_later_takes_numbers_and_leads_when_nobody_else_is_left(caplog):
    """Rank 3 came second, with the numbers of the others; rank 1 came first, with others; rank 0 began."""
    method = peer.methods.d_get(alpha=0.1, period=5)
    groups = Groups(method, method.step_size, True, ())
    numbers = {name: method.numbers[name] for name in groups.names}

    def have(*rates, period=5):
        return [{"lr": rate, "weight_decay": 0.01, **numbers, "period": period} for rate in rates]

    now = roster(4, {0: 0, 1: 2, 3: 4})
    assert (now.leader, now.later) == (0, (1, 3))
    following = {rank: Following(rank, now) for rank in now.ranks}
    own = {0: have(0.5, 0.25, period=7), 1: have(0.1, 0.1), 3: have(0.5, 0.25, period=7)}
    assert aligned(Post(), now.ranks, following, groups, own) == dict.fromkeys(
        now.ranks, (0.5, 0.25)
    )
    assert own[1] == own[0], "weight decay and the method's own numbers, too"
    assert isinstance(own[1][0]["period"], int)

    now = roster(5, {1: 2, 3: 4})
    for rank in now.ranks:
        following[rank].regroup(now)
    assert (
        "step 7: rank 1 leads in lr and all other numbers from now on: those of the last step"
        in caplog.text
    )
    own = {1: have(0.1, 0.1), 3: have(0.4, 0.2, period=7)}
    assert aligned(Post(), now.ranks, following, groups, own) == dict.fromkeys(
        now.ranks, (0.5, 0.25)
    ), "they stay"
    assert own[1][0]["period"] == own[3][0]["period"] == 7

    following[3] = Following(3, now)  # it was lost and came again, with the numbers of rank 1
    own = {1: have(0.1, 0.1), 3: have(0.5, 0.25, period=7)}
    aligned(Post(), now.ranks, following, groups, own)
    now = roster(6, {3: 4})
    following[3].regroup(now)
    assert "rank 3 leads in lr and all other numbers from now on: its own" in caplog.text
    own = {3: have(0.4, 0.2)}
    assert aligned(Post(), now.ranks, following, groups, own) == {3: (0.4, 0.2)}, "they go on"

    assert (
        "if they come from schedulers that began when it came, they change 7 steps too late"
        in caplog.text
    )

    now = roster(7, {1: 2, 3: 7}, position=40)
    following = {rank: Following(rank, now) for rank in now.ranks}
    for rate in (0.5, 0.4):  # the numbers of both change at once
        aligned(Post(), now.ranks, following, groups, {rank: have(rate) for rank in now.ranks})
    caplog.clear()
    following[3].regroup(roster(8, {3: 7}))
    assert "its own, which have been those of the others since it came" in caplog.text
    assert "too late" not in caplog.text


@pytest.fixture
def meeting():
    """A store of this process, and how to make a member of three there."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []

    def member(rank, patience=20.0, **facts):
        made.append(
            Members(store.clone(), rank, 3, patience, {"method": "gt-dsgd[alpha=0.1]", **facts})
        )
        return made[-1]

    yield member
    for each in made:
        each.leave()


def at_once(*calls):
    """What calls return that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [begun.result(60) for begun in [threads.submit(call) for call in calls]]


def until(holds):
    for _ in range(3000):
        if holds():
            return True
        threading.Event().wait(0.02)
    return False


def begun(member):
    """Three that have met and agreed."""
    first = [member(rank) for rank in range(3)]
    at_once(*(each.first for each in first))
    first[0].agreed()
    return first


def test_a_newer_process_of_a_rank_takes_its_place(meeting):
    """The older one, which wakes later, ends, and nobody takes its end for that of the newer one."""
    first = begun(meeting)
    newer = meeting(2)
    rosters = at_once(newer.first, lambda: first[0].meet((7, 0)), lambda: first[1].meet((6, 1)))
    assert {(each.ranks, each.position, each.new, each.since) for each in rosters} == {
        ((0, 1, 2), (7, 0), (2,), (0, 0, 1))
    }
    assert rosters[0].tokens[2] == newer.token
    assert until(lambda: first[2].replaced), "it notices that without a meeting"
    with pytest.raises(Final, match="rank 2: a process that was started later has taken this rank"):
        first[2].check_place()
    first[2].replaced = False
    with pytest.raises(
        Final, match="taken this rank"
    ):  # and in one, of which it is not on the roster
        first[2].meet((7, 0))
    first[2].leave()
    newer.is_new = False
    (ranks,) = {
        each.ranks
        for each in at_once(*(lambda each=each: each.meet((9, 0)) for each in (*first[:2], newer)))
    }
    assert ranks == (0, 1, 2)


def test_who_differs_in_a_fact_is_refused_and_the_others_notice_nothing(meeting):
    first = begun(meeting)
    first[2].leave()
    for facts, text in (
        ({"method": "dsgd"}, "method is 'dsgd' here"),
        ({"parameter or buffer 1": "w"}, "'nothing' there"),
    ):
        with pytest.raises(ValueError, match=text):
            meeting(2, **facts).first()
    assert not first[0].knocked
    rosters = at_once(lambda: first[0].meet((3, 0)), lambda: first[1].meet((3, 0)))
    assert {each.ranks for each in rosters} == {(0, 1)}


@pytest.mark.parametrize("said", [True, False])
def test_nobody_joins_a_training_that_has_ended(meeting, said):
    """Whether its processes have said that they end, or were killed."""
    for each in begun(meeting):
        each.leave() if said else each._ended.set()
    with pytest.raises(Final, match="rank 1 cannot join: the training at this store has ended"):
        meeting(1, patience=1.0).first()


def test_states_that_do_not_fit_are_refused(caplog):
    about = {"method": "m", "computes": "c", "network": "n"}
    check_state(about, {"step": 3, "rank": 0, "2": torch.ones(4)}, about, 0, 4, ["2"])
    check_state(about, {}, about, 0, 4, ["2"])
    with pytest.raises(ValueError, match="of step 3 and has nothing of what m remembers"):
        check_state(about, {"step": 3, "rank": 0}, about, 0, 4, ["2"])
    check_time({"step": 3}, came=0, met=0)
    with pytest.raises(
        ValueError,
        match="joined the others at step 5, and has their parameters: its state of step 3",
    ):
        check_time({"step": 3}, came=5, met=5)
    with pytest.raises(ValueError, match="of step 3, and the processes have met at step 5"):
        check_time({"step": 3}, came=0, met=5)
    check_time({"step": 9, "rank": 2, "came": 4}, came=0, met=0)
    assert "the state is of rank 2, which had joined the others at step 4" in caplog.text
