"""Where programs run."""

from __future__ import annotations

import os

import jax

from peerdescent import errors


def on_gpu() -> bool:
    """Whether programs run on a GPU, by the user's default device if there is one."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return getattr(device, "platform", device or jax.default_backend()) in ("gpu", "cuda")


def memory() -> int:
    """The bytes of memory for programs: the GPU's, or those that this process may use."""
    if not on_gpu():
        return int(min(errors.memory(), 1e18))
    return int((jax.devices()[0].memory_stats() or {}).get("bytes_limit", 1 << 33))


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
