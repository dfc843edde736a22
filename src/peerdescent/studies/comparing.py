"""Several methods on one problem, with the same seeds and the same budget, and parameters that suit the problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from peerdescent.engines import registry
from peerdescent.errors import require, whole
from peerdescent.files import alone, claim
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.selectors import Given, method_of
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.report.findings import GIVEN
from peerdescent.runs import checkpoint
from peerdescent.runs.checks import check, check_names, check_seeds
from peerdescent.runs.loop import Options, run
from peerdescent.runs.progress import Progress, choose
from peerdescent.runs.trace import Status
from peerdescent.runs.traces import Traces, check_held, place
from peerdescent.studies.compared import Comparison, Index
from peerdescent.sweeps.grids import builder, make
from peerdescent.sweeps.quick import is_open, quick_tune, seeds_of

ABOVE = "; yet a run ends above the start: give a smaller step size"
"""What is said of a tuned method that did not do with the seeds that are compared."""


def compare(
    methods: Mapping[str, Given] | Iterable[Given],
    problem: Problem,
    network: Network,
    *,
    seeds: int | Sequence[int] = 5,
    steps: int | None = None,
    epochs: float | None = None,
    tune: bool = True,
    out: str | Path | None = None,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on one problem and network, each with the same seeds and the same budget.

    Hyperparameters that are not given are chosen by `peer.sweeps.quick_tune`, on other seeds: of a name or a selector,
    such as "gt-hsgd" or "gt-hsgd[batch=4]", or of a function such as `peer.methods.gt_hsgd`. A `Method` is run as it
    is.

    Ctrl-C returns the comparison so far, whose `missing` names the methods that were not run.

    Args:
        methods: The methods by name, or a list of them.
        problem: The problem.
        network: The network.
        seeds: How many seeds, 0, 1, 2, ...; or a list of seeds.
        steps: The length of each run in iterations. Give either `steps` or `epochs`.
        epochs: The length as a budget of gradients per node, in passes over the local data.
        tune: Whether to choose hyperparameters that are not given. If not, they are the defaults, which suit no problem
            in particular.
        out: A folder for all results, in which an unfinished comparison is continued.
        note: Called with a sentence about the hyperparameters of each method.
        options: Other arguments of `peer.run`: `x0`, `engine`, `precision`, `record`, `metrics`, `stop`, `clock`,
            `progress` and `callback`.

    Returns:
        The comparison: `table`, `figure()`, `report(folder)`, `to_latex()`, and the `Traces` of each method by name.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> methods = {"plain": peer.methods.dsgd(alpha=2), "tracking": "gt-dsgd[alpha=2]"}
    >>> found = peer.compare(methods, problem, network, seeds=3, epochs=1)
    >>> found.table[["method", "seeds", "status"]].values.tolist()
    [['plain', 3, 'done'], ['tracking', 3, 'done']]
    >>> found["plain"].seeds
    (0, 1, 2)
    """
    check_names("compare", options, Options.__annotations__.keys() - {"checkpoint"})
    say = note or (lambda text: None)
    entries = named(methods)
    makers = {name: _maker(entry) for name, entry in entries.items()}
    wanted = check_seeds(range(whole("seeds", seeds, 1)) if np.ndim(seeds) == 0 else seeds)
    for entry in entries.values():
        check(method_of(entry), problem, network)
    options |= {"steps": steps, "epochs": epochs}
    process = registry.connect(options.setdefault("engine", registry.DEFAULT))
    divided = registry.ENGINES[options["engine"]].processes or jax.process_count() > 1
    left = [name for name, maker in makers.items() if is_open(maker, problem)]
    why = "" if tune else "they are tuned for no problem"
    if tune and divided:
        why = "no process has the data of all, so nothing was tuned"
    elif tune and problem.streams is not None:
        why = "samples come from iterators, so nothing was tuned"
    how = {name: f"the defaults: {why}" if name in left else GIVEN for name in makers if why or name not in left}
    if why and left:
        say(f"{', '.join(left)}: parameters that are not given are the defaults; {why}")
    traces: dict[str, Traces] = {}
    with ExitStack() as held:
        folder = None if out is None else Path(out)
        if folder is not None and process == 0:
            held.enter_context(alone(claim(folder)))
        # Of several processes none reads what another may be about to write.
        index = Index.of(folder if process == 0 else None, list(makers), read=not divided)
        if folder is not None:
            for own in index.folders.values():
                check_held(folder / own, wanted)
        try:
            for name, maker in makers.items():
                values: dict[str, Any] = {}
                if name in left and name not in how:
                    about: dict[str, Any] = {"given": _text(entries[name]), "data": digest(problem.definition)}
                    about |= {"weights": digest(network.arrays), "seeds": seeds_of(wanted)}
                    values, how[name] = index.recall(name, about) or _tuned(maker, problem, network, wanted, options)
                    index.keep(name, about, values, how[name])
                    say(f"{name}: {how[name]}")
                home = None if folder is None else folder / index.folders[name]
                method = make(builder(maker), values)
                traces[name] = _run(method, problem, network, wanted, home, process, options, index.save)
                if values:
                    how[name] = how[name].removesuffix(ABOVE)  # an earlier call may have said so of fewer epochs
                    if any(trace.table["loss"].iloc[-1] > trace.table["loss"].iloc[0] for trace in traces[name]):
                        how[name] += ABOVE
                        say(f"{name}: {how[name]}")
                if any(trace.status == Status.interrupted for trace in traces[name]):
                    break
        except KeyboardInterrupt:
            if not traces:
                raise
        known = {name: how[name] for name in makers if name in how}
        found = Comparison(traces, known, tuple(name for name in makers if name not in traces))
        if folder is not None and process == 0:
            try:
                found.save(folder)
            except KeyboardInterrupt:  # what is known is written first
                found.save(folder)
                raise
    return found


def _maker(entry: Given) -> Callable[..., Method] | str:
    """What makes a method: the selector or the function itself, or for a method a function that has no parameters."""
    return (lambda: entry) if isinstance(entry, Method) else entry


def _tuned(
    maker: Callable[..., Method] | str,
    problem: Problem,
    network: Network,
    seeds: Sequence[int],
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], str]:
    """The values that a quick tune chooses, and a sentence about them."""
    names = ("steps", "epochs", "x0", "precision", "progress")
    known = {name: options[name] for name in names if name in options}
    found = quick_tune(maker, problem, network, apart=seeds, **known)
    return found.values, found.how


class _Accepted:
    """Shows the progress of a run, which begins once nothing refuses it, and then first does what is due."""

    def __init__(self, bar: Progress, due: Callable[[], None]) -> None:
        self.bar, self.due = bar, due

    def begin(self, label: str, total: int) -> None:
        self.due()
        self.bar.begin(label, total)

    def update(self, step: int, loss: float) -> None:
        self.bar.update(step, loss)

    def end(self) -> None:
        self.bar.end()


def _run(
    method: Method,
    problem: Problem,
    network: Network,
    seeds: Sequence[int],
    home: Path | None,
    process: int,
    options: Mapping[str, Any],
    save: Callable[[], None],
) -> Traces:
    """The runs of a method, all seeds at once, or one after the other if each node has a process.

    `save` is called when a run is accepted, and before that nothing is written.
    """
    places = {} if home is None else {seed: place(home, seed) for seed in seeds}

    def accepted() -> None:
        for one in places.values():
            claim(one)
        save()

    options = {**options, "progress": _Accepted(choose(options.get("progress")), accepted)}
    if not registry.ENGINES[options["engine"]].processes:
        for one in places.values():
            checkpoint.check(one / "checkpoint")
        return run(method, problem, network, seed=list(seeds), checkpoint=home, **options)
    found = []
    for seed in seeds:
        own = places[seed] / "checkpoint" / f"rank-{process}" if places else None
        found.append(run(method, problem, network, seed=seed, checkpoint=own, **options))
        if found[-1].status == Status.interrupted:
            break
    return Traces(found)


def named(methods: Mapping[str, Given] | Iterable[Given]) -> dict[str, Given]:
    """The methods by name: that of the mapping, the selector, or the method's own.

    >>> import peerdescent as peer
    >>> list(named(["dsgd[alpha=1]", peer.methods.gt_hsgd, peer.methods.d2(alpha=2)]))
    ['dsgd[alpha=1]', 'gt-hsgd', 'd2']
    """
    require(not isinstance(methods, str | Method), f"methods = {methods}: give a list, or a mapping from names")
    given = list(methods.values() if isinstance(methods, Mapping) else methods)
    for one in given:
        good = isinstance(one, Method | str) or callable(one)
        require(good, f"a method is a {type(one).__name__}: give a Method, a name, or a function that makes one")
    given = [one.strip() if isinstance(one, str) else one for one in given]
    if isinstance(methods, Mapping):
        names = list(methods)
        for name in names:
            require(isinstance(name, str) and name != "", f"{name!r} as the name of a method: give a text")
    else:
        short = [one.name if isinstance(one, Method) else _text(one) for one in given]
        names = [name if short.count(name) == 1 else _text(one) for name, one in zip(short, given, strict=True)]
    require(len(names) > 0, "no methods to compare: give at least one")
    for k, name in enumerate(names):
        require(name not in names[:k], f"{name} is given twice: leave one out, or change a parameter")
    return dict(zip(names, given, strict=True))


def _text(entry: Given) -> str:
    """What was given, as text."""
    if isinstance(entry, str | Method):
        return str(entry)
    known = next((name for name, one in METHODS.items() if one.build is entry), None)
    return known or str(getattr(entry, "__name__", entry))
