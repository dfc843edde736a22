"""One page about a folder: its runs, sweeps, configuration and network, to be opened, zoomed, printed and sent.

Everything is read from files, so a report can be made long after the runs and on another machine. What is in them is
gathered in `findings`; how a page is made of it is in `page`; here is what the page says.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdescent.errors import require
from peerdescent.report import findings, page

if TYPE_CHECKING:
    import numpy as np

    from peerdescent.report.findings import Group, Run, Sweep

DASHES = ("", "8px,3px", "8px,3px,2px,3px", "2px,3px", "14px,4px")  # five, so that they and eight colours make forty
LINKS = 5000  # of a network; a drawing of more would be large and say little


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML page about all runs and sweeps beneath a folder, and return its path (`report.html` there).

    The page needs no network and nothing beside it. It has the curves, to be zoomed and drawn against epochs, rounds,
    bytes, seconds or steps, runs that differ only in seed as one line with a band; a table of where each method ended;
    heat maps of sweeps; the configuration and the network where there is a `config.toml`; and whom to cite. An
    `optimum.json` such as {"value": 0.25} adds the gap to that optimum for the runs beneath it.

    >>> import tempfile, peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(4)), steps=20, record=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = trace.save(folder)
    ...     write(folder).name
    'report.html'
    """
    from peerdescent.files import write as write_file

    folder = Path(folder)
    require(folder.is_dir(), f"no folder {folder}: give one with runs or sweeps in it")
    path = folder / "report.html" if out is None else Path(out)
    require(not path.is_dir(), f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    runs, sweeps = findings.runs(folder), findings.sweeps(folder)
    require(
        bool(runs or sweeps),
        f"nothing to report in {folder}: neither it nor a folder beneath it is a run folder (trace.csv and "
        "summary.json) or holds a sweep.csv; commands write them where --out says",
    )
    groups = findings.grouped(runs)
    curves = _curves(groups)
    heats = [sweep.heat for sweep in sweeps if sweep.heat]
    title = f"{folder.resolve().name or 'peerdescent'}: report"
    body = [
        f'<h1>{escape(title)}</h1>\n<p class="lead">{page.breakable(_lead(groups, sweeps))}</p>',
        _curves_section(groups, curves) if groups else "",
        _ends_section(groups) if groups else "",
        _sweeps_section(sweeps) if sweeps else "",
        _setting_section(folder, runs),
        _citations_section([group.method.split("[")[0] for group in groups] + [sweep.method for sweep in sweeps]),
        _footer(runs),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, page.document(title, "\n".join(body), curves | {"sweeps": heats}).encode())
    return path


def _curves(groups: Sequence[Group]) -> dict[str, Any]:
    """What the script needs to draw the curves; colours and dashes are dealt out anew for each problem."""
    from peerdescent.figures import COLOURS

    dealt: Counter[str] = Counter()
    lines: list[dict[str, Any]] = []
    for group in groups:
        index, dealt[group.problem] = dealt[group.problem], dealt[group.problem] + 1
        style = {"colour": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)]}
        head = {"label": group.label, "problem": group.problem, "diverged": group.diverged > 0}
        lines.append({**head, **style, "lines": group.lines()})
    axes = {x for line in lines for x in line["lines"]}
    quantities = {y for line in lines for values in line["lines"].values() for y in values}
    return {
        "axes": {x: text for x, text in findings.AXES.items() if x in axes},
        "quantities": {y: text for y, text in findings.QUANTITIES.items() if y in quantities},
        "groups": lines,
    }


def _lead(groups: Sequence[Group], sweeps: Sequence[Sweep]) -> str:
    """How much there is and who is best."""
    runs, problems = [run for group in groups for run in group.runs], _problems(groups)
    parts = []
    if runs:
        methods = len({run.name or run.summary["method"] for run in runs})
        on = f" on {len(problems)} problems" if len(problems) > 1 else ""
        parts.append(f"{_count(len(runs), 'run')} of {_count(methods, 'method')}{on}")
    if sweeps:
        tried = sum(sweep.configurations for sweep in sweeps)
        parts.append(f"{_count(len(sweeps), 'sweep')} over {_count(tried, 'configuration')}")
    text = " and ".join(parts) + "."
    for problem in problems:
        rivals = [group for group in groups if group.problem == problem]
        winner = findings.best(rivals)
        if winner and len(rivals) > 1:
            on = f" on {problem}" if len(problems) > 1 else ""
            mean = f", the mean over {len(winner.runs)} seeds" if len(winner.runs) > 1 else ""
            text += f" Smallest final loss{on}: {winner.label} with {_mean(winner.final('loss'), '.6g')}{mean}."
    gone = sum(group.diverged for group in groups)
    return text + (f" {_count(gone, 'run')} diverged." if gone else "")


def _problems(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.problem for group in groups))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _curves_section(groups: Sequence[Group], curves: Mapping[str, Any]) -> str:
    if not curves["axes"] or not curves["quantities"]:
        return '<h2>Curves</h2>\n<p class="note">No run has a finite record to draw.</p>'
    problems = _problems(groups)
    everywhere = all("epoch" in line["lines"] for line in curves["groups"])
    controls = [page.select("problem", "problem", {name: name for name in problems})] if len(problems) > 1 else []
    controls += [
        page.select("up", "vertical", curves["quantities"], "gap" if "gap" in curves["quantities"] else "loss"),
        page.select("across", "horizontal", curves["axes"], "epoch" if everywhere else "step"),
        '<button type="button" id="scale" aria-pressed="false">logarithmic</button>',
        '<button type="button" id="whole">whole view</button>',
    ]
    return (
        f'<h2>Curves</h2>\n<div class="controls">{"".join(controls)}</div>\n'
        '<figure><div id="curves" class="plot" role="group" aria-label="Curves of all methods"></div>\n'
        '<ul id="legend" class="legend" aria-label="Lines: press one to hide or show it"></ul>\n'
        '<figcaption><span class="hint">Drag over a part to zoom, double-click to go back; press a name to hide or '
        "show its line.</span>"
        + " Lines are means over seeds, bands reach from the smallest to the largest."
        * any(len(g.runs) > 1 for g in groups)
        + " A cross marks where a line diverged; such lines do not set the scale." * any(g.diverged for g in groups)
        + "</figcaption></figure>\n<noscript><p>Curves need JavaScript; the tables do not.</p></noscript>"
    )


def _ends_section(groups: Sequence[Group]) -> str:
    """The table of where each group ended, the best of each problem marked."""
    from matplotlib.ticker import EngFormatter

    problems = _problems(groups)
    winners = [findings.best(group for group in groups if group.problem == problem) for problem in problems]

    def rank(group: Group) -> tuple[int, bool, float]:
        loss = group.final("loss").mean()
        return problems.index(group.problem), group.diverged > 0, loss if math.isfinite(loss) else math.inf

    ranked, size = sorted(groups, key=rank), EngFormatter("B", places=1)
    rows: list[list[page.Cell]] = []
    for group in ranked:
        sent = float(group.final("bytes").mean())
        rows.append(
            [
                (group.label, "" if group.label.startswith(group.method) else group.method),
                *[group.problem] * (len(problems) > 1),
                f"{len(group.runs)}",
                (_mean(group.final("loss"), "#.6g"), _deviation(group.final("loss"))),
                (_mean(group.final("grad_norm"), ".3g"), _deviation(group.final("grad_norm"))),
                _mean(group.final("epoch"), ".4g"),
                _mean(group.final("rounds"), ",.0f"),
                size(sent) if math.isfinite(sent) else "–",
                _mean(group.final("seconds"), ".3g"),
                _status(group),
            ]
        )
    head = ["method", *["problem"] * (len(problems) > 1), "seeds", "final loss", "gradient norm", "epochs", "rounds"]
    marked = [index for index, group in enumerate(ranked) if group in winners]
    table = page.table([*head, "bytes", "seconds", "status"], rows, ("method", "problem", "status"), marked)
    note = "Means over seeds, ± their sample deviation; the smallest loss is marked."
    return f'<h2>Where they ended</h2>\n{table}\n<p class="note">{note}</p>'


def _status(group: Group) -> page.Cell:
    """How its runs ended, and what they said."""
    counts = Counter(str(run.summary["status"]) for run in group.runs)
    said = sorted({str(run.summary.get("message") or "") for run in group.runs} - {""})
    return ", ".join(s if len(counts) == 1 else f"{count} {s}" for s, count in counts.items()), "; ".join(said)


def _mean(values: np.ndarray, form: str) -> str:
    """The mean, or a dash where there is none."""
    mean = float(values.mean())
    return format(mean, form) if math.isfinite(mean) else "∞" if mean == math.inf else "–"


def _deviation(values: np.ndarray) -> str:
    import numpy as np

    return f"± {values.std(ddof=1):.2g}" if len(values) > 1 and np.isfinite(values).all() else ""


def _sweeps_section(sweeps: Sequence[Sweep]) -> str:
    head = ["sweep", "method", "budget", "seeds", "configurations", "diverged", "smallest loss", "best hyperparameters"]
    rows: list[list[page.Cell]] = []
    for sweep in sweeps:
        if sweep.best is None:
            best = "none: no configuration is done for every seed"
        else:
            best = ", ".join(f"{name} = {findings.short(v)}" for name, v in sweep.best.items()) or "the method's own"
        rows.append(
            [
                (sweep.place, sweep.problem),
                sweep.method,
                sweep.budget,
                f"{sweep.seeds}",
                (f"{sweep.configurations:,}", f"{sweep.rows:,} rows" if sweep.rows > sweep.configurations else ""),
                f"{sweep.diverged:,}",
                f"{sweep.loss:#.6g}" if math.isfinite(sweep.loss) else "–",
                best,
            ]
        )
    text = f"<h2>Sweeps</h2>\n{page.table(head, rows, ('sweep', 'method', 'budget', 'best hyperparameters'))}"
    mapped = [f"{sweep.method} in {sweep.place}" for sweep in sweeps if sweep.heat]
    if not mapped:
        return text
    return (
        f'{text}\n<div class="controls">'
        + page.select("sweep", "sweep", {str(index): label for index, label in enumerate(mapped)})
        + page.select("heat-up", "vertical", {})
        + page.select("heat-across", "horizontal", {})
        + '</div>\n<figure><div id="heat" class="plot" role="group" aria-label="Heat map of a sweep"></div>\n'
        "<figcaption>A cell is the smallest loss over all other hyperparameters (of the means over seeds); the star is "
        "the smallest of all, and the worst tenth of cells shares the darkest colour. Grey with a cross: everything "
        "there diverged. White: nothing was run there.</figcaption></figure>"
    )


def _setting_section(folder: Path, runs: Sequence[Run]) -> str:
    """The configuration and the network, or a sentence about why not."""
    places = [folder, *(folder / run.place for run in runs[:1])]
    file = next((place / "config.toml" for place in places if (place / "config.toml").is_file()), None)
    text = "<h2>Configuration and network</h2>\n"
    if file is None:
        return text + '<p class="note">There is no config.toml, so neither is shown.</p>'
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        return text + f'<p class="note">The config.toml cannot be read: {escape(str(error))}.</p>'
    values = {key: value if isinstance(value, list) else [value] for key, value in config.items()}
    rows = [[key if k == 0 else "", str(v)] for key, listed in values.items() for k, v in enumerate(listed or [""])]
    shown = page.table(["key", "value"], rows, ("key", "value"))
    drawn = _drawing(config, {str(run.summary["network"]) for run in runs})
    place = file.relative_to(folder).as_posix()
    return f'{text}<div class="pair"><div>{shown}<p class="note">From {escape(place)}.</p></div>{drawn}</div>'


def _drawing(config: Mapping[str, Any], networks: Collection[str]) -> str:
    """The network that a configuration names, unless no run was made on it."""
    import io

    import matplotlib

    from peerdescent import figures
    from peerdescent.networks import topology
    from peerdescent.networks.network import Network

    try:
        network = Network(topology.build(config["topology"], config["nodes"]), config.get("weights"))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        return f'<p class="note">The network cannot be rebuilt from the configuration: {escape(reason)}.</p>'
    if networks and str(network) not in networks:
        return '<p class="note">No run was made on the network of this configuration, so it is not drawn.</p>'
    lam = network.lam if network.lam > 1e-12 else 0  # less is rounding
    facts = f"{network.name}, {network.n} nodes, {network.rule} weights, λ = {lam:.4g}"
    if sum(W.nnz for W in network.matrices) > LINKS:
        return f"<p>{escape(facts)}. It has too many links for a drawing.</p>"
    drawn = io.StringIO()
    # Fixed identifiers and no date, so that the same files make the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "peerdescent"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figures.drawing(network).savefig(drawn, format="svg", metadata=nothing, transparent=True)
    svg = drawn.getvalue()
    return (
        f'<figure class="drawing"><div role="img" aria-label="{escape(facts)}">{svg[svg.index("<svg") :]}</div>'
        f"<figcaption>λ = {lam:.4g}: near 0, nodes agree fast; near 1, slowly.</figcaption></figure>"
    )


def _citations_section(names: Sequence[str]) -> str:
    from peerdescent import __version__
    from peerdescent.methods import METHODS

    cited = [name for name in dict.fromkeys(names) if name in METHODS]
    items = "".join(f"<li>{escape(name)}: {escape(METHODS[name].citation)}</li>" for name in cited)
    return (
        "<h2>How to cite</h2>\n<p>The package:</p>\n<pre>@software{peerdescent,\n"
        "  author  = {{The peerdescent developers}},\n"
        "  title   = {peerdescent: decentralized stochastic optimization in Python},\n"
        f"  version = {{{__version__}}}\n}}</pre>\n" + (f"<p>The methods:</p>\n<ul>{items}</ul>" if items else "")
    )


def _footer(runs: Sequence[Run]) -> str:
    """What made the runs."""
    from peerdescent import __version__

    summaries = [run.summary for run in runs]
    made = [f"{name} {version}" for summary in summaries for name, version in summary.get("versions", {}).items()]
    made += [f"commit {summary['commit'][:10]}" for summary in summaries if summary.get("commit")]
    made += [str(summary["device"]) for summary in summaries if summary.get("device")]
    text = f" The runs were made with {', '.join(dict.fromkeys(made))}." if made else ""
    return f"<footer>Written by peerdescent {escape(__version__)}.{escape(text)}</footer>"
