"""The engine for debugging and teaching: a Python loop over nodes, explicit sums, nothing compiled.

Vectors are NumPy arrays (n, p). Errors, and the first value that is not finite, are reported with
node, step and stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.compressors import Compressor
from peerdescent.engines.contract import Running
from peerdescent.engines.feeding import Feed
from peerdescent.engines.mixing import Repeated
from peerdescent.engines.verbs import Eager
from peerdescent.errors import NotFinite, StreamEnded
from peerdescent.keys import node_keys
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.networks.rounds import Iteration, matrix
from peerdescent.problems.problem import Problem, cast


class Net(Eager):
    """The verbs in iteration t, one node at a time."""

    def __init__(self, engine: Debug, t: int, memory: Any) -> None:
        super().__init__(engine.seed, t)
        self.engine = engine
        once = Turn(self, engine.links.at(np, engine.seed, t, memory))
        self.turn = once if engine.repeats == 1 else Repeated(once, engine.repeats, engine.momentum)

    def sample(self, batch: int) -> list[Any]:
        """One sample for each node."""
        engine, call = self.engine, self.calls.take("sample")
        if engine.feed is not None:
            ahead = engine.feed.take(self.t)
            rows = jax.tree.map(lambda a: a[self.t - ahead.first], ahead.samples[call, batch])
            return [jax.tree.map(lambda a, i=i: a[i], rows) for i in range(engine.nodes)]

        def draw(i: int) -> Any:
            key = node_keys(jnp.uint32(engine.seed), jnp.asarray(i), jnp.asarray(self.t), call)
            return engine.oracle.draw(key, engine.held[i], batch)

        return self._at_each_node("sample", draw)

    def grad(self, x: np.ndarray, sample: list[Any]) -> np.ndarray:
        """Each node's minibatch gradient."""
        engine = self.engine
        return self._vectors(
            "grad", lambda i: engine.oracle.grad(jnp.asarray(x[i]), sample[i], engine.held[i])
        )

    def full_grad(self, x: np.ndarray) -> np.ndarray:
        """Each node's exact gradient."""
        engine = self.engine
        return self._vectors("full_grad", lambda i: engine._exact(jnp.asarray(x[i]), i)[1])

    def _round(self, verb: str, number: int, x: np.ndarray) -> np.ndarray:
        """An explicit sum: sum_j w_ij x_j, sum_j w_ij (x_i - x_j) or sum_j b_ij x_j."""
        found: np.ndarray = getattr(self.turn, verb)(number, x)
        return found

    def _pushed(self, number: int, x: np.ndarray, w: Any) -> tuple[np.ndarray, np.ndarray]:
        both = np.concatenate([x, np.broadcast_to(w, (len(x), 1)).astype(x.dtype)], axis=1)
        both = self._round("push", number, both)
        return both[:, :-1], both[:, -1:]

    def compress(self, x: np.ndarray, operator: Compressor) -> np.ndarray:
        """C(x_i) at each node."""
        draw = self._compression()
        return self._vectors(
            "compress", lambda i: operator.apply(x[i][None], draw.of(np.array([i])))[0]
        )

    def prox(self, x: np.ndarray, step: float) -> np.ndarray:
        """The proximal operator of the problem's non-smooth term, at each node."""
        penalty = self.engine.penalty
        return x if penalty is None else self._vectors("prox", lambda i: penalty.prox(x[i], step))

    def dot(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Each node's inner product, (n, 1)."""
        return self._vectors("dot", lambda i: [x[i] @ y[i]])

    def _vectors(self, stage: str, local: Callable[[int], Any]) -> np.ndarray:
        vectors = np.stack([np.asarray(v) for v in self._at_each_node(stage, local)])
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if bad.size:
            raise NotFinite(f"node {bad[0]}, step {self.t}, {stage}: the result is not finite")
        return vectors

    def _at_each_node(self, stage: str, local: Callable[[int], Any]) -> list[Any]:
        return _at_each_node(self.engine.nodes, f"step {self.t}, {stage}", local)


class Turn:
    """The rounds of one iteration, as explicit sums over the messages that arrive."""

    def __init__(self, net: Net, iteration: Iteration) -> None:
        self.net, self.iteration, self.awake = net, iteration, iteration.awake

    def mix(self, number: int, x: np.ndarray) -> np.ndarray:
        """sum_j w_ij x_j."""
        w, messages, noise = self._round(number, x)
        return self._sums("mix", w, lambda i, j: x[i] if i == j else messages[j], noise)

    def push(self, number: int, x: np.ndarray) -> np.ndarray:
        """sum_j b_ij x_j."""
        if self.iteration.rounds.pushed is None:
            return self.mix(number, x)
        w, messages, noise = self._round(number, x, push=True)
        return self._sums("push", w, lambda i, j: x[i] if i == j else messages[j], noise)

    def disagree(self, number: int, x: np.ndarray) -> np.ndarray:
        """sum_j w_ij (x_i - x_j)."""
        w, messages, noise = self._round(number, x)
        return self._sums(
            "disagree", w, lambda i, j: x[i] - (x[i] if i == j else messages[j]), -noise
        )

    def _round(
        self, number: int, x: np.ndarray, push: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The weights (n, n) of a round, what nodes send, and the noise on what they receive."""
        happens, nodes = self.iteration, np.arange(len(x))
        w = self.net.engine.ideal(self.net.t)
        if w is None:
            w = matrix(happens.rounds, happens.weights(number, push)[1], push)
        w = w.astype(x.dtype)
        noise = happens.noise(number, w - np.diag(w.diagonal()), x, nodes)
        return (
            w,
            happens.message(number, x, nodes),
            np.broadcast_to(np.asarray(noise, x.dtype), x.shape),
        )

    def _sums(
        self, stage: str, w: np.ndarray, term: Callable[[int, int], np.ndarray], noise: np.ndarray
    ) -> np.ndarray:
        heard = [np.flatnonzero(row).tolist() for row in w]
        return self.net._vectors(
            stage, lambda i: reduce(add, (w[i, j] * term(i, j) for j in heard[i])) + noise[i]
        )


def _at_each_node(nodes: int, where: str, local: Callable[[int], Any]) -> list[Any]:
    results = []
    for i in range(nodes):
        try:
            results.append(local(i))
        except Exception as error:
            error.add_note(f"node {i}, {where}")
            raise
    return results


def _kept(new: Any, old: Any, awake: Any) -> Any:
    """The new state, but for nodes that sleep, whose state stays."""
    if awake is None:
        return new

    def one(a: Any, b: Any) -> Any:
        # A number that all nodes share, in the state of a method made by hand, belongs to none of
        # them.
        return np.stack([a[i] if up else b[i] for i, up in enumerate(awake)]) if np.ndim(a) else a

    return jax.tree.map(one, new, old)


class Debug:
    """The engine `debug`."""

    packages: ClassVar[tuple[str, ...]] = ("jax",)
    node: int | None = None

    def __init__(
        self, method: Method, problem: Problem, network: Network, seed: int, dtype: Any
    ) -> None:
        self.method, self.oracle, self.nodes, self.seed, self.dtype = (
            method,
            problem.oracle,
            problem.nodes,
            seed,
            dtype,
        )
        self.penalty, data = problem.penalty, cast(problem.data, dtype)
        self.held = [jax.tree.map(lambda a, i=i: a[i], data) for i in range(self.nodes)]
        self.links, self.repeats, self.momentum = network.links, network.rounds, network.momentum
        self.weights = [W.toarray() for W in network.matrices] if network.is_known else []
        self.feed = None if problem.streams is None else Feed(method, problem, dtype)

    def ideal(self, t: int) -> np.ndarray | None:
        """The weights of iteration t, if all its rounds have the same."""
        return self.weights[t % len(self.weights)] if self.weights else None

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0."""
        memory = self.links.begin(np, self.seed)
        return Running.of(
            self._cast(self.method.at(0).init(np.array(x0, self.dtype), Net(self, 0, memory))),
            memory,
        )

    def _cast(self, state: Any) -> Any:
        """The state in the precision of the run, which arrays of a method's own may have raised."""
        return jax.tree.map(
            lambda a: a.astype(self.dtype) if getattr(a, "dtype", None) == np.float64 else a, state
        )

    def warm_up(self, x0: np.ndarray, points: int) -> None:
        """Nothing to compile."""

    def advance(self, state: Any, t: int, until: int) -> Any:
        """One iteration after the other."""
        with np.errstate(
            all="ignore"
        ):  # values that are not finite are reported with node, step and stage instead
            for step in range(t, until):
                before, memory = Running.parts(state)
                memory = self.links.later(np, self.seed, step, memory)
                net = Net(self, step, memory)
                try:
                    after = self._cast(self.method.at(step).step(before, net))
                except StreamEnded as error:
                    error.step, error.state = step, state
                    raise
                state = Running.of(_kept(after, before, net.turn.awake), memory)
        return state

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (k,) and its gradients (k, p) at points (k, p), by a loop over points and nodes."""
        values, grads = [], []
        for point in map(jnp.asarray, points):
            exact = _at_each_node(self.nodes, "evaluate", partial(self._exact, point))
            values.append(np.mean([np.asarray(value) for value, _ in exact]))
            grads.append(np.mean([np.asarray(grad) for _, grad in exact], axis=0))
        return np.array(values), np.array(grads)

    def hold(self, state: Any) -> Any:
        """A copy of the state."""
        return jax.tree.map(np.array, state)

    scatter = hold

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The array: there is one process."""
        return array

    def mean(self, held: np.ndarray) -> np.ndarray:
        """The mean over nodes in float64."""
        found: np.ndarray = held.mean(axis=0, dtype=float)
        return found

    def _exact(self, x: jax.Array, i: int) -> tuple[jax.Array, jax.Array]:
        return self.oracle.exact(x, self.held[i])
