"""Curves of the best configurations: those of runs of their own, with a label and a folder."""

from __future__ import annotations

import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.sweeps import recording
from small import small_logistic

RING, STAR = (peer.Network(make(6)) for make in (peer.topology.ring, peer.topology.star))
GRID = {"alpha": [0.1, 0.4, 1e9, 0.2], "batch": [1]}
OPTIONS = {"steps": 9, "seed": [0, 3]}


def test_the_best_are_run_with_all_records(tmp_path):
    problem = small_logistic()
    table, curves = peer.sweep("dsgd", GRID, problem, RING, curves=2, out=tmp_path, **OPTIONS)
    assert list(curves) == ["alpha = 0.4", "alpha = 0.2"], (
        "the best first, and what diverged is none of them"
    )
    for label, alpha in (("alpha = 0.4", 0.4), ("alpha = 0.2", 0.2)):
        alone = peer.run(peer.methods.dsgd(alpha), problem, RING, **OPTIONS)
        pd.testing.assert_frame_equal(
            curves[label].table.drop(columns="seconds"),
            alone.table.drop(columns="seconds"),
            rtol=1e-6,
        )
        rows = table[table["alpha"] == alpha]
        assert [trace.table["loss"].iloc[-1] for trace in curves[label]] == pytest.approx(
            rows["loss"].tolist(), 1e-6
        )
    pd.testing.assert_frame_equal(
        table, peer.sweep("dsgd", GRID, problem, RING, **OPTIONS), rtol=1e-6
    )
    assert peer.figures.curves(curves).axes[0].get_legend_handles_labels()[1] == list(curves)
    stored = peer.Traces.load(tmp_path / "curves" / "alpha=0.4-batch=1")
    assert stored.seeds == (0, 3)


def test_the_best_of_each_setting():
    problem = small_logistic()
    _, curves = peer.sweep(
        "dsgd", {"alpha": [0.1, 0.4]}, problem, [RING, STAR], curves=1, **OPTIONS
    )
    assert list(curves) == ["network = ring, alpha = 0.4", "network = star, alpha = 0.4"]
    assert [own[0].identity.network.split(",")[0] for own in curves.values()] == [
        "Network(ring",
        "Network(star",
    ]


def test_ctrl_c(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "run", interrupted)
    table, curves = peer.sweep("dsgd", GRID, small_logistic(), RING, curves=2, **OPTIONS)
    assert curves == {}
    assert "interrupted" not in set(table["status"])


def test_refusals():
    with pytest.raises(ValueError, match="curves = 0: must be"):
        peer.sweep("dsgd", GRID, small_logistic(), RING, curves=0, **OPTIONS)
