"""An optimizer for PyTorch models. It runs any method, with one process per node and without shared data.

A vector is one flat tensor of all trainable parameters, and `mix` exchanges vectors with neighbours. The sample of a
step is its closure. The estimator may evaluate it at several points, each time from the same random state and buffers.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import Tensor, nn

import peerdescent
from peerdescent.compressors import Compressor
from peerdescent.engines.links import Links
from peerdescent.engines.outline import definition, outline
from peerdescent.engines.verbs import Eager
from peerdescent.errors import NotFinite, require
from peerdescent.methods.contract import Method
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.runs.checks import check_network

__all__ = ["DecentralizedOptimizer"]

WRAPPERS = {
    "DistributedDataParallel": "averages gradients itself: give model.module, and call that in the closure",
    "FullyShardedDataParallel": "divides the parameters over the processes: give the model without it",
    "FSDPModule": "divides the parameters over the processes, by fully_shard: give the model without it",
    "DTensor": "divides a tensor over the processes: give a model of plain tensors",
}
"""Classes of PyTorch that communicate by themselves, and what to do instead."""

SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr", "param_names")
"""What schedulers of PyTorch and PyTorch itself keep in a parameter group, for themselves."""

STARTS = ("rank 0", "keep")
"""Where processes start from: all from the parameters and buffers of rank 0, or each from its own."""


class Surroundings(NamedTuple):
    """What an evaluation reads and changes besides parameters: random states of CPU and GPU, and the buffers."""

    cpu: Tensor
    gpu: Tensor | None
    buffers: list[Tensor]


class Flat:
    """A model as one vector of its trainable parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        for thing in (*model.modules(), *model.parameters()):
            _refuse_wrapped(thing)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.all = [*model.parameters(), *model.buffers()]
        require(bool(self.trained), "the model has no trainable parameter: set requires_grad where it should learn")
        dtypes, devices = dict.fromkeys(p.dtype for p in self.trained), dict.fromkeys(t.device for t in self.all)
        require(
            len(dtypes) == 1 and next(iter(dtypes)).is_floating_point,
            f"trainable parameters are of {_listed(dtypes)}: all must be of one real floating type, since they are one "
            "vector; convert with model.to(torch.float32), or freeze the others",
        )
        self.dtype, self.device = next(iter(dtypes)), next(iter(devices))
        require(
            len(devices) == 1 and self.device.type in ("cpu", "cuda"),
            f"parameters and buffers are on {_listed(devices)}: all must be on the CPU or on one GPU; "
            "move them with model.to(device)",
        )
        if torch.finfo(self.dtype).eps > 1e-4:
            warnings.warn(
                f"parameters are of {_listed(dtypes)}, which rounds small steps away, so training stalls: keep them in "
                "float32 with model.to(torch.float32), and use torch.autocast in the closure",
                stacklevel=3,
            )

    def check(self) -> None:
        """Refuse a model whose trained parameters are not those that it had at the beginning."""
        now = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        then = {id(p) for p in self.trained}
        if now.keys() != then:
            new = [name for key, name in now.items() if key not in then]
            old = [name for name, p in self.model.named_parameters() if id(p) in then and not p.requires_grad]
            what = f"{new[0]} was not trained then, and is now" if new else "some were replaced or removed"
            what = f"{old[0]} was trained then, and is frozen now" if old else what
            raise ValueError(
                f"the parameters to train have changed since the optimizer was made: {what}; set requires_grad as it "
                "was, or make a new optimizer in all processes, with start='keep'"
            )

    def refuse_gradients(self) -> None:
        """Refuse gradients from before a step: a step takes those that its closure computes."""
        found = [p.grad for p in self.trained if p.grad is not None]
        require(
            not any(bool(grad.to_dense().count_nonzero()) for grad in found),
            f"{len(found)} parameters have gradients before the step, which would be lost, since a step takes those of "
            "its closure: compute the mean loss of all batches in the closure, or call zero_grad() first",
        )

    def read(self) -> Tensor:
        """A copy of the parameters (p,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.trained])

    def write(self, x: Tensor) -> None:
        """Set the parameters."""
        for p, piece in zip(self.trained, x.split([p.numel() for p in self.trained]), strict=True):
            p.detach().copy_(piece.view_as(p))

    def surroundings(self) -> Surroundings:
        """A copy of the current random states and buffers."""
        gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return Surroundings(torch.get_rng_state(), gpu, [b.detach().clone() for b in self.model.buffers()])

    def restore(self, saved: Surroundings) -> None:
        """Restore random states and buffers."""
        torch.set_rng_state(saved.cpu)
        if saved.gpu is not None:
            torch.cuda.set_rng_state(saved.gpu, self.device)
        for buffer, value in zip(self.model.buffers(), saved.buffers, strict=True):
            buffer.detach().copy_(value)

    def evaluate(self, x: Tensor, closure: Callable[[], Any]) -> tuple[Any, Tensor]:
        """The closure's value at x, and its gradient (p,), zero for parameters that the loss does not depend on."""
        self.write(x)
        self.forget()
        with torch.enable_grad():
            loss = closure()
            if all(p.grad is None for p in self.trained):
                what = type(loss).__name__
                require(isinstance(loss, Tensor), f"the closure returned a {what}: return the loss, a tensor")
                loss.backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.trained]
        self.forget()
        value = loss.detach() if isinstance(loss, Tensor) else loss
        return value, torch.cat([grad.detach().reshape(-1) for grad in found])

    def forget(self) -> None:
        """Remove the gradients from the model, since they may be of another point."""
        for p in self.trained:
            p.grad = None


class Net(Eager):
    """The verbs in iteration t, for one node and the batch of a closure.

    A step returns the loss of the evaluation at x_t, and keeps its changes to random states and buffers. If there is no
    evaluation at x_t, the first one counts. Changes by other evaluations are undone.
    """

    def __init__(self, model: Flat, links: Links, turn: Any, closure: Callable[[], Any], t: int) -> None:
        super().__init__(links.seed, t)
        self.model, self.links, self.turn, self.closure = model, links, turn, closure
        self.x, self.loss = model.read(), None
        self.before: Surroundings | None = None
        self.after: Surroundings | None = None

    def sample(self, batch: int) -> Surroundings:
        """The random states and buffers from which all evaluations of the closure start; its batch has any size."""
        require(
            self.before is None,
            "the method draws two samples in one step, and a closure holds one: use a method that draws one per step",
        )
        self.before = self.model.surroundings()
        return self.before

    def grad(self, x: Tensor, sample: Surroundings) -> Tensor:
        """The gradient of the closure at x."""
        self.model.restore(sample)
        loss, grad = self.model.evaluate(x, self.closure)
        value = loss if isinstance(loss, Tensor) else torch.tensor(loss if isinstance(loss, int | float) else 0.0)
        self.must_be_finite(value, "loss")
        self.must_be_finite(grad, "gradient")
        if self.after is None or x is self.x:
            self.loss, self.after = loss, self.model.surroundings()
        return grad

    def full_grad(self, x: Tensor) -> Tensor:
        """An error: a closure has one batch only. The optimizer refuses methods with exact gradients beforehand."""
        raise ValueError("a closure knows one batch, not all data of a node: use a method without exact gradients")

    def mix(self, x: Tensor) -> Tensor:
        """One round of communication with the neighbours."""
        self.must_be_finite(x, "vector to mix")
        mixed: Tensor = self.turn.mix(self.calls.take("round"), x)
        return mixed

    def disagree(self, x: Tensor) -> Tensor:
        """One round of communication, for the difference to what was mixed."""
        self.must_be_finite(x, "vector to mix")
        apart: Tensor = self.turn.disagree(self.calls.take("round"), x)
        return apart

    def push(self, x: Tensor) -> Tensor:
        """One round of communication, with weights whose columns sum to 1."""
        self.must_be_finite(x, "vector to push")
        pushed: Tensor = self.turn.push(self.calls.take("round"), x)
        return pushed

    def compress(self, x: Tensor, operator: Compressor) -> Tensor:
        """C(x), which `mix` sends as the bytes that it was encoded in."""
        self.must_be_finite(x, "vector to compress")
        found: Tensor = self.turn.compress(x, operator, self._compression())
        return found

    def prox(self, x: Tensor, step: float) -> Tensor:
        """x itself: a closure has no non-smooth term."""
        return x

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """This node's inner product, (1,)."""
        return (x * y).sum(dim=-1, keepdim=True)

    def must_be_finite(self, x: Tensor, what: str) -> None:
        """Stop all processes if x is not finite, before it is mixed."""
        # A sum is finite only if all numbers are, and takes less time than to look at each.
        if not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):
            bad = int((~x.isfinite()).sum())
            self.links.stop(
                f"rank {self.links.rank}: {bad} of {x.numel()} numbers of the {what} are not finite in step {self.t}, "
                "and nobody has mixed them: look at its batch, or take a smaller lr, and go on with a new optimizer, "
                "with start='keep' or from a checkpoint",
                NotFinite,
            )

    def leave(self, x: Tensor, saved: Surroundings | None) -> None:
        """End the step: set the parameters to x, and restore `saved` if there is any."""
        self.model.write(x)
        self.model.forget()
        if saved is not None:
            self.model.restore(saved)


class DecentralizedOptimizer(torch.optim.Optimizer):
    """Train a model in several processes, one per node, which have their own data and communicate with neighbours.

    All processes start from the parameters and buffers of rank 0, unless each is to keep its own. `step(closure)`
    performs one iteration of the method, and returns the loss of the batch at the current parameters. The parameter
    group has the method's step size as `lr` and its other numbers by name, so schedules work. The batch is the
    closure's: batch sizes in the method are ignored.

    All processes must make the same number of steps, and with several optimizers in the same order; it is an error if
    they do not. Each saves and loads its own `state_dict`, along with the model's.

    Args:
        model: A module whose trainable parameters have one type and are on one device.
        method: A composed method without exact gradients.
        network: A network with as many nodes as there are processes.
        start: "rank 0", or "keep": every process starts from the parameters and buffers that its model has.

    >>> import torch.distributed as dist
    >>> import peerdescent as peer
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # `torchrun` starts several
    >>> model, network = nn.Linear(2, 1), peer.Network([[1.0]])
    >>> optimizer = DecentralizedOptimizer(model, peer.methods.gt_hsgd(alpha=0.05, beta=0.05), network)
    >>> inputs, targets = torch.eye(2), torch.ones(2, 1)
    >>> losses = [float(optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))) for _ in range(50)]
    >>> losses[-1] < losses[0] / 10
    True
    >>> dist.destroy_process_group()
    """

    def __init__(self, model: nn.Module, method: Method, network: Network, start: str = "rank 0") -> None:
        kinds = (("model", model, nn.Module), ("method", method, Method), ("network", network, Network))
        for name, value, kind in kinds:
            require(isinstance(value, kind), f"{name} is a {type(value).__name__}: give a {kind.__name__}")
        require(start in STARTS, f"start = {start!r}: must be {' or '.join(map(repr, STARTS))}")
        rate = method.step_size
        require(
            rate is not None,
            f"{method.name} has no step size that a schedule could set: make the method of an estimator and a fusion, "
            "with peer.compose",
        )
        assert rate is not None
        require(
            rate not in method.schedules,
            f"{rate} = {method.parameters[rate]} is a schedule: give a number, and use a scheduler of PyTorch on lr",
        )
        does = outline(method)
        require(
            not does.takes_exact,
            f"{method.name} takes exact local gradients, and a closure knows one batch only: "
            "use a method without exact gradients, such as d-get",
        )
        check_network(method, network)
        require(
            not network.faults,
            f"the network has faults ({', '.join(map(str, network.faults))}), which peer.run simulates; training has "
            "those of its own links: leave them out",
        )
        self.flat, self.method, self.rate = Flat(model), method, rate
        # The structure of the method's state, and the leaves to store: those that equal neither x nor an earlier leaf.
        self.structure, self.aliases, self.distinct = does.structure, does.aliases, sorted(set(does.aliases) - {0})
        self.network = f"{network}, checksum {digest(network.arrays)}"
        self.watched = False
        self.links = Links(network, "optimizer")
        require(
            self.links.device.type in ("cpu", self.flat.device.type),
            f"the processes are joined by NCCL, which moves nothing from the {self.flat.device.type}: "
            "use model.cuda(), or join them yourself with torch.distributed.init_process_group('gloo')",
        )
        self.links.agree(
            {
                "peerdescent": peerdescent.__version__,
                "torch": torch.__version__,
                "method": method,
                "network": network,
                "weights": digest(network.arrays),
                "parameters": sum(p.numel() for p in self.flat.trained),
                "shapes of the model": digest([np.array(tensor.shape) for tensor in self.flat.all]),
                "choice of trained parameters": digest(np.array([p.requires_grad for p in model.parameters()])),
                "type": self.flat.dtype,
                "start": start,
            }
        )
        if start == "rank 0":
            self._start_alike()
        numbers = {"lr" if name == self.rate else name: value for name, value in method.numbers.items()}
        self._about = {"method": method.name, "computes": definition(method), "network": self.network}
        super().__init__(self.flat.trained, {**numbers, **self._about})

    def _start_alike(self) -> None:
        others = self.links.others
        for tensor in self.flat.all:
            values = tensor.detach().reshape(-1)
            if self.links.rank == 0:
                self.links.exchange(dict.fromkeys(others, values), [], values, "start")
            else:
                tensor.detach().copy_(self.links.exchange({}, [0], values, "start")[0].view_as(tensor))

    @property
    def bytes_sent(self) -> int:
        """The bytes that this process has sent to its neighbours for mixing."""
        return self.links.sent

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one iteration of the method on the batch of `closure`; returns the loss before the step.

        The closure returns the loss of its batch, and may call `backward` itself. It may also be evaluated at the
        previous parameters, from the same random state and buffers. A step that fails restores parameters, buffers and
        random state.
        """
        require(closure is not None, "step() needs a closure: step(lambda: criterion(model(inputs), targets))")
        assert closure is not None
        self.flat.check()
        self.flat.refuse_gradients()
        held = self.state.get(self.flat.trained[0], {})
        t = held.get("step", 0)
        method, turn = self._method(t)
        with torch.no_grad():
            net = Net(self.flat, self.links, turn, closure if self.watched else self._watching(closure), t)
            try:
                state = method.init(net.x, net) if t == 0 else method.step(self._unpack(held, net.x), net)
            except BaseException:
                net.leave(net.x, net.before)
                raise
            net.leave(state.x, net.after)
        leaves = jax.tree.leaves(state)
        saved = {str(k): leaves[k] for k in self.distinct}
        self.state[self.flat.trained[0]] = {"step": t + 1, "rank": self.links.rank, **saved}
        self.watched = True
        return net.loss

    def _method(self, t: int) -> tuple[Method, Any]:
        """The method with the numbers of the parameter group, and the rounds of the step."""
        group = self.param_groups[0]
        self._check_keys(group)
        numbers = {name: group["lr" if name == self.rate else name] for name in self.method.numbers}
        plain = {"lr" if name == self.rate else name: float(value) for name, value in numbers.items()}
        turn = self.links.begin(t, ", ".join(f"{name} = {value!r}" for name, value in plain.items()))
        rate = float(numbers[self.rate])
        require(0 <= rate < math.inf, f"lr = {rate}: must be finite and not negative")
        # A tensor is not checked against the declared range: schedules may end at 0, which no method accepts.
        now = self.method.replace(**{**numbers, self.rate: torch.tensor(rate, dtype=torch.float64)})
        return now.at(t), turn

    def _check_keys(self, group: dict[str, Any]) -> None:
        """Refuse keys that the method does not use."""
        known = ["lr", *(name for name in self.method.numbers if name != self.rate)]
        for name, value in group.items():
            require(
                name in (*known, *SCHEDULED, "params", *self._about),
                f"{name} = {value!r} in the parameter group: {self.method.name} knows only {' and '.join(known)}; "
                "remove it, and put what is to be minimised into the loss of the closure",
            )

    def _watching(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, which in the first step also looks for a wrapper that it calls around the model."""
        trained = {id(p) for p in self.flat.trained}

        def look(module: nn.Module, _: Any) -> None:
            if any(id(p) in trained for p in module.parameters()):
                _refuse_wrapped(module)

        def watched() -> Any:
            with nn.modules.module.register_module_forward_pre_hook(look):
                return closure()

        return watched

    def _unpack(self, held: dict[str, Any], x: Tensor) -> Any:
        """The method's state, with x as the model has it."""
        known = {0: x, **{k: held[str(k)] for k in self.distinct}}
        return jax.tree.unflatten(self.structure, [known[k] for k in self.aliases])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` of this process. The model's own `state_dict` has to be loaded as well."""
        group, held = state_dict["param_groups"][0], state_dict["state"].get(0, {})
        name, rank, network = group.get("method"), held.get("rank"), group.get("network")
        require(
            name == self.method.name,
            f"the state is of {name}, and this optimizer runs {self.method.name}: make it with the method of the state",
        )
        require(
            group.get("computes") == self._about["computes"],
            f"the state is of another {name}, which computes something else: make it with the method of the state",
        )
        require(
            rank in (None, self.links.rank),
            f"the state is of rank {rank}, and this is rank {self.links.rank}: every process saves and loads its own",
        )
        require(
            network == self.network,
            f"the state is of {network}, and this optimizer has {self.network}: make it with the network of the state",
        )
        self._check_keys(group)
        sizes = {value.numel() for value in held.values() if isinstance(value, Tensor)}
        p = sum(p.numel() for p in self.flat.trained)
        require(
            sizes <= {1, p},
            f"the state is of {_listed(dict.fromkeys(sizes))} parameters, and the model has {p} to train: load "
            "the state of this model",
        )
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the parameters are one vector, of the same length in all processes, from the start."""
        require(
            not self.param_groups,
            "add_param_group: the parameters are one vector for all processes; make a new optimizer when they change",
        )
        super().add_param_group(param_group)

    def average_parameters(self) -> dict[str, Any]:
        """The consensus model, a mean over all processes, as a `state_dict` for the model. All processes must call it.

        Trained parameters and floating-point buffers are averaged; other entries are those of this process.
        """
        self.flat.check()
        averaged = {}
        for name, value in self.flat.model.state_dict(keep_vars=True).items():
            frozen = isinstance(value, nn.Parameter) and not value.requires_grad
            if isinstance(value, Tensor) and value.is_floating_point() and not frozen:
                averaged[name] = self._mean(name, value.detach())
            else:
                averaged[name] = copy.deepcopy(value.detach() if isinstance(value, Tensor) else value)
        return averaged

    def _mean(self, name: str, value: Tensor) -> Tensor:
        return self.links.everyone(value.reshape(-1), f"average_parameters, {name}").mean(dim=0).view_as(value)


def _refuse_wrapped(thing: object) -> None:
    for kind in type(thing).__mro__:
        if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
            raise ValueError(f"the model has a {kind.__name__}, which {WRAPPERS[kind.__name__]}")


def _listed(things: dict[Any, None]) -> str:
    return " and ".join(str(thing).removeprefix("torch.") for thing in things)
