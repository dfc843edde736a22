"""Studies of methods made for a purpose: few bytes, few rounds, noise with heavy tails, and composite problems.

In each, methods are tuned with one seed over the grids that they declare, with a step size more,
and the winners are run with new seeds, all with the same budget of gradients. Results in the folder
are used again, so parts of a study may run side by side, each with some of the methods, and one
more call over the same folder puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter, StrMethodFormatter

from peerdescent import figures
from peerdescent.errors import require, unknown
from peerdescent.files import claim, write
from peerdescent.methods.named import METHODS
from peerdescent.methods.selectors import parse, split
from peerdescent.networks.network import Network
from peerdescent.networks.topology import exponential
from peerdescent.problems.definition import digest
from peerdescent.problems.minimise import optimum
from peerdescent.problems.penalties import composite as penalised
from peerdescent.problems.problem import Problem
from peerdescent.problems.quadratics import quadratic
from peerdescent.runs.clocks import Clock, clock
from peerdescent.runs.costs import Costs
from peerdescent.runs.labels import counted
from peerdescent.runs.loop import run
from peerdescent.runs.metrics import Metric, metric
from peerdescent.runs.schedule import Grid
from peerdescent.runs.statistics import deviation, mean
from peerdescent.runs.store import recall
from peerdescent.runs.trace import Status, Trace
from peerdescent.studies.equal_loss import (
    NEEDED,
    Ended,
    compared,
    curves,
    ends,
    levels,
    needed,
    told,
)
from peerdescent.studies.paper import NODES, PARTITIONS, SCALES, How, Scale, Work, begin, smallest
from peerdescent.sweeps.grids import grid_of
from peerdescent.sweeps.seeds import best
from peerdescent.sweeps.sweeping import sweep
from peerdescent.sweeps.tuning import tune

LENGTH = 30.0
"""Epochs of the runs, and of the tuning."""
RECORDS = 200
"""Records of a run, with equal ratios between them: levels are reached early and late."""
BATCH, LARGE = 16, 256
"""The batch of all methods where bytes and rounds are compared, and one with which baselines save rounds, too."""
SPLITS = {name: PARTITIONS[name] for name in ("uniform", "label")}
"""How nodes share the data: all alike, and sorted by label."""
TOP, SIGN, BITS = "top-k(0.1)", "sign", "quantize(4)"
COMPRESSED = {
    **{name: f"{name}[batch={BATCH}]" for name in ("dsgd", "gt-dsgd")},
    **{
        f"{name} {what}": f"{name}[compressor={what},batch={BATCH}]"
        for name in ("choco-sgd", "beer", "motef", "docom")
        for what in (TOP, SIGN)
    },
    f"beer {BITS}": f"beer[compressor={BITS},batch={BATCH}]",
}
"""The lines of the study of compression."""
LOCAL = {
    **dict.fromkeys(("dsgd", "gt-dsgd"), (BATCH, LARGE)),
    **dict.fromkeys(("k-gt", "led", "proxskip"), (BATCH,)),
}
"""The methods of the study of local steps, each with its batches."""
MACHINES = clock("continent")
L1 = 3e-4
"""The strength of the l1 term; of the 123 entries of the solution for a9a, 40 are not zero."""
COMPOSITE = {
    **{name: name for name in ("proxgt", "deepstorm")},
    "proxgt hybrid": "hybrid*proximal-tracking",
}
"""The lines of the composite study. The last one has deepstorm's estimator, and mixes after prox as proxgt does."""
NOISES: Mapping[str, float | None] = {"gaussian": None, "t 2": 2.0, "t 1.5": 1.5}
"""The noise of the study of heavy tails: Gaussian, or Student's t with so many degrees of freedom."""
TAILED = ("gt-dsgd", "gt-momentum", "gt-nsgdm")
STEP_SIZES = tuple(2.0**k for k in range(-12, 2))
"""The step sizes of the study of heavy tails, instead of declared ones: normalised steps have this very length."""
FEATURES, AWAY = 20, 10.0
"""The quadratics of the study of heavy tails: their dimension, and the distance from the start to the minimum."""
STEPS = 30
"""Steps of the study of heavy tails for each epoch of other studies."""


class Finding(NamedTuple):
    """The result of a part of a study."""

    table: pd.DataFrame
    """One row per line: the method, how it ends, and what it needs to each level."""
    needed: pd.DataFrame
    """What each line needs to each level, one row for each; empty if nothing is compared at equal loss."""
    traces: dict[str, list[Trace]]
    optimum: float
    """The smallest value of the objective that was found."""
    verdict: list[str]
    """What the numbers say, in sentences."""
    folder: Path


def compression(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] = tuple(COMPRESSED),
    **how: Unpack[How],
) -> dict[str, Finding]:
    """Gap against bytes: methods with compressed messages and error feedback, dsgd and gt-dsgd.

    All have the same batch, since a larger one saves bytes for everybody. The exponential graph of
    20 nodes, where nodes share the data evenly, and sorted by label.

    Args:
        data: The name of a data set, or a file.
        scale: "tiny", "quick" or "full": the grid of the tuning, and the seeds.
        out: A folder for all results; by default runs/compression- and the name of the data.
            Results in it are used again.
        methods: Some of the lines in `COMPRESSED`, for a part of the work.
        how: Options that all studies share; see `How`.

    Returns:
        One `Finding` per partition, by name.
    """
    chosen = _chosen(methods, COMPRESSED)
    work = _begun("compression", data, scale, out, **how)
    pairs = [
        *((f"beer {what}", "gt-dsgd") for what in (TOP, SIGN, BITS)),
        *((f"beer {what}", f"choco-sgd {what}") for what in (TOP, SIGN)),
        *(
            (f"{name} {what}", f"beer {what}")
            for name in ("motef", "docom")
            for what in (TOP, SIGN)
        ),
    ]
    view = View(("bytes", "epoch"), ("bytes",), "dsgd", "gt-dsgd", pairs)
    parts = {}
    for name, split_by in SPLITS.items():
        part = _part(work.on(**split_by), name)
        lines = {
            line: part.tuned(line, _search(COMPRESSED[line], part.problem, work.scale))
            for line in chosen
        }
        traces = {line: part.runs(line, selector) for line, selector in lines.items()}
        parts[name] = part.finished(traces, lines, part.smallest(), view)
    return _told(parts)


def local(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] = tuple(LOCAL),
    **how: Unpack[How],
) -> dict[str, Finding]:
    """Gap against rounds and simulated seconds: methods with local steps; dsgd and gt-dsgd, also with a large batch.

    How often nodes communicate is not tuned, since by the loss alone more often is better: each of
    the frequencies in a method's grid is a line of its own, tuned in all else. The clock is the
    preset "continent".

    Arguments and result are as for `compression`; `methods` are some of those in `LOCAL`.
    """
    chosen = _chosen(methods, LOCAL)
    work = _begun("local", data, scale, out, **how)
    parts = {}
    for name, split_by in SPLITS.items():
        part = _part(work.on(**split_by), name)
        lines: dict[str, str] = {}
        traces: dict[str, list[Trace]] = {}
        owned: dict[str, list[str]] = {}
        for method in chosen:
            for line, search in _frequencies(
                method, part.problem, part.network, work.scale
            ).items():
                lines[line] = part.tuned(line, search)
                traces[line] = part.runs(line, lines[line], MACHINES)
                owned.setdefault(method, []).append(line)
        # The first line of dsgd and of gt-dsgd is that of the smaller batch.
        anchor, reference = (owned.get(method, [""])[0] for method in ("dsgd", "gt-dsgd"))
        locally = [line for method in chosen if len(LOCAL[method]) == 1 for line in owned[method]]
        pairs = [(line, other) for line in locally for other in owned.get("gt-dsgd", [])]
        view = View(("rounds", "clock"), ("rounds", "clock"), anchor, reference, pairs)
        parts[name] = part.finished(traces, lines, part.smallest(), view)
    return _told(parts)


def composite(
    data: str = "a9a",
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] = tuple(COMPOSITE),
    **how: Unpack[How],
) -> dict[str, Finding]:
    """Logistic regression with an l1 term: proxgt, deepstorm, and one that has something of both.

    Batches are tuned like all else. The gradient norm is that of the proximal gradient mapping.

    Arguments and result are as for `compression`, with one part; `methods` are some of the lines in
    `COMPOSITE`.
    """
    chosen = _chosen(methods, COMPOSITE)
    work = _begun("composite", data, scale, out, **how)
    part = _part(work, "l1", lambda problem: penalised(problem, l1=L1))
    lines = {
        line: part.tuned(line, _search(COMPOSITE[line], part.problem, work.scale))
        for line in chosen
    }
    own = metric(_nonzeros_of_a_node, "nonzeros of a node")
    traces = {line: part.runs(line, selector, metrics=[own]) for line, selector in lines.items()}
    pairs = [
        ("deepstorm", "proxgt"), ("proxgt hybrid", "proxgt"), ("deepstorm", "proxgt hybrid")
    ]  # fmt: skip
    view = View(("epoch",), ("epoch",), "proxgt", "proxgt", pairs, ("gap", "grad_norm", "nonzeros"))
    value, entries = part.sparsest()
    found = part.finished(traces, lines, value, view, ("nonzeros of a node",))
    counts = [
        f"{row['line']} {row['nonzeros']:.3g} ({row['nonzeros of a node']:.3g} at a node)"
        for row in found.table.to_dict("records")
    ]
    text = f"entries that are not 0, of {part.problem.dimension}: the solution {entries}, {', '.join(counts)}"
    return _told({"l1": found._replace(verdict=[*found.verdict, text])})


def heavy_tails(
    scale: str = "quick",
    out: str | Path | None = None,
    methods: Sequence[str] = TAILED,
    *,
    progress: Any = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Finding]:
    """Gradient tracking with normalised steps, and without, where the noise of gradients is Gaussian or Student's t.

    The problem is a quadratic whose nodes have different minima. The measure is the norm of the
    gradient at the mean of the nodes: its expectation is finite for all of the noises, and that of
    the loss is not. Where the variance is infinite one seed decides by luck, so the tuning has
    five, and there are four times as many runs as in other studies.

    Args:
        scale: "tiny", "quick" or "full": the grid of the tuning, the length and the seeds.
        out: A folder for all results, by default runs/heavy-tails. Results in it are used again.
        methods: Some of those in `TAILED`, for a part of the work.
        progress: As for `run`.
        note: Called with a line about each part of the work.

    Returns:
        One `Finding` per noise, by name.
    """
    chosen = _chosen(methods, TAILED)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    size = SCALES[scale]._replace(seeds=4 * SCALES[scale].seeds)
    folder, network = (
        claim(Path("runs") / "heavy-tails" if out is None else Path(out)),
        Network(exponential(NODES)),
    )
    pairs = [("gt-nsgdm", "gt-dsgd"), ("gt-nsgdm", "gt-momentum"), ("gt-momentum", "gt-dsgd")]
    view = View(("step",), (), "", "", pairs, ("grad_norm",))
    parts = {}
    for name, tails in NOISES.items():
        part = Part(folder, name, bowl(tails), network, size, progress, note)
        lines = {method: part.tuned_by_seeds(method) for method in chosen}
        traces = {method: part.runs(method, selector) for method, selector in lines.items()}
        parts[name] = part.finished(traces, lines, 0.0, view)
    return _told(parts)


def bowl(tails: float | None) -> Problem:
    """The problem of `heavy_tails`: F(x) = x'Qx / 2 with the eigenvalues 0.1 to 1, whose minimum is 0.

    Nodes add linear terms that cancel, so their own minima are elsewhere.

    >>> problem = bowl(1.5)
    >>> round(problem.loss(problem.start), 6), bool(abs(problem.grad(np.zeros(FEATURES))).max() < 1e-12)
    (19.963806, True)
    """
    linear = np.random.default_rng(0).normal(size=(NODES, FEATURES))
    matrices = np.stack([np.diag(np.geomspace(0.1, 1.0, FEATURES))] * NODES)
    found = quadratic(matrices, linear - linear.mean(axis=0), noise=1.0, tails=tails)
    return replace(found, start=np.full(FEATURES, AWAY / FEATURES**0.5))


def _nonzeros_of_a_node(x_mean: np.ndarray, x: np.ndarray, problem: Problem) -> float:
    """How many entries of a node's own model are not zero, on average."""
    return float(np.count_nonzero(x, axis=1).mean())


class View(NamedTuple):
    """What is compared in a study."""

    across: tuple[str, ...]
    """The horizontal axes of the figure, all of them logarithmic."""
    amounts: tuple[str, ...]
    """The columns of which lines need so much to a level."""
    anchor: str
    """The line whose last gap sets the first level."""
    reference: str
    """The line that others' amounts are divided by."""
    pairs: Sequence[tuple[str, str]]
    """The lines whose ends are compared."""
    up: tuple[str, ...] = ("gap",)
    """The vertical axes; the first one is the measure by which ends are compared."""


class Search(NamedTuple):
    """What is tuned: a method and its configurations."""

    method: str
    configurations: list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """A part of a study: a problem and a network, how much is computed, and where results go."""

    study: Path
    """The folder of the study."""
    name: str
    problem: Problem
    network: Network
    scale: Scale
    progress: Any
    note: Callable[[str], None]

    @property
    def folder(self) -> Path:
        """The folder for its runs."""
        return self.study / self.name

    def tuned(self, line: str, search: Search) -> str:
        """The winner of a tuning with one seed."""
        self.note(
            f"{self.name}: tuning {line}, {counted(len(search.configurations), 'configuration')}"
        )
        found = tune(
            search.method, self.problem, self.network, grid=search.configurations, epochs=self.scale.tuning, fresh=(),
            progress=self.progress, out=self.folder / "tuning" / line,
        )  # fmt: skip
        return found.selector

    def tuned_by_seeds(self, method: str) -> str:
        """The configuration with the smallest mean of the last gradient norms over five seeds, with batch 1."""
        step = _step_size(method)
        rest = _grid(method, None, self.scale, batch=1, **{step: STEP_SIZES[0]})
        grid = [{**one, step: size} for one in rest for size in STEP_SIZES]
        self.note(f"{self.name}: tuning {method}, {counted(len(grid), 'configuration')}")
        table = sweep(
            method, grid, self.problem, self.network, **self._length, seed=[0, *range(1001, 1005)],
            progress=self.progress, out=self.folder / "tuning" / method,
        )  # fmt: skip
        if (table["status"] == Status.interrupted).any():
            raise KeyboardInterrupt
        return _selector(method, best(table, by="grad_norm"))

    def runs(
        self, line: str, selector: str, clock: Clock | None = None, metrics: Iterable[Metric] = ()
    ) -> list[Trace]:
        """One run per seed, none of them the seed of the tuning; finished runs in the folder are read."""
        self.note(f"{self.name}: running {selector}, {counted(self.scale.seeds, 'seed')}")
        found = []
        for seed in range(1, self.scale.seeds + 1):
            place = self.folder / "runs" / line / f"seed-{seed}"
            trace = run(
                parse(selector), self.problem, self.network, **self._length, seed=seed,
                record=Grid(RECORDS, "log", stationarity=False), metrics=metrics, progress=self.progress,
                checkpoint=place / "checkpoint", clock=clock,
            )  # fmt: skip
            if trace.status == Status.interrupted:
                raise KeyboardInterrupt
            trace.save(place)
            found.append(trace)
        return found

    @property
    def _length(self) -> dict[str, Any]:
        """The length of a run: in epochs, or in steps if there are none."""
        if self.problem.samples is None:
            return {"steps": round(STEPS * self.scale.length)}
        return {"epochs": self.scale.length}

    def smallest(self) -> float:
        """The smallest F that was found."""
        return smallest(self.problem, self.scale.starts, self.folder, self.note)

    def sparsest(self) -> tuple[float, int]:
        """The smallest F + h that was found, and how many entries are not zero there."""

        def compute() -> dict[str, Any]:
            self.note("looking for the smallest value of F + h")
            found = optimum(self.problem, self.scale.starts)
            return {
                "value": found.value,
                "nonzeros": int(np.count_nonzero(found.x)),
                "values": found.values,
            }

        about = {
            "problem": self.problem.name,
            "data": digest(self.problem.definition),
            "starts": self.scale.starts,
        }
        known = recall(self.folder / "optimum.json", about, compute)
        return float(known["value"]), int(known["nonzeros"])

    def finished(
        self,
        traces: dict[str, list[Trace]],
        selectors: Mapping[str, str],
        smallest: float,
        view: View,
        more: tuple[str, ...] = (),
    ) -> Finding:
        """Write the tables and the figure; `more` are columns of traces whose last values the table has as well."""
        measure, *others = view.up
        last = {line: ends(own, measure, smallest) for line, own in traces.items()}
        at = levels(traces, smallest, view.anchor) if view.amounts else []
        amounts = [needed(traces, smallest, at, column, view.reference) for column in view.amounts]
        rows: list[dict[str, Any]] = []
        for line, own in traces.items():
            gone = sum(trace.status == Status.diverged for trace in own)
            row = {"line": line, "method": selectors[line], "seeds": len(own), "diverged": gone}
            values = last[line]
            row |= {
                measure: float(mean(values)),
                "deviation": float(deviation(values)),
                "worst": max(values),
            }
            row |= {name: float(mean(ends(own, name, smallest))) for name in (*others, *more)}
            for table in amounts:
                for each in table[table["line"] == line].to_dict("records"):
                    to = f"{each['unit']} to {each['level']:g}"
                    row |= {to: each["amount"], f"{to}, ratio": each["ratio"]}
            rows.append(row)
        table = pd.DataFrame(rows)
        every = (
            pd.concat(amounts, ignore_index=True) if amounts else pd.DataFrame(columns=list(NEEDED))
        )
        verdict = [sentence for each in amounts for sentence in told(each, view.reference)]
        shown = {line: Ended.of(values) for line, values in last.items()}
        known = [(one, two) for one, two in view.pairs if one in shown and two in shown]
        verdict += [compared(one, two, shown[one], shown[two]) for one, two in known]
        slug = self.name.replace(" ", "-")
        time = "step" if self.problem.samples is None else "epoch"
        columns = [time, *(name for name in ("rounds", "bytes", "clock") if name in view.amounts)]
        points = curves(traces, smallest, columns, (*view.up, *more))
        files = {slug: table, f"{slug}-curves": points} | (
            {f"{slug}-needed": every} if amounts else {}
        )
        for name, frame in files.items():
            write(self.study / f"{name}.csv", frame.to_csv(index=False).encode())
        figure = self._figure(traces, view, smallest)
        figures.save(figure, self.study / f"{slug}.png", force=True)
        self.note(
            f"written to {self.study}: {', '.join(f'{name}.csv' for name in files)}, {slug}.png"
        )
        return Finding(table, every, traces, smallest, verdict, self.study)

    def _figure(self, traces: dict[str, list[Trace]], view: View, smallest: float) -> Figure:
        """A panel for each pair of axes."""
        panels = [(x, y) for x in view.across for y in view.up]
        seeds = counted(self.scale.seeds, "seed")
        title = f"{self.problem.name}, {self.name}, n = {self.problem.nodes}, mean of {seeds}"
        figure = figures.curves(traces, panels, smallest, title)
        for axes, (x, _) in zip(figure.axes, panels, strict=True):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(
                EngFormatter(unit="B") if x == "bytes" else StrMethodFormatter("{x:g}")
            )
            axes.xaxis.set_minor_formatter(NullFormatter())
        return figure


def _begun(what: str, data: str, scale: str, out: str | Path | None, **how: Unpack[How]) -> Work:
    """The work of a study, whose runs are no longer than its tuning."""
    work = begin(what, data, scale, out, **how)
    return replace(work, scale=work.scale._replace(length=min(LENGTH, work.scale.length)))


def _part(
    work: Work, name: str, change: Callable[[Problem], Problem] = lambda problem: problem
) -> Part:
    """A part of the work on its data and network; `change` makes the problem out of that of the data."""
    problem, network = work.experiment()
    return Part(work.folder, name, change(problem), network, work.scale, work.progress, work.note)


def _chosen(methods: Sequence[str], known: Iterable[str]) -> list[str]:
    """The lines that were asked for, each once."""
    listed = not isinstance(methods, str) and len(methods) > 0
    require(listed, f"methods = {methods!r}: give a list of some of {', '.join(known)}")
    for name in methods:
        if name not in known:
            raise unknown("line", name, known)
    return list(dict.fromkeys(methods))


def _grid(name: str, samples: float | None, scale: Scale, **fixed: Any) -> list[dict[str, Any]]:
    """Some of the values that a method declares: every third, or few for a test."""
    thin = slice(1, None, 8) if scale.budget is not None else slice(1, None, 3)
    method = METHODS[name].build()
    known = METHODS[name].parameters
    declared = {
        key: replace(p, tuned=p.tuned[thin] or p.tuned[:1]) for key, p in method.declared.items()
    }
    return grid_of(declared, samples, fixed, known)


def _search(selector: str, problem: Problem, scale: Scale) -> Search:
    """A grid of a method, with a step size more: twice the longest, which large batches may need."""
    name, fixed = split(selector)
    found = _grid(name, problem.samples, scale, **fixed)
    step = _step_size(name)
    longest = max(one[step] for one in found)
    return Search(
        name, [*found, *({**one, step: 2 * longest} for one in found if one[step] == longest)]
    )


def _frequencies(
    method: str, problem: Problem, network: Network, scale: Scale
) -> dict[str, Search]:
    """The configurations of a method by the rounds that they have in an epoch; a line for each."""
    assert problem.samples is not None  # data have rows
    found: dict[str, Search] = {}
    for batch in LOCAL[method]:
        for one in _search(f"{method}[batch={batch}]", problem, scale).configurations:
            costs, steps = Costs.of(parse(_selector(method, one)), problem, network), 10_000
            rounds = float(costs.rounds(steps) * problem.samples / costs.gradients(steps))
            found.setdefault(
                f"{method} ({rounds:.3g} rounds an epoch)", Search(method, [])
            ).configurations.append(one)
    return found


def _step_size(method: str) -> str:
    """The name of a method's step size."""
    found = parse(method).step_size
    assert found is not None  # all methods here have one
    return found


def _selector(method: str, values: Mapping[str, Any]) -> str:
    return f"{method}[{','.join(f'{name}={value}' for name, value in values.items())}]"


def _told(parts: dict[str, Finding]) -> dict[str, Finding]:
    """Write what the numbers say."""
    text = "\n\n".join("\n- ".join([name, *found.verdict]) for name, found in parts.items())
    write(next(iter(parts.values())).folder / "verdict.txt", f"{text}\n".encode())
    return parts
