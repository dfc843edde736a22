"""The time of one GT-HSGD step: our compiled engine against the same method in hand-vectorised NumPy.

Both are float32, draw their own samples, and alternate in one process, so that a noisy machine disturbs both alike.
Writes `benchmarks/results/step.json` and `step.md`.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import peerdescent as peer
from peerdescent.engines.stacked import Stacked
from peerdescent.problems import Problem

NODES, FEATURES, SAMPLES = 20, 123, 2442
ALPHA, BETA, STRENGTH = np.float32(0.5), np.float32(0.01), np.float32(1e-4)
REPEATS = 9
TARGET = 4.0
Vectors = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class InNumpy:
    """GT-HSGD over stacked arrays, with no Python loop over nodes."""

    def __init__(self, rows: np.ndarray, w: np.ndarray, batch: int) -> None:
        self.rows, self.w, self.batch = rows, w.astype(np.float32), batch
        self.rng, self.node = np.random.default_rng(0), np.arange(NODES)[:, None]

    def grad(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The gradients (n, p) at x (n, p) on rows (n, batch, p)."""
        margin = np.matmul(rows, x[:, :, None])[:, :, 0]
        slope = np.float32(-1 / self.batch) / (1 + np.exp(margin))
        bounded = 1 / (1 + x * x)
        return np.matmul(slope[:, None, :], rows)[:, 0] + 2 * STRENGTH * x * bounded * bounded

    def step(self, state: Vectors, index: np.ndarray | None = None) -> Vectors:
        """One iteration, on the rows `index` (n, batch) or on fresh ones."""
        x, x_before, v_before, y = state
        if index is None:
            index = self.rng.integers(0, SAMPLES, (NODES, self.batch))
        rows = self.rows[self.node, index]
        v = self.grad(x, rows) + (1 - BETA) * (v_before - self.grad(x_before, rows))
        y = self.w @ (y + v - v_before)
        return self.w @ (x - ALPHA * y), x, v, y


def check(problem: Problem, network: peer.Network, batch: int) -> None:
    """Both must compute the same step before either is timed."""
    method = peer.methods.gt_hsgd(alpha=float(ALPHA), beta=float(BETA), batch=batch)
    engine = Stacked(method, problem, network, 0, np.float32)
    state = jax.tree.map(np.array, engine.start(np.zeros((NODES, FEATURES), np.float32)))
    from peerdescent.engines.program import draw

    index = np.asarray(draw(problem.oracle, engine.data, engine.seed, 1, 0, batch))
    ours = engine.advance(jax.tree.map(jax.numpy.asarray, state), 1, 2)
    baseline = InNumpy(problem.data.rows, network.W, batch)
    theirs = baseline.step((state.x, state.estimator.x, state.estimator.v, state.fusion.y), index)
    assert np.abs(np.asarray(ours.x) - theirs[0]).max() < 1e-5 * np.abs(theirs[0]).max()


def timed(action: Callable[[], Any], steps: int) -> float:
    """Microseconds a step."""
    clock = time.perf_counter()
    action()
    return (time.perf_counter() - clock) / steps * 1e6


def measure(problem: Problem, network: peer.Network, batch: int, steps: int) -> dict[str, Any]:
    """Both engines in turn, `REPEATS` times."""
    check(problem, network, batch)
    method = peer.methods.gt_hsgd(alpha=float(ALPHA), beta=float(BETA), batch=batch)
    engine = Stacked(method, problem, network, 0, np.float32)
    x0 = np.zeros((NODES, FEATURES), np.float32)
    engine.warm_up(x0)
    baseline = InNumpy(problem.data.rows, network.W, batch)
    state: Vectors = (x0, x0, x0, x0)

    def in_numpy() -> None:
        nonlocal state
        for _ in range(max(1, steps // 8)):
            state = baseline.step(state)

    ours, recorded, theirs = [], [], []
    compiled = engine.start(x0)
    for _ in range(REPEATS):
        theirs.append(timed(in_numpy, max(1, steps // 8)))
        clock = time.perf_counter()
        compiled = engine.advance(compiled, 1, 1 + steps)
        ours.append((time.perf_counter() - clock) / steps * 1e6)
        trace = peer.run(method, problem, network, steps=steps, record=min(100, steps), progress=False)
        recorded.append(trace.table["seconds"].iloc[-1] / steps * 1e6)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "batch": batch,
        "peerdescent_us": statistics.median(ours),
        "recorded_us": statistics.median(recorded),
        "numpy_us": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "recorded_ratio": statistics.median(b / a for a, b in zip(recorded, theirs, strict=True)),
    }


def main() -> None:
    """Measure, print and write."""
    data = peer.datasets.synthetic(NODES * SAMPLES, FEATURES, seed=0)
    problem = peer.problems.logistic(data.partition(NODES), strength=float(STRENGTH))
    network = peer.Network(peer.topology.exponential(NODES))
    rows = [measure(problem, network, batch, steps) for batch, steps in ((1, 8192), (32, 1024), (1024, 64))]
    lines = [
        f"GT-HSGD, n = {NODES}, p = {FEATURES}, m = {SAMPLES}, float32; sampling, gradients and mixing included; "
        f"median of {REPEATS} alternating repeats.",
        f"{platform.machine()}, {jax.device_count()} JAX device ({jax.devices()[0].device_kind}), "
        f"JAX {jax.__version__}, NumPy {np.__version__}.",
        "",
        "| batch | NumPy, us a step | one interval, us a step | ratio | its range | `run` with 100 records | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ratio_range"]
        lines.append(
            f"| {row['batch']} | {row['numpy_us']:.1f} | {row['peerdescent_us']:.1f} | {row['ratio']:.1f} "
            f"| {low:.1f} to {high:.1f} | {row['recorded_us']:.1f} | {row['recorded_ratio']:.1f} |"
        )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "step.json").write_text(json.dumps(rows, indent=2) + "\n")
    (folder / "step.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if rows[0]["ratio"] < TARGET:
        sys.exit(f"batch 1: {rows[0]['ratio']:.1f} times faster than NumPy, and {TARGET} are asked for")


if __name__ == "__main__":
    main()
