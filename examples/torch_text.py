"""A small transformer in four processes, each of which has text of another kind.

The sites hold licences, Python's reference manual, source code, and tables of characters; all of it comes with Python
and the libraries that peerdescent needs. Compares methods over a ring with PyTorch's DistributedDataParallel and
AdamW, at equal gradient cost. Methods are given as on the command line of peerdescent.
Run: torchrun --nproc-per-node 4 examples/torch_text.py --out runs/text
"""

import argparse
import asyncio
import encodings
import importlib.metadata
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

import peerdescent as peer
from peerdescent.engines.joining import connect
from peerdescent.runs.costs import Costs
from peerdescent.torch import DecentralizedOptimizer

METHODS = (
    *(
        "dsgd[alpha=1]",
        "gt-dsgd[alpha=1]",
        "qg-dsgdm[alpha=1]",
        "d-adam[alpha=0.03]",
        "gt-adam[alpha=0.003]",
    ),
    *("adam*choco[alpha=0.01,compressor=top-k(0.05)]", "ddp[alpha=0.01]"),
)
LIBRARIES = (
    "jax",
    "jaxlib",
    "matplotlib",
    "networkx",
    "numpy",
    "pandas",
    "plotly",
    "scikit-learn",
    "scipy",
    "torch",
)
SITES = ("licences", "manual", "source", "tables")
LENGTH, BLOCK, SYMBOLS, CONTEXT, WIDTH, LAYERS = 200_000, 2000, 128, 64, 64, 2


def once(pieces: Iterable[str]) -> list[str]:
    """The pieces, each of them once."""
    return list({" ".join(piece.split()): piece for piece in pieces}.values())


def written(site: str) -> str:
    """The text of a site; what many licences or tables have in common is there once."""
    if site == "licences":
        files = [path for name in LIBRARIES for path in importlib.metadata.files(name) or ()]
        found = [
            path.locate() for path in files if re.match("licen[cs]e|copying", path.name.lower())
        ]
        texts = [
            Path(str(path)).read_text(errors="replace")
            for path in found
            if Path(str(path)).suffix != ".py"
        ]
        return "\n\n".join(once(part for text in texts for part in re.split(r"\n\s*\n", text)))
    if site == "manual":
        return "\n".join(topics.values())
    folder = Path({"source": asyncio, "tables": encodings}[site].__path__[0])
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob("*.py"))]
    return "\n".join(
        texts if site == "source" else once(line for text in texts for line in text.splitlines())
    )


class Text(NamedTuple):
    """The data of one process: windows of characters to train on, at any place, and others that no one trains on."""

    train: Tensor
    test: Tensor


def load(site: str) -> Text:
    """Equally much text for each site, in blocks, of which every tenth is for testing."""
    characters = written(site).encode("ascii", "replace")[:LENGTH]
    assert len(characters) == LENGTH, f"{site} has only {len(characters)} characters"
    blocks = torch.tensor(list(characters)).view(-1, BLOCK)
    tested = torch.arange(len(blocks)) % 10 == 9
    train, test = blocks[~tested].flatten(), blocks[tested].flatten()
    return Text(train.unfold(0, CONTEXT + 1, 1), test.unfold(0, CONTEXT + 1, CONTEXT))


class Transformer(nn.Module):
    """A decoder, which predicts each character of a window from those before it: 120,704 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        for table in (self.symbols, self.places):
            nn.init.normal_(table.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            nhead=4,
            dim_feedforward=4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False
        )

    def forward(self, windows: Tensor) -> Tensor:
        """The loss: nats per character, a mean over all characters but the first of each window."""
        entered, expected = windows[:, :-1], windows[:, 1:]
        x = self.symbols(entered) + self.places.weight
        x = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return nn.functional.cross_entropy(x.flatten(0, 1), expected.flatten())


class Trainer:
    """One process's part in training a model by one method."""

    def __init__(self, selector: str, text: Text, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.text, self.options, self.world = text, options, dist.get_world_size()
        self.model = Transformer()
        self.called: nn.Module = self.model
        self.steps = 0
        self.optimizer: torch.optim.Optimizer
        name, values = peer.methods.split(selector)
        if name == "ddp":
            self.called = nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=values["alpha"], weight_decay=0
            )
        else:
            ring, method = (
                peer.Network(peer.topology.ring(self.world)),
                peer.methods.parse(selector),
            )
            self.optimizer = DecentralizedOptimizer(self.model, method, ring)

    def train(self) -> Iterable[dict[str, Any]]:
        """Train with all of the budget; gives a record now and then."""
        options, optimizer = self.options, self.optimizer
        draws = torch.Generator().manual_seed(1000 * options.seed + dist.get_rank())
        sampler = RandomSampler(range(len(self.text.train)), True, options.samples, draws)
        loader: Iterable[Tensor] = DataLoader(self.text.train, options.batch, sampler=sampler)  # type: ignore[arg-type]
        steps = math.ceil(options.samples / options.batch)
        recorded = {round(k * steps / options.records) for k in range(1, options.records + 1)}
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: schedule(t / steps))
        yield self.record()
        for windows in (
            optimizer.together(loader) if isinstance(optimizer, DecentralizedOptimizer) else loader
        ):
            optimizer.zero_grad()
            loss = self.called(windows)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            self.steps += 1
            if self.steps in recorded:
                yield self.record()

    @property
    def bytes(self) -> float:
        """Bytes sent by this process. For DistributedDataParallel, those of a ring all-reduce, not measured."""
        if isinstance(self.optimizer, DecentralizedOptimizer):
            return self.optimizer.bytes_sent
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return self.steps * 2 * (self.world - 1) / self.world * size

    @torch.no_grad()
    def record(self) -> dict[str, Any]:
        """Bits per character of the consensus model on the unseen text of each site, their mean, and the worst."""
        judged, found = Transformer(), self.model.state_dict()
        if isinstance(self.optimizer, DecentralizedOptimizer):
            found = self.optimizer.average_parameters()
        judged.load_state_dict(found)
        bits = torch.zeros(self.world, dtype=torch.float64)
        bits[dist.get_rank()] = judged(self.text.test) / math.log(2)
        dist.all_reduce(bits)
        sites = dict(zip(SITES, bits.tolist(), strict=False))
        samples = min(self.steps * self.options.batch, self.options.samples)
        counts = {"samples": samples, "step": self.steps, "bytes": self.bytes}
        return {**counts, "mean": float(bits.mean()), "worst": float(bits.max()), **sites}


def schedule(part: float) -> float:
    """The step size after a part of all steps: it rises to 1 in the first twentieth, then falls like a cosine."""
    return min((part + 0.005) / 0.05, 0.5 + 0.5 * math.cos(math.pi * part))


def draw(table: pd.DataFrame) -> Figure:
    """The mean over the sites and the worst site, against gradients."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    for axes, column in zip(figure.subplots(1, 2), ("mean", "worst"), strict=True):
        for k, (name, rows) in enumerate(table.groupby("method", sort=False)):
            style = {"color": peer.figures.COLOURS[k % 8], "ls": peer.figures.DASHES[k % 4]}
            axes.plot(rows["samples"][1:], rows[column][1:], label=name, **style)
        label = {"mean": "mean of all sites", "worst": "worst site"}[column]
        axes.set(xlabel="gradients a process", ylabel=f"bits per character, {label}")
        axes.grid(alpha=0.3)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    return figure


def explain() -> None:
    """Print how to start several processes, for users who started only one."""

    ring = peer.Network(peer.topology.ring(len(SITES)))
    entries = sum(p.numel() for p in Transformer().parameters())
    print(
        f"Start one process per site: torchrun --nproc-per-node {len(SITES)} examples/torch_text.py --out runs/text"
    )
    for site in SITES:
        print(f"  {site:<10}{' '.join(written(site)[50_000:50_200].split())[:90]}")
    print(f"{ring}; what a process sends in a step:")
    for selector in METHODS[:-1]:
        costs = Costs(
            peer.methods.parse(selector),
            None,
            ring.degree[:1],
            message=lambda message: message.size(entries, 4),
        )
        print(f"  {selector:<50}{(costs.sent(2) - costs.sent(1)) / 1e6:.3f} MB")
    print(
        f"  {METHODS[-1]:<50}{2 * (len(SITES) - 1) / len(SITES) * 4 * entries / 1e6:.3f} MB, if it is a ring"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with each method in turn; rank 0 prints the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "methods",
        nargs="*",
        default=METHODS,
        help="such as 'dsgd[alpha=0.1]' and 'ddp[alpha=0.01]'",
    )
    parser.add_argument("--out", type=Path, help="folder for text.csv and text.png")
    parser.add_argument(
        "--samples",
        type=int,
        default=4000,
        help="gradients of single windows that a process may take",
    )
    parser.add_argument("--batch", type=int, default=8, help="windows of 64 characters")
    parser.add_argument("--records", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in each process")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    connect()
    if dist.get_world_size() > len(SITES):
        parser.error(f"there is text for {len(SITES)} sites: start no more processes than that")
    text, rows = load(SITES[dist.get_rank()]), []
    for selector in options.methods:
        for row in Trainer(selector, text, options).train():
            rows.append({"method": selector, **row})
            if dist.get_rank() == 0:
                print(
                    "{method}: step {step}, {mean:.3f} bits, worst {worst:.3f}".format(**rows[-1]),
                    flush=True,
                )
    if dist.get_rank() == 0:
        table = pd.DataFrame(rows)
        last = table.groupby("method", sort=False).last()
        last["MB sent"] = last["bytes"] / 1e6
        print(last.drop(columns="bytes").round(3).to_string())
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            table.to_csv(options.out / "text.csv", index=False)
            peer.figures.save(draw(table), options.out / "text.png")
    dist.destroy_process_group()


if __name__ == "__main__":
    main() if "RANK" in os.environ else explain()
