"""The communication network: its weight matrix W, and what may go wrong on its links.

A `Network` is a graph with a weight rule, or a weight matrix. It is checked at construction against
the paper's Assumption 3: W is primitive and doubly stochastic, so lam = ||W - 11'/n|| is below 1
and mixing contracts towards the mean. Only weights of the rule "push-pull" are not, and methods
that need them to be refuse those. W is stored sparse, with one entry per link.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from peerdescent.digests import fingerprint, is_library
from peerdescent.errors import check_fields, require, whole
from peerdescent.networks import spectra, topology, weighing
from peerdescent.networks.faults import Fault, parse
from peerdescent.networks.random_graphs import RandomGraph
from peerdescent.networks.rounds import Rounds, by_link, matrix

DRAWN = 1000
"""The most weights of a network that a notebook draws; more are a large picture of little use."""

Floats = NDArray[np.float64]


class Network:
    """A communication network: a graph and its weight matrix W. Immutable.

    Mixing is `mix(x)_i = sum_j w_ij x_j`, with w_ij > 0 where j sends to i. W must be doubly
    stochastic, and over one period the product P of the matrices must satisfy ||P - 11'/n|| < 1;
    other networks raise a ValueError.

    Args:
        graph: One of

            - a networkx graph, where an edge j -> i means that j sends to i. Self-loops and
              parallel edges are ignored, and edge weights are, with a warning. Nodes labelled 0..n-1 keep
              their numbers; others are numbered in the graph's order;
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
        nodes: The labels of the graph's nodes in the order of their numbers, such as `partition.names`; those of a
            problem with names, such as hospitals, must be in its order.
        faults: What goes wrong, such as `[peer.faults.drop(0.1)]`; see `peer.faults`.
        rounds: How many rounds of communication a `mix` has.
        accelerate: Whether these rounds are combined with Chebyshev's weights: z_{k+1} = (1 + c) W z_k - c z_{k-1},
            with c = (1 - r) / (1 + r) and r = sqrt(1 - lambda^2). For symmetric weights, with two rounds or more.

    Attributes:
        n: The number of nodes.
        name: The name of the topology.
        rule: The weight rule, or "given" for a matrix.
        matrices: One CSR matrix (n, n) for each step of the period, without faults, of a single
            round. Of a random graph, the mean of many draws, from when the network was built.
        pushed: The matrix B of push-pull weights, else None.
        graph: The random graph, else None.
        rounds: The rounds of a `mix`.
        momentum: The number c of accelerated rounds, else 0.
        names: What the graph calls its nodes; empty if these are numbers from 0 on, or a matrix.

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
    rounds: int
    momentum: float
    names: tuple[Any, ...]

    def __init__(
        self,
        graph: Any,
        weights: str | None = None,
        *,
        nodes: Sequence[Any] | None = None,
        faults: Iterable[Fault] = (),
        rounds: int = 1,
        accelerate: bool = False,
    ) -> None:
        random, pushed, names = None, None, ()
        if isinstance(graph, RandomGraph):
            check_fields(graph, "random graph")
            random = weighing.ruled(graph, weights)
            titles, rules, matrices = (graph.name,), (random.rule,), (weighing.mean(random),)
        else:
            graphs = weighing.sequence(graph)
            plain = [g for g in graphs if isinstance(g, nx.Graph)]
            weights_given = (
                weight for g in plain for *_, weight in g.edges(data="weight", default=1)
            )
            if not all(np.array_equal(weight, 1) for weight in weights_given):
                warnings.warn(
                    "edge weights of the graph are not used, since a rule weighs it: give a matrix, "
                    "as in peer.Network(W), which is taken as it is",
                    stacklevel=2,
                )
            order = next((weighing.order(g, nodes) for g in plain), [])
            names = () if order == list(range(len(order))) else tuple(order)
            built = [
                weighing.weigh(g, order, weights)
                if isinstance(g, nx.Graph)
                else weighing.given(g, weights)
                for g in graphs
            ]
            titles, rules, matrices = zip(*built, strict=True)
            if "push-pull" in rules:
                require(len(graphs) == 1, "push-pull weights of a sequence: give one graph")
                pushed = weighing.pushed(matrices[0])
        sizes = [W.shape[0] for W in matrices]
        require(
            len(set(sizes)) == 1,
            f"the matrices of a sequence have {sizes} nodes: give all the same number",
        )
        if pushed is None:
            weighing.check_contraction(matrices)
        else:
            weighing.check_strongly_connected(matrices[0], titles[0])
        for W in (*matrices, *([] if pushed is None else [pushed])):
            for part in (W.data, W.indices, W.indptr):
                part.flags.writeable = False
        self.__dict__.update(
            n=sizes[0],
            name=titles[0] if len(set(titles)) == 1 else "sequence",
            rule=rules[0] if len(set(rules)) == 1 else "mixed",
            matrices=matrices,
            pushed=pushed,
            graph=random,
            _faults=(),
            rounds=whole("rounds", rounds, 1),
            momentum=0.0,
            names=names,
        )
        if accelerate:
            require(
                self.rounds > 1,
                f"accelerate=True with rounds = {self.rounds}: give two rounds or more",
            )
            good = self.is_static and self.is_symmetric
            require(
                good,
                f"accelerate=True needs symmetric weights that stay; {self.name} has others: leave it out",
            )
            root = math.sqrt(1 - min(spectra.disagreement(self.matrices), 1.0) ** 2)
            self.__dict__["momentum"] = (1 - root) / (1 + root)
        self.__dict__["_faults"] = self._checked(faults)

    def _checked(self, faults: Iterable[Fault]) -> tuple[Fault, ...]:
        """The faults, if the network can have them."""
        listed: list[Any] = [faults] if isinstance(faults, Fault | str | type) else list(faults)
        for fault in listed:
            require(
                isinstance(fault, Fault),
                f"{fault!r} is no fault: give faults=[peer.faults.drop(0.1)] or others there",
            )
            check_fields(fault, "fault")
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
        return tuple(listed)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name}: a Network is immutable, build another one")

    def __repr__(self) -> str:
        period = f"period={self.period}, " if self.period > 1 else ""
        lam = f"{self.lam:.3f}" if self.gap > 5e-4 else f"1-{self.gap:.1e}"
        several = (
            f"{self.rounds} {'accelerated ' if self.momentum else ''}rounds, "
            if self.rounds > 1
            else ""
        )
        faults = "".join(f"{fault}, " for fault in self.faults)
        kind = "" if self.graph is None else "".join(f"{part}, " for part in self.graph.about)
        return f"Network({self.name}, n={self.n}, {period}{kind}{self.rule} weights, {several}{faults}lam={lam})"

    def _repr_svg_(self) -> str | None:
        if sum(W.nnz for W in self.examples) > DRAWN:
            return None
        figures = import_module("peerdescent.figures")  # of a higher layer, and slow to import
        picture = io.StringIO()
        figures.drawing(self).savefig(picture, format="svg")
        return picture.getvalue()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that do anything."""
        return tuple(fault for fault in self.__dict__["_faults"] if not fault.is_nothing)

    @property
    def _code(self) -> str:
        """A checksum of a user's own faults and random graph and what they read; else empty."""
        own = [one for one in (self.graph, *self.faults) if not is_library(type(one))]
        return fingerprint(*own) if own else ""

    @property
    def period(self) -> int:
        """The number of matrices, which are used cyclically; 1 for a static network."""
        return len(self.matrices)

    @property
    def is_static(self) -> bool:
        """Whether the weights are the same at every step, but for faults."""
        return self.period == 1 and self.graph is None

    @property
    def is_known(self) -> bool:
        """True if a round is a product with a known W: no faults, nothing drawn."""
        return not self.faults and self.graph is None and self.pushed is None

    @property
    def is_plain(self) -> bool:
        """Whether a `mix` is one such round."""
        return self.is_known and self.rounds == 1

    def message_bytes(self, entries: int, item: int) -> float:
        """The bytes of a message of `entries` numbers of `item` bytes, compressed by faults."""
        sizes = [size for fault in self.faults if (size := fault.size(entries, item)) is not None]
        return sizes[0] if sizes else entries * item

    @property
    def links(self) -> Rounds:
        """The links, and all that may happen on them in a round, by a user's code as it is now."""
        return replace(self._links, faults=self.faults, code=self._code)

    @cached_property
    def _links(self) -> Rounds:
        every = [*self.matrices, *([] if self.pushed is None else [self.pushed])]
        union = sparse.triu(sum(every[1:], every[0]) + sum(W.T for W in every), k=1).tocoo()
        ends = np.stack([union.row, union.col], axis=1).astype(np.int32)
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        pushed = None if self.pushed is None else by_link([self.pushed], ends)
        return Rounds(ends, by_link(self.matrices, ends), pushed, self.n, (), self.graph)

    @cached_property
    def W(self) -> Floats:
        """The weights as a dense array, (n, n), or (period, n, n) for a sequence."""
        dense = np.stack([W.toarray() for W in self.matrices])
        dense.flags.writeable = False
        return dense if self.period > 1 else dense[0]

    def among(self, nodes: Sequence[int]) -> Network:
        """The network of some nodes, in this order, over their links, with Metropolis weights.

        >>> from peerdescent import topology
        >>> Network(topology.ring(5)).among([4, 0, 1]).W.round(3).tolist()
        [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
        """
        require(
            self.is_known and not self.is_directed and self.period == 1,
            f"{self}: only a network that is undirected and the same in every round can lose nodes",
        )
        if list(nodes) == list(range(self.n)):
            return self
        place = {int(node): k for k, node in enumerate(nodes)}
        graph = nx.Graph(name=f"{self.name}, {len(nodes)} of {self.n} nodes")
        graph.add_nodes_from(range(len(nodes)))
        graph.add_edges_from(
            (place[a], place[b]) for a, b in self.links.ends.tolist() if a in place and b in place
        )
        parts = [sorted(int(nodes[k]) for k in part) for part in nx.connected_components(graph)]
        require(
            len(parts) == 1,
            f"nodes {' and '.join(map(str, parts))} are left, which no link joins: link more nodes",
        )
        if len(nodes) == 1:
            return Network([[1.0]])
        return Network(graph, "metropolis", rounds=self.rounds, accelerate=self.momentum > 0)

    @property
    def arrays(self) -> list[tuple[Any, Any, Any]]:
        """The arrays behind all matrices, for a checksum."""
        own: list[Any] = [(W.indptr, W.indices, W.data) for W in self.matrices]
        if not self.is_plain:
            about = repr((self.graph, self.faults, self.rounds, self.momentum, self.rule))
            own.append(np.frombuffer((about + self._code).encode(), np.uint8))
        return own

    @property
    def lam(self) -> float:
        """lambda = ||W - 11'/n||_2 in [0, 1): one mixing multiplies disagreement by at most this.

        For a sequence, the rate per step: ||W_{period-1} ... W_0 - 11'/n||_2 to the power 1 /
        period. With faults or random graphs, the root of the largest eigenvalue of E[W_t' W_t] on
        the vectors of mean zero: the expected square of the disagreement falls by at least this
        factor. With push-pull weights, the largest modulus of an eigenvalue of A or B besides 1:
        the rate in the long run; if links fail there, that of E[A_t' A_t] as above.
        """
        return self._contraction[0]

    @property
    def lam_interval(self) -> tuple[float, float] | None:
        """A 95 % interval for `lam` where it is estimated from draws; None where it is exact."""
        return self._contraction[1]

    @property
    def _contraction(self) -> tuple[float, tuple[float, float] | None]:
        known, code = self.__dict__.setdefault("_contractions", {}), self._code
        if code not in known:
            known[code] = self._contracted()
        return known[code]

    def _contracted(self) -> tuple[float, tuple[float, float] | None]:
        if self.pushed is not None and all(fault.moments == (1.0, 1.0) for fault in self.faults):
            each = [
                np.sort(np.abs(np.linalg.eigvals(W.toarray())))
                for W in (self.matrices[0], self.pushed)
            ]
            return (
                max(float(found[-2]) for found in each) ** self.rounds if self.n > 1 else 0.0
            ), None
        moments = [fault.moments for fault in self.faults if fault.moments != (1.0, 1.0)]
        known = None not in moments and self.rounds == 1 and self.is_static and self.pushed is None
        if self.graph is not None or (moments and not known):
            return spectra.estimated(self.links, self.period, self.rounds, self.momentum)
        if moments:
            up, both = (math.prod(m[k] for m in moments if m is not None) for k in range(2))
            square = spectra.expected_square(self.matrices[0], up, both)
            return (math.sqrt(square) if square > spectra.ROUNDING else 0.0), None
        left = spectra.disagreement(self._mixed)
        return (float(left ** (1 / self.period)) if left > spectra.ROUNDING else 0.0), None

    @cached_property
    def _mixed(self) -> tuple[sparse.csr_array, ...]:
        """The matrix of all rounds of a `mix`, for each step of the period."""
        return tuple(spectra.several(W, self.rounds, self.momentum) for W in self.matrices)

    @property
    def gap(self) -> float:
        """The spectral gap 1 - lam in (0, 1]."""
        return 1 - self.lam

    @property
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

    @property
    def degree(self) -> NDArray[Any]:
        """The out-degrees: how many others each node sends to, (n,); (period, n) for a sequence.

        Of a random graph, its mean; without faults.
        """
        if self.graph is not None:
            return np.full(self.n, self.graph.degrees)
        degrees = np.stack(
            [np.bincount(W.indices, minlength=self.n) - (W.diagonal() > 0) for W in self.matrices]
        )
        degrees.flags.writeable = False
        return degrees if self.period > 1 else degrees[0]

    @cached_property
    def is_directed(self) -> bool:
        """Whether at some step a node sends to another that does not send back."""
        return any(weighing.one_way(W) for W in self.matrices)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every matrix equals its transpose, to 1e-12."""
        return all(abs(W - W.T).max() <= spectra.ROUNDING for W in self.matrices)

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue of symmetric weights, over the period for a sequence."""
        require(
            self.is_symmetric,
            f"smallest_eigenvalue needs symmetric weights, and those of {self.name} are not: use an undirected graph",
        )
        return min(spectra.smallest_eigenvalue(W) for W in self._mixed)


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
    return Network(
        topology.build(name, nodes), weights, faults=faults, rounds=rounds, accelerate=accelerate
    )
