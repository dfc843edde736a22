"""Figure 2 by pairs of seeds: what each graph's loss is above the complete graph's, run by run.

    python studies/paired.py a9a 'gt-hsgd[alpha=8.0,beta=0.0003,batch=1,initial_batch=256]'

All graphs see the same samples for one seed, so a difference between graphs is known far better than their losses. The
table goes to `docs/reproduction/figure2-DATA-paired.csv`: at each epoch and for each graph the mean difference over the
seeds 1 to 5, the deviation of the five, and the p-value of a paired t-test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

import peerdescent as peer
from peerdescent.methods import parse
from peerdescent.studies import paper

EPOCHS = (5, 10, 20, 30, 40, 60, 80, 100)
SEEDS = range(1, 6)


def main() -> None:
    """Run the method on the four graphs, and compare."""
    name, selector = sys.argv[1:]
    problem = peer.problems.logistic(paper.load(name).partition(paper.NODES, seed=0))
    record = peer.Grid(100, stationarity=False)
    losses: dict[str, np.ndarray] = {}
    for graph in paper.LAMBDAS:
        network = peer.Network(peer.topology.build(graph, paper.NODES))
        traces = [
            peer.run(parse(selector), problem, network, epochs=EPOCHS[-1], seed=seed, record=record)
            for seed in SEEDS
        ]
        at = [
            [
                trace.table["loss"].iloc[(trace.table["epoch"] - e).abs().argmin()]
                for trace in traces
            ]
            for e in EPOCHS
        ]
        losses[graph] = np.array(at)
        print(graph, losses[graph].mean(axis=1).round(6).tolist(), flush=True)
    rows = []
    for graph in [graph for graph in losses if graph != "complete"]:
        for k, epoch in enumerate(EPOCHS):
            away = losses[graph][k] - losses["complete"][k]
            p = ttest_rel(losses[graph][k], losses["complete"][k]).pvalue
            row = {
                "topology": graph,
                "epoch": epoch,
                "difference": away.mean(),
                "deviation": away.std(ddof=1),
                "p": p,
            }
            rows.append(row)
    table = pd.DataFrame(rows)
    table.to_csv(
        Path(__file__).parents[1] / "docs" / "reproduction" / f"figure2-{name}-paired.csv",
        index=False,
    )
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
