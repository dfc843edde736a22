"""The examples that train models in several processes: they run to their end, and leave a table and a figure."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
from ranks import group

FOLDER = Path(__file__).parents[2] / "examples"
NODES = 2
TEXT = [
    "gt-adam[alpha=0.003]",
    "adam*choco[alpha=0.003,compressor=top-k(0.05)]",
    "ddp[alpha=0.003]",
]
DIGITS = ["gt-hsgd[alpha=0.1,beta=0.3]", "gt-dsgd[alpha=0.1]", "ddp[alpha=0.1]"]


def example(name, *words):
    """Run an example as a program."""
    sys.argv = [name, *words]
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.mark.parametrize(
    ("name", "table", "length", "methods"),
    [
        pytest.param(
            "torch_text.py",
            "text.csv",
            ["--samples", "36", "--batch", "4"],
            TEXT,
            marks=pytest.mark.long,
        ),
        ("torch_mnist.py", "mnist.csv", ["--samples", "320", "--batch", "16"], DIGITS),
    ],
)
def test_examples_train_in_several_processes(name, table, length, methods, tmp_path, monkeypatch):
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    words = [*methods, *length, "--records", "1", "--out", str(tmp_path / "out")]
    with group(NODES, tmp_path, example, name, *words) as started:
        codes, said = started.wait(120)
    assert codes == [0] * NODES, said
    rows = pd.read_csv(tmp_path / "out" / table)
    assert list(rows["method"].unique()) == methods
    assert list(rows.groupby("method").size()) == [2] * len(methods)
    quality = "mean" if "mean" in rows else "loss"
    ends = rows.groupby("method")[[quality, "samples", "bytes"]].agg(["first", "last"])
    assert (ends[quality, "last"] < ends[quality, "first"]).all()
    assert (ends["samples", "last"] >= int(length[1])).all()
    assert (ends["bytes", "last"] > 0).all()
    assert (tmp_path / "out" / table).with_suffix(".png").stat().st_size > 10_000
    assert said[0].count("gt-") >= 1, "rank 0 prints the results"
    assert not any(text for text in said[1:])
