"""What `test_optimizer` runs in processes of their own, one a node of a network of four.

`main(FOLDER)`, with the variables that torchrun sets, makes one check after the other and leaves what it saw in
FOLDER/RANK.npz. It ends with an error. FOLDER/inputs.npz has the quadratics, f(x) = x'Qx / 2 + <slope, x>, with another
slope in each step.
"""

from __future__ import annotations

import copy
import io
import itertools
import os
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import peerdescent as peer
from peerdescent.engines import channels
from peerdescent.torch import DecentralizedOptimizer

NODES, STEPS, P = 4, 12, 5
RING = peer.Network(peer.topology.ring(NODES))
OPTIONS = {
    "period": 5,
    "large_batch": 1,
    "interval": 3,
    "probability": 0.4,
    "compressor": "quantize(4)",
}
HYBRID = peer.methods.gt_hsgd(alpha=0.1, beta=0.3)
DROPPED = peer.compose(peer.estimators.hybrid(beta=0.0), peer.fusions.consensus(alpha=0.1))


def cases():
    """All named methods without exact gradients and one without a name over a ring; over other networks the first ones.

    gt-page has a large batch, which is the closure's, in the place of exact gradients.
    One has a number that is a schedule.
    """
    names = [
        name for name in peer.methods.METHODS if name not in ("gt-sarah", "gt-hsgd", "gt-svrg")
    ]
    built = [peer.methods.METHODS[name].build() for name in names]
    built = [
        method.replace(**{k: v for k, v in OPTIONS.items() if k in method.parameters})
        for method in built
    ]
    built += [HYBRID, peer.methods.parse("hybrid*primal-dual[beta=0.3]")]
    for topology in ("ring", "directed-exponential", "one-peer-exponential"):
        network = peer.Network(peer.topology.build(topology, NODES))
        for method in built:
            allowed = network.is_symmetric or not method.needs.symmetric
            if allowed and (topology == "ring" or method.name not in names[7:]):
                yield f"{method.name} {topology}", method, network
    mu = peer.schedules.parse("0.9/(1+t)**0.5")
    yield "scheduled ring", peer.methods.qg_dsgdm(mu=mu), RING


class Bowl(nn.Module):
    """A point in two pieces, neither of them a vector, and a buffer that counts evaluations."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.randn(2, 2, dtype=torch.float64))
        self.right = nn.Parameter(torch.randn((), dtype=torch.float64))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self):
        self.calls += 1
        return torch.cat([self.left.reshape(-1), self.right.reshape(1)])


class Dropped(nn.Module):
    """A loss whose gradient is the mask of this evaluation times the number of evaluations, wherever it is taken."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, dtype=torch.float64))
        self.register_buffer("calls", torch.tensor(0))
        self.masks = []

    def forward(self):
        self.calls += 1
        left = nn.functional.dropout(self.weight, 0.5)
        self.masks.append((left != 0).numpy())
        return left.sum() * self.calls


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
        return x @ self.matrices[self.rank] @ x / 2 + self.slopes[t, self.rank] @ x

    def bowl(self, method=HYBRID, network=RING):
        """A bowl that starts where all bowls do, and its optimizer."""
        torch.manual_seed(7)
        model = Bowl()
        return model, DecentralizedOptimizer(model, method, network)

    def walk(self, model, optimizer, steps, schedule=None):
        """x_{t+1} and the loss at x_t, for every t in `steps`."""
        points, losses = [], []
        for t in steps:
            losses.append(optimizer.step(lambda t=t: self.loss(model, t)).item())
            points.append(point(model))
            if schedule:
                schedule.step()
        return np.array(points), np.array(losses)

    def methods(self):
        for name, method, network in cases():
            model, optimizer = self.bowl(method, network)
            self.seen["start"] = point(model)
            self.seen[f"{name} x"], self.seen[f"{name} loss"] = self.walk(
                model, optimizer, range(STEPS)
            )
            self.seen[f"{name} bytes"], self.seen[f"{name} calls"] = (
                optimizer.bytes_sent,
                model.calls,
            )
            assert all(p.grad is None for p in model.parameters())

    def beginnings(self):
        torch.manual_seed(self.rank)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        model[2].requires_grad_(False)
        model[1].running_mean.normal_()
        model[1].num_batches_tracked += self.rank
        self.seen |= {f"before {name}": value.clone() for name, value in model.state_dict().items()}
        DecentralizedOptimizer(model, HYBRID, RING)
        self.seen |= {f"after {name}": value.clone() for name, value in model.state_dict().items()}

    def masks(self):
        model = Dropped()
        optimizer = DecentralizedOptimizer(model, DROPPED, RING)
        torch.manual_seed(self.rank)
        estimates = []
        for _ in range(6):
            optimizer.step(model)
            estimates.append(optimizer.state_dict()["state"][0]["2"])
        self.seen |= {
            "masks": np.array(model.masks),
            "estimates": torch.stack(estimates),
            "dropped": model.calls,
        }
        self.seen["drawn"] = torch.rand(3)
        torch.manual_seed(self.rank)
        for _ in range(6):
            nn.functional.dropout(model.weight, 0.5)
        self.seen["expected draw"] = torch.rand(3)

    def statistics(self):
        torch.manual_seed(self.rank)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        model[2].bias.requires_grad_(False)
        optimizer = DecentralizedOptimizer(model, HYBRID, RING)
        self.seen["frozen"] = model[2].bias.detach().clone()
        plain, batches = copy.deepcopy(model), torch.randn(8, 16, 3, dtype=torch.float64)
        for batch in batches:
            for mine, theirs in zip(plain.parameters(), model.parameters(), strict=True):
                mine.detach().copy_(theirs)
            plain(batch)
            optimizer.step(
                lambda batch=batch: (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
            )
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.seen[f"statistics {name}"] = getattr(model[1], name).clone()
            self.seen[f"plain {name}"] = getattr(plain[1], name).clone()
        model[2].bias.detach().add_(self.rank)  # frozen, so nobody has a say in it
        averaged = optimizer.average_parameters()
        self.seen |= {f"own {name}": value.clone() for name, value in model.state_dict().items()}
        self.seen |= {f"averaged {name}": value for name, value in averaged.items()}
        model.load_state_dict(averaged)

    def resumed(self):
        changing = peer.Network(peer.topology.one_peer_exponential(NODES))
        for method, network in (
            (peer.methods.d_get(period=3), changing),
            (HYBRID, RING),
            (peer.methods.d_adam(), RING),
        ):
            model, optimizer = self.bowl(method, network)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            self.walk(model, optimizer, range(5), schedule)
            kept = io.BytesIO()
            torch.save([each.state_dict() for each in (model, optimizer, schedule)], kept)
            self.seen[f"whole {method.name}"], _ = self.walk(
                model, optimizer, range(5, 12), schedule
            )
            torch.manual_seed(self.rank)
            model = Bowl()
            optimizer = DecentralizedOptimizer(model, method, network)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            kept.seek(0)
            for each, state in zip(
                (model, optimizer, schedule), torch.load(kept, weights_only=True), strict=True
            ):
                each.load_state_dict(state)
            self.seen[f"resumed {method.name}"], _ = self.walk(
                model, optimizer, range(5, 12), schedule
            )

    def schedules(self):
        model, optimizer = self.bowl()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        self.seen["scheduled"], _ = self.walk(model, optimizer, range(STEPS), schedule)
        model, optimizer = self.bowl(peer.methods.dsgd())
        optimizer.param_groups[0]["lr"] = 0.0
        model.left.detach().add_(self.rank)
        self.seen["apart"] = point(model)
        self.seen["mixed"], _ = self.walk(model, optimizer, range(2))
        model, optimizer = self.bowl()
        optimizer.param_groups[0]["beta"] = 1.0
        self.seen["beta 1"], _ = self.walk(model, optimizer, range(STEPS))

    def closures(self):
        model, optimizer = self.bowl()

        def conventional(t):
            optimizer.zero_grad()
            loss = self.loss(model, t)
            loss.backward()
            return loss.item()

        self.seen["backward loss"] = [
            optimizer.step(lambda t=t: conventional(t)) for t in range(STEPS)
        ]
        self.seen["backward x"] = point(model)

    def failures(self):
        model, optimizer = self.bowl()
        calls = iter((1, 2))

        def failing(t):
            torch.rand(1)
            loss = self.loss(model, t)
            if next(calls) == 2:
                raise KeyboardInterrupt
            return loss

        self.walk(model, optimizer, range(3))
        before = point(model), model.calls.clone(), torch.get_rng_state()
        try:
            optimizer.step(lambda: failing(3))
        except KeyboardInterrupt:
            after = point(model), model.calls.clone(), torch.get_rng_state()
            self.seen["unharmed"] = [
                np.array_equal(b, a) for b, a in zip(before, after, strict=True)
            ]
        self.walk(model, optimizer, range(3, STEPS))
        self.seen["recovered"] = point(model)
        # One process alone fails before it has sent anything, and tries again.
        for name, method in (("one point", peer.methods.gt_dsgd()), ("two points", HYBRID)):
            model, optimizer = self.bowl(method)
            fails = iter([True] if self.rank == 1 else [])

            def failing_alone(m=model, fails=fails):
                if next(fails, False):
                    raise KeyError("no such row")
                return self.loss(m, 3)

            self.walk(model, optimizer, range(3))
            try:
                optimizer.step(failing_alone)
            except KeyError:
                optimizer.step(failing_alone)
            self.walk(model, optimizer, range(4, STEPS))
            self.seen[f"recovered alone {name}"] = point(model)

    def layouts(self):
        """Sparse gradients, weights that are not contiguous and parameters that nothing depends on are no different."""
        for kind in ("plain", "odd"):
            torch.manual_seed(3)
            odd = kind == "odd"
            model = nn.ModuleDict(
                {"words": nn.Embedding(9, 12, sparse=odd), "image": nn.Conv2d(3, 2, 2)}
            ).double()
            if odd:
                model = model.to(memory_format=torch.channels_last)
                assert not model["image"].weight.is_contiguous()
            model["unused"] = nn.Linear(2, 2).double()
            self.seen[f"{kind} unused before"] = model["unused"].weight.detach().clone()
            optimizer = DecentralizedOptimizer(model, HYBRID, RING)
            for t in range(4):
                words = torch.tensor([t, self.rank])
                optimizer.step(
                    lambda m=model, words=words: (
                        m["image"](m["words"](words).view(2, 3, 2, 2)).square().sum()
                    )
                )
            self.seen |= {f"{kind} {name}": p.detach() for name, p in model.named_parameters()}

    def refusals(self):
        model, optimizer = self.bowl()
        self.walk(model, optimizer, range(2))
        state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        elsewhere = copy.deepcopy(state)
        elsewhere["state"][0]["rank"] = 9
        d2, other = self.bowl(peer.methods.d2())
        _, complete = self.bowl(network=peer.Network(peer.topology.complete(NODES)))
        larger = copy.deepcopy(state)
        larger["state"][0]["2"] = torch.zeros(P + 1)
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        twice = peer.compose(Twice(), peer.fusions.consensus())
        bad_rate = self.bowl()[1]
        bad_rate.param_groups[0]["lr"] = float("nan")

        def load_early():
            early = Bowl()
            early.load_state_dict(weights)
            again = DecentralizedOptimizer(early, HYBRID, RING)  # all have what rank 0 had
            again.load_state_dict(state)
            try:
                self.walk(early, again, range(2, 3))
            finally:
                early.load_state_dict(weights)
                self.seen["loaded late"] = self.walk(early, again, range(2, 5))[0]

        def resume_some():
            model, optimizer = self.bowl()
            if self.rank == 1:
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
            self.walk(model, optimizer, range(1))

        def layers(*widths, frozen=False):
            model = nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(widths)])
            model[-1].requires_grad_(not frozen)
            return DecentralizedOptimizer(model, HYBRID, RING)

        for name, action in {
            "shapes": lambda: layers(3, 4, 5 if self.rank == 2 else 2),
            "shapes far behind": lambda: layers(*[3] * 60, 7 if self.rank == 0 else 2),
            "more layers": lambda: layers(*[3] * (4 if self.rank == 3 else 3)),
            "frozen in one": lambda: layers(3, 4, 2, frozen=self.rank == 2),
            "nodes": lambda: DecentralizedOptimizer(
                Bowl(), HYBRID, peer.Network(peer.topology.ring(6))
            ),
            "alpha": lambda: DecentralizedOptimizer(
                Bowl(), HYBRID.replace(alpha=0.1 if self.rank else 0.2), RING
            ),
            "wrapped": lambda: DecentralizedOptimizer(wrapped, HYBRID, RING),
            "group": lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}),
            "closure": optimizer.step,
            "number": lambda: optimizer.step(lambda: 1.0),
            "rank": lambda: optimizer.load_state_dict(elsewhere),
            "method": lambda: other.load_state_dict(state),
            "resumed": resume_some,
            "loaded early": load_early,
            "twice": lambda: self.walk(*self.bowl(twice), range(1)),
            "rate": lambda: bad_rate.step(lambda: self.loss(d2, 0)),
            "nested": lambda: DecentralizedOptimizer(
                nn.Sequential(nn.ReLU(), nn.Sequential(wrapped)), HYBRID, RING
            ),
            "around": self.step_around,
            "gradients": self.step_with_gradients,
            "frozen": lambda: self.step_with_other_parameters("left", False),
            "frozen average": lambda: self.step_with_other_parameters("left", False, average=True),
            "unfrozen": lambda: self.step_with_other_parameters("right", True),
            "replaced": self.step_with_a_new_parameter,
            "decay": lambda: self.step_with_keys(weight_decay=0.1),
            "alias": lambda: self.step_with_keys(alpha=0.1),
            "network": lambda: complete.load_state_dict(state),
            "computes": lambda: self.bowl(HYBRID.replace(atc=False))[1].load_state_dict(state),
            "model": lambda: optimizer.load_state_dict(larger),
            "start": lambda: DecentralizedOptimizer(Bowl(), HYBRID, RING, start="mine"),
        }.items():
            self.seen[f"refusal {name}"] = refusal(action)

    def step_around(self):
        model = nn.Linear(2, 2)
        optimizer, around = (
            DecentralizedOptimizer(model, HYBRID, RING),
            nn.parallel.DistributedDataParallel(model),
        )
        optimizer.step(lambda: around(torch.ones(1, 2)).sum())

    def step_with_gradients(self):
        model, optimizer = self.bowl()
        self.loss(model, 0).backward()
        optimizer.zero_grad(set_to_none=False)
        self.walk(model, optimizer, range(1))  # zeros are no loss
        self.loss(model, 1).backward()
        self.walk(model, optimizer, range(1, 2))

    def step_with_other_parameters(self, name, trained, average=False):
        torch.manual_seed(7)
        model = Bowl()
        getattr(model, name).requires_grad_(not trained)
        optimizer = DecentralizedOptimizer(model, HYBRID, RING)
        self.walk(model, optimizer, range(1))
        getattr(model, name).requires_grad_(trained)
        if average:
            optimizer.average_parameters()
        self.walk(model, optimizer, range(1, 2))

    def step_with_a_new_parameter(self):
        model, optimizer = self.bowl()
        model.left = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
        self.walk(model, optimizer, range(1))

    def step_with_keys(self, **keys):
        model, optimizer = self.bowl()
        optimizer.param_groups[0].update(keys)
        self.walk(model, optimizer, range(1))

    def fewer_steps(self, model, optimizer):
        for _ in range(6 if self.rank == 0 else 7):
            optimizer.step(lambda: model().square().sum())
        optimizer.average_parameters()

    def crossed(self):
        """Calls that do not fit to those of the others: in a ring, ranks 1 and 3 are next to 0, and 2 is not."""

        def another_order(pair):
            for t in range(3):
                for model, optimizer in pair[:: -1 if self.rank == 1 and t == 2 else 1]:
                    self.walk(model, optimizer, [t])

        def another_rate(model, optimizer):
            self.walk(model, optimizer, range(3))
            optimizer.param_groups[0]["lr"] = 0.2 if self.rank == 2 else 0.1
            self.walk(model, optimizer, range(3, 5))

        single = Dropped()
        single = single, DecentralizedOptimizer(single, HYBRID, RING)
        directed = (
            peer.methods.gt_dsgd(),
            peer.Network((np.eye(NODES) + np.roll(np.eye(NODES), 1, axis=0)) / 2),
        )
        several, one_way, rates, pair = (
            self.bowl(),
            self.bowl(*directed),
            self.bowl(),
            [self.bowl(), self.bowl()],
        )
        self.seen["crossed fewer steps"] = outcome(lambda: self.fewer_steps(*several))
        self.seen["crossed again"] = outcome(several[1].average_parameters)
        self.seen["crossed single tensor"] = outcome(lambda: self.fewer_steps(*single))
        self.seen["crossed one way"] = outcome(lambda: self.fewer_steps(*one_way))
        self.seen["crossed order"] = outcome(lambda: another_order(pair))
        self.seen["crossed rate"] = outcome(lambda: another_rate(*rates))

    def not_finite(self):
        for kind, bad in (
            ("loss", lambda x: x.sum() * torch.nan),
            ("gradient", lambda x: (0 * x).sqrt().sum()),
        ):
            model, optimizer = self.bowl()
            self.walk(model, optimizer, range(3))
            before = point(model), model.calls.clone(), torch.get_rng_state()
            closure = (
                (lambda m=model, b=bad: b(m()))
                if self.rank == 1
                else (lambda m=model: self.loss(m, 3))
            )
            self.seen[f"not finite {kind}"] = outcome(lambda o=optimizer, c=closure: o.step(c))
            after = point(model), model.calls.clone(), torch.get_rng_state()
            self.seen[f"same {kind}"] = [
                np.array_equal(b, a) for b, a in zip(before, after, strict=True)
            ]
        optimizer = DecentralizedOptimizer(model, HYBRID, RING, start="keep")
        self.seen["kept"] = point(model), before[0]
        self.seen["after all"], _ = self.walk(model, optimizer, range(2))

    def halves(self):
        """Steps that bfloat16 rounds away one by one; half of them after the state was loaded."""
        model = nn.Linear(3, 1, bias=False).to(torch.bfloat16)
        nn.init.ones_(model.weight)
        optimizer = DecentralizedOptimizer(model, peer.methods.gt_dsgd(alpha=2.0**-13), RING)

        def steps(model, optimizer, count):
            for _ in range(count):
                optimizer.step(lambda: model.weight.sum())
            return model.weight.detach().float().reshape(-1)

        self.seen["half after 1"] = steps(model, optimizer, 1)
        steps(model, optimizer, 31)
        later = copy.deepcopy(model)
        second = DecentralizedOptimizer(later, peer.methods.gt_dsgd(alpha=2.0**-13), RING)
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self.seen["half after 64"] = steps(model, optimizer, 32)
        self.seen["half resumed"] = steps(later, second, 32)

    def pieces(self):
        """Vectors and compressed vectors that are too large for one message, and the same in one message."""
        compressed = peer.methods.choco_sgd(
            alpha=0.1, compressor=peer.compressors.top_k(0.07)
        )  # fewer bytes than p
        for method in (peer.methods.gt_dsgd(alpha=0.1), peer.methods.d2(alpha=0.1), compressed):
            for way, inline in (("pieces", channels.INLINE), ("whole", 1 << 22)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(channels, "INLINE", inline)
                    patch.setattr(channels, "PIECE", 1 << 14)
                    torch.manual_seed(4)
                    model = nn.Linear(300, 300).double()
                    optimizer = DecentralizedOptimizer(model, method, RING)
                    inputs = torch.randn(
                        3,
                        300,
                        dtype=torch.float64,
                        generator=torch.Generator().manual_seed(self.rank),
                    )
                    shelves = []
                    for _ in range(4):
                        optimizer.step(lambda m=model, x=inputs: m(x).square().mean())
                        shelves.append(sum(map(len, optimizer.peers.channel.shelves)))
                    self.seen[f"{way} {method.name}"] = point(model)
                    self.seen[f"shelves {way} {method.name}"] = shelves

    def cycled(self):
        """Schedulers keep numbers of their own in the group."""
        model, optimizer = self.bowl()
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=9, cycle_momentum=False
        )
        self.seen["cycled"], _ = self.walk(model, optimizer, range(4), schedule)

    def broken(self):
        """An error that has nothing to do with a lost connection."""
        _, optimizer = self.bowl()

        def fails(*_, **__):
            raise RuntimeError("Invalid scalar type")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                optimizer.peers.channel, "wires", types.SimpleNamespace(send=fails, recv=fails)
            )
            self.seen["broken"] = outcome(optimizer.average_parameters)


class Twice(peer.estimators.sgd):
    """An estimator that wants two samples."""

    def init(self, x, net):
        return net.grad(x, net.sample(1)) + net.grad(x, net.sample(1)), ()


def point(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return "no refusal"


def outcome(action):
    try:
        action()
    except (ValueError, ArithmeticError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(folder):
    torch.set_num_threads(1)
    worker = Worker(folder)
    worker.methods()
    for check in (
        worker.beginnings,
        worker.masks,
        worker.statistics,
        worker.resumed,
        worker.schedules,
        worker.closures,
        worker.failures,
        worker.layouts,
        worker.refusals,
        worker.crossed,
        worker.not_finite,
        worker.halves,
        worker.pieces,
        worker.cycled,
        worker.broken,
    ):
        check()
    np.savez(
        worker.folder / f"{worker.rank}.npz",
        **{name: np.asarray(value) for name, value in worker.seen.items()},
    )
    worker.fewer_steps(*worker.bowl())  # nobody catches that error
