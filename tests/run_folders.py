"""Helpers for tests of reports: folders with artificial traces and sweeps, and the content of a page."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import re

import numpy as np
import pandas as pd

from peerdescent import Network, Trace, topology
from peerdescent import experiment as config
from peerdescent.runs.trace import Identity, Status

RING = str(Network(topology.ring(6)))


def trace(
    method="dsgd[batch=1,alpha=0.5,atc=False]",
    *,
    losses=None,
    seed=0,
    status=Status.done,
    message="",
    **changes,
):
    losses = (
        0.3 + np.exp(-np.arange(21) / 5) + 0.01 * seed
        if losses is None
        else np.asarray(losses, float)
    )
    steps = np.arange(len(losses))
    table = {
        "step": 10 * steps,
        "epoch": steps / 4,
        "loss": losses,
        "grad_norm": losses**2,
        "stationarity": losses,
    }
    table |= {
        "consensus": np.where(steps > 0, 1e-3 / (1 + steps), 0),
        "tracking": 0.0,
        "gradients": 10 * steps,
    }
    table |= {"rounds": 20 * steps, "bytes": 1e5 * steps, "seconds": (1 + 0.1 * seed) * steps}
    identity = Identity(method, "logistic(digits)", RING, 6, 2, seed, 32, "stacked", "00000000")
    identity = dataclasses.replace(identity, **changes)
    return Trace(pd.DataFrame(table), np.zeros((6, 2)), np.zeros(2), status, identity, message)


def save_sweep(folder, table, method="gt-hsgd", **about):
    folder.mkdir(parents=True)
    table.assign(precision="float32", method=f"{method}[]").to_csv(
        folder / "sweep.csv", index=False
    )
    about = {"method": method, "problem": "logistic(digits)", "budget": "30 epochs", **about}
    (folder / "sweep.json").write_text(json.dumps(about))


def small_sweep():
    """A sweep over three hyperparameters; large steps diverge, and one corner was not run."""
    rows = []
    for alpha, beta, batch in itertools.product([0.1, 0.5, 2.0, 8.0], [0.01, 0.1, 0.5], [1, 16]):
        if (beta, batch) != (0.5, 16):
            loss = 0.4 + (np.log(alpha) ** 2 + np.log(beta / 0.1) ** 2) / 100 + 1 / (9 + batch)
            gone = alpha > 5 or (alpha > 1 and beta > 0.2)
            row = {
                "alpha": alpha,
                "beta": beta,
                "batch": batch,
                "seed": 0,
                "steps": 9,
                "loss": np.inf if gone else loss,
            }
            rows.append(row | {"grad_norm": 0.1, "status": "diverged" if gone else "done"})
    return pd.DataFrame(rows)


def contents(path):
    """The JSON of a page, parsed strictly: NaN and infinity are errors."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>',
        path.read_text(encoding="utf-8"),
    )
    return json.loads(found[1], parse_constant=refuse)


def words(path):
    """The text of a page without its scripts and tags."""
    text = re.sub(
        r"<(script|style)\b.*?</\1>|<wbr>", "", path.read_text(encoding="utf-8"), flags=re.S
    )
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def fill(folder):
    """Fill a folder with all that a page may show: several seeds, one seed, a diverged run, a sweep, an optimum."""
    for seed in range(3):
        fast = 0.3 + np.exp(-np.arange(21) / 2) * (1 + 0.2 * seed)
        trace("gt-hsgd[beta=0.01,alpha=0.5]", losses=fast, seed=seed).save(
            folder / "runs" / "GT-HSGD" / f"seed-{seed}"
        )
        trace(seed=seed).save(folder / "runs" / "DSGD" / f"seed-{seed}")
    trace("d2[batch=1,alpha=0.5]").save(folder / "d2")
    gone = trace(
        "d-get[alpha=9]",
        losses=[1.3, 50, 4e5, np.inf],
        status=Status.diverged,
        message="loss inf at step 30",
    )
    gone.save(folder / "d-get")
    (folder / "optimum.json").write_text('{"value": 0.25}')
    config.write(
        folder / "config.toml",
        config.Options(topology="ring", nodes=6),
        methods=["gt-hsgd", "dsgd"],
    )
    save_sweep(folder / "tuning" / "gt-hsgd", small_sweep())
    return folder
