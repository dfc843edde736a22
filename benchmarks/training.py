"""What a step of `DecentralizedOptimizer` costs: over the same method by hand, over DDP, and over Decent-DP.

Four processes on a ring, over gloo on the loopback interface, with one thread of PyTorch each; all contenders have the
same model and data, and take turns in one run. Then the memory of a step, and the step of the engine `processes` over
bare rounds of gloo. Writes `benchmarks/results/training.json` and `training.md`, with late messages `training_late`.

Decent-DP is optional: `pip install --target FOLDER --no-deps decent-dp==0.2.3 loguru`, then `--decent-dp FOLDER`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from common import Times, alternate, machine, table, write
from late import late
from torch import Tensor, nn

import peerdescent as peer
from peerdescent.torch import DecentralizedOptimizer

NODES, LAYERS, ALPHA, PIECES = 4, 4, 0.01, 4
WIDTHS, STEPS = {"10k": 50, "1M": 500, "10M": 1581}, {"10k": 50, "1M": 10, "10M": 4}
"""The width of the layers for each size, which have width (width + 1) parameters each, and the steps of a repeat."""

ENGINE = {1_000: 100, 10_000: 100, 100_000: 30}
"""Dimensions for the engine `processes`, and the steps of a repeat."""

BATCHES = {"small": 8, "work": 128}
LIMIT = timedelta(seconds=60)
PAIRS = np.kron(np.eye(2), np.full((2, 2), 0.5))
ONE_PEER = [PAIRS, np.roll(PAIRS, 1, (0, 1))]
"""The one-peer ring: a node averages with one neighbour in even steps, with the other in odd ones."""

FORMS = ("closure", "backward")
"""How the optimizer is used: step(closure), or backward() and step()."""

Action = Callable[[], Any]


class Setting(NamedTuple):
    """What the processes of one measurement are told."""

    task: str
    size: str
    contender: str
    repeats: int
    forms: Sequence[str]
    model: str
    sleep: float
    decent: str


class Case:
    """The model and the batch of this process."""

    def __init__(self, width: int, batch: int) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers[:-1])
        torch.manual_seed(1 + dist.get_rank())
        self.inputs, self.targets = torch.randn(2, batch, width)

    def loss(self, model: nn.Module | None = None) -> Tensor:
        """The loss of the batch, of the model or a wrapper of it."""
        return nn.functional.mse_loss((model or self.model)(self.inputs), self.targets)

    @property
    def x(self) -> Tensor:
        """A copy of the parameters (p,)."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


class Trained(NamedTuple):
    """A contender: one step, and what waits for messages that a step leaves under way."""

    step: Action
    finish: Action = lambda: None


Maker = Callable[[Case], Trained]


def ours(method: peer.Method, network: peer.Network, form: str, case: Case) -> Trained:
    """A method by `DecentralizedOptimizer`, in one of the forms of use."""
    optimizer = DecentralizedOptimizer(case.model, method, network)

    def backward() -> None:
        case.loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Trained(backward if form == "backward" else lambda: optimizer.step(case.loss))


class Ring:
    """Rounds with both neighbours on the ring, by isend and irecv, into buffers that are used again."""

    def __init__(self, p: int, pieces: int = 1) -> None:
        own = dist.get_rank()
        self.left, self.right = (own - 1) % NODES, (own + 1) % NODES
        row = peer.Network(peer.topology.ring(NODES)).matrices[0].toarray()[own]
        self.weights = [float(row[rank]) for rank in (own, self.left, self.right)]
        self.heard = list(
            zip(torch.empty(p).chunk(pieces), torch.empty(p).chunk(pieces), strict=True)
        )

    def post(self, x: Tensor, k: int = 0) -> list[Any]:
        """Begin a round for piece k, which is x."""
        received = [
            dist.irecv(self.heard[k][0], self.left),
            dist.irecv(self.heard[k][1], self.right),
        ]
        return [*received, dist.isend(x, self.left), dist.isend(x, self.right)]

    def mix(self, x: Tensor, k: int, under_way: list[Any]) -> None:
        """End the round: x becomes the weighted mean, in place."""
        for work in under_way:
            work.wait()
        own, left, right = self.weights
        x.mul_(own).add_(self.heard[k][0], alpha=left).add_(self.heard[k][1], alpha=right)


def by_hand(pieces: int, case: Case) -> Trained:
    """GT-DSGD as an expert would write it for this ring and nothing else.

    Parameters are views of one vector. Gradients are never copied: those of the step before are kept as they are. In
    pieces, the second round of a piece begins as soon as its first one ends.
    """
    parameters = list(case.model.parameters())
    x, previous = case.x, [torch.zeros_like(p) for p in parameters]
    y, sizes = torch.zeros_like(x), [p.numel() for p in parameters]
    for p, view in zip(parameters, x.split(sizes), strict=True):
        p.data = view.view_as(p)
    tracked = [view.view_as(p) for p, view in zip(parameters, y.split(sizes), strict=True)]
    xs, ys, ring = x.chunk(pieces), y.chunk(pieces), Ring(len(x), pieces)

    def step() -> None:
        case.loss().backward()
        grads = [p.grad for p in parameters if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(tracked, grads)
            torch._foreach_sub_(tracked, previous)
            previous[:] = grads
            first, second = [ring.post(part, k) for k, part in enumerate(ys)], []
            for k, (own, part) in enumerate(zip(xs, ys, strict=True)):
                ring.mix(part, k, first[k])
                second.append(ring.post(own.add_(part, alpha=-ALPHA), k))
            for k, own in enumerate(xs):
                ring.mix(own, k, second[k])
        for p in parameters:
            p.grad = None

    return Trained(step)


def bare_rounds(p: int) -> Trained:
    """Two rounds with both neighbours, without gradients and sums: what GT-DSGD cannot do without."""
    ring, x = Ring(p), torch.zeros(p)
    return Trained(lambda: [work.wait() for _ in range(2) for work in ring.post(x)])


def sgd(wrap: Callable[[nn.Module], nn.Module], case: Case) -> Trained:
    """PyTorch's SGD, on the model or a wrapper of it."""
    wrapped, optimizer = wrap(case.model), torch.optim.SGD(case.model.parameters(), lr=ALPHA)

    def step() -> None:
        case.loss(wrapped).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Trained(step)


def ddp(sleep: float, model: nn.Module) -> nn.Module:
    """DDP. Its own all-reduce is not seen by `late`, so with late messages it uses that of Python."""
    wrapped = nn.parallel.DistributedDataParallel(model)

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer().div_(NODES), async_op=True)
        return work.get_future().then(lambda found: found.value()[0])

    if sleep:
        wrapped.register_comm_hook(None, reduce)
    return wrapped


def decent_dp(case: Case) -> Trained:
    """Decent-DP on its one-peer ring. It computes dsgd with atc=False: x_{t+1} = W_t x_t - alpha g(x_t)."""
    kind: Any = importlib.import_module("decent_dp.ddp").DecentralizedDataParallel
    rule = partial(torch.optim.SGD, lr=ALPHA)
    wrapped = kind(
        case.model,
        lambda named: rule([p for _, p in named]),
        topology="ring",
        _local_world_size=NODES,
    )

    def finish() -> None:
        for under_way in wrapped._comm_ops:
            if under_way is not None:
                under_way.wait()

    return Trained(lambda: case.loss(wrapped).backward(), finish)


def decent_version(folder: str) -> str:
    """The version of Decent-DP; empty if it is not there."""
    sys.path += [folder] if folder else []
    try:
        return version("decent-dp")
    except PackageNotFoundError:
        return ""


def contenders(setting: Setting) -> dict[str, Maker]:
    """All of them by name; where names are equal up to the colon, so is what they compute."""
    ring, one_peer = peer.Network(peer.topology.ring(NODES)), peer.Network(ONE_PEER)
    adapted = peer.compose(peer.estimators.sgd(), peer.fusions.consensus(ALPHA, atc=True))
    methods = {
        "gt-dsgd": (peer.methods.gt_dsgd(ALPHA), ring),
        "dsgd": (peer.methods.dsgd(ALPHA), one_peer),
        "dsgd, atc": (adapted, one_peer),
    }
    found: dict[str, Maker] = {
        f"{name}: ours, {form}": partial(ours, method, network, form)
        for name, (method, network) in methods.items()
        for form in setting.forms
    }
    found |= {
        "gt-dsgd: by hand": partial(by_hand, 1),
        "gt-dsgd: by hand, in pieces": partial(by_hand, PIECES),
    }
    found |= {"Decent-DP": decent_dp} if decent_version(setting.decent) else {}
    found |= {
        "DDP": partial(sgd, partial(ddp, setting.sleep)),
        "model alone": partial(sgd, lambda model: model),
    }
    return found | {"two bare rounds": lambda case: bare_rounds(len(case.x))}


def longest(contender: Trained, steps: int) -> float:
    """The seconds a step, in the process that takes longest."""
    dist.barrier()
    clock = time.perf_counter()
    for _ in range(steps):
        contender.step()
    contender.finish()
    return _largest((time.perf_counter() - clock) / steps)


def _largest(value: float) -> float:
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def time_steps(setting: Setting) -> dict[str, Any]:
    """Seconds a step of all contenders at one size; those that refuse say why. What is one method must agree."""
    left = late(setting.sleep) if setting.sleep else []
    makers, found, actions, first = contenders(setting), {}, {}, dict[str, tuple[str, Tensor]]()
    for name, make in makers.items():
        case = Case(WIDTHS[setting.size], BATCHES[setting.model])
        contender, before = make(case), len(left)
        try:
            longest(contender, 3)
        except ValueError as error:
            found[name] = str(error)
            continue
        if setting.sleep and len(left) <= before + 1 and name != "model alone":
            raise RuntimeError(f"{name} sends in a way that `late` does not know")
        method, colon, _ = name.partition(":")
        if colon:
            other, expected = first.setdefault(method, (name, case.x))
            apart = float((case.x - expected).abs().max() / expected.abs().max())
            if apart > 1e-6:
                raise RuntimeError(f"{name} and {other} differ by {apart:.1e} after 3 steps")
        actions[name] = partial(longest, contender, STEPS[setting.size])
    return found | {
        name: times.values for name, times in alternate(actions, setting.repeats).items()
    }


def measure_memory(setting: Setting) -> list[float]:
    """Numbers a parameter by which the peak of memory grows, from before the model is made to the end of 5 steps."""
    make, width, before = contenders(setting)[setting.contender], WIDTHS[setting.size], 0
    for each in (8, width):  # the small one for what is loaded once
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        try:
            longest(make(Case(each, BATCHES[setting.model])), 5)
        except ValueError:
            return []
    return [_largest((_memory("VmHWM") - before) / (4 * LAYERS * width * (width + 1)))]


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def time_engine(setting: Setting) -> dict[str, Any]:
    """Seconds a step of GT-DSGD on the engine `processes`, and of two bare rounds, for each dimension."""
    found, network = {}, peer.Network(peer.topology.ring(NODES))

    def run(problem: Any, steps: int) -> float:
        method = peer.methods.gt_dsgd(ALPHA / problem.dimension)
        trace = peer.run(
            method, problem, network, steps=steps + 5, record=[5, steps + 5], engine="processes"
        )
        return _largest(float(np.diff(trace.table["seconds"])[-1]) / steps)

    for p, steps in ENGINE.items():
        features = np.random.default_rng(0).standard_normal((8 * NODES, p), np.float32)
        data = peer.datasets.Dataset(features, np.resize([-1.0, 1.0], len(features)), "normal")
        problem, bare = (
            peer.problems.logistic(data.partition(NODES)),
            partial(longest, bare_rounds(p), steps),
        )
        bare()
        times = alternate({"engine": partial(run, problem, steps), "bare": bare}, setting.repeats)
        found[str(p)] = {name: each.values for name, each in times.items()}
    return found


TASKS: dict[str, Callable[[Setting], Any]] = {
    "steps": time_steps,
    "memory": measure_memory,
    "engine": time_engine,
}


def work(rank: int, port: int, setting: Setting) -> None:
    """One process of a measurement; that of rank 0 prints the result."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NODES, timeout=LIMIT)
    found = TASKS[setting.task](setting)
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def together(setting: Setting, limit: float = 900) -> Any:
    """The result of one measurement, by processes of its own, which have ended when this returns."""
    name = " ".join(word for word in (setting.task, setting.size, setting.contender) if word)
    print(name, file=sys.stderr, flush=True)
    listener = socket.create_server(("127.0.0.1", 0))
    port, end = listener.getsockname()[1], time.monotonic() + limit
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    variables = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "LOGURU_LEVEL": "WARNING",
    }
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(NODES):
            words = [sys.executable, __file__, "--work", json.dumps([rank, port, setting])]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(words, stdout=out, env=variables, text=True))
        said = processes[0].communicate(timeout=limit)[0]
        codes = [process.wait(max(1.0, end - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        del store
    if any(codes):
        raise SystemExit(f"{name}: exit statuses {codes}")
    return json.loads(said.splitlines()[-1])


def step_rows(size: str, found: dict[str, Any]) -> list[list[str]]:
    """Rows of the table of steps."""
    times = {
        name: Times(tuple(values)) for name, values in found.items() if not isinstance(values, str)
    }
    hand = min(
        (each for name, each in times.items() if "by hand" in name), key=lambda each: each.median
    )
    rows = []
    for name, each in times.items():
        others = [
            hand if name.startswith(("gt-dsgd", "two")) else None,
            times["DDP"],
            times.get("Decent-DP") if name.startswith("dsgd") else None,
        ]
        over = [
            each.over(other).text(digits=2) if other and other is not each else ""
            for other in others
        ]
        rows.append([size, name, each.text(1e3, 2), *over])
    return rows + [
        [size, name, f"refused: {why[:40]}", "", "", ""]
        for name, why in found.items()
        if name not in times
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What a step of DecentralizedOptimizer costs.")
    parser.add_argument("--quick", action="store_true", help="3 repeats, for a first look")
    parser.add_argument(
        "--form", choices=[*FORMS, "all"], nargs="+", default=["all"], help="how ours is used"
    )
    parser.add_argument(
        "--sleep", type=float, default=0.0, metavar="MS", help="messages leave so much later"
    )
    parser.add_argument(
        "--model", choices=list(BATCHES), default="small", help="work: batches of 128 instead of 8"
    )
    parser.add_argument(
        "--decent-dp", default="", metavar="FOLDER", help="where Decent-DP is installed"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sizes", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work:
        rank, port, told = json.loads(words.work)
        work(rank, port, Setting(*told))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    forms = [form for form in FORMS if form in words.form or "all" in words.form]
    repeats, decent = 3 if words.quick else 7, decent_version(words.decent_dp)
    setting = Setting("", "", "", repeats, forms, words.model, words.sleep, words.decent_dp)
    values: dict[str, Any] = {
        "machine": f"{machine()}, PyTorch {torch.__version__}",
        "repeats": repeats,
    }
    lines = [
        f"A step on a ring of {NODES} processes over gloo on one machine, {LAYERS} linear layers, float32, batch "
        f"{BATCHES[words.model]}, messages {words.sleep:g} ms late.",
        f"Median (range) of {repeats} repeats that take turns; ratios are taken in each repeat, to the faster by hand.",
        f"{values['machine']}. Decent-DP: {decent or 'not installed, so not measured'}.",
    ]
    if "steps" in words.tasks:
        values["steps"], rows = {}, []
        for size in words.sizes:
            values["steps"][size] = together(setting._replace(task="steps", size=size))
            rows += step_rows(size, values["steps"][size])
            print(
                "\n".join(" | ".join(row) for row in rows if row[0] == size),
                file=sys.stderr,
                flush=True,
            )
        lines += [
            "",
            *table(
                ["parameters", "what", "ms a step", "over by hand", "over DDP", "over Decent-DP"],
                rows,
            ),
        ]
    if "memory" in words.tasks:
        names, size = [n for n in contenders(setting) if n != "two bare rounds"], words.sizes[-1]
        grown = {
            n: together(setting._replace(task="memory", size=size, contender=n, sleep=0.0))
            for n in names
        }
        values["memory"] = {size: grown}
        rows = [[name, f"{value[0]:.2f}" if value else "refused"] for name, value in grown.items()]
        lines += [
            "",
            *table(
                [f"{size} parameters", "growth of the peak of memory, in numbers a parameter"], rows
            ),
        ]
    if "engine" in words.tasks:
        values["engine"], rows = together(setting._replace(task="engine")), []
        for p, found in values["engine"].items():
            engine, bare = (Times(tuple(found[name])) for name in ("engine", "bare"))
            rows.append(
                [p, engine.text(1e3, 2), bare.text(1e3, 2), engine.over(bare).text(digits=2)]
            )
        lines += [
            "",
            *table(["p", "engine processes, ms a step", "two bare rounds, ms", "ratio"], rows),
        ]
    write("training_late" if words.sleep else "training", values, lines)


if __name__ == "__main__":
    main()
