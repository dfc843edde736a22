"""The programs that benchmarks time compute the same, and a table of times says what has become slower."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def step(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("step")


def test_all_timed_programs_compute_the_same_step(step):
    problem, network = step.setting()
    for batch in step.TARGETS:
        step.check_equal(problem, network, batch)


def test_what_is_slower_than_in_the_committed_table_is_named(step):
    before = json.loads((FOLDER / "results" / "step.json").read_text())["batches"]
    now = copy.deepcopy(before)
    assert step.slower(now, before) == []
    now["32"]["sweep"]["faster_than_numpy"]["of_best_times"] /= 2
    (line,) = step.slower(now, before)
    assert "batch 32, peerdescent, sweep" in line
