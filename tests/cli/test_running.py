"""The commands `run` and `compare`."""

import json
import os
import pty
import re
import signal
import sys
import threading
import tomllib
from dataclasses import fields
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import children
import peerdescent
from cli.conftest import SMALL, is_drawn, trace
from peerdescent import files
from peerdescent.cli import console
from peerdescent.experiment import Options
from peerdescent.networks import spectra
from peerdescent.studies import comparing
from peerdescent.sweeps import sweeping
from small import unmeasured


def test_run_prints_a_table_and_a_closing_line(peer, tmp_path):
    answer = peer("run", "gt-hsgd[alpha=0.5]", *SMALL)
    assert answer.code == 0
    head = answer.out.splitlines()[0].split()
    assert " ".join(head) == "step epoch loss grad norm consensus gradients rounds bytes seconds"
    assert len(answer.out.splitlines()) == 2 + 5
    assert answer.err.startswith("done: loss 0.")
    assert "add --out DIR" in answer.err
    assert "\x1b" not in answer.out + answer.err
    assert not list(tmp_path.iterdir())


def test_long_traces_are_shortened_in_the_table_only(peer):
    table = peer("run", "dsgd", *SMALL[:4], "--record", "40").out
    assert len(table.splitlines()) == 2 + console.ROWS + 1
    assert (
        len(
            pd.read_csv(
                StringIO(peer("run", "dsgd", *SMALL[:4], "--record", "40", "--format", "csv").out)
            )
        )
        == 41
    )


def test_csv_and_json_can_be_piped(peer):
    as_csv = pd.read_csv(StringIO(peer("run", "dsgd", *SMALL, "--format", "csv").out))
    as_json = json.loads(peer("run", "dsgd", *SMALL, "--format", "json").out)
    assert as_json["method"] == "dsgd"
    assert as_json["status"] == "done"
    assert as_json["trace"][0]["tracking"] is None
    assert [row["loss"] for row in as_json["trace"]] == as_csv["loss"].tolist()
    assert as_csv["step"].tolist() == [0, 10, 20, 30, 40]


def test_quiet_says_nothing(peer):
    assert peer("run", "dsgd", *SMALL, "--quiet").err == ""


def test_any_cell_of_the_grid_runs(peer):
    answer = peer("run", "hybrid*exact-diffusion[alpha=0.5]", *SMALL, "--format", "csv")
    losses = pd.read_csv(StringIO(answer.out))["loss"]
    assert losses.iloc[-1] < losses.iloc[0]


@pytest.fixture
def _named_quickly(monkeypatch):
    """Lambda, which is estimated from many draws under faults, is only in names here."""
    monkeypatch.setattr(spectra, "estimated", unmeasured)


@pytest.mark.usefixtures("_named_quickly")
def test_every_option_reaches_the_run(peer):
    options = "--data digits --rows 400 --positive 1,2 --partition dirichlet --concentration 0.3 --strength 0.1"
    options += " --regulariser l2 --topology star --weights metropolis --nodes 5 --epochs 0.2 --seed 3 --data-seed 4"
    options += " --engine debug --precision 64 --record 3 --grid log --skip-stationarity --clock phones --format csv"
    options += (
        " --fault drop=0.2 --rounds 2 --accelerate --scale --no-normalise --problem svm --intercept"
    )
    tried = {
        word[2:].removeprefix("no-").replace("-", "_")
        for word in options.split()
        if word.startswith("--")
    }
    assert {field.name for field in fields(Options)} - tried == {
        "data_dir",
        "target",
        "groups",
        "each",
        "steps",
        "out",
        "force",
        "quiet",
        "budget",
        "by",
        "defaults",
        "stop",
        "test",
    }
    shown = pd.read_csv(StringIO(peer("run", "gt-hsgd[alpha=0.3]", *options.split()).out))

    data = peerdescent.datasets.load(
        "digits", rows=400, seed=4, positive=[1, 2], scale=True, normalise=False
    )
    partition = data.partition(5, by="dirichlet", concentration=0.3, seed=4)
    result = peerdescent.run(
        peerdescent.methods.gt_hsgd(alpha=0.3),
        peerdescent.problems.svm(partition, strength=0.1, regulariser="l2", intercept=True),
        peerdescent.Network(
            peerdescent.topology.star(5),
            "metropolis",
            faults=[peerdescent.faults.drop(0.2)],
            rounds=2,
            accelerate=True,
        ),
        epochs=0.2,
        seed=3,
        engine="debug",
        precision=64,
        record=peerdescent.Grid(3, "log", stationarity=False),
        progress=False,
        clock=peerdescent.clock("phones"),
    )
    expected = result.table.drop(columns="seconds")
    assert expected["stationarity"].isna().all()
    pd.testing.assert_frame_equal(shown.drop(columns="seconds"), expected, rtol=1e-12)


def test_a_run_folder(peer):
    answer = peer("run", "dsgd", *SMALL, "--out", "runs/a", "--strength", "1e-5")
    folder = Path("runs/a")
    assert "written to runs/a" in answer.err
    assert trace(folder)["step"].iloc[-1] == 40
    assert json.loads((folder / "summary.json").read_text())["status"] == "done"
    assert (folder / "checkpoint").is_dir()
    assert is_drawn(folder / "loss.png")
    written = tomllib.loads((folder / "config.toml").read_text())
    assert written["method"] == "dsgd"
    assert written["strength"] == 1e-5
    assert "out" not in written
    assert "epochs" not in written


def test_config_toml_reproduces_the_run(peer):
    options = (
        "--epochs",
        "2",
        "--nodes",
        "5",
        "--seed",
        "3",
        "--partition",
        "dirichlet",
        "--concentration",
        "0.3",
    )
    peer("run", "gt-dsgd[alpha=0.3]", *options, "--positive", "1,2", "--record", "5", "--out", "a")
    assert peer("run", "--config", "a/config.toml", "--out", "b").code == 0
    pd.testing.assert_frame_equal(
        trace("a").drop(columns="seconds"), trace("b").drop(columns="seconds"), check_exact=True
    )
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()


def test_resume_equals_an_unbroken_run(peer):
    peer("run", "gt-hsgd", *SMALL, "--out", "whole")
    peer("run", "gt-hsgd", *SMALL[:2], "--steps", "20", "--record", "2", "--out", "part")
    before = trace("part")
    assert len(before) == 3
    answer = peer("run", "--resume", "--out", "part", *SMALL[2:])
    assert answer.code == 0
    assert trace("part")["loss"].tolist() == trace("whole")["loss"].tolist()
    assert (
        trace("part")["seconds"].tolist()[:3] == before["seconds"].tolist()
    )  # the first part was not run again
    assert tomllib.loads(Path("part/config.toml").read_text())["steps"] == 40


def test_resume_keeps_its_own_options(peer):
    peer("run", "dsgd", *SMALL, "--out", "a")
    for changed in (("--seed", "1"), ("--strength", "1"), ("gt-dsgd",)):
        answer = peer("run", "--resume", "--out", "a", "--steps", "80", *changed)
        assert answer.code == 2
        assert "in a/config.toml: leave it out" in answer.err
    answer = peer("run", "--resume", "--out", "a")
    assert "nothing to resume: dsgd has all of its 40 steps" in answer.err
    assert answer.code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("run", "dsgd"),
        ("compare", "dsgd[alpha=0.4,batch=1]", "gt-dsgd[alpha=0.4,batch=1]", "--seed", "0"),
    ],
)
def test_a_refused_resume_changes_nothing(peer, words):
    peer(*words, *SMALL, "--out", "a")
    before = {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()}
    answer = peer(words[0], "--resume", "--out", "a", "--steps", "20")
    assert (answer.code, "has 40 steps, and 20 are asked for" in answer.err) == (2, True)
    assert {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()} == before
    assert peer(words[0], "--resume", "--out", "a").code == 0


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_diverged_run_says_so(peer, form):
    answer = peer("run", "dsgd[alpha=1e9]", *SMALL, "--out", "a", "--quiet", "--format", form)
    assert answer.code == 1
    assert answer.err.startswith("warning: diverged")
    assert json.loads(Path("a/summary.json").read_text())["status"] == "diverged"
    assert is_drawn("a/loss.png")


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(peer):
    rows = "\n".join(f"{i % 3},{1.7e9 + i % 5},{i % 2}" for i in range(40))
    Path("times.csv").write_text(f"a,b,label\n{rows}\n")
    answer = peer("run", "dsgd", *SMALL, "--data", "times.csv", "--target", "label")
    assert answer.code == 0
    assert answer.err.startswith("warning: times.csv: float32 cannot tell values of b apart")
    assert answer.err.splitlines()[1] == "times.csv: labels: -1 is 0; +1 is 1"
    assert answer.err.splitlines()[-1].startswith(
        "parameters of dsgd that are not given are the defaults, tuned for no"
    )
    assert len(answer.err.splitlines()) == 6


def test_ctrl_c_keeps_what_there_is():
    words = "-m peerdescent run dsgd --nodes 4 --steps 4000000 --record 40000 --out a"
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    terminal, end = pty.openpty()
    seen = b""
    with children.spawn([sys.executable, *words.split()], stderr=end, env=environment) as process:
        os.close(end)
        limit = threading.Timer(100, process.kill)  # then the reads below end, and the test fails
        limit.start()
        try:
            while not re.search(rb"[1-9]%", seen):  # the progress bar shows that the run has begun
                seen += os.read(terminal, 4096)
            os.kill(process.pid, signal.SIGINT)
            shown = process.stdout.read()
            while True:
                seen += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            pass
        finally:
            limit.cancel()
            os.close(terminal)
        assert process.wait(timeout=60) == 130, seen
    assert b"interrupted: loss 0." in seen
    assert b"continue with peerdescent run --resume --out a" in seen
    assert b"Traceback" not in seen
    assert b"compiling dsgd" in seen
    assert shown.split()[0] == "step"
    assert json.loads(Path("a/summary.json").read_text())["status"] == "interrupted"
    assert 0 < trace("a")["step"].iloc[-1] < 4_000_000
    assert is_drawn("a/loss.png")


# Compare


GIVEN = ("dsgd[alpha=0.4,batch=1]", "gt-dsgd[alpha=0.4,batch=1]")
TWO = (*SMALL, "--seed", "0-1")


def test_compare(peer):
    methods = ("gt-dsgd[alpha=0.5,batch=1]", "dsgd[alpha=0.1,batch=1]", "dsgd[alpha=0.5,batch=2]")
    answer = peer("compare", *methods, *SMALL, "--seed", "3,4", "--out", "c")
    assert answer.code == 0
    head, _, *rows, caption = answer.out.splitlines()
    columns = (
        "method epoch loss grad norm stationarity consensus gradients rounds bytes seconds status"
    )
    assert " ".join(head.split()) == columns
    assert "means over 2 seeds" in caption
    table = pd.read_csv("c/comparison.csv")
    assert table["method"].tolist() == list(methods)
    assert [row.count("*") for row in rows] == table["leads"].astype(int).tolist()
    assert all(" ± " in row for row in rows)
    names = ["gt-dsgd", "dsgd-alpha=0.1-batch=1", "dsgd-alpha=0.5-batch=2"]
    written = {"comparison.csv", "comparison.json", "comparison.png", "config.toml", files.MARK}
    assert {path.name for path in Path("c").iterdir()} == {*names} | written
    for name, mean in zip(names, table["loss"], strict=True):
        ends = [trace(f"c/{name}/seed-{seed}")["loss"].iloc[-1] for seed in (3, 4)]
        assert sum(ends) / 2 == pytest.approx(mean)
    assert is_drawn("c/comparison.png")
    again = peer("compare", "--config", "c/config.toml", "--format", "json")
    assert [row["loss"] for row in json.loads(again.out)] == table["loss"].tolist()
    assert peer("run", "--config", "c/gt-dsgd/seed-4/config.toml", "--out", "d").code == 0
    assert trace("d")["loss"].tolist() == pytest.approx(
        trace("c/gt-dsgd/seed-4")["loss"].tolist(), rel=1e-6
    )


def test_compare_chooses_what_is_not_given_and_says_so(peer):
    answer = peer("compare", "gt-dsgd[batch=1]", GIVEN[0], *TWO, "--out", "c")
    alpha, tried = re.search(r"alpha = (\d+).*of (\d+) configurations", answer.err).groups()
    assert "100, 101, 102" in answer.err
    assert 4 < int(tried) <= 150
    assert f"alpha={alpha}.0" in pd.read_csv("c/comparison.csv")["selector"][0]
    assert (
        f"alpha={alpha}.0"
        in tomllib.loads(Path("c/gt-dsgd/seed-0/config.toml").read_text())["method"]
    )
    page = peer("report", "c")
    assert f"of {tried} configurations" in Path(page.out.strip()).read_text(encoding="utf-8")
    plain = peer("compare", "gt-dsgd", GIVEN[0], *TWO, "--defaults", "--format", "csv")
    assert "gt-dsgd: parameters that are not given are the defaults" in plain.err
    assert "alpha=0.1" in pd.read_csv(StringIO(plain.out))["selector"][0]
    assert peer("compare", *GIVEN, *TWO, "--quiet").err == ""


def test_compare_goes_on_after_divergence(peer):
    answer = peer("compare", "dsgd[alpha=1e9,batch=1]", GIVEN[0], *TWO, "--format", "csv")
    assert answer.code == 0
    table = pd.read_csv(StringIO(answer.out))
    assert table["status"].tolist() == ["diverged", "done"]
    assert table["loss"].isna().tolist() == [True, False]
    assert "add --out DIR" in answer.err


@pytest.mark.parametrize("finished", [0, 1])
def test_compare_keeps_what_was_finished_before_an_interruption(peer, monkeypatch, finished):
    real, calls = comparing.run, []

    def run(*arguments, **options):
        calls.append(arguments)
        if len(calls) > finished:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "run", run)
        answer = peer("compare", *GIVEN, *TWO, "--out", "c", "--format", "csv")
    assert answer.code == 130
    assert len(calls) == finished + 1
    assert len(answer.out.splitlines()) == 2 * finished
    assert Path("c/comparison.png").exists() == bool(finished)
    assert "continue with peerdescent compare --resume --out c\n" in answer.err
    assert ("interrupted; continue" in answer.err) == (not finished)
    assert peer("compare", "--resume", "--out", "c").code == 0
    assert pd.read_csv("c/comparison.csv")["status"].tolist() == ["done", "done"]


@pytest.mark.parametrize("words", [("compare", "dsgd", "d2"), ("tune", "dsgd")])
def test_an_interrupted_search_says_so(peer, monkeypatch, words):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "wait", interrupted)
    answer = peer(*words, "--nodes", "4", "--epochs", "1", "--quiet")
    assert (answer.code, answer.out, answer.err) == (130, "", "interrupted\n")


def test_a_flag_beats_the_file(peer):
    Path("c.toml").write_text(
        'method = "gt-dsgd"\nnodes = 4\nepochs = 5\nrecord = 4\npositive = [1, 2]\nformat = "json"\n'
    )
    answer = json.loads(peer("run", "--config", "c.toml").out)
    assert answer["method"] == "gt-dsgd"
    assert answer["trace"][-1]["epoch"] == pytest.approx(5, abs=0.01)
    answer = json.loads(peer("run", "dsgd", "--config", "c.toml", "--steps", "40").out)
    assert answer["method"] == "dsgd"
    assert answer["trace"][-1]["step"] == 40
    assert peer("run", "--config", "c.toml", *SMALL[2:], "--format", "csv").out.startswith("step,")


# Folders


def test_a_second_comparison_leaves_nothing_of_the_first(peer):
    peer("compare", *GIVEN, *TWO, "--out", "c")
    Path("c/notes.txt").write_text("mine")
    Path("c/gt-dsgd/notes.txt").write_text("mine")
    peer("run", "d2", *SMALL, "--out", "c/mine")
    peer("compare", GIVEN[0], "d2[alpha=0.4,batch=1]", *SMALL, "--seed", "0", "--out", "c")
    assert {path.name for path in Path("c").iterdir() if path.is_dir()} == {
        "dsgd",
        "d2",
        "gt-dsgd",
        "mine",
    }
    assert [path.name for path in Path("c/gt-dsgd").iterdir()] == ["notes.txt"]
    assert [path.name for path in Path("c/dsgd").iterdir()] == ["seed-0"]
    assert Path("c/notes.txt").read_text() == "mine"
    assert peerdescent.Trace.load("c/mine").status == "done"
    answer = peer("run", "dsgd", *SMALL, "--out", "c")
    assert (
        answer.code,
        "c holds results of several methods: give another folder" in answer.err,
    ) == (2, True)
    answer = peer("compare", "dsgd", "d2", *SMALL, "--out", "c/mine")
    assert (answer.code, "c/mine holds a run: give another folder" in answer.err) == (2, True)


def test_compare_is_resumed(peer):
    methods = ("dsgd[batch=1]", GIVEN[1])
    peer(
        "compare",
        *methods,
        *SMALL[:2],
        "--steps",
        "20",
        "--record",
        "2",
        "--seed",
        "0-1",
        "--out",
        "c",
    )
    chosen = pd.read_csv("c/comparison.csv")["selector"]
    assert peer("compare", "--resume", "--out", "c", *SMALL[2:]).code == 0
    table = pd.read_csv("c/comparison.csv")
    assert table["selector"].tolist() == chosen.tolist(), "what was chosen for fewer steps is kept"
    assert table["seeds"].tolist() == [2, 2]
    peer("compare", *chosen, *TWO, "--out", "whole")
    for name in ("dsgd", "gt-dsgd"):
        for seed in (0, 1):
            both = [
                trace(f"{folder}/{name}/seed-{seed}")["loss"].tolist() for folder in ("c", "whole")
            ]
            assert both[0] == pytest.approx(both[1], rel=1e-6)
    answer = peer("compare", "--resume", "--out", "c", "--seed", "1")
    assert (answer.code, "seed" in answer.err) == (2, True), (
        "a comparison goes on with all of its seeds"
    )


@pytest.mark.parametrize("words", [("run", "dsgd"), ("compare", "dsgd", "d2"), ("tune", "dsgd")])
def test_folders_of_others_are_left_alone(peer, words):
    Path("mine").mkdir()
    Path("mine/config.toml").write_text("mine")
    answer = peer(*words, *SMALL[:2], "--epochs", "1", "--out", "mine")
    assert answer.code == 2
    assert (
        "mine has files that are not results of peerdescent (config.toml): give another folder, or --force"
        in answer.err
    )
    assert [path.name for path in Path("mine").iterdir()] == ["config.toml"]
    assert Path("mine/config.toml").read_text() == "mine"


def test_force(peer):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    assert peer("run", "dsgd", *SMALL, "--out", "mine", "--force").code == 0
    assert Path("mine/notes.txt").read_text() == "mine"
    assert peer("run", "dsgd", *SMALL, "--out", "mine").code == 0, "it is marked now"
    Path("mine.png").write_text("mine")
    for words in (("plot", "mine"), ("report", "mine"), ("network", "ring", "--nodes", "4")):
        answer = peer(*words, "--out", "mine.png")
        assert (answer.code, "give another name, or --force to replace it" in answer.err) == (
            2,
            True,
        )


def test_two_processes_do_not_share_a_folder(peer):
    words = "-m peerdescent run dsgd --nodes 4 --steps 400000000 --record 4 --out a --quiet"
    with children.spawn([sys.executable, *words.split()]) as process:
        children.until(lambda: list(Path().glob("a/checkpoint/step-*")))
        answer = peer("run", "dsgd", *SMALL, "--out", "a")
        assert answer.code == 2
        assert "another process works in a: wait for it, or give another folder" in answer.err
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGHUP)
        assert process.wait(timeout=60) == 130
    assert json.loads(Path("a/summary.json").read_text())["status"] == "interrupted"
    assert is_drawn("a/loss.png")


def test_results_are_written_before_they_are_shown(peer):
    full = os.open("/dev/full", os.O_WRONLY)
    words = f"-m peerdescent run dsgd {' '.join(SMALL)} --out a"
    with children.spawn([sys.executable, *words.split()], stdout=full) as process:
        process.communicate(timeout=60)
    os.close(full)
    assert json.loads(Path("a/summary.json").read_text())["status"] == "done"


@pytest.mark.usefixtures("_named_quickly")
def test_faults_are_options_and_part_of_what_a_run_is(peer, tmp_path):
    words = ["--topology", "ring", "--fault", "drop=0.5", "--fault", "noise=0.001", "--rounds", "2"]
    answer = peer("run", "gt-dsgd", *SMALL, *words, "--out", "a", "--quiet")
    assert answer.code == 0
    written = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert written["fault"] == ["drop=0.5", "noise=0.001"]
    assert written["rounds"] == 2
    whole = trace(tmp_path / "a")
    plain = peer("run", "gt-dsgd", *SMALL, "--topology", "ring", "--out", "b", "--quiet")
    assert plain.code == 0
    ideal = trace(tmp_path / "b")
    assert 0.8 < whole["bytes"].iloc[-1] / ideal["bytes"].iloc[-1] < 1.2, (
        "half of the messages, twice the rounds"
    )
    assert whole["rounds"].iloc[-1] == 2 * ideal["rounds"].iloc[-1]
    again = peer("run", "--config", "a/config.toml", "--out", "c", "--quiet")
    assert again.code == 0
    pd.testing.assert_frame_equal(
        trace(tmp_path / "c").drop(columns="seconds"), whole.drop(columns="seconds")
    )
    page = peer("report", ".")
    assert page.code == 0
    assert "drop=0.5" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--fault", "drop=2"], "probability of drop = 2.0: must be a probability in [0, 1)"),
        (["--fault", "drip=0.1"], "unknown fault 'drip': did you mean 'drop'?"),
        (["--fault", "drop"], "--fault drop: must be drop=probability[,one-way]"),
        (
            ["--topology", "directed-exponential", "--fault", "drop=0.1"],
            "cuts links in both directions",
        ),
        (["--accelerate"], "accelerate with --rounds 1: give two rounds or more"),
        (
            ["--weights", "push-pull"],
            "gt-dsgd needs a doubly stochastic W; exponential has push-pull weights",
        ),
    ],
)
def test_bad_faults(peer, words, reason):
    answer = peer("run", "gt-dsgd", *SMALL, *words)
    assert answer.code == 2
    assert reason in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_run_stops_by_rules_and_continues_without_what_it_met(peer):
    rules = ["--stop", "loss=0.6", "--stop", "patience=30"]
    answer = peer("run", "gt-dsgd[alpha=1]", *SMALL, *rules, "--record", "40", "--out", "a")
    assert answer.code == 0
    found = trace("a")
    assert found["loss"].iloc[-1] <= 0.6 < found["loss"].iloc[-2]
    assert "stopped: loss 0.5" in answer.err
    assert f"<= 0.6 at step {found['step'].iloc[-1]};" in answer.err
    assert tomllib.loads(Path("a/config.toml").read_text())["stop"] == ["loss=0.6", "patience=30"]
    assert peer("run", "--config", "a/config.toml", "--out", "b", "--quiet").code == 0
    pd.testing.assert_frame_equal(
        trace("b").drop(columns="seconds"), found.drop(columns="seconds"), check_exact=True
    )
    assert peer("run", "--resume", "--out", "a", "--stop", "loss=0.1", "--quiet").code == 0
    assert trace("a")["step"].iloc[-1] == 40
    peer(
        "compare",
        "dsgd[alpha=2,batch=1]",
        "gt-dsgd[alpha=2,batch=1]",
        *TWO,
        "--stop",
        "loss=0.6",
        "--out",
        "c",
    )
    table = pd.read_csv("c/comparison.csv")
    assert table["status"].tolist() == ["stopped", "stopped"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("lost=0.1", "unknown rule 'lost': did you mean 'loss'?"),
        ("loss", "--stop loss: must be loss=number, as in loss=0.2"),
        ("patience=2.5", "--stop patience=2.5: must be patience=whole number, as in patience=10"),
        ("seconds=-1", "seconds = -1.0: must be a positive number"),
        ("loss=nan", "target loss = nan: must be a number"),
    ],
)
def test_bad_rules(peer, rule, reason):
    answer = peer("run", "gt-dsgd", *SMALL, "--stop", rule)
    assert answer.code == 2
    assert reason in answer.err
    assert len(answer.err.splitlines()) == 1


def test_accuracy_on_rows_of_another_file(peer):
    rows = [f"{k % 7},{(3 * k) % 5},{'yes' if k % 7 > 3 else 'no'}" for k in range(60)]
    Path("train.csv").write_text("\n".join(["a,b,y", *rows[:40]]))
    Path("test.csv").write_text("\n".join(["a,b,y", *rows[40:]]))
    common = [
        "--data",
        "train.csv",
        "--test",
        "test.csv",
        "--target",
        "y",
        "--scale",
        "--intercept",
        "--nodes",
        "4",
    ]
    common += ["--steps", "60", "--record", "2", "--quiet"]
    assert peer("run", "gt-dsgd[alpha=4]", *common, "--out", "a").code == 0
    found = peerdescent.Trace.load("a")
    train = peerdescent.datasets.load("train.csv", target="y", scale=True)
    rows = peerdescent.datasets.load("test.csv", target="y", like=train)
    problem = peerdescent.problems.logistic(train.partition(4), intercept=True)
    scores = np.asarray(problem.predict(found.x_mean, rows.features))
    assert found.table["test accuracy"].iloc[-1] == np.mean((scores > 0) == (rows.labels > 0))
    assert f'test = "{Path("test.csv").absolute()}"' in Path("a/config.toml").read_text()
    again = peer("run", "--resume", "--out", "a", "--steps", "90", "--quiet")
    assert again.code == 0, again.err
    assert "test accuracy" in again.out
    shown = peer(
        "compare",
        "gt-dsgd[alpha=4,batch=1]",
        "dsgd[alpha=4,batch=1]",
        *common,
        "--seed",
        "0-1",
        "--out",
        "c",
    )
    assert shown.code == 0
    means = pd.read_csv("c/comparison.csv")["test accuracy"]
    assert all(f"{mean:.1%}" in shown.out for mean in means)
    refused = peer(
        "run",
        "dsgd",
        "--data",
        "train.csv",
        "--test",
        "test.csv",
        "--target",
        "y",
        "--nodes",
        "4",
        "--problem",
        "pca",
    )
    assert (
        f"--test {Path('test.csv').absolute()} has no meaning with --problem pca: leave it out"
        in refused.err
    )
