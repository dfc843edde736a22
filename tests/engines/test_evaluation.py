"""The evaluation of records in parts, and the cache of compiled programs on disk."""

from __future__ import annotations

import os

import jax
import numpy as np
import pandas as pd
import pytest

import children
import peerdescent as peer
from peerdescent.engines import compiled, stacked
from peerdescent.engines.disk_cache import remember
from peerdescent.runs.schedule import Grid
from small import small_logistic

RING = peer.Network(peer.topology.ring(6))
GT_HSGD = peer.methods.gt_hsgd(alpha=0.1, beta=0.1)


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_stationarity_can_be_left_out(engine):
    options = {"steps": 8, "engine": engine, "precision": 64}
    full = peer.run(GT_HSGD, small_logistic(), RING, record=Grid(2), **options).table
    bare = peer.run(
        GT_HSGD, small_logistic(), RING, record=Grid(2, stationarity=False), **options
    ).table
    assert full["stationarity"].notna().all()
    assert bare["stationarity"].isna().all()
    timeless = [c for c in full.columns if c not in ("stationarity", "seconds")]
    pd.testing.assert_frame_equal(full[timeless], bare[timeless], rtol=1e-12)


def test_evaluation_by_parts_changes_nothing(monkeypatch):
    problem, points = (
        small_logistic(),
        np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32),
    )
    values, grads = stacked.Stacked(GT_HSGD, problem, RING, 0, np.float32).evaluate(points)
    compiled.evaluate.clear_cache()
    monkeypatch.setattr(compiled, "EVALUATED_AT_ONCE", 2 * 11)  # two points at a time of seven
    parts = stacked.Stacked(GT_HSGD, problem, RING, 0, np.float32).evaluate(points)
    compiled.evaluate.clear_cache()
    np.testing.assert_allclose(parts[0], values, rtol=1e-6)
    np.testing.assert_allclose(parts[1], grads, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values, [problem.loss(p) for p in points], rtol=1e-6)
    np.testing.assert_allclose(grads, [problem.grad(p) for p in points], rtol=1e-4, atol=1e-6)


def test_compiled_programs_are_kept_on_disk_between_processes(tmp_path):
    script = (
        "import jax, peerdescent as peer\n"
        "from peerdescent.engines.disk_cache import remember\n"
        "remember()\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)  # how quick it is does not matter here\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if 'cache_hit' in name else None)\n"
        "data = peer.datasets.synthetic(60, 5)\n"
        "network = peer.Network(peer.topology.ring(6))\n"
        "peer.run(peer.methods.gt_hsgd(), peer.problems.logistic(data.partition(6)), network, steps=5)\n"
        "print(len(hits))\n"
    )
    # Programs that compile quickly are not kept, so these are compiled as for a user.
    environment = os.environ | {
        "PEERDESCENT_CACHE": str(tmp_path),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "false",
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    first, second = (int(children.python("-c", script, env=environment).stdout) for _ in range(2))
    assert first == 0
    assert second >= 3, "the start, the interval and the evaluation come from the disk"
    # What another process has written in part only is compiled again, without a word.
    for entry in (tmp_path / "compiled").iterdir():
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    third = children.python("-W", "error", "-c", script, env=environment)
    assert third.returncode == 0, third.stderr


def test_the_cache_of_programs_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path / "none"))
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        jax.config.update("jax_compilation_cache_dir", None)
        remember()
        assert not (tmp_path / "none").exists()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", before)
