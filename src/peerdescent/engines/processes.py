"""The engine with one process per node. Vectors are PyTorch tensors, and `mix` sends them to the neighbours.

A process has the data of its own node only, and computes that node's gradients with the problem's
oracle. Processes exchange vectors: in `mix` with neighbours, and at records with all processes,
since metrics need all iterates and means over nodes. The rest of a state stays in its process.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from torch.utils import dlpack

from peerdescent.compressors import Compressor
from peerdescent.engines import joining, links
from peerdescent.engines.channels import Channel
from peerdescent.engines.contract import Running
from peerdescent.engines.feeding import refuse
from peerdescent.engines.vectors import Pool, Vector, pushed
from peerdescent.engines.verbs import Eager
from peerdescent.keys import node_keys
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Oracle, Problem, cast
from peerdescent.threefry import Draw


def connect() -> int:
    """Join the other processes of the run; the number of this process."""
    joining.connect()
    return int(dist.get_rank())


class Net(Eager):
    """The verbs in iteration t, at one node."""

    def __init__(self, engine: Processes, t: int, turn: Any) -> None:
        super().__init__(engine.seed, t)
        self.engine, self.turn = engine, turn

    def sample(self, batch: int) -> tuple[int, int]:
        """A sample of this node, by its number in the iteration and its size: it is drawn where a gradient is taken."""
        return self.calls.take("sample"), batch

    def grad(self, x: Vector, sample: tuple[int, int]) -> Vector:
        """This node's minibatch gradient."""
        engine = self.engine
        where = np.uint32(engine.seed), np.int32(engine.links.rank), np.int32(self.t)
        return self._vector(_grad(engine.oracle, *sample, _array(x), *where, engine.data))

    def full_grad(self, x: Vector) -> Vector:
        """This node's exact gradient."""
        return self._vector(_exact(self.engine.oracle, _array(x)[None], self.engine.data)[1][0])

    def _vector(self, gradient: jax.Array) -> Vector:
        pool = self.engine.pool
        if pool.device.type != "cpu":
            return pool.lent(_tensor(gradient))
        memory = pool.take()
        memory.numpy()[:] = gradient  # in less time than by DLPack
        return pool.own(memory)

    def _round(self, verb: str, number: int, x: Vector) -> Vector:
        found: Vector = getattr(self.turn, verb)(number, x)
        return found

    _pushed = pushed

    def compress(self, x: Vector, operator: Compressor) -> Vector:
        """C(x), which `mix` sends as the bytes that it was encoded in."""
        found: Vector = self.turn.compress(x, operator, self._compression())
        return found

    def prox(self, x: Vector, step: float) -> Vector:
        """The proximal operator of the problem's non-smooth term."""
        penalty = self.engine.penalty
        if penalty is None:
            return x
        return x.pool.copy(torch.from_numpy(penalty.prox(x.tensor.cpu().numpy(), step)))

    def dot(self, x: Vector, y: Vector) -> torch.Tensor:
        """This node's inner product."""
        return torch.dot(x.tensor, y.tensor)


class Alone:
    """Rounds without communication, for compilation."""

    def mix(self, number: int, x: Vector) -> Vector:
        """x itself."""
        return x

    def disagree(self, number: int, x: Vector) -> Vector:
        """Zeros."""
        return 0 * x

    push = mix

    def compress(self, x: Vector, operator: Compressor, draw: Draw) -> Vector:
        """x itself."""
        return x


class Processes:
    """The engine `processes`."""

    packages: ClassVar[tuple[str, ...]] = ("jax", "torch")

    def __init__(
        self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any
    ) -> None:
        joining.connect()
        links.Links.check(network, dist.get_world_size())
        self.links = links.Links(network, Channel.over("engine"), seed)
        self.node: int | None = self.links.rank
        refuse(problem, "engine processes")
        self.method, self.oracle, self.seed, self.dtype = method, problem.oracle, seed, dtype
        self.penalty = problem.penalty
        self.data = cast(problem.part(self.links.rank), dtype)
        self.pool = Pool(
            torch.from_numpy(np.empty(problem.dimension, dtype)).to(self.links.channel.device)
        )

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Compile gradients and the evaluation, without communication."""
        first = self.method.at(0).init(self._vector(x0[self.node]), Net(self, 0, Alone()))
        self.method.at(1).step(first, Net(self, 1, Alone()))
        jax.block_until_ready(_exact(self.oracle, jnp.asarray(x0[:1], self.dtype), self.data))

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0."""
        memory = self.links.links.begin(np, self.seed)
        turn = self.links.begin(0, memory=memory)
        return Running.of(
            self.method.at(0).init(self._vector(x0[self.node]), Net(self, 0, turn)), memory
        )

    def advance(self, state: Any, t: int, until: int) -> Any:
        """One iteration after the other."""
        for step in range(t, until):
            own, memory = Running.parts(state)
            memory = self.links.links.later(np, self.seed, step, memory)
            turn = self.links.begin(step, memory=memory)
            if turn.awake:
                own = self.method.at(step).step(own, Net(self, step, turn))
            state = Running.of(own, memory)
        return state

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (k,) and its gradients (k, p) at points (k, p); each process computes the part of its own node."""
        own = np.empty((len(points), 1 + points.shape[1]))
        for row, point in zip(own, points, strict=True):
            row[:1], row[1:] = _exact(self.oracle, jnp.asarray(point, self.dtype)[None], self.data)
        found = self.mean(own)
        return found[:, 0], found[:, 1:]

    def hold(self, state: Any) -> Any:
        """A copy of this node's part: vectors (p,), and numbers of the node (1,). Nothing is sent for it."""

        def copy(leaf: Any) -> Any:
            own = getattr(leaf, "tensor", leaf)
            if isinstance(own, torch.Tensor):
                return np.array(own.cpu().numpy()).reshape(-1)
            return np.array(own) if np.ndim(own) else own

        return jax.tree.map(copy, state)

    def scatter(self, held: Any) -> Any:
        """This node's part, as new tensors."""
        own, memory = Running.parts(held)
        own = jax.tree.map(lambda leaf: self._vector(leaf) if np.ndim(leaf) else leaf, own)
        return Running.of(own, jax.tree.map(np.array, memory))

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes (n, ...), in every process."""
        channel = self.links.channel
        return channel.everyone(torch.tensor(array, device=channel.device)).cpu().numpy()

    def mean(self, held: np.ndarray) -> np.ndarray:
        """The mean over nodes in float64. Each process computes one part of it, and sends that part to all others."""
        channel = self.links.channel
        padded = np.pad(held.ravel().astype(float), (0, -held.size % channel.world)).reshape(
            channel.world, -1
        )
        parts = torch.from_numpy(padded).to(channel.device)
        heard = channel.exchange(
            {rank: parts[rank] for rank in channel.others}, channel.others, parts[0], "mean"
        )
        heard[channel.rank] = parts[channel.rank]
        own = torch.stack([heard[rank] for rank in range(channel.world)]).mean(dim=0)
        return channel.everyone(own, "mean").cpu().numpy().ravel()[: held.size].reshape(held.shape)

    def _vector(self, own: np.ndarray) -> Any:
        """A vector (p,) of this node, or fewer numbers as a tensor."""
        copy = torch.tensor(own, device=self.links.channel.device)
        return self.pool.own(copy) if copy.numel() == self.pool.size else copy


@partial(jax.jit, static_argnums=(0, 1, 2))
def _grad(
    oracle: Oracle, call: int, batch: int, x: Any, seed: Any, node: Any, t: Any, data: Any
) -> jax.Array:
    return oracle.grad(x, oracle.draw(node_keys(seed, node, t, call), data, batch), data)


@partial(jax.jit, static_argnums=0)
def _exact(oracle: Oracle, points: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(oracle.exact, (0, None))(points, data)


def _array(x: Vector) -> Any:
    """The vector as an array that shares its memory. Whoever uses it has to wait for what is computed from it.

    For JAX, arrays of NumPy are the fastest on a CPU.
    """
    return x.tensor.numpy() if x.pool.device.type == "cpu" else jnp.from_dlpack(x.tensor)


def _tensor(array: jax.Array) -> torch.Tensor:
    return dlpack.from_dlpack(jax.block_until_ready(array))
