"""Shared by all tests: environment, memory limit, small problems, and the states of a run in float64."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings

import children
import peerdescent as peer
from peerdescent.engines.registry import engine_class
from peerdescent.problems.keys import below, node_keys

children.restore_signals()
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("random", max_examples=1000, deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(PROFILE)

MEMORY = 2 << 30
"""Bytes that a process of the tests may use."""
KINDS = ("browser", "docs", "processes", "science")
"""The folders of slow tests; the name of the folder is their marker."""
COMPILED_QUICKLY = ("methods", "engines", "problems", "sweeps", "processes")
"""The folders with many short programs, for which full optimisation takes longer than everything else.

Their programs are fully optimised in profile `random` only; those of other folders always."""
PEAKS = pytest.StashKey[dict[str, int]]()
"""The most memory that each process of the tests used, in bytes."""


def pytest_configure(config):
    """Make child processes import this checkout, and give all processes of a session one new cache."""
    for kind in KINDS:
        config.addinivalue_line("markers", f"{kind}: the tests in tests/{kind}, which take long")
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist inherits the environment of its parent
    paths = [str(children.SOURCE), str(children.TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    folder = tempfile.TemporaryDirectory(prefix="peerdescent-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["PEERDESCENT_CACHE"] = folder.name
    config.stash[PEAKS] = {}


def pytest_collection_modifyitems(items):
    for item in items:
        for kind in KINDS:
            if children.TESTS / kind in item.path.parents:
                item.add_marker(kind)


@pytest.fixture(scope="module", autouse=True)
def _programs(request):
    """Set how programs are compiled, here and in children; drop them after a module that leaves much memory in use."""
    quickly = PROFILE == "fixed" and request.path.parent.name in COMPILED_QUICKLY
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(quickly).lower())
        jax.config.update("jax_disable_most_optimizations", quickly)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
    if memory("VmRSS") > MEMORY // 2:
        jax.clear_caches()


def memory(name: str) -> int:
    """The memory of this process in bytes: VmRSS, current, or VmHWM, peak; 0 if the system does not report it."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
    except OSError:
        return 0


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fail a session in which a process used too much memory."""
    config, peak = session.config, memory("VmHWM")
    if hasattr(config, "workerinput"):
        config.workeroutput["peak"] = peak
        return
    config.stash[PEAKS]["this process"] = peak
    if max(config.stash[PEAKS].values()) > MEMORY and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Store the peak memory of a worker that has ended."""
    node.config.stash[PEAKS][node.gateway.id] = getattr(node, "workeroutput", {}).get("peak", 0)


def pytest_terminal_summary(terminalreporter, config):
    peaks = config.stash[PEAKS]
    shown = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in sorted(peaks.items()))
    verdict = f": the limit is {MEMORY / 1e9:.2f} GB" if max(peaks.values()) > MEMORY else ""
    terminalreporter.write_line(f"peak memory: {shown}{verdict}", red=bool(verdict))


def small_logistic(nodes: int = 6, samples: int = 11, features: int = 5, **options):
    data = peer.datasets.synthetic(nodes * samples, features, seed=3)
    return peer.problems.logistic(data.partition(nodes), **options)


def small_quadratic(nodes: int = 6, p: int = 5, seed: int = 0, noise: float = 0.3):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(nodes, p, p))
    return peer.problems.quadratic((root + root.transpose(0, 2, 1)) / 8 + np.eye(p), rng.normal(size=(nodes, p)), noise)


def small_streaming(nodes: int = 6):
    return peer.problems.streaming(nodes, features=5)


def _mlp(params, batch):
    features, labels = batch
    hidden = jnp.tanh(features @ params["in"] + params["bias"])
    return jnp.mean(jax.nn.softplus(-labels * (hidden @ params["out"])))


def small_loss(nodes: int = 6):
    rng = np.random.default_rng(5)
    params = {"in": rng.normal(size=(4, 3)) / 2, "bias": np.zeros(3), "out": rng.normal(size=3)}
    return peer.problems.loss(_mlp, params, peer.datasets.synthetic(nodes * 9, 4, seed=4).partition(nodes))


PROBLEMS = {
    "logistic": small_logistic,
    "quadratic": small_quadratic,
    "streaming": small_streaming,
    "loss": small_loss,
}


@dataclass(frozen=True)
class Compiled:
    """An oracle with compiled functions, so that the debug engine, which calls them node by node, is fast."""

    oracle: Any

    @property
    def finite(self):
        return self.oracle.finite

    @partial(jax.jit, static_argnums=(0, 3), inline=True)
    def draw(self, key, data, batch):
        return self.oracle.draw(key, data, batch)

    @partial(jax.jit, static_argnums=0, inline=True)
    def grad(self, x, sample, data):
        return self.oracle.grad(x, sample, data)

    @partial(jax.jit, static_argnums=0, inline=True)
    def exact(self, x, data):
        return self.oracle.exact(x, data)


def compiled(problem):
    """The same problem, fast on the debug engine."""
    return replace(problem, oracle=Compiled(problem.oracle))


@cache
def drawn(seed: int, nodes: int, samples: int, batch: int, steps: int) -> np.ndarray:
    """The rows that the package draws in iterations 0, ..., steps - 1, with `samples` per node (steps, n, batch)."""

    def draw(seed, t):
        return jax.vmap(lambda key: below(key, jnp.asarray(samples), batch))(node_keys(seed, jnp.arange(nodes), t))

    return np.asarray(jax.jit(jax.vmap(draw, (None, 0)))(jnp.uint32(seed), jnp.arange(steps)))


def states(method, problem, network, steps: int, *, seed: int = 0, x0=None, engine: str = "stacked") -> Iterator:
    """The states after iterations 0, 1, ..., steps - 1, as NumPy float64 (they hold x_1, x_2, ..., x_steps)."""
    x0 = np.zeros((problem.nodes, problem.dimension)) if x0 is None else x0
    with jax.enable_x64(True):
        machine = engine_class(engine)(method, problem, network, seed, np.dtype("float64"))
        machine.chunk = 1  # it advances by one step at a time here, so drawing further ahead would be wasted
        state = machine.start(x0)
        kept = [jax.tree.map(np.array, state)]
        for t in range(1, steps):
            state = machine.advance(state, t, t + 1)
            kept.append(jax.tree.map(np.array, state))
    return kept


class Spy:
    """A progress meter that stores its calls, and that can press Ctrl-C."""

    def __init__(self, interrupt_at: int | None = None):
        self.seen, self.ended, self.interrupt_at = [], False, interrupt_at

    def begin(self, label, total):
        self.label, self.total = label, total

    def update(self, step, loss):
        self.seen.append((step, loss))
        if self.interrupt_at is not None and step >= self.interrupt_at:
            raise KeyboardInterrupt

    def end(self):
        self.ended = True


def assert_close(actual, expected, relative: float = 1e-12) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    scale = max(np.abs(expected).max(), 1e-300)
    assert np.abs(actual - expected).max() <= relative * scale, np.abs(actual - expected).max() / scale


@pytest.fixture
def rng():
    return np.random.default_rng(0)
