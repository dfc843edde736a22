"""How the cost of GT-HSGD grows with nodes, with parameters, with the first run in a process, and with records.

Writes `benchmarks/results/scaling.json` and `scaling.md`. Measurements that need a new process start one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import Times, alternate, copying, machine, seconds, table, verdict, write

import peerdescent as peer
from peerdescent.engines.compiled import evaluate
from peerdescent.engines.stacked import Stacked
from peerdescent.problems import Problem

FEATURES, SAMPLES = 123, 64
RING, MANY, MOST = 20, 1024, 10_000
HELD = 8
"""Samples per node in the measurement of memory; few, so that the data take little of it."""

MEMORY = {"steps": "20 steps", "run": "a run of 20 steps with records"}

NODES, LAYERS = 8, (784, 1024, 192, 10)
REPEATS = 7
METHOD = peer.methods.gt_hsgd(alpha=0.1, beta=0.01)


class Results:
    """The rows of the table and their numbers."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self.values: dict[str, Any] = {}

    def add(
        self, name: str, said: str, value: Any, target: str = "", met: bool | None = None
    ) -> None:
        """Add a row."""
        self.rows.append((name, said, "" if met is None else f"{target}: {verdict(met)}"))
        self.values[name] = {"value": value} | (
            {} if met is None else {"target": target, "met": met}
        )
        print(f"{name}: {said}", flush=True)


def on_ring(nodes: int, samples: int) -> tuple[Problem, peer.Network]:
    """Logistic regression on a ring, with data that are generated without further memory."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((nodes * samples, FEATURES), np.float32)
    data = peer.datasets.Dataset(features, rng.choice([-1.0, 1.0], len(features)), "normal")
    return peer.problems.logistic(data.partition(nodes)), peer.Network(peer.topology.ring(nodes))


def stepping(problem: Problem, network: peer.Network, steps: int) -> Callable[[], float]:
    """A measurement of `advance` by that many steps: seconds per step."""
    engine = Stacked(METHOD, problem, network, 0, np.float32)
    start = np.zeros(problem.dimension) if problem.start is None else problem.start
    state, t = (
        engine.start(np.broadcast_to(start, (problem.nodes, problem.dimension)).astype(np.float32)),
        1,
    )

    def advance() -> None:
        nonlocal state, t
        state, t = engine.advance(state, t, t + steps), t + steps

    advance()
    return lambda: seconds(advance) / steps


def nodes(results: Results) -> None:
    """The cost per node and step, with few nodes and with many."""
    problems = {n: on_ring(n, SAMPLES) for n in (RING, MANY)}
    # Multiples of 1,024 steps, since samples are drawn ahead for so many at once.
    times = alternate(
        {str(n): stepping(*problems[n], 4096 if n == RING else 1024) for n in problems}, REPEATS
    )
    for n, values in zip(problems, times.values(), strict=True):
        results.add(
            f"a node and step, ring of {n:,}", f"{values.text(1e9 / n, 0)} ns", values.median / n
        )
    few, many = times.values()
    ratio = Times(tuple(value * RING / MANY for value in many.over(few).values))
    results.add(
        f"the same, {MANY:,} nodes over {RING}",
        ratio.text(1, 2),
        ratio.median,
        "at most 2",
        ratio.median <= 2,
    )


def memory(results: Results) -> None:
    """Peak resident memory on a large ring, above that on a small one: of steps alone, and of a run with records."""
    for kind, (few, many) in {"steps": (MOST // 2, MOST), "run": (MOST // 4, MOST // 2)}.items():
        bare = fresh("--memory", kind, str(RING))
        peaks = {n: fresh("--memory", kind, str(n)) - bare for n in (few, many)}
        for n, peak in peaks.items():
            said = (
                f"{peak / 2**20:,.0f} MiB, {peak / (n * FEATURES * 4):,.0f} times an (n, p) array"
            )
            results.add(
                f"memory of {MEMORY[kind]}, ring of {n:,}, {HELD} samples a node", said, peak
            )
        ratio = peaks[many] / peaks[few]
        name = f"the same, {many:,} nodes over {few:,}"
        results.add(name, f"{ratio:.2f}", ratio, "at most 2.2 (linear)", ratio <= 2.2)


def peak_memory(kind: str, n: int) -> float:
    """The peak resident memory of this process in bytes, after some steps or after a run with records."""
    problem, network = on_ring(n, HELD)
    if kind == "run":
        peer.run(METHOD, problem, network, steps=20, record=1, progress=False)
    else:
        engine = Stacked(METHOD, problem, network, 0, np.float32)
        engine.advance(engine.start(np.zeros((n, FEATURES), np.float32)), 1, 20)
    # Not `ru_maxrss`, which a process inherits from the one that started it.
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return 1024.0 * int(peak.split()[1])


def perceptron() -> Problem:
    """A multilayer perceptron of a million parameters."""
    rng = np.random.default_rng(0)
    params = [(rng.standard_normal((a, b)) / np.sqrt(a), np.zeros(b)) for a, b in pairwise(LAYERS)]
    features = rng.standard_normal((NODES, SAMPLES, LAYERS[0]), np.float32)
    return peer.problems.loss(
        cross_entropy, params, (features, rng.integers(0, LAYERS[-1], (NODES, SAMPLES)))
    )


def cross_entropy(
    params: list[tuple[jax.Array, jax.Array]], batch: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """The loss of the perceptron."""
    hidden, labels = batch
    for weights, bias in params[:-1]:
        hidden = jnp.tanh(hidden @ weights + bias)
    scores = jax.nn.log_softmax(hidden @ params[-1][0] + params[-1][1])
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def centre(size: int) -> Problem:
    """f_i(x) = ||x - a_i||^2 / 2 with one sample per node, whose gradient costs almost nothing."""
    points = np.random.default_rng(0).standard_normal((NODES, 1, size), np.float32)
    return peer.problems.loss(half_square, np.zeros(size), points)


def half_square(x: jax.Array, batch: jax.Array) -> jax.Array:
    """The loss of `centre`."""
    return 0.5 * jnp.sum((x - batch) ** 2, axis=1).mean()


def parameters(results: Results) -> None:
    """The memory bandwidth that a step achieves if a vector has a million numbers.

    A step must read x, the previous x, v and y, and write x, v and y: 7 passes over (n, p). The perceptron has 3 more
    in each of its two gradients: the backward pass reads the parameters again, and the gradient is written and read
    again. The other problem has 1 more: its points a_i are read.
    """
    network, copy, large = peer.Network(peer.topology.ring(NODES)), copying(), perceptron()
    problems = {"perceptron": (large, 13), "nearly free gradient": (centre(large.dimension), 8)}
    actions = {name: stepping(problem, network, 4) for name, (problem, _) in problems.items()}
    times = alternate({"copy": lambda: 1 / copy(), **actions}, REPEATS)
    bandwidth = 1 / times["copy"].median
    results.add("copy of 256 MiB, read and written", f"{bandwidth / 1e9:.1f} GB/s", bandwidth)
    for name, (problem, passes) in problems.items():
        moved = passes * NODES * problem.dimension * 4
        share = moved * times["copy"].over(times[name]).median
        said = f"{times[name].text(1e3)} ms; {passes} passes, {moved / 1e6:.0f} MB, {share:.2f} of the copy's rate"
        title = f"a step, {name}, p = {problem.dimension:,}, n = {NODES}"
        value = {"seconds": times[name].summary(), "bytes": moved, "share": share}
        results.add(title, said, value, "at least 0.5", share >= 0.5)


def compilation(results: Results) -> None:
    """The compilation time of the first run in a process, with an empty and with a filled cache."""
    with tempfile.TemporaryDirectory() as folder:
        for state in ("an empty", "a filled"):
            spent = fresh("--compile", PEERDESCENT_CACHE=folder)
            results.add(f"compilation in a new process, {state} cache", f"{spent:.2f} s", spent)
        files = [file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()]
    results.add(
        "the cache then", f"{len(files)} files, {sum(files) / 2**20:.1f} MiB", {"files": len(files)}
    )


def compiling_of_a_run() -> float:
    """The compilation time of a run in seconds, with the problem of `step.py`."""
    data = peer.datasets.synthetic(20 * 2442, FEATURES)
    network = peer.Network(peer.topology.exponential(20))
    trace = peer.run(
        METHOD, peer.problems.logistic(data.partition(20)), network, steps=100, progress=False
    )
    return trace.compile_seconds


def record(results: Results) -> None:
    """The cost of a record with data of a9a's shape, in units of a pass over the data in plain NumPy."""
    data = peer.datasets.synthetic(20 * 2442, FEATURES)
    problem = peer.problems.logistic(data.partition(20), strength=0.0)
    network = peer.Network(peer.topology.exponential(20))
    engine = Stacked(METHOD, problem, network, 0, np.float32)
    x = np.random.default_rng(0).standard_normal((20, FEATURES), np.float32)
    flat = problem.data.rows.reshape(-1, FEATURES)
    at_points = partial(evaluate, problem.oracle, None)

    def bare() -> tuple[np.floating[Any], np.ndarray]:
        margin = flat @ x[0]
        slope = 1 / (1 + np.exp(margin))
        return -np.log(1 - slope).mean(), -(slope @ flat) / len(flat)

    assert np.allclose(bare()[0], at_points(x[:1], engine.data)[0][0], rtol=1e-3)
    actions: dict[str, Callable[[], Any]] = {
        "a bare pass in NumPy": bare,
        "F and its gradient at one point": lambda: at_points(x[:1], engine.data),
        "a whole record, which is at n + 1 = 21 points": lambda: engine.evaluate(x),
    }
    for action in actions.values():
        action()
    times = alternate(
        {name: partial(seconds, action) for name, action in actions.items()}, 3 * REPEATS
    )
    passes = times["a bare pass in NumPy"]
    for name, values in times.items():
        ratio = values.over(passes).median
        target = ("at most 2 passes", ratio <= 2) if values is not passes else ("", None)
        said = f"{values.text(1e3)} ms, {ratio:.1f} passes"
        results.add(name, said, {"seconds": values.summary(), "passes": ratio}, *target)


def fresh(*arguments: str, **environment: str) -> float:
    """The number that this script prints when it is run in a new process."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(
        command, env=os.environ | environment, check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, print and write; or one measurement in a fresh process."""
    if sys.argv[1:2] == ["--memory"]:
        print(peak_memory(sys.argv[2], int(sys.argv[3])))
        return
    if sys.argv[1:2] == ["--compile"]:
        print(compiling_of_a_run())
        return
    results = Results()
    for part in (nodes, memory, parameters, compilation, record):
        part(results)
    lines = [
        f"GT-HSGD, batch 1, float32; where nothing else is said, logistic regression with p = {FEATURES} and {SAMPLES} "
        "samples a node.",
        "Median (range) of repeats; steps include sampling, gradients and mixing, not compilation or records.",
        f"{machine()}.",
        "",
        *table(["", "measured", "target"], results.rows),
    ]
    write("scaling", {"machine": machine()} | results.values, lines)


if __name__ == "__main__":
    main()
