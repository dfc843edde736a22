"""Checks of the arguments of a run, and its length, starting point and precision from those arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.compressors import Compressor, check_messages
from peerdescent.digests import is_library
from peerdescent.engines.outline import outline
from peerdescent.errors import check_fields, require, unknown, whole
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.costs import Costs

DIVERGED = 1e3
"""A run ends as diverged when its loss exceeds this many times the first one."""


def check(method: Method, problem: Problem, network: Network) -> None:
    """Refuse combinations that cannot work; the message has the reason and a remedy."""
    require(
        isinstance(method, Method),
        f"method is a {type(method).__name__}: give a Method, as from peer.methods.gt_hsgd()",
    )
    structure = outline(method).structure
    state = structure.unflatten(range(structure.num_leaves))
    require(
        hasattr(state, "x"),
        f"{method.name} has a {type(state).__name__} without x as its state: return a NamedTuple whose field x is the "
        "iterate",
    )
    check_kinds(problem, network)
    require(
        problem.nodes == network.n,
        f"the problem has {problem.nodes} nodes and the network {network.n}: partition the data over {network.n}, "
        f"or build the network with {problem.nodes}",
    )
    check_node_names(problem, network)
    require(
        problem.penalty is None or "prox" in outline(method).verbs,
        f"{method.name} takes no proximal steps, so it would leave out the non-smooth term of {problem.name}: use "
        f"{_those(lambda one: 'prox' in outline(one).verbs)}, or the smooth problem",
    )
    for name, schedule in method.schedules.items():
        try:
            jax.eval_shape(schedule, jnp.int32(0))
        except Exception as error:
            reason = str(error).partition("\n")[0]
            text = f"{name} = {schedule} is no function of t that JAX can trace ({reason})"
            raise ValueError(f"{text}: use jax.numpy, and where for if") from None
    for operator in [
        value for value in method.parameters.values() if isinstance(value, Compressor)
    ]:
        if not is_library(type(operator)):
            check_fields(operator, "compressor")
            check_messages(operator, problem.dimension)
    check_network(method, network)


def check_node_names(problem: Problem, network: Network) -> None:
    """Refuse a graph that names its nodes as the problem does in another order, or otherwise: they meet by number."""
    mine, theirs = (tuple(map(str, names)) for names in (problem.names, network.names))
    if (
        not mine or not theirs or mine == theirs or len(mine) < len(theirs)
    ):  # a process may know its own node only
        return
    k = next(k for k in range(problem.nodes) if mine[k] != theirs[k])
    differ = set(mine) != set(theirs) and all(
        isinstance(name, str) for name in (*problem.names, *network.names)
    )
    require(
        not differ and set(mine) != set(theirs),
        f"node {k} is {mine[k]} in the problem and {theirs[k]} in {network.name}: "
        + (
            "name the nodes of the graph like those of the partition, or number them from 0 on"
            if differ
            else "give the order of its nodes, as in peer.Network(graph, nodes=partition.names)"
        ),
    )


def _those(which: Callable[[Method], bool]) -> str:
    """The named methods of which something is true."""
    return ", ".join(name for name, entry in METHODS.items() if which(entry.build()))


def check_kinds(problem: Any, network: Any) -> None:
    """Refuse arguments of the wrong type, such as problem and network in the wrong order."""
    check_is_problem(problem)
    check_is_network(network)


def check_is_problem(problem: Any) -> None:
    """Refuse what is not a problem."""
    require(
        isinstance(problem, Problem),
        f"problem is a {type(problem).__name__}: give a Problem, as from peer.problems",
    )


def check_is_network(network: Any) -> None:
    """Refuse what is not a network."""
    require(
        isinstance(network, Network),
        f"network is a {type(network).__name__}: give a Network, as peer.Network(peer.topology.ring(20))",
    )


def check_network(method: Method, network: Network) -> None:
    """Refuse a network that does not meet the requirements of the method on W and on messages."""
    needs, does = method.needs, outline(method)
    if does.compresses:
        require(
            network.rounds == 1,
            f"{method.name} compresses what it mixes, and {network.rounds} rounds would send sums, which are not "
            "compressed: use rounds=1, or another method",
        )
        twice = [str(fault) for fault in network.faults if fault.size(1, 1) is not None]
        require(
            not twice,
            f"{method.name} compresses what it mixes, and {', '.join(twice)} would again: leave it out",
        )
        losing = [
            str(fault) for fault in network.faults if fault.moments != (1.0, 1.0) or fault.awake < 1
        ]
        require(
            not losing,
            f"{method.name} keeps what neighbours were told, and with {', '.join(losing)} some would never hear it: "
            "use links without it, or a method that sends whole vectors",
        )
    require(
        network.pushed is None or not (needs.doubly_stochastic if method.parts else does.mixes),
        f"{method.name} needs a doubly stochastic W; {network.name} has push-pull weights: "
        f"use {_those(lambda one: not one.needs.doubly_stochastic)}, or a graph with as many edges in as out at every "
        "node",
    )
    require(
        network.is_symmetric or not needs.symmetric,
        f"{method.name} needs a symmetric weight matrix; {network.name} is not symmetric: "
        "use gt-dsgd or another tracking method, or an undirected graph such as exponential",
    )
    require(
        needs.smallest_eigenvalue == -1.0
        or network.graph is None
        or needs.static,  # the latter is refused below
        f"{method.name} needs the smallest eigenvalue of W above {needs.smallest_eigenvalue:.3g}, and {network.name} "
        "is drawn in every round: use a graph that stays",
    )
    if needs.smallest_eigenvalue > -1.0 and network.is_symmetric:
        least = network.smallest_eigenvalue
        remedy = (
            "lazy weights, which keep it from falling below 0"
            if needs.smallest_eigenvalue < 0
            else "(W + I) / 2"
        )
        require(
            least > needs.smallest_eigenvalue + 1e-9,  # not above it by rounding alone
            f"{method.name} needs the smallest eigenvalue of W above {needs.smallest_eigenvalue:.3g}; {network.name} "
            f"has {least if abs(least) > 1e-9 else 0:.3g}: use {remedy}",
        )
    require(
        network.is_static or not needs.static,
        f"{method.name} needs weights that do not change; {network.name} "
        f"{'is drawn in every round' if network.period == 1 else f'has a period of {network.period}'}: "
        "use a static network, or a method such as gt-dsgd",
    )


def check_names(function: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse arguments that a function does not have; many confuse the `seed` of `run` and the `seeds` of `compare`."""
    for name, value in given.items():
        if name not in known:
            require(name not in _MEANT, f"{name}={value!r}: {_MEANT.get(name)}")
            raise unknown(f"argument of {function}", name, known)


_MEANT = {
    "seeds": "run has seed= instead, where seed=3 is seed 3 alone, and seed=range(3) or a list are several",
    "seed": "compare has seeds= instead, where seeds=3 are the seeds 0, 1 and 2, and seeds=[3] is seed 3 alone",
}


def check_seed(seed: Any) -> int:
    """The seed as an int."""
    seed = whole("seed", seed, 0)
    require(seed < 2**32, f"seed = {seed}: must lie in 0..2^32 - 1")
    return seed


def check_seeds(seed: Any) -> list[int]:
    """The seeds as ints, of one or of several."""
    seeds = [check_seed(one) for one in ([seed] if np.ndim(seed) == 0 else seed)]
    require(bool(seeds), f"seed = {seed}: give one or several of 0..2^32 - 1")
    for one in seeds:
        require(seeds.count(one) == 1, f"seed {one} is given twice: leave one out")
    return seeds


def diverged(loss: float, first: float) -> bool:
    """Whether a loss means that a run has diverged, given the loss at x_0."""
    return not math.isfinite(loss) or (first != 0 and loss > DIVERGED * abs(first))


def matrix_precision(precision: int | str) -> tuple[np.dtype[Any], str]:
    """The type of vectors, and the precision of matrix products, which is reduced for "tf32" only."""
    require(precision in (32, 64, "tf32"), f"precision = {precision!r}: must be 32, 64 or 'tf32'")
    return np.dtype(
        "float64" if precision == 64 else "float32"
    ), "tensorfloat32" if precision == "tf32" else "highest"


def total_steps(costs: Costs, problem: Problem, steps: int | None, epochs: float | None) -> int:
    """The number of iterations, from exactly one of `steps` and `epochs`."""
    require(
        (steps is None) != (epochs is None),
        f"steps = {steps}, epochs = {epochs}: give exactly one of them",
    )
    if steps is not None:
        return _limited(whole("steps", steps, 1))
    assert epochs is not None
    good = isinstance(epochs, Real) and 0 < epochs < math.inf
    require(good, f"epochs = {epochs!r}: must be a number, positive and finite")
    require(
        problem.samples is not None,
        f"{problem.name} has no epochs, since its samples never end: give steps",
    )
    assert problem.samples is not None
    budget = epochs * problem.samples
    require(budget < 2**53, f"epochs = {epochs:g}: too many to count; give fewer")
    return _limited(costs.steps_within(budget))


def _limited(steps: int) -> int:
    require(steps < 2**31, f"steps = {steps}: must be below 2^31; give fewer steps or epochs")
    return steps


def starting_point(x0: Any, problem: Problem, dtype: Any) -> np.ndarray:
    """x_0 (n, p) from the argument `x0`, by default the problem's, else zeros."""
    shape = (problem.nodes, problem.dimension)
    if x0 is None:
        x0 = problem.start if problem.start is not None else np.zeros(problem.dimension)
    try:
        x0 = np.asarray(x0, dtype)
    except (TypeError, ValueError):
        raise ValueError(
            f"x0 = {str(x0)[:60]!r} is no array of numbers: give one of shape {shape[1:]} or {shape}"
        ) from None
    require(
        x0.shape in (shape, shape[1:]),
        f"x0 has shape {x0.shape}: must be {shape[1:]}, or {shape} for one per node",
    )
    require(
        bool(np.isfinite(x0).all()),
        "x0 has values that are not finite: give a finite starting point",
    )
    return np.broadcast_to(x0, shape).copy()
