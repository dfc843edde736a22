"""An option of the compiler that has to be set before JAX compiles anything."""

from __future__ import annotations

import os

# XLA's CPU compiler can make one machine function of a whole loop instead of a chain of small tasks, which makes tiny
# steps three times faster; it does so for loops that touch fewer bytes than this. XLA reads the variable when it first
# compiles, which is why the package sets it as soon as it is imported.
if "xla_backend_extra_options" not in os.environ.get("XLA_FLAGS", ""):
    _option = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={1 << 30}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_option}".strip()
