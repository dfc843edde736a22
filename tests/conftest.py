"""What the tests share: their environment, their limits, and how programs are compiled."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from contextlib import suppress

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import children
from peerdescent.networks import spectra
from small import (  # noqa: F401  (tests may import them from here)
    LONG,
    PROBLEMS,
    Spy,
    assert_close,
    small_logistic,
    small_loss,
    small_quadratic,
    small_streaming,
    states,
    unmeasured,
)

children.restore_signals()
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **UNTIMED)
settings.register_profile("random", max_examples=1000, **UNTIMED)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(PROFILE)

MEMORY = 2 << 30
"""Bytes that a process of the tests may use."""
KINDS = ("browser", "docs", "processes", "science")
"""The folders whose tests take long; the name of the folder is their marker."""
OPTIMISED = ("docs", "science", "scikit_learn")
"""The folders whose programs run for longer than it takes to compile them with all optimisations.

Elsewhere they are many and short, and not optimised, but for files that say so by a name `OPTIMISED` of their own, and
in profile `random`."""
NAMED_QUICKLY = ("engines", "methods", "processes", "runs", "sweeps")
"""The folders where the name of a network shows no lambda of its own if that would be estimated from draws.

This takes 1 to 4 s for each network with faults or a random graph, which would be most of the time there. Tests in
`networks` are about it, and the others show it."""
QUICK_FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (
    0,
    11,
):  # later versions have no older code generator, and end at a flag they do not know
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"
"""XLA's older code generator, in one thread. It takes two thirds of the time, which most tests spend compiling.

Profile `random` uses XLA as users do. XLA reads its flags once, at the first program of a process: a test that changes
them here would change them for all that follow."""
PEAKS = pytest.StashKey[dict[str, int]]()
"""The most memory that each process of the tests used, in bytes."""


def pytest_configure(config):
    """Children import this checkout, and all processes of a session share one new cache of data and programs."""
    for kind in KINDS:
        config.addinivalue_line("markers", f"{kind}: the tests in tests/{kind}, which take long")
    config.addinivalue_line(
        "markers", "long: only in `make test-long`; what it shows, a shorter test shows in part"
    )
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist inherits what its parent has set
    paths = [
        str(children.SOURCE),
        str(children.TESTS),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    folder = tempfile.TemporaryDirectory(prefix="peerdescent-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["PEERDESCENT_CACHE"] = folder.name
    if PROFILE == "fixed":
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_FLAGS}"
    config.stash[PEAKS] = {}


def pytest_collection_modifyitems(config, items):
    """Mark the slow kinds, and put them first, so that no worker ends with a long file when the others are done.

    Among them and among the others those come first whose programs are optimised, since a worker drops its programs
    where this changes. Those for `make test-long` are left out elsewhere, unless they are asked for by `-m long`.
    """
    if not LONG and not config.option.markexpr:
        late = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in late]
    for item in items:
        for kind in KINDS:
            if children.TESTS / kind in item.path.parents:
                item.add_marker(kind)
    items.sort(
        key=lambda item: (not any(map(item.get_closest_marker, KINDS)), not is_optimised(item))
    )


def pytest_collection_finish():
    """Collect garbage more rarely: a tenth of the time goes into it, since tracing makes many objects that stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _programs_since["bytes"] = memory("VmRSS")


def is_optimised(place) -> bool:
    """Whether the programs of a test, or of the file of a request, are compiled with all optimisations."""
    declared = getattr(
        getattr(place, "module", None), "OPTIMISED", False
    )  # a doctest has no module
    return PROFILE != "fixed" or place.path.parent.name in OPTIMISED or declared


@pytest.fixture(scope="module", autouse=True)
def _programs(request):
    """How programs are compiled here and in children, and networks named."""
    quickly = not is_optimised(request)
    if quickly != _programs_since.get("quickly"):
        drop_programs()  # JAX would go on with those that were compiled the other way, whose last digits differ
        _programs_since["quickly"] = quickly
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(quickly).lower())
        jax.config.update("jax_disable_most_optimizations", quickly)
        if request.path.parent.name in NAMED_QUICKLY:
            patch.setattr(spectra, "estimated", unmeasured)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


def pytest_runtest_teardown(nextitem):
    """Drop compiled programs once they have taken a fifth of the memory; sooner at the end of a file.

    What counts is the growth since they were last dropped: libraries that tests have imported stay.
    """
    ends = nextitem is None or nextitem.path != _programs_since.get("path")
    _programs_since["path"] = None if nextitem is None else nextitem.path
    if memory("VmRSS") - _programs_since["bytes"] > MEMORY * (0.1 if ends else 0.2):
        drop_programs()


def drop_programs():
    """Free the memory of compiled programs, which are what grows."""
    jax.clear_caches()
    gc.collect()
    with suppress(
        OSError, AttributeError
    ):  # glibc keeps what was freed; other libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)
    _programs_since["bytes"] = memory("VmRSS")


@pytest.fixture
def room():
    """For tests that need hundreds of megabytes: compiled programs are dropped before."""
    drop_programs()


_programs_since = {}
"""The memory of this process when programs were last dropped, the file of its tests, and how it compiles them."""


def memory(name: str) -> int:
    """Bytes of memory of this process: VmRSS, what it has now, or VmHWM, the most it had; 0 where nobody counts."""
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
    """A worker has ended: note the memory that it used."""
    node.config.stash[PEAKS][node.gateway.id] = getattr(node, "workeroutput", {}).get("peak", 0)


def pytest_terminal_summary(terminalreporter, config):
    peaks = config.stash[PEAKS]
    shown = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in sorted(peaks.items()))
    verdict = f": the limit is {MEMORY / 1e9:.2f} GB" if max(peaks.values()) > MEMORY else ""
    terminalreporter.write_line(f"peak memory: {shown}{verdict}", red=bool(verdict))


@pytest.fixture
def rng():
    return np.random.default_rng(0)
