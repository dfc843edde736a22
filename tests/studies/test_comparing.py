"""Comparisons of methods: the table is of the runs, parameters are chosen apart from them, and folders go on."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

import made_traces
import peerdescent as peer
from peerdescent.cli import console
from peerdescent.report import findings
from peerdescent.studies import compared, comparing
from peerdescent.sweeps import tuning
from small import Spy, by_hand, small_logistic, small_streaming

OPTIMISED = True  # searches of thousands of steps
FEW = {"budget": 12, "epochs": 1, "record": 2, "seed": range(2)}
"""A search of four configurations."""
RING = peer.Network(peer.topology.ring(6))
GIVEN = {"plain": "dsgd[alpha=0.4,batch=1]", "ours": peer.methods.gt_dsgd(alpha=0.4)}
SHORT = {"steps": 12, "record": 3, "seed": range(2)}


@pytest.fixture(scope="module")
def problem():
    return small_logistic()


@pytest.fixture(scope="module")
def found(problem):
    half = peer.metric(lambda x_mean, x, problem: float(np.abs(x_mean).max()), name="largest entry")
    return peer.compare(GIVEN, problem, RING, metrics=[half], **SHORT)


def test_the_table_is_of_runs_with_the_same_seeds(problem, found):
    table = found.table.set_index("method")
    assert list(found) == table.index.tolist() == ["plain", "ours"]
    for name, method in (("plain", peer.methods.dsgd(alpha=0.4)), ("ours", GIVEN["ours"])):
        alone = peer.run(method, problem, RING, steps=12, record=3, seed=[0, 1])
        ends = np.array([trace.table[["loss", "grad_norm", "bytes"]].iloc[-1] for trace in alone])
        row = table.loc[name]
        assert row[["loss", "grad_norm", "bytes"]].tolist() == pytest.approx(
            ends.mean(axis=0).tolist(), 1e-6
        )
        assert row["loss_deviation"] == pytest.approx(
            abs(ends[0, 0] - ends[1, 0]) / math.sqrt(2), 1e-3
        )
        assert row["largest entry"] == pytest.approx(
            np.mean([np.abs(t.x_mean).max() for t in alone]), 1e-5
        )
        assert (row["seeds"], row["status"], row["selector"]) == (2, "done", str(method))
        assert found[name].seeds == (0, 1)
    assert found.best == table["loss"].idxmin()
    assert found.how == {"plain": "given", "ours": "given"}
    assert not found.is_interrupted
    with pytest.raises(KeyError, match="unknown method 'our': did you mean 'ours'"):
        found["our"]


def test_texts_and_figures(found):
    lines = found.to_markdown().splitlines()
    assert lines[0] == "| method | loss | consensus | largest entry | epoch | rounds | bytes |"
    best = found.table.set_index("method").loc[found.best]
    digits = 1 - math.floor(math.log10(best["loss_deviation"]))
    cell = f"**{best['loss']:.{digits}f} ± {best['loss_deviation']:.{digits}f}**"
    assert [line.count("**") for line in lines[2:]] == [2 * leads for leads in found.table["leads"]]
    assert cell in found.to_markdown()
    said = cell.strip("*")
    assert repr(found[found.best]).endswith(f"loss {said})"), "one text for one result"
    assert said in found[found.best]._repr_html_()
    assert cell.strip("*").replace("±", r"\pm") in found.to_latex(["loss"])
    assert found.to_latex(["loss"]).count("&") == 3
    assert found.to_markdown(["largest entry", "rounds"]).startswith(
        "| method | largest entry | rounds |"
    )
    assert found.to_markdown(["status", "seeds"]).splitlines()[2] == "| plain | done | 2 |"
    assert found.to_latex(["loss", "status"]).count("done") == 2
    with pytest.raises(ValueError, match="unknown metric 'los': did you mean 'loss'"):
        found.to_latex(["los"])
    assert [axes.get_ylabel() for axes in found.figure().axes][-1] == "largest entry"
    assert len(found.figure([("rounds", "loss")]).axes) == 1
    assert "2 methods, 2 seeds, loss: plain 0." in repr(found)
    assert found._repr_html_() == found.table.to_html()


def made(costs=None, **losses):
    """A comparison of runs that end with these losses, one for each seed, after so many rounds and bytes."""

    def trace(name, seed, loss):
        spent = {column: [0, float(ends[seed])] for column, ends in (costs or {}).items()}
        one = made_traces.make(
            [1.0, loss], **{"gradients": 1.0, "rounds": 1.0, "seconds": 1.0, **spent}
        )
        return replace(one, identity=replace(one.identity, seed=seed, method=name))

    return peer.Comparison(
        {name: peer.Traces(trace(name, *one) for one in enumerate(o)) for name, o in losses.items()}
    )


def test_the_best_and_all_that_are_level_with_it_are_marked(tmp_path):
    """Over the same seeds: what is a little worse with every one is not level, what is better with some is."""
    best, close, lucky = map(
        np.array, ([0.29, 0.37, 0.33], [0.01, 0.011, 0.012], [-0.02, 0.05, 0.01])
    )
    found = made(close=best + close, lucky=best + lucky, far=[0.9, 0.8, 0.9], best=best)
    assert found.best == "best"
    marked = ["lucky", "best"]
    differences = found.differences.set_index("method")
    test = stats.ttest_rel(best + lucky, best).confidence_interval()
    assert differences.loc["lucky", ["low", "high"]].tolist() == pytest.approx(
        [test.low, test.high]
    )
    assert differences["difference"].tolist() == pytest.approx(
        [0.011, 0.04 / 3, 0.53667, 0], abs=1e-5
    )
    assert differences["level"].tolist() == [False, True, False, True]
    assert found.table["leads"].tolist() == [False, True, False, True]
    assert "level with it: lucky" in found.verdict
    assert [line.split()[1] for line in found.to_markdown().splitlines() if "**" in line] == marked
    assert found.to_latex(["loss"]).count("mathbf") + found.to_latex(["loss"]).count("textbf") == 2
    terminal = StringIO()
    Console(file=terminal, width=200).print(console.comparison(found.table, 200))
    assert [
        line.split()[0]
        for line in terminal.getvalue().splitlines()
        if " * " in line and "|" not in line
    ] == marked
    assert found.report(tmp_path).read_text(encoding="utf-8").count('<tr class="best">') == 2
    alone = made(one=[0.35], two=[0.4])
    assert (alone.best, alone.to_markdown().count("**")) == ("one", 0), "one seed gives no verdict"
    assert alone.differences["low"].isna().all()
    assert "no verdict" in alone.verdict
    many = made(five=[1.0, 2.0, 3.0, 4.0, 100.0], equal=[1.0, 2.0, 3.0, 4.0, 100.0])
    assert many.table["loss_middle"].tolist() == [3, 3]
    assert many.table["leads"].tolist() == [True, True]


def test_costs_to_a_target_are_interpolated_and_of_the_seeds_that_reach_it():
    def trace(seed, losses):
        return made_traces.make(
            losses,
            seed=seed,
            gradients=[0.0, 10, 20],
            rounds=[0.0, 4, 8],
            seconds=[0.0, 1, 2],
            clock=math.nan,
        )

    reached = peer.Traces(
        [trace(0, [1.0, 0.5, 0.1]), trace(1, [1.0, 0.9, 0.3]), trace(2, [1.0, 0.8, 0.7])]
    )
    found = peer.Comparison({"two": reached}).to_reach(loss=0.5)
    row = found.set_index("method").loc["two"]
    places = [1, 1 + 0.4 / 0.6]  # records after which 0.5 is reached
    assert row["reached"] == pytest.approx(2 / 3)
    assert row[["gradients", "rounds", "bytes", "seconds"]].tolist() == pytest.approx(
        [np.mean(places) * each for each in (10, 4, 1e5, 1)]
    )
    none = peer.Comparison({"two": reached}).to_reach(loss=0.01).iloc[0]
    assert none["reached"] == 0
    assert math.isnan(none["rounds"])
    with pytest.raises(ValueError, match="give one target"):
        peer.Comparison({"two": reached}).to_reach(loss=0.1, consensus=1)


def test_costs_that_differ_between_seeds_have_a_deviation(tmp_path):
    found = made(
        {"rounds": [490, 525, 595], "bytes": [98e3, 105e3, 119e3]}, plain=[0.35, 0.34, 0.33]
    )
    row = found.table.iloc[0]
    assert row["rounds_deviation"] == pytest.approx(np.std([490, 525, 595], ddof=1))
    assert row["gradients_deviation"] == 0
    assert found.to_markdown(["rounds", "bytes", "gradients"]).endswith(
        "| plain | 537 ± 53 | 107 ± 11 kB | 1 |"
    )
    assert r"plain & $537 \pm 53$ & $107 \pm 11$ kB \\" in found.to_latex(["rounds", "bytes"])
    terminal = StringIO()
    Console(file=terminal, width=200).print(console.comparison(found.table, 200))
    line = next(line for line in terminal.getvalue().splitlines() if line.startswith("plain"))
    assert " ".join(line.split()[-10:]) == "1 537 ± 53 107 ± 11 kB 1.00 done"


def test_a_folder_and_a_page(found, tmp_path):
    page = found.report(tmp_path / "c")
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in ("plain", "ours", "Means over seeds"))
    assert "Parameters that were not given" not in text
    groups = findings.grouped(findings.runs(tmp_path / "c"))
    assert sorted((group.label, len(group.runs)) for group in groups) == [("ours", 2), ("plain", 2)]
    again = peer.Comparison.load(tmp_path / "c")
    pd.testing.assert_frame_equal(again.table, found.table)
    assert (
        pd.read_csv(tmp_path / "c" / "comparison.csv")["loss"].tolist()
        == found.table["loss"].tolist()
    )
    assert (tmp_path / "c" / "comparison.png").stat().st_size > 10_000
    found.save(tmp_path / "c")
    with pytest.raises(
        ValueError,
        match="a comparison of plain, ours, and what was asked for is plain: name all that",
    ):
        peer.Comparison({"plain": found["plain"]}).save(tmp_path / "c")
    other = [
        replace(trace, identity=replace(trace.identity, dimension=9)) for trace in found["plain"]
    ]
    other_plain = peer.Comparison({"plain": peer.Traces(other)}, missing=("ours",))
    with pytest.raises(
        ValueError,
        match=r"seed-0 has another run, whose dimension is .*, and 9 here: .* force=True$",
    ):
        other_plain.save(tmp_path / "c")
    other_plain.save(tmp_path / "c", force=True)
    assert peer.Trace.load(tmp_path / "c" / "plain" / "seed-0").identity.dimension == 9
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(
        ValueError, match=r"not results of peerdescent \(c, mine.txt\): give a new or empty one$"
    ):
        found.save(tmp_path)
    with pytest.raises(ValueError, match="has no comparison"):
        peer.Comparison.load(tmp_path)
    (tmp_path / "c" / "comparison.json").write_text("[]")
    with pytest.raises(ValueError, match="is not the index of a comparison: remove it"):
        peer.Comparison.load(tmp_path / "c")


def test_a_folder_goes_on_and_keeps_what_was_chosen(problem, tmp_path, monkeypatch):
    methods = ["dsgd", peer.methods.gt_dsgd]
    first = peer.compare(methods, problem, RING, out=tmp_path, **FEW)
    more = FEW | {"seed": range(3)}
    longer = peer.compare(methods, problem, RING, out=tmp_path, **more)
    assert longer.how == first.how
    assert longer["dsgd"].seeds == (0, 1, 2)
    for name in first:
        pd.testing.assert_frame_equal(longer[name][0].table, first[name][0].table)
    more |= {"epochs": 2}
    for name, traces in peer.compare(methods, problem, RING, out=tmp_path, **more).items():
        assert traces[0].table["step"].iloc[-1] > longer[name][0].table["step"].iloc[-1]
        assert traces[0].identity.method == first[name][0].identity.method, (
            "chosen for fewer steps, and kept"
        )
    assert peer.Comparison.load(tmp_path).how == first.how
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        more = peer.compare(
            [*methods, "d2[alpha=0.4,batch=1]"], problem, RING, out=tmp_path, **more | {"record": 4}
        )
    assert list(more) == ["dsgd", "gt-dsgd", "d2[alpha=0.4,batch=1]"]
    text = "is finished, and was recorded at other steps than those asked for"
    assert [str(one.message) for one in caught] == [f"dsgd {text}", f"gt-dsgd {text}"], (
        "one for all seeds"
    )
    assert {one.filename for one in caught} == {__file__}


@pytest.fixture(scope="module")
def stored(problem, tmp_path_factory):
    home = tmp_path_factory.mktemp("stored") / "c"
    peer.compare(["dsgd"], problem, RING, out=home, **FEW)
    return home


@pytest.fixture
def folder(stored, tmp_path):
    """A copy of a folder with a finished comparison."""
    return shutil.copytree(stored, tmp_path / "c")


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(message, folder, methods, problem, **options):
    """A call in a folder is refused, and the folder stays as it was."""
    before, places = files_in(folder), sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=message):
        peer.compare(methods, problem, RING, out=folder, **{**FEW, **options})
    assert sorted(folder.rglob("*")) == places
    assert files_in(folder) == before


def test_seeds_that_are_left_out_are_refused_before_anything_runs(problem, folder, monkeypatch):
    monkeypatch.setattr(comparing, "run", lambda *arguments, **options: pytest.fail("it ran"))
    message = "dsgd has runs of other seeds, seed-1: give another folder, or those seeds as well"
    assert_refused(message, folder, ["dsgd"], problem, seed=[0])
    assert_refused(message, folder, ["d2", "dsgd"], problem, seed=[0, 2])


def test_runs_that_would_have_ended_earlier_are_refused(problem, folder):
    """Else some seeds or methods would end by a rule, and others not."""
    rule = {"stop": lambda row: row["step"] >= 4}
    message = (
        "seed 0 has .* steps, and would have ended before: the function given as stop, at step"
    )
    assert_refused(message, folder, ["dsgd"], problem, seed=range(4), **rule)
    assert_refused(message, folder, ["dsgd", "d2[alpha=0.4,batch=1]"], problem, **rule)


def test_a_call_that_is_refused_does_not_change_what_was_chosen(problem, folder):
    """What the folder says was chosen is what its runs have, and how it was chosen does not change."""
    other, tuned = small_logistic(strength=10.0), "has dsgd as it was tuned with another "
    assert_refused(tuned + "data", folder, ["dsgd"], other, seed=range(3))
    assert_refused(
        tuned + "budget: .*, and here 900", folder, ["dsgd"], problem, seed=range(3), budget=900
    )
    assert_refused(
        tuned + "by: loss, and here consensus",
        folder,
        ["dsgd"],
        problem,
        seed=range(3),
        by="consensus",
    )
    known = peer.Comparison.load(folder)
    assert f"alpha={known.how['dsgd'].split()[2].strip(',')}" in known["dsgd"][
        0
    ].identity.method.replace(".0", "")
    assert known.configurations["dsgd"] == known.table["configurations"].iloc[0] > 1


def test_runs_that_are_done_at_different_steps_have_no_mean(problem):
    short, long = (
        peer.run(GIVEN["ours"], problem, RING, seed=s, steps=6 * (s + 1), record=1) for s in (0, 1)
    )
    early = peer.run(
        GIVEN["ours"], problem, RING, seed=2, steps=12, record=2, stop=lambda row: row["step"] == 6
    )
    uneven = peer.Comparison({"uneven": peer.Traces([short, long, early])})
    row = uneven.table.iloc[0]
    assert row["status"] == "1 done at step 6, 1 done at step 12, 1 stopped"
    assert math.isnan(row["loss"])
    assert math.isnan(row["rounds"])
    assert uneven.best is None
    assert "1 done at step 6" in uneven.to_markdown()
    even = peer.Comparison({"even": peer.Traces([long, early])})
    assert even.table["loss"].iloc[0] == np.mean(
        [trace.table["loss"].iloc[-1] for trace in (long, early)]
    )
    assert (even.best, even.table["status"].iloc[0]) == ("even", "1 done, 1 stopped")


def test_a_comparison_is_of_one_problem_network_and_seeds(problem):
    def of(problem=problem, seed=(0, 1), steps=6, **options):
        return peer.run(
            GIVEN["ours"], problem, RING, seed=list(seed), steps=steps, record=1, **options
        )

    def refused(message, other):
        with pytest.raises(ValueError, match=message):
            peer.Comparison({"one": first, "other": other})

    def told(**facts):
        return peer.Traces(replace(one, identity=replace(one.identity, **facts)) for one in first)

    first = of()
    other = of(small_logistic(strength=0.1))
    refused(
        "strength is 0.0001 for one and 0.1 for other; give runs of one problem and one network",
        other,
    )
    refused(
        r"network is 'Network\(ring.* for one and 'Network\(path", told(network="Network(path)")
    )
    refused("x_0 is '.*' for one and '.*' for other", of(x0=np.ones(5)))
    refused("precision is 32 for one and 64 for other", told(precision=64))
    refused("clock is None for one and '.*' for other", of(clock="campus"))
    refused(
        "data seed is 0 for one and 1 for other",
        told(facts=first[0].identity.facts | {"data seed": 1}),
    )
    refused(
        "row seed is None for one and 1 for other",
        told(facts=first[0].identity.facts | {"row seed": 1}),
    )
    refused(
        "the data, the weights or x_0 are not the same for one and for other",
        told(values="changed"),
    )
    assert list(
        peer.Comparison({"one": first, "there": told(values="its own part", engine="processes")})
    )
    refused(
        "seeds are 0, 1 for one and 0, 1, 2 for other: give runs of the same seeds, or finish",
        of(seed=range(3)),
    )
    cut = [replace(trace, status=peer.Status.interrupted) for trace in of(seed=range(3))]
    assert list(peer.Comparison({"one": first, "other": peer.Traces(cut)}).table["seeds"]) == [2, 3]
    assert list(peer.Comparison({"one": first, "longer": of(steps=12)})) == ["one", "longer"]


def test_metrics_of_one_name_that_compute_something_else_are_refused(problem):
    def of(scale, seed):
        largest = peer.metric(
            lambda x_mean, x, problem: scale * float(np.abs(x_mean).max()), name="largest"
        )
        metrics = [] if scale is None else [largest]
        return peer.run(GIVEN["ours"], problem, RING, seed=seed, steps=6, record=1, metrics=metrics)

    with pytest.raises(
        ValueError, match="metric 'largest' computes something else with seed 1 than with seed 0"
    ):
        peer.Traces([of(1, 0), of(2, 1)])
    for pair in ((of(1, 0), of(None, 1)), (of(None, 0), of(1, 1))):
        with pytest.raises(
            ValueError, match=r"the metrics added are \[.*\] with seed 0 and \[.*\] with seed 1"
        ):
            peer.Traces(pair)
    assert "largest" in peer.Traces([of(1, 0), of(1, 1)]).mean
    with pytest.raises(
        ValueError,
        match="metric 'largest' computes something else for other than for one: rename it",
    ):
        peer.Comparison({"one": peer.Traces([of(1, 0)]), "other": peer.Traces([of(2, 0)])})
    mixed = peer.Comparison({"one": peer.Traces([of(1, 0)]), "other": peer.Traces([of(None, 0)])})
    assert mixed.table["largest"].isna().tolist() == [False, True]


def test_without_tuning_the_defaults_are_named(problem):
    said = []
    found = peer.compare(
        ["dsgd", "d2[alpha=1,batch=1]", "gt-dsgd"],
        problem,
        RING,
        tune=False,
        note=said.append,
        **SHORT,
    )
    assert found["dsgd"][0].identity.method == str(peer.methods.dsgd())
    assert said == [
        "dsgd, gt-dsgd: parameters that are not given are the defaults; they are tuned for no problem"
    ]
    assert list(found.how.items()) == [
        ("dsgd", "the defaults: they are tuned for no problem"),
        ("d2[alpha=1,batch=1]", "given"),
        ("gt-dsgd", "the defaults: they are tuned for no problem"),
    ]


def test_the_first_command_shows_every_method_at_its_best():
    """Tuned, gt-hsgd is no worse than dsgd on digits; at its defaults it is behind."""
    network = peer.Network(peer.topology.exponential(20))
    losses = {}
    for partition, tune in (("uniform", True), ("uniform", False), ("label", True)):
        problem = peer.problems.logistic(peer.datasets.load("digits").partition(20, by=partition))
        found = peer.compare(
            ["dsgd", "gt-hsgd"], problem, network, epochs=10, record=1, seed=range(3), tune=tune
        )
        losses[partition, tune] = found.table["loss"].tolist()
    for partition in ("uniform", "label"):
        plain, ours = losses[partition, True]
        assert ours <= plain
    plain, ours = losses["uniform", False]
    assert ours > plain > 2 * losses["uniform", True][0]


def test_what_diverges_has_no_mean_and_does_not_win(problem):
    found = peer.compare({"wild": "dsgd[alpha=1e9,batch=1]", **GIVEN}, problem, RING, **SHORT)
    row = found.table.iloc[0]
    assert row["status"] == "diverged"
    assert math.isnan(row["loss"])
    assert found.best in GIVEN
    assert "| status |" in found.to_markdown()
    assert "| – |" in found.to_markdown()
    gone = peer.compare(["dsgd[alpha=1e9]", "d2[alpha=0.4,batch=1]"], problem, RING, **FEW)
    assert gone.table["status"].tolist() == ["diverged", "done"], (
        "no configuration ends, and others go on"
    )
    assert "diverged" in gone.how["dsgd[alpha=1e9]"]
    one = peer.compare({"wild": "dsgd[alpha=1e9,batch=1]"}, problem, RING, **SHORT | {"seed": 0})
    assert one.best is None
    assert one.table["loss"].iloc[0] > 1e3, "that of one seed is its last record"


def test_ctrl_c_returns_what_there_is(problem, tmp_path, monkeypatch):
    real = comparing.run

    def second(method, *arguments, **options):
        if method.name == "gt-dsgd":
            raise KeyboardInterrupt
        return real(method, *arguments, **options)

    monkeypatch.setattr(comparing, "run", second)
    part = peer.compare(GIVEN, problem, RING, out=tmp_path, **SHORT)
    assert (list(part), part.missing, part.is_interrupted) == (["plain"], ("ours",), True)
    assert "not run: ours" in repr(part)
    assert peer.Comparison.load(tmp_path).missing == ("ours",)
    none = peer.compare({"ours": GIVEN["ours"]}, problem, RING, **SHORT)
    assert (list(none), none.missing, none.best) == ([], ("ours",), None)
    monkeypatch.undo()
    whole = peer.compare(GIVEN, problem, RING, out=tmp_path, **SHORT)
    assert not whole.is_interrupted
    assert sorted(json.loads((tmp_path / "comparison.json").read_text())["methods"]) == [
        "ours",
        "plain",
    ]


def test_a_stream_has_steps():
    found = peer.compare(
        ["gt-dsgd[batch=1]", "dsgd[alpha=0.1,batch=1]"],
        small_streaming(),
        RING,
        steps=10,
        record=2,
        seed=range(2),
    )
    assert found.table["epoch"].isna().all()
    assert "epoch" not in found.to_markdown()
    assert found.figure().axes[0].get_xlabel() == "steps"


def test_names():
    one, two = peer.methods.dsgd(alpha=1), peer.methods.dsgd(alpha=2)
    assert list(comparing.named([one, two, "d2 "])) == [str(one), str(two), "d2"]
    assert compared.folders(["dsgd[alpha=0.5/(t+10)^2]", "dsgd[alpha=0.5/(t+10)/2]"]) != [
        "dsgd",
        "dsgd",
    ]
    assert len(set(compared.folders(["a b", "a/b", "a-b"], ["a-b"]))) == 3


def test_refusals(problem):
    def refused(message, methods, **options):
        with pytest.raises(ValueError, match=message):
            peer.compare(methods, problem, RING, **{**SHORT, **options})

    refused("methods = dsgd: give a list", "dsgd")
    refused("no methods to compare", [])
    refused("dsgd is given twice: leave one out", ["dsgd", "dsgd"])
    refused("a method is a int: give a Method", [3])
    refused("'' as the name of a method: give a text", {"": "dsgd"})
    refused("unknown method 'dgsd'", ["dgsd"])
    refused("seed = -1", ["dsgd"], seed=-1)
    refused("unknown argument of compare 'metric': did you mean 'metrics'", ["dsgd"], metric=[])
    refused("seed 1 is given twice", ["dsgd"], seed=[1, 1])
    refused("steps = None, epochs = None: give exactly one", ["dsgd"], steps=None)
    with pytest.raises(ValueError, match="d2 needs a symmetric weight matrix"):
        peer.compare(
            ["dsgd", "d2"], problem, peer.Network(peer.topology.directed_exponential(6)), **SHORT
        )


def test_ctrl_c_while_the_second_is_tuned_returns_the_first_and_goes_on(
    problem, tmp_path, monkeypatch
):
    real, calls = tuning.sweep, []

    def third(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    methods, options = ["dsgd", "gt-dsgd"], FEW | {"out": tmp_path, "budget": 24}
    whole = peer.compare(methods, problem, RING, **FEW | {"budget": 24})
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "sweep", third)
        part = peer.compare(methods, problem, RING, **options)
    assert (list(part), part.missing, part.is_interrupted) == (["dsgd"], ("gt-dsgd",), True)
    assert peer.Comparison.load(tmp_path).missing == ("gt-dsgd",)
    again = peer.compare(methods, problem, RING, **options)
    assert again.how == whole.how
    assert again.table["loss"].tolist() == pytest.approx(whole.table["loss"].tolist(), rel=1e-6)
    none = peer.compare(methods, problem, RING, progress=Spy(0), **FEW | {"out": tmp_path / "none"})
    assert (list(none), none.missing) == ([], ("dsgd", "gt-dsgd"))
    assert "gt-dsgd" in repr(none)
    assert (tmp_path / "none" / "comparison.json").exists()


def test_what_is_open_is_tuned_on_seeds_that_are_not_compared_and_said(problem):
    """Pairs of a function and its grid, names and selectors; what was tuned before and methods are run as they are."""

    said, seeds = [], [101, 3]
    before = peer.tune(
        ["dsgd[batch=1]", "gt-dsgd"], problem, RING, epochs=1, budget=12, fresh=(), seed=[7, 8]
    )
    with pytest.raises(ValueError, match=r"seed \[7\]: dsgd\[batch=1\] was tuned on it"):
        peer.compare(before, problem, RING, **FEW | {"seed": [7]})
    methods = [
        (by_hand, {"alpha": [1e-3, 0.5, 1e9]}),
        "d2[batch=1]",
        *before,
        peer.methods.d2(alpha=0.4),
    ]
    found = peer.compare(methods, problem, RING, note=said.append, **FEW | {"seed": seeds})
    assert list(found) == ["by_hand", "d2[batch=1]", "dsgd[batch=1]", "gt-dsgd", "d2"]
    assert (found.tuned["by_hand"].best, found["by_hand"][0].identity.method) == (
        {"alpha": 0.5},
        "by hand",
    )
    best = peer.run(by_hand(0.5), problem, RING, epochs=1, seed=3)
    assert found["by_hand"].of(3).table["loss"].iloc[-1] == pytest.approx(
        best.table["loss"].iloc[-1], rel=1e-6
    )
    assert set(found.tuned["by_hand"].table["seed"]) == {100, 102, 103}
    alone = peer.tune(
        "d2[batch=1]", problem, RING, epochs=1, budget=12, fresh=(), seed=[100, 102, 103]
    )
    assert found["d2[batch=1]"][0].identity.method == str(alone.method)
    assert [found.tuned[one.name] for one in before] == before
    assert [found[one.name][0].identity.method for one in before] == [
        str(one.method) for one in before
    ]
    assert found.how["d2"] == "given"
    assert found.table["selector"].iloc[0] == "by_hand[alpha=0.5]"
    assert found.table["configurations"].tolist()[-1] == 0
    protocol = found.protocol()
    for fact in (
        "100, 102, 103",
        "101, 3",
        "by_hand",
        alone.how,
        *(one.how for one in before),
        "95 %",
    ):
        assert fact in protocol
    assert "3 configurations" in found.how["by_hand"]
    assert all(found.how[name] in " ".join(said) for name in ("by_hand", "d2[batch=1]"))
    assert found.table["seeds"].tolist() == [2] * 5


def test_a_verdict_names_what_has_no_result_and_other_columns_are_stored(problem, tmp_path):
    methods = {"far": "dsgd[alpha=1e9,batch=1]", "near": "dsgd[alpha=0.4,batch=1]"}
    found = peer.compare(methods, problem, RING, **SHORT)
    assert found.verdict == "near ends best; without a result: far"
    assert "far ran" in found.protocol()
    options = FEW | {"by": "consensus", "out": tmp_path}
    closest = peer.compare(["dsgd[batch=1]"], problem, RING, **options)
    assert "by the smallest consensus" in closest.how["dsgd[batch=1]"]
    assert peer.Comparison.load(tmp_path).protocol() == closest.protocol()
    with pytest.raises(ValueError, match="unknown metric 'los'"):
        peer.compare(methods, problem, RING, by="los", **SHORT)


def test_one_bar_shows_the_whole_call_and_the_best_so_far(problem):
    class Bar:
        def __init__(self):
            self.labels, self.places, self.ends = [], [], 0

        def begin(self, label, total):
            self.labels.append(label)

        def update(self, step, loss):
            self.places.append((self.labels[-1], step, loss))

        def end(self):
            self.ends += 1

    bar = Bar()
    peer.compare(["dsgd", "gt-dsgd[batch=1]"], problem, RING, progress=bar, **FEW)
    assert bar.ends == 1
    steps = [step for _, step, _ in bar.places]
    assert steps == sorted(steps)
    assert list(dict.fromkeys(bar.labels)) == [
        "tuning dsgd (1 of 2)", "running dsgd (1 of 2)",
        "tuning gt-dsgd[batch=1] (2 of 2)", "running gt-dsgd[batch=1] (2 of 2)",
    ]  # fmt: skip
    for label in bar.labels:
        best = [loss for own, _, loss in bar.places if own == label and loss == loss]
        assert best == sorted(best, reverse=True)
