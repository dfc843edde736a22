"""How good `tune` is: the widest grids that we could afford, and what default tuning finds beside them.

    python benchmarks/tuning.py wide [SETTING ...]      the wide grids; results/tuning_wide.csv has each method's best
    python benchmarks/tuning.py default [SETTING ...]   default comparisons beside them; results/tuning_default.csv
    python benchmarks/tuning.py twice [SETTING ...]     the same with twice the budget and grid, and whose verdicts
                                                        change; results/tuning_twice.csv, results/tuning_verdicts.csv
    python benchmarks/tuning.py searches                other searches on the tables of the wide grids, at the same
                                                        cost; results/tuning_searches.csv (with Optuna, if installed)

Every configuration is run for 20 epochs with the seeds 100 to 102. It counts with its largest loss in the last fifth of
a run, averaged over the seeds. a9a and covertype are read from PEERDESCENT_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import peerdescent as peer
from peerdescent.runs.statistics import difference
from peerdescent.sweeps import search as searching
from peerdescent.sweeps.search import Axis, search
from peerdescent.sweeps.tuning import CONFIGURATIONS

NODES, EPOCHS, SEEDS, MARKS = 20, 20, range(100, 103), (2, 6, 16, 17, 18, 19)
RESULTS, RUNS, FILES = Path(__file__).parent / "results", Path("runs/wide"), ("default", "twice")
ALPHAS = [2.0**k for k in range(-8, 7)]
BATCHES = [1, 4, 16, 64]
METHODS = ("dsgd", "d2", "gt-dsgd", "d-pd-sgd", "d-get", "d-spider-sfo", "gt-sarah", "gt-hsgd")


def logistic(name: str, topology: str, rows: int | None = None) -> tuple[Any, peer.Network]:
    """The paper's problem on one of its graphs."""
    problem = peer.problems.logistic(peer.datasets.load(name, rows=rows).partition(NODES))
    return problem, peer.Network(peer.topology.build(topology, NODES))


def perceptron() -> tuple[Any, peer.Network]:
    """A small neural network for ten digits, of which a node has hardly more than one."""
    data = peer.datasets.load("digits", labels="classes").partition(NODES, by="label")
    return peer.problems.perceptron(data), peer.Network(peer.topology.exponential(NODES))


SETTINGS: dict[str, Callable[[], tuple[Any, peer.Network]]] = {
    "digits": lambda: logistic("digits", "exponential"),
    "perceptron": perceptron,
    "a9a-exponential": lambda: logistic("a9a", "exponential"),
    "a9a-ring": lambda: logistic("a9a", "ring"),
    "covertype-exponential": lambda: logistic("covertype", "exponential", 100_000),
    "covertype-ring": lambda: logistic("covertype", "ring", 100_000),
}


def grid(method: str, samples: float) -> list[dict[str, Any]]:
    """The configurations of a wide grid."""

    def every(**axes: list[Any]) -> list[dict[str, Any]]:
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]

    def passes(batch: int) -> list[int]:
        return sorted({max(1, round(part * samples / batch)) for part in (1 / 16, 1 / 4, 1, 4)})

    if method == "gt-hsgd":
        betas = [1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]
        return every(alpha=ALPHAS, beta=betas, batch=BATCHES, initial_batch=[32, 1024])
    if method == "d-pd-sgd":
        rows = every(eta=ALPHAS, alpha=[0.25, 0.5, 1.0], kappa=[0.1, 0.35, 0.7], batch=BATCHES)
        return [
            {**row, "alpha": row["alpha"] / row["eta"], "kappa": row["kappa"] / row["eta"]}
            for row in rows
        ]
    if method in ("d-get", "d-spider-sfo", "gt-sarah"):
        large = {} if method == "gt-sarah" else {"large_batch": [64, 256, 1024]}
        each = (
            every(alpha=ALPHAS, period=passes(batch), batch=[batch], **large) for batch in BATCHES
        )
        return [row for rows in each for row in rows]
    return every(alpha=ALPHAS, batch=BATCHES)


def ranked(table: pd.DataFrame) -> pd.DataFrame:
    """One row a configuration, the best first: the mean over seeds of the largest loss in the last fifth of a run."""
    losses = ["loss", *(f"loss@{mark}" for mark in MARKS if mark >= 0.8 * EPOCHS)]
    worst = table[losses].max(axis=1, skipna=False).where(table["status"] == "done", np.inf)
    names = list(table.columns[: table.columns.get_loc("seed")])
    return (
        table.assign(score=worst)
        .groupby(names, sort=False)["score"]
        .mean()
        .sort_values()
        .reset_index()
    )


def wide(settings: list[str]) -> None:
    """Run the wide grids, and write the best of each method beside those that are there already."""
    file = RESULTS / "tuning_wide.csv"
    rows: list[dict[Any, Any]] = [] if not file.is_file() else pd.read_csv(file).to_dict("records")
    for setting in settings:
        problem, network = SETTINGS[setting]()
        for method in METHODS:
            begun, configurations = time.perf_counter(), grid(method, problem.samples)
            table = peer.sweep(
                method, configurations, problem, network, epochs=EPOCHS, at=MARKS, seed=list(SEEDS), progress=False,
                out=RUNS / setting / method,
            )  # fmt: skip
            found = ranked(table)
            best = found.drop(columns="score").iloc[0].to_dict()
            said = ",".join(f"{name}={value:.12g}" for name, value in best.items())
            row = {
                "setting": setting, "method": method, "configurations": len(configurations),
                "best": f"{method}[{said}]", "score": found["score"].iloc[0],
            }  # fmt: skip
            print(row, f"{time.perf_counter() - begun:.0f} s", flush=True)
            rows = [one for one in rows if (one["setting"], one["method"]) != (setting, method)] + [
                row
            ]
            pd.DataFrame(rows).to_csv(file, index=False)


def default(settings: list[str], twice: bool = False) -> None:
    """Compare all methods by one default call, and each gap on fresh seeds with that of the wide grid's winner.

    Or with twice the budget, and twice as many points at the beginning of the search.
    """
    name, budget = (
        ("twice", 2 * CONFIGURATIONS * len(SEEDS) * EPOCHS) if twice else ("default", None)
    )
    if twice:
        searching.FIRST = 2 * searching.FIRST
    file = RESULTS / f"tuning_{name}.csv"
    known = pd.read_csv(file) if file.is_file() else pd.DataFrame({"setting": []})
    winners = pd.read_csv(RESULTS / "tuning_wide.csv").set_index(["setting", "method"])["best"]
    for setting in settings:
        problem, network = SETTINGS[setting]()
        begun = time.perf_counter()
        found = peer.compare(
            METHODS,
            problem,
            network,
            epochs=EPOCHS,
            budget=budget,
            out=Path("runs") / name / setting,
            progress=False,
        )
        seconds = time.perf_counter() - begun
        wide = peer.compare(
            {method: winners[setting, method] for method in METHODS},
            problem,
            network,
            epochs=EPOCHS,
        )
        table = found.table.merge(found.differences, on="method")
        least = smallest(setting, problem)
        gap, best = table["loss"] - least, wide.table["loss"] - least
        rows = {
            "setting": setting, "method": table["method"], "found": table["selector"], "gap": gap,
            "wide gap": best, "ratio": gap / best,
            **{column: table[column] for column in ("difference", "low", "high", "level")},
            **{f"loss {seed}": [found[method][seed].table["loss"].iloc[-1] for method in METHODS] for seed in range(5)},
            "how": [found.how[method] for method in METHODS],
        }  # fmt: skip
        own = pd.DataFrame(rows)
        print(
            found,
            found.protocol(),
            own[["method", "gap", "wide gap", "ratio"]],
            f"{seconds:.0f} s",
            sep="\n\n",
        )
        known = pd.concat([known[known["setting"] != setting], own], ignore_index=True)
        known.to_csv(file, index=False)
    if twice:
        verdicts()


def verdicts() -> None:
    """For 20 pairs of methods: which is better, or neither, with the default budget and grid and with twice as much."""
    both = [
        pd.read_csv(RESULTS / f"tuning_{name}.csv").set_index(["setting", "method"])
        for name in FILES
    ]
    pairs = [
        (setting, *pair) for setting in SETTINGS for pair in itertools.combinations(METHODS, 2)
    ]
    chosen = np.random.default_rng(0).choice(len(pairs), 20, replace=False)
    rows, columns = [], [f"loss {seed}" for seed in range(5)]
    for setting, one, other in (pairs[k] for k in sorted(chosen)):
        said = []
        for table in both:
            _, low, high = difference(
                *(table.loc[(setting, method)][columns].to_numpy(float) for method in (one, other))
            )
            said.append("level" if low <= 0 <= high else one if high < 0 else other)
        rows.append(
            {"setting": setting, "one": one, "other": other, "default": said[0], "twice": said[1]}
        )
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS / "tuning_verdicts.csv", index=False)
    print(
        table.to_string(),
        f"changed: {(table['default'] != table['twice']).sum()} of {len(table)}",
        sep="\n",
    )


def smallest(setting: str, problem: Any) -> float:
    """F*. A neural network has many minima, and can fit its data: its smallest loss is taken for 0."""
    return 0.0 if setting == "perceptron" else peer.problems.optimum(problem).value


def wide_table(setting: str, method: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The scores of a wide grid at full length and after 2 and 6 epochs, and the values that a search would see."""
    table = pd.read_csv(RUNS / setting / method / "sweep.csv")
    names = list(table.columns[: table.columns.get_loc("seed")])
    late = table[["loss", *(f"loss@{mark}" for mark in MARKS if mark >= 0.8 * EPOCHS)]]
    full = late.max(axis=1, skipna=False).where(table["status"] == "done", np.inf)
    early = {f"after {mark}": table[f"loss@{mark}"].fillna(np.inf) for mark in (2, 6)}
    scores = (
        table.assign(full=full, **early)
        .groupby(names, sort=False)[["full", *early]]
        .mean()
        .reset_index()
    )
    seen = scores[names].astype(float)
    if "eta" in names:  # alpha and kappa are parts of 1 / eta
        seen = seen.assign(
            alpha=(seen["alpha"] * seen["eta"]).round(6),
            kappa=(seen["kappa"] * seen["eta"]).round(6),
        )
    if "period" in names:  # in passes over the data
        rank = scores.groupby("batch")["period"].rank(method="dense").astype(int)
        seen["period"] = rank.map({1: 1 / 16, 2: 1 / 4, 3: 1.0, 4: 4.0})
    return scores, seen


def searches() -> None:
    """How far each search ends from the best of a wide grid, if it may try 150 configurations of it."""
    try:
        import optuna  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        optuna = None
    budget, rng, rows = 150, np.random.default_rng(0), []
    for setting, method in itertools.product(SETTINGS, METHODS):
        problem, _ = SETTINGS[setting]()
        least = smallest(setting, problem)
        scores, seen = wide_table(setting, method)
        lead = "eta" if "eta" in seen else "alpha"
        seen = seen[[lead, *(name for name in seen if name != lead)]]
        full, places = (
            scores["full"].to_numpy(),
            {tuple(row): k for k, row in enumerate(seen.to_numpy().tolist())},
        )
        values = {str(name): tuple(sorted(seen[name].unique().tolist())) for name in seen}
        axes = [
            Axis(name, own, own[0], own[-1], False, name == lead) for name, own in values.items()
        ]

        def score(points: list[Any], full: Any = full, places: Any = places) -> list[float]:
            return [float(full[places[point]]) if point in places else np.inf for point in points]

        start = float(scores["after 2"].replace(np.inf, np.nan).max())
        found = search(axes, score, budget, start)
        ends = {"search": [found.scores[found.best]]}
        spent = {"search": float(len(found.scores))}
        # Successive halving: a third of the configurations after 2 epochs, and a third of those after 6.
        share = (2 + 6 / 3 + EPOCHS / 9) / EPOCHS
        count = min(len(full), int(budget / share))
        ends["halving"], spent["halving"] = [], count * share
        for _ in range(10):
            some = rng.choice(len(full), count, replace=False)
            for column in ("after 2", "after 6"):
                order = np.argsort(scores[column].to_numpy()[some], kind="stable")
                some = some[order][: max(1, -(-len(some) // 3))]
            ends["halving"].append(full[some].min())
        tries = min(len(full), budget)
        ends["random"] = [
            full[rng.choice(len(full), tries, replace=False)].min() for _ in range(10)
        ]
        spent["random"] = tries
        if optuna is not None:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            ends["optuna"], spent["optuna"] = [], tries
            for seed in range(3):
                study = optuna.create_study(
                    sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True)
                )

                def objective(trial: Any, values: Any = values, score: Any = score) -> float:
                    point = tuple(
                        own[trial.suggest_int(name, 0, len(own) - 1)]
                        for name, own in values.items()
                    )
                    return min(score([point])[0], 10.0)

                study.optimize(objective, n_trials=tries)
                ends["optuna"].append(study.best_value)
        for name, own in ends.items():
            ratios = (np.array(own) - least) / (full.min() - least)
            rows.append(
                {
                    "setting": setting,
                    "method": method,
                    "search": name,
                    "ratio": ratios.mean(),
                    "exact": (ratios < 1.0001).mean(),
                    "within 5 %": (ratios < 1.05).mean(),
                    "cost": spent[name],
                }
            )
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS / "tuning_searches.csv", index=False)
    means = table.groupby("search")[["ratio", "exact", "within 5 %", "cost"]].mean()
    print(means.assign(worst=table.groupby("search")["ratio"].max()).round(3))


def main() -> None:
    """One of the parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["wide", "default", "twice", "searches"])
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    options = parser.parse_args()
    if options.part == "searches":
        searches()
    else:
        parts: dict[str, Callable[[list[str]], None]]
        parts = {"wide": wide, "default": default, "twice": partial(default, twice=True)}
        parts[options.part](options.settings or list(SETTINGS))


if __name__ == "__main__":
    main()
