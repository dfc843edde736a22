"""A check that all processes of a run are about to do the same, and the time limit for waiting for them."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from peerdescent.errors import require

TIMEOUT = 60.0
"""Seconds that a process waits for another; the variable PEERDESCENT_TIMEOUT overrides it."""


def seconds() -> float:
    """The time limit for waiting on another process."""
    text = os.environ.get("PEERDESCENT_TIMEOUT", str(TIMEOUT))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    require(value > 0, f"PEERDESCENT_TIMEOUT = {text!r}: must be a positive number of seconds")
    return value


def attempt() -> int:
    """How often `torchrun` has started this run again; 0 the first time, and without it."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def in_time(meet: Callable[[], Any], address: str) -> Any:
    """What `meet` returns, or a TimeoutError after the limit: libraries wait for ever for a listener that is silent.

    The thread that waits is left behind, and ends with the process.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((meet(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        found, error = results.get(
            timeout=seconds() + 1
        )  # where the library has a limit, that comes first
    except queue.Empty:
        raise TimeoutError(f"{address} does not answer") from None
    if error is not None:
        raise error
    return found


def is_loopback(host: str) -> bool:
    """Whether an address is one that no other machine can reach.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "10.0.0.1", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


FIELD = 512
"""Bytes of a fact; longer ones end in a digest and shorter ones are padded."""


def agree(facts: Mapping[str, Any], gather: Callable[[np.ndarray], Any]) -> None:
    """Raise a ValueError if processes differ in a fact. The message has the fact, the values and the processes.

    `gather` collects an array from every process, as (processes, ...) or concatenated along the
    first axis.

    >>> agree({"seed": 0}, lambda rows: np.stack([rows, rows]))
    >>> agree({"seed": 0}, lambda rows: np.stack([rows, _rows({"seed": 1})]))
    Traceback (most recent call last):
    ValueError: processes 0 and 1 are not of one run: seed is '0' in one, '1' in the other; start all with one command
    """
    mine = _rows(facts)
    gathered = np.asarray(gather(mine)).reshape(-1, *mine.shape)
    for process, rows in enumerate(gathered):
        for name, first, other in zip(facts, gathered[0], rows, strict=True):
            here, there = (
                bytes(row).rstrip(b"\0").decode(errors="replace") for row in (first, other)
            )
            require(
                here == there,
                f"processes 0 and {process} are not of one run: {name} is {here!r} in one, {there!r} in the other; "
                "start all with one command",
            )


def told(text: str, gather: Callable[[np.ndarray], Any]) -> str:
    """What process 0 says, in every process.

    >>> told("stop", lambda rows: np.concatenate([rows, 0 * rows]))
    'stop'
    """
    return (
        bytes(np.asarray(gather(_rows({"said": text})))[0]).rstrip(b"\0").decode(errors="replace")
    )


def fitted(text: str, size: int) -> bytes:
    """The text in at most so many bytes; one that is longer ends in a digest of all of it.

    >>> fitted("seed 0", 20), len(fitted("0" * 100, 40)), fitted("0" * 100, 40) == fitted("0" * 99 + "1", 40)
    (b'seed 0', 40, False)
    """
    whole = text.encode()
    if len(whole) <= size:
        return whole
    end = f"... {hashlib.sha256(whole).hexdigest()[:16]}".encode()
    return whole[: size - len(end)] + end


def _rows(facts: Mapping[str, Any]) -> np.ndarray:
    rows = np.zeros((len(facts), FIELD), np.uint8)
    for row, value in zip(rows, facts.values(), strict=True):
        text = fitted(str(value), FIELD)
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return rows
