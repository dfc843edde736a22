"""Faults: what goes wrong on the way from node to node. They are given to a `Network`.

Every random decision is a function of (seed, t, round, link or node), so all engines, and both ends
of a link in different processes, decide alike without a message. A new fault is a dataclass here
and an entry of `FAULTS`; engines know what a fault may do, and no fault by its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from peerdescent import compressors
from peerdescent.errors import require, unknown
from peerdescent.threefry import Draw


@dataclass(frozen=True)
class Fault:
    """What a fault may do. All methods have defaults that do nothing."""

    balanced: ClassVar[bool] = False
    """True if links fail in both directions: only a symmetric W then stays doubly stochastic."""
    lasting: ClassVar[bool] = False
    """Whether links remember: `begin` and `later` give that memory."""

    @property
    def is_nothing(self) -> bool:
        """Whether it never does anything, such as `drop(0)`."""
        return False

    def asleep(self, draw: Draw, nodes: int) -> Any:
        """Which nodes sleep in an iteration, (n,); None for none."""
        return None

    def begin(self, draw: Draw, links: int) -> Any:
        """The memory of the links (E,) in iteration 0."""
        return None

    def later(self, draw: Draw, memory: Any) -> Any:
        """The memory in the next iteration."""
        return memory

    def cut(self, draw: Draw, memory: Any, links: int) -> Any:
        """The links that are down in a round, (E,), known to both ends; None for none."""
        return None

    def lost(self, draw: Draw, links: int) -> Any:
        """Which messages that were sent do not arrive, (E, 2) by direction; None for none."""
        return None

    def sent(self, draw: Draw, x: Any, nodes: Any) -> Any:
        """What arrives of the vectors x (k, ..., p) of some nodes (k,)."""
        return x

    def size(self, entries: int, item: int) -> float | None:
        """The bytes of a message of `entries` numbers of `item` bytes; None if unchanged."""
        return None

    @property
    def spread(self) -> float:
        """The standard deviation of the noise on every message received."""
        return 0.0

    @property
    def moments(self) -> tuple[float, float] | None:
        """The probabilities that a link, and that two links of a node, are up; None if unknown."""
        return 1.0, 1.0

    @property
    def awake(self) -> float:
        """The probability that a node is awake."""
        return 1.0

    def __str__(self) -> str:
        """As the command line has it, such as `drop=0.1`."""
        values = [getattr(self, each.name) for each in dataclasses.fields(self)]
        name = type(self).__name__.replace("_", "-")
        flags = [
            f"{each.name}" for each in dataclasses.fields(self) if getattr(self, each.name) is True
        ]
        # The repr of a number reads back as the same one.
        numbers = [repr(value) for value in values if not isinstance(value, bool)]
        return f"{name}={','.join([*numbers, *(flag.replace('_', '-') for flag in flags)])}"


def _checked(fault: Fault, name: str, rule: str, good: Callable[[float], bool]) -> None:
    """Refuse a field that is not such a number, and make it a plain float."""
    value = getattr(fault, name)
    number = isinstance(value, Real) and not isinstance(value, bool)
    require(
        number and good(float(value)), f"{name} of {type(fault).__name__} = {value!r}: must {rule}"
    )
    object.__setattr__(fault, name, float(value))


def _check_probability(fault: Fault, name: str) -> None:
    _checked(fault, name, "be a probability in [0, 1)", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class drop(Fault):
    """A link fails for a round, in both directions; both ends keep its weight.

    So W_t stays doubly stochastic.

    With `one_way`, single messages are lost: the receiver keeps the weight, the sender does not
    know. Then the columns of W_t do not sum to 1, the mean over nodes is not preserved, and
    trackers drift.
    """

    probability: float
    one_way: bool = False

    def __post_init__(self) -> None:
        _check_probability(self, "probability")
        require(
            isinstance(self.one_way, bool),
            f"one_way of drop = {self.one_way!r}: must be true or false",
        )

    @property
    def balanced(self) -> bool:  # type: ignore[override]
        """Both directions fail, unless only one may."""
        return not self.one_way

    @property
    def is_nothing(self) -> bool:
        """With probability 0."""
        return self.probability == 0

    def cut(self, draw: Draw, memory: Any, links: int) -> Any:
        """Each link for itself."""
        return None if self.one_way else draw.chance(self.probability, links)

    def lost(self, draw: Draw, links: int) -> Any:
        """Each message for itself."""
        return draw.chance(self.probability, 2 * links).reshape(links, 2) if self.one_way else None

    @property
    def moments(self) -> tuple[float, float] | None:
        """Links are independent."""
        up = 1 - self.probability
        return None if self.one_way else (up, up * up)


@dataclass(frozen=True)
class burst(Fault):
    """Links with a memory, for whole iterations and both directions (Gilbert 1960; Elliott 1963).

    A link that is up goes down with probability `enter`, and one that is down comes up with
    probability `leave`. They start from the stationary distribution, in which a link is down with
    probability enter / (enter + leave).
    """

    enter: float
    leave: float
    balanced: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_probability(self, "enter")
        _checked(
            self,
            "leave",
            "be a probability in (0, 1]; with 0 links stay down",
            lambda value: 0 < value <= 1,
        )

    @property
    def is_nothing(self) -> bool:
        """If no link ever goes down."""
        return self.enter == 0

    @property
    def down(self) -> float:
        """The share of time for which a link is down."""
        return self.enter / (self.enter + self.leave)

    def begin(self, draw: Draw, links: int) -> Any:
        """The stationary distribution."""
        return draw.chance(self.down, links)

    def later(self, draw: Draw, memory: Any) -> Any:
        """One step of each link's chain."""
        return draw.xp.where(
            memory, ~draw.chance(self.leave, len(memory)), draw.chance(self.enter, len(memory))
        )

    def cut(self, draw: Draw, memory: Any, links: int) -> Any:
        """The links that are down."""
        return memory

    @property
    def moments(self) -> tuple[float, float] | None:
        """Links are independent."""
        up = 1 - self.down
        return up, up * up


@dataclass(frozen=True)
class inactive(Fault):
    """A node sleeps for an iteration: it computes and sends nothing, and its state stays.

    Its neighbours keep the weights of their links to it. In iteration 0, where states begin, all
    nodes are awake.
    """

    probability: float
    balanced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_probability(self, "probability")

    @property
    def is_nothing(self) -> bool:
        """With probability 0."""
        return self.probability == 0

    def asleep(self, draw: Draw, nodes: int) -> Any:
        """Each node for itself."""
        return draw.chance(self.probability, nodes)

    @property
    def moments(self) -> tuple[float, float] | None:
        """A link needs both its nodes, two links of one node need three."""
        return self.awake**2, self.awake**3

    @property
    def awake(self) -> float:
        """The probability that a node is awake."""
        return 1 - self.probability


@dataclass(frozen=True)
class noise(Fault):
    """Gaussian noise of this standard deviation on each entry of every message from another node.

    A round adds up a node's messages, so one Gaussian vector of the summed variance is drawn for
    each node.
    """

    deviation: float

    def __post_init__(self) -> None:
        _checked(
            self,
            "deviation",
            "be a finite number of at least 0",
            lambda value: 0 <= value < math.inf,
        )

    @property
    def is_nothing(self) -> bool:
        """Without any."""
        return self.deviation == 0

    @property
    def spread(self) -> float:
        """The standard deviation of the noise on every message received."""
        return self.deviation


@dataclass(frozen=True)
class quantize(Fault):
    """Messages rounded at random, without bias, to 2^(bits - 1) levels of their norm and a sign.

    Nothing makes up for the error, which is why compressed methods feed it back.
    """

    bits: int

    def __post_init__(self) -> None:
        good = (
            isinstance(self.bits, Integral)
            and not isinstance(self.bits, bool)
            and 2 <= self.bits <= 24
        )
        require(good, f"bits of quantize = {self.bits!r}: must be a whole number of 2 to 24")
        object.__setattr__(self, "bits", int(self.bits))

    def sent(self, draw: Draw, x: Any, nodes: Any) -> Any:
        """Stochastic rounding."""
        return compressors.rounded(x, self.bits, draw.of(nodes))

    def size(self, entries: int, item: int) -> float | None:
        """The bits of all entries, and the norm."""
        return compressors.quantize(self.bits).size(entries, item)


@dataclass(frozen=True)
class top_k(Fault):
    """Only this fraction of the entries of a message arrives, the largest; the others are zeros.

    Nothing makes up for the error, which is why compressed methods feed it back.
    """

    fraction: float

    def __post_init__(self) -> None:
        _checked(self, "fraction", "lie in (0, 1]", lambda value: 0 < value <= 1)

    @property
    def is_nothing(self) -> bool:
        """If all entries arrive."""
        return self.fraction == 1

    def sent(self, draw: Draw, x: Any, nodes: Any) -> Any:
        """The largest entries, the lower index first among equals."""
        return compressors.top_k(self.fraction).apply(x, draw.of(nodes))

    def size(self, entries: int, item: int) -> float | None:
        """The entries, and their numbers of four bytes."""
        return compressors.top_k(self.fraction).size(entries, item)


FAULTS: dict[str, type[Fault]] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (drop, burst, inactive, noise, quantize, top_k)
}
"""The faults by the names that the command line has."""


def parse(text: str) -> Fault:
    """A fault from its text.

    >>> parse("drop=0.1"), parse("burst=0.1,0.5"), parse("drop=0.2,one-way")
    (drop(probability=0.1, one_way=False), burst(enter=0.1, leave=0.5), drop(probability=0.2, one_way=True))
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("_", "-")
    if name not in FAULTS:
        raise unknown("fault", name, FAULTS)
    kind: type[Fault] = FAULTS[name]
    fields = {each.name.replace("_", "-"): each for each in dataclasses.fields(kind)}
    needed = [each for each in fields.values() if each.default is dataclasses.MISSING]
    form = ",".join(each.name for each in needed) + "".join(
        f"[,{n}]" for n, f in fields.items() if f not in needed
    )
    given: dict[str, Any] = {}
    numbers = [part.strip().replace("_", "-") for part in values.split(",")]
    flags = [part for part in numbers if part in fields and fields[part] not in needed]
    numbers = [part for part in numbers if part not in flags]
    require(
        len(numbers) == len(needed) and "" not in numbers,
        f"fault = {text!r}: must be {name}={form}",
    )
    for each, part in zip(needed, numbers, strict=True):
        try:
            given[each.name] = int(part) if each.type == "int" else float(part)
        except ValueError:
            kind_of = "a whole number" if each.type == "int" else "a number"
            raise ValueError(
                f"fault = {text!r}: {part!r} is not {kind_of}; give {name}={form}"
            ) from None
    return kind(**given, **{fields[flag].name: True for flag in flags})
