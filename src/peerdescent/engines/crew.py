"""A crew: one experiment with several seeds, side by side.

On a CPU every seed has an engine, and threads advance them: no program is faster there than that of
a single seed, and it leaves the other cores idle. On a GPU the seeds are an axis of one engine's
arrays, since a step of one seed keeps a GPU busy for less time than launching it takes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np

from peerdescent.engines.contract import Engine
from peerdescent.engines.devices import cores, memory, on_gpu
from peerdescent.engines.fleet import needed
from peerdescent.engines.outline import Chance, outline
from peerdescent.methods.contract import Method
from peerdescent.problems.problem import Problem

Build = Callable[[Any], Any]
"""Makes the engine of a seed, or of an array of seeds, whose states have an axis of seeds."""


class Crew(ABC):
    """Engines of some seeds, by their places 0, 1, .... `which` are the places of those that still run."""

    pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def engine(self, place: int) -> Engine:
        """The engine of a seed."""

    @abstractmethod
    def start(self, x0: np.ndarray) -> Any:
        """The states after iteration 0."""

    @abstractmethod
    def advance(self, states: Any, t: int, until: int, which: Sequence[int]) -> Any:
        """The states after iterations t, ..., until - 1; it may consume `states`."""

    @abstractmethod
    def hold(self, states: Any, place: int) -> Any:
        """A copy of the state of a seed, as `Engine.hold` makes it."""

    @abstractmethod
    def iterates(self, states: Any, place: int) -> np.ndarray:
        """A copy of the iterates of a seed, as `Engine.hold` makes it."""

    @abstractmethod
    def scatter(self, held: Sequence[Any]) -> Any:
        """The states from copies that `hold` made, one of each seed."""

    @property
    @abstractmethod
    def seconds(self) -> Sequence[float]:
        """The time that each seed has been computed for: its own, or its share of the time of all."""

    def each(self, act: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """What `act` returns for each of the arguments given. It may be called in several threads."""
        return [act(*some) for some in zip(*given, strict=True)]

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


class Apart(Crew):
    """An engine of its own for each seed. With several `threads`, as many of them advance at the same time."""

    def __init__(self, build: Build, seeds: Sequence[int], threads: int = 1) -> None:
        self.engines = [build(seed) for seed in seeds]
        self._seconds = [0.0] * len(seeds)
        self.pool = ThreadPoolExecutor(threads) if min(threads, len(seeds)) > 1 else None
        self.halted = False
        # Threads do not inherit these.
        config: Any = jax.config
        self.arithmetic = (
            config.jax_enable_x64,
            config.jax_default_matmul_precision,
            config.jax_default_device,
        )

    def engine(self, place: int) -> Engine:
        """One of them."""
        found: Engine = self.engines[place]
        return found

    def start(self, x0: np.ndarray) -> Any:
        """A list of states."""
        return self._timed(lambda place: self.engines[place].start(x0), range(len(self.engines)))

    def advance(self, states: Any, t: int, until: int, which: Sequence[int]) -> Any:
        """A list of states; those of seeds that do not run stay."""
        advanced = self._timed(
            lambda place: self._advanced(self.engines[place], states[place], t, until), which
        )
        found = dict(zip(which, advanced, strict=True))
        return [found.get(place, state) for place, state in enumerate(states)]

    def _advanced(self, engine: Any, state: Any, t: int, until: int) -> Any:
        """In a thread, by as many iterations at a time as there are samples for, unless all threads are to end."""
        if self.pool is None:
            return engine.advance(state, t, until)
        while t < until and not self.halted:
            stop = min(until, t + engine.chunk)
            state, t = engine.advance(state, t, stop), stop
        return state

    def hold(self, states: Any, place: int) -> Any:
        """Of its engine."""
        return self.engines[place].hold(states[place])

    def iterates(self, states: Any, place: int) -> np.ndarray:
        """Of its engine."""
        found: np.ndarray = self.engines[place].hold(states[place].x)
        return found

    def scatter(self, held: Sequence[Any]) -> Any:
        """A list of states; a seed that ended before iteration 0 has none."""
        pairs = zip(self.engines, held, strict=True)
        return [None if state is None else engine.scatter(state) for engine, state in pairs]

    @property
    def seconds(self) -> Sequence[float]:
        """Its own, also in a thread."""
        return self._seconds

    def _timed(self, act: Callable[[int], Any], which: Sequence[int]) -> list[Any]:
        def timed(place: int) -> Any:
            clock = time.perf_counter()
            try:
                return act(place)
            finally:
                self._seconds[place] += time.perf_counter() - clock

        return self.each(timed, which)

    def each(self, act: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """In threads, if there are any. An interruption ends the iterations of all of them, after some more."""
        if self.pool is None:
            return super().each(act, *given)
        waiting = [self.pool.submit(self._inside, act, *some) for some in zip(*given, strict=True)]
        try:
            # The wait has a limit, so that Ctrl-C takes effect at once.
            while wait(waiting, timeout=0.2).not_done:
                pass
        except BaseException:
            self.halted = True
            wait(waiting)
            raise
        return [future.result() for future in waiting]

    def _inside(self, act: Callable[..., Any], *given: Any) -> Any:
        double, precision, device = self.arithmetic
        with (
            jax.enable_x64(double),
            jax.default_matmul_precision(precision),
            jax.default_device(device),
        ):
            return act(*given)


class Abreast(Crew):
    """All seeds in one program: an axis of the arrays of one engine. Those that have ended are computed in vain."""

    def __init__(self, build: Build, seeds: Sequence[int]) -> None:
        self.joint = build(np.array(seeds, np.uint32))
        self._seconds = [0.0] * len(seeds)

    def engine(self, place: int) -> Engine:
        """The same for all: what is evaluated has no seed."""
        found: Engine = self.joint
        return found

    def start(self, x0: np.ndarray) -> Any:
        """States (seeds, ...)."""
        return self._timed(lambda: self.joint.start(x0), range(len(self._seconds)))

    def advance(self, states: Any, t: int, until: int, which: Sequence[int]) -> Any:
        """States (seeds, ...)."""
        return self._timed(lambda: self.joint.advance(states, t, until), which)

    def hold(self, states: Any, place: int) -> Any:
        """Of one seed."""
        return self.joint.hold(jax.tree.map(lambda a: a[place], states))

    def iterates(self, states: Any, place: int) -> np.ndarray:
        """Of one seed."""
        found: np.ndarray = self.joint.hold(states.x[place])
        return found

    def scatter(self, held: Sequence[Any]) -> Any:
        """States (seeds, ...); a seed that ended before iteration 0 gets the state of another."""
        some = next(state for state in held if state is not None)
        return self.joint.scatter(
            jax.tree.map(lambda *a: np.stack(a), *(some if a is None else a for a in held))
        )

    @property
    def seconds(self) -> Sequence[float]:
        """Its share: the time of the program, divided by the number of seeds that still run."""
        return self._seconds

    def _timed(self, act: Callable[[], Any], which: Sequence[int]) -> Any:
        clock = time.perf_counter()
        found = act()
        for place in which:
            self._seconds[place] += (time.perf_counter() - clock) / len(which)
        return found


def at_once(method: Method, problem: Problem, dtype: Any) -> int:
    """How many seeds may run at once: their states take at most a quarter of the memory.

    One, where samples come from iterators: what a user's iterators share, nobody knows.
    """
    if problem.streams is not None:
        return 1
    return max(1, memory() // 4 // needed(method, problem, dtype))


def crew_of(method: Method, build: Build, seeds: Sequence[int]) -> Crew:
    """The crew for some seeds at once, for engines that can do that."""
    if not on_gpu():
        return Apart(build, seeds, cores())
    # Seeds toss their own coins: along an axis, all would compute both sides.
    coins = any(isinstance(when, Chance) for when in outline(method).branches)
    return Apart(build, seeds) if coins or len(seeds) == 1 else Abreast(build, seeds)
