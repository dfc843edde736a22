"""Several methods on one problem, with the same seeds and the same budget, and parameters that suit the problem."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from peerdescent.engines import registry
from peerdescent.errors import require
from peerdescent.files import alone, claim
from peerdescent.methods.contract import Method
from peerdescent.methods.named import METHODS
from peerdescent.methods.selectors import Given
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem
from peerdescent.report.findings import GIVEN
from peerdescent.runs import checkpoint
from peerdescent.runs.checks import check, check_names, check_seeds
from peerdescent.runs.loop import Options, run
from peerdescent.runs.progress import Progress, Share, choose
from peerdescent.runs.trace import Status
from peerdescent.runs.traces import Traces, check_held, place
from peerdescent.studies.compared import Comparison, Index
from peerdescent.sweeps.grids import builder, make
from peerdescent.sweeps.tuning import (
    FRESH,
    SEARCHED,
    DivergedError,
    Tuned,
    affordable,
    first,
    is_open,
    ranked_by,
    searchable,
)
from peerdescent.sweeps.tuning import tune as tune_one

Entry = Given | Tuned | tuple[Any, Any]
"""A method, a function that makes one, a selector, what was tuned before, or a pair of a method and its grid."""


def compare(
    methods: Mapping[str, Entry] | Iterable[Entry],
    problem: Problem,
    network: Network,
    *,
    seed: int | Iterable[int] = FRESH,
    steps: int | None = None,
    epochs: float | None = None,
    tune: bool = True,
    budget: float | None = None,
    by: str = "loss",
    out: str | Path | None = None,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on one problem and network, each with the same seeds and the same budget.

    Hyperparameters that are not given are found by `peer.tune`, on other seeds and at the same cost
    for every method: of a name or a selector, such as "gt-hsgd" or "gt-hsgd[batch=4]", of a
    function such as `peer.methods.gt_hsgd`, or of a pair of these and a grid. A `Method` and a
    `Tuned` are run as they are.

    Ctrl-C returns the comparison so far, whose `missing` names the methods that were not run.

    Args:
        methods: The methods by name, or a list of them.
        problem: The problem.
        network: The network.
        seed: The seeds of the runs.
        steps: The length of each run in iterations. Give either `steps` or `epochs`.
        epochs: The length as a budget of gradients per node, in passes over the local data.
        tune: Whether to tune hyperparameters that are not given. If not, they are the defaults,
            which suit no problem in particular.
        budget: That of the search for each method, as for `peer.tune`.
        by: The column that methods are tuned by and compared in.
        out: A folder for all results, in which an unfinished comparison is continued.
        note: Called with a sentence about the hyperparameters of each method.
        options: Other arguments of `peer.run`: `x0`, `engine`, `precision`, `record`, `metrics`,
            `stop`, `clock`, `progress` and `callback`.

    Returns:
        The comparison: `table`, `differences`, `protocol()`, `figure()`, `report(folder)`,
        `to_latex()`, and the `Traces` of each method by name.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> methods = {"plain": peer.methods.dsgd(alpha=2), "tracking": "gt-dsgd[alpha=2,batch=1]"}
    >>> found = peer.compare(methods, problem, network, seed=range(3), epochs=1)
    >>> found.table[["method", "seeds", "status"]].values.tolist()
    [['plain', 3, 'done'], ['tracking', 3, 'done']]
    >>> found["plain"].seeds
    (0, 1, 2)
    """
    check_names("compare", options, Options.__annotations__.keys() - {"checkpoint"})
    say = note or (lambda text: None)
    entries = named(methods)
    wanted = check_seeds(seed)
    for entry, grid in entries.values():
        check(first(entry, grid), problem, network)
    options |= {"steps": steps, "epochs": epochs}
    process = registry.connect(options.setdefault("engine", registry.DEFAULT))
    divided = registry.ENGINES[options["engine"]].processes or jax.process_count() > 1
    left = [name for name, (entry, grid) in entries.items() if _is_left(entry, grid)]
    why = "" if tune else "they are tuned for no problem"
    if tune and divided:
        why = "no process has the data of all, so nothing was tuned"
    elif tune and problem.streams is not None:
        why = "samples come from iterators, so nothing was tuned"
    how = {
        name: f"the defaults: {why}" if name in left else GIVEN
        for name in entries
        if why or name not in left
    }
    if why and left:
        say(f"{', '.join(left)}: parameters that are not given are the defaults; {why}")
    names = ("steps", "epochs", "x0", "precision", "metrics")
    search: dict[str, Any] = {name: options[name] for name in names if name in options}
    search |= {"budget": budget, "by": by, "fresh": (), "seed": apart(wanted)}
    ranked_by(by, options.get("metrics", ()))
    affordable(budget, search["seed"], epochs)
    for name, (entry, grid) in entries.items():
        if isinstance(entry, Tuned):
            both = sorted({*map(int, entry.table["seed"])} & {*wanted})
            require(
                not both,
                f"seed {both[:1]}: {name} was tuned on it, which favours what is lucky: give other seeds",
            )
        elif name in left and not why:
            searchable(entry, grid)
    bar = choose(options.get("progress"))
    traces: dict[str, Traces] = {}
    tuned: dict[str, Tuned] = {}
    with ExitStack() as held:
        folder = None if out is None else Path(out)
        if folder is not None and process == 0:
            held.enter_context(alone(claim(folder)))
        # Of several processes none reads what another may be about to write.
        index = Index.of(folder if process == 0 else None, list(entries), read=not divided)
        if folder is not None:
            for own in index.folders.values():
                check_held(folder / own, wanted)
        try:
            for k, (name, (entry, grid)) in enumerate(entries.items()):
                method, which = first(entry, grid), f"{name} ({k + 1} of {len(entries)})"
                searched = (k + (SEARCH if name in left and not why else 0)) / len(entries)
                if isinstance(entry, Tuned):
                    tuned[name], how[name] = entry, entry.how
                elif name not in how:
                    values = index.recall(
                        name, about := _about(entry, grid, problem, network, search), wanted
                    )
                    if values is not None:  # of a call for another length, whose runs go on
                        method, how[name] = make(builder(entry), values), index.known[name]["how"]
                    else:
                        home = None if folder is None else folder / "tuning" / index.folders[name]
                        part = Share(bar, k / len(entries), searched, f"tuning {which}")
                        try:
                            found = tune_one(
                                entry,
                                problem,
                                network,
                                grid=grid,
                                out=home,
                                progress=part,
                                **search,
                            )
                        except DivergedError as error:
                            how[name] = f"{method}, not tuned: {error}"
                        else:
                            tuned[name], method, how[name] = found, found.method, found.how
                            index.known[name] |= {
                                "how": found.how,
                                "configurations": found.configurations,
                            }
                            index.known[name] |= {"tuned": about | {"values": found.best}}
                home = None if folder is None else folder / index.folders[name]
                options["progress"] = Share(
                    bar, searched, (k + 1) / len(entries), f"running {which}"
                )
                traces[name] = _run(
                    method, problem, network, wanted, home, process, options, index.save
                )
                if any(trace.status == Status.interrupted for trace in traces[name]):
                    break
        except KeyboardInterrupt:
            pass
        finally:
            bar.end()
        if not why and any(name in how for name in left):
            said = [f"{name}: {how[name]}" for name in left if name in how]
            say("\n".join([f"tuned by the {by}:", *said]))
        known = {name: how[name] for name in entries if name in how}
        counts = {
            name: one["configurations"]
            for name, one in index.known.items()
            if "configurations" in one
        }
        counts |= {name: one.configurations for name, one in tuned.items()}
        missing = tuple(name for name in entries if name not in traces)
        result = Comparison(traces, known, missing, by, tuned, counts)
        if folder is not None and process == 0:
            try:
                result.save(folder)
            except KeyboardInterrupt:  # what is known is written first
                result.save(folder)
                raise
    return result


def apart(seeds: Sequence[int]) -> list[int]:
    """The seeds of the search: those of `peer.tune`, or the next that are not compared."""
    later = itertools.count(SEARCHED[0])
    return list(itertools.islice((seed for seed in later if seed not in seeds), len(SEARCHED)))


def _about(
    entry: Any, grid: Any, problem: Problem, network: Network, search: Mapping[str, Any]
) -> dict[str, Any]:
    """What a search is about: the method, the data and the network, how it ranks, and how long its runs are."""
    about = {
        "given": _text(entry),
        "data": digest(problem.definition),
        "weights": digest(network.arrays),
    }
    about |= {
        "grid": str(grid),
        "x0": digest(search.get("x0")),
        "precision": str(search.get("precision", 32)),
    }
    about |= {name: search[name] for name in ("by", "budget")}
    return about | {
        "seeds": search["seed"],
        "length": [search[name] for name in ("steps", "epochs")],
    }


def _is_left(entry: Any, grid: Any) -> bool:
    """Whether a method leaves hyperparameters to tuning."""
    return grid is not None or (not isinstance(entry, Method | Tuned) and is_open(entry))


SEARCH = 0.7
"""The share of a method's bar that its search takes."""


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


def named(methods: Mapping[str, Entry] | Iterable[Entry]) -> dict[str, tuple[Any, Any]]:
    """The methods by name, each with its grid or None; the name is that of the mapping, the selector, or its own.

    >>> import peerdescent as peer
    >>> list(named(["dsgd[alpha=1]", peer.methods.gt_hsgd, peer.methods.d2(alpha=2)]))
    ['dsgd[alpha=1]', 'gt-hsgd', 'd2']
    """
    require(
        not isinstance(methods, str | Method | Tuned),
        f"methods = {methods}: give a list, or a mapping from names",
    )
    listed = list(methods.values() if isinstance(methods, Mapping) else methods)
    pairs = [one if isinstance(one, tuple) else (one, None) for one in listed]
    for one, _ in pairs:
        good = isinstance(one, Method | str) or callable(one) or isinstance(one, Tuned)
        require(
            good,
            f"a method is a {type(one).__name__}: give a Method, a name, or a function that makes one",
        )
    pairs = [(one.strip() if isinstance(one, str) else one, grid) for one, grid in pairs]
    if isinstance(methods, Mapping):
        names = list(methods)
        for name in names:
            require(
                isinstance(name, str) and name != "",
                f"{name!r} as the name of a method: give a text",
            )
    else:
        short = [one.name if isinstance(one, Method | Tuned) else _text(one) for one, _ in pairs]
        names = [
            name if short.count(name) == 1 else _text(one)
            for name, (one, _) in zip(short, pairs, strict=True)
        ]
    require(len(names) > 0, "no methods to compare: give at least one")
    for k, name in enumerate(names):
        require(
            name not in names[:k], f"{name} is given twice: leave one out, or change a parameter"
        )
    return dict(zip(names, pairs, strict=True))


def _text(entry: Any) -> str:
    """What was given, as text."""
    if isinstance(entry, Tuned):
        return entry.selector
    if isinstance(entry, str | Method):
        return str(entry)
    known = next((name for name, one in METHODS.items() if one.build is entry), None)
    return known or str(getattr(entry, "__name__", entry))
