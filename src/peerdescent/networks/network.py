"""The weight matrix W of a communication network, its spectral properties, and what may go wrong on its links.

A `Network` is a graph with a weight rule, or a weight matrix. It is checked at construction against the paper's
Assumption 3: W is primitive and doubly stochastic, so lam = ||W - 11'/n|| is below 1 and mixing contracts towards the
mean. Only weights of the rule "push-pull" are not, and methods that need them to be refuse those. W is stored sparse,
with one entry per link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from peerdescent.errors import require, require_memory, unknown, whole
from peerdescent.networks import topology
from peerdescent.networks.faults import Fault, parse, source
from peerdescent.networks.random_graphs import RULES as RANDOM_RULES
from peerdescent.networks.random_graphs import RandomGraph
from peerdescent.networks.rounds import GRAPH, Rounds, by_link, matrix

RULES = ("lazy", "metropolis", "equal", "push-pull")
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
            - a sequence of those on the same nodes, for a time-varying network: W_t = matrices[t % period];
            - a random graph such as `topology.random_matching(20)`, which is drawn anew in every round.
        weights: The rule that gives a graph its weights; None for a matrix. With d_i the number of neighbours of i,
            and with the diagonal such that each row sums to 1:

            - "lazy": w_ij = 1 / (2 max(d_i, d_j)), for undirected graphs;
            - "metropolis": w_ij = 1 / (1 + max(d_i, d_j)), for undirected graphs;
            - "equal": w_ij = 1 / (1 + max d), for undirected graphs, and for directed graphs in which every node has
              as many incoming as outgoing edges;
            - "push-pull": for any strongly connected directed graph. `mix` has A, whose rows sum to 1, a_ij = 1 / (1 +
              edges into i), and `push` has B, whose columns do, b_ij = 1 / (1 + edges out of j);
            - None: "equal" for directed and for complete graphs, "metropolis" for random graphs, else "lazy". The first
              and the last are the paper's.
        faults: What goes wrong, such as `[peer.faults.drop(0.1)]`; see `peer.faults`.
        rounds: How many rounds of communication a `mix` has.
        accelerate: Whether these rounds are combined with Chebyshev's weights: z_{k+1} = (1 + c) W z_k - c z_{k-1},
            with c = (1 - r) / (1 + r) and r = sqrt(1 - lambda^2). For symmetric weights, with two rounds or more.

    Attributes:
        n: The number of nodes.
        name: The name of the topology.
        rule: The weight rule, or "given" for a matrix.
        matrices: One CSR matrix (n, n) for each step of the period, without faults, of a single round. Of a random
            graph, the mean of many draws.
        pushed: The matrix B of push-pull weights, else None.
        graph: The random graph, else None.
        faults: The faults that do anything.
        rounds: The rounds of a `mix`.
        momentum: The number c of accelerated rounds, else 0.

    >>> from peerdescent import topology
    >>> Network(topology.exponential(20))
    Network(exponential, n=20, lazy weights, lam=0.750)
    >>> Network([[0.75, 0.25], [0.25, 0.75]]).lam
    0.5
    >>> Network(topology.one_peer_exponential(16))
    Network(one-peer-exponential, n=16, period=4, equal weights, lam=0.000)
    >>> from peerdescent.networks import faults
    >>> Network(topology.exponential(20), faults=[faults.drop(0.1)])
    Network(exponential, n=20, lazy weights, drop=0.1, lam=0.777)
    """

    n: int
    name: str
    rule: str
    matrices: tuple[sparse.csr_array, ...]
    pushed: sparse.csr_array | None
    graph: RandomGraph | None
    faults: tuple[Fault, ...]
    rounds: int
    momentum: float

    def __init__(
        self,
        graph: Any,
        weights: str | None = None,
        *,
        faults: Iterable[Fault] = (),
        rounds: int = 1,
        accelerate: bool = False,
    ) -> None:
        random, pushed = None, None
        if isinstance(graph, RandomGraph):
            random = _ruled(graph, weights)
            names, rules, matrices = (graph.name,), (random.rule,), (_mean(random),)
        else:
            graphs = _sequence(graph)
            nodes = next((_order(g) for g in graphs if isinstance(g, nx.Graph)), [])
            built = [_weigh(g, nodes, weights) if isinstance(g, nx.Graph) else _given(g, weights) for g in graphs]
            names, rules, matrices = zip(*built, strict=True)
            if "push-pull" in rules:
                require(len(graphs) == 1, "push-pull weights of a sequence: give one graph")
                pushed = _pushed(matrices[0])
        sizes = [W.shape[0] for W in matrices]
        require(len(set(sizes)) == 1, f"the matrices of a sequence have {sizes} nodes: give all the same number")
        if pushed is None:
            _check_contraction(matrices)
        else:
            _check_strongly_connected(matrices[0], names[0])
        for W in (*matrices, *([] if pushed is None else [pushed])):
            for part in (W.data, W.indices, W.indptr):
                part.flags.writeable = False
        self.__dict__.update(
            n=sizes[0],
            name=names[0] if len(set(names)) == 1 else "sequence",
            rule=rules[0] if len(set(rules)) == 1 else "mixed",
            matrices=matrices,
            pushed=pushed,
            graph=random,
            faults=(),
            rounds=whole("rounds", rounds, 1),
            momentum=0.0,
        )
        if accelerate:
            require(self.rounds > 1, f"accelerate with rounds = {self.rounds}: give two rounds or more")
            good = self.is_static and self.is_symmetric
            require(good, f"accelerate needs symmetric weights that stay; {self.name} has others: leave it out")
            root = math.sqrt(1 - min(_disagreement(self.matrices, dense=self.n <= DENSE_UP_TO), 1.0) ** 2)
            self.__dict__["momentum"] = (1 - root) / (1 + root)
        self.__dict__["faults"] = self._checked(faults)

    def _checked(self, faults: Iterable[Fault]) -> tuple[Fault, ...]:
        """The faults that do anything, if the network can have them."""
        listed: list[Any] = [faults] if isinstance(faults, Fault | str | type) else list(faults)
        for fault in listed:
            require(
                isinstance(fault, Fault), f"{fault!r} is no fault: give faults=[peer.faults.drop(0.1)] or others there"
            )
            require(
                not fault.balanced or self.pushed is not None or self.is_symmetric,
                f"{fault} cuts links in both directions, and W of {self.name} is not symmetric, so its columns would "
                "no longer sum to 1: use an undirected graph, drop(..., one_way=True), or push-pull weights",
            )
            require(
                fault.moments is not None or self.pushed is None,
                f"{fault} on push-pull weights: a message of push that is lost is lost for ever; use drop without "
                "one_way, where the sender keeps it",
            )
        sizes = [str(fault) for fault in listed if fault.size(1, 1) is not None]
        require(len(sizes) < 2, f"{' and '.join(sizes)} compress every message: give one of them")
        return tuple(fault for fault in listed if not fault.is_nothing)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name}: a Network is immutable, build another one")

    def __repr__(self) -> str:
        period = f"period={self.period}, " if self.period > 1 else ""
        lam = f"{self.lam:.3f}" if self.gap > 5e-4 else f"1-{self.gap:.1e}"
        several = f"{self.rounds} {'accelerated ' if self.momentum else ''}rounds, " if self.rounds > 1 else ""
        faults = "".join(f"{fault}, " for fault in self.faults)
        kind = "" if self.graph is None else "".join(f"{part}, " for part in self.graph.about)
        return f"Network({self.name}, n={self.n}, {period}{kind}{self.rule} weights, {several}{faults}lam={lam})"

    @property
    def period(self) -> int:
        """The number of matrices, which are used cyclically; 1 for a static network."""
        return len(self.matrices)

    @property
    def is_static(self) -> bool:
        """Whether the weights are the same at every step, but for faults."""
        return self.period == 1 and self.graph is None

    @property
    def is_plain(self) -> bool:
        """Whether a `mix` is one product with a known, doubly stochastic W: no faults, one round, nothing drawn."""
        return self.rounds == 1 and not self.faults and self.graph is None and self.pushed is None

    def message_bytes(self, entries: int, item: int) -> float:
        """The bytes of a message of so many entries of `item` bytes, which a fault may have compressed."""
        sizes = [size for fault in self.faults if (size := fault.size(entries, item)) is not None]
        return sizes[0] if sizes else entries * item

    @cached_property
    def links(self) -> Rounds:
        """The links, and all that may happen on them in a round."""
        every = [*self.matrices, *([] if self.pushed is None else [self.pushed])]
        union = sparse.triu(sum(every[1:], every[0]) + sum(W.T for W in every), k=1).tocoo()
        ends = np.stack([union.row, union.col], axis=1).astype(np.int32)
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        pushed = None if self.pushed is None else by_link([self.pushed], ends)
        return Rounds(ends, by_link(self.matrices, ends), pushed, self.n, self.faults, self.graph)

    @cached_property
    def W(self) -> Floats:
        """The weights as a dense array, (n, n), or (period, n, n) for a sequence."""
        dense = np.stack([W.toarray() for W in self.matrices])
        dense.flags.writeable = False
        return dense if self.period > 1 else dense[0]

    @property
    def arrays(self) -> list[tuple[Any, Any, Any]]:
        """The arrays behind all matrices, for a checksum."""
        own: list[Any] = [(W.indptr, W.indices, W.data) for W in self.matrices]
        if not self.is_plain:
            about = repr((self.graph, self.faults, self.rounds, self.momentum, self.rule))
            own.append(np.frombuffer(about.encode(), np.uint8))
        return own

    @property
    def lam(self) -> float:
        """The paper's lambda, ||W - 11'/n||_2 in [0, 1): one mixing multiplies disagreement by at most this.

        For a sequence, the rate per step: ||W_{period-1} ... W_0 - 11'/n||_2 to the power 1 / period. With faults or
        random graphs, the root of the largest eigenvalue of E[W_t' W_t] on the vectors of mean zero: the expected
        square of the disagreement falls by at least this factor. With push-pull weights, the largest modulus of an
        eigenvalue of A or B besides 1: the rate in the long run; if links fail there, that of E[A_t' A_t] as above.
        """
        return self._contraction[0]

    @property
    def lam_interval(self) -> tuple[float, float] | None:
        """An interval of 95 % for `lam`, where that is estimated from draws; None where it is exact."""
        return self._contraction[1]

    @cached_property
    def _contraction(self) -> tuple[float, tuple[float, float] | None]:
        if self.pushed is not None and all(fault.moments == (1.0, 1.0) for fault in self.faults):
            each = [np.sort(np.abs(np.linalg.eigvals(W.toarray()))) for W in (self.matrices[0], self.pushed)]
            return (max(float(found[-2]) for found in each) ** self.rounds if self.n > 1 else 0.0), None
        moments = [fault.moments for fault in self.faults if fault.moments != (1.0, 1.0)]
        known = None not in moments and self.rounds == 1 and self.is_static and self.pushed is None
        if self.graph is not None or (moments and not known):
            return _estimated(self)
        if moments:
            up, both = (math.prod(m[k] for m in moments if m is not None) for k in range(2))
            square = _expected_square(self.matrices[0], up, both)
            return (math.sqrt(square) if square > ROUNDING else 0.0), None
        left = _disagreement(self._mixed, dense=self.n <= DENSE_UP_TO)
        return (float(left ** (1 / self.period)) if left > ROUNDING else 0.0), None

    @cached_property
    def _mixed(self) -> tuple[sparse.csr_array, ...]:
        """The matrix of all rounds of a `mix`, for each step of the period."""
        return tuple(_several(W, self.rounds, self.momentum) for W in self.matrices)

    @property
    def gap(self) -> float:
        """The spectral gap 1 - lam in (0, 1]."""
        return 1 - self.lam

    @cached_property
    def examples(self) -> tuple[sparse.csr_array, ...]:
        """The matrices to draw: those of the period, or three draws of a random graph."""
        if self.graph is None:
            return self.matrices
        nodes, ends = self.n, np.stack(np.triu_indices(self.n, 1), axis=1)
        links = Rounds(ends, np.zeros((1, len(ends), 2)), None, nodes, (), self.graph)
        drawn = [matrix(links, links.at(np, 0, t, ()).weights(0)[1]) for t in range(3)]
        return tuple(sparse.csr_array(W) for W in drawn)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the other nodes it receives from at some step of the period."""
        union = sum(self.matrices[1:], self.matrices[0])
        rows = np.split(union.indices, union.indptr[1:-1])
        return tuple(tuple(sorted(j for j in row.tolist() if j != i)) for i, row in enumerate(rows))

    @cached_property
    def degree(self) -> NDArray[Any]:
        """The out-degree: how many other nodes each node sends to, (n,), or (period, n) for a sequence.

        Of a random graph, its mean; without faults.
        """
        if self.graph is not None:
            return np.full(self.n, self.graph.degrees)
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
        return min(_smallest_eigenvalue(W, dense=self.n <= DENSE_UP_TO) for W in self._mixed)


def described(
    name: str,
    nodes: int,
    weights: str | None = None,
    fault: Sequence[str] = (),
    rounds: int = 1,
    accelerate: bool = False,
) -> Network:
    """The network that words describe, as the command line and its TOML files have them.

    >>> described("ring", 8, fault=["drop=0.1", "noise=0.01"])
    Network(ring, n=8, lazy weights, drop=0.1, noise=0.01, lam=0.872)
    """
    faults = [parse(text) for text in fault]
    return Network(topology.build(name, nodes), weights, faults=faults, rounds=rounds, accelerate=accelerate)


def _ruled(graph: RandomGraph, rule: str | None) -> RandomGraph:
    if rule is not None and rule not in RANDOM_RULES:
        raise unknown("weight rule of a random graph", rule, RANDOM_RULES)
    return graph if rule is None else replace(graph, rule=rule)


def _mean(graph: RandomGraph, draws: int = 200) -> sparse.csr_array:
    """The mean of W over draws. All pairs of nodes are alike, so they share one weight."""
    n = graph.n
    ends = np.stack(np.triu_indices(n, 1), axis=1)
    if n == 1:
        return sparse.csr_array(np.ones((1, 1)))
    draws = max(10, min(draws, 10**7 // n**2))
    weight = float(np.mean([graph.weights(source(np, 0, t, GRAPH, 0), ends).mean() for t in range(draws)]))
    weight = max(weight, graph.degrees / n**2)  # where edges are so rare that none was drawn
    W = np.full((n, n), weight)
    np.fill_diagonal(W, 1 - weight * (n - 1))
    return sparse.csr_array(W)


def _pushed(A: sparse.csr_array) -> sparse.csr_array:
    """B on the links of A, its own included: each node divides what it sends evenly."""
    B = A.copy()
    B.data = 1 / np.bincount(A.indices, minlength=A.shape[0])[A.indices]
    return B


def _check_strongly_connected(W: sparse.csr_array, name: str) -> None:
    count, group = csgraph.connected_components(W, directed=True, connection="strong")
    other = int(np.argmax(group != group[0]))
    require(
        count == 1,
        f"{name} is not strongly connected: there is no way from node 0 to node {other} and back ({count} parts); add "
        "edges",
    )


def _several(W: sparse.csr_array, rounds: int, momentum: float) -> sparse.csr_array:
    """The matrix of several rounds."""
    before = now = sparse.eye_array(W.shape[0], format="csr")
    for _ in range(rounds):
        before, now = now, (1 + momentum) * (W @ now) - momentum * before
    return W if rounds == 1 else sparse.csr_array(now)


def _expected_square(W: sparse.csr_array, up: float, both: float) -> float:
    """The largest eigenvalue of E[W_t' W_t] on the vectors of mean zero, if links of a symmetric W fail.

    A link is up with probability `up`, and two links of one node are both up with probability `both`. With L_e the
    Laplacian of a link e, W_t = I - sum_e b_e w_e L_e. The product of two Laplacians is zero unless their links share a
    node, and L_e^2 = 2 L_e.
    """
    n = W.shape[0]
    M = sparse.csr_array(sparse.eye_array(n) - W)
    off = W - sparse.diags_array(W.diagonal())
    squares = off.multiply(off)
    D = sparse.csr_array(sparse.diags_array(squares.sum(axis=1)) - squares)  # the sum of w_e^2 L_e
    if n <= DENSE_UP_TO:
        M, D = M.toarray(), D.toarray()
        E = np.eye(n) - 2 * up * M + both * (M @ M) + 2 * (up - both) * D
        return float(np.linalg.eigvalsh(E - 1 / n)[-1])

    def apply(v: Floats) -> Floats:
        v = _centred(v)
        once = M @ v
        return _centred(v - 2 * up * once + both * (M @ once) + 2 * (up - both) * (D @ v))

    return _largest_eigenvalue(apply, n)


def _estimated(network: Network) -> tuple[float, tuple[float, float]]:
    """The root of the largest eigenvalue of the mean of P' (I - J) P over draws, and an interval of 95 %.

    P is the product of all rounds of a period, and the root is taken for one step.
    """
    n, links = network.n, network.links
    require_memory(f"draws of W with {n:,} nodes", 64 * n**2, "use fewer nodes")
    draws, found = max(20, min(1000, 10**8 // n**3)), []
    for seed in range(draws):
        # Iterations of different runs, so that draws are independent also where links remember.
        memory, product = links.begin(np, seed), np.eye(n)
        for t in range(1, 1 + network.period):  # in iteration 0 all are awake
            memory = links.later(np, seed, t, memory)
            happens = links.at(np, seed, t, memory)
            before = now = product
            for number in range(network.rounds):
                W = matrix(links, happens.weights(number)[1])
                before, now = now, (1 + network.momentum) * (W @ now) - network.momentum * before
            product = now
        found.append(product - product.mean(axis=0))
    # The eigenvector is of the first half, and its value is measured on the other: the largest eigenvalue of a mean of
    # few draws would be too large.
    half = draws // 2
    mean = sum(P.T @ P for P in found[:half]) / half
    worst = np.linalg.eigh(mean - mean.mean(axis=0) - mean.mean(axis=1)[:, None] + mean.mean())[1][:, -1]
    each = np.array([np.sum((P @ worst) ** 2) for P in found[half:]])
    error = 1.96 * each.std(ddof=1) / math.sqrt(len(each))
    power = 1 / (2 * network.period)
    low, value, high = (max(float(each.mean()) + side * error, 0.0) ** power for side in (-1, 0, 1))
    return value, (low, high)


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
