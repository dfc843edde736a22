"""Topologies: which nodes are neighbours.

Every function here returns a networkx graph on nodes 0..n-1, a list of them for a time-varying
topology, or a `RandomGraph` that is drawn anew in every round. `Network` derives weights, spectral
gap and degrees, and takes any other networkx graph as well. An edge j -> i of a directed graph
means that j sends to i.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import networkx as nx

from peerdescent.errors import require, require_memory, unknown, whole
from peerdescent.networks.random_graphs import (
    RandomGraph,
    RandomMatching,
    RandomPairs,
    RandomRegular,
)

TRIES = 1000
NODE_BYTES = LINK_BYTES = 500
"""Memory that a node and a link take while a network is built, about."""


def ring(n: int) -> nx.Graph:
    """Ring: every node has two neighbours, i - 1 and i + 1 (mod n).

    >>> sorted(ring(5)[0])
    [1, 4]
    """
    n = _count(n, links=1)
    return _circulant(nx.Graph(name="ring"), n, [1])


def exponential(n: int) -> nx.Graph:
    """Undirected exponential graph: neighbours are ±1, ±2, ±4, ... up to n/2 hops away.

    >>> sorted(exponential(20)[0])
    [1, 2, 4, 8, 12, 16, 18, 19]
    """
    n = _count(n, links=_bits(n))
    return _circulant(nx.Graph(name="exponential"), n, (2**k for k in range((n // 2).bit_length())))


def directed_exponential(n: int) -> nx.DiGraph:
    """Directed exponential graph: node i sends to i + 1, i + 2, i + 4, ... (mod n), hops below n.

    >>> sorted(directed_exponential(20)[0])
    [1, 2, 4, 8, 16]
    """
    n = _count(n, links=_bits(n))
    return _circulant(
        nx.DiGraph(name="directed-exponential"), n, (2**k for k in range((n - 1).bit_length()))
    )


def one_peer_exponential(n: int) -> list[nx.DiGraph]:
    """One-peer exponential graphs: in round k of the period node i sends to i + 2^k (mod n) alone.

    A time-varying topology of period ceil(log2 n). If n is a power of two, one period with weights
    1/2 averages exactly, with one message per node and step.

    >>> [list(graph[0]) for graph in one_peer_exponential(8)]
    [[1], [2], [4]]
    """
    n = _count(n, links=2 * _bits(n))  # every graph has all nodes
    period = max(1, (n - 1).bit_length())
    return [_circulant(nx.DiGraph(name="one-peer-exponential"), n, [2**k]) for k in range(period)]


def complete(n: int) -> nx.Graph:
    """Complete graph: every pair is joined. With weights 1/n, one mixing is an exact average.

    >>> complete(4).number_of_edges()
    6
    """
    return _named("complete", nx.complete_graph(_count(n, links=None)))


def grid(n: int) -> nx.Graph:
    """Grid of rows * columns = n nodes, as square as the divisors of n allow; a path for a prime.

    >>> sorted(grid(12)[5])  # 3 rows of 4
    [1, 4, 6, 9]
    """
    return _named("grid", _lattice(_count(n, links=2), periodic=False))


def torus(n: int) -> nx.Graph:
    """Torus: the grid with opposite sides joined.

    >>> sorted(torus(12)[0])
    [1, 3, 4, 8]
    """
    return _named("torus", _lattice(_count(n, links=2), periodic=True))


def star(n: int) -> nx.Graph:
    """Star: node 0 is joined to all others, and there are no other edges.

    >>> sorted(star(4)[0]), sorted(star(4)[3])
    ([1, 2, 3], [0])
    """
    return _named("star", nx.star_graph(_count(n, links=1) - 1))


def erdos_renyi(
    n: int, probability: float | None = None, seed: int | None = None
) -> nx.Graph | RandomGraph:
    """Erdős-Rényi graph: pairs are joined with `probability`, anew each round or fixed by a seed.

    Args:
        n: The number of nodes.
        probability: The probability of an edge; by default 2 ln(n) / n, twice the connectivity
            threshold.
        seed: Draws one graph for all rounds, again and again until it is connected. Without a seed
            every round has a graph of its own, drawn by the seed of the run.

    Returns:
        The graph.

    >>> nx.is_connected(erdos_renyi(30, seed=1))
    True
    >>> erdos_renyi(30, 0.1)
    RandomPairs(n=30, rule='metropolis', probability=0.1)
    """
    n = _count(n, links=1)
    if probability is None:
        probability = min(1.0, 2 * math.log(n) / n)
    require(
        0 <= probability <= 1,
        f"probability={probability!r} is not in [0, 1]: leave it out for 2 ln(n) / n",
    )
    _count(n, links=probability * n / 2)
    if seed is None:
        require(
            probability > 0 or n == 1,
            "probability = 0: the nodes never hear of each other; give a larger one",
        )
        return RandomPairs(_count(n, links=None), probability=float(probability))
    generator = random.Random(seed)
    for _ in range(TRIES):
        graph = nx.fast_gnp_random_graph(n, probability, seed=generator)
        if nx.is_connected(graph):
            return _named("erdos-renyi", graph)
    raise ValueError(
        f"probability={probability:.3g} gave no connected graph of {n} nodes in {TRIES} tries: raise it above "
        f"ln(n) / n = {math.log(n) / n:.3g}"
    )


def watts_strogatz(
    n: int, neighbours: int | None = None, probability: float = 0.1, seed: int = 0
) -> nx.Graph:
    """Small world: a ring with edges to the `neighbours` nearest, some of them rewired.

    Args:
        n: The number of nodes.
        neighbours: An even number below n; by default 4, or fewer if there are not that many.
        probability: The probability that an edge is led to a random node.
        seed: For the edges; drawn again and again until the graph is connected.

    Returns:
        The graph, the same in all rounds.

    >>> watts_strogatz(20).number_of_edges()
    40
    """
    n = _count(n, links=neighbours / 2 if isinstance(neighbours, Integral) else 2)
    if neighbours is None:
        neighbours = 4 if n > 5 else 2
    else:
        neighbours = whole("neighbours", neighbours, 2)
        require(
            neighbours % 2 == 0 and neighbours < n,
            f"neighbours = {neighbours}: must be even, and below n = {n}",
        )
    require(
        0 <= probability <= 1,
        f"probability={probability!r} is not in [0, 1]: 0 is a ring, 1 is random",
    )
    if n < 4:
        return _named("watts-strogatz", nx.complete_graph(n))
    return _named(
        "watts-strogatz", nx.connected_watts_strogatz_graph(n, neighbours, probability, TRIES, seed)
    )


def random_matching(n: int) -> RandomGraph:
    """Random matching: each round pairs the nodes anew; if n is odd, one is left alone.

    >>> random_matching(8)
    RandomMatching(n=8, rule='metropolis')
    """
    return RandomMatching(_count(n, links=None))


def random_regular(n: int, degree: int | None = None) -> RandomGraph:
    """Random regular graph: each round draws `degree` neighbours for every node, by default 4.

    Nodes are put on a circle in random order, and joined with those at degree / 2 random distances,
    either way; an odd degree, for which n must be even, has the opposite node too.

    >>> random_regular(20, 3)
    RandomRegular(n=20, rule='metropolis', degree=3)
    """
    n = _count(n, links=None)
    degree = min(4, n - 1) if degree is None else whole("degree", degree, 1)
    require(degree < n, f"degree = {degree}: must be below the number of nodes, {n}")
    require(
        degree % 2 == 0 or n % 2 == 0,
        f"degree = {degree} with {n} nodes: an odd degree needs an even number",
    )
    return RandomRegular(n, degree=degree)


TOPOLOGIES: dict[str, Callable[..., Any]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        ring,
        exponential,
        directed_exponential,
        one_peer_exponential,
        complete,
        grid,
        torus,
        star,
        erdos_renyi,
        watts_strogatz,
        random_matching,
        random_regular,
    )
}


def build(name: str, nodes: int, **options: Any) -> nx.Graph | list[nx.DiGraph] | RandomGraph:
    """The topology with this name in kebab case, as the command line has it.

    >>> print(build("directed-exponential", 8))
    DiGraph named 'directed-exponential' with 8 nodes and 24 edges
    """
    if name not in TOPOLOGIES:
        raise unknown("topology", name, TOPOLOGIES)
    known = list(inspect.signature(TOPOLOGIES[name]).parameters)[1:]
    for option in options:
        require(
            option in known,
            f"{name} has no option {option!r}: it takes {' and '.join(known) or 'none'}",
        )
    return TOPOLOGIES[name](nodes, **options)


def _count(n: Any, links: float | None) -> int:
    """A valid number of nodes. `links` is the links of each node, or None for all pairs."""
    whole = isinstance(n, Integral) and not isinstance(n, bool)
    require(whole and n >= 1, f"{n!r} is no number of nodes: give an integer of at least 1")
    count = int(n)
    size = count * (NODE_BYTES + LINK_BYTES * ((count - 1) // 2 if links is None else links))
    require_memory(f"a network of {count:,} nodes", size, "use fewer nodes")
    return count


def _bits(n: Any) -> int:
    return int(n).bit_length() if isinstance(n, Integral) else 0


def _named(name: str, graph: nx.Graph) -> nx.Graph:
    graph.graph["name"] = name
    return graph


def _circulant(graph: nx.Graph, n: int, hops: Iterable[int]) -> nx.Graph:
    graph.add_nodes_from(range(n))
    graph.add_edges_from((i, (i + hop) % n) for hop in hops for i in range(n) if hop % n)
    return graph


def _lattice(n: int, periodic: bool) -> nx.Graph:
    rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, n // rows, periodic=periodic))
