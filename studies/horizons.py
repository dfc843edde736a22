"""Publish what each method's tuning would have chosen for a shorter horizon.

    python benchmarks/gpu_sweep.py protocol a9a covertype --out tables
    python studies/horizons.py tables/a9a tables/covertype

A folder holds the tables of the paper's whole grid, one a method. For every method and horizon the configuration with
the smallest loss, of those that did not diverge, goes to `docs/reproduction/horizons.csv`, with that loss.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from peerdescent.runs.statistics import ranking

METHODS = ("gt-hsgd-strict", "gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo")
HORIZONS = {5: "loss@5", 10: "loss@10", 30: "loss"}


def main() -> None:
    """Read the tables, and write one."""
    rows = []
    for folder in map(Path, sys.argv[1:]):
        for line in METHODS:
            table = pd.read_csv(folder / line / "sweep.csv")
            for epochs, column in HORIZONS.items():
                best = table.iloc[ranking(table[column], table["status"] == "done")[0]]
                row = {
                    "data": folder.name,
                    "line": line,
                    "configurations": len(table),
                    "epochs": epochs,
                }
                rows.append(row | {"loss": f"{best[column]:.6f}", "method": best["method"]})
    found = pd.DataFrame(rows)
    found.to_csv(Path(__file__).parents[1] / "docs" / "reproduction" / "horizons.csv", index=False)
    print(found.to_string(index=False))


if __name__ == "__main__":
    main()
