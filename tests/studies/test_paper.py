"""The paper's experiments at a tiny scale: they run, their files are there, and nothing is computed twice."""

from __future__ import annotations

import dataclasses
import json
import os
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.cli.main import main
from peerdescent.problems import Optimum
from peerdescent.studies import gradients, paper
from pictures import colours

DATA = os.environ.get("PEERDESCENT_DATA")


def command(*arguments):
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--quiet"])
    assert left.value.code == 0


def check_files(folder, what, lines):
    table = pd.read_csv(folder / f"{what}.csv")
    assert table["line"].tolist() == lines
    assert table["loss@2"].between(0, 2).all()
    assert (table["deviation@2"] > 0).all()
    assert (folder / f"{what}.pdf").read_bytes().startswith(b"%PDF")
    ElementTree.parse(folder / f"{what}.svg")
    for picture in folder.rglob("*.png"):
        assert colours(picture) > 20, f"{picture} is blank"
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    best = json.loads((folder / "optimum.json").read_text())["value"]
    assert best < table["loss@2"].min()
    return table


def test_lambda_and_table2(capsys, tmp_path, monkeypatch):
    found = paper.lambdas()
    assert (found["lambda"] - found["paper"]).abs().max() < 0.006
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path))
    monkeypatch.setattr("peerdescent.datasets.formats.read_openml", _no_network)
    command("reproduce", "lambda", "--format", "csv")
    assert len(capsys.readouterr().out.splitlines()) == 5
    missing = paper.table2()
    assert missing["loaded"].str.startswith("missing").all()


def _no_network(*_):
    raise OSError("no network")


@pytest.mark.skipif(not DATA, reason="PEERDESCENT_DATA is not set: no files of the named sets here")
@pytest.mark.long
def test_table2_of_what_is_there():
    table = paper.table2(DATA).set_index("data")
    for name in ("a9a", "covertype"):
        assert table.loc[name, "loaded"] == table.loc[name, "paper"]


def test_figure1(tmp_path, monkeypatch):
    command("reproduce", "figure1", "--data", "digits", "--scale", "tiny", "--out", str(tmp_path))
    table = check_files(
        tmp_path, "figure1", ["gt-hsgd-strict", "gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo"]
    )
    assert "batch=1," in table["method"][0]
    # The numbers are those of the run folders, whose files give the same runs again.
    folder = tmp_path / "runs" / "gt-dsgd" / "seed-2"
    ends = [
        peer.Trace.load(tmp_path / "runs" / "gt-dsgd" / f"seed-{k}").table["loss"].iloc[-1]
        for k in (1, 2)
    ]
    assert table["loss@2"][2] == pytest.approx(np.mean(ends))
    assert table["deviation@2"][2] == pytest.approx(np.std(ends, ddof=1))
    command("run", "--config", str(folder / "config.toml"), "--out", str(tmp_path / "again"))
    again = pd.read_csv(tmp_path / "again" / "trace.csv")
    assert again["loss"].iloc[-1] == pytest.approx(ends[1], rel=1e-6)

    def fail(*_, **__):
        raise AssertionError("computed twice")

    monkeypatch.setattr("peerdescent.engines.stacked.Stacked.advance", fail)
    monkeypatch.setattr("peerdescent.engines.fleet.Fleet.follow", fail)
    monkeypatch.setattr(paper, "optimum", fail)
    # Pictures and page are made again, which takes its time and was seen above.
    monkeypatch.setattr(paper.figures, "save", lambda *_, **__: None)
    monkeypatch.setattr(paper.report, "write", lambda folder: folder / "report.html")
    (tmp_path / "figure1.csv").unlink()
    command("reproduce", "figure1", "--data", "digits", "--scale", "tiny", "--out", str(tmp_path))
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "figure1.csv"), table)
    # A run on other data of the same name is not taken for one of these.
    known = peer.Trace.load(folder)
    dataclasses.replace(
        known, identity=dataclasses.replace(known.identity, values="00000000")
    ).save(folder, force=True)
    with pytest.raises(
        ValueError,
        match=r"values is .* here and was '00000000' in the earlier run; give another folder",
    ):
        paper.figure1("digits", "tiny", tmp_path)


def test_the_tuning_may_be_as_long_as_the_runs(tmp_path, monkeypatch):
    asked = []

    def tune(*_, epochs, **__):
        asked.append(epochs)
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "tune", tune)
    for more in ([], ["--tuning", "100"]):
        with pytest.raises(SystemExit):
            main(
                [
                    "reproduce",
                    "figure1",
                    "--data",
                    "digits",
                    "--out",
                    str(tmp_path),
                    "--quiet",
                    *more,
                ]
            )
    assert asked == [30, 100]
    with pytest.raises(ValueError, match="tuning = 101: must be positive, and at most 100 epochs"):
        paper.figure1("digits", "quick", tmp_path, tuning=101)


@pytest.mark.parametrize("what", ["figure1", "figure2", "heterogeneity"])
def test_the_figures_take_n_and_r(what, tmp_path, monkeypatch):
    asked = []

    def tune(method, problem, network, **_):
        asked.append((problem.nodes, network.n, problem.about["strength"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "tune", tune)
    for more in ([], ["--nodes", "8", "--strength", "0.01"]):
        with pytest.raises(SystemExit):
            main(["reproduce", what, "--data", "digits", "--out", str(tmp_path), "--quiet", *more])
    assert asked == [(20, 20, 1e-4), (8, 8, 0.01)]


def test_a_heat_map_has_the_step_size_and_the_first_other_parameter_that_varies():
    table = pd.DataFrame(
        {"eta": [1.0, 2.0], "alpha": [0.5, 0.25], "kappa": [0.1, 0.1], "batch": [1, 1]}
    )
    assert paper._axes("d-pd-sgd", table) == ("eta", "alpha")
    assert paper._axes("d-pd-sgd", table.assign(batch=[1, 16])) == ("eta", "batch")
    tuned = pd.DataFrame(
        {"alpha": [1.0, 2.0], "beta": [0.1, 0.1], "batch": [1, 1], "initial_batch": [1, 64]}
    )
    assert paper._axes("gt-hsgd", tuned) == ("alpha", "initial_batch")


@pytest.mark.long
def test_figure2_uses_one_set_of_parameters_on_four_graphs(tmp_path):
    command("reproduce", "figure2", "--data", "digits", "--scale", "tiny", "--out", str(tmp_path))
    lines = [
        "ring, λ = 0.98",
        "exponential, λ = 0.75",
        "directed-exponential, λ = 0.67",
        "complete, λ = 0.00",
    ]
    table = check_files(tmp_path, "figure2", lines)
    assert table["method"].nunique() == 1
    networks = {
        json.loads(file.read_text())["network"].split(",")[0]
        for file in (tmp_path / "runs").rglob("summary.json")
    }
    assert len(networks) == 4


BEYOND = set(list(peer.methods.METHODS)[8:])
"""Named methods that the paper does not have."""


@pytest.mark.long
def test_heterogeneity_has_all_methods_on_three_partitions(tmp_path, monkeypatch):
    assert {selector.partition("[")[0] for selector in paper.EVERYONE.values()} == set(
        peer.methods.METHODS
    ) - BEYOND
    # One method is enough to see the rest of it; its programs are those of figure 1.
    monkeypatch.setattr(paper, "EVERYONE", {"gt-dsgd": "gt-dsgd"})
    command(
        "reproduce", "heterogeneity", "--data", "digits", "--scale", "tiny", "--out", str(tmp_path)
    )
    for name in ("uniform", "dirichlet-0.1", "label"):
        check_files(tmp_path / name, "heterogeneity", ["gt-dsgd"])
    skew = {
        name: (tmp_path / name / "runs" / "gt-dsgd" / "seed-1" / "config.toml").read_text()
        for name in ("uniform", "dirichlet-0.1", "label")
    }
    assert 'partition = "label"' in skew["label"]
    assert "concentration = 0.1" in skew["dirichlet-0.1"]


def test_all_takes_stand_ins_under_their_own_names(tmp_path, monkeypatch, capsys):
    asked = []

    def study(what):
        def run(data, *, out, **_):
            asked.append((what, data, str(out.relative_to(tmp_path))))
            found = paper.Study(pd.DataFrame({"line": [data]}), {}, 0.0, out)
            return {"uniform": found} if what == "heterogeneity" else found

        return run

    def load(name, _):
        if name in paper.STAND_INS:
            raise ValueError(f"no {name} here")

    def needed(what):
        def measure(*, out, **_):
            asked.append((what, "", str(out.relative_to(tmp_path))))
            return gradients.Needed(pd.DataFrame({"topology": ["ring"]}), None, pd.DataFrame())

        return measure

    for what in ("figure1", "figure2", "heterogeneity"):
        monkeypatch.setattr(paper, what, study(what))
    for what, name in (("speedup", "speedup"), ("topology", "independence")):
        monkeypatch.setattr(gradients, name, needed(what))
    monkeypatch.setattr(paper, "load", load)
    monkeypatch.setattr(paper, "table2", lambda _: pd.DataFrame({"data": ["a9a"]}))
    command("reproduce", "all", "--out", str(tmp_path))
    names = ["a9a", "covertype", "synthetic-75000x477", "synthetic-100000x50"]
    figures = [(what, name, f"{what}-{name}") for name in names for what in ("figure1", "figure2")]
    theory = [("speedup", "", "speedup"), ("topology", "", "topology")]
    assert asked == [*theory, *figures, ("heterogeneity", "a9a", "heterogeneity-a9a")]
    assert "no kdd98 here; synthetic-75000x477 takes its place" in " ".join(
        capsys.readouterr().err.split()
    )


def test_losses_are_read_at_the_nearest_record_and_not_without_a_seed():
    table = pd.DataFrame({"epoch": [0.0, 4.0, 5.01, 6.0], "loss": [4.0, 3.0, 2.0, 1.0]})
    whole = peer.Trace(table, np.zeros((2, 1)), np.zeros(1), peer.Status.done, identity=None)
    assert paper._loss_at(whole, 5) == 2.0
    gone = dataclasses.replace(whole, status=peer.Status.diverged)
    assert np.isnan(paper._loss_at(gone, 10))


def test_the_optimum_is_that_of_the_problem_and_of_the_search(tmp_path, monkeypatch):
    def found(features, starts=1):
        data = peer.datasets.synthetic(60, features)
        return paper.smallest(peer.problems.logistic(data.partition(3)), starts, tmp_path, print)

    first, second = found(3), found(4)
    assert first != second
    assert json.loads((tmp_path / "optimum.json").read_text())["value"] == second
    monkeypatch.setattr(paper, "optimum", lambda _, starts: Optimum(-starts, None, 0.0, ()))
    assert found(4) == second
    assert found(4, starts=2) == -2  # a longer search may find more


def test_refusals(capsys, tmp_path):
    for arguments, reason in [
        (["figure3"], "unknown study 'figure3'"),
        (["figure1", "--scale", "huge"], "unknown scale 'huge'"),
        (["figure1", "--data", "nothing"], "unknown data set 'nothing'"),
        (["figure1", "--out", str(tmp_path / "file")], "is a file"),
    ]:
        (tmp_path / "file").touch()
        with pytest.raises(SystemExit) as left:
            main(["reproduce", *arguments])
        assert left.value.code == 2
        assert reason in " ".join(capsys.readouterr().err.split())
