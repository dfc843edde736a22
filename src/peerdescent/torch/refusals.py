"""What the optimizer refuses: arguments that it cannot be made of, and states that are of another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from peerdescent.engines.outline import Outline
from peerdescent.errors import require
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.runs.checks import check_network
from peerdescent.torch.flat import listed
from peerdescent.torch.members import log

STARTS = ("rank 0", "keep")
"""Where processes start from: all from the parameters and buffers of rank 0, or each from its own."""

LOSSES = ("stop", "continue")
"""What happens when a process is lost."""

MESSAGES = (None, torch.bfloat16, torch.float16, torch.float32)
"""Types in which vectors may be sent; None is their own."""


def check_arguments(
    model: Any, method: Any, network: Any, start: str, on_loss: str, message: Any
) -> str:
    """Refuse arguments that are not of their kind; returns the name of the method's step size."""
    kinds = (("model", model, nn.Module), ("method", method, Method), ("network", network, Network))
    for name, value, kind in kinds:
        require(
            isinstance(value, kind), f"{name} is a {type(value).__name__}: give a {kind.__name__}"
        )
    require(start in STARTS, f"start = {start!r}: must be {' or '.join(map(repr, STARTS))}")
    require(on_loss in LOSSES, f"on_loss = {on_loss!r}: must be {' or '.join(map(repr, LOSSES))}")
    require(
        message in MESSAGES, f"message = {message}: must be one of {', '.join(map(str, MESSAGES))}"
    )
    rate: str | None = method.step_size
    require(
        rate is not None,
        f"{method.name} has no step size that a schedule could set: make the method of an estimator and a fusion, "
        "with peer.compose",
    )
    assert rate is not None
    require(
        rate not in method.schedules,
        f"{rate} = {method.parameters[rate]} is a schedule: give a number, and use a scheduler of PyTorch on lr",
    )
    return rate


def check_use(method: Method, does: Outline, network: Network, in_sites: bool) -> None:
    """Refuse a method that cannot be used like that; `does` is what it does, and `in_sites` if sites have several."""
    require(
        not does.takes_exact,
        f"{method.name} takes exact local gradients, and a step knows one batch only: "
        "use a method without exact gradients, such as d-get",
    )
    check_network(method, network)
    require(
        not network.faults,
        f"the network has faults ({', '.join(map(str, network.faults))}), which peer.run simulates; training has "
        "those of its own links: leave them out",
    )
    require(
        not in_sites or not does.compresses,
        f"{method.name} compresses whole vectors, and each process of a site has a piece: use one process a site",
    )


def check_state(
    group: Mapping[str, Any],
    held: Mapping[str, Any],
    about: Mapping[str, str],
    place: Any,
    p: int,
    leaves: Iterable[str],
) -> None:
    """Refuse a state of another method, network, process or number of parameters, or without the method's own.

    Args:
        group: The first parameter group of the state.
        held: What its process remembered.
        about: What parameter groups of this optimizer say of its method and network.
        place: The node of this process, and its number in a site.
        p: The size of its vectors.
        leaves: The names of what the method remembers after a step.
    """
    name, rank = group.get("method"), held.get("rank")
    require(
        name == about["method"],
        f"the state is of {name}, and this optimizer runs {about['method']}: make it with the method of the state",
    )
    require(
        group.get("computes") == about["computes"],
        f"the state is of another {name}, which computes something else: make it with the method of the state",
    )
    require(
        rank in (None, place),
        f"the state is of rank {rank}, and this is rank {place}: every process saves and loads its own",
    )
    require(
        group.get("network") == about["network"],
        f"the state is of {group.get('network')}, and this optimizer has {about['network']}: make it with the network "
        "of the state",
    )
    sizes = {value.numel() for value in held.values() if isinstance(value, Tensor)}
    require(
        sizes <= {1, p},
        f"the state is of {listed(dict.fromkeys(sizes))} parameters, and the model has {p} to train: load "
        "the state of this model",
    )
    lacks = [name for name in leaves if name not in held]
    require(
        not held.get("step") or not lacks,
        f"the state is of step {held.get('step')} and has nothing of what {name} remembers: its process had joined the "
        "others and made no step yet; let all processes load checkpoints of a later step, or of an earlier one",
    )


def check_time(held: Mapping[str, Any], came: int, met: int) -> None:
    """Refuse a state in a process that has joined others in a step, or one of before all met; say if it came later."""
    require(
        not came,
        f"this process has joined the others at step {came}, and has their parameters: its state of step "
        f"{held.get('step', 0)} does not fit theirs; load no checkpoint, of the model neither, unless optimizer.steps "
        "is 0. To go back, start all processes anew, with a new store",
    )
    require(
        held.get("step", 0) >= met,
        f"the state is of step {held.get('step', 0)}, and the processes have met at step {met} to go on after a loss: "
        "to go back, start all anew, with a new store",
    )
    if "came" in held:
        log.warning(
            "the state is of rank %s, which had joined the others at step %d: lr and other numbers in it are those of "
            "its own schedulers; take 'param_groups', and the state of schedulers, from a process that had not",
            *(held.get("rank"), held["came"]),
        )
