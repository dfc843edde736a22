"""Samples from iterators on the host: the rows of some iterations are read in a thread while others are computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from threading import Thread
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.engines.outline import Drawn, flat, outline
from peerdescent.errors import StreamEnded, require
from peerdescent.methods.contract import Method
from peerdescent.problems.host_streams import Form, Source, check_form
from peerdescent.problems.problem import Problem, check_fits

READ_AHEAD = 64
"""The most iterations whose samples are read at once: a slow stream should not delay the first one for long."""

LARGEST = 1 << 24
"""Bytes of samples that are read at once, if one iteration does not need more."""


class Chunk(NamedTuple):
    """The samples of iterations first, ..., first + length - 1, by request: arrays (length or more, n, batch, ...)."""

    first: int
    length: int
    samples: dict[tuple[int, int], Any]

    def has(self, t: int) -> bool:
        """Whether it has samples of iteration t."""
        return self.first <= t < self.first + self.length


def refuse(problem: Problem, engine: str) -> None:
    """Refuse a problem whose samples come from iterators."""
    require(
        problem.streams is None,
        f"the samples of {problem.name} come from iterators in this process, which {engine} does not read: use "
        "peer.run with engine stacked or debug",
    )


class Reader:
    """The rows of one node, in their order."""

    def __init__(self, source: Source, form: Form, types: list[Any]) -> None:
        self.node, self.form, self.types, self.items = source.node, form, types, source.begin()
        self.rest = [np.zeros((0, *shape)) for shape, _ in form.rows]
        self.count, self.number = 0, 0
        """How many rows and items have been read."""

    def read(self, count: int) -> list[np.ndarray]:
        """The next `count` rows, in one array for each of the form; fewer if the iterator ends."""
        pieces, missing = [self.rest], count - len(self.rest[0])
        for arrays in self._items() if missing > 0 else ():
            pieces.append(arrays)
            missing -= len(arrays[0])
            if missing <= 0:
                break
        joined = [
            np.concatenate(parts)
            for parts in zip(*(one for one in pieces if len(one[0])), strict=True)
        ]
        joined = joined or self.rest
        found, self.rest = [a[:count] for a in joined], [a[count:] for a in joined]
        self.count += len(found[0])
        return found

    def put_back(self, found: list[np.ndarray], used: int) -> None:
        """Take back the rows of the last `read` but for those that were used."""
        self.count -= len(found[0]) - used
        self.rest = [np.concatenate([a[used:], b]) for a, b in zip(found, self.rest, strict=True)]

    def _items(self) -> Iterator[list[np.ndarray]]:
        while True:
            try:
                item = next(self.items)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"in the iterator of node {self.node}, at item {self.number + 1}")
                raise
            self.number += 1
            what = f"item {self.number} of node {self.node}"
            found, arrays = Form.of(item, what)
            check_form(found, self.form, what)
            for array, kind in zip(arrays, self.types, strict=True):
                check_fits(what, array, kind)
            yield arrays


class Feed:
    """The samples of all iterations of a run, which are asked for in their order."""

    def __init__(self, method: Method, problem: Problem, dtype: Any) -> None:
        does, form = outline(method), problem.oracle.form  # type: ignore[attr-defined]
        self.first, self.later = does.first_requests, does.requests
        drawn = [
            [tuple(event) for event in flat(one) if isinstance(event, Drawn)]
            for one in (does.start, does.step)
        ]
        require(
            drawn == [[*self.first], [*self.later]],
            f"{method.name} draws samples in some iterations only, and rows of iterators are read for all: use a "
            "method that draws in every iteration, such as gt-hsgd",
        )
        self.sources, self.form = problem.streams or (), form
        self.types = [
            jax.dtypes.canonicalize_dtype({"f": dtype, "i": int}.get(kind, kind))
            for _, kind in form.rows
        ]
        kinds = zip(form.rows, self.types, strict=True)
        row = sum(math.prod(shape) * kind.itemsize for (shape, _), kind in kinds)
        step = max(1, problem.nodes * row * self._rows(1))
        self.chunk = int(np.clip(LARGEST // step, 1, READ_AHEAD))
        self.readers: list[Reader] = []
        self.next = 0
        """The first iteration whose rows have not been read."""
        self.now = Chunk(0, 0, {})
        self.thread: Thread | None = None
        self.ahead: Chunk | None = None
        self.failure: BaseException | None = None

    def blank(self, t: int) -> Chunk:
        """A chunk of the form of the one that begins with iteration t, to compile with."""
        chunk = self._chunk(t, 0, [])
        return chunk._replace(samples=jax.tree.map(jnp.asarray, chunk.samples))

    def take(self, t: int) -> Chunk:
        """The chunk that has iteration t in it. Iterations are asked for in their order."""
        if not self.now.has(t):
            if t > self.now.first + self.now.length:  # a run that is resumed
                self._check_known()
            chunk = self._finished()
            if chunk is None or not chunk.has(t):
                assert t >= self.next, "iterators cannot go back"
                chunk = self._read(t)
            # The thread that reads on does not know the types of this one.
            self.now = chunk._replace(samples=jax.tree.map(jnp.asarray, chunk.samples))
            self.thread = Thread(target=self._go_on, daemon=True)
            self.thread.start()
        return self.now

    def _check_known(self) -> None:
        """Refuse single iterators, to which somebody else may have listened before."""
        for source in self.sources:
            require(
                not source.is_single,
                f"node {source.node} has a single iterator, of which nobody knows where it is: to resume, give a "
                "function that returns an iterator from the beginning",
            )

    def _finished(self) -> Chunk | None:
        """What the thread has read, once it is done."""
        if self.thread is not None:
            self.thread.join()
        failure, chunk = self.failure, self.ahead
        self.thread = self.failure = self.ahead = None
        if failure is not None:
            raise failure
        return chunk

    def _go_on(self) -> None:
        """Read the next chunk; what goes wrong is raised when that is asked for."""
        try:
            self.ahead = self._read(self.next)
        except BaseException as error:
            self.failure = error

    def _rows(self, t: int) -> int:
        return sum(batch for _, batch in (self.later if t else self.first))

    def _read(self, t: int) -> Chunk:
        """The chunk that begins with iteration t, without iterations for which some node has no rows."""
        if not self.readers:
            self.readers = [Reader(source, self.form, self.types) for source in self.sources]
        while self.next < t:
            self._next(1 if self.next == 0 else min(self.chunk, t - self.next))
        return self._next(1 if t == 0 else self.chunk)

    def _next(self, most: int) -> Chunk:
        t, rows = self.next, self._rows(self.next)
        found = [reader.read(most * rows) for reader in self.readers]
        counts = [len(one[0]) // rows if rows else most for one in found]
        count = min(counts)
        if count == 0:
            node = counts.index(0)
            raise StreamEnded(
                f"the iterator of node {node} ended after {self.readers[node].count:,} rows, and step {t} needs "
                f"{rows} more: give longer iterators, or fewer steps"
            )
        if count < most:  # a node has ended, and which one is said when it is asked for more
            for reader, one in zip(self.readers, found, strict=True):
                reader.put_back(one, count * rows)
        self.next += count
        return self._chunk(t, count, found)

    def _chunk(self, t: int, count: int, found: list[list[np.ndarray]]) -> Chunk:
        requests, rows, most = (
            self.later if t else self.first,
            self._rows(t),
            self.chunk if t else 1,
        )
        arrays = []
        for k, ((shape, _), kind) in enumerate(zip(self.form.rows, self.types, strict=True)):
            whole = np.zeros((most, len(self.sources), rows, *shape), kind)
            for node, own in enumerate(found):
                whole[:count, node] = own[k][: count * rows].reshape(count, rows, *shape)
            arrays.append(whole)
        samples, place = {}, 0
        for call, batch in requests:
            parts = [a[:, :, place : place + batch] for a in arrays]
            samples[call, batch] = jax.tree.unflatten(self.form.structure, parts)
            place += batch
        return Chunk(t, count, samples)
