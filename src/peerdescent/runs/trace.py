"""The trace of a run, its status, and the run folder that stores them."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from safetensors.numpy import load_file, save

import peerdescent
from peerdescent.errors import require
from peerdescent.files import write
from peerdescent.runs.metrics import METRICS, Metric


class Status(StrEnum):
    """How a run ended."""

    done = "done"
    diverged = "diverged"
    interrupted = "interrupted"


@dataclass(frozen=True)
class Identity:
    """What identifies a run. A resumed run must have the same identity as its first part."""

    method: str
    problem: str
    network: str
    nodes: int
    dimension: int
    seed: int
    precision: int | str
    engine: str
    values: str
    """A checksum of the problem's data, the weights and x_0."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The result of a run: the table of records, the last recorded iterates, and the status.

    `table` has one row per record, with the columns step, epoch, loss, grad_norm, stationarity, consensus, tracking,
    gradients, rounds, bytes and seconds, and one for each of the user's own `metrics`. `x` (n, p) are the iterates of
    the last row. `x_tilde` (p,) is the output of Algorithm 1, uniform over all nodes and steps. `message` says where a
    run diverged. `seconds` exclude `compile_seconds`.
    """

    table: pd.DataFrame
    x: np.ndarray
    x_tilde: np.ndarray
    status: Status
    identity: Identity
    message: str = ""
    compile_seconds: float = 0.0
    state: Any = field(default=None, repr=False)
    metrics: tuple[Metric, ...] = ()

    def metric(self, name: str) -> Metric:
        """The metric of a column."""
        return METRICS[name] if name in METRICS else next(one for one in self.metrics if one.name == name)

    @property
    def x_mean(self) -> np.ndarray:
        """The mean (p,) of the iterates over nodes."""
        mean: np.ndarray = self.x.mean(axis=0)
        return mean

    @property
    def steps(self) -> int:
        """The step of the last record."""
        return int(self.table["step"].iloc[-1])

    def __repr__(self) -> str:
        last = self.table.iloc[-1]
        shown = [("loss", ".6g"), ("grad_norm", ".3g"), *((own.name, own.format) for own in self.metrics)]
        values = ", ".join(f"{name} {last[name]:{form}}" for name, form in shown)
        return f"Trace({self.identity.method}, {self.status}, {self.steps} steps, {values})"

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: final metrics, costs, status and versions."""
        final = {k: v if math.isfinite(v) else None for k, v in self.table.iloc[-1].to_dict().items()}
        versions = {"peerdescent": peerdescent.__version__, "jax": jax.__version__, "python": platform.python_version()}
        device = jax.devices()[0].device_kind
        return {
            **asdict(self.identity),
            "status": str(self.status),
            "message": self.message,
            "final": final,
            "metrics": [one.look() for one in self.metrics],
            "compile_seconds": self.compile_seconds,
            "device": device,
            "versions": versions,
            "commit": _commit(),
        }

    def save(self, folder: str | Path) -> Path:
        """Write `trace.csv`, `summary.json` and `checkpoint/` into a run folder, each file atomically."""
        folder = Path(folder)
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        arrays = {f"state/{i}": np.ascontiguousarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.state))}
        arrays |= {"x": np.ascontiguousarray(self.x), "x_tilde": np.ascontiguousarray(self.x_tilde)}
        write(folder / "checkpoint" / "state.safetensors", save(arrays))
        write(folder / "trace.csv", self.table.to_csv(index=False).encode())
        write(folder / "summary.json", (json.dumps(self.summary(), indent=2) + "\n").encode())
        return folder

    @staticmethod
    def load(folder: str | Path) -> Trace:
        """Load the trace in a run folder. Its `state` is a flat list, which `run(resume=...)` accepts."""
        folder = Path(folder)
        for name in ("summary.json", "trace.csv", "checkpoint/state.safetensors"):
            require((folder / name).is_file(), f"{folder} is not a run folder: it has no {name}")
        summary = json.loads((folder / "summary.json").read_text())
        arrays = load_file(folder / "checkpoint" / "state.safetensors")
        state = [arrays[f"state/{i}"] for i in range(sum(name.startswith("state/") for name in arrays))]
        return Trace(
            table=pd.read_csv(folder / "trace.csv"),
            x=arrays["x"],
            x_tilde=arrays["x_tilde"],
            status=Status(summary["status"]),
            identity=Identity(**{name: summary[name] for name in Identity.__dataclass_fields__}),
            message=summary["message"],
            compile_seconds=summary["compile_seconds"],
            state=state or None,
            metrics=tuple(Metric(**look) for look in summary.get("metrics", [])),
        )


def _commit() -> str | None:
    """The git commit of the checkout that this package runs from, or None for an installation without one."""
    home = Path(__file__).resolve().parent
    if not (home.parent.parent / ".git").exists():
        return None
    try:
        asked = subprocess.run(["git", "-C", home, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
