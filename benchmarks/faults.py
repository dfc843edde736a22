"""The time of one GT-HSGD step under faults, over that on an ideal network, for one configuration and a sweep of 32.

All take turns in one process. Writes `benchmarks/results/faults.json` and `faults.md`.
"""

from __future__ import annotations

from typing import Any

from common import Times, alternate, machine, table, verdict, write
from step import ALPHAS, BETAS, FEATURES, NODES, REPEATS, Sweep, one, setting

import peerdescent as peer

CASES: dict[str, dict[str, Any]] = {
    "ideal": {},
    "drop(0.1)": {"faults": [peer.faults.drop(0.1)]},
    "drop(0.1, one_way=True)": {"faults": [peer.faults.drop(0.1, one_way=True)]},
    "burst(0.1, 0.5)": {"faults": [peer.faults.burst(0.1, 0.5)]},
    "inactive(0.1)": {"faults": [peer.faults.inactive(0.1)]},
    "noise(0.001)": {"faults": [peer.faults.noise(0.001)]},
    "quantize(4)": {"faults": [peer.faults.quantize(4)]},
    "3 rounds": {"rounds": 3},
}
TARGET = 1.5
"""How many times an ideal step drop(0.1) may take."""


def main() -> None:
    """Measure, print and write."""
    problem, _ = setting()
    graph = peer.topology.exponential(NODES)
    networks = {name: peer.Network(graph, **words) for name, words in CASES.items()}
    networks["random matching"] = peer.Network(peer.topology.random_matching(NODES))
    actions = {("one", name): one(problem, network, 1, 1) for name, network in networks.items()}
    actions |= {
        ("sweep", name): Sweep(problem, network, 1, 1) for name, network in networks.items()
    }
    times: dict[Any, Times] = alternate(actions, REPEATS)  # type: ignore[arg-type]
    rows, cases = [], {}
    for name in networks:
        row = [name]
        for kind in ("one", "sweep"):
            ratio = times[kind, name].over(times[kind, "ideal"])
            cases[f"{kind}, {name}"] = {
                "seconds": times[kind, name].summary(),
                "over_ideal": ratio.summary(),
            }
            target = f", {TARGET}: {verdict(ratio.median <= TARGET)}" if name == "drop(0.1)" else ""
            row += [times[kind, name].text(1e6), ratio.text(digits=2) + target]
        rows.append(row)
    configurations = len(ALPHAS) * len(BETAS)
    header = [
        "network",
        "one: us a step",
        "over ideal",
        f"sweep of {configurations}: us a step and configuration",
        "over ideal",
    ]
    lines = [
        f"GT-HSGD, n = {NODES}, p = {FEATURES}, batch 1, exponential graph, float32, all of a step included.",
        f"Median (range) of {REPEATS} repeats that take turns in one process; ratios are taken in each repeat.",
        f"{machine()}.",
        "",
        *table(header, rows),
    ]
    write("faults", {"machine": machine(), "repeats": REPEATS, "cases": cases}, lines)


if __name__ == "__main__":
    main()
