"""Kill or stop a process of a training at a random instant, bring it back or not, and look at how the others end.

    python benchmarks/losses.py --cases 50
    python benchmarks/losses.py kill stop kill-back stop-back --seed 1

Four to eight processes train a linear model with `on_loss="continue"`, each on rows of its own, with a scheduler that
begins when its process does. A case is `kill` (SIGKILL), `stop` (SIGSTOP), or one of them with `-back`: then the
process is started anew, or continued (SIGCONT). `apart` cuts a path in two. `relay` kills three processes one after the
other and brings each back, so that in the end all have come later. The processes meet at a store of this program, as
they would at that of an agent, and use the loopback address alone. Every line says who was lost when, the loss on the
rows of all over that of an unbroken training, how many hang, whether all ended with the step size of an unbroken
training, and whether the logs of all others name who left and who came.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import networkx as nx
import torch
import torch.distributed as dist
from torch import nn

import peerdescent as peer
from peerdescent.torch import DecentralizedOptimizer

ROWS, WIDTH, PACE, LIMIT = 400, 8, 0.004, 120.0
RATE, LAST, FAR = 0.05, 0.005, 5000
"""The step size at the beginning and at the end, and more steps than `relay` needs."""
KINDS = ("kill", "stop", "kill-back", "stop-back")
METHODS = tuple(
    f"{name}alpha={RATE}]" for name in ("gt-dsgd[", "dsgd[", "gt-hsgd[beta=0.1,", "d2[")
)
FORKS = multiprocessing.get_context("forkserver")


def rows(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a node: one truth for all, and inputs and noise of its own."""
    drawn = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=drawn, dtype=torch.float64) + 0.05 * rank
    noise = torch.randn(ROWS, 1, generator=drawn, dtype=torch.float64)
    return inputs, inputs @ torch.linspace(-1, 1, WIDTH, dtype=torch.float64)[:, None] + noise


def loss_of(model: nn.Module, world: int) -> float:
    """The loss on the rows of all nodes, also of those that are lost."""
    return (
        sum(nn.functional.mse_loss(model(x), y).item() for x, y in map(rows, range(world))) / world
    )


class Large(nn.Module):
    """A linear model, and parameters that only make it so large that it is sent in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.more = nn.Linear(WIDTH, 1), nn.Parameter(torch.zeros(9000))

    def forward(self, inputs: torch.Tensor) -> Any:
        """What it predicts."""
        return self.linear(inputs) + self.more.square().sum()


def rate_at(step: int, steps: int) -> float:
    """The step size in a step of an unbroken training of so many: a cosine."""
    return LAST + (RATE - LAST) * (1 + math.cos(math.pi * step / steps)) / 2


def is_rate(rate: float, step: int, steps: int) -> bool:
    """Whether that is what a process had."""
    return abs(rate / rate_at(step, steps) - 1) < 1e-9


def train(
    environment: dict[str, str],
    folder: Path,
    steps: int,
    method: str,
    graph: Any,
    patience: float,
) -> None:
    """What a process does: train on its own rows until so many steps have been made, and write what it saw.

    The number of steps is in a file once it is known; step sizes stay as they are after the `steps` given.
    """
    os.environ.update(environment)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(
        filename=folder / f"{rank}.log", format="%(message)s", level=logging.WARNING
    )
    sys.stderr = (folder / f"{rank}.err").open("a")
    torch.manual_seed(0)
    model = Large().double()
    optimizer = DecentralizedOptimizer(
        model,
        peer.methods.parse(method),
        peer.Network(graph),
        on_loss="continue",
        patience=patience,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, LAST)
    began, (inputs, targets) = optimizer.steps, rows(rank)
    drawn = torch.Generator().manual_seed(1000 * rank + began)
    while optimizer.steps < (number(folder / "end") or FAR):
        taken = torch.randint(ROWS, (8,), generator=drawn)

        def loss(taken: torch.Tensor = taken) -> torch.Tensor:
            return nn.functional.mse_loss(model(inputs[taken]), targets[taken])

        if "hsgd" in method:
            optimizer.step(loss)
        else:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        rate = optimizer.param_groups[0]["lr"]
        if optimizer.steps < steps:
            scheduler.step()
        time.sleep(PACE)
        write(folder / f"{rank}.step", str(optimizer.steps))
    model.load_state_dict(optimizer.average_parameters())
    steps = optimizer.steps
    seen = {
        "loss": loss_of(model, world),
        "steps": steps,
        "began": began,
        "rate": rate,
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def write(file: Path, text: str) -> None:
    """Write a file, so that others see all of it or nothing."""
    new = file.with_suffix(f"{file.suffix}.new")
    new.write_text(text)
    new.replace(file)


def number(file: Path) -> int:
    """The number in a file, 0 without one."""
    return int(file.read_text() or 0) if file.exists() else 0


class Case:
    """A training of several processes, of which one is struck."""

    def __init__(
        self,
        world: int,
        method: str,
        graph: Any,
        steps: int,
        patience: float,
    ) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.world, self.folder = world, Path(tempfile.mkdtemp())
        self.given = steps, method, graph, patience
        self.all: list[Any] = []
        self.now = {rank: self.start(rank) for rank in range(world)}

    def start(self, rank: int) -> Any:
        """Start a process, for the first time or again."""
        environment = {
            **{"RANK": str(rank), "WORLD_SIZE": str(self.world), "PEERDESCENT_TIMEOUT": "60"},
            **{
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
        }
        process = FORKS.Process(target=train, args=(environment, self.folder, *self.given))
        process.start()
        self.all.append(process)
        return process

    def strike(self, kind: str, victim: int, step: int, away: float) -> None:
        """Wait until the victim has made some steps, and strike it a moment later."""
        self.until(victim, step)
        time.sleep(random.random() * 2 * PACE)
        if not self.now[victim].is_alive():  # the case fails, and its logs say why
            return
        os.kill(self.now[victim].pid, signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        if kind.endswith("-back"):
            time.sleep(away)
            if kind.startswith("stop"):
                os.kill(self.now[victim].pid, signal.SIGCONT)
            else:
                self.now[victim] = self.start(victim)

    def until(self, rank: int, step: int) -> None:
        """Wait until a process has made some steps."""
        end = time.monotonic() + LIMIT
        while number(self.folder / f"{rank}.step") < step and time.monotonic() < end:
            time.sleep(0.002)

    def end(self, steps: int, victim: int | None = None) -> None:
        """Let the training end after so many steps; later, if a process that comes back would not have made some."""
        if victim is not None:
            self.until(victim, number(self.folder / f"{victim}.step") + 1)
            steps = max(steps, number(self.folder / f"{victim}.step") + 50)
        write(self.folder / "end", str(steps))

    def relay(self) -> None:
        """Kill all processes, one after the other; each is back and has made some steps before the next is lost."""
        for rank in range(self.world):
            self.strike("kill-back", rank, number(self.folder / f"{rank}.step") + 20, away=0)
            self.until(rank, number(self.folder / f"{rank}.step") + 20)
        self.end(max(number(self.folder / f"{rank}.step") for rank in range(self.world)) + 50)

    def wait(self, but: int | None) -> tuple[dict[int, dict[str, Any]], dict[int, str], int]:
        """What the processes saw, their logs, and how many hang; all are ended."""
        end = time.monotonic() + LIMIT
        for rank, process in self.now.items():
            if rank != but:
                process.join(max(0.1, end - time.monotonic()))
        hang = sum(process.is_alive() for rank, process in self.now.items() if rank != but)
        for process in self.all:
            process.kill()
            process.join(10)
        files = {rank: self.folder / f"{rank}.json" for rank in range(self.world)}
        seen = {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}
        said = {
            rank: "".join(f.read_text() for f in sorted(self.folder.glob(f"{rank}.[el]*")))
            for rank in files
        }
        return seen, said, hang


def unbroken(world: int, method: str, graph: Any, steps: int) -> float:
    """The loss of a training in which nothing happens."""
    case = Case(world, method, graph, steps, 30.0)
    case.end(steps)
    seen, said, _ = case.wait(None)
    assert len(seen) == world, said
    assert all(is_rate(each["rate"], steps - 1, steps) for each in seen.values()), seen
    return float(seen[0]["loss"])


def relay(patience: float) -> tuple[bool, str, dict[int, str]]:
    """Lose all that have begun: whether the first that came leads with the last numbers, what to print, the logs."""
    case = Case(3, METHODS[0], peer.topology.complete(3), FAR, patience)
    case.relay()
    seen, said, hang = case.wait(None)
    found = re.search(
        r"step (\d+): rank 0 leads in lr and all other numbers from now on: those of the last",
        said[0],
    )
    step, rates = int(found[1]) if found else 0, {each["rate"] for each in seen.values()}
    # The leader may have been lost before or after it gave the numbers of that step.
    kept = len(rates) == 1 and any(is_rate(*rates, at, FAR) for at in (step - 1, step))  # type: ignore[call-arg]
    ends = {each["steps"] for each in seen.values()}
    text = f"3 of 3, one after the other, {hang} hang, {len(seen)} ended, at {ends}; rank 0 leads since {step}: {kept}"
    return (
        kept and hang == 0 and len(seen) == 3 and len(ends) == 1,
        f"relay: {METHODS[0]}, {text}",
        said,
    )


def one(
    number_: int, kind: str, known: dict[Any, float], options: Any
) -> tuple[bool, str, dict[int, str]]:
    """A case: whether it ended as it should, what to print, and the logs."""
    world, method = 4 + number_ % 5, METHODS[number_ % len(METHODS)]
    apart, back = kind == "apart", kind.endswith("-back")
    world = 4 if apart else world
    graph = nx.path_graph(4) if apart else peer.topology.exponential(world)
    victim = 1 if apart else random.randrange(world)
    steps = options.steps * (4 if back else 1)
    step = random.randrange(1, options.steps * 3 // 4)
    if not apart and (world, method) not in known:
        known[world, method] = unbroken(world, method, graph, options.steps)
    case = Case(world, method, graph, steps, options.patience)
    longer = (
        3 + 3 * random.random() if kind == "stop-back" else 2 * random.random()
    )  # who is stopped is missed
    case.strike("kill" if apart else kind, victim, step, away=options.patience * longer)
    case.end(steps, victim if back else None)
    seen, said, hang = case.wait(None if back else victim)
    others = [rank for rank in range(world) if rank != victim]
    who = f"{kind}: {method}, rank {victim} of {world} at {step}"
    if apart:
        good = not seen and all("no link joins" in said[rank] for rank in others)
        return good, f"{who}; all others say why they end: {good}", said
    ratio = (
        max((each["loss"] for each in seen.values()), default=float("nan")) / known[world, method]
    )
    left = all(f"rank {victim} left" in said[rank] for rank in others)
    came = not back or all(f"rank {victim} came" in said[rank] for rank in others)
    here = len(seen) == world - (not back)
    same = all(is_rate(each["rate"], steps - 1, steps) for each in seen.values())
    good = hang == 0 and here and 0.9 < ratio < 1.05 and left and came and same
    text = f"loss {ratio:.3f} of the unbroken one, {hang} hang, {len(seen)} ended, "
    text += f"all with its step size: {same}, logs "
    text += f"name who left: {left}{f', who came: {came}' if back else ''}"
    return good, f"{who}; {text}", said


def main() -> int:
    """Run the cases; the exit status is 1 if one of them did not end as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}, apart, relay"
    )
    parser.add_argument(
        "--cases", type=int, default=0, help="how many; by default one of each kind"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--patience", type=float, default=1.5)
    options = parser.parse_args()
    # The first optimizer of a process imports the last of them.
    FORKS.set_forkserver_preload(
        ["peerdescent.torch.optimizer", "peerdescent.cli.main", "torch._dynamo"]
    )
    random.seed(options.seed)
    known: dict[Any, float] = {}
    failed = 0
    for number_ in range(options.cases or len(options.kinds)):
        kind = options.kinds[number_ % len(options.kinds)]
        good, text, said = (
            relay(options.patience) if kind == "relay" else one(number_, kind, known, options)
        )
        print(text, flush=True)
        if not good:
            failed += 1
            print("\n".join(f"rank {rank}: {text}" for rank, text in said.items()), file=sys.stderr)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
