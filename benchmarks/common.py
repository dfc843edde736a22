"""Shared by the benchmarks: time measurements, the rates of this machine, tables, and result files."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results"


class Times(NamedTuple):
    """Repeated measurements of one thing, in order: times, or ratios of times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def worst(self) -> float:
        """The largest."""
        return max(self.values)

    def over(self, other: Times) -> Times:
        """The ratio to another thing that was measured in the same repeats, for each repeat."""
        return Times(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """The median and, in brackets, the range."""
        median, best, worst = (
            f"{scale * value:.{digits}f}" for value in (self.median, self.best, self.worst)
        )
        return f"{median} ({best} to {worst})"

    def summary(self) -> dict[str, float]:
        """The values for a result file."""
        return {"median": self.median, "min": self.best, "max": self.worst}


def seconds(action: Callable[[], Any]) -> float:
    """How long an action takes, until the JAX arrays that it returns, if any, are computed."""
    clock = time.perf_counter()
    jax.block_until_ready(action())
    return time.perf_counter() - clock


def alternate(actions: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Times]:
    """Measure all actions in turn, `repeats` times, so that noise on the machine affects all of them alike.

    An action does its work and returns its own measurement.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            found[name].append(action())
    return {name: Times(tuple(values)) for name, values in found.items()}


def repeated(action: Callable[[], Any], repeats: int) -> Times:
    """The seconds of one action, after one run as a warm-up."""
    action()
    return Times(tuple(seconds(action) for _ in range(repeats)))


class Others:
    """The share of the processors that other programs have used since this was made; 0 where the system says nothing.

    Linux counts the time of each processor in /proc/stat; what this process did not use, others did.
    """

    def __init__(self) -> None:
        self.start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the wall clock, of all processors in use, and of this process."""
        busy = 0.0
        if Path("/proc/stat").is_file():
            user, nice, system, _idle, _wait, *interrupts = map(
                int, Path("/proc/stat").read_text().split()[1:9]
            )
            busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, time.process_time()

    @property
    def share(self) -> float:
        """Between 0, nobody else, and 1, all processors all the time."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self.start, strict=True))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1))


def copying(mebibytes: float = 256) -> Callable[[], float]:
    """A measurement of `np.copyto` between two float32 arrays of that size: bytes per second, read and written."""
    source = np.ones(int(mebibytes * (1 << 18)), np.float32)
    target = np.zeros_like(source)
    times = max(1, int(64 / mebibytes))

    def copies() -> None:
        for _ in range(times):
            np.copyto(target, source)

    return lambda: 2 * source.nbytes * times / seconds(copies)


def copy_bandwidth(mebibytes: float = 256, repeats: int = 5) -> float:
    """Bytes per second of the fastest of several copies."""
    copy = copying(mebibytes)
    return max(copy() for _ in range(repeats))


def matrix_rate(size: int = 1500, repeats: int = 7) -> float:
    """Operations per second of a float32 matrix product, with a multiply-add as two; the best of several."""
    left = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    product = np.empty_like(left)
    return 2 * size**3 / repeated(lambda: np.matmul(left, left, out=product), repeats).best


def machine() -> str:
    """The hardware and the versions, in one line."""
    model = "unknown processor"
    if Path("/proc/cpuinfo").is_file():
        names = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0].partition(":")[2].strip() if names else model
    cores = os.cpu_count() or 1
    return (
        f"{model}, {cores} core{'s' * (cores > 1)}; JAX {jax.__version__}, NumPy {np.__version__}"
    )


def verdict(met: bool) -> str:
    """The word in a table for whether a target is met."""
    return "met" if met else "not met"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def write(name: str, values: Any, lines: Sequence[str]) -> None:
    """Print the lines, and write them and the values to the result folder."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
