"""What `test_survival` runs in processes of their own: training that goes on when one of them is lost or comes back.

`main(FOLDER, STEPS, METHOD)` trains on the rank's own rows until STEPS steps have been made, and leaves what it saw in
FOLDER/RANK.json. FOLDER/RANK.step has the number of steps so far, for those who decide when to kill.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import peerdescent as peer
from peerdescent.torch import DecentralizedOptimizer

ROWS, WIDTH, PACE = 40, 8, 0.004


def rows(rank):
    """The rows of a node: one truth for all, and noise and inputs of its own."""
    drawn = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=drawn, dtype=torch.float64) + 0.3 * rank
    noise = torch.randn(ROWS, 1, generator=drawn, dtype=torch.float64)
    return inputs, inputs @ torch.linspace(-1, 1, WIDTH, dtype=torch.float64)[:, None] + noise


def loss_of(model, world):
    """The loss on the rows of all nodes, also of those that are lost."""
    return sum(nn.functional.mse_loss(model(x), y).item() for x, y in map(rows, range(world))) / world


def main(folder, steps, method):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(folder)
    handler = logging.FileHandler(folder / f"{rank}.log")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("peerdescent.torch").addHandler(handler)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 1).double()
    network = peer.Network(peer.topology.exponential(world))
    options = {"on_loss": "continue", "patience": float(os.environ.get("PATIENCE", "1.5"))}
    optimizer = DecentralizedOptimizer(model, peer.methods.parse(method), network, **options)
    began, (inputs, targets) = optimizer.steps, rows(rank)
    drawn, trail = torch.Generator().manual_seed(1000 + rank + began), []
    while optimizer.steps < steps:
        taken = torch.randint(ROWS, (8,), generator=drawn)

        def loss(taken=taken):
            return nn.functional.mse_loss(model(inputs[taken]), targets[taken])

        if optimizer.does.takes_one_point:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        else:
            optimizer.step(loss)
        time.sleep(PACE)
        (folder / f"{rank}.step").write_text(str(optimizer.steps))
        if optimizer.members.roster.generation > len(trail):
            trail.append([optimizer.steps, list(optimizer.members.roster.ranks)])
    model.load_state_dict(optimizer.average_parameters())
    seen = {"loss": loss_of(model, world), "steps": optimizer.steps, "began": began, "trail": trail}
    (folder / f"{rank}.json").write_text(json.dumps({**seen, "bytes": optimizer.bytes_sent}))
    optimizer.members.leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
