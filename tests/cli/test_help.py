"""Help pages, and which modules they may import."""

import pytest
import typer

import children
import peerdescent
from peerdescent.cli.main import app

HEAVY = {"jax", "numpy", "pandas", "matplotlib", "networkx", "scipy", "sklearn", "torch"}


def commands():
    """The words of every command: run, compare, ..., theory constants, ..."""
    for name, command in typer.main.get_command(app).commands.items():
        yield from (
            ((name, inner) for inner in getattr(command, "commands", ()))
            if name == "theory"
            else [(name,)]
        )


COMMANDS = list(commands())


def test_help_loads_nothing_heavy():
    code = f"""
import sys
from peerdescent.cli.main import main
for words in ((), *{COMMANDS!r}):
    try:
        main([*words, "--help"])
    except SystemExit as ended:
        assert not ended.code, words
    loaded = {HEAVY!r} & set(sys.modules)
    assert not loaded, (words, loaded)
"""
    ran = children.python("-c", code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Usage: ") == len(COMMANDS) + 1


def test_an_experiment_is_imported_without_jax_or_typer():
    code = f"import sys, peerdescent.experiment; assert not {HEAVY | {'typer', 'rich'}!r} & set(sys.modules)"
    ran = children.python("-c", code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_examples_and_exit_status(peer, words):
    answer = peer(*words, "--help")
    assert answer.code == 0
    assert "Examples" in answer.out
    assert f"peerdescent {' '.join(words)}" in answer.out
    assert "Exit status: 0" in answer.out
    assert "<bool>" not in answer.out


def test_exit_status_of_a_run(peer):
    assert "1 diverged, 2 bad input, 3 another process is lost, 130 interrupted" in " ".join(
        peer("run", "--help").out.split()
    )


def test_help_shows_types_ranges_choices_and_defaults(peer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    lines = {
        line.split()[1]: " ".join(line.split()[2:-1])
        for line in peer("run", "--help").out.splitlines()
        if "--" in line
    }
    assert lines["--nodes"] == "<int> [x>=1] Number of nodes. [default: 20]"
    assert (
        lines["--strength"]
        == "<float> [x>=0] Weight of the regulariser. [default: the problem's own]"
    )
    assert lines["--precision"] == "<32|64> Bits of a number. [default: 32]"
    assert lines["--partition"].startswith(
        "<name> How nodes share the rows: uniform, label, shards, classes, dirichlet,"
    )
    assert lines["--scale"] == "--no-scale Scale columns to [0, 1]. [default: the set's own]"
    assert lines["--target"].startswith("<str> ")
    assert lines["--data-dir"].startswith("<dir> ")
    assert lines["--data"].startswith("<str> ")
    assert lines["--quiet"] == "No progress and no notes."


def test_no_command_shows_help_and_version(peer):
    assert "compare" in peer().out
    assert "<bool>" not in peer("--help").out
    assert peer("--version").out == f"peerdescent {peerdescent.__version__}\n"
    shown = peer("theory")
    assert shown.code == 0
    assert "table1" in shown.out
    assert shown.err == ""
