"""Outlines: what a method does in an iteration, recorded by running its code on placeholder vectors.

An outline lists, for iteration 0 and for any later one, which samples a method draws, at which
vectors it takes gradients, how often it mixes, what depends on the iteration counter, and a digest
of the arithmetic between. It is independent of problem and network; `peerdescent.runs.costs`
computes costs from it. Engines use it to draw samples ahead and to store equal vectors once. The
GPU kernel uses it to compute gradients before the rest of an iteration.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple

import jax
import numpy as np

from peerdescent.compressors import Compressor
from peerdescent.digests import fingerprint, is_library
from peerdescent.errors import check_fields, unknown
from peerdescent.methods.contract import Calls, Method, Net, State
from peerdescent.problems.definition import digest
from peerdescent.schedules import Schedule
from peerdescent.threefry import coin


class Misuse(TypeError):
    """What a method may not do, as a sentence about it."""


class Blank:
    """A placeholder without values, for a vector or for a number at every node.

    Arithmetic on it gives another placeholder, whose `text` says of what.
    """

    __array_ufunc__ = None  # NumPy's arrays leave the arithmetic to this class

    def __init__(self, *made: Any, is_vector: bool = True) -> None:
        self.text = hashlib.sha256(repr([_text(part) for part in made]).encode()).hexdigest()
        self.is_vector = is_vector
        self.has_array = any(map(_holds_array, made))

    def __add__(self, other: Any) -> Blank:
        return _computed("+", self, other)

    def __radd__(self, other: Any) -> Blank:
        return _computed("+", other, self)

    def __sub__(self, other: Any) -> Blank:
        return _computed("-", self, other)

    def __rsub__(self, other: Any) -> Blank:
        return _computed("-", other, self)

    def __mul__(self, other: Any) -> Blank:
        return _computed("*", self, other)

    def __rmul__(self, other: Any) -> Blank:
        return _computed("*", other, self)

    def __truediv__(self, other: Any) -> Blank:
        return _computed("/", self, other)

    def __rtruediv__(self, other: Any) -> Blank:
        return _computed("/", other, self)

    def __pow__(self, other: Any) -> Blank:
        return _computed("**", self, other)

    def __neg__(self) -> Blank:
        return _computed("neg", self)

    def __iadd__(self, other: Any) -> Blank:
        raise Misuse("it changes a vector in place, as in x += y: write x = x + y")

    __isub__ = __imul__ = __itruediv__ = __ipow__ = __iadd__


def _computed(operation: str, *operands: Any) -> Blank:
    """The result of arithmetic: a number where all operands are."""
    return Blank(operation, *operands, is_vector=any(map(_is_vector, operands)))


def _is_vector(part: Any) -> bool:
    """Whether it is a vector, or an array with one number a coordinate; not one with a number a node, (n, 1)."""
    return (
        part.is_vector
        if isinstance(part, Blank)
        else getattr(part, "shape", ())[-1:] not in ((), (1,))
    )


def _holds_array(part: Any) -> bool:
    """Whether it is an array, or a placeholder that was computed with one."""
    return (
        part.has_array
        if isinstance(part, Blank)
        else isinstance(part, np.ndarray) or getattr(part, "ndim", 0) > 0
    )


def _text(part: Any) -> Any:
    """A part of an expression, as it enters the text."""
    if isinstance(part, Blank):
        return part.text
    if isinstance(part, Real):
        return repr(float(part))
    if isinstance(part, str | tuple) or part is None:
        return repr(part)
    known = hasattr(part, "dtype") and not isinstance(part, jax.core.Tracer)
    return digest(part) if known else type(part).__qualname__


class Leaf(Blank):
    """A placeholder for a vector or number of the state at the start of an iteration, by its place there."""

    def __init__(self, number: int, is_vector: bool = True) -> None:
        super().__init__("leaf", number, is_vector=is_vector)
        self.number = number


class Squeezed(Blank):
    """A placeholder for a compressed vector. Whatever is computed from it is not compressed."""

    def __init__(self, x: Any, operator: Compressor) -> None:
        code = "" if is_library(type(operator)) else fingerprint(operator)
        super().__init__("compress", x, str(operator), code)
        self.operator = operator


class Scheduled(Blank):
    """A placeholder for a number that depends on the iteration."""

    def __init__(self, schedule: Schedule) -> None:
        numbers = [part for pair in sorted(schedule.numbers.items()) for part in pair]
        super().__init__(
            type(schedule).__name__, fingerprint(schedule.fixed), *numbers, is_vector=False
        )
        self.schedule = schedule


class Drawn(NamedTuple):
    """A sample: its number within the iteration, and its size."""

    call: int
    batch: Any


class Gradient(NamedTuple):
    """A gradient that a method takes."""

    slot: int
    """Its number among the gradients of the iteration; both branches of an `every` use the same numbers."""
    leaf: int | None
    """The number of the vector of the state at which it is taken; None for a vector computed in the same iteration."""
    sample: Drawn | None
    """None for the exact gradient."""


class Message(NamedTuple):
    """The content of a message, whose size follows from it."""

    vectors: int = 1
    numbers: int = 0
    operator: Compressor | None = None
    """What the vector was compressed by."""

    def entries(self, dimension: int) -> int:
        """The numbers in it, if vectors have so many."""
        return self.vectors * dimension + self.numbers

    def size(self, dimension: int, item: int) -> float:
        """Its bytes, if a number has so many."""
        return (
            self.entries(dimension) * item
            if self.operator is None
            else self.operator.size(dimension, item)
        )


class Mix(NamedTuple):
    """A `mix`, `disagree` or `push`: one round of communication, or several if the network has them, and its number."""

    number: int
    message: Message = Message()
    verb: str = "mix"
    leaf: int | None = None
    """The number of the vector of the state that is mixed; None for a vector computed in the same iteration."""


class Every(NamedTuple):
    """When an `every` takes its `then`."""

    period: Any
    phase: Any

    def due(self, xp: Any, seed: Any, t: Any) -> Any:
        """Whether it does in iterations t (any shape)."""
        return (t - self.phase) % self.period == 0


class Chance(NamedTuple):
    """When a `chance` takes its `then`: with a probability, by the coin of this number."""

    probability: Any
    number: int

    def due(self, xp: Any, seed: Any, t: Any) -> Any:
        """Whether it does in iterations t (any shape)."""
        return coin(xp, seed, t, self.number, self.likely(t))

    @property
    def is_scheduled(self) -> bool:
        """Whether the probability depends on the iteration."""
        return isinstance(self.probability, Scheduled)

    def likely(self, t: Any) -> Any:
        """The probability in iterations t."""
        return (
            self.probability.schedule(t)
            if isinstance(self.probability, Scheduled)
            else self.probability
        )


class Either(NamedTuple):
    """The events on each side of an `every` or a `chance`."""

    when: Every | Chance
    then: list[Any]
    otherwise: list[Any]


class Recorder:
    """The verbs on placeholders: they record what a method asks for."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.calls, self.slots = Calls(), 0
        self.verbs: set[str] = set()
        """Those that not every engine has."""

    def sample(self, batch: Any) -> Drawn:
        """Record a sample."""
        if isinstance(batch, Real) and (batch < 1 or not isinstance(batch, Integral)):
            raise Misuse(f"it draws a sample of {batch}: give a whole number of at least 1")
        self.events.append(Drawn(self.calls.take("sample"), batch))
        drawn: Drawn = self.events[-1]
        return drawn

    def grad(self, x: Any, sample: Drawn | None) -> Blank:
        """Record a gradient."""
        self.events.append(Gradient(self.slots, x.number if isinstance(x, Leaf) else None, sample))
        self.slots += 1
        return Blank("grad", x, None if sample is None else f"{sample.call} {_text(sample.batch)}")

    def full_grad(self, x: Any) -> Blank:
        """Record an exact gradient."""
        return self.grad(x, None)

    def mix(self, x: Any) -> Blank:
        """Record a round of communication."""
        return self._round(x, "mix")

    def disagree(self, x: Any) -> Blank:
        """Record a round of communication."""
        return self._round(x, "disagree")

    def push(self, x: Any, w: Any = None) -> Any:
        """Record a round of communication."""
        if w is None:
            return self._round(x, "push")
        if _is_vector(w) or not _is_vector(x):
            raise Misuse(
                "net.push(x, w) is called with other than a vector and a number, as in net.push(x, 1.0)"
            )
        self.events.append(Mix(self.calls.take("round"), Message(numbers=1), "push"))
        self.verbs.add("push of a number")
        return Blank("push", x, w), Blank("push", x, w, is_vector=False)

    def _round(self, x: Any, verb: str) -> Blank:
        vectors = int(_is_vector(x))
        leaf = x.number if isinstance(x, Leaf) and vectors else None
        message = Message(vectors, 1 - vectors, getattr(x, "operator", None))
        self.events.append(Mix(self.calls.take("round"), message, verb, leaf))
        mixed = Blank("mix", x, is_vector=bool(vectors))
        return mixed if verb == "mix" else Blank(verb, mixed, is_vector=mixed.is_vector)

    def compress(self, x: Any, operator: Compressor) -> Blank:
        """Record a compression."""
        if not isinstance(operator, Compressor):
            raise Misuse(
                f"it compresses with {operator!r}: give a compressor, such as peer.compressors.top_k(0.1)"
            )
        if not _is_vector(x):
            raise Misuse("it compresses a number: mix it as it is")
        check_fields(operator, "compressor")
        self.verbs.add("compress")
        self.calls.take("compression")
        return Squeezed(x, operator)

    def prox(self, x: Any, step: Any) -> Blank:
        """Record a proximal step."""
        self.verbs.add("prox")
        return Blank("prox", x, step)

    def dot(self, x: Any, y: Any) -> Blank:
        """Record inner products."""
        self.verbs.add("dot")
        return Blank("dot", x, y, is_vector=False)

    def every(
        self, period: Any, then: Callable[[], Any], otherwise: Callable[[], Any], phase: Any = 0
    ) -> Any:
        """Record both branches."""
        if isinstance(period, float):
            raise Misuse(
                f"it has a period of {period}: declare it with count(...), and give a whole number"
            )
        if isinstance(period, int) and period < 1:
            raise Misuse(f"it has a period of {period}: give at least 1")
        if phase:
            self.verbs.add("phase")
        return self._either(Every(period, phase), then, otherwise)

    def chance(
        self, probability: Any, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Record both branches."""
        if isinstance(probability, int | float) and not 0 <= probability <= 1:
            raise Misuse(f"it has a chance of {probability}: give a probability, in [0, 1]")
        self.verbs.add("chance")
        return self._either(Chance(probability, self.calls.take("coin")), then, otherwise)

    def _either(
        self, when: Every | Chance, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        before, call, slot = self.events, self.calls.next, self.slots
        sides, ends, values = [], [], []
        for thunk in (then, otherwise):
            self.events, self.slots = [], slot
            with self.calls.inside(call):
                value = thunk()
            sides.append(self.events)
            ends.append(self.slots)
            values.append(value)
        self.events, self.slots = [*before, Either(when, *sides)], max(ends)
        if not _alike(*values):
            raise Misuse(
                "the two branches of an every return values of different forms: return the same in both"
            )
        # New placeholders: a vector that one branch returns unchanged may be changed by the other.
        made = (
            ("every", when.period)
            if isinstance(when, Every) and when.phase == 0
            else (type(when).__name__, *when)
        )
        return jax.tree.map(
            lambda a, b: Blank(*made, a, b, is_vector=b.is_vector) if isinstance(b, Blank) else b,
            *values,
        )


def recorded(act: Callable[[Any, Any], Any], given: Any) -> tuple[Recorder, Any]:
    """Run `act`, a method's `init` or `step`, on placeholders; the recorder, and the state that `act` returns."""
    recorder = Recorder()
    return recorder, act(given, recorder)


def flat(events: list[Any], rare: bool = True) -> Iterator[Any]:
    """All events in order, those in both branches of every `Either` included; without `rare`, not those of `then`."""
    for event in events:
        if isinstance(event, Either):
            yield from flat([*event.then, *event.otherwise] if rare else event.otherwise, rare)
        else:
            yield event


def _drawn(events: list[Any]) -> tuple[tuple[int, Any], ...]:
    return tuple(tuple(event) for event in flat(events, rare=False) if isinstance(event, Drawn))


class Outline(NamedTuple):
    """What a method does in iteration 0 (`start`) and in any later one (`step`), as lists of events."""

    start: list[Any]
    step: list[Any]
    structure: Any
    """The pytree structure of the method's state."""
    aliases: tuple[int, ...]
    """For each leaf of the state, the first leaf that is always equal to it."""
    slots: int
    """The most gradients of an iteration; branches of an `every` count once."""
    has_numbers: bool
    """Whether the state has anything but vectors in it; composed methods never do."""
    has_arrays: bool
    """Whether the method holds arrays of its own. Then it has no axis of configurations, which they would meet."""
    text: str
    """A digest of all that the method computes; equal for methods that do the same."""
    code: str
    """A checksum of a user's own code in it."""
    verbs: frozenset[str]
    """The verbs that not every engine has: compress, prox, dot, chance, and every with a phase."""

    @property
    def requests(self) -> tuple[tuple[int, Any], ...]:
        """The samples (call, batch) to draw ahead: those of an iteration in which no `then` branch is taken."""
        return _drawn(self.step)

    @property
    def first_requests(self) -> tuple[tuple[int, Any], ...]:
        """The samples (call, batch) of iteration 0, but for those of `then` branches."""
        return _drawn(self.start)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The numbers of the rounds of an iteration in which no `then` branch is taken."""
        return tuple(
            event.number for event in flat(self.step, rare=False) if isinstance(event, Mix)
        )

    @property
    def gradients(self) -> list[Gradient]:
        """All gradients that the method may take, in any iteration."""
        return [event for event in flat(self.start + self.step) if isinstance(event, Gradient)]

    @property
    def takes_one_point(self) -> bool:
        """Whether all gradients are of one sample at the current iterate, one in each iteration."""
        lists = [list(flat(events)) for events in (self.start, self.step)]
        drawn = [[event for event in events if isinstance(event, Drawn)] for events in lists]
        here = all(
            gradient.leaf == 0 and gradient.sample is not None for gradient in self.gradients
        )
        return here and self.slots == 1 and all(len(each) == 1 for each in drawn)

    def rounds_ahead(self, t: int) -> list[Mix]:
        """The rounds of iteration t that can begin before its gradients are known: they mix vectors of the state."""
        events = self.step if t else self.start
        return [event for event in events if isinstance(event, Mix) and event.leaf is not None]

    @property
    def takes_exact(self) -> bool:
        """Whether the method may take exact local gradients."""
        return any(gradient.sample is None for gradient in self.gradients)

    @property
    def branches(self) -> list[Every | Chance]:
        """When branches are taken, in later iterations."""

        def inside(events: list[Any]) -> Iterator[Every | Chance]:
            for event in events:
                if isinstance(event, Either):
                    yield event.when
                    yield from inside(event.then + event.otherwise)

        return list(inside(self.step))

    @property
    def periods(self) -> list[int]:
        """The periods of `every` in later iterations."""
        return [int(when.period) for when in self.branches if isinstance(when, Every)]

    @property
    def messages(self) -> list[Mix]:
        """All rounds of communication."""
        return [event for event in flat(self.start + self.step) if isinstance(event, Mix)]

    @property
    def compresses(self) -> bool:
        """Whether compressed vectors are mixed."""
        return any(mix.message.operator is not None for mix in self.messages)

    @property
    def mixes(self) -> bool:
        """Whether rounds of the method need rows of weights that sum to 1."""
        return any(mix.verb != "push" for mix in self.messages)


def _firsts(names: list[Any]) -> tuple[int, ...]:
    """For each name the index of the first one that is equal to it."""
    return tuple(names.index(name) for name in names)


def outline(method: Method) -> Outline:
    """The outline of a method, by running its `init` and `step` on placeholders.

    >>> from peerdescent import methods
    >>> found = outline(methods.gt_hsgd(batch=4, initial_batch=32))
    >>> found.requests, [event.number for event in found.step if isinstance(event, Mix)]
    (((0, 4),), [0, 1])
    """
    return _outline(method, code_of(method))


def code_of(method: Method) -> str:
    """A checksum of schedules and of a user's own code in a method, with the values that it reads now; else empty."""
    if not method.parts:
        return fingerprint(method.init, method.step)
    own: list[Any] = [kind for kind in map(type, method.parts) if not is_library(kind)]
    given = [
        value
        for value in method.parameters.values()
        if callable(value) or not is_library(type(value))
    ]
    own += [value.fixed if isinstance(value, Schedule) else value for value in given]
    return fingerprint(*own) if own else ""


@lru_cache(maxsize=4096)
def _outline(method: Method, code: str) -> Outline:
    method = method.replace(**{name: Scheduled(value) for name, value in method.schedules.items()})
    try:
        start, first = recorded(method.init, Leaf(0))
        leaves, structure = jax.tree.flatten(first)
        aliases = _firsts(
            [id(leaf) if isinstance(leaf, Blank) else (k,) for k, leaf in enumerate(leaves)]
        )
        # Leaves that are equal after iteration 0 stay equal if a step maps equal leaves to equal
        # leaves. Leaves for which it does not are distinguished, and the step is recorded again,
        # until nothing changes.
        while True:
            one = {k: Leaf(k, leaves[k].is_vector) for k in aliases if isinstance(leaves[k], Blank)}
            known = [
                one[aliases[k]] if isinstance(leaf, Blank) else leaf
                for k, leaf in enumerate(leaves)
            ]
            step, later = recorded(method.step, jax.tree.unflatten(structure, known))
            if not _alike(first, later):
                raise Misuse(_other_form(first, later))
            pairs = zip(leaves, jax.tree.leaves(later), strict=True)
            if any(isinstance(b, Blank) and not isinstance(a, Blank) for a, b in pairs):
                raise Misuse(
                    "its state has a plain number after init, and after a step one that differs between nodes: begin "
                    "with 1 + 0 * net.dot(x, x), say"
                )
            after = dict(enumerate(jax.tree.leaves(later)))
            before, aliases = (
                aliases,
                _firsts([(k, id(after.get(n))) for n, k in enumerate(aliases)]),
            )
            if aliases == before:
                break
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{method.name}{_complaint(error)}") from error
    slots = max(1, start.slots, step.slots)
    has_numbers = not all(isinstance(leaf, Blank) for leaf in leaves)
    # What a step does may depend on numbers in its state, and was recorded with their first values
    # only.
    more = (code,) if has_numbers else ()
    made = Blank(*leaves, str(structure), *jax.tree.leaves(later), repr(aliases), *more)
    verbs = frozenset(start.verbs | step.verbs)
    return Outline(
        start.events,
        step.events,
        structure,
        aliases,
        slots,
        has_numbers,
        made.has_array,
        made.text,
        code,
        verbs,
    )


def _other_form(first: Any, later: Any) -> str:
    """What is wrong with the state of a step, whose form differs from that of init."""
    known = {
        f"the memory of its {part}": part for part in State._fields[1:] if isinstance(first, State)
    }
    pairs = {name: (getattr(first, part), getattr(later, part)) for name, part in known.items()}
    pairs["the state"] = first, later
    what, both = next((name, both) for name, both in pairs.items() if not _alike(*both))
    before, after = (
        str(jax.tree.structure(one))[len("PyTreeDef(") : -1].replace("*", "vector") for one in both
    )
    return f"{what} is {before} after init and {after} after a step: return the same form, vectors in the same order"


def _alike(one: Any, other: Any) -> bool:
    """Whether two states, or parts of them, have the same form."""
    forms: list[Any] = [jax.tree.structure(each) for each in (one, other)]
    return bool(forms[0] == forms[1])


def _complaint(error: TypeError | AttributeError) -> str:
    """What a method did wrong, to follow its name: a verb that is called otherwise, or more than arithmetic."""
    said = str(error).partition("\n")[0]
    call = re.match(rf"{Recorder.__name__}\.(\w+)\(\)", said)
    if isinstance(error, Misuse):
        return f": {error}"
    if call:
        words = [
            str(each).partition(":")[0]
            for each in list(signature(getattr(Net, call[1])).parameters.values())[1:]
        ]
        return f" calls net.{call[1]} with other arguments than it takes: write net.{call[1]}({', '.join(words)})"
    if isinstance(error, AttributeError) and isinstance(error.obj, Recorder):
        return f" uses net.{error.name}: {unknown('verb', error.name, [v for v in vars(Net) if not v.startswith('_')])}"
    placeholder = (
        rf"(\w+\.)*\b({'|'.join(kind.__name__ for kind in (Blank, Leaf, Squeezed, Scheduled))})\b"
    )
    if not re.search(placeholder, said):
        return f" fails in its init or step: {said}"
    return (
        f" does more than +, -, *, / and ** with its vectors ({re.sub(placeholder, 'vector', said)}): use "
        "net.dot(x, y) for inner products and norms; minima, maxima and comparisons are not available"
    )


def definition(method: Method) -> str:
    """A digest of what a method computes, whatever its numbers are; 16 digits, equal for equal mathematics.

    >>> from peerdescent import methods
    >>> one, other = methods.dsgd(alpha=0.5), methods.dsgd(alpha=0.1)
    >>> definition(one) == definition(other), definition(one) == definition(methods.d2(alpha=0.5))
    (True, False)
    """
    return _definition(method, code_of(method))


@lru_cache(maxsize=4096)
def _definition(method: Method, code: str) -> str:
    symbols = {name: Blank("number", name, is_vector=False) for name in method.numbers}
    try:
        return outline(method.replace(**symbols)).text[:16]
    except ValueError:  # it does more with its numbers, such as compare them
        return outline(method).text[:16]
