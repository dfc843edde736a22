"""Compare the stacked engine on a GPU with the same engine on the CPU, for every method and every fault.

Run it on a machine where JAX has a GPU. It writes `benchmarks/results/gpu_check.md`, and fails where
the two differ after a quarter of the steps by more than rounding: later, a method that compresses may amplify it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import peerdescent as peer

NODES, FEATURES, SAMPLES, STEPS = 20, 123, 2442, 2000
GRAPH, faults = peer.topology.exponential(NODES), peer.faults
IDEAL, PUSHED = (
    peer.Network(GRAPH),
    peer.Network(peer.topology.directed_exponential(NODES), "push-pull"),
)
NETWORKS = {
    "drop(0.1)": peer.Network(GRAPH, faults=[faults.drop(0.1)]),
    "drop(0.1, one_way=True)": peer.Network(GRAPH, faults=[faults.drop(0.1, one_way=True)]),
    "burst(0.1, 0.5)": peer.Network(GRAPH, faults=[faults.burst(0.1, 0.5)]),
    "inactive(0.1)": peer.Network(GRAPH, faults=[faults.inactive(0.1)]),
    "noise(0.001)": peer.Network(GRAPH, faults=[faults.noise(0.001)]),
    "quantize(8)": peer.Network(GRAPH, faults=[faults.quantize(8)]),
    "top_k(0.5)": peer.Network(GRAPH, faults=[faults.top_k(0.5)]),
    "3 rounds": peer.Network(GRAPH, rounds=3),
    "3 rounds, accelerated": peer.Network(GRAPH, rounds=3, accelerate=True),
    "random matching": peer.Network(peer.topology.random_matching(NODES)),
    "random regular, degree 4": peer.Network(peer.topology.random_regular(NODES, 4)),
    "random pairs, 0.3": peer.Network(peer.topology.erdos_renyi(NODES, 0.3)),
}
WRONG: list[str] = []
"""What differs by more than rounding."""


def on(device: jax.Device, name: str, network: peer.Network, precision: int) -> peer.Trace:
    """One run on one device."""
    with jax.default_device(device):
        data = peer.datasets.synthetic(NODES * SAMPLES, FEATURES, seed=0)
        problem = peer.problems.logistic(data.partition(NODES))
        method = peer.methods.METHODS[name].build()
        return peer.run(
            method, problem, network, steps=STEPS, precision=precision, record=4, progress=False
        )


def swept(cpu: jax.Device, network: peer.Network) -> Any:
    """The largest relative difference of a loss between a small sweep, which runs on the GPU, and runs on the CPU."""
    data = peer.datasets.synthetic(NODES * SAMPLES, FEATURES, seed=0)
    problem, grid = (
        peer.problems.logistic(data.partition(NODES)),
        {"alpha": [0.01, 0.03, 0.1], "beta": [0.01, 0.1]},
    )
    found = peer.sweep("gt-hsgd", grid, problem, network, steps=STEPS, precision=64, progress=False)
    apart = []
    with jax.default_device(cpu):
        for row in found.to_dict("records"):
            method = peer.methods.gt_hsgd(alpha=row["alpha"], beta=row["beta"])
            alone = peer.run(
                method, problem, network, steps=STEPS, precision=64, record=1, progress=False
            )
            apart.append(abs(row["loss"] / alone.table["loss"].iloc[-1] - 1))
    return max(apart)


def compared(gpu: jax.Device, cpu: jax.Device, label: str, name: str, network: peer.Network) -> str:
    """A row of the table."""
    apart = {}
    for precision in (64, 32):
        left, right = on(gpu, name, network, precision), on(cpu, name, network, precision)
        apart[precision] = np.abs(left.x - right.x).max() / np.abs(right.x).max()
        early = abs(left.table["loss"].iloc[1] / right.table["loss"].iloc[1] - 1)
        if not early < {64: 1e-10, 32: 1e-3}[precision]:
            WRONG.append(
                f"{label}, float{precision}: the losses of step {STEPS // 4} differ by {early:.1e}"
            )
    seconds = left.table["seconds"].iloc[-1] / STEPS * 1e6
    row = f"| {label} | {apart[64]:.1e} | {apart[32]:.1e} | {seconds:.1f} | {left.compile_seconds:.1f} |"
    print(row, flush=True)
    return row


def main() -> None:
    """Compare, print and write."""
    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    if gpu.platform == "cpu":
        sys.exit("JAX sees no GPU here: nothing to check")
    header = "largest relative difference to the CPU, float64 | float32 | GPU, us a step | compilation, s |"
    lines = [
        f"{gpu.device_kind}, JAX {jax.__version__}; logistic regression, n = {NODES}, p = {FEATURES}, m = {SAMPLES}, "
        f"batch 1, {STEPS} steps.",
        "",
        f"| method | {header}",
        "|---|---|---|---|---|",
    ]
    for name, entry in peer.methods.METHODS.items():
        network = IDEAL if entry.build().needs.doubly_stochastic else PUSHED
        lines.append(compared(gpu, cpu, name, name, network))
    lines += ["", f"| gt-hsgd over this network | {header}", "|---|---|---|---|---|"]
    lines += [compared(gpu, cpu, name, "gt-hsgd", network) for name, network in NETWORKS.items()]
    several = {
        name: NETWORKS[name]
        for name in ("drop(0.1)", "burst(0.1, 0.5)", "inactive(0.1)", "random matching")
    }
    lines += [
        "",
        "| sweep of 6 over this network | largest relative difference of a loss, float64 |",
        "|---|---|",
    ]
    for name, network in several.items():
        lines.append(f"| {name} | {swept(cpu, network):.1e} |")
        print(lines[-1], flush=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "gpu_check.md").write_text("\n".join(lines) + "\n")
    if WRONG:
        sys.exit("\n".join(WRONG))


if __name__ == "__main__":
    main()
