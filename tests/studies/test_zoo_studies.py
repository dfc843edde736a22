"""The studies of methods made for a purpose, on a small synthetic set: what is compared is computed again by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from made_traces import make
from peerdescent.cli.main import main
from peerdescent.studies import equal_loss, paper, zoo
from pictures import colours

DATA, ROWS = "synthetic-4000x9", 200
"""Nodes have 200 rows of 9 features."""


def run_folders(folder, line):
    return [pd.read_csv(file) for file in sorted((folder / "runs" / line).glob("seed-*/trace.csv"))]


def first_below(spent, gaps, level):
    """Where a piecewise linear curve first meets a level, by walking along it."""
    for (x, gap), (next_x, next_gap) in zip(
        zip(spent, gaps, strict=True), zip(spent[1:], gaps[1:], strict=True), strict=False
    ):
        if gap <= level:
            return x
        if next_gap <= level:
            return x + (next_x - x) * (gap - level) / (gap - next_gap)
    return math.nan


def forbid(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("computed twice")

    monkeypatch.setattr("peerdescent.engines.stacked.Stacked.advance", fail)
    monkeypatch.setattr("peerdescent.engines.fleet.Fleet.follow", fail)
    monkeypatch.setattr(paper, "optimum", fail)
    monkeypatch.setattr(zoo, "optimum", fail)


def test_levels_lie_between_the_anchor_and_the_best():
    lines = {
        "dsgd": [make([1.5, 0.52, 0.52])],
        "beer": [make([1.5, 0.51, 0.5025]), make([1.5, 0.51, 0.5025])],
    }
    found = equal_loss.levels(lines, 0.5, "dsgd")
    assert found == pytest.approx(
        [0.08, 0.026, 0.008, 0.0025]
    )  # 0.08 and 0.0025 in equal ratios, 2 digits, rounded up
    assert equal_loss.levels(lines, 0.5, "nobody") == found, "the largest last gap is that of dsgd"
    assert equal_loss.levels(lines, 0.5, "beer")[0] == pytest.approx(0.01)
    gone = {**lines, "dsgd": [make([1.5, 9.0, 99.0], status=peer.Status.diverged)]}
    assert equal_loss.levels(gone, 0.5, "dsgd")[0] == pytest.approx(0.01)
    high = {"dsgd": [make([1.5, 1.0, 0.9])], "beer": [make([1.5, 0.6, 0.54])]}
    assert equal_loss.levels(high, 0.5, "dsgd")[0] == 0.5, (
        "half of what it was at first, not four times 0.4"
    )
    assert equal_loss.levels({"dsgd": [make([1.5, 0.4])]}, 0.5, "dsgd") == [], "below the optimum"


def test_what_is_needed_is_read_from_the_mean_over_seeds():
    slow = [
        make([4.0, 3.0, 2.0, 1.0]),
        make([4.0, 1.0, 0.0, 0.0]),
    ]  # mean 4, 2, 1, 0.5, and 0.1 MB a step
    fast = [
        make([4.0, 0.0, 0.0, 0.0], bytes=[0, 1e5, 2e5, 3e5]),
        make([4.0, 0.0, 0.0, 0.0], bytes=[0, 3e5, 4e5, 5e5]),
    ]
    gone = [make([4.0, 1.0]), make([4.0, 1e9], status=peer.Status.diverged)]
    table = equal_loss.needed(
        {"slow": slow, "fast": fast, "gone": gone}, 0.0, [1.5, 0.5, 0.1], "bytes", "slow"
    )
    assert table["unit"].unique().tolist() == ["MB"]
    by_line = {line: own.set_index("level") for line, own in table.groupby("line")}
    assert by_line["slow"]["amount"].tolist() == pytest.approx([0.15, 0.3, math.nan], nan_ok=True)
    assert by_line["fast"]["amount"].tolist() == pytest.approx(
        [0.2 * 2.5 / 4, 0.2 * 3.5 / 4, 0.2 * 3.9 / 4]
    )
    assert by_line["fast"]["ratio"].tolist() == pytest.approx(
        [0.125 / 0.15, 0.175 / 0.3, math.nan], nan_ok=True
    )
    assert by_line["slow"].loc[1.5, ["fewest", "most", "seeds"]].tolist() == pytest.approx(
        [0.1 * 2.5 / 3, 0.25, 2]
    )
    assert by_line["slow"].loc[0.5, "seeds"] == 1
    assert by_line["gone"]["amount"].isna().all()
    sentences = equal_loss.told(table, "slow")
    assert (
        sentences[0]
        == "to a gap of 1.5: slow needs 0.15 MB; times that, fast 0.83; not reached by gone"
    )
    assert sentences[2] == "to a gap of 0.1: MB, fast 0.195; not reached by slow, gone"


def test_ends_are_told_apart_by_two_standard_errors():
    def sentence(one, two):
        return equal_loss.compared("a", "b", equal_loss.Ended.of(one), equal_loss.Ended.of(two))

    assert sentence([1.0, 1.2], [2.0, 2.2]).endswith(
        "lower by more than two standard errors"
    )  # 1 against 0.28
    assert sentence([2.0, 2.2], [1.0, 1.2]).endswith("higher by more than two standard errors")
    assert sentence([1.0, 2.0], [2.0, 3.0]).endswith("within two standard errors")  # 1 against 1.41
    assert sentence([1.0, math.inf], [1.0, 1.0]) == "a against b: a diverged"


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """The study with three lines, computed in two parts."""
    folder = tmp_path_factory.mktemp("compression")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "SPLITS", {"uniform": {}})
        zoo.compression(DATA, "tiny", folder, methods=["gt-dsgd"], progress=False)
        assert pd.read_csv(folder / "uniform.csv")["line"].tolist() == ["gt-dsgd"]
        zoo.compression(DATA, "tiny", folder, methods=["dsgd", "beer sign"], progress=False)
    return folder


LINES = ["dsgd", "gt-dsgd", "beer sign"]


def test_compression_is_put_together_from_parts(compressed, monkeypatch):
    monkeypatch.setattr(zoo, "SPLITS", {"uniform": {}})
    forbid(monkeypatch)
    told = []
    found = zoo.compression(
        DATA, "tiny", compressed, methods=LINES, progress=False, note=told.append
    )["uniform"]
    assert any("written to" in line for line in told)
    table = pd.read_csv(compressed / "uniform.csv").set_index("line")
    assert table.index.tolist() == LINES
    assert (table["seeds"] == 2).all()
    best = json.loads((compressed / "uniform" / "optimum.json").read_text())["value"]
    # Bytes: the exponential graph has 8 neighbours; a tracking step has two rounds, beer's first step one.
    last = {line: run_folders(compressed / "uniform", line)[0].iloc[-1] for line in LINES}
    steps = {line: int(last[line]["step"]) for line in LINES}
    assert steps == dict.fromkeys(LINES, 2 * ROWS // 16)
    assert last["dsgd"]["bytes"] == steps["dsgd"] * 8 * 9 * 4
    assert last["gt-dsgd"]["bytes"] == 2 * steps["gt-dsgd"] * 8 * 9 * 4
    assert last["beer sign"]["bytes"] == (2 * steps["beer sign"] - 1) * 8 * (2 + 4)
    needed = pd.read_csv(compressed / "uniform-needed.csv")
    levels = needed["level"].unique()
    assert (np.diff(levels) < 0).all()
    finals = {}
    for line in LINES:
        traces = run_folders(compressed / "uniform", line)
        gaps = np.mean([trace["loss"] - best for trace in traces], axis=0)
        finals[line] = gaps[-1]
        assert table.loc[line, "gap"] == pytest.approx(gaps[-1])
        ends = [trace["loss"].iloc[-1] - best for trace in traces]
        assert table.loc[line, "deviation"] == pytest.approx(np.std(ends, ddof=1))
        assert table.loc[line, "worst"] == pytest.approx(max(ends))
        own = needed[needed["line"] == line].set_index("level")
        for level in levels:
            amount = first_below((traces[0]["bytes"] / 1e6).tolist(), gaps.tolist(), level)
            assert own.loc[level, "amount"] == pytest.approx(amount, nan_ok=True)
            assert table.loc[line, f"MB to {level:g}"] == pytest.approx(amount, nan_ok=True)
    assert levels[-1] == pytest.approx(min(finals.values()), rel=0.1)
    assert min(finals.values()) <= levels[-1]
    assert levels[0] <= 4 * finals["dsgd"] * 1.1
    ratio = (
        table.loc["beer sign", f"MB to {levels[0]:g}"]
        / table.loc["gt-dsgd", f"MB to {levels[0]:g}"]
    )
    assert table.loc["beer sign", f"MB to {levels[0]:g}, ratio"] == pytest.approx(
        ratio, nan_ok=True
    )
    curves = pd.read_csv(compressed / "uniform-curves.csv")
    own = curves[curves["line"] == "beer sign"]
    assert own["gap"].iloc[-1] == pytest.approx(finals["beer sign"])
    assert (own["gap low"] <= own["gap"] + 1e-15).all()
    assert own["bytes"].iloc[-1] == last["beer sign"]["bytes"]
    assert colours(compressed / "uniform.png") > 20
    text = (compressed / "verdict.txt").read_text()
    assert text.startswith("uniform\n- to a gap of ")
    assert all(sentence in text for sentence in found.verdict)


def test_the_command_tells_what_the_numbers_say(compressed, monkeypatch, capsys):
    monkeypatch.setattr(zoo, "SPLITS", {"uniform": {}})
    monkeypatch.setattr(zoo, "COMPRESSED", {line: zoo.COMPRESSED[line] for line in LINES})
    monkeypatch.setattr(
        zoo.compression, "__defaults__", (*zoo.compression.__defaults__[:-1], tuple(LINES))
    )
    monkeypatch.setattr(zoo.figures, "save", lambda *_, **__: None)
    forbid(monkeypatch)
    shown = {}
    for form in ("table", "csv"):
        words = [
            "reproduce",
            "compression",
            "--data",
            DATA,
            "--scale",
            "tiny",
            "--out",
            str(compressed),
            "--quiet",
        ]
        with pytest.raises(SystemExit) as left:
            main([*words, "--format", form])
        assert left.value.code == 0
        shown[form] = capsys.readouterr().out
    assert shown["csv"].splitlines()[0].startswith("line,method,seeds,diverged,gap")
    assert len(shown["csv"].splitlines()) == 1 + len(LINES)
    verdict = (compressed / "verdict.txt").read_text().splitlines()
    assert len(verdict) >= 5
    assert all(line in shown["table"] for line in verdict)


def test_a_part_on_other_data_is_refused(compressed, monkeypatch):
    monkeypatch.setattr(zoo, "SPLITS", {"uniform": {}})
    with pytest.raises(ValueError, match="about something else"):
        zoo.compression("synthetic-4000x8", "tiny", compressed, methods=["gt-dsgd"], progress=False)


@pytest.mark.long
def test_local_has_a_line_for_each_frequency(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "SPLITS", {"label": {"partition": "label"}})
    methods = ["dsgd", "gt-dsgd", "led", "proxskip"]
    found = zoo.local(DATA, "tiny", tmp_path, methods=methods, progress=False)["label"]
    # Rounds in an epoch of 200 rows: dsgd has one a step, gt-dsgd two, led one in 8 steps, proxskip one in 5.
    lines = [
        "dsgd (12.5",
        "dsgd (0.781",
        "gt-dsgd (25",
        "gt-dsgd (1.56",
        "led (1.56",
        "proxskip (2.5",
    ]
    lines = [f"{line} rounds an epoch)" for line in lines]
    assert found.table["line"].tolist() == lines
    ends = {line: run_folders(tmp_path / "label", line)[0].iloc[-1] for line in lines}
    steps = 2 * ROWS // 16
    assert ends[lines[0]]["rounds"] == steps
    assert ends[lines[4]]["rounds"] == steps // 8
    # The preset continent: 1 ms a gradient, 25 ms a message, 12.5 MB a second.
    message = 0.025 + 9 * 4 / 1.25e7
    assert ends[lines[0]]["clock"] == pytest.approx(steps * (16e-3 + message))
    assert ends[lines[2]]["clock"] == pytest.approx(steps * (16e-3 + 2 * message))
    assert ends[lines[4]]["clock"] == pytest.approx(steps * 16e-3 + steps // 8 * message)
    assert found.needed["unit"].unique().tolist() == ["rounds", "seconds"]
    # Proxskip has as many rounds as its coins say, and the amount is their mean.
    rounds = [trace["rounds"].iloc[-1] for trace in run_folders(tmp_path / "label", lines[5])]
    curves = pd.read_csv(tmp_path / "label-curves.csv")
    assert curves[curves["line"] == lines[5]]["rounds"].iloc[-1] == pytest.approx(np.mean(rounds))
    compared = [sentence for sentence in found.verdict if " ends at " in sentence]
    assert len(compared) == 4, "each of the two methods with both batches of gt-dsgd"
    assert colours(tmp_path / "label.png") > 20


@pytest.mark.long
def test_composite_measures_the_proximal_mapping_and_zeros(tmp_path):
    lines = ["proxgt", "deepstorm"]
    found = zoo.composite(DATA, "tiny", tmp_path, methods=lines, progress=False)["l1"]
    table = found.table.set_index("line")
    data = peer.datasets.load(DATA, seed=0)
    smooth = peer.problems.logistic(data.partition(20, seed=0), strength=1e-4)
    known = json.loads((tmp_path / "l1" / "optimum.json").read_text())
    norms, counts, objectives = [], [], []
    for seed in (1, 2):
        trace = peer.Trace.load(tmp_path / "l1" / "runs" / "proxgt" / f"seed-{seed}")
        x = trace.x_mean.astype(float)
        y = x - smooth.grad(x)
        norms.append(np.linalg.norm(x - np.sign(y) * np.maximum(np.abs(y) - zoo.L1, 0)))
        objectives.append(smooth.loss(x) + zoo.L1 * np.abs(x).sum())
        counts.append((trace.x != 0).sum() / 20)
    assert table.loc["proxgt", "grad_norm"] == pytest.approx(np.mean(norms), rel=1e-3)
    assert table.loc["proxgt", "gap"] == pytest.approx(
        np.mean(objectives) - known["value"], rel=1e-3
    )
    assert table.loc["proxgt", "nonzeros of a node"] == pytest.approx(np.mean(counts))
    assert found.verdict[-1].startswith(
        f"entries that are not 0, of 9: the solution {known['nonzeros']}, proxgt "
    )
    assert colours(tmp_path / "l1.png") > 20


@pytest.mark.long
def test_heavy_tails_are_tuned_by_the_mean_gradient_norm_of_five_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "NOISES", {"t 1.5": 1.5})
    monkeypatch.setattr(zoo, "STEP_SIZES", (0.01, 0.1, 0.5))
    found = zoo.heavy_tails("tiny", tmp_path, progress=False)["t 1.5"]
    for method in zoo.TAILED:
        swept = pd.read_csv(tmp_path / "t 1.5" / "tuning" / method / "sweep.csv")
        assert sorted(swept["seed"].unique()) == [0, 1001, 1002, 1003, 1004]
        means = swept.groupby("alpha")["grad_norm"].mean()
        assert means.index.tolist() == [0.01, 0.1, 0.5]
        row = found.table.set_index("line").loc[method]
        assert f"alpha={means.idxmin()}," in row["method"]
        assert "batch=1]" in row["method"]
        ends = [trace["grad_norm"].iloc[-1] for trace in run_folders(tmp_path / "t 1.5", method)]
        assert len(ends) == 8
        assert row["grad_norm"] == pytest.approx(np.mean(ends))
        assert row["worst"] == pytest.approx(max(ends))
    assert len(found.verdict) == 3
    assert found.needed.empty
    assert colours(tmp_path / "t-1.5.png") > 20
    forbid(monkeypatch)
    again = zoo.heavy_tails("tiny", tmp_path, methods=["gt-nsgdm"], progress=False)["t 1.5"]
    assert again.table["line"].tolist() == ["gt-nsgdm"]
    assert again.table.iloc[0].to_dict() == found.table.iloc[2].to_dict()


def test_tails_are_tuned_by_the_gradient_norm_and_not_by_the_loss(tmp_path, monkeypatch):
    def sweep(method, grid, *_, seed, **__):
        rows = [
            {**one, "seed": k, "loss": one["alpha"], "grad_norm": -one["alpha"]}
            for one in grid
            for k in seed
        ]
        return pd.DataFrame(rows).assign(status="done")

    monkeypatch.setattr(zoo, "sweep", sweep)
    network = peer.Network(peer.topology.exponential(20))
    part = zoo.Part(tmp_path, "t 2", zoo.bowl(2.0), network, paper.SCALES["tiny"], False, print)
    assert part.tuned_by_seeds("gt-dsgd") == f"gt-dsgd[alpha={max(zoo.STEP_SIZES)},batch=1]"


def test_the_bowl_has_its_minimum_at_zero_and_nodes_elsewhere():
    problem = zoo.bowl(2.0)
    assert np.abs(problem.grad(np.zeros(zoo.FEATURES))).max() < 1e-12
    assert np.linalg.norm(problem.local_grads(np.zeros(zoo.FEATURES)), axis=1).min() > 1
    assert np.linalg.norm(problem.start) == pytest.approx(zoo.AWAY)
    assert problem.smoothness == pytest.approx(1.0)


def test_an_interrupted_run_interrupts_the_study(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        trace = make([1.0, 0.5])
        return dataclasses.replace(trace, status=peer.Status.interrupted)

    monkeypatch.setattr(zoo, "run", interrupted)
    monkeypatch.setattr(zoo.Part, "tuned_by_seeds", lambda self, method: method)
    with pytest.raises(KeyboardInterrupt):
        zoo.heavy_tails("tiny", tmp_path, methods=["gt-dsgd"], progress=False)
    assert not (tmp_path / "verdict.txt").exists()


def test_the_grid_is_the_declared_one_with_a_step_size_more():
    problem = peer.problems.logistic(peer.datasets.synthetic(400, 4).partition(20))
    declared = peer.sweeps.tuning_grid("beer", problem.samples, batch=16)
    found = zoo._search("beer[batch=16]", problem, paper.SCALES["quick"]).configurations
    longest = max(one["alpha"] for one in found)
    within = [one for one in found if one["alpha"] < longest]
    assert all(one in declared for one in within)
    assert longest == 2 * max(one["alpha"] for one in within)
    assert {one["gamma"] for one in found if one["alpha"] == longest} == {
        one["gamma"] for one in within
    }


@pytest.mark.parametrize(
    ("study", "methods", "message"),
    [
        (zoo.compression, ["bear sign"], "unknown line 'bear sign': did you mean 'beer sign'"),
        (zoo.local, ["gt-hsgd"], "unknown line 'gt-hsgd'"),
        (zoo.composite, "proxgt", "methods = 'proxgt': give a list of some of proxgt, deepstorm"),
        (zoo.heavy_tails, [], r"methods = \[\]: give a list of some of gt-dsgd"),
    ],
)
def test_lines_that_are_not_there_are_refused_before_anything_is_made(
    study, methods, message, tmp_path
):
    with pytest.raises(ValueError, match=message):
        study(out=tmp_path / "new", methods=methods)
    assert not (tmp_path / "new").exists()


def test_refusals(tmp_path, capsys):
    (tmp_path / "file").touch()
    for words, reason in [
        (["heavy-tails", "--scale", "huge"], "unknown scale 'huge'"),
        (["heavy-tails", "--out", str(tmp_path / "file")], "is a file"),
        (
            ["local", "--data", "nothing", "--out", str(tmp_path / "none")],
            "unknown data set 'nothing'",
        ),
        (["composites"], "unknown study 'composites': did you mean 'composite'"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(["reproduce", *words])
        assert left.value.code == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match="unknown scale 'huge'"):
        zoo.heavy_tails("huge", tmp_path / "other")
