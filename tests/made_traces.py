"""Helpers for tests of figures: artificial traces, tables of sweeps, and the pixels of a figure."""

import numpy as np
import pandas as pd
from PIL import Image

from peerdescent import Trace
from peerdescent import figures as plot
from peerdescent.runs.trace import Identity, Status


def make(
    losses=None,
    *,
    status=Status.done,
    network="Network(ring, n=4, lazy weights, lam=0.500)",
    seed=0,
    **columns,
):
    losses = np.exp(-np.arange(20) / 5) if losses is None else np.asarray(losses)
    steps = np.arange(len(losses))
    consensus = np.where(steps > 0, 1e-3 / (1 + steps), 0)
    table = {
        "step": steps,
        "epoch": steps / 10,
        "loss": losses,
        "grad_norm": losses,
        "consensus": consensus,
    }
    table |= {"bytes": 1e5 * steps, **columns}
    identity = Identity("dsgd", "logistic(digits)", network, 4, 2, seed, 32, "stacked", "00000000")
    return Trace(pd.DataFrame(table), np.zeros((4, 2)), np.zeros(2), status, identity)


def pixels(figure, path):
    return np.asarray(Image.open(plot.save(figure, path)).convert("L"), dtype=float)


def seeds(count=3, **changes):
    """Traces of one method that differ in seed, and so in their noise."""
    rng, falling = np.random.default_rng(0), np.exp(-np.arange(20) / 5)
    return [
        make(0.3 + falling * rng.uniform(0.5, 1.5, 20), seed=seed, **changes)
        for seed in range(count)
    ]


def grid(values=None, seeds=(0,), **axes):
    """A table as `sweep` returns it, with its rows shuffled."""
    axes = axes or {"alpha": [1.0, 0.1, 10.0], "beta": [0.5, 0.01], "batch": [1, 4]}
    table = pd.MultiIndex.from_product([*axes.values(), seeds], names=[*axes, "seed"]).to_frame(
        index=False
    )
    values = np.random.default_rng(1).uniform(0.3, 0.7, len(table)) if values is None else values
    table["loss@1"], table["loss"], table["grad_norm"], table["status"] = 2.0, values, 0.1, "done"
    return table
