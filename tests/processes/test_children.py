"""The children of tests: they can be interrupted, they end with the test, and nobody waits for them without a limit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import children

SHOW = "import signal; print([signal.getsignal(s) == signal.SIG_IGN for s in (signal.SIGINT, signal.SIGTERM)])"


def test_a_child_of_a_session_that_ignores_signals_does_not():
    """As in `nohup make test &`: a shell starts it with SIGINT ignored, and ignored signals are inherited."""
    parent = f"import children; children.restore_signals(); print(children.python('-c', {SHOW!r}).stdout)"
    for program, ignored in ((SHOW, "[True, True]"), (parent, "[False, False]")):
        shell = ["sh", "-c", "trap '' INT TERM; exec \"$@\"", "sh", sys.executable, "-c", program]
        assert children.run(shell).stdout.strip() == ignored


def test_a_child_can_be_interrupted():
    with children.spawn(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    ) as child:
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert child.returncode != 0


def test_the_children_of_a_child_end_with_it():
    program = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with children.spawn([sys.executable, "-c", program]) as child:
        grandchild = Path(f"/proc/{int(child.stdout.readline())}/stat")
        assert grandchild.exists()
    # It may wait for somebody to take note of its end.
    children.until(
        lambda: not grandchild.exists() or grandchild.read_text().split()[2] == "Z", limit=10
    )


def test_waiting_has_a_limit():
    with pytest.raises(subprocess.TimeoutExpired):
        children.python("-c", "import time; time.sleep(60)", limit=0.5)
    with pytest.raises(AssertionError, match=r"did not hold within 0\.1 s"):
        children.until(lambda: False, limit=0.1)
