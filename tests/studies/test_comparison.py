"""The study of all named methods at a tiny scale: its tables, its figures, and work that is divided by method."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from peerdescent import figures
from peerdescent.cli.main import main
from peerdescent.studies import comparison
from pictures import colours

SOME = ("dsgd", "choco-sgd", "proxskip")


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """The work of two processes, one after the other, and the whole of it."""
    out = tmp_path_factory.mktemp("zoo") / "z"
    first = comparison.zoo("digits", "tiny", out, methods=SOME[1:], draw=False, progress=False)
    assert list(first.traces) == list(SOME[1:])
    assert not list(out.glob("*.png"))
    return out, comparison.zoo("digits", "tiny", out, methods=SOME[:1], progress=False)


@pytest.mark.long
def test_methods_of_earlier_calls_are_kept(divided):
    out, second = divided
    assert list(second.traces) == ["dsgd"]
    table = pd.read_csv(out / "zoo.csv")
    pd.testing.assert_frame_equal(second.table, table)
    assert table["line"].tolist() == list(SOME)
    assert table["purpose"].tolist() == ["ideal links", "few bytes", "few rounds"]
    assert table["settings"].tolist() == [8, 16, 8]
    assert table["epoch"].between(1.9, 2.01).all()
    drawn = {path.stem for path in out.glob("*.png")}
    assert drawn == {*SOME, "all"}
    assert all(colours(out / f"{name}.png") > 20 for name in drawn)


def test_tables_are_those_of_the_traces(divided, monkeypatch):
    out, _ = divided

    def fail(*_, **__):
        raise AssertionError("computed twice")

    for place in ("stacked.Stacked.advance", "fleet.Fleet.follow"):
        monkeypatch.setattr(f"peerdescent.engines.{place}", fail)
    study = comparison.zoo("digits", "tiny", out, methods=SOME, draw=False, progress=False)
    curves = pd.read_csv(out / "curves.csv").set_index("line")
    for name, row in study.table.set_index("line").iterrows():
        ends = [trace.table.iloc[-1] for trace in study.traces[name]]
        assert row["gap"] == pytest.approx(np.mean([end["loss"] for end in ends]) - study.optimum)
        assert row["bytes"] == pytest.approx(np.mean([end["bytes"] for end in ends]))
        own = curves.loc[name]
        assert own["gap"].iloc[-1] == pytest.approx(row["gap"], rel=1e-5)
        assert own["point"].tolist() == list(range(len(own)))
        assert len(own) <= comparison.POINTS + 1
        assert (own["low"] <= own["gap"] * (1 + 1e-5)).all()
        assert (own["gap"] <= own["high"] * (1 + 1e-5)).all()


def test_another_problem_is_not_mixed_in(divided):
    out, _ = divided
    with pytest.raises(ValueError, match="is about something else"):
        comparison.zoo("digits", "tiny", out, methods=["dsgd"], tuning=2, progress=False)
    with pytest.raises(ValueError, match="unknown method 'dsgx'"):
        comparison.zoo("digits", "tiny", out, methods=["dsgx"])


def test_methods_that_cannot_run_are_left_out(tmp_path, monkeypatch):
    notes, begin = [], comparison.begin
    monkeypatch.setattr(
        comparison, "begin", lambda *a, **how: begin(*a, **how).on(topology="directed-exponential")
    )
    with pytest.raises(
        ValueError, match="none of these methods can run on directed-exponential: led"
    ):
        comparison.zoo("digits", "tiny", tmp_path / "z", methods=["led"], note=notes.append)
    assert any(
        note.startswith("led is left out: led needs a symmetric weight matrix") for note in notes
    )


def test_the_command(tmp_path, monkeypatch, capsys):
    asked = []

    def zoo(data, **how):
        asked.append((data, how["scale"], how["out"]))
        return comparison.Study(pd.DataFrame({"line": ["dsgd"], "gap": [0.5]}), {}, 0.0, tmp_path)

    monkeypatch.setattr(comparison, "zoo", zoo)
    with pytest.raises(SystemExit) as left:
        main(
            [
                "reproduce",
                "zoo",
                "--data",
                "digits",
                "--scale",
                "tiny",
                "--out",
                str(tmp_path / "z"),
                "--quiet",
            ]
        )
    assert left.value.code == 0
    assert asked == [("digits", "tiny", tmp_path / "z")]
    assert "dsgd" in capsys.readouterr().out


def test_a_figure_refuses_what_it_cannot_draw():
    points = pd.DataFrame(
        {"line": ["a"], "epoch": [1.0], "bytes": [8.0], "gap": [0.5], "low": [0.4], "high": [0.6]}
    )
    with pytest.raises(ValueError, match="unknown line 'b'"):
        figures.highlighted(points, "b")
    with pytest.raises(ValueError, match="the curves have no bytes, gap"):
        figures.highlighted(points[["line", "epoch", "low", "high"]], "a")
    with pytest.raises(ValueError, match="no curves to draw"):
        figures.ranked(points.iloc[:0], pd.Series(dtype=str))
