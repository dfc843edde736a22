"""Commands that are killed at random instants continue to the results of unbroken ones."""

from __future__ import annotations

import children

OPTIMISED = True
"""The runs are long."""


def test_kills_lose_nothing():
    script = children.TESTS.parent / "experiments" / "kills.py"
    done = children.python(script, "run", "--kills", "3", limit=200)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()[-1].split()
    assert said[:2] == ["run", "3"]
    assert said[2] == said[3], "as many results as those of unbroken runs"
