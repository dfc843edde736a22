"""The engine with one process per node. Vectors are PyTorch tensors, and `mix` sends them to the neighbours.

A process has the data of its own node only, and computes that node's gradients with the problem's oracle. Processes
exchange vectors: in `mix` with neighbours, and at records with all processes, since metrics need all iterates.
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
from peerdescent.engines import links
from peerdescent.engines.contract import Running
from peerdescent.engines.verbs import Eager
from peerdescent.keys import node_keys
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Oracle, Problem, cast
from peerdescent.threefry import Draw


def connect() -> int:
    """Join the other processes of the run; the number of this process."""
    links.connect()
    return int(dist.get_rank())


class Net(Eager):
    """The verbs in iteration t, at one node."""

    def __init__(self, engine: Processes, t: int, turn: Any) -> None:
        super().__init__(engine.seed, t)
        self.engine, self.turn = engine, turn

    def sample(self, batch: int) -> Any:
        """A sample of this node."""
        engine = self.engine
        where = np.uint32(engine.seed), np.int32(engine.links.rank), np.int32(self.t)
        return _draw(engine.oracle, self.calls.take("sample"), batch, *where, engine.data)

    def grad(self, x: torch.Tensor, sample: Any) -> torch.Tensor:
        """This node's minibatch gradient."""
        return _tensor(_grad(self.engine.oracle, _array(x), sample, self.engine.data))

    def full_grad(self, x: torch.Tensor) -> torch.Tensor:
        """This node's exact gradient."""
        return _tensor(_exact(self.engine.oracle, _array(x)[None], self.engine.data)[1][0])

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        """One round of communication with the neighbours."""
        mixed: torch.Tensor = self.turn.mix(self.calls.take("round"), x)
        return mixed

    def disagree(self, x: torch.Tensor) -> torch.Tensor:
        """One round of communication, for the difference to what was mixed."""
        apart: torch.Tensor = self.turn.disagree(self.calls.take("round"), x)
        return apart

    def push(self, x: torch.Tensor) -> torch.Tensor:
        """One round of communication, with weights whose columns sum to 1."""
        pushed: torch.Tensor = self.turn.push(self.calls.take("round"), x)
        return pushed

    def compress(self, x: torch.Tensor, operator: Compressor) -> torch.Tensor:
        """C(x), which `mix` sends as the bytes that it was encoded in."""
        return self.turn.compress(x, operator, self._compression())

    def prox(self, x: torch.Tensor, step: float) -> torch.Tensor:
        """The proximal operator of the problem's non-smooth term."""
        penalty = self.engine.penalty
        return x if penalty is None else torch.from_numpy(penalty.prox(x.cpu().numpy(), step)).to(x.device)

    def dot(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """This node's inner product, (1,)."""
        return (x * y).sum(dim=-1, keepdim=True)


class Alone:
    """Rounds without communication, for compilation."""

    def mix(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """x itself."""
        return x

    def disagree(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return 0 * x

    push = mix

    def compress(self, x: torch.Tensor, operator: Compressor, draw: Draw) -> torch.Tensor:
        """x itself."""
        return x


class Processes:
    """The engine `processes`."""

    packages: ClassVar[tuple[str, ...]] = ("jax", "torch")

    def __init__(self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any) -> None:
        self.links = links.Links(network, "engine", seed)
        self.method, self.oracle, self.seed, self.dtype = method, problem.oracle, seed, dtype
        self.penalty = problem.penalty
        self.data = cast(problem.part(self.links.rank), dtype)

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Compile gradients and the evaluation, without communication."""
        first = self.method.at(0).init(self._own(x0), Net(self, 0, Alone()))
        self.method.at(1).step(first, Net(self, 1, Alone()))
        jax.block_until_ready(_exact(self.oracle, jnp.asarray(x0[:1], self.dtype), self.data))

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0."""
        memory = self.links.links.begin(np, self.seed)
        turn = self.links.begin(0, memory=memory)
        return Running.of(self.method.at(0).init(self._own(x0), Net(self, 0, turn)), memory)

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
        values, grads = [], []
        for point in points:
            value, grad = _exact(self.oracle, jnp.asarray(point, self.dtype)[None], self.data)
            total = self.gather(_tensor(jnp.concatenate([value, grad[0]]))).mean(axis=0)
            values.append(total[0])
            grads.append(total[1:])
        return np.array(values), np.array(grads)

    def gather(self, state: Any) -> Any:
        """The state of all nodes as the same tree with NumPy arrays (n, ...), in every process."""

        def everyone(leaf: Any) -> Any:
            if not np.ndim(leaf):
                return leaf
            own = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device=self.links.device)
            return self.links.everyone(own).cpu().numpy()

        return jax.tree.map(everyone, state)

    def own(self, gathered: Any) -> Any:
        """The part of this node."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[self.links.rank] if np.ndim(leaf) else leaf, gathered)

    def join(self, own: Any) -> Any:
        """The parts of all nodes, in every process."""
        return self.gather(own)

    def scatter(self, gathered: Any) -> Any:
        """This node's part of a gathered state, as new tensors."""
        own, memory = Running.parts(gathered)
        own = jax.tree.map(lambda leaf: self._own(leaf) if np.ndim(leaf) else leaf, own)
        return Running.of(own, jax.tree.map(lambda known: np.array(known[self.links.rank]), memory))

    def _own(self, all_nodes: np.ndarray) -> torch.Tensor:
        return torch.tensor(all_nodes[self.links.rank], device=self.links.device)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _draw(oracle: Oracle, call: int, batch: int, seed: Any, node: Any, t: Any, data: Any) -> Any:
    return oracle.draw(node_keys(seed, node, t, call), data, batch)


@partial(jax.jit, static_argnums=0)
def _grad(oracle: Oracle, x: jax.Array, sample: Any, data: Any) -> jax.Array:
    return oracle.grad(x, sample, data)


@partial(jax.jit, static_argnums=0)
def _exact(oracle: Oracle, points: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(oracle.exact, (0, None))(points, data)


def _array(x: torch.Tensor) -> jax.Array:
    """The tensor as a JAX array that shares its memory. This is safe, since vectors are never changed in place."""
    return jnp.from_dlpack(x.contiguous())


def _tensor(array: jax.Array) -> torch.Tensor:
    return dlpack.from_dlpack(jax.block_until_ready(array))
