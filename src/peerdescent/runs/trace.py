"""The trace of a run, its status, and the run folder that stores them."""

from __future__ import annotations

import html
import json
import math
import platform
import re
import subprocess
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import peerdescent
from peerdescent.errors import require
from peerdescent.files import write
from peerdescent.runs import checkpoint
from peerdescent.runs.labels import counted
from peerdescent.runs.metrics import METRICS, Metric


class Status(StrEnum):
    """How a run ended."""

    done = "done"
    """With all its steps."""
    stopped = "stopped"
    """By a rule given as `stop`; the trace's `message` says by which."""
    interrupted = "interrupted"
    diverged = "diverged"


DRAWN = ("data seed", "row seed")
"""Facts that are seeds of the data."""


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
    facts: dict[str, Any] = field(default_factory=dict)
    """What the problem, the weights and x_0 are made of, by name: data, partition, numbers, checksums.

    Runs whose identities differ in seeds only are runs of one experiment. A partition that is drawn
    by a seed has that seed among its facts, as `data seed`, and rows that are chosen have a `row
    seed`. The checksum `values` depends on these, and the other facts do not.
    """

    @property
    def experiment(self) -> dict[str, Any]:
        """All that defines the run but its seeds."""
        own = asdict(self)
        facts = own.pop("facts")
        if self.drawn:
            own.pop("values")
        own.pop("seed")
        return own | {name: value for name, value in facts.items() if name not in DRAWN}

    @property
    def drawn(self) -> dict[str, Any]:
        """The seeds by which its data were drawn; data are the same where these are, and the facts."""
        return {name: value for name, value in self.facts.items() if name in DRAWN}


class Position(NamedTuple):
    """From where a run continues: its state after a step, which may be later than the last record."""

    step: int
    state: Any
    x_tilde: np.ndarray
    seconds: float


@dataclass(frozen=True, eq=False)
class Trace:
    """The result of a run: the table of records, the last recorded iterates, and the status.

    `table` has one row per record, with the columns step, epoch, loss, grad_norm, stationarity,
    consensus, tracking, gradients, rounds, bytes, seconds and clock (empty without one), and one
    for each of the user's own `metrics`. `x` (n, p) are the iterates of the last row. `x_tilde`
    (p,) is the output of Algorithm 1, uniform over all nodes and steps. `message` says why a run
    ended before its last step. `seconds` exclude `compile_seconds`. A run that was interrupted
    between two records has the `position` from which it continues; other runs continue from
    `state`.
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
    position: Position | None = field(default=None, repr=False)
    asked: int | None = field(default=None, repr=False)
    """The number of steps that the run was to have."""
    node: int | None = field(default=None, repr=False)
    """The only node whose state it has, if not all: a run with one process per node was interrupted."""
    made: dict[str, Any] = field(default_factory=dict, repr=False)
    """The device, versions and commit that it was made with, for a trace that was loaded."""

    def metric(self, name: str) -> Metric:
        """The metric of a column."""
        return (
            METRICS[name]
            if name in METRICS
            else next(one for one in self.metrics if one.name == name)
        )

    @property
    def x_mean(self) -> np.ndarray:
        """The mean (p,) of the iterates over nodes."""
        require(
            len(self.x) > 0,
            f"this is a checkpoint of the process of node {self.node}, without iterates: continue the run, which "
            "gathers them at its end",
        )
        mean: np.ndarray = self.x.mean(axis=0)
        return mean

    @property
    def steps(self) -> int:
        """The step of the last record."""
        return int(self.table["step"].iloc[-1])

    def __repr__(self) -> str:
        last = self.table.iloc[-1]
        shown = [
            ("loss", ".6g"),
            ("grad_norm", ".3g"),
            *((own.name, own.format) for own in self.metrics),
        ]
        values = ", ".join(
            f"{name} {last[name]:{'.4g' if form == 'B' else form}}" for name, form in shown
        )
        why = f" ({self.message})" if self.message else ""
        return f"Trace({self.identity.method}, {self.status}{why}, {counted(self.steps, 'step')}, {values})"

    def _repr_html_(self) -> str:
        return in_notebook(self, self.table)

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: final metrics, costs, status and versions."""
        final = {
            k: v if math.isfinite(v) else None for k, v in self.table.iloc[-1].to_dict().items()
        }
        return {
            **asdict(self.identity),
            "status": str(self.status),
            "message": self.message,
            "final": final,
            "metrics": [one.look() for one in self.metrics],
            "compile_seconds": self.compile_seconds,
            **(self.made or _made()),
        }

    def is_over(self, total: int) -> bool:
        """Whether a run of `total` steps has ended. Always false for the checkpoint of one process of several."""
        ended = self.status == Status.diverged or (
            self.status != Status.interrupted and self.steps == total
        )
        return ended and self.position is None and self.node is None

    @property
    def end(self) -> Position:
        """From where the run continues."""
        return self.position or Position(
            self.steps,
            self.state,
            self.x_tilde,
            float(self.table["seconds"].iloc[-1]) if len(self.table) else 0.0,
        )

    def save(self, folder: str | Path, force: bool = False) -> Path:
        """Write a run folder: `checkpoint/`, from which `load` reads, and `trace.csv` and `summary.json` for people.

        It replaces a run of the same experiment and seed that is not longer. A folder with another
        run, or with runs of several seeds, is refused; `force` replaces that run, and leaves those
        of several seeds beside this one.
        """
        folder = Path(folder)
        if not force:
            self.check_folder(folder)
            require(
                not seeds_in(folder),
                f"{folder} has runs of several seeds, such as seed-{min(seeds_in(folder), default=0)}: give another "
                "folder, or force=True",
            )
        self.save_checkpoint(folder / "checkpoint")
        for path, *_ in self._others(folder):
            path.unlink(missing_ok=True)
        write(folder / "trace.csv", self.table.to_csv(index=False).encode())
        write(folder / "summary.json", (json.dumps(self.summary(), indent=2) + "\n").encode())
        return folder

    def _others(self, folder: Path) -> list[tuple[Path, int, Any]]:
        """The checkpoints in a run folder that are of other runs, or later: path, step and identity of each."""
        places = (folder, folder / "checkpoint")
        return [
            one
            for place in places
            for one in checkpoint.others(place, self.end.step, asdict(self.identity))
        ]

    def check_folder(self, folder: Path) -> None:
        """Refuse a run folder with another run, or a longer one."""
        here = in_order(json.loads(json.dumps(asdict(self.identity))))
        for _, step, identity in self._others(folder):
            there = in_order(identity or {})
            for name in dict.fromkeys([*here, *there]):
                require(
                    here.get(name) == there.get(name),
                    f"{folder} has another run, whose {name} is {there.get(name)!r}, and {here.get(name)!r} here: give "
                    "another folder, or force=True",
                )
            raise ValueError(
                f"{folder} has {counted(step, 'step')} of this run, and {self.end.step:,} are here: give another "
                "folder, or force=True"
            )

    def save_checkpoint(self, folder: Path) -> None:
        """Write one checkpoint with everything in it: the state to continue from, records, status and identity."""
        step, state, x_tilde, seconds = self.end
        arrays = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        arrays |= {"x": self.x, "x_tilde": self.x_tilde, "end/x_tilde": x_tilde}
        facts = {
            "identity": asdict(self.identity),
            "rows": self.table.to_dict("records"),
            "status": str(self.status),
            "message": self.message,
            "compile_seconds": self.compile_seconds,
            "metrics": [one.look() for one in self.metrics],
            "seconds": seconds,
            "asked": self.asked,
            "node": self.node,
            "made": self.made or _made(),
        }
        checkpoint.save(folder, step, arrays, facts)

    @staticmethod
    def load(folder: str | Path) -> Trace:
        """Load the trace in a run folder. Its `state` is a flat list, which `run(resume=...)` accepts.

        It is read from the newest checkpoint that is whole; `trace.csv` and `summary.json` are not
        read. A folder of `run(checkpoint=...)` will do as well.
        """
        folder = Path(folder)
        places = checkpoint.newest(folder / "checkpoint"), checkpoint.newest(folder)
        known = max(filter(None, places), key=lambda one: one[1], default=None)
        require(
            known is not None, f"{folder} is not a run folder: it has no checkpoint that is whole"
        )
        assert known is not None
        return Trace.from_checkpoint(*known)

    @staticmethod
    def from_checkpoint(folder: Path, step: int) -> Trace:
        """The trace in one checkpoint; that of one process has no iterates unless it was saved between records."""
        arrays, facts = checkpoint.load(folder, step)
        try:
            state: Any = [
                arrays[f"state/{i}"]
                for i in range(sum(name.startswith("state/") for name in arrays))
            ]
            table = pd.DataFrame(facts["rows"])
            at = Position(step, state or None, arrays["end/x_tilde"], float(facts["seconds"]))
            between = step != int(table["step"].iloc[-1])
            return Trace(
                table=table,
                x=arrays["x"],
                x_tilde=arrays["x_tilde"],
                status=Status(facts["status"]),
                identity=Identity(**facts["identity"]),
                message=facts["message"],
                compile_seconds=facts["compile_seconds"],
                state=None if between else at.state,
                metrics=tuple(Metric(**look) for look in facts["metrics"]),
                position=at if between else None,
                asked=facts.get("asked"),
                node=facts.get("node"),
                made=facts["made"],
            )
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(
                f"{folder} has a checkpoint of something else: {error!r}; give another folder"
            ) from error


def in_order(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies a run, by name: what is made of several facts comes last, so that a message names the fact."""
    own = {name: value for name, value in identity.items() if name not in ("facts", "values")}
    return {**own, **identity.get("facts", {}), "values": identity.get("values")}


def seeds_in(folder: Path) -> list[int]:
    """The seeds that have a run folder in a folder of runs of several."""
    found = (re.fullmatch(r"seed-(\d+)", path.name) for path in folder.glob("seed-*"))
    return sorted(int(match[1]) for match in found if match)


def in_notebook(runs: Sequence[Trace] | Trace, table: pd.DataFrame) -> str:
    """What notebooks show of runs: their text, last rows of a table, and the curve of the loss."""
    made = f"<div>{html.escape(repr(runs))}</div>{table.tail().to_html()}"
    figures = import_module("peerdescent.figures")  # of a higher layer, and slow to import
    with suppress(ValueError):  # a loss that no axis can show, such as one that is NaN throughout
        picture, size = figures.curves(runs, [("step", "loss")])._repr_png_()
        source = f"data:image/png;base64,{b64encode(picture).decode()}"
        made += f'<img src="{source}" width="{size["width"]}" alt="the loss by steps">'
    return made


def have_ended(traces: Sequence[Trace]) -> bool:
    """Whether runs that differ in seed have all come to their end, so that there is a mean of their last records.

    Those that are done have equally many steps, and those that were stopped by a rule not more than
    these.
    """
    most = max(trace.steps for trace in traces)
    return all(
        trace.status == Status.stopped or (trace.status == Status.done and trace.steps == most)
        for trace in traces
    )


@cache
def _made() -> dict[str, Any]:
    """What runs are made with here."""
    versions = {
        "peerdescent": peerdescent.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    return {"device": jax.devices()[0].device_kind, "versions": versions, "commit": _commit()}


def _commit() -> str | None:
    """The git commit of the checkout that this package runs from, or None for an installation without one."""
    home = Path(__file__).resolve().parent
    if not (home.parent.parent / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", home, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
