"""An optimizer for PyTorch models. It runs any method, with one process per node and without shared data.

A vector is one flat tensor of all trainable parameters, and `mix` exchanges vectors with
neighbours. The sample of a step is the batch of the gradients that the parameters have, or a
closure, which the estimator may evaluate at several points, each time from the same random state
and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import peerdescent
from peerdescent.engines.outline import definition, outline
from peerdescent.engines.vectors import Vector
from peerdescent.errors import PeerLost, require
from peerdescent.methods.contract import Method, State
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.torch.flat import Flat
from peerdescent.torch.groups import Current, Groups
from peerdescent.torch.hooks import install, watching
from peerdescent.torch.net import Net
from peerdescent.torch.refusals import check_arguments, check_state, check_time, check_use
from peerdescent.torch.regrouping import Peers
from peerdescent.torch.sharing import consensus
from peerdescent.torch.stepping import decayed

__all__ = ["DecentralizedOptimizer"]

Batch = TypeVar("Batch")


class DecentralizedOptimizer(torch.optim.Optimizer):
    """Train a model in several processes, one per node, which have their own data and communicate with neighbours.

    All processes start from the parameters and buffers of rank 0, unless each is to keep its own. A
    step is one iteration of the method. After `loss.backward()`, `step()` takes the gradients that
    the parameters have. Methods that need the gradient of a batch at two points, such as gt-hsgd,
    take `step(closure)`, which returns the loss of the batch. The parameter groups have the
    method's step size as `lr` and its other numbers by name, so schedules work. The batch is the
    program's: batch sizes in the method are ignored.

    All processes must make the same number of steps, and with several optimizers in the same order;
    it is an error if they do not. Each saves and loads its own `state_dict`, along with the
    model's.

    Args:
        model: A module whose trainable parameters have one type and are on one device. With several
            processes a site, each with its own share of the site's batch, the module in
            `DistributedDataParallel` over the site.
        method: A composed method without exact gradients.
        network: A network with as many nodes as there are processes, or sites.
        start: "rank 0", or "keep": every process starts from the parameters and buffers that its
            model has.
        params: Parameter groups as PyTorch's optimizers take them, each with `params` and, if they
            differ, `lr` and `weight_decay`; together all trainable parameters.
        weight_decay: Decoupled weight decay: estimates include so many times the parameters.
        message: The type in which vectors cross, such as torch.bfloat16; by default their own. The
            mean over all processes is kept.
        process_group: The processes that communicate, one per node; by default all. With several
            processes a site, those that have the same number in their sites.
        on_loss: "stop": if a process is lost, all end with an error. "continue": those that are
            left go on, and a process that comes back takes its neighbours' average, and lr and all
            other numbers of the others.
        patience: Seconds without a sign of life after which a process counts as lost, with
            "continue".

    >>> import torch.distributed as dist
    >>> import peerdescent as peer
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # `torchrun` starts several
    >>> model, network = nn.Linear(2, 1), peer.Network([[1.0]])
    >>> optimizer = DecentralizedOptimizer(model, peer.methods.gt_dsgd(alpha=0.1), network)
    >>> inputs, targets = torch.eye(2), torch.ones(2, 1)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     loss = nn.functional.mse_loss(model(inputs), targets)
    ...     loss.backward()
    ...     optimizer.step()
    >>> loss.item() < 0.01
    True
    >>> optimizer.zero_grad()
    >>> optimizer = DecentralizedOptimizer(model, peer.methods.gt_hsgd(alpha=0.05, beta=0.05), network)
    >>> loss = optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))
    >>> dist.destroy_process_group()
    """

    _step_supports_amp_scaling: ClassVar[bool] = (
        True  # a GradScaler leaves it to `step` whether to skip it
    )

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        network: Network,
        start: str = "rank 0",
        *,
        params: Iterable[Mapping[str, Any]] | None = None,
        weight_decay: float | None = None,
        message: torch.dtype | None = None,
        process_group: Any = None,
        on_loss: str = "stop",
        patience: float = 10.0,
    ) -> None:
        rate = check_arguments(model, method, network, start, on_loss, message)
        given = list(params) if params is not None else [{}]
        require(
            all(isinstance(group, Mapping) for group in given),
            "params has parameters: give groups, as in [{'params': ..., 'lr': 0.1}], or leave it out for all of them",
        )
        groups = [dict(group) for group in given]
        decays = weight_decay is not None or any("weight_decay" in group for group in groups)
        does = outline(decayed(method, 0.5) if decays else method)
        site = _site(model, process_group)
        check_use(method, does, network, site is not None)
        require(
            on_loss == "stop" or (process_group is None and site is None),
            "on_loss='continue' is for one process a node",
        )
        self.flat, self.method, self.does = Flat(model, site), method, does
        self.one_point = does.takes_one_point
        self.ahead = {later: does.rounds_ahead(int(later)) for later in (False, True)}
        """The rounds that begin before gradients are known, in iteration 0 and later."""
        # The structure of the method's state, and the leaves to store: those that equal neither x
        # nor an earlier leaf.
        self.distinct = sorted(set(does.aliases) - {0})
        self.kept: dict[int, Any] = {}
        self.prepared: Net | None = None
        self.lost: PeerLost | None = None
        """A loss that a forward pass has found, for the step after it."""
        self.watched = False
        self.late = ""
        """What the next messages say of the numbers of the step before, if they changed after its first messages."""
        self.begins = "all"
        """What starts anew in the next step: "all", the fusion's memory ("fusion") or nothing."""
        self.came = 0
        """The step at which this process has joined the others; 0 if it was there from the beginning."""
        defaults = {"lr" if name == rate else name: value for name, value in method.numbers.items()}
        if decays:
            defaults["weight_decay"] = weight_decay or 0.0
        facts = {
            "peerdescent": peerdescent.__version__,
            "torch": torch.__version__,
            "method": method,
            "network": network,
            "weights": digest(network.arrays),
            "type": self.flat.dtype,
            "type of messages": message,
            "start": start,
        }
        computes = definition(decayed(method, 0.5) if decays else method)
        self._about = {
            "method": method.name,
            "computes": computes,
            "network": f"{network}, checksum {facts['weights']}",
        }
        self.groups = Groups(method, rate, decays, self._about)
        whole = {"params": self.flat.trained}
        super().__init__(groups if params is not None else [whole], {**defaults, **self._about})
        places = {id(p): k for k, group in enumerate(self.param_groups) for p in group["params"]}
        left = [
            name for name, p in model.named_parameters() if p.requires_grad and id(p) not in places
        ]
        require(
            not left,
            f"{left[0] if left else ''} is trained and in no group of params: put it into one, or freeze it",
        )
        known = {id(p) for p in self.flat.trained}
        require(
            len(places) == len(known),
            "params has a parameter that the model does not train: leave it out",
        )
        self.groups.places = [places[id(p)] for p in self.flat.trained]
        facts["groups of parameters"] = digest(np.array(self.groups.places))
        # All is ready that takes time: who comes later is not waited for.
        wait = patience if on_loss == "continue" else None
        self.peers = Peers(network, method, message, process_group, wait, self.flat, facts)
        require(
            self.peers.channel.device.type in ("cpu", self.flat.device.type),
            f"the processes are joined by NCCL, which moves nothing from the {self.flat.device.type}: "
            "use model.cuda(), or join them yourself with torch.distributed.init_process_group('gloo')",
        )
        self._renew(self.peers.begin())
        install(self)

    def _renew(self, came: bool) -> None:
        """Make ready for other peers than before, to whom this process came, or who were there with it.

        All start the fusion's memory anew, so that what it keeps of the others is true again.
        """
        self.prepared, self.lost, self.late = None, None, ""
        self.loaded = ""  # the checksum of the parameters of a loaded state, until the next step
        self.begins = "all" if came or not self.kept else "fusion"
        if came:
            self.kept, self.came = {}, self.peers.position[0]
            self.state[self.flat.trained[0]] = {"step": self.came, "rank": self.rank}

    def _surviving(self, act: Callable[[], Any]) -> Any:
        """What `act` returns; if a process is lost in it, it is called again without that one."""
        while True:
            try:
                return act()
            except PeerLost as lost:
                self._renew(self.peers.regroup(lost, self.steps))

    def _with_all(self, act: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
        """What a call to all other processes returns, or `otherwise` if they have made it already."""
        return self._surviving(lambda: self.peers.call(act, otherwise, self.steps))

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.peers.rank

    @property
    def _place(self) -> int | str:
        """The node of this process, and its number in its site if there are several."""
        site = self.flat.site
        return self.rank if site is None else f"{self.rank}, piece {dist.get_rank(site)}"

    @property
    def bytes_sent(self) -> int:
        """The bytes that this process has sent to its neighbours for mixing."""
        return self.peers.bytes_sent

    @property
    def steps(self) -> int:
        """The number of steps that have been made."""
        return int(self.state.get(self.flat.trained[0], {}).get("step", 0))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one iteration of the method; returns the loss before the step if there is a closure.

        Without a closure it takes the gradients that the parameters have. A closure returns the
        loss of its batch, and may call `backward` itself; it may also be evaluated at the previous
        parameters, from the same random state and buffers. A step that fails restores parameters,
        buffers and random state.
        """
        self.flat.check()
        if closure is None:
            self._check_gradients()
        elif not self.one_point:
            self.flat.refuse_gradients()
        return None if self._overflows() else self._surviving(lambda: self._step_or_not(closure))

    def _step_or_not(self, closure: Callable[[], Any] | None) -> Any:
        """A step; one that the others have made already counts, and changes nothing."""
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost
        self.peers.let_in(self.steps)
        if not self.peers.is_behind(self.steps):
            differ = self.loaded and self._any(self.loaded != self._checksum(), "loaded state")
            require(
                not differ,
                "the state is of other parameters than the model has: make the optimizer first, then "
                "load the model's state_dict, and then the optimizer's",
            )
            self.loaded = ""
            return self._step(closure)
        loss = (
            None if closure is None else self.flat.evaluate(self.flat.read(), closure, adds=True)[0]
        )
        self.state[self.flat.trained[0]] = {
            **self.state.get(self.flat.trained[0], {}),
            "step": self.steps + 1,
        }
        self.peers.calls = 0
        return loss

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        current, t = self._current("in the step"), self.steps
        net = self._prepare(current)
        require(
            net.version == self.flat.version and net.is_as_sent(),
            "the parameters were changed between the forward pass and the step, when they were on their way to the "
            "neighbours: change them after a step",
        )
        self.peers.links.numbers, method = net.numbered(current.text), current.at(t)
        net.closure = closure if closure is None or self.watched else watching(self.flat, closure)
        net.adds = self.one_point
        net.scale = float(getattr(self, "grad_scale", None) or 1.0)
        with torch.no_grad():
            try:
                state = self._state(method, net)
                leaves = jax.tree.leaves(state)
                computed = state.x.is_sum  # else it was mixed, and all that was mixed is finite
                for leaf in leaves:
                    getattr(leaf, "tensor", None)  # wait for what is on its way
                if computed:
                    net.must_be_finite(state.x.tensor, "parameters")
            except BaseException:
                net.leave(net.x, net.before)
                net.again()
                raise
            x, after, loss = state.x, net.after, net.loss
            self.kept = {k: leaves[k] for k in self.distinct}
            self.prepared, self.begins, self.peers.calls = None, "", 0
            # Else the parameters before the step would be kept.
            del net.x, net.begun, net.gradients, leaves, state
            net.leave(x, after)
            for vector in self.kept.values():
                if isinstance(vector, Vector):
                    self.flat.settle(vector)
        saved = {str(k): getattr(leaf, "tensor", leaf) for k, leaf in self.kept.items()}
        if self.flat.master is not None:
            saved["master"] = self.flat.master.tensor
        self.state[self.flat.trained[0]] = {"step": t + 1, "rank": self._place, **saved}
        self.watched = True
        self.late = "" if net.text == current.text else f", after {current.text} in the step before"
        return loss

    def _state(self, method: Method, net: Net) -> Any:
        """The state after the step; what begins anew in it begins as in iteration 0."""
        if self.begins == "all":
            return method.init(net.x, net)
        before = self._unpack(net.x)
        if self.begins == "":
            return method.step(before, net)
        estimator, fusion = method.parts
        v, estimated = estimator.step(net.x, before.estimator, net)
        x, fused = fusion.init(net.x, v, net)
        return State(x, estimated, fused)

    def _check_gradients(self) -> None:
        """Refuse a step without a closure where a method needs one, or before there is a gradient."""
        require(
            self.one_point,
            f"{self.method.name} needs the gradient of one batch at two points, so it computes the loss again: use "
            "step(closure), as in step(lambda: criterion(model(inputs), targets)), or a method that needs one point, "
            "such as gt-dsgd or gt-momentum",
        )
        require(
            self.flat.has_gradients,
            "step() without a closure takes the gradients of the parameters, and there is none: call loss.backward() "
            "first, or give a closure: step(lambda: criterion(model(inputs), targets))",
        )

    def _overflows(self) -> bool:
        """Whether a GradScaler found a gradient beyond all numbers in any process: then all of them skip the step."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return False
        return bool(self._with_all(partial(self._any, bool(found), "overflow"), lambda: False))

    def begin_ahead(self) -> None:
        """Before a forward pass: begin the rounds whose vectors are known, if the next step takes its gradients."""
        trains = self.flat.model.training and torch.is_grad_enabled() and self.watched
        ready = self.prepared is None and self.lost is None and not self.peers.channel.failure
        begins = self.one_point and not self.begins and self.ahead[self.steps > 0]
        if trains and ready and begins and not self.peers.is_behind(self.steps):
            self.flat.check()
            try:
                self._prepare(self._current("at the forward pass"))
            except PeerLost as lost:  # what was sent to others must not be sent again
                self.lost = lost

    def _prepare(self, current: Current) -> Net:
        """The verbs of the next step, with the rounds begun whose vectors are known."""
        if self.prepared is None:
            t = self.steps
            turn = self.peers.links.begin(t, current.text + self.late)
            with torch.no_grad():
                net = Net(self.flat, self.peers.links, turn, t)
                net.text = current.text
                if (
                    not self.one_point
                ):  # the parameters are set to others before all of x has been sent
                    self.flat.settle(net.x)
                if self.begins == "all":
                    net.begin(self.ahead[False], {0: net.x})
                elif not self.begins:
                    net.begin(self.ahead[True], {0: net.x, **self._held()})
            self.prepared = net
        return self.prepared

    def _current(self, when: str) -> Current:
        """The method with the numbers of the parameter groups; a process that came later takes them from the others."""
        self.peers.align(self.groups, self.param_groups, when, self.steps)
        return self.groups.current(self.param_groups, self.flat)

    def _held(self) -> dict[int, Any]:
        """The leaves of the method's state that are stored, by number: vectors, or numbers."""
        held = self.state.get(self.flat.trained[0], {})
        for k in self.distinct if held else ():
            value, kept = held[str(k)], self.kept.get(k)
            if value is not getattr(kept, "tensor", kept):  # it was loaded
                is_vector = isinstance(value, Tensor) and value.numel() == self.flat.pool.size
                self.kept[k] = self.flat.pool.copy(value) if is_vector else value
                held[str(k)] = getattr(self.kept[k], "tensor", value)
        return self.kept

    def _unpack(self, x: Vector) -> Any:
        """The method's state, with x as the model has it."""
        leaves = {0: x, **self._held()}
        return jax.tree.unflatten(self.does.structure, [leaves[k] for k in self.does.aliases])

    def _checksum(self) -> str:
        """A checksum of the parameters."""
        self.flat.home()
        return digest(self.flat.memory.view(torch.uint8).cpu().numpy())

    def state_dict(self) -> dict[str, Any]:
        """What this process remembers, as copies: the memory of vectors is used again in later steps.

        That of a process that came later says so: its parameter groups have what its own schedulers
        have set last.
        """
        found = super().state_dict()
        came = {"came": self.came} if self.came else {}
        states = {
            key: {
                **{
                    name: value.clone() if isinstance(value, Tensor) else value
                    for name, value in own.items()
                },
                "parameters": self._checksum(),
                **came,
            }
            for key, own in found["state"].items()
        }
        return {**found, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` of this process. Load the model's before, into this model.

        The next step refuses, in all processes, a state of other parameters than the model has.
        """
        group, held = state_dict["param_groups"][0], state_dict["state"].get(0, {})
        check_state(
            group, held, self._about, self._place, self.flat.pool.size, map(str, self.distinct)
        )
        check_time(held, self.came, self.peers.position[0])
        self.groups.check_keys(group)
        require(
            self.prepared is None,
            "a state cannot be loaded between a forward pass and its step: make the step first",
        )
        super().load_state_dict(state_dict)
        # PyTorch gives states the type and the device of their parameter; vectors may be of
        # another.
        held = {
            key: value.to(self.flat.device, copy=True) if isinstance(value, Tensor) else value
            for key, value in held.items()
            if key not in ("came", "parameters")
        }
        self.loaded = state_dict["state"].get(0, {}).get("parameters", "")
        self.state[self.flat.trained[0]] = held
        self.begins = "" if held.get("step") else "all"
        master = held.get("master")
        self.flat.master = None if master is None else self.flat.pool.copy(master)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after the beginning: the parameters are one vector, of the same length in all processes."""
        require(
            not self.groups.places,
            "add_param_group: the parameters are one vector for all processes; make a new optimizer when they change",
        )
        super().add_param_group(param_group)

    def together(self, loader: Iterable[Batch], end: str = "shortest") -> Iterator[Batch]:
        """The batches of a loader, as many in every process, whose loaders may differ in length.

        All processes must iterate together. With "shortest" they stop when the first loader has
        ended; with "longest", loaders begin anew until the last one has ended once.

        >>> import torch.distributed as dist
        >>> import peerdescent as peer
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> optimizer = DecentralizedOptimizer(nn.Linear(1, 1), peer.methods.dsgd(), peer.Network([[1.0]]))
        >>> list(optimizer.together([1, 2, 3]))
        [1, 2, 3]
        >>> dist.destroy_process_group()
        """
        require(end in ("shortest", "longest"), f"end = {end!r}: must be 'shortest' or 'longest'")
        batches, ended = iter(loader), False
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                ended = True
                if end == "longest":
                    batches = iter(loader)
                    again = next(batches, None)
                    if again is None:
                        raise ValueError(
                            "the loader is empty, or cannot begin anew: give one that can"
                        ) from None
                    batch = again
            short = end == "shortest"
            own = ended if short else not ended
            if (
                bool(self._with_all(partial(self._any, own, "end of data"), partial(bool, own)))
                is short
            ):
                return
            yield batch

    def average_parameters(self) -> dict[str, Any]:
        """The consensus model, a mean over all processes, as a `state_dict` for the model. All processes must call it.

        Trained parameters and floating-point buffers are averaged; other entries are those of this
        process.
        """
        self.flat.check()
        return consensus(self.flat, lambda values: self._with_all(partial(self._mean, values)))

    def _mean(self, values: Tensor) -> Tensor:
        return self.peers.channel.mean(values, "average_parameters")

    def _any(self, own: bool, what: str) -> bool:
        """Whether it is so in any process, of all sites."""
        channel = self.peers.channel
        flags = channel.everyone(torch.tensor([float(own)], device=channel.device), what)
        if self.flat.site is not None:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.flat.site)
        return bool(flags.any())


def _site(model: nn.Module, process_group: Any) -> Any:
    """The processes of this site, over which the model averages its gradients; None without a site."""
    inside = isinstance(model, nn.parallel.DistributedDataParallel) and process_group is not None
    return model.process_group if inside else None
