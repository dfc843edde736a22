"""The regression check of the benchmarks passes under noise and fails for a slow-down by a factor of two."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

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
