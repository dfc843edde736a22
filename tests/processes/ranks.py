"""Groups of processes for the tests of engine `processes`, and the program that they run.

`python tests/processes/ranks.py FOLDER` runs every case on the engine in each process of a group, and writes iterates
and counts to FOLDER/RANK.npz.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    """Processes that were started without `torchrun`, so that only they themselves can notice that one has ended."""

    def __init__(self, commands, folder, timeout=60.0):
        port, count = free_port(), len(commands)
        self.logs, self.processes = [folder / f"log-{rank}" for rank in range(count)], []
        for rank, command in enumerate(commands):
            env = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PEERDESCENT_TIMEOUT": str(timeout),
            }  # fmt: skip
            with self.logs[rank].open("w") as log:
                command = [sys.executable, *command]
                self.processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))

    def wait(self, seconds, but=()):
        """The exit status and output of all but some; processes that exceed the time limit are killed."""
        until = time.monotonic() + seconds
        for rank, process in enumerate(self.processes):
            if rank not in but:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
        codes = [process.poll() for process in self.processes]
        return codes, [" ".join(log.read_text().split()) for log in self.logs]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def group(commands, folder, timeout=60.0):
    folder.mkdir(parents=True, exist_ok=True)
    started = Group(commands, folder, timeout)
    try:
        yield started
    finally:
        started.close()


def until(condition, seconds=60.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)


def main(folder):
    import shards

    import peerdescent as peer
    from peerdescent.engines import processes as engine

    seen = []
    init = engine.Processes.__init__

    def keep(self, *arguments):
        init(self, *arguments)
        seen.append(self)

    engine.Processes.__init__ = keep
    found = {}
    for name, method, problem, network in shards.cases(4):
        trace = peer.run(
            method, problem, network, steps=shards.STEPS, precision=64, record=2, engine="processes", progress=False
        )
        found[name] = trace.x
        found[f"bytes {name}"] = np.array([seen[-1].links.sent, trace.table["bytes"].iloc[-1]])
        found[f"table {name}"] = trace.table.drop(columns="seconds").to_numpy(float)
    # The problem has the data of this process's node only.
    name, method, problem, network = next(iter(shards.cases(4)))
    own = problem.only(engine.connect())
    found["own"] = peer.run(method, own, network, steps=shards.STEPS, precision=64, record=2, engine="processes").x
    found["held"] = np.array([len(leaf) for leaf in own.data])
    np.savez(Path(folder) / f"{engine.connect()}.npz", **found)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(sys.argv[1])
