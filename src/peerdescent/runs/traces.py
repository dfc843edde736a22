"""The traces of one experiment with several seeds: their mean, their deviation, and the folder that stores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd

from peerdescent.errors import require, unknown
from peerdescent.runs import checkpoint, statistics
from peerdescent.runs.bands import HORIZONTAL, Band, at_records, band
from peerdescent.runs.cells import over_seeds
from peerdescent.runs.labels import counted
from peerdescent.runs.metrics import METRICS
from peerdescent.runs.trace import Status, Trace, have_ended, in_notebook, seeds_in


class Traces(Sequence[Trace]):
    """Traces that differ in seed only, as `peer.run(..., seed=[0, 1, 2])` returns them: a sequence of `Trace`.

    Traces of different experiments, or of the same seed twice, are refused.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> traces = peer.run(peer.methods.dsgd(alpha=2), problem, network, steps=100, record=2, seed=range(3))
    >>> traces.seeds, traces.status.value, traces.mean[["step", "seeds"]].values.tolist()
    ((0, 1, 2), 'done', [[0, 3], [50, 3], [100, 3]])
    >>> traces.table.columns[:3].tolist(), len(traces.table)
    (['seed', 'step', 'epoch'], 9)
    """

    def __init__(self, traces: Iterable[Trace]) -> None:
        self._traces = tuple(traces)
        for trace in self._traces:
            require(
                isinstance(trace, Trace),
                f"a {type(trace).__name__} is no trace: give traces of peer.run",
            )
        require(len(self._traces) > 0, "no traces: give at least one")
        first = self._traces[0].identity.experiment
        for trace in self._traces[1:]:
            other = trace.identity.experiment
            for name in dict.fromkeys([*first, *other]):
                here, there = first.get(name), other.get(name)
                require(
                    here == there,
                    f"the traces are of different experiments: {name} is {here!r} with seed {self.seeds[0]} and "
                    f"{there!r} with seed {trace.identity.seed}; give traces that differ in seed only",
                )
            self._check_data(trace)
            self._check_metrics(trace)
        for seed, count in Counter(self.seeds).items():
            require(count == 1, f"there are {count} traces with seed {seed}: give one of each seed")

    def _check_data(self, other: Trace) -> None:
        """Refuse a trace of other data than those of the first that were drawn by the same seeds."""
        same = next(
            one for one in self._traces if one.identity.drawn == other.identity.drawn
        ).identity
        require(
            same.values == other.identity.values,
            f"the data, the weights or x_0 are not the same with seed {same.seed} and with seed {other.identity.seed}, "
            "whose facts are: they were changed in between; run both again",
        )

    def _check_metrics(self, other: Trace) -> None:
        """Refuse metrics of a trace that are not those of the first."""
        here, there = (
            {one.name: one.code for one in trace.metrics} for trace in (self._traces[0], other)
        )
        seed = other.identity.seed
        require(
            here.keys() == there.keys(),
            f"the metrics added are {list(here)} with seed {self.seeds[0]} and {list(there)} with seed {seed}; give "
            "traces with the same",
        )
        for name, code in here.items():
            require(
                code == there[name],
                f"metric {name!r} computes something else with seed {seed} than with seed {self.seeds[0]}: rename it",
            )

    @overload
    def __getitem__(self, place: int) -> Trace: ...

    @overload
    def __getitem__(self, place: slice) -> Traces: ...

    def __getitem__(self, place: int | slice) -> Trace | Traces:
        return Traces(self._traces[place]) if isinstance(place, slice) else self._traces[place]

    def __len__(self) -> int:
        return len(self._traces)

    def __repr__(self) -> str:
        shown = f"{counted(len(self), 'seed')}, {self.ended}"
        if self._has_mean:
            shown += f", loss {over_seeds(METRICS['loss'], [float(trace.table['loss'].iloc[-1]) for trace in self])}"
        return f"Traces({self[0].identity.method}, {shown})"

    def _repr_html_(self) -> str:
        return in_notebook(self, self.mean)

    @property
    def _has_mean(self) -> bool:
        """Whether there is a mean of the last records: it is over all seeds or there is none."""
        return len(self) == 1 or have_ended(self)

    @property
    def ended(self) -> str:
        """How the runs ended, as a text such as "done", or "4 done, 1 diverged".

        Where runs are done at different steps it says at which, since they were not to have the
        same length.
        """
        most = max(trace.steps for trace in self)
        uneven = any(trace.status == Status.done and trace.steps < most for trace in self)
        counts = Counter(
            f"{trace.status} at step {trace.steps:,}"
            if uneven and trace.status == Status.done
            else str(trace.status)
            for trace in self
        )
        return ", ".join(
            status if count == len(self) else f"{count} {status}"
            for status, count in counts.items()
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the traces."""
        return tuple(trace.identity.seed for trace in self._traces)

    def of(self, seed: int) -> Trace:
        """The trace with a seed."""
        if seed not in self.seeds:
            raise unknown("seed", seed, map(str, self.seeds))
        return self._traces[self.seeds.index(seed)]

    @property
    def status(self) -> Status:
        """The worst of all: diverged if a run diverged, else interrupted, else stopped, else done."""
        return max((trace.status for trace in self), key=list(Status).index)

    @property
    def table(self) -> pd.DataFrame:
        """The tables of all traces, one below the other, with the seed as first column."""
        tables = [trace.table.assign(seed=trace.identity.seed) for trace in self]
        columns = ["seed", *self[0].table.columns]
        return pd.concat(tables, ignore_index=True)[columns]

    @property
    def mean(self) -> pd.DataFrame:
        """The mean over all seeds, at every step that any of them has recorded.

        The column `seeds` says how many runs have a record at a step. A mean is over all seeds or
        there is none: where one has ended earlier, since it diverged, was stopped or interrupted,
        or was recorded at other steps, values are empty. A mean over the others would be of the
        lucky ones. `band` interpolates between records.
        """
        return self._over_seeds(statistics.mean)

    @property
    def deviation(self) -> pd.DataFrame:
        """The sample standard deviation over all seeds, where there is a mean; empty for a single seed."""
        return self._over_seeds(statistics.deviation)

    def band(self, x: str, y: str) -> Band:
        """The column `y` of each trace at common points of the column `x`, interpolated between records.

        `x` is one that rises: step, epoch, gradients, rounds, bytes, seconds or clock. See
        `peer.figures.curves` for a figure.
        """
        if x not in HORIZONTAL:
            raise unknown("horizontal axis", x, HORIZONTAL)
        return band([trace.table for trace in self], x, y)

    def _over_seeds(self, statistic: Callable[[Any], np.ndarray]) -> pd.DataFrame:
        tables = [trace.table for trace in self]
        steps, seeds = np.unique(
            np.concatenate([table["step"] for table in tables]), return_counts=True
        )
        found = {"step": steps, "seeds": seeds}
        for column in tables[0].columns.drop("step"):
            found[column] = statistic(at_records(tables, "step", column).values)
        return pd.DataFrame(found)

    def save(self, folder: str | Path, force: bool = False) -> Path:
        """Write a run folder of each seed into a folder: `seed-0`, `seed-1`, ...; see `Trace.save`.

        Nothing is written if one of them is refused. A folder with runs of other seeds always is.
        """
        folder = Path(folder)
        self.check_folder(folder, force)
        for trace in self:
            trace.save(place(folder, trace.identity.seed), force)
        return folder

    def check_folder(self, folder: Path, force: bool = False) -> None:
        """Refuse a folder with runs of other seeds, or, unless forced, with other or longer runs."""
        check_held(folder, self.seeds)
        if not force:
            alone = not any(map(checkpoint.newest, (folder, folder / "checkpoint")))
            require(alone, f"{folder} has a run itself: give another folder, or force=True")
            for trace in self:
                trace.check_folder(place(folder, trace.identity.seed))

    @staticmethod
    def load(folder: str | Path) -> Traces:
        """The traces in a folder that `save` or `run(checkpoint=...)` has written, by seed."""
        folder = Path(folder)
        seeds = seeds_in(folder)
        require(
            bool(seeds), f"{folder} has no runs of several seeds: it has no folder such as seed-0"
        )
        return Traces(Trace.load(place(folder, seed)) for seed in seeds)


def place(folder: str | Path, seed: int) -> Path:
    """The run folder of a seed."""
    return Path(folder) / f"seed-{seed}"


def check_held(folder: Path, seeds: Iterable[int]) -> None:
    """Refuse a folder that has runs of other seeds, which would be taken for runs of the same call."""
    others = sorted(set(seeds_in(folder)) - set(seeds))
    names = ", ".join(place(folder, seed).name for seed in others)
    require(
        not others,
        f"{folder} has runs of other seeds, {names}: give another folder, or those seeds as well",
    )
