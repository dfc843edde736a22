"""Groups of processes for the tests of engine `processes` and of the PyTorch optimizer, and what the engine's run.

`python tests/processes/ranks.py FOLDER` runs, in each process of a group, every case on the engine, and leaves iterates
and counts in FOLDER/RANK.npz. Then it gives some command lines to the program, and leaves their exit status and what
they said in FOLDER/RANK.json; the run of the last one is FOLDER/run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from children import free_port, spawn

EXPERIMENT = [
    *("--engine", "processes", "--rows", "400", "--nodes", "4", "--topology", "ring"),
    *("--precision", "64", "--strength", "0.01"),
]


def command(out, *more, steps=300, record=30):
    """The words after `peerdescent` that run the experiment."""
    length = ["--steps", str(steps), "--record", str(record)]
    return ["run", "gt-hsgd", *EXPERIMENT, *length, "--out", str(out), *more]


class Group:
    """Processes that were started without `torchrun`, so that only they themselves notice when one is gone."""

    def __init__(self, processes, logs):
        self.processes, self.logs = processes, logs

    def wait(self, seconds, but=()):
        """The exit status of all but some, None for one that is late, and what they said."""
        end = time.monotonic() + seconds
        for rank, process in enumerate(self.processes):
            if rank not in but:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        codes = [process.poll() for process in self.processes]
        return codes, [" ".join(log.read_text().split()) for log in self.logs]


@contextlib.contextmanager
def group(commands, folder, timeout=60.0):
    """Start a Python process for each command, with the variables that `torchrun` sets; kill them at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"log-{rank}" for rank in range(len(commands))]
    common = os.environ | {
        "WORLD_SIZE": str(len(commands)), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "PEERDESCENT_TIMEOUT": str(timeout),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, (words, path) in enumerate(zip(commands, logs, strict=True)):
            log = stack.enter_context(path.open("w"))
            env = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                stack.enter_context(spawn([sys.executable, *words], env=env, stdout=log, stderr=subprocess.STDOUT))
            )
        yield Group(processes, logs)


def main(folder):
    import shards

    import peerdescent as peer
    from peerdescent import engines
    from peerdescent.engines import processes as engine

    seen = []
    make = engines.make

    def keep(*arguments):
        seen.append(make(*arguments))
        return seen[-1]

    engines.make = keep
    found = {}
    for name, method, problem, network in shards.cases(4):
        trace = peer.run(
            method, problem, network, steps=shards.STEPS, precision=64, record=2, engine="processes", progress=False
        )
        found[name] = trace.x
        found[f"bytes {name}"] = np.array([seen[-1].links.sent, trace.table["bytes"].iloc[-1]])
        found[f"table {name}"] = trace.table.drop(columns="seconds").to_numpy(float)
    # A process that was given its own data alone.
    name, method, problem, network = next(iter(shards.cases(4)))
    own = problem.only(engine.connect())
    found["own"] = peer.run(method, own, network, steps=shards.STEPS, precision=64, record=2, engine="processes").x
    found["held"] = np.array([len(leaf) for leaf in own.data])
    rank = engine.connect()
    np.savez(Path(folder) / f"{rank}.npz", **found)
    said = {
        "another seed": program(command(Path(folder) / "none", "--seed", str(7 * (rank == 1)), "--data-seed", "0")),
        "three nodes": program(command(Path(folder) / "none", "--nodes", "3")),
        "unbroken": program(command(Path(folder) / "run")),
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(said))


def program(words):
    """The exit status of the command line, and what it said."""
    from peerdescent.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main(words)
        except SystemExit as left:
            return left.code, " ".join(said.getvalue().split())
    return None, said.getvalue()


if __name__ == "__main__":
    main(sys.argv[1])
