"""The paper's experiments, each a function: its networks, its data, figures 1 and 2, and one that it leaves out.

A figure takes a tuning of every method, and runs of the winners on new seeds. All results are in
one folder, and those already there are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import pandas as pd

from peerdescent import datasets, experiment, figures, report
from peerdescent.errors import require, unknown
from peerdescent.experiment import Options
from peerdescent.files import claim, write
from peerdescent.methods.named import ALGORITHM_1
from peerdescent.methods.selectors import parse
from peerdescent.networks import topology
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.minimise import optimum
from peerdescent.problems.problem import Problem
from peerdescent.runs.clocks import Clock
from peerdescent.runs.labels import counted
from peerdescent.runs.loop import run
from peerdescent.runs.schedule import Grid
from peerdescent.runs.statistics import deviation, mean
from peerdescent.runs.store import recall
from peerdescent.runs.trace import Status, Trace
from peerdescent.sweeps.tuning import tune

NODES = 20
LAMBDAS = {"ring": 0.98, "exponential": 0.75, "directed-exponential": 0.67, "complete": 0.0}
"""The paper's networks, with the lambda it gives."""
DATA = {
    "a9a": (48_840, 123),
    "covertype": (100_000, 54),
    "kdd98": (75_000, 477),
    "miniboone": (100_000, 11),
}
"""The paper's data, with the size it gives."""
STAND_INS = {"kdd98": "synthetic-75000x477", "miniboone": "synthetic-100000x50"}
"""Synthetic sets of the same shape, for data that is not available. OpenML's MiniBooNE has 50 columns; the paper does
not say which 11 it used."""
COMPARED = {
    "gt-hsgd-strict": ALGORITHM_1,
    **{name: name for name in ("gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo")},
}
EVERYONE = {**COMPARED, **{name: name for name in ("gt-sarah", "dsgd", "d2", "d-pd-sgd")}}
PARTITIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "dirichlet-0.1": {"partition": "dirichlet", "concentration": 0.1},
    "label": {"partition": "label"},
}
EPOCHS = (5, 10, 30, 100)
"""The epochs at which losses are reported."""


class Scale(NamedTuple):
    """How much is computed."""

    grid: str | None
    """"paper" for all combinations of the paper's values; None for a search."""
    tuning: float
    """Epochs of the tuning."""
    length: float
    """Epochs of the runs."""
    seeds: int
    starts: int
    """Searches for the smallest value of F."""
    budget: float | None = None
    """That of a search, in passes over the local data; None for the default."""


SCALES = {
    "tiny": Scale(None, 1, 2, 2, 1, budget=30),
    "quick": Scale(None, 30, 100, 5, 5),
    "full": Scale("paper", 30, 100, 5, 5),
}
"""The scale "tiny" is for a test, "quick" for two CPU cores, and "full", with the paper's grid, for a GPU."""


class Study(NamedTuple):
    """The result of an experiment."""

    table: pd.DataFrame
    """One row per line of the figure: the method, and the mean and deviation over seeds of its loss."""
    traces: dict[str, list[Trace]]
    optimum: float
    """The smallest value of F that was found."""
    folder: Path


def _silent(text: str) -> None:
    """Print nothing."""


def lambdas() -> pd.DataFrame:
    """The four networks of 20 nodes: lambda, and what the paper says.

    >>> lambdas()["lambda"].round(2).tolist()
    [0.98, 0.75, 0.67, 0.0]
    """
    found = {name: Network(topology.build(name, NODES)) for name in LAMBDAS}
    rows = [
        {"topology": name, "weights": network.rule, "lambda": network.lam, "paper": LAMBDAS[name]}
        for name, network in found.items()
    ]
    return pd.DataFrame(rows)


def table2(data_dir: str | Path | None = None) -> pd.DataFrame:
    """The four data sets as they are loaded, and what the paper says; sets that cannot be loaded are marked missing."""
    rows = []
    for name, (samples, features) in DATA.items():
        row: dict[str, Any] = {"data": name, "paper": f"{samples:,} x {features}"}
        try:
            data = load(name, data_dir)
        except ValueError:
            rows.append(row | {"loaded": f"missing; {STAND_INS.get(name, 'no stand-in')}"})
            continue
        sizes = data.partition(NODES).sizes
        positive, filled = float((data.labels > 0).mean()), data.features
        density = (
            filled.nnz / np.prod(filled.shape)
            if hasattr(filled, "nnz")
            else float((filled != 0).mean())
        )
        used, columns = int(sizes.sum()), filled.shape[1]
        rows.append(
            row
            | {
                "loaded": f"{used:,} x {columns}",
                "m": float(sizes.mean()),
                "positive": positive,
                "nonzero": density,
            }
        )
    return pd.DataFrame(rows)


class How(TypedDict, total=False):
    """Options that all figures share."""

    tuning: float | None
    """Epochs of the tuning; by default the scale's, which are fewer than those of the runs."""
    data_dir: str | Path | None
    nodes: int
    """n; by default the paper's 20."""
    strength: float | None
    """R; by default the paper's 1e-4."""
    progress: Any
    note: Callable[[str], None]
    """Called with a line about each part of the work."""


def figure1(
    data: str = "a9a", scale: str = "quick", out: str | Path | None = None, **how: Unpack[How]
) -> Study:
    """Figure 1: four methods, tuned, over the undirected exponential graph; loss and gap against epochs.

    GT-HSGD comes twice: as in Algorithm 1, with batch 1 after the start, and with its batch tuned
    like the others'.

    Args:
        data: The name of a data set, or a file.
        scale: "tiny", "quick" or "full": the grid, the lengths and the seeds.
        out: A folder for all results; by default runs/figure1- and the name of the data. Results in
            it are used again.
        how: Options that all figures share; see `How`.

    Returns:
        The table, the traces, and the smallest F found.
    """
    return begin("figure1", data, scale, out, **how).compared(COMPARED)


def figure2(
    data: str = "a9a", scale: str = "quick", out: str | Path | None = None, **how: Unpack[How]
) -> Study:
    """Figure 2: GT-HSGD, as in Algorithm 1, tuned on the complete graph and run on the four graphs.

    Arguments and result are as for `figure1`.
    """
    work = begin("figure2", data, scale, out, **how).on(topology="complete")
    problem, network = work.experiment()
    selector = work.tuned(ALGORITHM_1, problem, network, "complete")
    traces = {}
    for name in LAMBDAS:
        own = work.on(topology=name)
        network = own.experiment()[1]
        traces[f"{name}, λ = {network.lam:.2f}"] = own.runs(selector, problem, network, name)
    return work.finished(traces, dict.fromkeys(traces, selector), problem)


def heterogeneity(
    data: str = "a9a", scale: str = "quick", out: str | Path | None = None, **how: Unpack[How]
) -> dict[str, Study]:
    """All methods, tuned, where nodes hold the same mixture of labels, a skewed one, and hardly more than one label.

    Arguments are as for `figure1`. The result has one `Study` per partition, by name.
    """
    work = begin("heterogeneity", data, scale, out, **how)
    return {
        name: replace(work.on(**partition), folder=work.folder / name).compared(EVERYONE)
        for name, partition in PARTITIONS.items()
    }


def load(name: str, data_dir: str | Path | None = None) -> Any:
    """One of the paper's data sets, cut to the paper's number of rows."""
    return datasets.load(name, data_dir=data_dir, rows=_rows(name))


def _rows(name: str) -> int | None:
    # a9a loses two rows to an even partition, as in the paper; the others are cut.
    return DATA[name][0] if name in DATA and name != "a9a" else None


def begin(
    what: str,
    data: str,
    scale: str,
    out: str | Path | None,
    tuning: float | None = None,
    data_dir: str | Path | None = None,
    nodes: int = NODES,
    strength: float | None = None,
    progress: Any = None,
    note: Callable[[str], None] = _silent,
) -> Work:
    """The work of one figure, on the paper's exponential graph unless `on` changes that."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    size = SCALES[scale]
    if tuning is not None:
        require(
            0 < tuning <= size.length,
            f"tuning = {tuning:g}: must be positive, and at most {size.length:g} epochs",
        )
        size = size._replace(tuning=tuning)
    folder = Path(out) if out is not None else Path("runs") / f"{what}-{Path(data).name}"
    claim(folder)
    options = Options(
        data=data,
        data_dir=Path(data_dir) if data_dir else None,
        rows=_rows(data),
        strength=strength,
        nodes=nodes,
        data_seed=0,
    )
    return Work(what, options, size, folder, progress, note)


@dataclass(frozen=True)
class Work:
    """The work of one figure: its options, how much is computed, the folder, and how progress is reported."""

    what: str
    options: Options
    scale: Scale
    folder: Path
    progress: Any
    note: Callable[[str], None]

    def on(self, **changes: Any) -> Work:
        """The same with other options, such as another topology."""
        return replace(self, options=replace(self.options, **changes))

    def experiment(self) -> tuple[Problem, Network]:
        """The problem and the network."""
        try:
            return experiment.build(self.options)
        except ValueError as error:
            instead = STAND_INS.get(self.options.data)
            raise ValueError(
                f"{error}; {instead} has its shape" if instead else str(error)
            ) from None

    def compared(self, methods: Mapping[str, str]) -> Study:
        """Several methods on one network, each tuned and run."""
        problem, network = self.experiment()
        traces, selectors = {}, {}
        for label, method in methods.items():
            selectors[label] = self.tuned(method, problem, network, label)
            traces[label] = self.runs(selectors[label], problem, network, label)
        return self.finished(traces, selectors, problem)

    def tuned(self, method: str, problem: Problem, network: Network, label: str) -> str:
        """The winner of a method's tuning, with a heat map of it."""
        size, folder = self.scale, self.folder / "tuning" / label
        self.note(f"tuning {method}, {size.tuning:g} epochs")
        found = tune(
            method, problem, network, grid=size.grid, budget=size.budget, epochs=size.tuning, fresh=(),
            progress=self.progress, out=folder,
        )  # fmt: skip
        self.note(f"{found.selector}: {found.how}")
        axes = _axes(found.selector, found.table)
        if axes is not None:
            figures.save(figures.heatmap(found.table, *axes), folder / "heatmap.png", force=True)
        return found.selector

    def runs(
        self,
        selector: str,
        problem: Problem,
        network: Network,
        label: str,
        clock: Clock | None = None,
    ) -> list[Trace]:
        """One run per seed, none of them the seed of the tuning; finished runs in the folder are read."""
        found, length = [], self.scale.length
        self.note(
            f"running {selector} on {network.name}, {counted(self.scale.seeds, 'seed')}, {length:g} epochs"
        )
        for seed in range(1, self.scale.seeds + 1):
            options, place = self._shown(seed), self.folder / "runs" / label / f"seed-{seed}"
            trace = run(
                parse(selector), problem, network, epochs=length, seed=seed,
                record=Grid(options.record, stationarity=False), progress=self.progress,
                checkpoint=place / "checkpoint", clock=clock,
            )  # fmt: skip
            if trace.status == Status.interrupted:
                raise KeyboardInterrupt
            trace.save(place)
            write(place / "config.toml", experiment.text(options, method=selector).encode())
            found.append(trace)
        return found

    def finished(
        self, traces: dict[str, list[Trace]], selectors: Mapping[str, str], problem: Problem
    ) -> Study:
        """Write the table, the figures and the report."""
        what, folder, length = self.what, self.folder, self.scale.length
        best = smallest(problem, self.scale.starts, folder, self.note)
        rows = []
        for label, own in traces.items():
            row: dict[str, Any] = {"line": label, "method": selectors[label], "seeds": len(own)}
            row["diverged"] = sum(trace.status == Status.diverged for trace in own)
            for epoch in sorted({length, *(epoch for epoch in EPOCHS if epoch < length)}):
                losses = [_loss_at(trace, epoch) for trace in own]
                row |= {f"loss@{epoch:g}": mean(losses), f"deviation@{epoch:g}": deviation(losses)}
            rows.append(row)
        table = pd.DataFrame(rows)
        write(folder / f"{what}.csv", table.to_csv(index=False).encode())
        methods = list(dict.fromkeys(selectors.values()))
        write(folder / "config.toml", experiment.text(self._shown(1), methods=methods).encode())
        title = f"{problem.name}, n = {problem.nodes}, mean of {counted(self.scale.seeds, 'seed')}"
        figure = figures.curves(traces, (("epoch", "loss"), ("epoch", "gap")), best, title)
        for suffix in ("png", "pdf", "svg"):
            figures.save(figure, folder / f"{what}.{suffix}", force=True)
        page = report.write(folder)
        self.note(f"written to {folder}: {what}.csv, {what}.png, .pdf and .svg, {page.name}")
        return Study(table, traces, best, folder)

    def _shown(self, seed: int) -> Options:
        """The options of a run, with which `peerdescent run` repeats it."""
        return replace(self.options, seed=(seed,), epochs=self.scale.length, skip_stationarity=True)


def _loss_at(trace: Trace, epoch: float) -> float:
    """The loss at the record nearest to an epoch; NaN if the run diverged before."""
    epochs = trace.table["epoch"]
    if trace.status == Status.diverged and epochs.iloc[-1] < epoch:
        return float("nan")
    return float(trace.table["loss"].iloc[(epochs - epoch).abs().argmin()])


def _axes(selector: str, table: pd.DataFrame) -> tuple[str, str] | None:
    """The axes of a tuning's heat map: the step size, and the first other parameter that varies, if one does."""
    method = parse(selector)
    step = method.step_size
    assert step is not None  # all named methods have one
    others = [
        name
        for name in method.parameters
        if name != step and name in table and table[name].nunique() > 1
    ]
    return (step, others[0]) if others else None


def smallest(problem: Problem, starts: int, folder: Path, note: Callable[[str], None]) -> float:
    """The smallest F that L-BFGS finds; computed once per folder."""

    def compute() -> dict[str, Any]:
        note("looking for the smallest value of F")
        found = optimum(problem, starts)
        return {"value": found.value, "grad_norm": found.grad_norm, "values": found.values}

    about = {"problem": problem.name, "data": digest(problem.definition), "starts": starts}
    return float(recall(folder / "optimum.json", about, compute)["value"])
