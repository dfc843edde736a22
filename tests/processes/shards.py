"""What `test_sharded` runs in processes of their own, since JAX must know its devices before it starts.

`python tests/processes/shards.py FOLDER NODES CASES` runs these cases on the sharded engine, in one process or, by the
environment, in several, and leaves the iterates in FOLDER/PROCESS.npz; what else there is to tell is the last line of
standard output, as JSON.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import jax
import networkx as nx
import numpy as np

import peerdescent as peer
from peerdescent.engines import connect
from peerdescent.engines.sharded import Sharded
from small import LONG, Spy, small_logistic, small_quadratic

NETWORKS = {
    "ring": peer.topology.ring,
    "directed": peer.topology.directed_exponential,
    "changing": lambda nodes: [peer.topology.ring(nodes), peer.topology.complete(nodes)],
}
STEPS = 20
"""Two periods of 7 and some more."""
FAULTY_STEPS = 30
"""Steps of runs in which something goes wrong on links."""


FEW = {
    "dsgd": "directed",
    "d2": "ring",
    "d-get": "changing",
    "motef": "directed",
    "proxskip": "ring",
}
"""One method for each way to communicate: a mix, a disagreement, two rounds in either branch of an `every`, compressed,
and by a coin."""
SOME = FEW | {"gt-nsgdm": "directed", "proxgt": "changing"}
"""And what else a device with two nodes does for each of them: products of vectors, and proximal maps."""
OPTIONS = {"period": 7, "interval": 3, "probability": 0.4}
COMPRESSORS = {
    "choco-sgd": "random-k(0.5)",
    "beer": "sign",
    "motef": "quantize(4)",
    "docom": "top-k(0.5)",
}


def cases(nodes, kind="all"):
    """Each is a name, a method, a problem, a network and a number of steps.

    The kind "all" has, in `make test-long`, every method on one network: the directed one for half
    of those that allow it, else the one that changes, which is a ring in every other iteration, or the ring; those
    in `FEW` on all networks that they allow. The kinds "some" and "few" have those in `SOME` and `FEW`, on one
    network each. Then faults, whose programs take the longest to compile, by the number of their rounds: some are
    for a method with one.
    """
    problem = small_quadratic(nodes)
    networks = {name: peer.Network(build(nodes)) for name, build in NETWORKS.items()}
    composite = peer.problems.composite(problem, l1=0.05)
    methods = [
        method.replace(
            **{name: value for name, value in OPTIONS.items() if name in method.parameters},
            **({"compressor": COMPRESSORS[method.name]} if method.name in COMPRESSORS else {}),
        )
        for method in (entry.build() for entry in peer.methods.METHODS.values())
    ]
    directed = [method.name for method in methods if not method.needs.symmetric]
    for topology, network in networks.items():
        for method in methods:
            allowed = {
                "ring",
                *["directed"][method.needs.symmetric :],
                *["changing"][method.needs.static :],
            }
            if kind != "all" or not LONG:
                allowed = {(FEW if kind == "few" else SOME).get(method.name)}
            elif method.name not in FEW:
                first = "directed" if method.name in directed[::2] else "changing"
                allowed = {first if first in allowed else "ring"}
            if topology in allowed:
                proximal = "proximal" in type(method.parts[1]).__name__
                yield (
                    f"{method.name} {topology}",
                    method,
                    composite if proximal else problem,
                    network,
                    STEPS,
                )
    for name, network in faulty(nodes, kind).items():
        usual = (
            peer.methods.gt_hsgd() if kind == "all" and network.rounds == 1 else peer.methods.dsgd()
        )
        pushing = [peer.methods.push_pull(), peer.methods.add_opt(alpha=0.02)]
        for method in [usual] if network.pushed is None else pushing:
            yield f"{method.name} {name}", method, problem, network, FAULTY_STEPS
    yield "dsgd by lengths", by_lengths(), problem, networks["ring"], STEPS


def faulty(nodes, kind):
    """Networks on which messages get lost or change, nodes sleep, or links are drawn anew in every round.

    The random graph is a simpler one for the kind "some", and there is none for "few".
    """
    ring, topology, faults = peer.topology.ring(nodes), peer.topology, peer.faults
    known = {
        "drop-noise": [faults.drop(0.3), faults.noise(0.01)],
        "burst-inactive": [faults.burst(0.2, 0.4), faults.inactive(0.2)],
    }
    if kind == "few":
        known = {
            "burst-inactive-noise": [*known["burst-inactive"], faults.noise(0.01)]
        }  # there is a drop below
    unbalanced = nx.DiGraph(
        [*((i, (i + 1) % nodes) for i in range(nodes)), (0, 2), (nodes - 1, 1), (0, nodes - 1)]
    )
    drawn = {}
    if kind == "some":
        drawn = {"random-matching": peer.Network(topology.random_matching(nodes))}
    elif kind == "all":
        drawn = {"random-regular": peer.Network(topology.random_regular(nodes, 3), rounds=2)}
    return {
        **{name: peer.Network(ring, faults=each) for name, each in known.items()},
        **drawn,
        "unbalanced": peer.Network(unbalanced, "push-pull", faults=[faults.drop(0.2)]),
    }


def iterates(method, problem, network, steps, engine):
    return peer.run(
        method, problem, network, steps=steps, precision=64, record=2, engine=engine, progress=False
    ).x


class Counted(NamedTuple):
    """A state made by hand, with a plain Python number in it."""

    x: object
    k: object


def by_hand():
    return peer.Method(
        lambda x, net: Counted(x, 1), lambda s, net: Counted(net.mix(s.x) + 0.1 * s.k, s.k + 1)
    )


class Iterate(NamedTuple):
    x: object


def by_lengths():
    """Nodes tell each other the lengths of their gradients, a number each, and step by their mean."""

    def moved(x, net):
        g = net.grad(x, net.sample(1))
        return net.mix(x - 0.1 * g / (1 + net.mix(net.dot(g, g))) ** 0.5)

    return peer.Method(
        lambda x, net: Iterate(moved(x, net)), lambda s, net: Iterate(moved(s.x, net)), "by lengths"
    )


def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return None


def facts(nodes):
    """What else the tests ask of one set of devices, beside the iterates."""
    spy, problem, ring = Spy(), small_logistic(nodes), peer.Network(peer.topology.ring(nodes))
    method, options = (
        peer.methods.gt_hsgd(0.3, 0.1),
        {"record": 5, "engine": "sharded", "precision": 64},
    )
    whole = peer.run(method, problem, ring, steps=40, progress=spy, **options)
    part = peer.run(method, problem, ring, steps=24, progress=False, **options)
    resumed = peer.run(method, problem, ring, steps=40, progress=False, resume=part, **options)
    again = peer.run(
        by_hand(), problem, ring, steps=9, progress=False, x0=np.arange(5.0), **options
    )
    machine = Sharded(method, problem, ring, 0, np.dtype("float32"))
    odd = [small_logistic(n) for n in ((5, 7) if nodes == 8 else ())]
    return {
        "devices": len(jax.devices()),
        "processes": jax.process_count(),
        "seen": len(spy.seen),
        "table": whole.table.drop(columns=["seconds", "clock", "tracking"]).to_dict("list"),
        "x_tilde": whole.x_tilde.tolist(),
        "resumed": bool(
            np.array_equal(resumed.x, whole.x) and np.array_equal(resumed.x_tilde, whole.x_tilde)
        ),
        "by hand": [again.x.tolist(), int(again.state.k)],
        "held": sorted(
            {
                s.data.shape[0]
                for leaf in jax.tree.leaves(machine.data)
                for s in leaf.addressable_shards
            }
        ),
        "used": machine.mesh.size,
        "refused": [
            refusal(
                lambda p=p: peer.run(
                    method, p, peer.Network(peer.topology.ring(p.nodes)), steps=3, **options
                )
            )
            for p in odd
        ],
    }


def compute(folder, nodes, kind):
    """Leave the iterates of all cases in FOLDER/NUMBER.npz, and the facts in FOLDER/NUMBER.json."""
    own = connect("sharded")
    found = {name: iterates(*case, "sharded") for name, *case in cases(nodes, kind)}
    np.savez(folder / f"{own}.npz", **found)
    (folder / f"{own}.json").write_text(json.dumps({"number": own} | facts(nodes)))
