"""An optimizer for PyTorch models. It runs any method, with one process per node and without shared data.

A vector is one flat tensor of all trainable parameters, and `mix` exchanges vectors with neighbours. The sample of a
step is the batch of the gradients that the parameters have, or a closure, which the estimator may evaluate at several
points, each time from the same random state and buffers.
"""

from __future__ import annotations

import atexit
import copy
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import peerdescent
from peerdescent.engines.channels import Channel
from peerdescent.engines.joining import connect, described, place
from peerdescent.engines.links import Links
from peerdescent.engines.outline import definition, outline
from peerdescent.engines.vectors import Vector
from peerdescent.errors import PeerLost, require
from peerdescent.methods.contract import Method, State
from peerdescent.networks.network import Network
from peerdescent.problems.definition import digest
from peerdescent.runs.checks import check_network
from peerdescent.torch.flat import Flat, listed, refuse_wrapped
from peerdescent.torch.members import Members, StoreLost, log
from peerdescent.torch.net import Net
from peerdescent.torch.starting import start_alike, welcome
from peerdescent.torch.stepping import decayed, divides, stepping
from peerdescent.torch.streaming import Pattern, Probe, Stream

__all__ = ["DecentralizedOptimizer"]

SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr", "param_names")
"""What schedulers of PyTorch and PyTorch itself keep in a parameter group, for themselves."""

STARTS = ("rank 0", "keep")
"""Where processes start from: all from the parameters and buffers of rank 0, or each from its own."""

LOSSES = ("stop", "continue")
"""What happens when a process is lost."""

MESSAGES = (None, torch.bfloat16, torch.float16, torch.float32)
"""Types in which vectors may be sent; None is their own."""

Batch = TypeVar("Batch")


class Current(NamedTuple):
    """The numbers of the parameter groups, in words too, and the method with them."""

    numbers: dict[str, Any]
    text: str
    method: Method
    """Without step sizes and weight decays."""
    rate: str
    sizes: Any
    shrinks: Any
    now: Method
    """With them, unless it has schedules of its own."""

    def at(self, t: int) -> Method:
        """The method in iteration t."""
        scheduled = self.method.schedules
        return stepping(self.method.at(t), self.rate, self.sizes, self.shrinks) if scheduled else self.now


class Hook:
    """What a model calls before its forward pass: its optimizer. A copy of the model, or a stored one, has none."""

    def __init__(self, optimizer: DecentralizedOptimizer | None = None) -> None:
        self.optimizer = None if optimizer is None else weakref.ref(optimizer)

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        """Begin what can begin."""
        if torch.compiler.is_compiling():  # the rounds of a compiled model begin in `step`
            return
        optimizer = None if self.optimizer is None else self.optimizer()
        if optimizer is not None:
            optimizer.refuse_around()
            optimizer.begin_ahead()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


class DecentralizedOptimizer(torch.optim.Optimizer):
    """Train a model in several processes, one per node, which have their own data and communicate with neighbours.

    All processes start from the parameters and buffers of rank 0, unless each is to keep its own. A step is one
    iteration of the method. After `loss.backward()`, `step()` takes the gradients that the parameters have. Methods
    that need the gradient of a batch at two points, such as gt-hsgd, take `step(closure)`, which returns the loss of
    the batch. The parameter groups have the method's step size as `lr` and its other numbers by name, so schedules
    work. The batch is the program's: batch sizes in the method are ignored.

    All processes must make the same number of steps, and with several optimizers in the same order; it is an error if
    they do not. Each saves and loads its own `state_dict`, along with the model's.

    Args:
        model: A module whose trainable parameters have one type and are on one device. With several processes a site,
            each with its own share of the site's batch, the module in `DistributedDataParallel` over the site.
        method: A composed method without exact gradients.
        network: A network with as many nodes as there are processes, or sites.
        start: "rank 0", or "keep": every process starts from the parameters and buffers that its model has.
        params: Parameter groups as PyTorch's optimizers take them, each with `params` and, if they differ, `lr` and
            `weight_decay`; together all trainable parameters.
        weight_decay: Decoupled weight decay: estimates include so many times the parameters.
        message: The type in which vectors cross, such as torch.bfloat16; by default their own. The mean over all
            processes is kept.
        process_group: The processes that communicate, one per node; by default all. With several processes a site,
            those that have the same number in their sites.
        overlap: Whether vectors that depend on the gradient may be sent during the backward pass, piece by piece. The
            gradients must then stay as one backward pass a step leaves them.
        on_loss: "stop": if a process is lost, all end with an error. "continue": those that are left go on, and a
            process that comes back takes its neighbours' average.
        patience: Seconds without a sign of life after which a process counts as lost, with "continue".

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

    _step_supports_amp_scaling: ClassVar[bool] = True  # a GradScaler leaves it to `step` whether to skip it

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
        overlap: bool = False,
        on_loss: str = "stop",
        patience: float = 10.0,
    ) -> None:
        kinds = (("model", model, nn.Module), ("method", method, Method), ("network", network, Network))
        for name, value, kind in kinds:
            require(isinstance(value, kind), f"{name} is a {type(value).__name__}: give a {kind.__name__}")
        require(start in STARTS, f"start = {start!r}: must be {' or '.join(map(repr, STARTS))}")
        require(on_loss in LOSSES, f"on_loss = {on_loss!r}: must be {' or '.join(map(repr, LOSSES))}")
        require(message in MESSAGES, f"message = {message}: must be one of {', '.join(map(str, MESSAGES))}")
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
        given = list(params) if params is not None else [{}]
        require(
            all(isinstance(group, Mapping) for group in given),
            "params has parameters: give groups, as in [{'params': ..., 'lr': 0.1}], or leave it out for all of them",
        )
        groups = [dict(group) for group in given]
        decays = weight_decay is not None or any("weight_decay" in group for group in groups)
        does = outline(decayed(method, 0.5) if decays else method)
        require(
            not does.takes_exact,
            f"{method.name} takes exact local gradients, and a step knows one batch only: "
            "use a method without exact gradients, such as d-get",
        )
        check_network(method, network)
        require(
            not network.faults,
            f"the network has faults ({', '.join(map(str, network.faults))}), which peer.run simulates; training has "
            "those of its own links: leave them out",
        )
        site = _site(model, process_group)
        require(
            site is None or not does.compresses,
            f"{method.name} compresses whole vectors, and each process of a site has a piece: use one process a site",
        )
        require(
            not overlap or (site is None and message is None and does.takes_one_point and network.rounds == 1),
            "overlap=True is for methods that take one gradient a step, one round for each of theirs, one process a "
            "site, and messages of the parameters' own type: leave it out",
        )
        self.flat, self.method, self.rate, self.does = Flat(model, site), method, rate, does
        self.overlap = overlap
        self.pattern: tuple[str, Pattern | None] = "", None
        """The method's numbers, and the round that can then be sent during a backward pass."""
        self.one_point = does.takes_one_point
        self.ahead = {later: does.rounds_ahead(int(later)) for later in (False, True)}
        """The rounds that begin before gradients are known, in iteration 0 and later."""
        self.names = [name for name in method.numbers if name != rate]
        """The method's numbers beside its step size."""
        # The structure of the method's state, and the leaves to store: those that equal neither x nor an earlier leaf.
        self.distinct = sorted(set(does.aliases) - {0})
        self.divides = divides(method, rate)
        self.kept: dict[int, Any] = {}
        self.nodes, self.message, self.network = network, message, f"{network}, checksum {digest(network.arrays)}"
        self.prepared: Net | None = None
        self.current: Current | None = None
        self.watched = False
        self.late = ""
        """What the next messages say of the numbers of the step before, if they changed after its first messages."""
        self.begins = "all"
        """What starts anew in the next step: "all", the fusion's memory ("fusion") or nothing."""
        self.calls, self.earlier = 0, 0
        """Calls to all others since the last step, and bytes that were sent over links which are no more."""
        self.members: Members | None = None
        if on_loss == "continue":
            require(process_group is None and site is None, "on_loss='continue' is for one process a node")
            network.among(range(network.n))
            self.members = _members(network, patience)
            circle, limit = self.members.connected(), patience
            self._link(Channel(f"optimizer, generation {self.members.roster.generation}", circle, limit))
        else:
            connect()
            Links.check(network, dist.get_world_size(process_group))
            self._link(Channel.over("optimizer", process_group))
        require(
            self.channel.device.type in ("cpu", self.flat.device.type),
            f"the processes are joined by NCCL, which moves nothing from the {self.flat.device.type}: "
            "use model.cuda(), or join them yourself with torch.distributed.init_process_group('gloo')",
        )
        defaults = {"lr" if name == self.rate else name: value for name, value in method.numbers.items()}
        if decays:
            defaults["weight_decay"] = weight_decay or 0.0
        self.facts = {
            "peerdescent": peerdescent.__version__,
            "torch": torch.__version__,
            "method": method,
            "network": network,
            "weights": digest(network.arrays),
            "parameters": sum(p.numel() for p in self.flat.trained),
            "shapes of the model": digest([np.array(tensor.shape) for tensor in self.flat.all]),
            "choice of trained parameters": digest(np.array([p.requires_grad for p in model.parameters()])),
            "type": self.flat.dtype,
            "type of messages": message,
            "overlap": overlap,
            "start": start,
        }
        computes = definition(decayed(method, 0.5) if decays else method)
        self._about = {"method": method.name, "computes": computes, "network": self.network}
        whole = {"params": self.flat.trained}
        super().__init__(groups if params is not None else [whole], {**defaults, **self._about})
        places = {id(p): k for k, group in enumerate(self.param_groups) for p in group["params"]}
        left = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in places]
        require(
            not left, f"{left[0] if left else ''} is trained and in no group of params: put it into one, or freeze it"
        )
        known = {id(p) for p in self.flat.trained}
        require(len(places) == len(known), "params has a parameter that the model does not train: leave it out")
        self.places = [places[id(p)] for p in self.flat.trained]
        """For each trained parameter the number of its group."""
        self.facts["groups of parameters"] = digest(np.array(self.places))
        if self.members is not None:
            self._regroup(None)
        else:
            self._meet([])
        for key in [key for key, hook in model._forward_pre_hooks.items() if isinstance(hook, Hook)]:
            del model._forward_pre_hooks[key]  # that of an earlier optimizer
        model.register_forward_pre_hook(Hook(self))
        for k, p in enumerate(self.flat.trained if self.overlap else ()):
            p.register_post_accumulate_grad_hook(partial(_know, weakref.ref(self), k))

    def _link(self, channel: Channel) -> None:
        """Use other connections to the processes that are there."""
        nodes = self.nodes if self.members is None else self.nodes.among(self.members.roster.ranks)
        if nodes is not self.nodes:
            check_network(self.method, nodes)
        self.channel, self.links = channel, Links(nodes, channel, message=self.message)

    def _regroup(self, lost: PeerLost | None) -> None:
        """Go on with those that are left, and with those that came; without a loss, with those that were just met.

        All start the fusion's memory anew, so that what it keeps of the others is true again.
        """
        assert self.members is not None
        before = self.members.roster.ranks
        while True:
            if lost is not None:
                log.warning("%s", lost)
                self.channel.close()
                self.earlier, self.links.sent = self.bytes_sent, 0
                self.prepared = None
                self.members.meet((self.steps, self.calls))
            roster = self.members.roster
            slow = lost is not None and roster.ranks == before and not roster.new
            limit = self.channel.limit.total_seconds() * (2 if slow else 1)  # a step may take longer than the patience
            try:
                if lost is not None:
                    self._link(Channel(f"optimizer, generation {roster.generation}", self.members.circle(), limit))
                self._meet([roster.ranks.index(rank) for rank in roster.new])
                break
            except StoreLost:
                raise
            except PeerLost as error:
                lost = error
        self.begins = "all" if self.members.is_new or not self.kept else "fusion"
        if self.members.is_new:
            self.kept, self.calls, self.members.is_new = {}, 0, False
            self.state[self.flat.trained[0]] = {"step": roster.position[0], "rank": self.members.rank}
            log.warning("step %d: rank %d has joined %d others", self.steps, self.rank, len(roster.ranks) - 1)
        elif self.steps < roster.position[0]:
            log.warning("rank %d leaves out steps %d to %d", self.rank, self.steps, roster.position[0] - 1)

    def _meet(self, new: list[int]) -> None:
        """Agree on what is trained, and start alike; processes that came later take the average of their neighbours."""
        self.channel.agree(self.facts)
        begun = self.members is not None and self.members.roster.position != (0, 0)
        if begun and len(new) < self.channel.world:
            welcome(self.channel, self.links, self.flat, new)
        elif self.facts["start"] == "rank 0":
            start_alike(self.channel, self.flat)

    def _with_all(self, act: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
        """What a call to all other processes returns; if one is lost in it, they make it again without that one.

        A process that is behind the others gets `otherwise`, since they have made that call already.
        """
        while True:
            behind = self._is_behind()
            if behind and otherwise is None:
                raise PeerLost(f"rank {self.rank}: the others have gone on without this call: make it again")
            try:
                found = otherwise() if behind and otherwise is not None else act()
                self.calls += 1
                return found
            except PeerLost as lost:
                if self.members is None or isinstance(lost, StoreLost):
                    raise
                self._regroup(lost)

    def _is_behind(self) -> bool:
        """Whether the others are further than this process."""
        return self.members is not None and (self.steps, self.calls) < self.members.roster.position

    @property
    def rank(self) -> int:
        """The node of this process."""
        return self.links.rank if self.members is None else self.members.rank

    @property
    def _place(self) -> int | str:
        """The node of this process, and its number in its site if there are several."""
        site = self.flat.site
        return self.rank if site is None else f"{self.rank}, piece {dist.get_rank(site)}"

    @property
    def bytes_sent(self) -> int:
        """The bytes that this process has sent to its neighbours for mixing."""
        return self.earlier + self.links.sent

    @property
    def steps(self) -> int:
        """The number of steps that have been made."""
        return int(self.state.get(self.flat.trained[0], {}).get("step", 0))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one iteration of the method; returns the loss before the step if there is a closure.

        Without a closure it takes the gradients that the parameters have. A closure returns the loss of its batch, and
        may call `backward` itself; it may also be evaluated at the previous parameters, from the same random state and
        buffers. A step that fails restores parameters, buffers and random state.
        """
        self.flat.check()
        require(
            closure is None or not self.overlap,
            "step(closure) computes gradients in the step, and overlap=True sends them before it: use "
            "loss.backward() and step(), or overlap=False",
        )
        if closure is None:
            self._check_gradients()
        elif not self.one_point:
            self.flat.refuse_gradients()
        while True:
            try:
                if self.members is not None and self.members.knocked:
                    raise PeerLost(f"rank {self.rank}: a process asks to join, in step {self.steps}")
                return self._abandoned(closure) if self._is_behind() else self._step(closure)
            except PeerLost as lost:
                if self.members is None or isinstance(lost, StoreLost):
                    raise
                self._regroup(lost)

    def _abandoned(self, closure: Callable[[], Any] | None) -> Any:
        """A step that the others have made already: it counts, and changes nothing."""
        loss = None if closure is None else self.flat.evaluate(self.flat.read(), closure, adds=True)[0]
        self.state[self.flat.trained[0]] = {**self.state.get(self.flat.trained[0], {}), "step": self.steps + 1}
        self.calls = 0
        return loss

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if self._overflows():
            return None
        current, t = self._current(), self.steps
        net = self._prepare(current)
        require(
            net.version == self.flat.version and net.is_as_sent(),
            "the parameters were changed between the forward pass and the step, when they were on their way to the "
            "neighbours: change them after a step",
        )
        self.links.numbers, method = net.numbered(current.text), current.at(t)
        net.closure = closure if closure is None or self.watched else self._watching(closure)
        net.adds = self.one_point
        net.scale = float(getattr(self, "grad_scale", None) or 1.0)
        require(net.stream is None or net.scale == 1, "a GradScaler divides gradients that were sent: overlap=False")
        with torch.no_grad():
            try:
                state = self._state(method, net)
                leaves = jax.tree.leaves(state)
                computed = state.x.is_sum  # else it was mixed, and all that was mixed is finite
                for leaf in leaves:
                    getattr(leaf, "tensor", None)  # wait for what is on its way
                if computed:
                    net.must_be_finite(state.x.tensor, "parameters")
                if self.overlap:  # what neighbours have sent was not looked at before
                    for vector in (leaves[k] for k in (0, *self.distinct) if isinstance(leaves[k], Vector)):
                        net.must_be_finite(vector.tensor, "vector that was mixed")
            except BaseException:
                net.leave(net.x, net.before)
                net.again()
                raise
            x, after, loss = state.x, net.after, net.loss
            self.kept = {k: leaves[k] for k in self.distinct}
            self.prepared, self.begins, self.calls = None, "", 0
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

    def refuse_around(self) -> None:
        """Refuse a wrapper that communicates, if it is the one that calls the model now."""
        around = nn.parallel.DistributedDataParallel._active_ddp_module
        if around is not None and around is not self.flat.model:
            refuse_wrapped(around)

    def begin_ahead(self) -> None:
        """Before a forward pass: begin the rounds whose vectors are known, if the next step takes its gradients."""
        trains = self.flat.model.training and torch.is_grad_enabled() and self.watched and self.prepared is None
        begins = self.one_point and not self.begins and (self.ahead[self.steps > 0] or self.overlap)
        if trains and begins and not self.channel.failure and not self._is_behind():
            self.flat.check()
            with suppress(PeerLost):  # the step will find that, too
                current = self._current()
                net = self._prepare(current)
                if self.overlap and self.channel.goes_in_pieces(net.x.tensor):
                    self._stream(current, net)

    def _stream(self, current: Current, net: Net) -> None:
        """Begin the round that is sent during the backward pass, if there is one."""
        leaves, text, method = {0: net.x, **self._held()}, current.text, current.at(net.t)
        if text != self.pattern[0] or self.method.schedules or self.does.branches:
            by_group = any(isinstance(value, Vector) for value in (current.sizes, current.shrinks))
            found = Probe(self.links.seed, net.t, leaves).find(lambda own, verbs: method.step(self._tree(own), verbs))
            self.pattern = text, None if by_group else found
        if self.pattern[1] is not None:
            net.stream = Stream(self.flat, net.turn, self.pattern[1], leaves)

    def _prepare(self, current: Current) -> Net:
        """The verbs of the next step, with the rounds begun whose vectors are known."""
        if self.prepared is None:
            t = self.steps
            turn = self.links.begin(t, current.text + self.late)
            with torch.no_grad():
                net = Net(self.flat, self.links, turn, t)
                net.overlap, net.text = self.overlap, current.text
                if not self.one_point:  # the parameters are set to others before all of x has been sent
                    self.flat.settle(net.x)
                if self.begins == "all":
                    net.begin(self.ahead[False], {0: net.x})
                elif not self.begins:
                    net.begin(self.ahead[True], {0: net.x, **self._held()})
            self.prepared = net
        return self.prepared

    def _numbers(self) -> dict[str, Any]:
        """The method's numbers by their names in the groups; `lr` and `weight_decay` are lists, one for each group."""
        names = self.names
        for group in self.param_groups:
            self._check_keys(group)
            for name in names:
                first = self.param_groups[0][name]
                require(
                    group[name] == first,
                    f"{name} = {group[name]} in one group and {first} in another: groups may differ in lr and "
                    "weight_decay only",
                )
        lists = [name for name in ("lr", "weight_decay") if name in self.param_groups[0]]
        found: dict[str, Any] = {name: [float(group[name]) for group in self.param_groups] for name in lists}
        for name in lists:
            for value in found[name]:
                require(0 <= value < math.inf, f"{name} = {value}: must be finite and not negative")
        require(
            not self.divides or all(found["lr"]),
            f"lr = 0: {self.method.name} divides by its step size, so let schedules begin and end above 0",
        )
        return {**found, **{name: self.param_groups[0][name] for name in names}}

    def _current(self) -> Current:
        """The method with the numbers of the parameter groups; made anew when they have changed."""
        numbers = self._numbers()
        if self.current is None or self.current.numbers != numbers:
            known = dict(numbers)
            rates, decays = known.pop("lr"), known.pop("weight_decay", None)
            method, sizes = self.method.replace(**known), self._by_group(rates)
            shrinks = None if decays is None else self._by_group(decays)
            plain = {}
            for name, value in numbers.items():
                several = isinstance(value, list) and len(set(value)) > 1
                plain[name] = value if several else float(value[0] if isinstance(value, list) else value)
            text = ", ".join(f"{name} = {value!r}" for name, value in plain.items())
            now = stepping(method, self.rate, sizes, shrinks)
            self.current = Current(numbers, text, method, self.rate, sizes, shrinks, now)
        return self.current

    def _by_group(self, values: list[float]) -> Any:
        """One number, or a vector if the groups have different ones."""
        if len(set(values)) == 1:
            return torch.tensor(values[0], dtype=torch.float64)
        return self.flat.by_parameter([values[place] for place in self.places])

    def _check_keys(self, group: dict[str, Any]) -> None:
        """Refuse keys that the method does not use."""
        known = ["lr", *self.names]
        known += ["weight_decay"] if "weight_decay" in self.defaults else []
        allowed = {*known, *SCHEDULED, "params", *self._about}
        for name in group.keys() - allowed:
            raise ValueError(
                f"{name} = {group[name]!r} in the parameter group: {self.method.name} knows only "
                f"{' and '.join(known)}; remove it, or give weight_decay= when the optimizer is made"
            )

    def _watching(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, which in the first step also looks for a wrapper that it calls around the model."""
        trained = {id(p) for p in self.flat.trained}

        def look(module: nn.Module, _: Any) -> None:
            if module is not self.flat.model and any(id(p) in trained for p in module.parameters()):
                refuse_wrapped(module)

        def watched() -> Any:
            with nn.modules.module.register_module_forward_pre_hook(look):
                return closure()

        return watched

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
        return self._tree({0: x, **self._held()})

    def _tree(self, leaves: dict[int, Any]) -> Any:
        """The method's state of these leaves."""
        return jax.tree.unflatten(self.does.structure, [leaves[k] for k in self.does.aliases])

    def state_dict(self) -> dict[str, Any]:
        """What this process remembers, as copies: the memory of vectors is used again in later steps."""
        found = super().state_dict()
        states = {
            key: {name: value.clone() if isinstance(value, Tensor) else value for name, value in own.items()}
            for key, own in found["state"].items()
        }
        return {**found, "state": states}

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
            rank in (None, self._place),
            f"the state is of rank {rank}, and this is rank {self._place}: every process saves and loads its own",
        )
        require(
            network == self.network,
            f"the state is of {network}, and this optimizer has {self.network}: make it with the network of the state",
        )
        self._check_keys(group)
        sizes = {value.numel() for value in held.values() if isinstance(value, Tensor)}
        p = self.flat.pool.size
        require(
            sizes <= {1, p},
            f"the state is of {listed(dict.fromkeys(sizes))} parameters, and the model has {p} to train: load "
            "the state of this model",
        )
        require(
            self.prepared is None,
            "a state cannot be loaded between a forward pass and its step: make the step first",
        )
        super().load_state_dict(state_dict)
        # PyTorch gives states the type and the device of their parameter; vectors may be of another.
        held = {
            key: value.to(self.flat.device, copy=True) if isinstance(value, Tensor) else value
            for key, value in held.items()
        }
        self.state[self.flat.trained[0]] = held
        self.begins = "" if held.get("step") else "all"
        master = held.get("master")
        self.flat.master = None if master is None else self.flat.pool.copy(master)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after the beginning: the parameters are one vector, of the same length in all processes."""
        require(
            not hasattr(self, "places"),
            "add_param_group: the parameters are one vector for all processes; make a new optimizer when they change",
        )
        super().add_param_group(param_group)

    def together(self, loader: Iterable[Batch], end: str = "shortest") -> Iterator[Batch]:
        """The batches of a loader, as many in every process, whose loaders may differ in length.

        All processes must iterate together. With "shortest" they stop when the first loader has ended; with "longest",
        loaders begin anew until the last one has ended once.

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
                        raise ValueError("the loader is empty, or cannot begin anew: give one that can") from None
                    batch = again
            short = end == "shortest"
            own = ended if short else not ended
            if bool(self._with_all(partial(self._any, own, "end of data"), partial(bool, own))) is short:
                return
            yield batch

    def average_parameters(self) -> dict[str, Any]:
        """The consensus model, a mean over all processes, as a `state_dict` for the model. All processes must call it.

        Trained parameters and floating-point buffers are averaged; other entries are those of this process.
        """
        self.flat.check()
        entries = self.flat.inner.state_dict(keep_vars=True)
        shared = {
            name: value
            for name, value in entries.items()
            if isinstance(value, Tensor)
            and value.is_floating_point()
            and not (isinstance(value, nn.Parameter) and not value.requires_grad)
        }
        averaged = {
            name: copy.deepcopy(value.detach() if isinstance(value, Tensor) else value)
            for name, value in entries.items()
            if name not in shared
        }
        for dtype in dict.fromkeys(value.dtype for value in shared.values()):
            own = {id(value): value.detach() for value in shared.values() if value.dtype == dtype}  # tied ones once
            whole = torch.cat([value.reshape(-1) for value in own.values()])
            mean = self._with_all(partial(self._mean, whole))
            means = dict(zip(own, mean.split([value.numel() for value in own.values()]), strict=True))
            for name, value in shared.items():
                if value.dtype == dtype:
                    averaged[name] = means[id(value)].view(value.shape).clone()
        return {name: averaged[name] for name in entries}

    def _mean(self, values: Tensor) -> Tensor:
        return self.channel.mean(values, "average_parameters")

    def _any(self, own: bool, what: str) -> bool:
        """Whether it is so in any process, of all sites."""
        flags = self.channel.everyone(torch.tensor([float(own)], device=self.channel.device), what)
        if self.flat.site is not None:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.flat.site)
        return bool(flags.any())


def _know(optimizer: Any, k: int, _: Tensor) -> None:
    """What a parameter calls when it has its gradient."""
    found = optimizer()
    net = None if found is None else found.prepared
    if net is not None and net.stream is not None:
        with torch.no_grad(), suppress(PeerLost):  # the step will find that, too
            net.stream.know(k)


def _members(network: Network, patience: float) -> Members:
    """The processes that meet at the store which `torchrun` describes, or that of the program's own group."""
    if dist.is_initialized():
        store, rank, world = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    else:
        rank, world = described()
        store = place()
    Links.check(network, world)
    members = Members(store, rank, world, patience)
    atexit.register(members.leave)
    return members


def _site(model: nn.Module, process_group: Any) -> Any:
    """The processes of this site, over which the model averages its gradients; None without a site."""
    inside = isinstance(model, nn.parallel.DistributedDataParallel) and process_group is not None
    return model.process_group if inside else None
