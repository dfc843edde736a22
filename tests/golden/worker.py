"""Four processes for the goldens: engine `processes`, the PyTorch optimizer, and `sharded` in the first of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cases
import numpy as np
import torch
from torch import nn

from peerdescent.torch import DecentralizedOptimizer


class Bowl(nn.Module):
    """The quadratic of a node."""

    def __init__(self, matrix, slope):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.matrix, self.slope = torch.from_numpy(matrix), torch.from_numpy(slope)

    def forward(self):
        return self.x @ self.matrix @ self.x / 2 + self.slope @ self.x


def trained(name, rank):
    """x of this process after training with its own loss."""
    matrices, slopes = cases.bowls()
    model = Bowl(matrices[rank], slopes[rank])
    method = cases.method(name).replace(alpha=cases.ALPHA)
    optimizer = DecentralizedOptimizer(model, method, cases.NETWORKS["ring"])

    def closure():
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        return loss

    for _ in range(cases.STEPS):
        optimizer.step(closure)
    return model.x.detach().numpy()


def main(folder):
    """Leave what was computed in FOLDER/RANK.npz."""
    rank, found = int(os.environ["RANK"]), {}
    for name, network, engine in cases.spread("processes", "sharded", None):
        if engine == "processes" or rank == 0:
            trace = cases.run(name, network, engine=engine)
            last = trace.table.iloc[-1]
            found[f"{name} {network} {engine}"] = trace.x
            found[f"books {name} {network} {engine}"] = last[
                ["gradients", "rounds", "bytes"]
            ].to_numpy(float)
    for name in cases.TRAINED:
        found[f"torch {name}"] = trained(name, rank)
    np.savez(Path(folder) / f"{rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
