"""The paper's experiments, each a function: its networks, its data, figures 1 and 2, and one that it leaves out.

A figure is a tuning of every method, runs of the winners on fresh seeds, and pictures of these; all of it lies in one
folder, and what is there already is not computed again. Everything heavy is imported inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peerdescent.errors import require, unknown, whole
from peerdescent.trace import Status, Trace, digest, write

if TYPE_CHECKING:
    import pandas as pd

    from peerdescent.config import Options
    from peerdescent.network import Network
    from peerdescent.problems import Problem

NODES = 20
LAMBDAS = {"ring": 0.98, "exponential": 0.75, "directed-exponential": 0.67, "complete": 0.0}
"""The paper's networks, with the lambda it gives."""
DATA = {"a9a": (48_840, 123), "covertype": (100_000, 54), "kdd98": (75_000, 477), "miniboone": (100_000, 11)}
"""The paper's data, with the size it gives."""
STAND_INS = {"kdd98": "synthetic-75000x477", "miniboone": "synthetic-100000x50"}
"""Of the same shape, where the data cannot be had; OpenML's MiniBooNE has 50 columns, and the paper names no 11."""
STRICT = "gt-hsgd[batch=1]"
"""GT-HSGD as in Algorithm 1; the paper tunes every other batch and is silent on this one."""
COMPARED = {"gt-hsgd-strict": STRICT, **{name: name for name in ("gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo")}}
EVERYONE = {**COMPARED, **{name: name for name in ("gt-sarah", "dsgd", "d2", "d-pd-sgd")}}
PARTITIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "dirichlet-0.1": {"partition": "dirichlet", "concentration": 0.1},
    "label": {"partition": "label"},
}
EPOCHS = (5, 10, 30, 100)
"""Where losses are reported."""


class Scale(NamedTuple):
    """How much is computed."""

    grid: str
    tuning: float
    """Epochs of the tuning."""
    length: float
    """Epochs of the runs."""
    seeds: int
    starts: int
    """Searches for the smallest value of F."""
    finalists: int = 1
    """How many of the best of a tuning are compared over five seeds more."""


SCALES = {
    "tiny": Scale("small", 1, 2, 2, 1),
    "quick": Scale("medium", 30, 100, 5, 5),
    "full": Scale("paper", 30, 100, 5, 5),
}
"""For a test; for two CPU cores; the paper's grid, for a GPU."""


class Study(NamedTuple):
    """What an experiment found."""

    table: pd.DataFrame
    """A row a line of the figure: the method, and the mean and deviation over seeds of its loss."""
    traces: dict[str, list[Trace]]
    optimum: float
    """The smallest value of F that was found."""
    folder: Path


def _silent(text: str) -> None:
    """Say nothing."""


def lambdas() -> pd.DataFrame:
    """The four networks of 20 nodes: lambda, and what the paper says.

    >>> lambdas()["lambda"].round(2).tolist()
    [0.98, 0.75, 0.67, 0.0]
    """
    import pandas as pd

    from peerdescent import Network, topology

    found = {name: Network(topology.build(name, NODES)) for name in LAMBDAS}
    rows = [
        # Below 1e-12 it is the rounding of a zero.
        {"topology": name, "weights": network.rule, "lambda": round(network.lam, 12), "paper": LAMBDAS[name]}
        for name, network in found.items()
    ]
    return pd.DataFrame(rows)


def table2(data_dir: str | None = None) -> pd.DataFrame:
    """The four data sets as they are loaded, and what the paper says; what cannot be had is said to be missing."""
    import numpy as np
    import pandas as pd

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
        density = filled.nnz / np.prod(filled.shape) if hasattr(filled, "nnz") else float((filled != 0).mean())
        used, columns = int(sizes.sum()), filled.shape[1]
        rows.append(
            row
            | {"loaded": f"{used:,} x {columns}", "m": float(sizes.mean()), "positive": positive, "nonzero": density}
        )
    return pd.DataFrame(rows)


def figure1(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    *,
    finalists: int = 1,
    data_dir: str | None = None,
    progress: Any = None,
    note: Callable[[str], None] = _silent,
) -> Study:
    """Figure 1: four methods, tuned, over the undirected exponential graph; loss and gap against epochs.

    GT-HSGD comes twice: as in Algorithm 1, with batch 1 after the start, and with its batch tuned like the others'.
    Each method's winner has the smallest loss with one seed or, of the best `finalists` of these, over five seeds.
    """
    options = _options(data, data_dir, "exponential")
    return _compared(
        "figure1", COMPARED, options, _scale(scale, finalists), _folder("figure1", data, out), progress, note
    )


def figure2(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    *,
    finalists: int = 1,
    data_dir: str | None = None,
    progress: Any = None,
    note: Callable[[str], None] = _silent,
) -> Study:
    """Figure 2: GT-HSGD, as in Algorithm 1, tuned on the complete graph and run on the four graphs."""
    size, folder = _scale(scale, finalists), _folder("figure2", data, out)
    options = _options(data, data_dir, "complete")
    problem, network = _experiment(options)
    selector = _tuned(STRICT, problem, network, size, folder / "tuning" / "complete", progress, note)
    traces, selectors = {}, {}
    for name in LAMBDAS:
        own = replace(options, topology=name)
        network = _experiment(own)[1]
        label = f"{name}, λ = {network.lam:.2f}"
        traces[label] = _runs(folder / "runs" / name, selector, own, problem, network, size, progress, note)
        selectors[label] = selector
    return _finished("figure2", traces, selectors, options, problem, size, folder, note)


def heterogeneity(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    *,
    finalists: int = 1,
    data_dir: str | None = None,
    progress: Any = None,
    note: Callable[[str], None] = _silent,
) -> dict[str, Study]:
    """All methods, tuned, where nodes hold the same mixture of labels, a skewed one, and hardly more than one label."""
    folder, size, found = _folder("heterogeneity", data, out), _scale(scale, finalists), {}
    for name, partition in PARTITIONS.items():
        options = replace(_options(data, data_dir, "exponential"), **partition)
        found[name] = _compared("heterogeneity", EVERYONE, options, size, folder / name, progress, note)
    return found


def load(name: str, data_dir: str | None = None) -> Any:
    """One of the paper's data sets, cut to the paper's number of rows."""
    from peerdescent import datasets

    return datasets.load(name, data_dir=data_dir, rows=_rows(name))


def _rows(name: str) -> int | None:
    # a9a loses two rows to an even partition, as in the paper; the others are cut.
    return DATA[name][0] if name in DATA and name != "a9a" else None


def _options(data: str, data_dir: str | None, topology: str) -> Options:
    from peerdescent.config import Options

    return Options(data=data, data_dir=data_dir, rows=_rows(data), topology=topology, nodes=NODES, data_seed=0)


def _experiment(options: Options) -> tuple[Problem, Network]:
    from peerdescent.config import experiment

    try:
        return experiment(options)
    except ValueError as error:
        instead = STAND_INS.get(options.data)
        raise ValueError(f"{error}; {instead} has its shape" if instead else str(error)) from None


def _scale(name: str, finalists: int) -> Scale:
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]._replace(finalists=whole("finalists", finalists, 1))


def _folder(what: str, data: str, out: str | Path | None) -> Path:
    folder = Path(out) if out is not None else Path("runs") / f"{what}-{Path(data).name}"
    require(not folder.is_file(), f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compared(
    what: str,
    methods: Mapping[str, str],
    options: Options,
    scale: Scale,
    folder: Path,
    progress: Any,
    note: Callable[[str], None],
) -> Study:
    """Several methods on one network."""
    problem, network = _experiment(options)
    traces, selectors = {}, {}
    for label, method in methods.items():
        selector = _tuned(method, problem, network, scale, folder / "tuning" / label, progress, note)
        place = folder / "runs" / label
        traces[label] = _runs(place, selector, options, problem, network, scale, progress, note)
        selectors[label] = selector
    return _finished(what, traces, selectors, options, problem, scale, folder, note)


def _tuned(
    method: str,
    problem: Problem,
    network: Network,
    scale: Scale,
    folder: Path,
    progress: Any,
    note: Callable[[str], None],
) -> str:
    """The winner of a method's tuning, with a heat map of it."""
    from peerdescent import plot
    from peerdescent.tune import tune

    note(f"tuning {method} on the {scale.grid} grid, {scale.tuning:g} epochs")
    marks = [epoch for epoch in EPOCHS if epoch < scale.tuning]
    found = tune(
        method, problem, network, grid=scale.grid, epochs=scale.tuning, at=marks, seeds=0, finalists=scale.finalists,
        progress=progress, out=folder,
    )  # fmt: skip
    note(f"best of {len(found.table):,}: {found.selector}, loss {found.loss:.6f}")
    step = "eta" if "eta" in found.best else "alpha"
    other = next(name for name in ("batch", "beta", "period") if name in found.best and found.table[name].nunique() > 1)
    plot.save(plot.heatmap(found.table, step, other), folder / "heatmap.png")
    return found.selector


def _runs(
    folder: Path,
    selector: str,
    options: Options,
    problem: Problem,
    network: Network,
    scale: Scale,
    progress: Any,
    note: Callable[[str], None],
) -> list[Trace]:
    """A run a seed, none of them the one that chose the winner; those in the folder are read."""
    from peerdescent import config
    from peerdescent.methods import parse
    from peerdescent.record import Grid
    from peerdescent.run import run

    found = []
    note(f"running {selector} on {network.name}, {scale.seeds} seeds, {scale.length:g} epochs")
    for seed in range(1, scale.seeds + 1):
        own, place = replace(options, seed=seed, epochs=scale.length, skip_stationarity=True), folder / f"seed-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        wanted = config.text(own, method=selector)
        earlier = place / "config.toml"
        if earlier.is_file() and earlier.read_text(encoding="utf-8") == wanted and (place / "summary.json").is_file():
            found.append(Trace.load(place))
            continue
        record = Grid(own.record, stationarity=False)
        trace = run(parse(selector), problem, network, epochs=scale.length, seed=seed, record=record, progress=progress)
        if trace.status == Status.interrupted:
            raise KeyboardInterrupt
        trace.save(place)
        write(earlier, wanted.encode())
        found.append(trace)
    return found


def _finished(
    what: str,
    traces: dict[str, list[Trace]],
    selectors: Mapping[str, str],
    options: Options,
    problem: Problem,
    scale: Scale,
    folder: Path,
    note: Callable[[str], None],
) -> Study:
    """The table, the pictures and the page."""
    import pandas as pd

    from peerdescent import config, plot, report

    best = _optimum(problem, scale.starts, folder, note)
    rows = []
    for label, own in traces.items():
        row: dict[str, Any] = {"line": label, "method": selectors[label], "seeds": len(own)}
        row["diverged"] = sum(trace.status == Status.diverged for trace in own)
        for epoch in sorted({scale.length, *(epoch for epoch in EPOCHS if epoch < scale.length)}):
            losses = pd.Series([_loss_at(trace, epoch) for trace in own])
            # With a seed that diverged there is no mean: one of the others would flatter.
            mean, deviation = losses.mean(skipna=False), losses.std(skipna=False)
            row |= {f"loss@{epoch:g}": mean, f"deviation@{epoch:g}": deviation}
        rows.append(row)
    table = pd.DataFrame(rows)
    write(folder / f"{what}.csv", table.to_csv(index=False).encode())
    shown = replace(options, seed=1, epochs=scale.length, skip_stationarity=True)
    write(folder / "config.toml", config.text(shown, methods=list(dict.fromkeys(selectors.values()))).encode())
    title = f"{problem.name}, n = {problem.nodes}, mean of {rows[0]['seeds']} seeds"
    figure = plot.curves(traces, (("epoch", "loss"), ("epoch", "gap")), best, title)
    for suffix in ("png", "pdf", "svg"):
        plot.save(figure, folder / f"{what}.{suffix}")
    page = report.write(folder)
    note(f"written to {folder}: {what}.csv, {what}.png, .pdf and .svg, {page.name}")
    return Study(table, traces, best, folder)


def _loss_at(trace: Trace, epoch: float) -> float:
    """The loss at the record next to an epoch; none where the run ended before, diverged."""
    epochs = trace.table["epoch"]
    if trace.status == Status.diverged and epochs.iloc[-1] < epoch:
        return float("nan")
    return float(trace.table["loss"].iloc[(epochs - epoch).abs().argmin()])


def _optimum(problem: Problem, starts: int, folder: Path, note: Callable[[str], None]) -> float:
    """The smallest F that L-BFGS finds, once a folder."""
    from peerdescent.problems import optimum

    path, about = folder / "optimum.json", f"{problem.name} {digest(problem.data)}"
    known = json.loads(path.read_text()) if path.is_file() else {}
    if known.get("problem") != about:
        note("looking for the smallest value of F")
        found = optimum(problem, starts)
        known = {"value": found.value, "grad_norm": found.grad_norm, "values": found.values, "problem": about}
        write(path, (json.dumps(known, indent=2) + "\n").encode())
    return float(known["value"])
