"""The command `tune`, and `report` and `plot` of the results of `tune` and `run`."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest

from peerdescent import methods
from peerdescent.cli.main import main

SMALL = ["--data", "digits", "--nodes", "4", "--epochs", "1", "--quiet"]


def command(*arguments, code=0):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert left.value.code == code


def test_tune_shows_the_winners_and_keeps_the_tables(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text(
        "alpha = [0.5, 4]\n[gt-hsgd]\nalpha = [4]\nbeta = [0.1, 0.2]\ninitial_batch = [8]\n"
    )
    out = str(tmp_path / "tuned")
    arguments = [
        "gt-dsgd",
        "gt-hsgd[batch=2]",
        "--grid",
        str(grid),
        "--fresh",
        "0-1",
        "--format",
        "csv",
        "--out",
        out,
    ]
    command("tune", *arguments, *SMALL)
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert table["method"].str.startswith(("gt-dsgd[alpha=4", "gt-hsgd[batch=2,alpha=4")).all()
    assert table["configurations"].tolist() == [2, 2]
    assert (table["deviation"] > 0).all()
    for name in ("gt-dsgd", "gt-hsgd[batch=2]"):
        assert sorted(set(pd.read_csv(tmp_path / "tuned" / name / "sweep.csv")["seed"])) == [
            100,
            101,
            102,
        ]
        assert json.loads((tmp_path / "tuned" / name / "tuned.json").read_text())["by"] == "loss"
    place = str(tmp_path / "tuned" / "gt-hsgd[batch=2]")
    command("plot", place, "--heatmap", "alpha,beta", "--out", str(tmp_path / "heat.png"))
    command("report", str(tmp_path / "tuned"))
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "tuned" / "report.html")
    assert "λ = 0" in (tmp_path / "tuned" / "report.html").read_text(encoding="utf-8"), (
        "the network is not drawn"
    )


def test_a_grid_file_must_have_something_for_the_method(capsys, tmp_path):
    for text, reason in (
        ("[gt-dsgd]\nalpha = [1]\n", "has nothing for dsgd"),
        ("alpha = [[1]]\n", "give numbers"),
    ):
        (tmp_path / "grid.toml").write_text(text)
        command("tune", "dsgd", "--grid", str(tmp_path / "grid.toml"), *SMALL, code=2)
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "text", "winners"),
    [
        (
            "dsgd[alpha=0.5*cosine(100)]",
            '"alpha.scale" = [0.1, 1]',
            {"alpha.scale=0.1", "alpha.scale=1"},
        ),
        ("dsgd", 'alpha = ["cosine(9)", "1/(t+9)"]', {"alpha=cosine(9)", "alpha=1/(t+9)"}),
        ("choco-sgd", 'alpha = [0.1]\n[choco-sgd]\ncompressor = "sign"', {"compressor=sign"}),
    ],
)
def test_a_grid_file_may_have_schedules_their_numbers_and_compressors(
    method, text, winners, capsys, tmp_path
):
    (tmp_path / "grid.toml").write_text(text)
    options = ["--seed", "7", "--fresh", "none", "--format", "json", *SMALL]
    command("tune", method, "--grid", str(tmp_path / "grid.toml"), *options)
    [found] = json.loads(capsys.readouterr().out)
    assert any(winner in found["method"] for winner in winners), found
    assert methods.parse(found["method"])


def test_tune_by_name_within_a_budget(capsys):
    loud = [flag for flag in SMALL if flag != "--quiet"]
    command(
        "tune",
        "dsgd",
        "--budget",
        "7",
        "--seed",
        "7,9",
        "--fresh",
        "none",
        "--format",
        "json",
        *loud,
    )
    shown = capsys.readouterr()
    [found] = json.loads(shown.out)
    assert found["configurations"] == 3
    assert found["fresh_loss"] is None
    assert "the budget is spent" in shown.err


def test_plot_draws_the_runs_of_a_folder(tmp_path, capsys):
    for seed in ("1", "2"):
        command(
            "run",
            "dsgd",
            *SMALL,
            "--seed",
            seed,
            "--data-seed",
            "0",
            "--out",
            str(tmp_path / f"seed-{seed}"),
        )
    for x in ("epoch", "rounds", "bytes", "seconds"):
        command("plot", str(tmp_path), "--x", x, "--out", str(tmp_path / f"{x}.svg"))
        assert (tmp_path / f"{x}.svg").stat().st_size > 5000
    capsys.readouterr()


def test_a_table_for_one_method_adds_to_what_is_for_all(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text("alpha = [0.5, 4]\nbatch = [1, 2]\n[gt-hsgd]\nbeta = [0.1, 0.2]\nbatch = [4]\n")
    out = str(tmp_path / "out")
    command(
        "tune",
        "dsgd",
        "gt-hsgd",
        "--grid",
        str(grid),
        "--seed",
        "7",
        "--fresh",
        "none",
        "--out",
        out,
        *SMALL,
    )
    tables = [pd.read_csv(tmp_path / "out" / name / "sweep.csv") for name in ("dsgd", "gt-hsgd")]
    assert [len(table) for table in tables] == [4, 4]
    assert set(tables[1]["batch"]) == {4}
    grid.write_text("alpah = [0.5, 4]\n[gt-hsgd]\nbeta = [0.1]\n")
    command("tune", "dsgd", "gt-hsgd", "--grid", str(grid), *SMALL, code=2)
    assert "unknown parameter in" in capsys.readouterr().err


def test_tune_all_leaves_out_what_cannot_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        methods, "METHODS", {name: methods.METHODS[name] for name in ("dsgd", "d2", "push-pull")}
    )
    (tmp_path / "grid.toml").write_text("alpha = [1, 4]\n")
    loud = [flag for flag in SMALL if flag != "--quiet"]
    words = [
        "--topology",
        "directed-exponential",
        "--grid",
        str(tmp_path / "grid.toml"),
        "--fresh",
        "none",
    ]
    command("tune", "all", *words, "--format", "csv", "--out", str(tmp_path / "all"), *loud)
    shown = capsys.readouterr()
    found = pd.read_csv(io.StringIO(shown.out))["method"]
    assert found.str.partition("[")[0].tolist() == ["dsgd", "push-pull"]
    assert "left out: d2 needs a symmetric weight matrix" in shown.err
    assert {path.name for path in (tmp_path / "all").iterdir() if path.is_dir()} == {
        "dsgd",
        "push-pull",
    }
    monkeypatch.setattr(methods, "METHODS", {"d2": methods.METHODS["d2"]})
    command("tune", "all", *words, *SMALL, code=2)
    assert "d2 needs a symmetric weight matrix" in capsys.readouterr().err, "nothing is left"
    command("tune", "all", "dsgd", *SMALL, code=2)
    assert "give no other beside it" in capsys.readouterr().err
