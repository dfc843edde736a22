"""Signals that end a command: Ctrl-C, SIGTERM and SIGHUP are one KeyboardInterrupt, and files are written first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
FRAGILE = ("jax", "jaxlib", "torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib")
"""Packages that may crash where an exception is raised while they are loaded. A signal waits for them."""
GRACE = 10.0
"""Seconds after a signal in which another one changes nothing, since results are being written."""


class _Stop:
    """What has arrived so far in a command."""

    last, writing, pending = float("-inf"), 0, False

    def reset(self) -> None:
        """Begin another command."""
        self.last, self.writing, self.pending = float("-inf"), 0, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise KeyboardInterrupt, but not while files are written, nor soon after another one."""
        if self.writing:
            self.pending = True
        elif any(_is_loading(name) for name in FRAGILE):
            again = threading.Timer(0.05, _again, [number])
            again.daemon = True
            again.start()
        elif time.monotonic() - self.last > GRACE:
            self.last = time.monotonic()
            raise KeyboardInterrupt


def _is_loading(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _again(number: int) -> None:
    """Send this process the signal again; its main thread handles it."""
    os.kill(os.getpid(), number)


_stop = _Stop()


@contextmanager
def handled() -> Iterator[None]:
    """Handle these signals in a command. One that the caller ignores, as `nohup` does, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stop.reset()
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def writing() -> Iterator[None]:
    """Let a signal wait until files are written."""
    _stop.writing += 1
    try:
        yield
    finally:
        _stop.writing -= 1
    if _stop.pending and not _stop.writing:
        _stop.pending = False
        raise KeyboardInterrupt
