"""How a process joins the others: the group that `torchrun` describes, and direct connections beside it."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from peerdescent.engines import meeting
from peerdescent.engines.meeting import is_loopback, seconds
from peerdescent.errors import PeerLost, require

prefixed: Any = dist.PrefixStore  # type: ignore[attr-defined]
"""A store whose keys have a prefix."""


def connect() -> None:
    """Join the process group that `torchrun` describes, unless the program has done so itself.

    The backend is NCCL if every process of a machine has its own GPU, else gloo. If the master
    address is a loopback address, no port is opened on other interfaces, except by `torchrun`
    itself.
    """
    if dist.is_initialized():
        return
    rank, world = described()
    limit = timedelta(seconds=seconds())
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", str(world))) else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    store = place()
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        if backend == "gloo":  # else its threads would outlive the interpreter
            atexit.register(_leave)
    except (RuntimeError, ValueError) as error:
        raise _unmet(rank, world, error) from error


def described() -> tuple[int, int]:
    """The rank of this process and the number of all, as `torchrun` describes them."""
    require(
        "RANK" in os.environ,
        "engine processes runs one process per node, and there is none: start it with torchrun --nproc-per-node N, "
        "followed by -m peerdescent run ... --engine processes, or by a program of yours",
    )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name, "")
        require(text.isdecimal(), f"{name} = {text!r}: must be a whole number; torchrun sets it")
    require(
        "MASTER_ADDR" in os.environ,
        "MASTER_ADDR is not set: it is the address of rank 0; torchrun sets it",
    )
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def place() -> Any:
    """The key-value store where the processes meet that `torchrun` describes."""
    rank, world = described()
    if is_loopback(os.environ.get("MASTER_ADDR", "")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    limit = timedelta(seconds=seconds())
    try:
        return meeting.in_time(
            lambda: _store(rank, world, limit), "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ)
        )
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise _unmet(rank, world, error) from error


def _unmet(rank: int, world: int, error: Exception) -> PeerLost:
    reason = str(error).splitlines()[0]
    return PeerLost(
        f"rank {rank} of {world} could not meet the others within {seconds():g} s: {reason}"
    )


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(rank: int, world: int, limit: timedelta) -> Any:
    """The key-value store for the rendezvous: that of `torchrun`, else one of rank 0 on the master address."""
    kind = dist.TCPStore  # type: ignore[attr-defined]
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # After a restart the store of `torchrun` still has the keys of the attempt before.
        return prefixed(
            f"attempt-{meeting.attempt()}", kind(host, port, world, is_master=False, timeout=limit)
        )
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family)
    own = kind(
        host,
        port,
        world,
        is_master=True,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return prefixed("attempt-0", own)


class Circle(NamedTuple):
    """Processes that are joined, each with every other."""

    rank: int
    """The number of this process."""
    names: tuple[int, ...]
    """What each of them is called."""
    wires: Any
    """Connections over gloo, with the interface of PyTorch's backends; None if there is one process only."""
    group: Any = None
    """PyTorch's group, if it has one."""

    @classmethod
    def of(cls, group: Any = None) -> Circle:
        """The processes of a group; by default all."""
        group = group if group is not None else dist.group.WORLD
        world = dist.get_world_size(group)
        return cls(
            dist.get_rank(group), tuple(range(world)), direct(group) if world > 1 else None, group
        )


_made: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@cache
def direct(group: Any) -> Any:
    """Connections over gloo between all processes of a group, beside those that the program itself uses.

    All processes of the group make them at the same time. The result has the interface of PyTorch's
    backends.
    """
    ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
    store = prefixed(
        f"peerdescent/{ranks}/{next(_made[ranks])}", dist.distributed_c10d._get_default_store()
    )
    atexit.register(direct.cache_clear)  # else its threads would outlive the interpreter
    return gloo(store, dist.get_rank(group), dist.get_world_size(group))


def gloo(store: Any, rank: int, world: int, limit: float | None = None) -> Any:
    """Connections over gloo between `world` processes that meet at a store."""
    try:
        return dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=limit or seconds()))
    except RuntimeError as error:
        raise _unmet(rank, world, error) from error
