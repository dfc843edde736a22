"""The weight matrix W of a communication network, and its spectral properties.

A `Network` is a graph with a weight rule, or a weight matrix. It is checked at construction against the paper's
Assumption 3: W is primitive and doubly stochastic, so lam = ||W - 11'/n|| is below 1 and mixing contracts towards the
mean. All other code relies on that check. W is stored sparse, with one entry per link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from peerdescent.errors import require, require_memory, unknown

RULES = ("lazy", "metropolis", "equal")
DENSE_UP_TO = 400  # nodes; a dense spectrum of this size takes 0.1 s and is exact up to rounding
ROUNDING = 1e-12  # smaller entries of a given matrix, and smaller values of lam, are rounded zeros

Floats = NDArray[np.float64]


class Network:
    """A communication network: a graph and its weight matrix W. Immutable.

    Mixing is `mix(x)_i = sum_j w_ij x_j`, with w_ij > 0 where j sends to i. W must be doubly stochastic, and over one
    period the product P of the matrices must satisfy ||P - 11'/n|| < 1; other networks raise a ValueError.

    Args:
        graph: One of

            - a networkx graph, where an edge j -> i means that j sends to i. Self-loops, edge weights and parallel
              edges are ignored. Nodes labelled 0..n-1 keep their numbers; others are numbered in the graph's order;
            - a weight matrix: an array, nested lists or a SciPy sparse array;
            - a sequence of those on the same nodes, for a time-varying network: W_t = matrices[t % period].
        weights: The rule that gives a graph its weights; None for a matrix. With d_i the number of neighbours of i,
            and with the diagonal such that each row sums to 1:

            - "lazy": w_ij = 1 / (2 max(d_i, d_j)), for undirected graphs;
            - "metropolis": w_ij = 1 / (1 + max(d_i, d_j)), for undirected graphs;
            - "equal": w_ij = 1 / (1 + max d), for undirected graphs, and for directed graphs in which every node has
              as many incoming as outgoing edges;
            - None: "equal" for directed and for complete graphs, else "lazy". These are the paper's weights.

    Attributes:
        n: The number of nodes.
        name: The name of the topology.
        rule: The weight rule, or "given" for a matrix.
        matrices: One CSR matrix (n, n) for each step of the period.

    >>> from peerdescent import topology
    >>> Network(topology.exponential(20))
    Network(exponential, n=20, lazy weights, lam=0.750)
    >>> Network([[0.75, 0.25], [0.25, 0.75]]).lam
    0.5
    >>> Network(topology.one_peer_exponential(16))
    Network(one-peer-exponential, n=16, period=4, equal weights, lam=0.000)
    """

    n: int
    name: str
    rule: str
    matrices: tuple[sparse.csr_array, ...]

    def __init__(self, graph: Any, weights: str | None = None) -> None:
        graphs = _sequence(graph)
        nodes = next((_order(g) for g in graphs if isinstance(g, nx.Graph)), [])
        built = [_weigh(g, nodes, weights) if isinstance(g, nx.Graph) else _given(g, weights) for g in graphs]
        names, rules, matrices = zip(*built, strict=True)
        sizes = [W.shape[0] for W in matrices]
        require(len(set(sizes)) == 1, f"the matrices of a sequence have {sizes} nodes: give all the same number")
        _check_contraction(matrices)
        for W in matrices:
            for part in (W.data, W.indices, W.indptr):
                part.flags.writeable = False
        self.__dict__.update(
            n=sizes[0],
            name=names[0] if len(set(names)) == 1 else "sequence",
            rule=rules[0] if len(set(rules)) == 1 else "mixed",
            matrices=matrices,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name}: a Network is immutable, build another one")

    def __repr__(self) -> str:
        period = f"period={self.period}, " if self.period > 1 else ""
        lam = f"{self.lam:.3f}" if self.gap > 5e-4 else f"1-{self.gap:.1e}"
        return f"Network({self.name}, n={self.n}, {period}{self.rule} weights, lam={lam})"

    @property
    def period(self) -> int:
        """The number of matrices, which are used cyclically; 1 for a static network."""
        return len(self.matrices)

    @cached_property
    def W(self) -> Floats:
        """The weights as a dense array, (n, n), or (period, n, n) for a sequence."""
        dense = np.stack([W.toarray() for W in self.matrices])
        dense.flags.writeable = False
        return dense if self.period > 1 else dense[0]

    @property
    def arrays(self) -> list[tuple[Any, Any, Any]]:
        """The arrays behind all matrices, for a checksum."""
        return [(W.indptr, W.indices, W.data) for W in self.matrices]

    @cached_property
    def lam(self) -> float:
        """The paper's lambda, ||W - 11'/n||_2 in [0, 1): one mixing multiplies disagreement by at most this.

        For a sequence, the rate per step: ||W_{period-1} ... W_0 - 11'/n||_2 to the power 1 / period.
        """
        left = _disagreement(self.matrices, dense=self.n <= DENSE_UP_TO)
        return float(left ** (1 / self.period)) if left > ROUNDING else 0.0

    @property
    def gap(self) -> float:
        """The spectral gap 1 - lam in (0, 1]."""
        return 1 - self.lam

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the other nodes it receives from at some step of the period."""
        union = sum(self.matrices[1:], self.matrices[0])
        rows = np.split(union.indices, union.indptr[1:-1])
        return tuple(tuple(sorted(j for j in row.tolist() if j != i)) for i, row in enumerate(rows))

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """The out-degree: how many other nodes each node sends to, (n,), or (period, n) for a sequence."""
        degrees = np.stack([np.bincount(W.indices, minlength=self.n) - (W.diagonal() > 0) for W in self.matrices])
        degrees.flags.writeable = False
        return degrees if self.period > 1 else degrees[0]

    @cached_property
    def is_directed(self) -> bool:
        """Whether at some step a node sends to another that does not send back."""
        return any(_one_way(W) for W in self.matrices)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every matrix equals its transpose, to 1e-12."""
        return all(abs(W - W.T).max() <= ROUNDING for W in self.matrices)

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue of W, or the smallest over the period for a sequence. Symmetric weights only."""
        require(
            self.is_symmetric,
            f"smallest_eigenvalue needs symmetric weights, and those of {self.name} are not: use an undirected graph",
        )
        return min(_smallest_eigenvalue(W, dense=self.n <= DENSE_UP_TO) for W in self.matrices)


def _sequence(graph: Any) -> list[Any]:
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


def _order(graph: nx.Graph) -> list[Any]:
    """The node labels in the order of their numbers."""
    numbers = range(len(graph))
    return list(numbers) if set(graph) == set(numbers) else list(graph)


def _weigh(graph: nx.Graph, nodes: list[Any], rule: str | None) -> tuple[str, str, sparse.csr_array]:
    """The name, the rule and the weight matrix of a graph."""
    name, n = str(graph.name or "graph"), len(nodes)
    require(n > 0, "a graph without nodes is no network: give at least one node")
    require(
        len(graph) == n and all(node in graph for node in nodes),
        f"a graph of {len(graph)} nodes follows one of {n}, or their labels differ: a sequence needs the same nodes",
    )
    edges = nx.to_scipy_sparse_array(graph, nodes, weight=None, format="coo")
    links = edges.row != edges.col
    # Row i lists the nodes that i receives from, so an edge j -> i is an entry of row i. networkx lists an undirected
    # edge in both directions.
    pattern = sparse.csr_array((np.ones(links.sum()), (edges.col[links], edges.row[links])), shape=(n, n))
    pattern.sum_duplicates()
    receives, sends = np.diff(pattern.indptr), np.bincount(pattern.indices, minlength=n)
    if rule is None:
        rule = "equal" if graph.is_directed() or pattern.nnz == n * (n - 1) else "lazy"
    if rule not in RULES:
        raise unknown("weight rule", rule, RULES)
    if rule == "equal":
        i = int(np.argmax(receives != sends))
        require(
            receives[i] == sends[i],
            f"{rule} weights need as many edges in as out at every node, and node {nodes[i]!r} of {name} has "
            f"{receives[i]} in, {sends[i]} out: balance it, use graph.to_undirected(), or give a matrix",
        )
    else:
        require(
            not _one_way(pattern),
            f"{rule} weights need an undirected graph, and {name} is directed: use weights='equal'",
        )
    source, target = pattern.indices, np.repeat(np.arange(n), receives)
    larger = np.maximum(receives[source], receives[target])
    shares = {"lazy": 2 * larger, "metropolis": 1 + larger, "equal": np.full_like(larger, 1 + receives.max())}
    pattern.data = 1 / shares[rule]
    return name, rule, (pattern + sparse.diags_array(1 - pattern.sum(axis=1))).tocsr()


def _given(matrix: Any, weights: str | None) -> tuple[str, str, sparse.csr_array]:
    """The name, the rule and a checked CSR copy of a matrix that the user gave."""
    require(
        weights is None, f"weights={weights!r} is a rule for graphs, and a matrix brings its own weights: leave it out"
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
        raise ValueError(f"w[{row}, {column}] = {value}: weights must be finite and not negative; change it, {remedy}")
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


def _check_contraction(matrices: Sequence[sparse.csr_array]) -> None:
    """Refuse doubly stochastic matrices whose product P over a period has ||P - 11'/n|| = 1.

    The norm is below 1 if and only if P'P is irreducible. This depends on the pattern of zeros alone, and implies that
    P is primitive.
    """
    patterns = [W > 0 for W in matrices]
    if all(pattern.diagonal().all() for pattern in patterns):
        # With positive diagonals, the product connects the same nodes as the union of the links. The union stays sparse
        # where the product would fill up.
        product = reduce(lambda a, b: a + b, patterns)
    else:
        product = reduce(lambda done, pattern: pattern @ done, patterns)
    if csgraph.connected_components(sparse.block_array([[None, product], [product.T, None]]))[0] == 1:
        return
    what = "the network" if len(matrices) == 1 else f"the product of the {len(matrices)} matrices of the sequence"
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


def _one_way(pattern: sparse.csr_array) -> bool:
    return bool(((pattern > 0) != (pattern > 0).T).nnz)


def _disagreement(matrices: Sequence[sparse.csr_array], dense: bool) -> float:
    """||P - 11'/n||_2 for the product P over a period."""
    n = matrices[0].shape[0]
    if dense:
        product = reduce(lambda done, W: W @ done, matrices, np.eye(n))
        return float(np.linalg.norm(product - 1 / n, 2))
    chain = [*matrices, *(W.T.tocsr() for W in reversed(matrices))]

    def apply(v: Floats) -> Floats:
        return _centred(reduce(lambda v, W: W @ v, chain, _centred(v)))

    try:
        return float(np.sqrt(_largest_eigenvalue(apply, n)))
    except ArpackNoConvergence:
        # Many eigenvalues lie close to 1, as for long rings. Such graphs are cheap to factorise, so use shift-invert.
        P = reduce(lambda done, W: W @ done, matrices)
        twin = sparse.block_array([[None, P], [P.T, None]], format="csc")
        _check_factors(twin)
        return float(eigsh(twin, k=2, sigma=1 + 1e-7, v0=_start(2 * n), return_eigenvectors=False).min())


def _smallest_eigenvalue(W: sparse.csr_array, dense: bool) -> float:
    if dense:
        return float(np.linalg.eigvalsh(W.toarray())[0])
    try:
        return 1 - _largest_eigenvalue(lambda v: v - W @ v, W.shape[0])
    except ArpackNoConvergence:
        _check_factors(W)
        bound = 2 * W.diagonal().min() - 1  # Gershgorin
        return float(eigsh(W.tocsc(), k=1, sigma=bound - 1e-7, v0=_start(W.shape[0]), return_eigenvectors=False)[0])


def _check_factors(W: sparse.csr_array) -> None:
    """Refuse a symmetric pattern whose factors may not fit into memory, by its bandwidth in a good order."""
    place = np.argsort(csgraph.reverse_cuthill_mckee(sparse.csr_array(W), symmetric_mode=True))
    row, column = W.nonzero()
    size = 16 * W.shape[0] * int(abs(place[row] - place[column]).max())
    require_memory(f"the spectrum of W with {W.shape[0]:,} rows", size, "use fewer nodes, or a graph of fewer links")


def _largest_eigenvalue(apply: Callable[[Floats], Floats], n: int) -> float:
    """The largest eigenvalue of a positive semidefinite operator, with at most a few thousand applications of it."""
    start = apply(_start(n))
    if np.linalg.norm(start) < 1e-20:  # Lanczos cannot start from the zero operator
        return 0.0
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, maxiter=100, tol=1e-12, return_eigenvectors=False)[0])


def _start(n: int) -> Floats:
    return np.random.default_rng(0).standard_normal(n)


def _centred(v: Floats) -> Floats:
    return v - float(v.mean())
