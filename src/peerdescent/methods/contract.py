"""The interface of methods: a pure pair `init`, `step`, which reaches data and network through the verbs of a `net`.

A method composes an estimator (how a node estimates its local gradient) with a fusion (how nodes combine estimates and
descend). Both are independent of where vectors are stored: a vector is anything with `+` and `-`, with `*` and `/` by a
number or entry by entry, and with `**` by a number, so the same code runs on NumPy arrays, JAX arrays and PyTorch
tensors. This module has the interface and `compose`; the parts are in `estimators` and `fusions`, and the named methods
in `named`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from peerdescent.compressors import Compressor
from peerdescent.errors import require, unknown
from peerdescent.methods.parameters import Kind, Parameter, Part, declared, with_unit_steps
from peerdescent.schedules import Schedule, given

Vector = Any
Sample = Any


class Net(Protocol):
    """The verbs: everything that a method may ask for. Engines implement them."""

    def sample(self, batch: int) -> Sample:
        """A new, independent sample of `batch` points at every node."""

    def grad(self, x: Vector, sample: Sample) -> Vector:
        """The minibatch gradient at x on a sample. The same sample may be used at several points."""

    def full_grad(self, x: Vector) -> Vector:
        """The exact local gradient at x; for finite sums only."""

    def mix(self, x: Vector) -> Vector:
        """One round of communication: node i receives sum_j w_ij x_j."""

    def disagree(self, x: Vector) -> Vector:
        """x - W x, also one round. Computed from differences of vectors, so its mean over nodes is zero to rounding.

        A method that sums disagreements over iterations needs this: in `x - net.mix(x)` the rounding is that of x,
        which is much larger than the disagreement, and it would add up.
        """

    def push(self, x: Vector, w: Any = None) -> Any:
        """One round of communication: node i receives sum_j b_ij x_j. The columns of B sum to 1; it may be W.

        With a number w at every node, the message is x and w, and both sums are returned.
        """

    def every(
        self, period: int, then: Callable[[], Any], otherwise: Callable[[], Any], phase: int = 0
    ) -> Any:
        """Call `then` when the iteration counter is `phase` modulo `period`, `otherwise` when it is not.

        With `phase=-1` that is the last iteration of each period.
        """

    def chance(
        self, probability: float, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Call `then` with this probability, else `otherwise`: one coin for all nodes, drawn from the seed and t."""

    def compress(self, x: Vector, operator: Compressor) -> Vector:
        """C(x) at every node. If that is mixed as it is, it crosses compressed, and counts as the bytes that cross."""

    def prox(self, x: Vector, step: float) -> Vector:
        """The minimiser z of h(z) + ||z - x||^2 / (2 step), with h the problem's non-smooth term; x itself without."""

    def dot(self, x: Vector, y: Vector) -> Any:
        """The inner product at every node: a number that multiplies and divides that node's vectors."""


class Calls:
    """Numbers what a method asks for in one iteration, in the same way on all engines and for both branches.

    Each kind (samples, rounds, coins, compressions) is numbered by itself. The first sample of an iteration has number
    0, inside of a branch or not, so that all methods get the same samples. After a branch the numbers go on 64 higher,
    however many either side has used; after a branch inside of a branch 8 higher, and after one inside of that 1.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.next: dict[str, int] = dict.fromkeys(("sample", "round", "coin", "compression"), 0)

    def take(self, kind: str) -> int:
        """The next number of a kind."""
        self.next[kind] += 1
        return self.next[kind] - 1

    @contextlib.contextmanager
    def inside(self, start: Mapping[str, int]) -> Iterator[None]:
        """Number what one side of a branch uses, which was entered when `next` was `start`."""
        require(
            self.depth < 3,
            "branches inside of branches inside of branches have another branch: use fewer",
        )
        width = 64 >> 3 * self.depth
        self.next, self.depth = dict(start), self.depth + 1
        try:
            yield
        finally:
            self.depth -= 1
        for kind, first in start.items():
            inner = f", and a branch inside of it counts as {width // 8}" if width > 1 else ""
            require(
                self.next[kind] - first <= width,
                f"one side of a branch has more than {width} {kind}s{inner}: use fewer",
            )
        self.next = {kind: first + width for kind, first in start.items()}


class Estimator(Protocol):
    """A local gradient estimator: computes v_t from x_t and its memory."""

    def init(self, x: Vector, net: Net) -> tuple[Vector, Any]:
        """v_0 and the memory for iteration 1."""

    def step(self, x: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """v_t and the memory for iteration t + 1."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Requirements of a fusion on the weight matrix W, besides those of every `Network`."""

    symmetric: bool = False
    smallest_eigenvalue: float = -1.0
    """The smallest eigenvalue of W must be above this. Checked for symmetric W only."""
    static: bool = False
    """Whether W must be the same at every step."""
    doubly_stochastic: bool = True
    """Whether the columns of W must sum to 1, as its rows do; if not, push-pull weights will do."""


class Fusion(Protocol):
    """A fusion rule: computes x_{t+1} from x_t, v_t and its memory."""

    needs: ClassVar[Needs]

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Any]:
        """x_1 and the memory for iteration 1."""

    def step(self, x: Vector, v: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """x_{t+1} and the memory for iteration t + 1."""


class State(NamedTuple):
    """The state of a composed method: the iterate, and the memory of each part."""

    x: Vector
    estimator: Any
    fusion: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A method: `init(x0, net)` performs iteration 0 and returns the state with x_1; `step` performs a later iteration.

    Made by `compose`, or from two functions whose states have an attribute `x`. Two composed methods are equal if their
    parts are; compiled programs are cached by this equality.
    """

    init: Callable[[Vector, Net], Any]
    step: Callable[[Any, Net], Any]
    name: str = "custom"
    parts: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        good = callable(self.init) and callable(self.step) and isinstance(self.name, str)
        require(good, "a method is two functions and a name: give Method(init, step, name='mine')")
        require(
            not self.parts
            or all(getattr(each, "parts", None) is self.parts for each in (self.init, self.step)),
            f"{self.name} has other functions than its parts: compose parts with peer.compose, or give init and step "
            "without parts",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Composed methods are copied and pickled as their parts."""
        return (
            (compose, (*self.parts, self.name))
            if self.parts
            else (Method, (self.init, self.step, self.name))
        )

    @cached_property
    def _places(self) -> dict[str, tuple[int, str]]:
        """For the name of every hyperparameter the number of its part, and its name there.

        A name that both parts have is preceded by that of the part, as in `page_probability`.
        """
        names = [declared(part) for part in self.parts]
        return {
            f"{type(self.parts[k]).__name__}_{name}"
            if all(name in each for each in names)
            else name: (k, name)
            for k, own in enumerate(names)
            for name in own
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """The value of every hyperparameter, by name."""
        return {name: getattr(self.parts[k], own) for name, (k, own) in self._places.items()}

    @cached_property
    def declared(self) -> dict[str, Parameter]:
        """The declaration of every hyperparameter, by name."""
        found = {name: declared(self.parts[k])[own] for name, (k, own) in self._places.items()}
        return (
            with_unit_steps(found)
            if any(isinstance(p, Part) and p.unit for p in self.parts)
            else found
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """The hyperparameters that a compiled program takes as arguments: real numbers and counts.

        Those of a schedule are named `alpha.scale` and so on.
        """
        found: dict[str, Any] = {}
        for name, value in self.parameters.items():
            if isinstance(value, Schedule):
                found |= {f"{name}.{own}": number for own, number in value.numbers.items()}
            elif self.declared[name].is_traced:
                found[name] = self.declared[name].plain(value)
        return found

    @property
    def sizes(self) -> dict[str, Any]:
        """The whole numbers that determine shapes in the program, such as batch sizes."""
        values = self.parameters
        return {name: values[name] for name, p in self.declared.items() if p.kind == Kind.size}

    @property
    def step_size(self) -> str | None:
        """The name of the hyperparameter that is the step size."""
        return next((name for name, p in self.declared.items() if p.role == "step size"), None)

    @property
    def needs(self) -> Needs:
        """The requirements of its fusion on W."""
        return self.parts[1].needs if self.parts else Needs()

    def replace(self, **values: Any) -> Method:
        """The same method with other hyperparameters."""
        if not self.parts:
            require(
                not values,
                f"{self.name} was made by hand and has no parameters to replace: {sorted(values)}",
            )
            return self
        own: list[dict[str, Any]] = [{}, {}]
        for name, value in sorted(
            values.items(), key=lambda pair: "." in pair[0]
        ):  # a schedule before its numbers
            whole, _, number = name.partition(".")
            if whole not in self.declared:
                raise unknown(f"parameter of {self.name}", name, self.declared)
            place, field = self._places[whole]
            if number:
                known = given(own[place].get(field, getattr(self.parts[place], field)))
                if not isinstance(known, Schedule):
                    raise ValueError(
                        f"{name}: {whole} = {known} is no schedule, which has numbers of its own"
                    )
                value = known.replace(**{number: value})
            own[place][field] = value
        estimator, fusion = (
            dataclasses.replace(p, **new) for p, new in zip(self.parts, own, strict=True)
        )
        return compose(estimator, fusion, self.name)

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The hyperparameters that depend on the iteration."""
        return {
            name: value for name, value in self.parameters.items() if isinstance(value, Schedule)
        }

    def at(self, t: Any) -> Method:
        """The method in iteration t: itself, with the numbers that its schedules have then."""
        if not self.schedules:
            return self
        values = {name: schedule(t) for name, schedule in self.schedules.items()}
        return self.replace(
            **{
                name: float(value) if isinstance(t, int) else value
                for name, value in values.items()
            }
        )

    @cached_property
    def pattern(self) -> Method:
        """The method without its numbers. Methods with equal patterns share one compiled program."""
        return self.replace(**dict.fromkeys(self.numbers, OPEN))

    @cached_property
    def later(self) -> Method:
        """The pattern for all iterations but the first, whose own sizes are 1 in it."""
        return self.pattern.replace(**{name: 1 for name, p in self.declared.items() if p.first})

    def __str__(self) -> str:
        """The selector: the method as the command line and the legends of figures have it."""
        shown = ",".join(f"{k}={v}" for k, v in self.parameters.items())
        return f"{self.name}[{shown}]" if shown else self.name

    def __repr__(self) -> str:
        return f"Method({self})"

    @property
    def _identity(self) -> Hashable:
        return self.parts or (self.init, self.step)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


OPEN = object()
"""A placeholder for a number."""


def compose(estimator: Estimator, fusion: Fusion, name: str | None = None) -> Method:
    """The method that passes the estimates v_t of `estimator` to `fusion`.

    With estimator memory m_t and fusion memory q_t, an iteration is (v_t, m_{t+1}) = estimator(x_t, m_t),
    (x_{t+1}, q_{t+1}) = fusion(x_t, v_t, q_t).

    Args:
        estimator: Computes v_t, such as `peer.estimators.hybrid()`.
        fusion: Computes x_{t+1}, such as `peer.fusions.tracking()`.
        name: The method's name; by default "estimator*fusion".

    Returns:
        The method.

    >>> from peerdescent.methods import estimators, fusions
    >>> print(compose(estimators.hybrid(beta=0.01), fusions.exact_diffusion(alpha=0.5)))
    hybrid*exact-diffusion[beta=0.01,batch=1,initial_batch=1,alpha=0.5]
    """
    for part in (estimator, fusion):
        require(
            not isinstance(part, type),
            f"{getattr(part, '__name__', part)} is a class: call it, as in compose(hybrid(), tracking())",
        )
        require(
            dataclasses.is_dataclass(part),
            f"{type(part).__name__} is no dataclass: write @dataclass(frozen=True) above the class of an estimator or "
            "fusion, and its hyperparameters as fields",
        )
    names = [type(part).__name__.replace("_", "-") for part in (estimator, fusion)]
    require(
        not hasattr(estimator, "needs"),
        f"{names[0]} is a fusion, and stands first: give the estimator first, as in compose(hybrid(), tracking())",
    )
    require(
        isinstance(getattr(fusion, "needs", None), Needs),
        f"{names[1]} does not say what it needs of W, as a fusion does: give the class needs = Needs(), with "
        "symmetric=True and so on",
    )

    def init(x0: Vector, net: Net) -> State:
        v, remembered = _pair(estimator.init(x0, net), names[0], "the estimate")
        x, memory = _pair(fusion.init(x0, v, net), names[1], "the iterate")
        return State(x, remembered, memory)

    def step(state: State, net: Net) -> State:
        v, remembered = _pair(
            estimator.step(state.x, state.estimator, net), names[0], "the estimate"
        )
        x, memory = _pair(fusion.step(state.x, v, state.fusion, net), names[1], "the iterate")
        return State(x, remembered, memory)

    parts = estimator, fusion
    functions: tuple[Any, ...] = init, step
    for function in functions:
        function.parts = parts
    return Method(init, step, name or "*".join(names), parts)


def _pair(returned: Any, part: str, first: str) -> tuple[Vector, Any]:
    """What a part returned; refused if it is not a pair."""
    good = isinstance(returned, tuple) and len(returned) == 2
    require(
        good,
        f"{part} returned {type(returned).__name__}: return a pair, {first} and the memory (None without one)",
    )
    pair: tuple[Vector, Any] = returned
    return pair
