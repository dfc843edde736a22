"""The content of a report about a folder: its runs, sweeps, configuration and network.

Everything is read from files, so a report can be made later and on another machine. `findings`
reads the files; this module makes the text and numbers that `page.html` shows.
"""

from __future__ import annotations

import io
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.ticker import EngFormatter

from peerdescent import __version__, figures
from peerdescent.errors import require
from peerdescent.files import write as write_file
from peerdescent.methods import METHODS
from peerdescent.networks import described
from peerdescent.problems.definition import digest
from peerdescent.report import findings, page
from peerdescent.report.page import Markup
from peerdescent.runs.bands import HORIZONTAL, VERTICAL
from peerdescent.runs.cells import cell, over_seeds
from peerdescent.runs.labels import counted
from peerdescent.runs.statistics import deviation, mean

if TYPE_CHECKING:
    from peerdescent.networks import Network
    from peerdescent.report.findings import Group, Run, Sweep
    from peerdescent.runs.metrics import Metric

DASHES = (
    "",
    "8px,3px",
    "8px,3px,2px,3px",
    "2px,3px",
    "14px,4px",
)  # 5, coprime to the 8 colours: 40 pairs
LINKS = 5000  # the most links of a network that is drawn; more would be large and illegible

NETWORK = re.compile(
    r"Network\((?P<name>.+?), n=(?P<nodes>\d+), (?:.+, )?(?P<rule>\S+) weights, "
    r"(?:(?P<rounds>\d+) (?P<fast>accelerated )?rounds, )?(?P<faults>.*)lam=.*\)"
)
"""The text of a network, which is all that a run folder has of it, with a checksum of the weights."""

Cell = str | tuple[str, str]
"""Text, or text and a second, smaller line."""


def write(folder: str | Path, out: str | Path | None = None, force: bool = False) -> Path:
    """Write one HTML page about all runs and sweeps in a folder and its subfolders.

    The page needs no internet and no other files. It has interactive curves by epochs, rounds,
    bytes, seconds or steps, in which runs that differ only in seed are one line with a band; a
    table of the final results; heat maps of sweeps; the configuration; the network, where its name
    describes it, as for `topology.ring(8)`; and citations. A file `optimum.json` such as {"value":
    0.25} adds the gap to that optimum for the runs in its folder and subfolders.

    Args:
        folder: The folder.
        out: The file to write; by default `report.html` in that folder.
        force: Whether to replace a file that is not such a page.

    Returns:
        The path of the page.

    >>> import tempfile, peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = trace.save(folder)
    ...     write(folder).name
    'report.html'
    """
    folder = Path(folder)
    require(folder.is_dir(), f"no folder {folder}: give one with runs or sweeps in it")
    path = folder / "report.html" if out is None else Path(out)
    require(
        not path.is_dir(),
        f"{path} is a folder: give the name of a file, such as {path / 'report.html'}",
    )
    ours = not path.exists() or findings.is_page(path)
    require(
        ours or force,
        f"{path} is not a page of peerdescent: give another name, or force=True to replace it",
    )
    runs, sweeps = findings.runs(folder), findings.sweeps(folder)
    require(
        bool(runs or sweeps),
        f"nothing to report in {folder}: neither it nor a folder beneath it is a run folder (with checkpoints) or "
        "holds a sweep.csv; commands write them where --out says",
    )
    groups = findings.grouped(runs)
    title = f"{folder.resolve().name or 'peerdescent'}: report"
    names = [group.method.split("[")[0] for group in groups] + [sweep.method for sweep in sweeps]
    metrics = _metrics(groups)
    drawn = _drawn(groups, metrics)
    content = {
        "title": title,
        "lead": _lead(groups, sweeps),
        "curves": _curves(groups, drawn) if groups else None,
        "ends": _ends(groups, metrics) if groups else None,
        "chosen": findings.chosen(folder),
        "sweeps": _sweeps(sweeps) if sweeps else None,
        "setting": _setting(folder, runs),
        "citations": {
            name: METHODS[name].citation for name in dict.fromkeys(names) if name in METHODS
        },
        "version": __version__,
        "made": _made(runs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    heats = [sweep.heat for sweep in sweeps if sweep.heat]
    write_file(path, page.render(content, drawn | {"sweeps": heats}).encode())
    return path


def _metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """All metrics of the groups that can be drawn."""
    return {
        name: metric
        for group in groups
        for run in group.runs
        for name, metric in run.metrics.items()
    }


def _drawn(groups: Sequence[Group], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """The data from which the script draws the curves. Colours and dashes start anew for each problem."""
    used: Counter[str] = Counter()
    lines: list[dict[str, Any]] = []
    for group in groups:
        index, used[group.problem] = used[group.problem], used[group.problem] + 1
        style = {
            "colour": figures.COLOURS[index % len(figures.COLOURS)],
            "dash": DASHES[index % len(DASHES)],
        }
        head = {"label": group.label, "problem": group.problem, "diverged": group.diverged > 0}
        lines.append({**head, **style, "lines": group.lines()})
    axes = {x for line in lines for x in line["lines"]}
    known = {y for line in lines for values in line["lines"].values() for y in values["y"]}
    return {
        "axes": {x: {"title": metric.title} for x, metric in HORIZONTAL.items() if x in axes},
        "quantities": {
            y: {"title": metric.title, "log": metric.log, "falls": y in VERTICAL}
            for y, metric in metrics.items()
            if y in known
        },
        "groups": lines,
    }


def _curves(groups: Sequence[Group], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The menus above the curves, and the facts for their caption."""
    everywhere = all("epoch" in line["lines"] for line in drawn["groups"])
    return {
        "problems": {name: name for name in _problems(groups)},
        "quantities": {name: about["title"] for name, about in drawn["quantities"].items()},
        "axes": {name: about["title"] for name, about in drawn["axes"].items()},
        "up": "gap" if "gap" in drawn["quantities"] else "loss",
        "across": "epoch" if everywhere else "step",
        "bands": any(len(group.runs) > 1 for group in groups),
        "diverged": any(group.diverged for group in groups),
    }


def _lead(groups: Sequence[Group], sweeps: Sequence[Sweep]) -> str:
    """The first sentences: how many runs and sweeps there are, and the best method."""
    runs, problems = [run for group in groups for run in group.runs], _problems(groups)
    parts = []
    if runs:
        methods = len({run.name or run.summary["method"] for run in runs})
        on = f" on {len(problems)} problems" if len(problems) > 1 else ""
        parts.append(f"{counted(len(runs), 'run')} of {counted(methods, 'method')}{on}")
    if sweeps:
        tried = sum(sweep.configurations for sweep in sweeps)
        parts.append(f"{counted(len(sweeps), 'sweep')} over {counted(tried, 'configuration')}")
    text = " and ".join(parts) + "."
    for problem in problems:
        rivals = [group for group in groups if group.problem == problem]
        winner = findings.smallest(rivals)
        if winner and len(rivals) > 1:
            on = f" on {problem}" if len(problems) > 1 else ""
            over = f", the mean over {len(winner.runs)} seeds" if len(winner.runs) > 1 else ""
            loss = over_seeds(VERTICAL["loss"], winner.final("loss"))
            text += f" Smallest final loss{on}: {winner.label} with {loss}{over}."
    gone = sum(group.diverged for group in groups)
    return text + (f" {counted(gone, 'run')} diverged." if gone else "")


def _problems(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.problem for group in groups))


def _ends(groups: Sequence[Group], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """The table of the final results of each group, with the best of each problem marked."""
    problems = _problems(groups)
    winners = [
        one
        for problem in problems
        for one in findings.leaders(g for g in groups if g.problem == problem)
    ]
    shown = [
        VERTICAL["loss"],
        VERTICAL["grad_norm"],
        *(m for name, m in metrics.items() if name not in VERTICAL),
    ]
    timed = any(np.isfinite(group.final("clock")).any() for group in groups)
    spent = [
        metric
        for name, metric in HORIZONTAL.items()
        if name not in ("step", *["clock"] * (not timed))
    ]

    def rank(group: Group) -> tuple[int, bool, float]:
        loss = float(mean(group.final("loss")))
        return (
            problems.index(group.problem),
            group.diverged > 0,
            loss if math.isfinite(loss) else math.inf,
        )

    ranked = sorted(groups, key=rank)
    rows: list[list[Cell]] = []
    for group in ranked:
        rows.append(
            [
                (group.label, "" if group.label.startswith(group.method) else group.method),
                *[group.problem] * (len(problems) > 1),
                _status(group),
                f"{len(group.runs)}",
                *(_both(metric, group.final(metric.name)) for metric in shown),
                *(_mean(group.final(metric.name), metric.format) for metric in spent),
            ]
        )
    head = ["method", *["problem"] * (len(problems) > 1), "status", "seeds"]
    head += [metric.title for metric in (*shown, *spent)]
    return {
        "head": head,
        "rows": rows,
        "marked": [k for k, group in enumerate(ranked) if group in winners],
    }


def _status(group: Group) -> Cell:
    """The status of a group's runs, and their messages."""
    counts = Counter(str(run.summary["status"]) for run in group.runs)
    said = sorted({str(run.summary.get("message") or "") for run in group.runs} - {""})
    return ", ".join(
        s if len(counts) == 1 else f"{count} {s}" for s, count in counts.items()
    ), "; ".join(said)


def _mean(values: np.ndarray, form: str) -> str:
    """The mean in a metric's format, or a dash without one."""
    known = float(mean(values))
    if not math.isfinite(known):
        return "∞" if known == math.inf else "–"
    return EngFormatter("B", places=1)(known) if form == "B" else format(known, form)


def _both(metric: Metric, values: np.ndarray) -> Cell:
    """The mean and the sample deviation, as everywhere; the mean in the metric's format if there is none."""
    found = cell(metric, float(mean(values)), float(deviation(values)))
    if not found.deviation:
        return _mean(values, metric.format)
    return str(
        found._replace(deviation="")
    ), f"± {found._replace(text=found.deviation, deviation='')}"


def _sweeps(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """The table of sweeps, and the names of those with a heat map."""
    head = [
        "sweep",
        "method",
        "budget",
        "seeds",
        "configurations",
        "diverged",
        "smallest loss",
        "best hyperparameters",
    ]
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        if sweep.best is None:
            best = "none: no configuration is done for every seed"
        else:
            best = (
                ", ".join(f"{name} = {findings.short(v)}" for name, v in sweep.best.items())
                or "the method's own"
            )
        rows.append(
            [
                (sweep.place, sweep.problem),
                sweep.method,
                sweep.budget,
                f"{sweep.seeds}",
                (
                    f"{sweep.configurations:,}",
                    f"{sweep.rows:,} rows" if sweep.rows > sweep.configurations else "",
                ),
                f"{sweep.diverged:,}",
                f"{sweep.loss:#.6g}" if math.isfinite(sweep.loss) else "–",
                best,
            ]
        )
    mapped = [f"{sweep.method} in {sweep.place}" for sweep in sweeps if sweep.heat]
    return {
        "head": head,
        "rows": rows,
        "maps": {str(index): label for index, label in enumerate(mapped)},
    }


def _setting(folder: Path, runs: Sequence[Run]) -> dict[str, Any] | None:
    """The configuration and the network, or what runs say of them, or a sentence that says why they are missing."""
    places = [folder, *(folder / run.place for run in runs[:1])]
    file = next(
        (place / "config.toml" for place in places if (place / "config.toml").is_file()), None
    )
    if file is None and not runs:
        return None
    if file is None:
        names = ("problem", "network", "nodes", "dimension", "precision", "engine")
        values = {
            name: list(dict.fromkeys(str(run.summary[name]) for run in runs)) for name in names
        }
        return {
            "missing": "",
            "rows": _listed(values),
            "file": "the runs",
            "network": _recalled(runs),
        }
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"missing": f"The config.toml cannot be read: {error}."}
    rows = _listed(
        {key: value if isinstance(value, list) else [value] for key, value in config.items()}
    )
    drawn = _network(config, {str(run.summary["network"]) for run in runs})
    return {
        "missing": "",
        "rows": rows,
        "file": file.relative_to(folder).as_posix(),
        "network": drawn,
    }


def _listed(values: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """The rows of a table of keys and values, of which a key may have several."""
    return [
        [key if k == 0 else "", str(v)]
        for key, listed in values.items()
        for k, v in enumerate(listed or [""])
    ]


def _network(config: Mapping[str, Any], networks: Collection[str]) -> dict[str, str]:
    """The network of a configuration: its properties and a drawing, or a note that says why there is none."""
    try:
        words = {
            key: config[key]
            for key in ("weights", "fault", "rounds", "accelerate")
            if key in config
        }
        network = described(config["topology"], config["nodes"], **words)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        return {"note": f"The network cannot be rebuilt from the configuration: {reason}."}
    if networks and str(network) not in networks:
        return {"note": "No run was made on the network of this configuration, so it is not drawn."}
    return _drawing(network, networks)


def _recalled(runs: Sequence[Run]) -> dict[str, str] | None:
    """The network of the first run, as its text describes it; None if that has other weights, or describes none."""
    words = NETWORK.fullmatch(str(runs[0].summary["network"]))
    if words is None:
        return None
    faults, rounds = words["faults"].split(", ")[:-1], int(words["rounds"] or 1)
    try:
        network = described(
            words["name"], int(words["nodes"]), words["rule"], faults, rounds, bool(words["fast"])
        )
    except ValueError:
        return None
    same = digest(network.arrays) == runs[0].experiment.get("weights")
    return _drawing(network, {str(run.summary["network"]) for run in runs}) if same else None


def _drawing(network: Network, networks: Collection[str]) -> dict[str, str]:
    """The properties of a network and a drawing, or a note that it has too many links; `networks` are those of runs."""
    lam = f"λ = {network.lam if network.lam > 1e-12 else 0:.4g}"  # smaller values are rounding
    faults = "".join(f"{fault}, " for fault in network.faults)
    facts = f"{network.name}, {network.n} nodes, {network.rule} weights, {faults}{lam}"
    if sum(W.nnz for W in network.matrices) > LINKS:
        return {"note": f"{facts}. It has too many links for a drawing."}
    drawn = io.StringIO()
    # Fixed identifiers and no date, so that the same files give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "peerdescent"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figures.drawing(network).savefig(drawn, format="svg", metadata=nothing, transparent=True)
    svg = drawn.getvalue()
    lam += ", of one run; others are on other networks" if len(networks) > 1 else ""
    return {"note": "", "facts": facts, "lam": lam, "svg": Markup(svg[svg.index("<svg") :])}


def _made(runs: Sequence[Run]) -> list[str]:
    """The versions, commits and devices with which the runs were made."""
    summaries = [run.summary for run in runs]
    made = [
        f"{name} {version}"
        for summary in summaries
        for name, version in summary.get("versions", {}).items()
    ]
    made += [f"commit {summary['commit'][:10]}" for summary in summaries if summary.get("commit")]
    made += [str(summary["device"]) for summary in summaries if summary.get("device")]
    return list(dict.fromkeys(made))
