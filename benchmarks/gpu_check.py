"""Compare the stacked engine on a GPU with the same engine on the CPU, for every named method, and measure both.

Run it on a machine where JAX has a GPU. It writes `benchmarks/results/gpu_check.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

import peerdescent as peer

NODES, FEATURES, SAMPLES, STEPS = 20, 123, 2442, 2000


def on(device: jax.Device, name: str, precision: int) -> peer.Trace:
    """One run on one device."""
    with jax.default_device(device):
        data = peer.datasets.synthetic(NODES * SAMPLES, FEATURES, seed=0)
        problem = peer.problems.logistic(data.partition(NODES))
        network = peer.Network(peer.topology.exponential(NODES))
        method = peer.methods.METHODS[name].build()
        return peer.run(method, problem, network, steps=STEPS, precision=precision, record=4, progress=False)


def main() -> None:
    """Compare, print and write."""
    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    if gpu.platform == "cpu":
        sys.exit("JAX sees no GPU here: nothing to check")
    lines = [
        f"{gpu.device_kind}, JAX {jax.__version__}; logistic regression, n = {NODES}, p = {FEATURES}, m = {SAMPLES}, "
        f"batch 1, {STEPS} steps.",
        "",
        "| method | largest relative difference to the CPU, float64 | float32 | GPU, us a step | compilation, s |",
        "|---|---|---|---|---|",
    ]
    for name in peer.methods.METHODS:
        apart = {}
        for precision in (64, 32):
            left, right = on(gpu, name, precision), on(cpu, name, precision)
            apart[precision] = np.abs(left.x - right.x).max() / np.abs(right.x).max()
        seconds = left.table["seconds"].iloc[-1] / STEPS * 1e6
        row = f"| {name} | {apart[64]:.1e} | {apart[32]:.1e} | {seconds:.1f} | {left.compile_seconds:.1f} |"
        lines.append(row)
        print(row, flush=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "gpu_check.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
