"""Links with latency, for benchmarks on one machine: messages leave later than they are sent."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 60.0
"""Seconds until a message that has not left is an error."""


class Late:
    """What is waited for, as for any work of `torch.distributed`, which begins later."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.begin, self.work, self.begun = begin, None, threading.Event()
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def start(self) -> None:
        """Begin now."""
        work: Any = self.begin()
        self.work = work
        with suppress(RuntimeError):  # gloo has no future for messages between two processes
            work.get_future().then(lambda found: self.future.set_result(found.value()))
        self.begun.set()

    def wait(self, *timeout: Any) -> bool:
        """Wait until it is done."""
        if self.work is None and not self.begun.wait(LIMIT):
            raise RuntimeError("timed out before the message left")
        assert self.work is not None
        return bool(self.work.wait(*timeout))

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.work is not None and bool(self.work.is_completed())

    def get_future(self) -> torch.futures.Future[Any]:
        """Its result, for an all-reduce."""
        return self.future


def late(milliseconds: float) -> list[float]:
    """From now on, messages of this process leave so much later. Only who waits for a message waits for that.

    All-reduces of n processes leave 2 (n - 1) times later, since so many messages follow each other in gloo's. This
    replaces `send` and `allreduce` of `dist.ProcessGroup`, through which `isend`, `batch_isend_irecv` and `all_reduce`
    go, and of gloo under it, which programs may call themselves; code that sends in another way has to be added
    here. Returns the times at which messages left, a list that grows, so that one can see whether any did.
    """
    waiting: queue.SimpleQueue[tuple[float, Late]] = queue.SimpleQueue()
    left: list[float] = []

    def leave() -> None:
        while True:
            due, message = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            left.append(time.monotonic())
            message.start()

    def delayed(original: Callable[..., Any], hops: Callable[[Any], int]) -> Callable[..., Any]:
        def begin(group: Any, *words: Any, **named: Any) -> Late:
            message = Late(partial(original, group, *words, **named))
            waiting.put((time.monotonic() + hops(group) * milliseconds / 1e3, message))
            return message

        return begin

    kinds: list[Any] = [dist.ProcessGroup, dist.ProcessGroupGloo]
    for kind in kinds:  # the first calls the second in C++, so that no message is late twice
        kind.send = delayed(kind.send, lambda group: 1)
        kind.allreduce = delayed(kind.allreduce, lambda group: 2 * (group.size() - 1))
    threading.Thread(target=leave, daemon=True).start()
    return left
