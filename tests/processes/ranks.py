"""Groups of processes for the tests of engine `processes` and of the PyTorch optimizer, and what the engine's run.

They are forked from a server that has imported all they need, since imports would take most of their time. It has not
used JAX or PyTorch, which start their threads then. What `torchrun` starts are programs of their own, as a user's are.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import multiprocessing
import os
import sys
import time
import warnings
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

import numpy as np

from children import free_port

FORKS = multiprocessing.get_context("forkserver")
WORKERS = ["shards", "optimizer_worker", "loops_worker", "ranks"]
NEEDED = [
    "peerdescent.cli.main",
    "peerdescent.datasets.loader",
    "peerdescent.engines.processes",
    "peerdescent.engines.sharded",
    "peerdescent.figures.lines",
    "peerdescent.torch.optimizer",
    "matplotlib.backends.backend_agg",
    "torch._dynamo",  # the first optimizer of a process imports it
]
gc.freeze()  # in the server this module is the last: else each process would look at all of them, and copy their pages

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


def serve():
    """Start the server, if there is none yet.

    It finds modules by PYTHONPATH alone, and says nothing of those that it does not find.
    """
    folders = [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parent)]
    FORKS.set_forkserver_preload([*NEEDED, *WORKERS])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(folders)):
        forkserver.ensure_running()


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
    serve()
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
    missing = [name for name in (*NEEDED, *WORKERS) if name not in sys.modules]
    import torch

    from peerdescent.networks import spectra
    from peerdescent.runs import pace
    from small import unmeasured

    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    assert not missing, f"not imported by the server: {missing}"
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    several = int(env.get("WORLD_SIZE", env.get("JAX_NUM_PROCESSES", "1"))) > 1
    if several and hasattr(os, "sched_setaffinity"):
        cores = sorted(
            os.sched_getaffinity(0)
        )  # of one each, so that its threads need not wake each other elsewhere
        os.sched_setaffinity(
            0, {cores[int(env.get("RANK", env.get("JAX_PROCESS_ID", "0"))) % len(cores)]}
        )
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
        options = {"precision": 64, "record": 2, "engine": "processes", "progress": False}
        trace = peer.run(method, problem, network, steps=steps, **options)
        found[name] = trace.x
        found[f"bytes {name}"] = np.array([seen[-1].links.sent, trace.table["bytes"].iloc[-1]])
        found[f"table {name}"] = trace.table.drop(columns=["seconds", "clock"]).to_numpy(float)
    # A process that was given its own data alone.
    name, method, problem, network, steps = next(iter(shards.cases(4)))
    own = problem.only(engine.connect())
    found["own"] = peer.run(method, own, network, steps=steps, **options).x
    found["held"] = np.array([len(leaf) for leaf in own.data])
    # Links with a memory, and others that fail beside them, stopped and resumed.
    faults = [peer.faults.burst(0.3, 0.4), peer.faults.drop(0.2)]
    network, options = (
        peer.Network(peer.topology.ring(4), faults=faults),
        {"precision": 64, "engine": "processes"},
    )
    first = peer.run(method, problem, network, steps=9, record=[9], **options)
    found["resumed"] = peer.run(
        method, problem, network, steps=20, record=[9, 20], resume=first, **options
    ).x
    found["whole"] = peer.run(method, problem, network, steps=20, record=[9, 20], **options).x
    rank = engine.connect()
    part = interrupted(
        lambda: peer.run(method, problem, network, steps=20, record=[9, 20], **options)
    )

    def onward(resume):
        return peer.run(
            method, problem, network, steps=20, record=[9, 20], resume=resume, **options
        )

    found["resumed from a part"] = onward(part).x
    found["resumed from its folder"] = onward(part.save(Path(folder) / f"part-{rank}")).x
    short = peer.run(method, problem, network, steps=5, record=1, **options)
    told = {
        "part": [part.status, part.steps, part.node, part.x.shape, part.state.method.x.shape],
        "other steps": refusal(lambda: onward(short if rank == 2 else part)),
        "another's part": refusal(lambda: onward(Path(folder) / "part-0")),
    }
    # Two seeds. By its own count each process would stop them at another step.
    calls = []
    several = peer.run(
        method, problem, network, steps=20, record=4, seed=[5, 6], stop=lambda row: row["step"] >= 5 + 5 * rank,
        callback=lambda trace: calls.append((trace.identity.seed, trace.steps)), **options,
    )  # fmt: skip
    found["seeds"] = np.stack([trace.x for trace in several])
    told["stopped"] = [[trace.status, trace.message, trace.steps] for trace in several]
    told["calls"] = calls
    told["broken"] = failure(
        lambda: peer.run(method, problem, network, steps=9, callback=lambda _: 1 / 0, **options)
    )
    # Numbers in the state of a node, which differ where nodes have slept.
    adam = adaptive()
    found["adaptive"] = peer.run(*adam, steps=8, record=1, **options).state.estimator.of_m
    np.savez(Path(folder) / f"{rank}.npz", **found)
    said = told | {
        "sent": weighed(lambda: peer.run(*adam, steps=20, record=4, **options)),
        "sent by a tracker": weighed(
            lambda: peer.run(peer.methods.gt_hsgd(), *adam[1:], steps=20, record=4, **options)
        ),
        "another seed": program(
            command(Path(folder) / "none", "--seed", str(7 * (rank == 1)), "--data-seed", "0")
        ),
        "another strength": program(
            command(Path(folder) / "none", "--strength", str(0.5 + (rank == 1)))
        ),
        "another data seed": program(
            command(Path(folder) / "none", "--data-seed", str(5 + (rank == 1)))
        ),
        "other rows": program(command(Path(folder) / "none", "--rows", str(300 + 4 * (rank == 1)))),
        "three nodes": program(command(Path(folder) / "none", "--nodes", "3")),
        "unbroken": program(command(Path(folder) / "run")),
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(said))


def adaptive():
    """A method with numbers of a node in its state, a problem, and a network with nodes that sleep."""
    import peerdescent as peer
    from small import small_quadratic

    network = peer.Network(peer.topology.ring(4), faults=[peer.faults.inactive(0.3)])
    return peer.methods.d_adam(), small_quadratic(4), network


def interrupted(run):
    """The trace of a run that Ctrl-C ends after step 9; nothing is sent then."""
    from peerdescent.engines import channels, processes

    advance, begin = processes.Processes.advance, channels.Channel.begin_exchange

    def silent(*arguments):
        raise AssertionError("sent after the interruption")

    def impatient(self, state, t, until):
        if t >= 9:
            channels.Channel.begin_exchange = silent
            raise KeyboardInterrupt
        return advance(self, state, t, until)

    processes.Processes.advance = impatient
    try:
        return run()
    finally:
        processes.Processes.advance, channels.Channel.begin_exchange = advance, begin


def weighed(run):
    """What each record of a run sent, and what was sent between records but for rounds: (what, bytes) in order."""
    from peerdescent.engines.channels import Channel
    from peerdescent.runs.course import Course

    begin, stages = (
        Channel.begin_exchange,
        {name: getattr(Course, name) for name in ("record", "advance")},
    )
    found, now = {name: [] for name in stages}, []

    def weigh(self, sends, sources, like, what, *more):
        if now and what != "mix":
            now[-1].append((what, sum(x.numel() * x.element_size() for x in sends.values())))
        return begin(self, sends, sources, like, what, *more)

    def within(name):
        def act(*arguments):
            now.append([])
            stages[name](*arguments)
            found[name].append(now.pop())

        return act

    Channel.begin_exchange = weigh
    for name in stages:
        setattr(Course, name, within(name))
    try:
        run()
    finally:
        Channel.begin_exchange = begin
        for name, stage in stages.items():
            setattr(Course, name, stage)
    return found


def failure(action):
    """How it fails."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refusal(action):
    """Why it is refused."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return None


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
