"""Groups of processes for the tests of engine `processes` and of the PyTorch optimizer, and what the engine's run.

They are forked from a server that has imported all they need, since imports would take most of their time. It has not
used JAX or PyTorch, which start their threads then. What `torchrun` starts are programs of their own, as a user's are.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import time
import warnings
from pathlib import Path

import numpy as np

from children import free_port

FORKS = multiprocessing.get_context("forkserver")
WORKERS = ["ranks", "shards", "optimizer_worker", "loops_worker"]
NEEDED = [
    "peerdescent.cli.main",
    "peerdescent.datasets.loader",
    "peerdescent.figures.lines",
    "matplotlib.backends.backend_agg",
]
FORKS.set_forkserver_preload([*NEEDED, *WORKERS])

EXPERIMENT = [
    *("--engine", "processes", "--rows", "400", "--nodes", "4", "--topology", "ring"),
    *("--precision", "64", "--strength", "0.01"),
]


def command(out, *more, steps=150, record=30):
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
                process.join(max(0.1, end - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        return codes, [" ".join(log.read_text().split()) for log in self.logs]


@contextlib.contextmanager
def group(count, folder, action, *arguments, timeout=60.0, variables=None):
    """Processes that call `action(*arguments)`; they are killed at the end.

    Their environment has the variables that `torchrun` sets, or those given for each of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"log-{rank}" for rank in range(count)]
    common = os.environ | {
        "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "PEERDESCENT_TIMEOUT": str(timeout),
    }  # fmt: skip
    processes = []
    try:
        for rank, log in enumerate(logs):
            env = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if variables is not None:
                env = os.environ | variables[rank]
            processes.append(FORKS.Process(target=_rank, args=(env, log, action, arguments)))
            processes[-1].start()
        yield Group(processes, logs)
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _rank(env, log, action, arguments):
    import torch

    from peerdescent.networks import spectra
    from peerdescent.runs import pace
    from small import unmeasured

    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    pace.SHARE = 1e9  # checkpoints at every record
    spectra.estimated = unmeasured
    action(*arguments)


def compute(folder):
    """Run every case on the engine, and leave iterates and counts in FOLDER/RANK.npz.

    Then give some command lines to the program, and leave their exit status and what they said in FOLDER/RANK.json; the
    run of the last one is FOLDER/run.
    """
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
    for name, method, problem, network, steps in shards.cases(4):
        trace = peer.run(
            method, problem, network, steps=steps, precision=64, record=2, engine="processes", progress=False
        )
        found[name] = trace.x
        found[f"bytes {name}"] = np.array([seen[-1].links.sent, trace.table["bytes"].iloc[-1]])
        found[f"table {name}"] = trace.table.drop(columns=["seconds", "clock"]).to_numpy(float)
    # A process that was given its own data alone.
    name, method, problem, network, steps = next(iter(shards.cases(4)))
    own = problem.only(engine.connect())
    found["own"] = peer.run(method, own, network, steps=steps, precision=64, record=2, engine="processes").x
    found["held"] = np.array([len(leaf) for leaf in own.data])
    # Links with a memory, and others that fail beside them, stopped and resumed.
    faults = [peer.faults.burst(0.3, 0.4), peer.faults.drop(0.2)]
    network, options = peer.Network(peer.topology.ring(4), faults=faults), {"precision": 64, "engine": "processes"}
    first = peer.run(method, problem, network, steps=9, record=[9], **options)
    found["resumed"] = peer.run(method, problem, network, steps=20, record=[9, 20], resume=first, **options).x
    found["whole"] = peer.run(method, problem, network, steps=20, record=[9, 20], **options).x
    rank = engine.connect()
    np.savez(Path(folder) / f"{rank}.npz", **found)
    said = {
        "another seed": program(command(Path(folder) / "none", "--seed", str(7 * (rank == 1)), "--data-seed", "0")),
        "another strength": program(command(Path(folder) / "none", "--strength", str(0.5 + (rank == 1)))),
        "another data seed": program(command(Path(folder) / "none", "--data-seed", str(5 + (rank == 1)))),
        "other rows": program(command(Path(folder) / "none", "--rows", str(300 + 4 * (rank == 1)))),
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
