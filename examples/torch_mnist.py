"""A small convolutional network in eight processes, each of which has two of the ten digits (one of them three).

Compares GT-HSGD, GT-DSGD and DSGD on the exponential graph with PyTorch's DistributedDataParallel, at equal gradient
cost: a step of GT-HSGD takes two gradients, so it makes half the steps. The digits are MNIST if the folder
PEERDESCENT_DATA has it, else those of scikit-learn. Methods are given as on the command line of peerdescent.
Run: torchrun --nproc-per-node 8 examples/torch_mnist.py --out runs/mnist
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor, nn

import peerdescent as peer
from peerdescent.engines.joining import connect
from peerdescent.runs.costs import Costs
from peerdescent.torch import DecentralizedOptimizer

METHODS = ("gt-hsgd[alpha=0.1,beta=0.3]", "gt-dsgd[alpha=0.1]", "dsgd[alpha=0.1]", "ddp[alpha=0.3]")
TWO_POINTS = ("gt-hsgd", "d-get", "d-spider-sfo", "docom", "deepstorm")
"""Methods that take the gradient of a batch at two points, so that `step` computes the loss itself."""
NODES, TESTED = 8, {"mnist": 10_000, "digits": 297}


class Digits(NamedTuple):
    """The data of one process: its own rows to train on, and its share of the test rows."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(rank: int, world: int) -> Digits:
    """Rows sorted by label and cut into equal pieces; the last rows of the set are for testing."""
    name = "mnist" if os.environ.get("PEERDESCENT_DATA") else "digits"
    data = peer.datasets.load(name, labels="classes", normalise=False)
    cut, side = len(data) - TESTED[name], round(data.dimension**0.5)
    images, labels = torch.tensor(data.features).view(-1, 1, side, side), torch.tensor(data.labels)
    train = peer.datasets.Dataset(data.features[:cut], data.labels[:cut], name)
    rows = torch.from_numpy(train.partition(world, by="label").indices[rank])
    share = slice(cut + rank, None, world)
    return Digits(images[rows], labels[rows], images[share].clone(), labels[share].clone())


def network_for(side: int) -> nn.Module:
    """Two convolutions and a linear layer: 10,330 parameters for images of 28 x 28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * (side // 4) ** 2, 10)),
    )


class Trainer:
    """One process's part in training a model by one method; `spent` counts gradients of single rows."""

    def __init__(self, selector: str, digits: Digits, seed: int) -> None:
        torch.manual_seed(seed)
        self.world = dist.get_world_size()
        self.digits, self.spent, self.steps, self.seconds = digits, 0, 0, 0.0
        self.model = self.called = network_for(digits.images.shape[-1])
        self.draws = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
        self.optimizer: torch.optim.Optimizer
        name, values = peer.methods.split(selector)
        self.two_points = name in TWO_POINTS
        if name == "ddp":
            self.called = nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=values["alpha"])
        else:
            graph = peer.Network(peer.topology.exponential(self.world))
            self.optimizer = DecentralizedOptimizer(self.model, peer.methods.parse(selector), graph)

    def step(self, batch: int) -> None:
        """One step on rows drawn from this process's own, timed."""
        rows = torch.randint(len(self.digits.labels), (batch,), generator=self.draws)
        images, labels = self.digits.images[rows], self.digits.labels[rows]

        def loss() -> Tensor:
            self.spent += batch
            return nn.functional.cross_entropy(self.called(images), labels)

        clock = time.perf_counter()
        self.optimizer.zero_grad()
        if self.two_points:
            self.optimizer.step(loss)  # type: ignore[arg-type]  # PyTorch says that a closure returns a float
        else:
            loss().backward()
            self.optimizer.step()
        self.seconds += time.perf_counter() - clock
        self.steps += 1

    @property
    def bytes(self) -> float:
        """Bytes sent by this process. For DistributedDataParallel, those of a ring all-reduce, not measured."""
        if isinstance(self.optimizer, DecentralizedOptimizer):
            return self.optimizer.bytes_sent
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return self.steps * 2 * (self.world - 1) / self.world * size

    @torch.no_grad()
    def record(self) -> dict[str, Any]:
        """The training loss and the test accuracy of the consensus model, over all processes."""
        judged, found = network_for(self.digits.images.shape[-1]), self.model.state_dict()
        if isinstance(self.optimizer, DecentralizedOptimizer):
            found = self.optimizer.average_parameters()
        judged.load_state_dict(found)
        images, labels, test_images, test_labels = self.digits
        parts = zip(images.split(1000), labels.split(1000), strict=True)
        loss = sum(
            float(nn.functional.cross_entropy(judged(x), y, reduction="sum")) for x, y in parts
        )
        right = int((judged(test_images).argmax(dim=1) == test_labels).sum())
        sums = torch.tensor([loss, len(labels), right, len(test_labels)], dtype=torch.float64)
        dist.all_reduce(sums)  # this also synchronises the processes before time is measured again
        figures = {"samples": self.spent, "step": self.steps, "seconds": self.seconds}
        return {
            **figures,
            "loss": float(sums[0] / sums[1]),
            "accuracy": float(sums[2] / sums[3]),
            "bytes": self.bytes,
        }


def train(selector: str, digits: Digits, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of one method, from the start to the end of its budget."""
    trainer = Trainer(selector, digits, options.seed)
    rows = [trainer.record()]
    for k in range(1, options.records + 1):
        while trainer.spent < k * options.samples / options.records:
            trainer.step(options.batch)
        rows.append(trainer.record())
    return [{"method": selector, **row} for row in rows]


def draw(table: pd.DataFrame) -> Figure:
    """Accuracy and loss against gradients."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, column in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
        for k, (name, rows) in enumerate(table.groupby("method", sort=False)):
            style = {"color": peer.figures.COLOURS[k % 8], "ls": peer.figures.DASHES[k % 4]}
            axes.plot(rows["samples"], rows[column], label=name, **style)
        axes.set(
            xlabel="gradients a process",
            ylabel={"accuracy": "accuracy on unseen rows", "loss": "loss"}[column],
        )
        axes.grid(alpha=0.3)
    axes.set_yscale("log")
    axes.legend(fontsize=8)
    return figure


def explain() -> None:
    """Print how to start several processes, for users who started only one."""
    graph = peer.Network(peer.topology.exponential(NODES))
    size = 4 * sum(p.numel() for p in network_for(28).parameters())
    print(
        f"Start one process per node: torchrun --nproc-per-node {NODES} examples/torch_mnist.py --out runs/mnist"
    )
    print(f"{graph}; what a process sends in a step, for images of 28 x 28:")
    for selector in METHODS[:-1]:
        vectors = Costs(peer.methods.parse(selector), None, graph.degree[:1]).sent(1)
        print(f"  {selector:<30}{vectors * size / 1e6:.3f} MB")
    print(f"  {METHODS[-1]:<30}{2 * (NODES - 1) / NODES * size / 1e6:.3f} MB, if it is a ring")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with each method in turn; rank 0 prints the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "methods", nargs="*", default=METHODS, help="such as 'dsgd[alpha=0.1]' and 'ddp[alpha=0.1]'"
    )
    parser.add_argument("--out", type=Path, help="folder for mnist.csv and mnist.png")
    parser.add_argument(
        "--samples",
        type=int,
        default=100_000,
        help="gradients of single rows that a process may take",
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in each process")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    connect()
    digits = load(dist.get_rank(), dist.get_world_size())
    rows = [row for selector in options.methods for row in train(selector, digits, options)]
    if dist.get_rank() == 0:
        table = pd.DataFrame(rows)
        last = table.groupby("method", sort=False).last()
        last["ms a step"], last["MB sent"] = (
            1e3 * last["seconds"] / last["step"],
            last["bytes"] / 1e6,
        )
        print(
            last[["samples", "step", "loss", "accuracy", "MB sent", "ms a step"]]
            .round(4)
            .to_string()
        )
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            table.to_csv(options.out / "mnist.csv", index=False)
            peer.figures.save(draw(table), options.out / "mnist.png")
    dist.destroy_process_group()


if __name__ == "__main__":
    main() if "RANK" in os.environ else explain()
