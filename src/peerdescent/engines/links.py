"""Communication between processes over `torch.distributed`, with one process per node.

All communication uses `exchange`: concurrent point-to-point sends and receives, each with a time limit. So a process
that has ended or does not answer is reported by its rank, and no process waits for ever.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from peerdescent.engines import meeting
from peerdescent.engines.meeting import is_loopback, seconds
from peerdescent.errors import PeerLost, require
from peerdescent.networks.network import Network


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
        store = _store(rank, world, limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        if backend == "gloo":  # else its threads would outlive the interpreter
            atexit.register(_leave)
    except (RuntimeError, ValueError) as error:
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
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return prefixed(f"attempt-{attempt}", kind(host, port, world, is_master=False, timeout=limit))
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family)
    own = kind(
        host, port, world, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return prefixed("attempt-0", own)


class Links:
    """The links of this process to the others, in a network with as many nodes as there are processes.

    `rank` is the node of this process. `sent` counts the bytes sent by `mix`. Tensors on `device` are sent without a
    copy.
    """

    def __init__(self, network: Network) -> None:
        connect()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.limit = timedelta(seconds=seconds())
        self.sent, self.step = 0, 0
        # gloo sends tensors in CPU memory, NCCL those in GPU memory.
        backends = str(dist.distributed_c10d.BackendConfig(dist.get_backend()))
        self.staged = "nccl" not in backends
        self.device = torch.device("cpu" if "cpu:gloo" in backends else "cuda")
        require(
            network.n == self.world,
            f"the network has {network.n} nodes and there are {self.world} processes, one a node: "
            f"start torchrun with {network.n} processes, or take a network of {self.world} nodes",
        )
        self.turns = []
        for W in network.matrices:
            heard, column = W[[self.rank]].tocoo(), W[:, [self.rank]].tocoo()
            weights = dict(sorted(zip(heard.col.tolist(), heard.data.tolist(), strict=True)))
            targets = sorted(i for i in column.row.tolist() if i != self.rank)
            self.turns.append((weights, targets))

    def mix(self, t: int, x: torch.Tensor) -> torch.Tensor:
        """sum_j w_ij x_j over this node i and the nodes it receives from in iteration t, in the order of j."""
        weights, heard = self._heard(t, x)
        return sum((w * heard[j] for j, w in weights.items()), start=torch.zeros_like(x))

    def disagree(self, t: int, x: torch.Tensor) -> torch.Tensor:
        """x - sum_j w_ij x_j as sum_j w_ij (x_i - x_j): the two ends of a link have exactly opposite terms."""
        weights, heard = self._heard(t, x)
        return sum((w * (x - heard[j]) for j, w in weights.items() if j != self.rank), start=torch.zeros_like(x))

    def _heard(self, t: int, x: torch.Tensor) -> tuple[dict[int, float], dict[int, torch.Tensor]]:
        """One round: this node's weights in iteration t, and the vectors that they are for, its own included."""
        weights, targets = self.turns[t % len(self.turns)]
        heard = self.exchange(dict.fromkeys(targets, x), [j for j in weights if j != self.rank], x)
        self.sent += len(targets) * x.numel() * x.element_size()
        return weights, {**heard, self.rank: x}

    def everyone(self, x: torch.Tensor) -> torch.Tensor:
        """The tensors of all processes (world, ...), equal in each of them."""
        others = [rank for rank in range(self.world) if rank != self.rank]
        heard = self.exchange(dict.fromkeys(others, x), others, x)
        heard[self.rank] = x
        return torch.stack([heard[rank] for rank in range(self.world)])

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise a ValueError if processes differ in a fact, and say in which."""
        meeting.agree(facts, lambda rows: self.everyone(torch.from_numpy(rows).to(self.device)).cpu().numpy())

    def exchange(
        self, sends: Mapping[int, torch.Tensor], sources: Sequence[int], like: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """Send and receive tensors, all concurrently; every tensor has the shape and type of `like`."""
        place = torch.device("cpu") if self.staged else like.device
        # A tensor that goes to several processes is copied once.
        copies = {id(tensor): tensor.detach().to(place).contiguous() for tensor in sends.values()}
        out = {rank: copies[id(tensor)] for rank, tensor in sends.items()}
        into = {rank: torch.empty(like.shape, dtype=like.dtype, device=place) for rank in sources}
        asked = [(rank, dist.P2POp(dist.irecv, tensor, rank)) for rank, tensor in into.items()]
        asked += [(rank, dist.P2POp(dist.isend, tensor, rank)) for rank, tensor in out.items()]
        if not asked:
            return {}
        try:
            works = dist.batch_isend_irecv([operation for _, operation in asked])
        except RuntimeError as error:
            raise self._lost(asked[0][0], error) from error
        # NCCL returns a single work object for all operations of a batch.
        for (rank, _), work in zip(asked, works, strict=False):
            try:
                work.wait(self.limit)
            except RuntimeError as error:
                raise self._lost(rank, error) from error
        return {rank: tensor.to(like.device) for rank, tensor in into.items()}

    def _lost(self, rank: int, error: Exception) -> PeerLost:
        late = "imed out" in str(error)
        what = f"did not answer within {self.limit.total_seconds():g} s" if late else "is gone"
        return PeerLost(f"rank {self.rank}: rank {rank} {what}, in step {self.step}")
