"""Whole models between processes: where they start from, and the average of all."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from peerdescent.engines.channels import Channel
from peerdescent.engines.links import Links
from peerdescent.torch.flat import Flat

FEW = 3
"""So many differences are named."""


def same_model(channel: Channel, flat: Flat) -> None:
    """Raise a ValueError in every process if their models differ in shapes, or in what is trained; it says in what."""
    shapes = [(*tensor.shape, tensor.requires_grad) for tensor in flat.all]
    own = f"{len(shapes)} {shapes}".encode()
    told_as = "\n".join(words(flat)).encode()
    facts = [int.from_bytes(hashlib.sha256(own).digest()[:7], "big"), len(told_as)]
    told = channel.everyone(torch.tensor(facts, device=channel.device), "models").tolist()
    kinds = [kind for kind, _ in told]
    if len(set(kinds)) == 1:
        return
    longest = max(length for _, length in told)
    padded = torch.frombuffer(bytearray(told_as.ljust(longest)), dtype=torch.uint8).to(
        channel.device
    )
    texts = [
        bytes(row.tolist()).decode().rstrip().split("\n")
        for row in channel.everyone(padded, "words for models")
    ]
    usual = Counter(kinds).most_common(1)[0][0]
    other = next(rank for rank, kind in enumerate(kinds) if kind != usual)
    alike = [rank for rank, kind in enumerate(kinds) if kind == usual]
    pairs = list(itertools.zip_longest(texts[other], texts[alike[0]], fillvalue="nothing"))
    apart = [f"{mine} where the others have {theirs}" for mine, theirs in pairs if mine != theirs]
    more = f", and {len(apart) - FEW} others" if len(apart) > FEW else ""
    others = ", ".join(str(channel.names[rank]) for rank in alike)
    raise ValueError(
        f"rank {channel.names[other]} has another model than rank{'s' * (len(alike) > 1)} {others}: "
        f"{', '.join(apart[:FEW])}{more}; make the same model in all processes, with the same parameters to train"
    )


def words(flat: Flat) -> Iterator[str]:
    """Each parameter and buffer in words."""
    for name, tensor in (*flat.model.named_parameters(), *flat.model.named_buffers()):
        is_frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        yield f"{name} {tuple(tensor.shape)}{' frozen' * is_frozen}"


def start_alike(channel: Channel, flat: Flat) -> None:
    """All take the parameters and buffers of rank 0."""
    with torch.no_grad():
        for own in _by_type(flat):
            _set(own, channel.first(_joined(own), "start"))


def welcome(channel: Channel, links: Links, flat: Flat, new: Sequence[int]) -> None:
    """Processes that came take the average of the neighbours that were there: parameters and buffers."""
    old, ends = [k for k in range(channel.world) if k not in new], links.links.ends.tolist()
    with torch.no_grad():
        for k in new:
            near = {b if a == k else a for a, b in ends if k in (a, b)}
            givers = [j for j in old if j in near] or old[:1]
            for own in _by_type(flat):
                values = _joined(own)
                what = f"welcome of rank {channel.names[k]}, {values.dtype}"
                if links.rank in givers:
                    channel.exchange({k: values}, [], values, what, number=k)
                elif links.rank == k:
                    heard = channel.exchange({}, givers, values, what, number=k)
                    taken = torch.stack([heard[j] for j in givers])
                    _set(own, taken.mean(dim=0) if values.is_floating_point() else taken[0])
    flat.master = None if links.rank in new else flat.master


def consensus(flat: Flat, mean: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The model's `state_dict` with trained parameters and real buffers averaged by `mean`, which gets one tensor.

    Other entries are copies of this process's own.
    """
    entries = flat.inner.state_dict(keep_vars=True)
    shared = {
        name: value
        for name, value in entries.items()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and not (isinstance(value, nn.Parameter) and not value.requires_grad)
    }
    averaged = {
        name: copy.deepcopy(value.detach() if isinstance(value, Tensor) else value)
        for name, value in entries.items()
        if name not in shared
    }
    for dtype in dict.fromkeys(value.dtype for value in shared.values()):
        own = {
            id(value): value.detach() for value in shared.values() if value.dtype == dtype
        }  # tied ones once
        pieces = mean(_joined([*own.values()])).split([value.numel() for value in own.values()])
        means = dict(zip(own, pieces, strict=True))
        for name, value in shared.items():
            if value.dtype == dtype:
                averaged[name] = means[id(value)].view(value.shape).clone()
    return {name: averaged[name] for name in entries}


def _by_type(flat: Flat) -> Iterator[list[Tensor]]:
    """Parameters and buffers, those of one type together."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in flat.all):
        yield [tensor for tensor in flat.all if tensor.dtype == dtype]


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _set(tensors: list[Tensor], values: Tensor) -> None:
    for tensor, piece in zip(
        tensors, values.split([tensor.numel() for tensor in tensors]), strict=True
    ):
        tensor.copy_(piece.view(tensor.shape))
