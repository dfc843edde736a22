"""Where processes start from: parameters and buffers of another one, or an average of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from peerdescent.engines.channels import Channel
from peerdescent.engines.links import Links
from peerdescent.torch.flat import Flat


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


def _by_type(flat: Flat) -> Iterator[list[Tensor]]:
    """Parameters and buffers, those of one type together."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in flat.all):
        yield [tensor for tensor in flat.all if tensor.dtype == dtype]


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _set(tensors: list[Tensor], values: Tensor) -> None:
    for tensor, piece in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view(tensor.shape))
