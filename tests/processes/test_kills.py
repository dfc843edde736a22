"""Commands that are killed at random instants continue to the results of unbroken ones."""

from __future__ import annotations

import pytest

import children

COMMANDS = ["run", "compare", "tune", "reproduce", "theory"]


@pytest.mark.long
def test_kills_lose_nothing():
    script = children.TESTS.parent / "benchmarks" / "kills.py"
    done = children.python(script, *COMMANDS, "--kills", "1", "--length", "0.1", limit=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, line in zip(COMMANDS, done.stdout.splitlines()[-len(COMMANDS) :], strict=True):
        command, kills, results, same, stray = line.split()
        assert (command, kills, stray) == (name, "1", "0")
        assert results == same, "as many results as those of unbroken runs"
