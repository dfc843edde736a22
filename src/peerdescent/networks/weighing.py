"""Weight matrices: by a rule for a graph, or given; and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from peerdescent.errors import require, unknown
from peerdescent.networks.random_graphs import RULES as RANDOM_RULES
from peerdescent.networks.random_graphs import RandomGraph
from peerdescent.networks.rounds import GRAPH
from peerdescent.threefry import source

RULES = ("lazy", "metropolis", "equal", "push-pull")
ROUNDING = 1e-12
"""Smaller entries of a given matrix are rounded zeros."""


def ruled(graph: RandomGraph, rule: str | None) -> RandomGraph:
    """A random graph with a rule of weights; None for its own."""
    if rule is not None and rule not in RANDOM_RULES:
        raise unknown("weight rule of a random graph", rule, RANDOM_RULES)
    return graph if rule is None else replace(graph, rule=rule)


def mean(graph: RandomGraph, draws: int = 200) -> sparse.csr_array:
    """The mean of W over draws. All pairs of nodes are alike, so they share one weight."""
    n = graph.n
    ends = np.stack(np.triu_indices(n, 1), axis=1)
    if n == 1:
        return sparse.csr_array(np.ones((1, 1)))
    draws = max(10, min(draws, 10**7 // n**2))
    weight = float(
        np.mean([graph.weights(source(np, 0, t, GRAPH, 0), ends).mean() for t in range(draws)])
    )
    weight = max(weight, graph.degrees / n**2)  # where edges are so rare that none was drawn
    W = np.full((n, n), weight)
    np.fill_diagonal(W, 1 - weight * (n - 1))
    return sparse.csr_array(W)


def pushed(A: sparse.csr_array) -> sparse.csr_array:
    """B on the links of A, its own included: each node divides what it sends evenly."""
    B = A.copy()
    B.data = 1 / np.bincount(A.indices, minlength=A.shape[0])[A.indices]
    return B


def check_strongly_connected(W: sparse.csr_array, name: str) -> None:
    """Refuse a directed graph in which some node cannot reach another."""
    count, group = csgraph.connected_components(W, directed=True, connection="strong")
    other = int(np.argmax(group != group[0]))
    require(
        count == 1,
        f"{name} is not strongly connected: there is no way from node 0 to node {other} and back ({count} parts); add "
        "edges",
    )


def sequence(graph: Any) -> list[Any]:
    """`graph` as a list of graphs or matrices; a single one becomes a list of length 1."""

    def depth(item: Any) -> int:
        if isinstance(item, nx.Graph):
            return 2
        if isinstance(item, list | tuple):
            return 1 + (depth(item[0]) if item else 0)
        return int(getattr(item, "ndim", 0))

    if depth(graph) == 2:
        return [graph]
    empty = hasattr(graph, "__len__") and len(graph) == 0
    require(not empty, "an empty sequence is no network: give at least one graph or matrix")
    require(
        depth(graph) == 3,
        f"{' '.join(repr(graph).split())[:60]} is no network: give a networkx graph such as topology.ring(20), "
        "a square matrix, or a list of those",
    )
    return list(graph)


def order(graph: nx.Graph, nodes: Sequence[Any] | None) -> list[Any]:
    """The node labels in the order of their numbers: that of `nodes`, if it is given."""
    if nodes is not None:
        same = set(nodes) == set(graph) and len(nodes) == len(graph)
        some = ", ".join(map(repr, list(graph)[:10]))
        require(
            same,
            f"nodes = {list(nodes)[:10]}: must be the labels of all nodes of the graph, {some}, in some order",
        )
        return list(nodes)
    numbers = range(len(graph))
    return list(numbers) if set(graph) == set(numbers) else list(graph)


def weigh(graph: nx.Graph, nodes: list[Any], rule: str | None) -> tuple[str, str, sparse.csr_array]:
    """The name, the rule and the weight matrix of a graph."""
    name, n = str(graph.name or "graph"), len(nodes)
    require(n > 0, "a graph without nodes is no network: give at least one node")
    require(
        len(graph) == n and all(node in graph for node in nodes),
        f"a graph of {len(graph)} nodes follows one of {n}, or their labels differ: a sequence needs the same nodes",
    )
    edges = nx.to_scipy_sparse_array(graph, nodes, weight=None, format="coo")
    links = edges.row != edges.col
    # Row i lists the nodes that i receives from, so an edge j -> i is an entry of row i. networkx
    # lists an undirected edge in both directions.
    pattern = sparse.csr_array(
        (np.ones(links.sum()), (edges.col[links], edges.row[links])), shape=(n, n)
    )
    pattern.sum_duplicates()
    receives, sends = np.diff(pattern.indptr), np.bincount(pattern.indices, minlength=n)
    if rule is None:
        rule = "equal" if graph.is_directed() or pattern.nnz == n * (n - 1) else "lazy"
    if rule not in RULES:
        raise unknown("weight rule", rule, RULES)
    if rule == "push-pull":
        source, target = pattern.indices, np.repeat(np.arange(n), receives)
        pattern.data = 1 / (1.0 + receives[target])
        return name, rule, (pattern + sparse.diags_array(1 / (1.0 + receives))).tocsr()
    if rule == "equal":
        i = int(np.argmax(receives != sends))
        require(
            receives[i] == sends[i],
            f"{rule} weights need as many edges in as out at every node, and node {nodes[i]!r} of {name} has "
            f"{receives[i]} in, {sends[i]} out: balance it, use graph.to_undirected(), give a matrix, or take "
            "weights='push-pull' and the method push-pull",
        )
    else:
        require(
            not one_way(pattern),
            f"{rule} weights need an undirected graph, and {name} is directed: use weights='equal'",
        )
    source, target = pattern.indices, np.repeat(np.arange(n), receives)
    larger = np.maximum(receives[source], receives[target])
    shares = {
        "lazy": 2 * larger,
        "metropolis": 1 + larger,
        "equal": np.full_like(larger, 1 + receives.max()),
    }
    pattern.data = 1 / shares[rule]
    return name, rule, (pattern + sparse.diags_array(1 - pattern.sum(axis=1))).tocsr()


def given(matrix: Any, weights: str | None) -> tuple[str, str, sparse.csr_array]:
    """The name, the rule and a checked CSR copy of a matrix that the user gave."""
    require(
        weights is None,
        f"weights={weights!r} is a rule for graphs, and a matrix brings its own weights: leave it out",
    )
    try:
        W = matrix if sparse.issparse(matrix) else np.asarray(matrix)
    except ValueError:
        W = np.array(None)
    require(
        W.ndim == 2 and W.shape[0] == W.shape[1] > 0 and W.dtype.kind in "biuf",
        f"a matrix of shape {W.shape} and type {W.dtype} is no weight matrix: give real numbers, (n, n)",
    )
    W = sparse.csr_array(W, dtype=np.float64, copy=True)
    W.sum_duplicates()
    entries, remedy = W.tocoo(), "or give the graph, and a rule will weigh it"
    bad = ~(np.isfinite(entries.data) & (entries.data >= -ROUNDING))
    if bad.any():
        row, column, value = (part[bad][0] for part in (entries.row, entries.col, entries.data))
        raise ValueError(
            f"w[{row}, {column}] = {value}: weights must be finite and not negative; change it, {remedy}"
        )
    W.data[W.data <= ROUNDING] = 0
    W.eliminate_zeros()
    for line, axis in (("row", 1), ("column", 0)):
        sums = W.sum(axis=axis)
        worst = int(np.argmax(abs(sums - 1)))
        require(
            abs(sums[worst] - 1) <= 1e-9,
            f"{line} {worst} of the weight matrix sums to {sums[worst]:.10g}: every row and column must sum to 1 "
            f"(doubly stochastic); rescale, {remedy}",
        )
    return "matrix", "given", W


def check_contraction(matrices: Sequence[sparse.csr_array]) -> None:
    """Refuse doubly stochastic matrices whose product P over a period has ||P - 11'/n|| = 1.

    The norm is below 1 if and only if P'P is irreducible. This depends on the pattern of zeros
    alone, and implies that P is primitive.
    """
    patterns = [W > 0 for W in matrices]
    if all(pattern.diagonal().all() for pattern in patterns):
        # With positive diagonals, the product connects the same nodes as the union of the links.
        # The union stays sparse where the product would fill up.
        product = reduce(lambda a, b: a + b, patterns)
    else:
        product = reduce(lambda done, pattern: pattern @ done, patterns)
    if (
        csgraph.connected_components(sparse.block_array([[None, product], [product.T, None]]))[0]
        == 1
    ):
        return
    what = (
        "the network"
        if len(matrices) == 1
        else f"the product of the {len(matrices)} matrices of the sequence"
    )
    count, group = csgraph.connected_components(product)
    require(
        count == 1,
        f"{what} is disconnected: nodes 0 and {np.argmax(group != group[0])} never hear of each other ({count} parts); "
        "add edges that join them",
    )
    distance = csgraph.dijkstra(product, indices=0, unweighted=True).astype(int)
    source, target = product.nonzero()
    cycle = np.gcd.reduce(distance[source] + 1 - distance[target])
    require(
        cycle == 1,
        f"{what} is periodic, with period {cycle}, so W^t has no limit: add self weights, such as (W + I) / 2",
    )
    raise ValueError(
        f"{what} has lam = 1, so one mixing need not bring nodes closer: add self weights, such as (W + I) / 2"
    )


def one_way(pattern: sparse.csr_array) -> bool:
    """Whether some node sends to another that does not send back."""
    return bool(((pattern > 0) != (pattern > 0).T).nnz)
