"""The studies of faults and of the clock at a tiny scale."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from peerdescent.studies import faults
from pictures import colours


def test_faults(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "FAULTS", {"ideal": (), "4 bits": ("drop=0.6", "quantize=4")})
    done = faults.faults("digits", "tiny", tmp_path / "f", methods=["gt-dsgd"], progress=False)
    assert list(done) == ["ideal", "4 bits"]
    for what, study in done.items():
        slug = what.replace(" ", "-")
        table = pd.read_csv(tmp_path / "f" / f"{slug}.csv")
        assert table["line"].tolist() == ["gt-dsgd"]
        assert colours(tmp_path / "f" / f"{slug}.png") > 20
        assert table["epochs"].between(1.9, 2.1).all()
        assert (table["clock"] > 0).all()
        faulty = [trace for own in study.traces.values() for trace in own]
        assert len(faulty) == 2
        assert len({trace.identity.network for trace in faulty}) == 1
    bytes_sent = {what: study.table["bytes"] for what, study in done.items()}
    assert (bytes_sent["4 bits"] / bytes_sent["ideal"]).between(0.4 * 0.12, 0.4 * 0.16).all()
    assert (done["ideal"].table["times the ideal gap"] == 1).all()
    assert done["4 bits"].table["times the ideal gap"].max() > 2, "why compression needs feedback"
    again = faults.faults("digits", "tiny", tmp_path / "f", methods=["gt-dsgd"], progress=False)
    pd.testing.assert_frame_equal(again["4 bits"].table, done["4 bits"].table)


@pytest.mark.long
def test_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "BATCHES", (8,))
    study = faults.latency("digits", "tiny", tmp_path / "c", progress=False)
    table = pd.read_csv(tmp_path / "c" / "clock.csv")
    assert colours(tmp_path / "c" / "clock.png") > 20
    assert len(table) == 3 * len(faults.LATENCIES)
    times = study.table.set_index("line").to_numpy(float)
    assert np.isfinite(times).all()
    assert (np.diff(times, axis=1) > 0).all(), "more latency, more time"
    assert times[:, -1] == pytest.approx(10**0.5 * times[:, -2], rel=0.01), (
        "in the end latency is all"
    )
