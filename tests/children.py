"""Child processes of tests: they start with the default signals, every wait has a limit, and none outlives its test.

`conftest` calls `restore_signals` once. After that any child has the default signals, however it is started.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"


def restore_signals() -> None:
    """Undo ignored SIGINT, SIGQUIT and SIGTERM in this process; children inherit what is ignored, not handlers.

    A shell starts `make test &` with SIGINT ignored, and a child that inherits this is not stopped by SIGINT.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            )


@contextmanager
def spawn(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a session of its own; at the end it and its children are killed. Wait with a timeout."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    process = subprocess.Popen([str(word) for word in command], start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


def run(
    command: Sequence[Any], limit: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, for `limit` seconds at most."""
    with spawn(command, **options) as process:
        out, err = process.communicate(timeout=limit)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def python(
    *arguments: Any, limit: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end."""
    return run([sys.executable, *arguments], limit, **options)


def until(condition: Callable[[], Any], limit: float = 60.0) -> None:
    """Wait until a condition holds, for `limit` seconds at most."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"a condition did not hold within {limit} s"
        time.sleep(0.02)


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
