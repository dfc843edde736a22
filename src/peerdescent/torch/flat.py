"""A model as one vector: its trainable parameters are pieces of one tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from peerdescent.engines.vectors import Pool, Vector
from peerdescent.errors import require

WRAPPERS = {
    "DistributedDataParallel": "averages gradients itself: give model.module, and call that in the closure; where "
    "Accelerate, Trainer or Lightning made it, call peerdescent.torch.alone() first; inside a site, give it with "
    "process_group=, the processes that link the sites",
    "FullyShardedDataParallel": "divides the parameters over the processes: give the model without it",
    "FSDPModule": "divides the parameters over the processes, by fully_shard: give the model without it",
    "DTensor": "divides a tensor over the processes: give a model of plain tensors",
}
"""Classes of PyTorch that communicate by themselves, and what to do instead."""


gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""It has another name in later versions of PyTorch."""


class Surroundings(NamedTuple):
    """What an evaluation reads and changes besides parameters: random states of CPU and GPU, and the buffers."""

    cpu: Tensor
    gpu: Tensor | None
    buffers: list[Tensor]


class Flat:
    """The trainable parameters of a model as one vector (p,).

    The parameters are moved once, into one tensor, and stay there: reading them costs nothing.
    Parameters of less than 32 bits are rounded copies of a vector in float32, in which the method
    computes.

    Args:
        model: The module.
        site: The processes that train the same model together, each of which has a piece of the
            vector; or None.
    """

    def __init__(self, model: nn.Module, site: Any = None) -> None:
        self.model, self.site = model, site
        self.inner = next(model.children()) if site is not None else model
        """The model itself, without what averages gradients over the site."""
        for thing in (*self.inner.modules(), *self.inner.parameters()):
            refuse_wrapped(thing)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.all = [*model.parameters(), *model.buffers()]
        require(
            bool(self.trained),
            "the model has no trainable parameter: set requires_grad where it should learn",
        )
        dtypes, devices = (
            dict.fromkeys(p.dtype for p in self.trained),
            dict.fromkeys(t.device for t in self.all),
        )
        require(
            len(dtypes) == 1 and next(iter(dtypes)).is_floating_point,
            f"trainable parameters are of {listed(dtypes)}: all must be of one real floating type, since they are one "
            "vector; convert with model.to(torch.float32), or freeze the others",
        )
        dtype, self.device = next(iter(dtypes)), next(iter(devices))
        require(
            len(devices) == 1 and self.device.type in ("cpu", "cuda"),
            f"parameters and buffers are on {listed(devices)}: all must be on the CPU or on one GPU; "
            "move them with model.to(device)",
        )
        self.sizes = [p.numel() for p in self.trained]
        self.layout = [(module, *_entries(module)) for module in model.modules()]
        self.choice = [(p, p.requires_grad) for p in model.parameters()]
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        sites = 1 if site is None else dist.get_world_size(site)
        each = -(-sum(self.sizes) // sites)
        begin = 0 if site is None else each * dist.get_rank(site)
        self.dtype = dtype if torch.finfo(dtype).eps < 1e-4 else torch.float32
        self.memory = torch.zeros(each * sites, dtype=dtype, device=self.device)
        """The parameters, one after the other, and zeros up to a multiple of the number of pieces."""
        self.here = self.memory[begin : begin + each]
        self.piece = slice(begin, begin + each)
        self.pool = Pool(torch.empty(each, dtype=self.dtype, device=self.device))
        self.whole = (
            self.pool if site is None else Pool(torch.empty_like(self.memory, dtype=self.dtype))
        )
        self.homes = self.views(self.memory, apart=True)
        self.known: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self.moved = 0
        """How often parameters were found with other memory than that of the vector."""
        self.home()
        self.shown: Any = None
        """A reference to the vector whose values the parameters have."""
        self.master: Vector | None = None
        """In float32, what the parameters are rounded from."""

    def views(self, flat: Tensor, apart: bool = False) -> list[Tensor]:
        """Pieces of a vector, in the shapes of the parameters and in their order of memory.

        With `apart` each has a storage of its own, of its own size, in the same memory: libraries
        that store models take tensors of one storage for copies of each other, and leave them out.
        """
        pieces: Sequence[Tensor] = flat[: sum(self.sizes)].split(self.sizes)
        if apart:
            pieces = [from_dlpack(piece) if piece.numel() else piece for piece in pieces]
        found = []
        for p, piece in zip(self.trained, pieces, strict=True):
            orders = {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(p.dim(), [])
            kept = any(p.is_contiguous(memory_format=order) for order in orders)
            found.append(
                piece.as_strided(p.size(), p.stride(), piece.storage_offset())
                if kept
                else piece.view(p.size())
            )
        return found

    def views_again(self, flat: Tensor) -> list[Tensor]:
        """The same, kept for the next time: vectors of a pool use the same memory again and again."""
        kept = self.known.get(flat.data_ptr())
        if kept is None or kept[0] is not flat:
            kept = self.known[flat.data_ptr()] = flat, self.views(flat)
        return kept[1]

    def home(self) -> None:
        """Move parameters into the common memory: at the beginning all of them, later those that were given others."""
        for p, view in zip(self.trained, self.homes, strict=True):
            if p.data_ptr() != view.data_ptr() or p.stride() != view.stride():
                require(
                    (p.dtype, p.device, p.shape) == (view.dtype, view.device, view.shape),
                    f"a parameter was {_described(view)} when the optimizer was made, and is {_described(p)} now: "
                    "convert or move the model first, and make the optimizer then",
                )
                view.copy_(p.detach())
                p.data = view
                self.moved += 1

    def check(self) -> None:
        """Refuse a model whose trained parameters are not those that it had at the beginning."""
        same = all(_entries(module) == (own, below) for module, own, below in self.layout)
        if not same or any(p.requires_grad is not trains for p, trains in self.choice):
            self._check_by_name()
        self.home()

    def _check_by_name(self) -> None:
        named = dict(self.model.named_parameters())
        now, then = (
            {id(p) for p in named.values() if p.requires_grad},
            {id(p) for p in self.trained},
        )
        if now == then:
            return
        new = [name for name, p in named.items() if p.requires_grad and id(p) not in then]
        old = [name for name, p in self.named.items() if not p.requires_grad]
        replaced = [
            name for name, p in self.named.items() if name in named and named[name] is not p
        ]
        what, remedy = "some were removed", "set requires_grad as it was"
        if new:
            what = f"{new[0]} was not trained then, and is now"
        if old:
            what = f"{old[0]} was trained then, and is frozen now"
        if replaced:
            what = f"{replaced[0]} is another one, as load_state_dict(..., assign=True) makes it"
            remedy = "load without assign, or set values in place, as in parameter.copy_(value)"
        raise ValueError(
            f"the parameters to train have changed since the optimizer was made: {what}; {remedy}, or make a new "
            "optimizer in all processes, with start='keep'"
        )

    @property
    def version(self) -> int:
        """A number that grows when the parameters change: in place, by other memory, or here."""
        return self.moved + sum(p._version for p in self.trained)

    def read(self) -> Vector:
        """The parameters, as they are in memory; their values are kept elsewhere before that is used for others."""
        if self.memory.dtype != self.dtype:
            return self._unrounded()
        x = self.shown and self.shown()
        if x is None or not x.is_at(self.here):
            x = self.pool.lent(self.here)
            self.shown = weakref.ref(x)
        return x

    def _unrounded(self) -> Vector:
        """What the parameters are rounded from; where somebody has changed them since, what they are now."""
        if self.master is None:
            self.master = self.pool.copy(self.here)
        kept = self.master.tensor
        changed = kept.to(self.here.dtype) != self.here
        if bool(changed.any()):
            self.master = self.pool.own(torch.where(changed, self.here.to(self.dtype), kept))
        return self.master

    def write(self, x: Vector) -> None:
        """Set the parameters."""
        now = self.shown and self.shown()
        if now is x:
            return
        if now is not None and now.is_at(self.here):
            self.settle(now)
        self.here.copy_(x.tensor)
        torch.autograd.graph.increment_version(
            self.trained
        )  # so PyTorch refuses a backward pass from before
        self.shown = weakref.ref(x)
        if self.memory.dtype != self.dtype:
            self.master = x
        if self.site is not None:
            gather(self.memory, self.here.clone(), group=self.site)

    def settle(self, x: Vector) -> None:
        """Give a vector memory of its own, if it has that of the parameters."""
        if x.is_at(self.here):
            x.move(self.pool.take().copy_(self.here))

    def gradient(self) -> Vector:
        """The gradients that the parameters have, as one vector; zero where there is none."""
        whole = self.whole.take()
        found = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.trained]
        whole[sum(self.sizes) :].zero_()
        torch._foreach_copy_(self.views_again(whole), [grad.detach() for grad in found])
        if self.site is None:
            return self.pool.own(whole)
        mine = self.pool.copy(whole[self.piece])
        self.whole.free.append(whole)
        return mine

    @property
    def has_gradients(self) -> bool:
        """Whether a parameter has a gradient."""
        return any(p.grad is not None for p in self.trained)

    def refuse_gradients(self) -> None:
        """Refuse gradients from before a step: a step with a closure takes those that the closure computes."""
        found = [p.grad for p in self.trained if p.grad is not None]
        require(
            not any(bool(grad.to_dense().count_nonzero()) for grad in found),
            f"{len(found)} parameters have gradients before the step, which would be lost, since a step takes those of "
            "its closure: compute the mean loss of all batches in the closure, or call zero_grad() first",
        )

    def surroundings(self) -> Surroundings:
        """A copy of the current random states and buffers."""
        gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return Surroundings(
            torch.get_rng_state(), gpu, [b.detach().clone() for b in self.model.buffers()]
        )

    def restore(self, saved: Surroundings) -> None:
        """Restore random states and buffers."""
        torch.set_rng_state(saved.cpu)
        if saved.gpu is not None:
            torch.cuda.set_rng_state(saved.gpu, self.device)
        for buffer, value in zip(self.model.buffers(), saved.buffers, strict=True):
            buffer.detach().copy_(value)

    def evaluate(self, x: Vector, closure: Callable[[], Any], adds: bool) -> tuple[Any, Vector]:
        """The closure's value at x, and its gradient (p,), zero for parameters that the loss does not depend on.

        If it `adds`, a closure that calls `backward` itself may leave gradients of earlier batches
        where they are, and add to them.
        """
        self.write(x)
        if not adds:
            self.forget()
        before = [(p.grad, p.grad is not None and p.grad._version) for p in self.trained]
        with torch.enable_grad():
            loss = closure()
            now = [(p.grad, p.grad is not None and p.grad._version) for p in self.trained]
            changed = any(
                a is not b or old != new for (a, old), (b, new) in zip(before, now, strict=True)
            )
            if not changed:  # it has not called `backward`
                self.refuse_gradients()
            if not changed or not self.has_gradients:
                what = type(loss).__name__
                require(
                    isinstance(loss, Tensor),
                    f"the closure returned a {what}: return the loss, a tensor",
                )
                loss.backward()
        found = self.gradient()
        self.forget()
        return loss.detach() if isinstance(loss, Tensor) else loss, found

    def forget(self) -> None:
        """Remove the gradients from the model, since they may be of another point."""
        for p in self.trained:
            p.grad = None

    def by_parameter(self, values: Sequence[float]) -> Vector:
        """A vector with one value for each parameter's entries."""
        whole = self.whole.take().fill_(
            values[0]
        )  # what no parameter has is multiplied and divided by it, too
        for view, value in zip(self.views_again(whole), values, strict=True):
            view.fill_(value)
        if self.site is None:
            return self.pool.own(whole)
        mine = self.pool.copy(whole[self.piece])
        self.whole.free.append(whole)
        return mine


def _entries(module: nn.Module) -> tuple[list[int], list[int]]:
    """Which parameters and modules a module has of its own."""
    return [*map(id, module._parameters.values())], [*map(id, module._modules.values())]


def refuse_wrapped(thing: object) -> None:
    """Refuse a module or tensor that communicates by itself."""
    for kind in type(thing).__mro__:
        if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
            raise ValueError(f"the model has a {kind.__name__}, which {WRAPPERS[kind.__name__]}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"


def listed(things: dict[Any, None]) -> str:
    """Types or devices in words."""
    return " and ".join(str(thing).removeprefix("torch.") for thing in things)
