"""What `test_loops` runs in processes of their own, one a node of a network of four: training loops of users.

`main(FOLDER)`, with the variables that torchrun sets, makes one check after the other and leaves what it saw in
FOLDER/RANK.npz. FOLDER/inputs.npz has the quadratics, f(x) = x'Qx / 2 + <slope, x>, with another slope in each step. At
the end there is a forward pass without a step, which must not hold up the exit.
"""

from __future__ import annotations

import copy
import io
import os
from pathlib import Path

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from optimizer_worker import NODES, OPTIONS, RING, Bowl, outcome, point, refusal
from torch import nn

import peerdescent as peer
from peerdescent.torch import DecentralizedOptimizer
from small import some

STEPS = 9
EXACT = ("gt-sarah", "gt-svrg")
TWO_POINTS = ("d-get", "d-spider-sfo", "gt-hsgd", "gt-page", "docom", "deepstorm")
ONE_POINT = tuple(name for name in peer.methods.METHODS if name not in (*EXACT, *TWO_POINTS))
AHEAD = (
    "dsgd",
    "d-pd-sgd",
    "push-pull",
    "add-opt",
    "extra",
    "gt-adam",
    "gt-dsgd mixed first",
    "proxgt mixed first",
)
"""Methods that mix vectors of their state, so that a round begins before the gradient is known."""
DIVIDES = ("qg-dsgdm", "decentlam", "k-gt")
"""Methods that divide by their step size."""
ZERO = some(ONE_POINT, 4, "choco-sgd", *DIVIDES)
LENGTHS = (3, 5, 4, 5)
COMPRESSED = {"choco-sgd": "top_k(0.1)", "beer": "quantize(4)", "motef": "random_k(0.25)"}
RATES, DECAYS = (0.05, 0.1), (0.3, 0.0)
GROUPED = ("dsgd", "dsgdm", "gt-dsgd", "d-adam", "gt-adam", "qg-dsgdm", "k-gt", "extra", "gt-hsgd")
RESUMED = ("dsgd", "extra", "gt-adam", "gt-dsgd mixed first", "d-get mixed first", "d-adam", "k-gt")
SITES = (
    "dsgd",
    "gt-dsgd",
    "gt-nsgdm",
    "gt-hsgd",
    "d-adam",
    "qg-dsgdm in groups",
    "qg-dsgdm in odd groups",
)
DIRECTED = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)])
"""Nodes of different degrees, so that rows and columns of the weights have other sums."""


def build(name):
    """A method by its name, with the numbers of these tests; "mixed first" is one that mixes vectors of its state."""
    first = name.endswith(" mixed first")
    method = peer.methods.METHODS[name.split()[0]].build()
    method = method.replace(**{k: v for k, v in OPTIONS.items() if k in method.parameters})
    return method.replace(atc=False) if first else method


class Doubled(peer.estimators.sgd):
    """An estimator of a user."""

    def init(self, x, net):
        return 2 * net.grad(x, net.sample(1)), ()

    def step(self, x, memory, net):
        return 2 * net.grad(x, net.sample(1)), ()


class Tied(nn.Module):
    """A parameter with two names, one that is frozen, and one that nothing depends on."""

    def __init__(self, tied):
        super().__init__()
        self.one = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
        self.other = self.one if tied else None
        self.frozen = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, target):
        other = self.one if self.other is None else self.other
        return (self.one * other * self.frozen - target).square().sum()


class Worker:
    def __init__(self, folder):
        self.folder, self.rank = Path(folder), int(os.environ["RANK"])
        inputs = np.load(self.folder / "inputs.npz")
        self.matrices, self.slopes = (
            torch.from_numpy(inputs[name]) for name in ("matrices", "slopes")
        )
        self.seen = {}

    def loss(self, model, t):
        x = model()
        own = [each.to(x.dtype) for each in (self.matrices[self.rank], self.slopes[t, self.rank])]
        return x @ own[0] @ x / 2 + own[1] @ x

    def bowl(self, method, network=RING, dtype=torch.float64, **options):
        """A bowl that starts where all bowls do, and its optimizer."""
        torch.manual_seed(7)
        model = Bowl().to(dtype)
        if "params" in options:
            options["params"] = options["params"](model)
        method = build(method) if isinstance(method, str) else method
        return model, DecentralizedOptimizer(model, method, network, **options)

    def walk(self, model, optimizer, steps=range(STEPS), before=lambda: None):
        """x_{t+1} for every t, by steps that take the gradients that are there."""
        points = []
        for t in steps:
            optimizer.zero_grad()
            self.loss(model, t).backward()
            before()
            assert optimizer.step() is None
            points.append(point(model))
        return np.array(points)

    def walk_by_closure(self, model, optimizer, steps=range(STEPS)):
        points = []
        for t in steps:
            optimizer.step(lambda t=t: self.loss(model, t))
            points.append(point(model))
        return np.array(points)

    def any_walk(self, name, *arguments):
        return (self.walk_by_closure if name.split()[0] in TWO_POINTS else self.walk)(*arguments)

    def methods(self):
        """Every method by closure and without, and whether a round has begun when the forward pass is over."""
        for name in dict.fromkeys([*ONE_POINT, *AHEAD]):
            begun = []
            model, optimizer = self.bowl(name)
            self.seen["start"] = point(model)
            self.seen[f"free {name}"] = self.walk(
                model,
                optimizer,
                before=lambda o=optimizer, b=begun: b.append(o.prepared is not None),
            )
            self.seen[f"begun {name}"] = begun
            self.seen[f"kept {name}"] = [p.grad is not None for p in model.parameters()]
            self.seen[f"closure {name}"] = self.walk_by_closure(*self.bowl(name))
        for name in TWO_POINTS:
            model, optimizer = self.bowl(name)
            self.loss(model, 0).backward()
            self.seen[f"refusal {name}"] = refusal(optimizer.step)
        for name in ZERO:
            model, optimizer = self.bowl(name)
            optimizer.param_groups[0]["lr"] = 0.0
            self.seen[f"zero {name}"] = refusal(
                lambda m=model, o=optimizer: self.walk(m, o, range(3))
            )
            self.seen[f"zero x {name}"] = point(model)
        for name in EXACT:
            method = peer.methods.METHODS[name].build()
            self.seen[f"refusal {name}"] = refusal(lambda method=method: self.bowl(method))

    def gradients(self):
        """None, clipped, accumulated, and not set to zero."""
        model, optimizer = self.bowl("dsgd")
        self.seen["no backward"] = refusal(optimizer.step)
        self.loss(model, 0).backward()
        optimizer.zero_grad()
        self.seen["no backward since"] = refusal(optimizer.step)
        self.seen["after refusals"] = self.walk(model, optimizer)

        model, optimizer = self.bowl("gt-dsgd")
        self.seen["clipped"] = self.walk(
            model, optimizer, before=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        )
        other, second = self.bowl("gt-dsgd")

        def clipped(t):
            second.zero_grad()
            loss = self.loss(other, t)
            loss.backward()
            nn.utils.clip_grad_norm_(other.parameters(), 0.3)
            return loss

        self.seen["clipped by closure"] = [
            second.step(lambda t=t: clipped(t)) and point(other) for t in range(STEPS)
        ]

        model, optimizer = self.bowl("gt-dsgd")
        other, second = self.bowl("gt-dsgd")
        third, added = self.bowl("gt-dsgd")
        points = []
        for t in range(0, STEPS, 3):
            optimizer.zero_grad()
            for k in range(3):
                (self.loss(model, t + k) / 3).backward()
            optimizer.step()
            second.step(lambda t=t: sum(self.loss(other, t + k) for k in range(3)) / 3)

            def last(t=t):  # as libraries do that accumulate, and give the last batch as a closure
                loss = self.loss(third, t + 2) / 3
                loss.backward()
                return loss

            added.zero_grad()
            for k in range(2):
                (self.loss(third, t + k) / 3).backward()
            added.step(last)
            points.append([point(model), point(other), point(third)])
        self.seen["accumulated"] = points
        self.loss(third, 0).backward()
        self.seen["refusal lost"] = refusal(lambda: added.step(lambda: self.loss(third, 1)))

        model, optimizer = self.bowl("dsgd")
        points = []
        for t in range(STEPS):
            self.loss(model, t).backward()
            optimizer.step()
            points.append(point(model))
        self.seen["never zero"] = points

        model, optimizer = self.bowl("dsgd")
        loss = model.left.square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        self.seen["stale graph"] = outcome(loss.backward)

    def overflows(self):
        """A GradScaler, and a batch beyond all numbers in one process."""
        for name in ("dsgd", "gt-dsgd"):
            for clips in (False, True):
                model, optimizer = self.bowl(name)
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
                points = []
                for t in range(STEPS):
                    optimizer.zero_grad()
                    scaler.scale(
                        self.loss(model, t) * (torch.inf if t == 4 and self.rank == 1 else 1)
                    ).backward()
                    if clips:
                        scaler.unscale_(optimizer)
                        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                    scaler.step(optimizer)
                    scaler.update()
                    points.append(point(model))
                kind = f"{name}{' clipped' * clips}"
                self.seen[f"scaled {kind}"], self.seen[f"scale {kind}"] = points, scaler.get_scale()
                self.seen[f"scaled steps {kind}"] = optimizer.steps
                clip = nn.utils.clip_grad_norm_ if clips else lambda *_: None
                model, optimizer = self.bowl(name)
                self.seen[f"unscaled {kind}"] = self.walk(
                    model,
                    optimizer,
                    [t for t in range(STEPS) if t != 4],
                    before=lambda clip=clip, model=model: clip(model.parameters(), 0.3),
                )

    def groups(self):
        """Other step sizes and weight decays for the two parameters, the second of them first."""

        def params(model):
            of = [model.left, model.right]
            return [{"params": [of[k]], "lr": RATES[k], "weight_decay": DECAYS[k]} for k in (1, 0)]

        for name in GROUPED:
            model, optimizer = self.bowl(name, params=params)
            self.seen[f"groups {name}"] = self.any_walk(name, model, optimizer)
            model, optimizer = self.bowl(name, weight_decay=0.2)
            self.seen[f"decay {name}"] = self.any_walk(name, model, optimizer)
        own = peer.compose(Doubled(), peer.fusions.consensus(alpha=0.05))
        model, optimizer = self.bowl(own, weight_decay=0.4)
        self.seen["decay own"] = self.walk(model, optimizer)
        model, optimizer = self.bowl("dsgdm", params=params)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.5**t])
        self.seen["groups scheduled"] = self.walk(model, optimizer, before=lambda: None)
        self.seen["scheduled rates"] = [group["lr"] for group in optimizer.param_groups]
        for t in range(2):
            self.walk(model, optimizer, [t])
            schedule.step()
        self.seen["later rates"] = [group["lr"] for group in optimizer.param_groups]

        def other_betas():
            model, optimizer = self.bowl("d-adam", params=params)
            optimizer.param_groups[1]["beta1"] = 0.5
            self.walk(model, optimizer)

        plain, decays = self.bowl("gt-momentum"), self.bowl("gt-momentum", weight_decay=0.2)
        for pair in (plain, decays):
            self.walk(*pair, range(2))
        for name, action in {
            "left out": lambda: self.bowl("dsgd", params=lambda m: [{"params": [m.left]}]),
            "betas": other_betas,
            "decay loaded": lambda: plain[1].load_state_dict(decays[1].state_dict()),
            "decay not loaded": lambda: decays[1].load_state_dict(plain[1].state_dict()),
        }.items():
            self.seen[f"refusal {name}"] = refusal(action)

    def many_groups(self):
        """More numbers than the line of a message has room for, of which one differs in one process."""

        def build_many(last):
            torch.manual_seed(3)
            model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(40)])
            groups = [
                {"params": list(layer.parameters()), "lr": 0.01 + 0.001 * k}
                for k, layer in enumerate(model)
            ]
            optimizer = DecentralizedOptimizer(model, build("gt-dsgd"), RING, params=groups)
            optimizer.param_groups[-1]["lr"] = last
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        self.seen["many groups"] = refusal(lambda: build_many(0.5))
        self.seen["refusal many groups"] = refusal(
            lambda: build_many(0.25 if self.rank == 1 else 0.5)
        )

    def rounded(self):
        """Messages of half the bytes, and parameters of half the bytes."""
        pushed = peer.Network(DIRECTED, weights="push-pull")
        for kind in (None, torch.bfloat16, torch.float16):
            model, optimizer = self.bowl("gt-dsgd", dtype=torch.float32, message=kind)
            self.seen[f"rounded {kind}"] = self.walk(model, optimizer)
            held = optimizer.state_dict()["state"][0]
            self.seen[f"rounded tracker {kind}"] = np.stack([held["1"], held["2"]]).astype("f8")
            self.seen[f"rounded bytes {kind}"] = optimizer.bytes_sent
        model, optimizer = self.bowl("push-pull", pushed, message=torch.bfloat16)
        self.walk(model, optimizer)
        held = optimizer.state_dict()["state"][0]
        self.seen["pushed tracker"] = np.stack([held["1"], held["2"]])
        model, optimizer = self.bowl("extra", message=torch.bfloat16)
        self.walk(model, optimizer)
        self.seen["rounded dual"] = optimizer.state_dict()["state"][0]["1"]
        model, optimizer = self.bowl("dsgd", message=torch.float16)
        with torch.no_grad():
            model.left.fill_(1e6 if self.rank == 2 else 1.0)
        self.seen["too large"] = outcome(lambda: self.walk(model, optimizer, range(3)))

        for name in ("dsgd", "d-adam"):
            torch.manual_seed(7)
            model = nn.Linear(6, 2, bias=False).to(torch.bfloat16)
            optimizer = DecentralizedOptimizer(
                model, build(name).replace(alpha=2.0**-10), RING, weight_decay=0.25
            )
            self.seen[f"half start {name}"] = model.weight.detach().float().reshape(-1)
            target = (torch.arange(12.0) - 4 * self.rank).view(2, 6).to(torch.bfloat16)
            for _ in range(STEPS):
                optimizer.zero_grad()
                (model.weight * target).sum().backward()
                optimizer.step()
            self.seen[f"half {name}"] = model.weight.detach().float().reshape(-1)
            self.seen[f"half master {name}"] = optimizer.state_dict()["state"][0]["master"]
            self.seen[f"half target {name}"] = target.float().reshape(-1)

    def cheap(self):
        """The bytes of compressed messages, and of rounds that are rare."""
        for name, operator in COMPRESSED.items():
            torch.manual_seed(7)
            model = nn.Linear(20, 10)
            method = peer.methods.METHODS[name].build().replace(compressor=operator)
            optimizer = DecentralizedOptimizer(model, method, RING)
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(8, 20)).square().mean().backward()
                optimizer.step()
            self.seen[f"compressed {name}"] = optimizer.bytes_sent
        for name in ("k-gt", "led"):
            model, optimizer = self.bowl(name)
            sent = []
            self.walk(model, optimizer, before=lambda o=optimizer, s=sent: s.append(o.bytes_sent))
            self.seen[f"rare {name}"] = [*sent, optimizer.bytes_sent]

    def uneven(self):
        """Loaders of different lengths."""
        model, optimizer = self.bowl("dsgd")
        loader = torch.utils.data.DataLoader(range(LENGTHS[self.rank]), batch_size=None)
        for end in ("shortest", "longest"):
            given = []
            for _ in range(2):
                for t in optimizer.together(loader, end=end):
                    given.append(t)
                    self.walk(model, optimizer, [t])
            self.seen[f"together {end}"] = given
        self.seen["together steps"] = optimizer.steps
        self.seen["refusal empty"] = refusal(lambda: list(optimizer.together([], end="longest")))
        self.seen["refusal end"] = refusal(lambda: list(optimizer.together(loader, end="middle")))

    def resumed(self):
        """A state from the middle, which another optimizer loads."""
        for name in RESUMED:
            model, optimizer = self.bowl(name)
            self.any_walk(name, model, optimizer, range(4))
            self.loss(model, 4)  # rounds may have begun
            kept = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], kept)
            self.seen[f"whole {name}"] = self.any_walk(name, model, optimizer, range(4, STEPS))
            torch.manual_seed(self.rank)
            model = Bowl()
            optimizer = DecentralizedOptimizer(model, build(name), RING)
            kept.seek(0)
            for each, state in zip(
                (model, optimizer), torch.load(kept, weights_only=True), strict=True
            ):
                each.load_state_dict(state)
            self.seen[f"resumed {name}"] = self.any_walk(name, model, optimizer, range(4, STEPS))
            if name == "dsgd":
                self.loss(model, 0)
                self.seen["refusal between"] = refusal(
                    lambda o=optimizer: o.load_state_dict(o.state_dict())
                )

    def changes(self):
        """Parameters that somebody else changes."""

        def changed(action, at):
            model, optimizer = self.bowl("dsgd")
            self.walk(model, optimizer, range(2))
            if at == "before forward":
                action(model)
            optimizer.zero_grad()
            self.loss(model, 2).backward()
            if at == "after forward":
                action(model)
            optimizer.step()
            return point(model)

        other = Bowl()
        with torch.no_grad():
            for p in other.parameters():
                p.fill_(1.0 + self.rank)
        state = other.state_dict()

        def replace(model):
            for p in model.parameters():
                p.data = torch.full_like(p, 1.0 + self.rank)

        def assign(model):
            model.load_state_dict(copy.deepcopy(state), assign=True)

        def fill(model):
            for p in model.parameters():
                p.detach().fill_(1.0 + self.rank)

        def fill_data(model):
            for p in model.parameters():
                p.data.fill_(1.0 + self.rank)

        load = lambda model: model.load_state_dict(state)  # noqa: E731
        for name, action in {
            "load": load,
            "replace": replace,
            "fill": fill,
            "fill data": fill_data,
        }.items():
            self.seen[f"changed {name}"] = changed(action, "before forward")
        for name, action in {"load": load, "replace": replace, "fill": fill}.items():
            self.seen[f"refusal late {name}"] = refusal(
                lambda action=action: changed(action, "after forward")
            )
        self.seen["refusal assign"] = refusal(lambda: changed(assign, "before forward"))
        self.seen["refusal single"] = refusal(
            lambda: changed(lambda model: model.float(), "before forward")
        )

    def copies(self):
        """Copies of a model have no part in its optimizer."""
        model, optimizer = self.bowl("dsgd")
        self.walk(model, optimizer, range(2))
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        copied, loaded = copy.deepcopy(model), torch.load(stored, weights_only=False)
        parameters = list(model.parameters())
        self.seen["storages"] = len({p.untyped_storage().data_ptr() for p in parameters}) == len(
            parameters
        )
        self.seen["storages fit"] = [p.untyped_storage().nbytes() == p.nbytes for p in parameters]
        found = []
        for each in (copied, loaded):
            each.train()
            each().sum().backward()
            found.append(optimizer.prepared is None)
            torch.optim.SGD(each.parameters(), lr=0.1).step()
        model()
        found.append(optimizer.prepared is not None)
        self.seen["copies begin nothing"] = found
        self.seen["beside copies"] = self.walk(model, optimizer, range(2, STEPS))
        # A second optimizer of the same model, while the first one is still there.
        second = DecentralizedOptimizer(model, build("dsgd"), RING, start="keep")
        self.walk(model, second, range(2))
        model()
        self.seen["hooks"] = (
            len(model._forward_pre_hooks),
            optimizer.prepared is None,
            second.prepared is not None,
        )
        self.walk(model, second, range(2))

    def layouts(self):
        for kind in ("plain", "channels last"):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
            model = model.to(memory_format=torch.channels_last) if kind != "plain" else model
            optimizer = DecentralizedOptimizer(model, build("gt-adam").replace(alpha=0.01), RING)
            generator = torch.Generator().manual_seed(self.rank)
            for _ in range(5):
                images = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
                images = images.to(memory_format=torch.channels_last) if kind != "plain" else images
                optimizer.zero_grad()
                model(images).square().mean().backward()
                optimizer.step()
            weights = [p for p in model.parameters() if p.dim() == 4]
            order = torch.channels_last if kind != "plain" else torch.contiguous_format
            self.seen[f"layout order {kind}"] = [
                p.is_contiguous(memory_format=order) for p in weights
            ]
            self.seen[f"layout {kind}"] = point(model)
        for tied in (True, False):
            model = Tied(tied)
            optimizer = DecentralizedOptimizer(model, build("gt-dsgd").replace(alpha=0.01), RING)
            for t in range(STEPS):
                optimizer.zero_grad()
                model(torch.full((3,), 1.0 + t + self.rank, dtype=torch.float64)).backward()
                optimizer.step()
            self.seen[f"tied {tied}"] = torch.stack([model.one.detach(), model.frozen])
            self.seen[f"tied unused {tied}"] = model.unused.detach()
            average = optimizer.average_parameters()
            self.seen[f"tied average {tied}"] = average["one"], average.get("other", average["one"])

    def validation(self):
        """Forward passes that train nothing, in some processes only."""
        model, optimizer = self.bowl("dsgd")
        points, found = [], []
        for t in range(STEPS):
            if self.rank in (0, t % NODES):
                model.eval()
                self.loss(model, t)
                model.train()
                with torch.no_grad():
                    self.loss(model, t)
                with torch.inference_mode():
                    self.loss(model, t)
                found.append(optimizer.prepared is None)
            points.append(self.walk(model, optimizer, [t])[0])
        self.seen["validated"], self.seen["validated quietly"] = points, all(found)

    def wrapped(self):
        model = nn.Linear(2, 2)
        optimizer = DecentralizedOptimizer(model, build("dsgd"), RING)
        around = nn.parallel.DistributedDataParallel(model)
        self.seen["refusal around"] = refusal(lambda: around(torch.ones(1, 2)))
        model(torch.ones(1, 2)).sum().backward()
        self.seen["after around"] = refusal(optimizer.step)

    def sites(self):
        """Two sites of two processes, and the same with one process a site that has its whole batch."""
        rank = self.rank
        inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
        pair = peer.Network([[0.75, 0.25], [0.25, 0.75]])
        generator = torch.Generator().manual_seed(rank // 2)
        rows = torch.randn(STEPS, 8, 4, generator=generator, dtype=torch.float64)
        rows[:, :, 0] += 1 + rank // 2

        def model_of(odd=False):
            torch.manual_seed(5)
            return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1, bias=odd)).double()

        def criterion(model, batch):
            return (
                (model(batch[:, 1:].sum(dim=1, keepdim=True) * batch) - batch[:, :1])
                .square()
                .mean()
            )

        def train(name, model, share, site, steps=range(STEPS), optimizer=None, scaler=None):
            options = {}
            if name.endswith(" groups"):
                parameters = list(model.parameters())
                options["params"] = [
                    {"params": parameters[2:], "lr": 0.02},
                    {"params": parameters[:2], "lr": 0.05, "weight_decay": 0.1},
                ]
            if optimizer is None:
                whole = (
                    nn.parallel.DistributedDataParallel(model, process_group=inside)
                    if site
                    else model
                )
                optimizer = DecentralizedOptimizer(
                    whole, build(name), pair, process_group=across, **options
                )
            else:
                whole = optimizer.flat.model
            for t in steps:
                batch = rows[t, share]
                if name in TWO_POINTS:
                    optimizer.step(lambda batch=batch: criterion(whole, batch))
                else:
                    optimizer.zero_grad()
                    criterion(whole, batch).backward()
                    optimizer.step()
            return optimizer

        half = slice(0, 4) if rank % 2 == 0 else slice(4, 8)
        for name in SITES:
            model, alone = (model_of("odd" in name) for _ in range(2))
            together, single = (
                train(name, model, half, True),
                train(name, alone, slice(None), False),
            )
            self.seen[f"site {name}"], self.seen[f"site alone {name}"] = point(model), point(alone)
            self.seen[f"site bytes {name}"] = together.bytes_sent, single.bytes_sent
        # A state from the middle.
        model = model_of()
        optimizer = train("gt-dsgd", model, half, True, range(4))
        model_state, state = (
            copy.deepcopy(model.state_dict()),
            copy.deepcopy(optimizer.state_dict()),
        )
        train("gt-dsgd", model, half, True, range(4, STEPS), optimizer)
        self.seen["site whole"] = point(model)
        model.load_state_dict(model_state)
        optimizer.load_state_dict(state)
        train("gt-dsgd", model, half, True, range(4, STEPS), optimizer)
        self.seen["site resumed"] = point(model)
        end = copy.deepcopy(model.state_dict())
        model.load_state_dict(model_state)
        optimizer.load_state_dict(state)
        if rank == 3:
            model[0].bias.detach().add_(1)
        self.seen["refusal site state"] = refusal(
            lambda: train("gt-dsgd", model, half, True, range(4, 5), optimizer)
        )
        model.load_state_dict(end)
        state["state"][0]["rank"] = state["state"][0]["rank"].replace("piece 0", "piece 1")
        self.seen["refusal piece"] = refusal(lambda: optimizer.load_state_dict(state))
        self.seen["site together"] = [
            len(list(optimizer.together(range(LENGTHS[rank]), end=end)))
            for end in ("shortest", "longest")
        ]
        average = optimizer.average_parameters()
        self.seen["site average"] = torch.cat([value.reshape(-1) for value in average.values()])
        # A batch beyond all numbers in one process.
        model = model_of()
        optimizer = train("dsgd", model, half, True, range(0))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        for t in range(3):
            optimizer.zero_grad()
            loss = criterion(optimizer.flat.model, rows[t, half])
            scaler.scale(loss * (torch.inf if t == 1 and rank == 0 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        self.seen["site steps"] = optimizer.steps
        compresses = lambda: DecentralizedOptimizer(  # noqa: E731
            optimizer.flat.model, build("choco-sgd"), pair, process_group=across
        )
        self.seen["refusal compresses"] = refusal(compresses)


def main(folder):
    torch.set_num_threads(1)
    worker = Worker(folder)
    for check in (
        worker.methods,
        worker.gradients,
        worker.overflows,
        worker.groups,
        worker.many_groups,
        worker.rounded,
        worker.cheap,
        worker.uneven,
        worker.resumed,
        worker.changes,
        worker.copies,
        worker.layouts,
        worker.validation,
        worker.wrapped,
        worker.sites,
    ):
        check()
    np.savez(
        worker.folder / f"{worker.rank}.npz",
        **{name: np.asarray(value) for name, value in worker.seen.items()},
    )
    model, optimizer = worker.bowl("dsgd")
    worker.walk(model, optimizer, range(2))
    model()
    assert optimizer.prepared is not None
    # Rank 2 has fewer batches than the others, and ends.
    other, second = worker.bowl("gt-dsgd")
    steps = range(2 if worker.rank == 2 else 4)
    (worker.folder / f"{worker.rank}.txt").write_text(
        outcome(lambda: worker.walk(other, second, steps))
    )
