"""The regression check of the benchmarks passes under noise and fails for a slow-down by a factor of two."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

import children

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.75, True), (0.5, False)])
def test_half_the_committed_ratio_fails(factor, passes, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    step = importlib.import_module("step")
    committed = json.loads((FOLDER / "results" / "step.json").read_text())
    for batch, names in step.TARGETS.items():
        for name in names:
            ratio = committed["batches"][str(batch)][name]["faster_than_numpy"]["of_best_times"]
            good, sentence = step.judge(batch, name, factor * ratio, committed)
            assert good is passes, sentence


@pytest.mark.parametrize(
    ("good", "others", "word"), [(True, 0.9, "ok"), (False, 0.9, "too busy"), (False, 0, "FAILED")]
)
def test_a_busy_machine_is_no_failure(good, others, word, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    assert importlib.import_module("step").outcome(good, others).startswith(word)


def test_the_work_of_other_programs_is_seen(monkeypatch):
    """A child that is busy for a while is another program, and this process is none."""
    monkeypatch.syspath_prepend(FOLDER)
    common = importlib.import_module("common")
    with children.spawn([sys.executable, "-c", "print(flush=True)\nwhile True: pass"]) as child:
        assert child.stdout.readline()
        others = common.Others()
        time.sleep(1)
        assert others.share > 0.3 / os.cpu_count()
    quiet = common.Others()
    end = time.process_time() + 1
    while time.process_time() < end:
        pass
    wall, busy, own = (now - then for now, then in zip(quiet._now(), quiet.start, strict=True))
    assert own >= 1
    assert quiet.share <= (busy - 0.9) / (wall * os.cpu_count()), "what this process used is not others'"
