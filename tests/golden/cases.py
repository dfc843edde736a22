"""What the goldens are about: one small problem, three networks, and every named method with its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import peerdescent as peer

NODES, STEPS, SEED = 4, 30, 5
NUMBERS = Path(__file__).with_name("numbers.json")
INTERFACE = Path(__file__).with_name("interface.txt")

TRACKED = {"gamma": 0.4, "compressor": peer.compressors.top_k(0.5), "batch": 2}
METHODS = {
    "dsgd": {"alpha": 0.3, "batch": 2},
    "d2": {"alpha": 0.3, "batch": 2},
    "gt-dsgd": {"alpha": 0.3, "batch": 2},
    "d-pd-sgd": {"eta": 0.2, "alpha": 0.7, "kappa": 0.4, "batch": 2},
    "d-get": {"alpha": 0.2, "period": 7, "batch": 2, "large_batch": 5},
    "d-spider-sfo": {"alpha": 0.2, "period": 7, "batch": 2, "large_batch": 5},
    "gt-sarah": {"alpha": 0.2, "period": 7, "batch": 2},
    "gt-hsgd": {"alpha": 0.3, "beta": 0.1, "batch": 2, "initial_batch": 5},
    "push-pull": {"alpha": 0.3, "batch": 2},
    "sgp": {"alpha": 0.3, "batch": 2},
    "add-opt": {"alpha": 0.1, "batch": 2},
    "dsgdm": {"alpha": 0.3, "rho": 0.3, "batch": 2},
    "gt-momentum": {"alpha": 0.3, "rho": 0.3, "batch": 2},
    "edm": {"alpha": 0.3, "rho": 0.3, "batch": 2},
    "gt-svrg": {"alpha": 0.3, "period": 7, "batch": 2},
    "gt-page": {"alpha": 0.3, "probability": 0.3, "batch": 2, "large_batch": 5},
    "nids": {"alpha": 0.3, "batch": 2},
    "extra": {"alpha": 0.3, "batch": 2},
    "qg-dsgdm": {"alpha": 0.3, "mu": 0.6, "batch": 2},
    "decentlam": {"alpha": 0.2, "mu": 0.6, "batch": 2},
    "d-adam": {"alpha": 0.03, "beta1": 0.8, "beta2": 0.9, "epsilon": 0.01, "batch": 2},
    "gt-adam": {"alpha": 0.03, "decay": 0.8, "decay_square": 0.9, "epsilon": 0.01, "batch": 2},
    "choco-sgd": {"alpha": 0.3, **TRACKED},
    "beer": {"alpha": 0.2, **TRACKED},
    "motef": {"alpha": 0.2, **TRACKED, "rho": 0.3},
    "docom": {"alpha": 0.2, **TRACKED, "beta": 0.1, "initial_batch": 5},
    "k-gt": {"alpha": 0.2, "outer": 0.8, "interval": 4, "batch": 2},
    "led": {"alpha": 0.2, "dual": 0.5, "interval": 4, "batch": 2},
    "proxskip": {"alpha": 0.2, "dual": 0.5, "chi": 1.0, "probability": 0.3, "batch": 2},
    "proxgt": {"alpha": 0.3, "batch": 2},
    "deepstorm": {"alpha": 0.3, "beta": 0.1, "batch": 2, "initial_batch": 5},
    "gt-nsgdm": {"alpha": 0.05, "rho": 0.3, "batch": 2},
}
RING = peer.topology.ring(NODES)
NETWORKS = {
    "ring": peer.Network(RING),
    "directed": peer.Network(peer.topology.directed_exponential(NODES)),
    "faults": peer.Network(RING, faults=[peer.faults.drop(0.2)]),
}
PERIODS = [{"alpha": alpha, "period": period} for alpha in (0.1, 0.2) for period in (3, 7, 50)]
COMPARED, SEEDS = ("gt-dsgd", "gt-hsgd"), (5, 6)
TRAINED, ALPHA = ("dsgd", "gt-dsgd", "gt-hsgd"), 0.1
START = np.random.default_rng(1).normal(size=(NODES, 5)) / 2


def numbers():
    """What is stored."""
    return json.loads(NUMBERS.read_text())


def spread(*engines):
    """Cases (method, network, engine): each method on each of its networks, with the engines in turn; None for none."""
    stored, found = numbers(), []
    for k, name in enumerate(METHODS):
        fitting = [network for network in NETWORKS if f"{name} {network}" in stored]
        found += [
            (name, network, engines[(k + j) % len(engines)]) for j, network in enumerate(fitting)
        ]
    return [case for case in found if case[2]]


def problem():
    """Non-convex logistic regression: four nodes with 11 samples of 5 features."""
    return peer.problems.logistic(
        peer.datasets.synthetic(NODES * 11, 5, seed=3).partition(NODES), strength=0.01
    )


def method(name):
    """A named method with the numbers of the goldens."""
    return peer.methods.METHODS[name].build(**METHODS[name])


def run(name, network, **options):
    """A run of the goldens."""
    length = {"steps": STEPS} if "epochs" not in options else {}
    defaults = {"x0": START, "seed": SEED, "precision": 64, "record": [STEPS], "progress": False}
    return peer.run(method(name), problem(), NETWORKS[network], **(defaults | length | options))


def bowls():
    """Quadratics x'Qx / 2 + c'x of four nodes, for the PyTorch optimizer."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(NODES, 3, 3))
    return np.eye(3) + root @ root.transpose(0, 2, 1) / 4, rng.normal(size=(NODES, 3))
