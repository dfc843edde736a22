"""The engine for nodes on the devices of a mesh, of one host or several. Each device has some nodes and their data.

A device runs the program of `stacked` for its own nodes. Only `mix` communicates: first, vectors
that other devices need are sent, each once per device, in rounds of `lax.ppermute`; then each
device computes the weighted sums. Data never leave their device; metrics need sums over devices
only.

Several processes (`connect`) run the same program, each with its own devices. Process 0 shows and
writes results.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from scipy import sparse

from peerdescent.engines import mixing
from peerdescent.engines.colouring import Message, colours
from peerdescent.engines.compiled import cuts_of
from peerdescent.engines.contract import Running
from peerdescent.engines.feeding import refuse
from peerdescent.engines.meeting import in_time, is_loopback, seconds
from peerdescent.engines.mixing import (
    AXIS,
    FIRST,
    SECOND,
    Dense,
    Fixed,
    Gather,
    Weights,
    disagreement,
    packed,
    repeated,
)
from peerdescent.engines.stacked import Stacked
from peerdescent.errors import PeerLost, require
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import slots
from peerdescent.problems.problem import Problem, check_fits


def connect() -> int:
    """Join the other processes of the run, before JAX is used otherwise; the number of this process.

    The variables JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and
    JAX_PROCESS_ID describe the processes. Without the first there is one process, unless the
    program has called `jax.distributed.initialize`. Process 0 listens on
    JAX_COORDINATOR_BIND_ADDRESS. If that is not set, it listens on the coordinator address if this
    is a loopback address, else on all interfaces.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address and not jax.distributed.is_initialized():
        require(
            ":" in address,
            f"JAX_COORDINATOR_ADDRESS = {address!r}: must be host:port, as in 127.0.0.1:1234",
        )
        count, own = (_from_environment(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
        require(
            own < count,
            f"JAX_PROCESS_ID = {own}: must be below JAX_NUM_PROCESSES = {count}; they count from 0",
        )
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        alone = address if is_loopback(address.rpartition(":")[0].strip("[]")) else None
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", alone)
        limit = max(1, round(seconds()))
        try:
            join = partial(
                jax.distributed.initialize,
                num_processes=count,
                process_id=own,
                coordinator_bind_address=bind,
                heartbeat_timeout_seconds=limit,
                initialization_timeout=10 * limit,  # where JAX aborts the process
            )
            in_time(join, address)
        except RuntimeError as error:
            raise ValueError(
                f"process {own} of {count} cannot join the others: start all of them with one address, and call "
                f"peerdescent.engines.sharded.connect() before anything else that uses JAX ({error})"
            ) from error
        except TimeoutError as error:
            raise PeerLost(
                f"process {own} of {count} could not meet the others within {seconds():g} s: {error}"
            ) from error
        _greet()
    return jax.process_index() if jax.distributed.is_initialized() else 0


def _greet() -> None:
    """Communicate once with all processes; on a CPU the library prints a line, which goes to standard error."""
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        multihost_utils.sync_global_devices("peerdescent")
    finally:
        os.dup2(results, 1)
        os.close(results)


def _from_environment(name: str) -> int:
    value = os.environ.get(name, "")
    require(
        value.isdecimal(),
        f"{name} = {value!r}: must be a whole number where JAX_COORDINATOR_ADDRESS is set",
    )
    return int(value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """One W, distributed over devices with k nodes each. Every array is sharded along its second axis.

    `rounds` has the pairs of devices (source, target) of each round. `sends` has, for each round,
    the nodes (1, devices, m) whose vectors each device sends, by their numbers on that device; m is
    the length of the longest message of the round, and shorter ones are padded. `local` has the
    weights of the k nodes: first for their own k vectors, then for those received, round by round.
    """

    local: Dense | Gather
    sends: tuple[Any, ...]
    rounds: tuple[tuple[Message, ...], ...] = field(metadata={"static": True})

    def mix(self, x: jax.Array) -> jax.Array:
        """The rows of W x of this device's nodes."""
        return self.local.mix(0, heard(x, self.sends, self.rounds))

    def disagree(self, x: jax.Array) -> jax.Array:
        """The rows of x - W x of this device's nodes."""
        return disagreement(
            heard(x, self.sends, self.rounds), lambda apart: self.local.mix(0, apart)
        )


def heard(x: jax.Array, sends: Sequence[Any], rounds: Sequence[Any]) -> jax.Array:
    """The vectors of this device's nodes, and those received from other devices."""
    received = [
        lax.ppermute(x[send[0, 0]], AXIS, pairs) for send, pairs in zip(sends, rounds, strict=True)
    ]
    return jnp.concatenate([x, *received])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Permuted(Fixed):
    """The weights of a network, with one `Shared` for each W of its period."""

    turns: tuple[Shared, ...]

    @property
    def width(self) -> int:
        """How many numbers enter each mixed one."""
        return max(turn.local.width for turn in self.turns)

    def mix(self, t: Any, x: jax.Array) -> jax.Array:
        """W_t x."""
        return self._in_turn(t, [turn.mix for turn in self.turns], x)

    def disagree(self, t: Any, x: jax.Array) -> jax.Array:
        """x - W_t x."""
        return self._in_turn(t, [turn.disagree for turn in self.turns], x)

    def _in_turn(
        self, t: Any, verbs: list[Callable[[jax.Array], jax.Array]], x: jax.Array
    ) -> jax.Array:
        return verbs[0](x) if len(verbs) == 1 else lax.switch(t % len(verbs), verbs, x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Realised(mixing.Realised):
    """The weights of `mixing.Realised` of the nodes of each device; neighbours are numbered as in `Shared`."""

    sends: tuple[Any, ...]
    exchanges: tuple[tuple[Message, ...], ...] = field(metadata={"static": True})

    @property
    def cut(self) -> Any:
        """As in `mixing.Realised`."""
        known = super().cut
        return Realised(
            known.rounds, SECOND, SECOND, self.dense, (SECOND,) * len(self.sends), self.exchanges
        )

    def at(self, seed: Any, t: Any, memory: tuple[Any, ...], ahead: Any = None) -> mixing.Turn:
        """The network in iteration t."""
        count = self.places.shape[1]
        nodes = lax.axis_index(AXIS) * count + jnp.arange(count)
        hear = partial(heard, sends=self.sends, rounds=self.exchanges)
        return mixing.Happening(
            self, self.rounds.at(jnp, seed, t, memory), nodes, hear, ahead or {}
        )


def permuted(network: Network, devices: int, dtype: Any) -> Weights:
    """The weights of a network whose nodes are on `devices` devices, as NumPy arrays."""
    if network.is_known:
        return repeated(
            Permuted(tuple(_turn(W, devices, dtype) for W in network.matrices)), network
        )
    links = network.links
    neighbours, places = slots(links.ends, network.n, dense=False)
    row, slot = np.nonzero(places < 2 * len(links.ends))
    pattern = sparse.csr_array(
        (np.ones(len(row)), (row, neighbours[row, slot])), (network.n, network.n)
    )
    column, sends, rounds, _ = _exchanges(pattern, devices)
    k = network.n // devices
    own = np.zeros_like(neighbours)
    own[row, slot] = [
        column[i // k, j] for i, j in zip(row.tolist(), neighbours[row, slot].tolist(), strict=True)
    ]
    return repeated(Realised(links, own[None], places[None], False, sends, rounds), network)


def _turn(W: sparse.csr_array, devices: int, dtype: Any) -> Shared:
    entries, k = W.tocoo(), W.shape[0] // devices
    column, sends, rounds, width = _exchanges(W, devices)
    columns = [
        column[i // k, j] for i, j in zip(entries.row.tolist(), entries.col.tolist(), strict=True)
    ]
    local = sparse.csr_array((entries.data, (entries.row, columns)), (W.shape[0], width))
    return Shared(packed([local], dtype), sends, rounds)


def _exchanges(
    W: sparse.csr_array, devices: int
) -> tuple[dict[Message, int], tuple[Any, ...], tuple[Any, ...], int]:
    """Which vectors devices send each other, in which rounds.

    The place of a node's vector on a device, by (device, node); `sends` and `rounds` of `Shared`;
    and the number of vectors that a device has in the end.
    """
    k, entries = W.shape[0] // devices, W.tocoo()
    links = list(zip((entries.row // k).tolist(), entries.col.tolist(), strict=True))
    needed: dict[Message, list[int]] = defaultdict(list)
    for target, node in sorted(set(links)):
        if node // k != target:
            needed[node // k, target].append(node)
    # The longest first, so that messages in a round have similar lengths and need little padding.
    rounds = colours(sorted(needed, key=lambda message: -len(needed[message])))
    column = {(device, node): node % k for device, node in links if node // k == device}
    width, sends = k, []
    for together in rounds:
        send = np.zeros((1, devices, max(len(needed[message]) for message in together)), np.int32)
        for source, target in together:
            nodes = needed[source, target]
            send[0, source, : len(nodes)] = np.array(nodes) % k
            column |= {(target, node): width + slot for slot, node in enumerate(nodes)}
        width += send.shape[2]
        sends.append(send)
    return column, tuple(sends), tuple(map(tuple, rounds)), width


class Sharded(Stacked):
    """The engine `sharded`: the programs of `stacked`, on a mesh."""

    def place(self, problem: Problem, network: Network, dtype: Any, batch: int) -> tuple[Any, Any]:
        """The data and weights, on each device those of its own nodes."""
        refuse(problem, "engine sharded")
        devices = _devices(problem.nodes)
        self.mesh = Mesh(np.array(devices), (AXIS,))
        weights = permuted(network, len(devices), dtype)
        return self._put(problem.data, FIRST, dtype), self._put_all(weights, weights.cut)

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0."""
        return super().start(self._put(x0, FIRST))

    def hold(self, state: Any) -> Any:
        """A copy of the state of all nodes in NumPy arrays (n, p), in every process."""
        if jax.process_count() == 1:
            return super().hold(state)
        own, memory = Running.parts(state)
        known = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), memory)
        return Running.of(multihost_utils.process_allgather(own, tiled=True), known)

    def scatter(self, held: Any) -> Any:
        """A copy of a state, with each node's part on its device."""
        return self._put_all(held, cuts_of(held))

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, concatenated."""
        if jax.process_count() == 1:
            return array
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    def _put_all(self, tree: Any, cuts: Any) -> Any:
        """Each part of a tree by its own sharding."""
        is_cut = partial(_is_instance, kind=Spec)
        return jax.tree.map(lambda cut, part: self._put(part, cut), cuts, tree, is_leaf=is_cut)

    def _put(self, tree: Any, spec: Spec, dtype: Any = None) -> Any:
        mesh = self.mesh
        assert mesh is not None

        def place(a: Any) -> jax.Array:
            a = np.asarray(a)
            kind = (
                dtype
                if dtype is not None and jnp.issubdtype(a.dtype, jnp.floating)
                else jnp.result_type(a)
            )
            check_fits("data", a, kind)
            # Each process copies only the parts of its own devices.
            return jax.make_array_from_callback(
                a.shape, NamedSharding(mesh, spec), lambda index: np.array(a[index], kind)
            )

        return jax.tree.map(place, tree)


def _is_instance(a: Any, kind: type) -> bool:
    return isinstance(a, kind)


def _devices(nodes: int) -> list[jax.Device]:
    """The devices, which must divide the nodes evenly: as many as possible in one process, all of them in several."""
    devices = jax.devices()
    if jax.process_count() > 1:
        require(
            nodes % len(devices) == 0,
            f"{nodes} nodes on {len(devices)} devices of {jax.process_count()} processes: every device holds as many "
            f"nodes; take a multiple of {len(devices)} nodes, or start other processes",
        )
        return devices
    return devices[: max(count for count in range(1, len(devices) + 1) if nodes % count == 0)]
