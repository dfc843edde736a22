"""Training goes on when a process is killed or stopped, and takes it in when it comes back."""

from __future__ import annotations

import pytest

import children


@pytest.mark.parametrize("kinds", [("kill", "kill-back"), ("stop", "stop-back", "apart")], ids="-".join)
def test_the_others_go_on(kinds):
    script = children.TESTS.parent / "experiments" / "losses.py"
    done = children.python(script, *kinds, "--steps", "150", limit=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[: len(kinds)]] == list(kinds)
    assert lines[-1] == "0 failed"
