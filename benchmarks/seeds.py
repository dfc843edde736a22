"""Five seeds in one call of `run`, against five calls one after the other; the device is JAX's default.

Both take turns in one process, and all of a call is measured: iterations, records and what is around them. Programs are
compiled before. Writes `benchmarks/results/seeds.md`, or `gpu_seeds.md` where there is a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
from common import Others, alternate, machine, table, write

import peerdescent as peer
from peerdescent.engines.devices import cores, on_gpu

SEEDS, REPEATS, NODES = range(5), 7, 20


def cases() -> dict[str, tuple[peer.Method, Any, peer.Network, int]]:
    """Methods, problems and networks, and how many steps."""
    graph, build = peer.topology.exponential(NODES), peer.methods
    ideal, drop = peer.Network(graph), peer.Network(graph, faults=[peer.faults.drop(0.1)])

    def logistic(samples: int, features: int) -> peer.problems.Problem:
        return peer.problems.logistic(
            peer.datasets.synthetic(NODES * samples, features, seed=0).partition(NODES)
        )

    a9a, wide = logistic(2442, 123), logistic(500, 784)
    return {
        "gt-hsgd, batch 1, p = 123": (build.gt_hsgd(alpha=0.1), a9a, ideal, 20_000),
        "the same, 10 % of messages lost": (build.gt_hsgd(alpha=0.1), a9a, drop, 20_000),
        "gt-hsgd, batch 32, p = 123": (build.gt_hsgd(alpha=0.1, batch=32), a9a, ideal, 5_000),
        "gt-page (coins), p = 123": (build.gt_page(alpha=0.1, probability=0.01), a9a, ideal, 5_000),
        "dsgd, batch 8, p = 784": (build.dsgd(alpha=0.1, batch=8), wide, ideal, 5_000),
    }


def timed(call: Callable[..., Any], seeds: Iterable[Any]) -> float:
    """The seconds of a call for each of these."""
    clock = time.perf_counter()
    for one in seeds:
        call(seed=one)
    return time.perf_counter() - clock


def main() -> None:
    """Measure, print and write."""
    rows, values, others = [], {}, Others()
    for name, (method, problem, network, steps) in cases().items():
        call = partial(peer.run, method, problem, network, steps=steps, record=20, progress=False)
        call(seed=SEEDS)
        call(seed=0)
        actions = {"together": partial(timed, call, [SEEDS]), "apart": partial(timed, call, SEEDS)}
        found = alternate(actions, REPEATS)
        ratio = found["apart"].over(found["together"])
        rows.append(
            [
                name,
                f"{steps:,}",
                found["apart"].text(digits=2),
                found["together"].text(digits=2),
                ratio.text(),
            ]
        )
        values[name] = {"steps": steps, "times": ratio.summary()}
        print(rows[-1], flush=True)
    device = jax.devices()[0].device_kind if on_gpu() else f"{cores()} cores for this process"
    lines = [
        f"{len(SEEDS)} seeds, n = {NODES}, exponential graph, float32, 20 records. Seconds of all calls, without "
        f"compilation: median (range) of {REPEATS} repeats that take turns in one process; ratios are taken in each.",
        f"{machine()}; {device}. Other programs used {others.share:.0%} of the processors meanwhile.",
        "",
        *table(["run", "steps", "one after the other, s", "together, s", "times as fast"], rows),
    ]
    write(
        "gpu_seeds" if on_gpu() else "seeds",
        {"machine": machine(), "device": device, "cases": values},
        lines,
    )


if __name__ == "__main__":
    main()
