"""The verbs of methods in a step of the PyTorch optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from peerdescent.compressors import Compressor
from peerdescent.engines.links import Links
from peerdescent.engines.outline import Mix
from peerdescent.engines.vectors import Vector, pushed
from peerdescent.engines.verbs import Eager
from peerdescent.errors import NotFinite, require
from peerdescent.methods.contract import Calls
from peerdescent.torch.flat import Flat, Surroundings


class Net(Eager):
    """The verbs in iteration t, for one node and one batch: that of a closure, or of gradients that are there already.

    A step returns the loss of the evaluation at x_t, and keeps its changes to random states and
    buffers. If there is no evaluation at x_t, the first one counts. Changes by other evaluations
    are undone.
    """

    def __init__(self, model: Flat, links: Links, turn: Any, t: int) -> None:
        super().__init__(links.seed, t)
        self.model, self.links, self.turn = model, links, turn
        self.closure: Callable[[], Any] | None = None
        self.scale = 1.0
        """What gradients that are there already are to be divided by."""
        self.adds = False
        """Whether the closure may add to gradients that are there already."""
        self.x, self.loss, self.version = model.read(), None, model.version
        self.begun: dict[tuple[int, str], tuple[Vector, Vector]] = {}
        """Rounds that began before the gradients were known: what is mixed, and the result."""
        self.text, self.sent, self.tries = "", False, 0
        """The method's numbers in the first messages of the step, whether this try sent others, and how many failed."""
        self.total: float | None = None
        """The sum of the parameters, if they were sent before the forward pass."""
        self.before: Surroundings | None = None
        self.after: Surroundings | None = None
        self.sampled = False
        self.gradients: list[Vector] = []
        """Those of this step. What they go into is checked; only if that is not finite, they are."""

    def begin(self, rounds: list[Mix], leaves: dict[int, Vector]) -> None:
        """Begin rounds of vectors that are known."""
        for number, _, verb, leaf in rounds:
            assert leaf is not None
            self.must_fit(leaves[leaf].tensor)
            self.total = float(self.x.tensor.sum())
            self.begun[number, verb] = leaves[leaf], getattr(self.turn, verb)(number, leaves[leaf])

    def sample(self, batch: int) -> Surroundings | None:
        """The random states and buffers from which all evaluations of the closure start; its batch has any size."""
        require(
            not self.sampled,
            "the method draws two samples in one step, and a closure holds one: use a method that draws one per step",
        )
        self.sampled = True
        if self.closure is not None:
            self.before = self.model.surroundings()
        return self.before

    def grad(self, x: Vector, sample: Surroundings | None) -> Vector:
        """The gradient of the closure at x, or that of the parameters."""
        if self.closure is None:
            grad = self.model.gradient()
            grad = grad if self.scale == 1 else grad / self.scale
        else:
            assert sample is not None
            self.model.restore(sample)
            loss, grad = self.model.evaluate(x, self.closure, self.adds)
            value = (
                loss
                if isinstance(loss, Tensor)
                else torch.tensor(loss if isinstance(loss, int | float) else 0.0)
            )
            self.must_be_finite(value, "loss")
            if self.after is None or x is self.x:
                self.loss, self.after = loss, self.model.surroundings()
        self.gradients.append(grad)
        return grad

    def full_grad(self, x: Vector) -> Vector:
        """An error: a closure has one batch only. The optimizer refuses methods with exact gradients beforehand."""
        raise ValueError(
            "a closure knows one batch, not all data of a node: use a method without exact gradients"
        )

    def _round(self, verb: str, number: int, x: Any) -> Any:
        known, result = self.begun.get((number, verb), (None, None))
        if result is not None and known is x:
            return result
        self.must_fit(x.tensor if isinstance(x, Vector) else x)
        self.sent = True
        return getattr(self.turn, verb)(number, x)

    _pushed = pushed

    def compress(self, x: Vector, operator: Compressor) -> Vector:
        """C(x), which `mix` sends as the bytes that it was encoded in."""
        self.must_be_finite(x.tensor, "vector to compress")
        found: Vector = self.turn.compress(x, operator, self._compression())
        return found

    def prox(self, x: Vector, step: float) -> Vector:
        """x itself: a closure has no non-smooth term."""
        return x

    def dot(self, x: Vector, y: Vector) -> Tensor:
        """This node's inner product."""
        found = torch.dot(x.tensor, y.tensor)
        if self.model.site is not None:
            dist.all_reduce(found, group=self.model.site)
        return found

    def must_fit(self, x: Tensor) -> None:
        """Stop all processes if x, or what is sent of it, is not finite."""
        self.must_be_finite(x, "vector to mix")
        kind = self.links.message
        if kind is not None and torch.finfo(kind).max < torch.finfo(x.dtype).max:
            self.must_be_finite(
                x.to(kind), f"vector to mix, as {str(kind).removeprefix('torch.')},"
            )

    def must_be_finite(self, x: Tensor, what: str) -> None:
        """Stop all processes if x is not finite, before it is mixed."""
        # A sum is finite only if all numbers are, and takes less time than to look at each.
        bad = 0
        if not math.isfinite(float(x.sum())):
            bad = int((~x.isfinite()).sum())
        if self.model.site is not None:
            counted = torch.tensor([bad], device=x.device)
            dist.all_reduce(counted, group=self.model.site)
            bad = int(counted)
        if bad:
            gradients, self.gradients = self.gradients, []
            for gradient in gradients:  # they are the cause, if they are not finite either
                self.must_be_finite(gradient.tensor, "gradient")
            self.links.channel.stop(
                f"rank {self.links.rank}: {bad} of {x.numel()} numbers of the {what} are not finite in step {self.t}, "
                "and nobody has mixed them: look at its batch, or take "
                "a smaller lr, and go on with a new optimizer, with start='keep' or from a checkpoint",
                NotFinite,
            )

    def is_as_sent(self) -> bool:
        """Whether the parameters are those that were sent; changes through `data` have no version."""
        return self.total is None or float(self.x.tensor.sum()) == self.total

    def numbered(self, numbers: str) -> str:
        """What messages of this step say of the numbers; those of another try are not taken for the first ones."""
        return f"{numbers}, try {self.tries + 1}" if self.tries else numbers

    def again(self) -> None:
        """Make ready for another try at the same step, in which what has begun is used.

        A try that has sent nothing else is as good as none: this process may make the next one
        alone.
        """
        self.tries, self.sent = self.tries + self.sent, False
        self.calls, self.sampled, self.before, self.after, self.gradients = (
            Calls(),
            False,
            None,
            None,
            [],
        )
        self.version = self.model.version

    def leave(self, x: Vector, saved: Surroundings | None) -> None:
        """End the step: set the parameters to x, and restore `saved` if there is any."""
        self.model.write(x)
        if self.closure is not None:
            self.model.forget()
        if saved is not None:
            self.model.restore(saved)
