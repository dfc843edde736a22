"""A cache of compiled programs on disk, shared between processes."""

from __future__ import annotations

import warnings
from typing import Any

import jax

from peerdescent.datasets.cache import cache_folder


def remember() -> None:
    """Make JAX store compiled programs on disk, unless the user has set a folder for them or switched this off.

    The folder is that of the parsed data: PEERDESCENT_CACHE, or the user's cache folder. The
    variable JAX_ENABLE_COMPILATION_CACHE=false turns this off.
    """
    # JAX writes entries in place, so another process may read a part of one. It compiles the
    # program itself then.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )
    config: Any = jax.config
    if config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None:
        folder = cache_folder() / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        config.update("jax_compilation_cache_dir", str(folder))
        # By default JAX stores programs that took a second to compile. Ours take less, and a run
        # needs four.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
