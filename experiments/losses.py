"""Kill or stop a process of a training at a random instant, bring it back or not, and look at how the others end.

    python experiments/losses.py --cases 50
    python experiments/losses.py kill stop kill-back stop-back --seed 1

Four to eight processes train a linear model with `on_loss="continue"`, each on rows of its own. A case is `kill`
(SIGKILL), `stop` (SIGSTOP), or one of them with `-back`: then the process is started anew, or continued (SIGCONT).
`apart` cuts a path in two. The processes meet at a store of this program, as they would at that of an agent, and use
the loopback address alone. Every line says who was lost when, the loss on the rows of all over that of an unbroken
training, how many hang, and whether the logs of all others name who left and who came.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
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
KINDS = ("kill", "stop", "kill-back", "stop-back")
METHODS = ("gt-dsgd[alpha=0.05]", "dsgd[alpha=0.05]", "gt-hsgd[alpha=0.05,beta=0.1]", "d2[alpha=0.05]")
FORKS = multiprocessing.get_context("forkserver")


def rows(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a node: one truth for all, and inputs and noise of its own."""
    drawn = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=drawn, dtype=torch.float64) + 0.05 * rank
    noise = torch.randn(ROWS, 1, generator=drawn, dtype=torch.float64)
    return inputs, inputs @ torch.linspace(-1, 1, WIDTH, dtype=torch.float64)[:, None] + noise


def loss_of(model: nn.Module, world: int) -> float:
    """The loss on the rows of all nodes, also of those that are lost."""
    return sum(nn.functional.mse_loss(model(x), y).item() for x, y in map(rows, range(world))) / world


def train(environment: dict[str, str], folder: Path, steps: int, method: str, graph: Any, patience: float) -> None:
    """What a process does: train on its own rows until so many steps have been made, and write what it saw."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(filename=folder / f"{rank}.log", format="%(message)s", level=logging.WARNING)
    sys.stderr = (folder / f"{rank}.err").open("a")
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 1).double()
    optimizer = DecentralizedOptimizer(
        model, peer.methods.parse(method), peer.Network(graph), on_loss="continue", patience=patience
    )
    began, (inputs, targets) = optimizer.steps, rows(rank)
    drawn = torch.Generator().manual_seed(1000 * rank + began)
    while optimizer.steps < steps:
        taken = torch.randint(ROWS, (8,), generator=drawn)

        def loss(taken: torch.Tensor = taken) -> torch.Tensor:
            return nn.functional.mse_loss(model(inputs[taken]), targets[taken])

        if "hsgd" in method:
            optimizer.step(loss)
        else:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        time.sleep(PACE)
        (folder / f"{rank}.step").write_text(str(optimizer.steps))
    model.load_state_dict(optimizer.average_parameters())
    seen = {"loss": loss_of(model, world), "steps": optimizer.steps, "began": began}
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def number(file: Path) -> int:
    """The number in a file, 0 without one."""
    return int(file.read_text() or 0) if file.exists() else 0


class Case:
    """A training of several processes, of which one is struck."""

    def __init__(self, world: int, method: str, graph: Any, steps: int, patience: float) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.world, self.given, self.folder = world, (steps, method, graph, patience), Path(tempfile.mkdtemp())
        self.all: list[Any] = []
        self.now = {rank: self.start(rank) for rank in range(world)}

    def start(self, rank: int) -> Any:
        """Start a process, for the first time or again."""
        environment = {
            **{"RANK": str(rank), "WORLD_SIZE": str(self.world), "PEERDESCENT_TIMEOUT": "60"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"},
        }
        process = FORKS.Process(target=train, args=(environment, self.folder, *self.given))
        process.start()
        self.all.append(process)
        return process

    def strike(self, kind: str, victim: int, step: int, away: float) -> None:
        """Wait until the victim has made some steps, and strike it a moment later."""
        end = time.monotonic() + LIMIT
        while number(self.folder / f"{victim}.step") < step and time.monotonic() < end:
            time.sleep(0.002)
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
        said = {rank: "".join(f.read_text() for f in sorted(self.folder.glob(f"{rank}.[el]*"))) for rank in files}
        return seen, said, hang


def unbroken(world: int, method: str, graph: Any, steps: int) -> float:
    """The loss of a training in which nothing happens."""
    seen, said, _ = Case(world, method, graph, steps, 30.0).wait(None)
    assert len(seen) == world, said
    return float(seen[0]["loss"])


def main() -> int:
    """Run the cases; the exit status is 1 if one of them did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}, apart")
    parser.add_argument("--cases", type=int, default=0, help="how many; by default one of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--patience", type=float, default=1.5)
    options = parser.parse_args()
    FORKS.set_forkserver_preload(["peerdescent.torch.optimizer", "peerdescent.cli.main"])
    random.seed(options.seed)
    known: dict[tuple[int, str], float] = {}
    failed = 0
    for number_ in range(options.cases or len(options.kinds)):
        kind = options.kinds[number_ % len(options.kinds)]
        world, method = 4 + number_ % 5, METHODS[number_ % len(METHODS)]
        apart = kind == "apart"
        graph = nx.path_graph(4) if apart else peer.topology.exponential(world)
        world = 4 if apart else world
        victim = 1 if apart else random.randrange(world)
        steps = options.steps * (4 if kind.endswith("-back") else 1)
        step = random.randrange(1, options.steps * 3 // 4)
        if not apart and (world, method) not in known:
            known[world, method] = unbroken(world, method, graph, options.steps)
        case = Case(world, method, graph, steps, options.patience)
        back = kind.endswith("-back")
        longer = 3 + 3 * random.random() if kind == "stop-back" else 2 * random.random()  # who is stopped is missed
        case.strike("kill" if apart else kind, victim, step, away=options.patience * longer)
        seen, said, hang = case.wait(None if back else victim)
        others = [rank for rank in range(world) if rank != victim]
        if apart:
            good = not seen and all("no link joins" in said[rank] for rank in others)
            print(f"{kind}: rank {victim} of {world} at {step}; all others say why they end: {good}", flush=True)
        else:
            ratio = max((each["loss"] for each in seen.values()), default=float("nan")) / known[world, method]
            left = all(f"rank {victim} left" in said[rank] for rank in others)
            came = not back or all(f"rank {victim} came" in said[rank] for rank in others)
            here = len(seen) == world - (not back)
            good = hang == 0 and here and 0.9 < ratio < 1.05 and left and came
            print(
                f"{kind}: {method}, rank {victim} of {world} at {step}; loss {ratio:.3f} of the unbroken one, {hang} "
                f"hang, {len(seen)} ended, logs name who left: {left}{f', who came: {came}' if back else ''}",
                flush=True,
            )
        if not good:
            failed += 1
            print("\n".join(f"rank {rank}: {text}" for rank, text in said.items()), file=sys.stderr)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
