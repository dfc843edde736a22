"""A compiler option that must be set before JAX compiles anything."""

from __future__ import annotations

import os

# XLA's CPU compiler can compile a whole loop to one machine function instead of a sequence of small
# tasks. That makes small steps three times faster. It does so for loops that access fewer bytes
# than this. XLA reads the variable when it first compiles, so the package sets it on import.
if "xla_backend_extra_options" not in os.environ.get("XLA_FLAGS", ""):
    _option = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={1 << 30}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_option}".strip()
