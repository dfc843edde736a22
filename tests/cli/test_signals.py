"""Signals: they wait for files that are written and for libraries that are loaded."""

from __future__ import annotations

import os
import signal
import time

import pytest

from peerdescent.cli import signals


def test_a_signal_waits_for_a_library_that_is_being_loaded(monkeypatch):
    """An exception in the middle of loading JAX can crash the interpreter."""
    loading = ["jax"]
    monkeypatch.setattr(signals, "_is_loading", lambda name: name in loading)

    def work():
        with signals.handled():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            loading.clear()
            time.sleep(60)  # until the signal

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not loading


def test_what_is_being_loaded():
    import jax

    assert not signals._is_loading("jax")
    assert not signals._is_loading("nothing of that name")
    jax.__spec__._initializing = True
    try:
        assert signals._is_loading("jax")
    finally:
        jax.__spec__._initializing = False
