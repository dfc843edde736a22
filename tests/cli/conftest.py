"""Fixtures that call the command line in this process, in an empty folder, and capture its output."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from peerdescent.cli.main import main

SMALL = ("--nodes", "4", "--steps", "40", "--record", "4")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def peer(capsys):
    """Call a command; returns its exit status and its output."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Answer(ended.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def refusal(peer):
    """Call a command that must fail with one line on standard error and exit status 2; returns that line."""

    def call(*arguments):
        answer = peer(*arguments)
        assert answer.code == 2
        assert answer.out == ""
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
        return answer.err

    return call


def trace(folder):
    return pd.read_csv(Path(folder) / "trace.csv")


def is_drawn(path):
    return np.asarray(Image.open(path).convert("L"), dtype=float).var() > 10
