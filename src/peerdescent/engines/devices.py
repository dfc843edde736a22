"""Where programs run."""

from __future__ import annotations

import jax


def on_gpu() -> bool:
    """Whether programs run on a GPU, by the user's default device if there is one."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return getattr(device, "platform", device or jax.default_backend()) in ("gpu", "cuda")
