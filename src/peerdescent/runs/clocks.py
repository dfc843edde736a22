"""Clocks: how long a run would take on machines and links of given speeds, in simulated seconds.

A clock counts what a method does, iteration by iteration, over the links that really carried
messages, and needs no iterates. So it may be applied to a run that is finished, and any number of
clocks to the same run.
"""

from __future__ import annotations

import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerdescent.engines.outline import definition
from peerdescent.errors import require, unknown
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import check, check_seed, matrix_precision
from peerdescent.runs.costs import message_size
from peerdescent.runs.hand import Hand
from peerdescent.threefry import Draw

if TYPE_CHECKING:
    from peerdescent.runs.trace import Trace


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _by_node(name: str, value: Any) -> Any:
    """Seconds, one for all nodes or a tuple of one a node; checked."""
    remedy = "give a number, or a list of one a node"
    if name == "compute":
        remedy += ", or peer.clocks.exponential(mean) or lognormal(median, sigma)"
    value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    listed = not isinstance(value, str | Mapping) and isinstance(value, Iterable)
    numbers = list(value) if listed else [value]
    for number in numbers:
        good = _is_number(number) and 0 <= number < math.inf
        require(good, f"{name} = {number!r}: must be a finite number of at least 0; {remedy}")
    require(bool(numbers), f"{name} is an empty list: {remedy}")
    return tuple(map(float, numbers)) if listed else float(value)


def _by_link(name: str, value: Any, positive: bool = False) -> Any:
    """A number, an array (n, n) or a dictionary of pairs; checked."""
    rule = (
        "must be above 0 (infinite: no limit)"
        if positive
        else "must be a finite number of at least 0"
    )
    remedy = "give a number, an array (n, n), or a mapping of pairs of nodes to numbers"

    def good(number: Any) -> bool:
        return _is_number(number) and (number > 0 if positive else 0 <= number < math.inf)

    if isinstance(value, Mapping):
        for pair, number in value.items():
            two = (
                isinstance(pair, tuple)
                and len(pair) == 2
                and all(isinstance(node, Integral) for node in pair)
            )
            require(two, f"{name} of {pair!r}: must be of a pair of nodes, as in {{(0, 1): 0.01}}")
            require(good(number), f"{name} of {pair!r} = {number!r}: {rule}")
        return {(int(i), int(j)): float(number) for (i, j), number in value.items()}
    if _is_number(value):
        require(good(value), f"{name} = {value!r}: {rule}; {remedy}")
        return float(value)
    try:
        array = np.array(value)
    except ValueError:
        array = np.array(None)
    form = array.ndim == 2 and array.shape[0] == array.shape[1] and array.dtype.kind in "iuf"
    shown = f"of shape {array.shape}" if array.ndim else f"= {value!r}"
    require(form, f"{name} {shown}: {remedy}")
    array = array.astype(float)
    bad = ~(array > 0 if positive else np.isfinite(array) & (array >= 0))
    np.fill_diagonal(bad, False)  # a node sends nothing to itself
    if bad.any():
        row, column = (int(k) for k in np.argwhere(bad)[0])
        raise ValueError(f"{name}[{row}, {column}] = {array[row, column]:g}: {rule}")
    array.flags.writeable = False
    return array


class Distribution(ABC):
    """Computing times that are drawn anew for each node and iteration, from (seed, t, node)."""

    @staticmethod
    @abstractmethod
    def drawn(draw: Draw, nodes: int, *numbers: Any) -> Any:
        """The seconds that a gradient takes at each node (n,); the numbers are its fields, of each node (n,)."""

    def _check(self, name: str) -> None:
        object.__setattr__(
            self, name, _by_node(f"{name} of {type(self).__name__}", getattr(self, name))
        )

    def __str__(self) -> str:
        values = (_text(getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(values)})"


@dataclass(frozen=True)
class exponential(Distribution):
    """Exponential times of a given mean, in seconds: one for all nodes, or a list of one a node."""

    mean: float | Sequence[float]

    def __post_init__(self) -> None:
        self._check("mean")

    @staticmethod
    def drawn(draw: Draw, nodes: int, *numbers: Any) -> Any:
        """-mean log u."""
        (mean,) = numbers
        return -mean * draw.xp.log(draw.uniform(nodes, "float64"))


@dataclass(frozen=True)
class lognormal(Distribution):
    """Log-normal times, median * exp(sigma * z) with z standard Gaussian: now and then a node is much slower.

    Either is one number for all nodes, or a list of one a node.
    """

    median: float | Sequence[float]
    sigma: float | Sequence[float]

    def __post_init__(self) -> None:
        self._check("median")
        self._check("sigma")

    @staticmethod
    def drawn(draw: Draw, nodes: int, *numbers: Any) -> Any:
        """By Box and Muller."""
        median, sigma = numbers
        return median * draw.xp.exp(sigma * draw.normal(nodes, "float64"))


DISTRIBUTIONS: dict[str, Any] = {kind.__name__: kind for kind in (exponential, lognormal)}
"""The distributions by the names that files have."""


@dataclass(frozen=True, eq=False)
class Clock:
    """How fast machines and links are; made by `peer.clock`, which says what the fields mean."""

    compute: Any = 0.0
    latency: Any = 0.0
    bandwidth: Any = math.inf
    overlap: bool = False

    def __post_init__(self) -> None:
        checked = {
            "compute": self.compute
            if isinstance(self.compute, Distribution)
            else _by_node("compute", self.compute),
            "latency": _by_link("latency", self.latency),
            "bandwidth": _by_link("bandwidth", self.bandwidth, positive=True),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        require(
            isinstance(self.overlap, bool), f"overlap = {self.overlap!r}: must be true or false"
        )

    def __str__(self) -> str:
        """All that defines it."""
        names = [
            f"{name}={_text(getattr(self, name))}" for name in ("compute", "latency", "bandwidth")
        ]
        return " ".join([*names, *["overlap"] * self.overlap])

    def times(
        self,
        method: Method,
        problem: Problem,
        network: Network,
        steps: Any,
        seed: int = 0,
        itemsize: int = 4,
    ) -> np.ndarray:
        """The simulated seconds at given steps.

        Args:
            method: The method.
            problem: The problem.
            network: The network, with its faults.
            steps: The steps (k,), in any order. At step t all nodes hold x_t: the time is that at
                which the last node has finished iteration t - 1, and 0 at step 0.
            seed: The seed of the run.
            itemsize: The bytes of a number: 4 with precision 32, 8 with 64.

        Returns:
            The seconds (k,).

        >>> import peerdescent as peer
        >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
        >>> network, clock = peer.Network(peer.topology.ring(4)), peer.clock(compute=0.25, latency=1.0)
        >>> clock.times(peer.methods.dsgd(batch=2), problem, network, [0, 1, 10]).tolist()
        [0.0, 1.5, 15.0]
        """
        steps = np.asarray(steps)
        good = steps.ndim == 1 and (
            steps.size == 0 or (steps.dtype.kind in "iu" and bool((steps >= 0).all()))
        )
        require(good, f"steps = {steps!r}: must be a list of whole numbers of at least 0")
        hand = self.started(method, problem, network, seed, itemsize)
        found = {step: hand.at(step) for step in sorted(set(steps.tolist()))}
        return np.array([found[step] for step in steps.tolist()], float)

    def apply(self, trace: Trace, method: Method, problem: Problem, network: Network) -> Trace:
        """A trace with this clock in its column `clock`, in place of another, if it had one.

        The method, the problem and the network must be those of the trace.
        """
        identity = trace.identity
        own = {
            "method": str(method), "problem": problem.name, "network": str(network), "nodes": problem.nodes,
            "dimension": problem.dimension, **problem.facts, "computes": definition(method),
            "weights": digest(network.arrays),
        }  # fmt: skip
        for name, mine in own.items():
            theirs = (
                identity.facts[name] if name in identity.facts else getattr(identity, name, None)
            )
            require(
                mine == theirs,
                f"the trace is of another run: its {name} is {theirs!r}, and {mine!r} is given",
            )
        steps = trace.table["step"].to_numpy().astype(np.int64)
        itemsize = matrix_precision(identity.precision)[0].itemsize
        seconds = self.times(method, problem, network, steps, identity.seed, itemsize)
        return replace(
            trace,
            table=trace.table.assign(clock=seconds),
            identity=replace(identity, facts={**identity.facts, "clock": str(self)}),
        )

    def check(self, network: Network) -> None:
        """Refuse a network of which the clock does not know every node and link."""
        for values in self._numbers:
            known = np.size(values)
            require(
                np.ndim(values) == 0 or known == network.n,
                f"compute has {known} numbers, and the network {network.n} nodes: give one number, or one a node",
            )
        for name in ("latency", "bandwidth"):
            _of_links(name, getattr(self, name), network.links.ends, network.n)

    @property
    def _numbers(self) -> list[Any]:
        """The seconds a gradient, or the numbers of their distribution."""
        if not isinstance(self.compute, Distribution):
            return [self.compute]
        return [getattr(self.compute, each.name) for each in fields(self.compute)]  # type: ignore[arg-type]

    def started(
        self, method: Method, problem: Problem, network: Network, seed: int, itemsize: int
    ) -> Hand:
        """The hand of the clock at step 0 of a run, which `at` moves on."""
        check(method, problem, network)
        self.check(network)
        latency, bandwidth = (
            _of_links(name, getattr(self, name), network.links.ends, network.n)
            for name in ("latency", "bandwidth")
        )
        size = message_size(problem, network, itemsize)
        return Hand(
            type(self.compute) if isinstance(self.compute, Distribution) else None,
            [np.broadcast_to(np.asarray(number, float), network.n) for number in self._numbers],
            lambda message: latency + size(message) / bandwidth,
            self.overlap,
            method,
            problem,
            network,
            check_seed(seed),
        )


def clock(
    preset: str | None = None,
    *,
    compute: Any = None,
    latency: Any = None,
    bandwidth: Any = None,
    overlap: bool | None = None,
) -> Clock:
    """A clock that turns the counts of a run into simulated seconds.

    Node i begins an iteration when it has finished the one before. It does what the method does, in
    the method's own order. Gradients take their number times the node's seconds a gradient. In a
    round, a node that enters it at time s sends its messages at once, and each arrives latency +
    bytes / bandwidth later; a node leaves the round when it has entered it and all messages of that
    round to it have arrived. Links that are down carry nothing, and nobody waits for them or for
    messages that are lost. A node that sleeps does nothing, and its time stays. The time of a step
    is that of the last node to finish it.

    Args:
        preset: The name of one of `peer.clocks.CLOCKS`: "datacentre", "campus", "continent" or
            "phones". The other arguments replace its numbers.
        compute: Seconds that the gradient of one sample takes: a number, a list of one a node, or a
            distribution, `peer.clocks.exponential(mean)` or `peer.clocks.lognormal(median, sigma)`,
            drawn anew for each node and iteration. By default 0.
        latency: Seconds that every message takes, whatever its size: a number, an array (n, n)
            whose entry [i, j] is of messages from j to i, or a mapping of pairs (i, j) to numbers,
            where (i, j) stands for both directions unless (j, i) is there, too. By default 0.
        bandwidth: Bytes a second of a link, given as for `latency`. By default infinite.
        overlap: Whether a node computes the gradients of an iteration while its rounds go on: the
            iteration ends with the later of both. By default it does one after the other.

    Returns:
        The clock, for `peer.run(..., clock=clock)`, and for `clock.apply` on a run that is
        finished.

    >>> import peerdescent as peer
    >>> peer.clock("phones", overlap=True).latency
    0.06
    """
    given = {"compute": compute, "latency": latency, "bandwidth": bandwidth, "overlap": overlap}
    given = {name: value for name, value in given.items() if value is not None}
    require(
        preset is not None or bool(given.keys() - {"overlap"}),
        "a clock without numbers stands still: give compute, latency or bandwidth, or a preset, as in clock('campus')",
    )
    if preset is None:
        return Clock(**given)
    if not isinstance(preset, str) or preset not in CLOCKS:
        raise unknown("clock", preset, CLOCKS)
    return replace(CLOCKS[preset], **given)


CLOCKS: Mapping[str, Clock] = {
    "datacentre": Clock(compute=1e-4, latency=2.5e-4, bandwidth=1.25e9),
    "campus": Clock(compute=1e-3, latency=5e-4, bandwidth=1e8),
    "continent": Clock(compute=1e-3, latency=0.025, bandwidth=1.25e7),
    "phones": Clock(compute=lognormal(0.01, 0.5), latency=0.06, bandwidth=6.25e5),
}
"""The presets: orders of magnitude, not measurements of ours.

- datacentre: 2,000 round trips a second (J. Dean's "numbers every programmer should know"), so 0.25 ms one way, and
  Ethernet of 10 Gbit/s.
- campus: less than 1 ms to a machine nearby; Ethernet of 1 Gbit/s, which carries about 100 MB/s (the same list).
- continent: 36 to 56 ms to the other end of the United States and back (https://kel.bz/post/physical-latency/), so
  25 ms one way; 100 Mbit/s are a round number of ours.
- phones: 58 to 70 ms to a server and back and 2.4 to 7 Mbit/s up (Opensignal, United States, January 2019). A message
  between two phones goes up from one and down to the other, so 60 ms one way, and 5 Mbit/s.

The seconds a gradient are round numbers of ours, for a network of a million weights, about 6 Mflop
a sample: 0.1 ms on a server, 1 ms on a desktop's core, and a median of 10 ms on phones, which
differ by a factor of 1.6 from it. Linear models need a thousandth of that: give `compute=`.
"""


def read(text: str) -> Clock:
    """A clock from the name of a preset, or from a TOML file.

    The keys of a file are the arguments of `clock`. A distribution is a table, `compute =
    {lognormal = [0.01, 0.5]}`, and the pairs of a mapping are written "0-1".
    """
    if text in CLOCKS:
        return CLOCKS[text]
    path = Path(text).expanduser()
    if not path.is_file():
        require(
            not text.endswith(".toml"),
            f"no clock file {path}: give the path of a TOML file, or a preset's name",
        )
        close = unknown("clock", text, CLOCKS)
        raise ValueError(f"{close}; or give the path of a TOML file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    keys = ("preset", "compute", "latency", "bandwidth", "overlap")
    for key in table:
        if key not in keys:
            raise unknown(f"key in {path}", key, keys)
    try:
        if isinstance(table.get("compute"), dict):
            table["compute"] = _distribution(table["compute"])
        for key in ("latency", "bandwidth"):
            if isinstance(table.get(key), dict):
                table[key] = {_pair(key, name): value for name, value in table[key].items()}
        return clock(**table)
    except ValueError as error:
        raise ValueError(f"{error} (in {path})") from error


def _distribution(table: dict[str, Any]) -> Distribution:
    remedy = "give one, as in compute = {lognormal = [0.01, 0.5]}"
    require(len(table) == 1, f"compute has {len(table)} distributions: {remedy}")
    ((name, values),) = table.items()
    if name not in DISTRIBUTIONS:
        raise unknown("distribution", name, DISTRIBUTIONS)
    needed = [each.name for each in fields(DISTRIBUTIONS[name])]
    if len(needed) == 1:
        one: Distribution = DISTRIBUTIONS[name](values)
        return one
    good = isinstance(values, list) and len(values) == len(needed)
    require(good, f"compute = {{{name} = {values!r}}}: must be [{', '.join(needed)}]; {remedy}")
    several: Distribution = DISTRIBUTIONS[name](*values)
    return several


def _pair(name: str, text: str) -> tuple[int, int]:
    parts = text.split("-")
    good = len(parts) == 2 and all(part.strip().isdecimal() for part in parts)
    require(good, f'{name} of {text!r}: must be of a pair of nodes, as in "0-1"')
    return int(parts[0]), int(parts[1])


def _of_links(name: str, value: Any, ends: np.ndarray, nodes: int) -> np.ndarray:
    """The numbers of all messages, (E, 2) by link and direction."""
    if isinstance(value, float):
        return np.full((len(ends), 2), value)
    if isinstance(value, np.ndarray):
        require(
            len(value) == nodes,
            f"{name} has the shape {value.shape}, and the network {nodes} nodes: give (n, n) of it",
        )
        return np.stack([value[ends[:, 1], ends[:, 0]], value[ends[:, 0], ends[:, 1]]], axis=1)
    found = np.zeros((len(ends), 2))
    for link, (i, j) in enumerate(ends.tolist()):
        require(
            (i, j) in value or (j, i) in value,
            f"{name} has no number of the link of nodes {i} and {j}: add ({i}, {j}), or give one number for all links",
        )
        found[link] = [
            value[pair] if pair in value else value[pair[::-1]] for pair in ((j, i), (i, j))
        ]
    return found


def _text(value: Any) -> str:
    if isinstance(value, float | Distribution):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        listed = sorted(value.items())
        return f"{len(value)} pairs {digest(np.array([[*pair, number] for pair, number in listed]))[:8]}"
    return f"{value.shape} {digest(value)[:8]}"
