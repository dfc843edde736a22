"""What PyTorch calls on behalf of an optimizer before a forward pass.

A model holds no reference to its optimizer, so that it can be copied and stored without it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from peerdescent.torch.flat import Flat, refuse_wrapped


class Optimizer(Protocol):
    """What is called."""

    flat: Flat

    def begin_ahead(self) -> None:
        """A forward pass is about to begin."""


class Hook:
    """What a model calls before its forward pass: its optimizer. A copy of the model, or a stored one, has none."""

    def __init__(self, optimizer: Optimizer | None = None) -> None:
        self.optimizer = None if optimizer is None else weakref.ref(optimizer)

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        """Begin what can begin."""
        if torch.compiler.is_compiling():  # the rounds of a compiled model begin in `step`
            return
        optimizer = None if self.optimizer is None else self.optimizer()
        if optimizer is not None:
            around = nn.parallel.DistributedDataParallel._active_ddp_module
            if around is not None and around is not optimizer.flat.model:
                refuse_wrapped(around)
            optimizer.begin_ahead()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


def install(optimizer: Optimizer) -> None:
    """Have the model call its optimizer, and no earlier one."""
    model = optimizer.flat.model
    for key in [key for key, hook in model._forward_pre_hooks.items() if isinstance(hook, Hook)]:
        del model._forward_pre_hooks[key]
    model.register_forward_pre_hook(Hook(optimizer))


def watching(flat: Flat, closure: Callable[[], Any]) -> Callable[[], Any]:
    """The closure, which also looks for a wrapper that it calls around the model."""
    trained = {id(p) for p in flat.trained}

    def look(module: nn.Module, _: Any) -> None:
        if module is not flat.model and any(id(p) in trained for p in module.parameters()):
            refuse_wrapped(module)

    def watched() -> Any:
        with nn.modules.module.register_module_forward_pre_hook(look):
            return closure()

    return watched
