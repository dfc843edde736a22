"""What a method is: a pure pair `init`, `step` that speaks to the world through a net of five verbs.

A method is an estimator (what a node believes its own gradient is) composed with a fusion (how the network turns
those beliefs into descent). Neither knows where its vectors live: a vector is anything with `+`, `-` and `*` by a
number, so one text runs over NumPy arrays, JAX arrays and PyTorch tensors. This module defines the contract and
`compose`; the parts are in `estimators` and `fusions`, the named pairs in `named`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from peerdescent.errors import require
from peerdescent.methods.parameters import Kind, Parameter, declared

Vector = Any
Sample = Any


class Net(Protocol):
    """All that a method may ask of the world."""

    def sample(self, batch: int) -> Sample:
        """A fresh, independent sample of `batch` points at every node."""

    def grad(self, x: Vector, sample: Sample) -> Vector:
        """The minibatch gradient at x on that sample; the same sample may be used at several points."""

    def full_grad(self, x: Vector) -> Vector:
        """The exact local gradient (finite sums)."""

    def mix(self, x: Vector) -> Vector:
        """One round of communication: sum_j w_ij x_j at node i."""

    def every(self, period: int, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Call `then` when the iteration counter is a multiple of `period`, `otherwise` when it is not."""


class Calls:
    """Numbers the samples of one iteration, alike on every engine and whichever side of `every` is taken.

    The first sample of an iteration is number 0, inside `every` or not, so that all methods see the same ones. What
    comes after an `every` is numbered 64 further on, however many samples either side drew.
    """

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        """The number of this call."""
        self.next += 1
        return self.next - 1

    @contextlib.contextmanager
    def inside(self, start: int) -> Iterator[None]:
        """Number the calls of one side of an `every` that was entered when `next` was `start`."""
        self.next = start
        yield
        self.next = start + 64


class Estimator(Protocol):
    """A local gradient estimator: v_t from x_t and whatever it remembers."""

    def init(self, x: Vector, net: Net) -> tuple[Vector, Any]:
        """v_0 and the memory for iteration 1."""

    def step(self, x: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """v_t and the memory for iteration t + 1."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a fusion needs of the weight matrix W, besides that it is doubly stochastic and contracts."""

    symmetric: bool = False
    smallest_eigenvalue: float = -1.0
    """The smallest eigenvalue of W lies above this; asked of symmetric W only."""
    static: bool = False
    """Whether W must be the same at every step."""


class Fusion(Protocol):
    """A fusion rule: x_{t+1} from x_t, v_t and whatever it remembers."""

    needs: ClassVar[Needs]

    def init(self, x: Vector, v: Vector, net: Net) -> tuple[Vector, Any]:
        """x_1 and the memory for iteration 1."""

    def step(self, x: Vector, v: Vector, memory: Any, net: Net) -> tuple[Vector, Any]:
        """x_{t+1} and the memory for iteration t + 1."""


class State(NamedTuple):
    """What the next iteration needs: the iterate and what each part remembers."""

    x: Vector
    estimator: Any
    fusion: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A pure pair: `init(x0, net)` performs iteration 0 and returns the state with x_1, `step(state, net)` iteration t.

    Made by `compose`, or by hand from two functions whose states have an attribute `x`. Two composed methods are equal
    when their parts are, which is how a compiled program is found again.
    """

    init: Callable[[Vector, Net], Any]
    step: Callable[[Any, Net], Any]
    name: str = "custom"
    parts: tuple[Any, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The value of every hyperparameter, by name."""
        return {name: getattr(part, name) for part in self.parts for name in declared(part)}

    @cached_property
    def declared(self) -> dict[str, Parameter]:
        """The declaration of every hyperparameter, by name."""
        return {name: parameter for part in self.parts for name, parameter in declared(part).items()}

    @property
    def numbers(self) -> dict[str, Any]:
        """The hyperparameters that a compiled program takes as arguments: real numbers and counts."""
        values = self.parameters
        return {name: p.plain(values[name]) for name, p in self.declared.items() if p.is_traced}

    @property
    def sizes(self) -> dict[str, Any]:
        """The whole numbers that shape the program, such as batch sizes."""
        values = self.parameters
        return {name: values[name] for name, p in self.declared.items() if p.kind == Kind.size}

    @property
    def step_size(self) -> str | None:
        """The name of the hyperparameter that is the step size."""
        return next((name for name, p in self.declared.items() if p.role == "step size"), None)

    @property
    def needs(self) -> Needs:
        """What the method needs of W: what its fusion needs."""
        return self.parts[1].needs if self.parts else Needs()

    def replace(self, **values: Any) -> Method:
        """The same method with other hyperparameters."""
        if not self.parts:
            require(not values, f"{self.name} was made by hand and has no parameters to replace: {sorted(values)}")
            return self
        estimator, fusion = (
            dataclasses.replace(p, **{name: values[name] for name in declared(p) if name in values}) for p in self.parts
        )
        return compose(estimator, fusion, self.name)

    @cached_property
    def pattern(self) -> Method:
        """The same method with its numbers left open: what two configurations of one compiled program share."""
        return self.replace(**dict.fromkeys(self.numbers, OPEN))

    def __str__(self) -> str:
        """The selector of the command line, which is also the legend of a figure."""
        shown = ",".join(f"{k}={v}" for k, v in self.parameters.items())
        return f"{self.name}[{shown}]" if shown else self.name

    @property
    def _identity(self) -> Hashable:
        return self.parts or (self.init, self.step)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


OPEN = object()
"""Stands where a number is still to be filled in."""


def compose(estimator: Estimator, fusion: Fusion, name: str | None = None) -> Method:
    """The method that feeds `estimator`'s v_t to `fusion`.

    >>> from peerdescent.methods import estimators, fusions
    >>> print(compose(estimators.hybrid(beta=0.01), fusions.exact_diffusion(alpha=0.5)))
    hybrid*exact-diffusion[beta=0.01,batch=1,initial_batch=1,alpha=0.5]
    """
    names = [type(part).__name__.replace("_", "-") for part in (estimator, fusion)]
    shared = set(declared(estimator)) & set(declared(fusion))
    require(
        isinstance(getattr(fusion, "needs", None), Needs),
        f"{names[1]} does not say what it needs of W: give the class needs = Needs(), with symmetric=True and so on",
    )
    require(not shared, f"{' and '.join(names)} both have a parameter {shared}: rename it in one of them")

    def init(x0: Vector, net: Net) -> State:
        v, remembered = estimator.init(x0, net)
        x, memory = fusion.init(x0, v, net)
        return State(x, remembered, memory)

    def step(state: State, net: Net) -> State:
        v, remembered = estimator.step(state.x, state.estimator, net)
        x, memory = fusion.step(state.x, v, state.fusion, net)
        return State(x, remembered, memory)

    return Method(init, step, name or "*".join(names), (estimator, fusion))
