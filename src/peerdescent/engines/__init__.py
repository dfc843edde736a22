"""The engines: each supplies the five verbs in its own way, and nothing else differs between them."""

from __future__ import annotations

import os
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

from .registry import ENGINES as ENGINES
from .registry import connect as connect
from .registry import make as make

if TYPE_CHECKING:
    import numpy as np

    from peerdescent.engines.fleet import Fleet, Member
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem

# XLA's CPU compiler can make one machine function of a whole loop instead of a chain of small tasks, which makes tiny
# steps three times faster; it does so for loops that touch fewer bytes than this. XLA reads the variable when it first
# compiles, which is why the package sets it as soon as it is imported.
if "xla_backend_extra_options" not in os.environ.get("XLA_FLAGS", ""):
    _option = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={1 << 30}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_option}".strip()


def remember() -> None:
    """Keep compiled programs on disk between processes, unless the user has said where or that they are not wanted.

    They lie beside the parsed data, in PEERDESCENT_CACHE or the user's cache folder; the variable
    JAX_ENABLE_COMPILATION_CACHE=false turns this off.
    """
    import jax

    from peerdescent.datasets.cache import cache_folder

    config: Any = jax.config
    if config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None:
        folder = cache_folder() / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        config.update("jax_compilation_cache_dir", str(folder))
        # JAX keeps what took a second; programs of ours take less, and a run needs four.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


class Engine(Protocol):
    """What `run` asks of an engine."""

    def warm_up(self, x0: np.ndarray, stationarity: bool = True) -> None:
        """Compile all that there is to compile, so that no clock sees it."""

    def start(self, x0: np.ndarray) -> Any:
        """The state after iteration 0, from x0 (n, p)."""

    def advance(self, state: Any, t: int, until: int) -> Any:
        """The state after iterations t, ..., until - 1."""

    def evaluate(self, x: Any, stationarity: bool = True) -> dict[str, float]:
        """loss, grad_norm, stationarity (if wanted) and consensus at iterates x (n, p)."""

    def gather(self, state: Any) -> Any:
        """The same tree for all nodes in NumPy arrays (n, p), on every process; a copy that nothing changes later."""

    def scatter(self, kept: Any) -> Any:
        """The state that `gather` made a copy of, and again a copy."""


PROGRAMS, LARGE = 3, 16
"""On a GPU the plain program is the faster one from batches of about `LARGE` on, where it shares rows between
configurations; but each pair of sizes is a program of its own, and so worth it for a few of them only."""


def many(members: list[Member], problem: Problem, network: Network, x0: np.ndarray, dtype: Any) -> Fleet:
    """What runs many configurations at once: a kernel of our own on a GPU that can have it, else the plain program."""
    import jax

    from peerdescent.engines.fleet import Fleet
    from peerdescent.runs.record import Books

    # The kernel knows float32 proper only.
    reduced = jax.config.jax_default_matmul_precision != "highest"  # type: ignore[attr-defined]
    if members and jax.default_backend() == "gpu" and not reduced:
        from peerdescent.engines.gpu.kernel import Kernel, supports

        kinds = {member.method.pattern: member.method for member in members}
        # A number of the kernel is whole for all or for none.
        whole = {(k, isinstance(v, Integral)) for member in members for k, v in member.method.numbers.items()}
        uniform = len(whole) == len({name for name, _ in whole})
        batches = [batch for kind in kinds.values() for _, batch in Books(kind, problem.samples, [0.0]).requests]
        few_and_large = len(kinds) <= PROGRAMS and min(batches, default=LARGE) >= LARGE
        if uniform and not few_and_large and all(supports(kind, problem, network, dtype) for kind in kinds.values()):
            return Kernel(members, problem, network, x0, dtype)
    return Fleet(members, problem, network, x0, dtype)
