"""Writes the goldens: numbers from naive loops over nodes, where such a reference exists, and the interface as it is.

    PYTHONPATH=src:tests:tests/methods:tests/golden python tests/golden/record.py interface
    PYTHONPATH=src:tests:tests/methods:tests/golden python tests/golden/record.py numbers

Numbers never change: they are recorded anew only where a case is added. Runs under
faults, and rounds and bytes, have no such reference: they come from the `debug` engine.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import cases
import numpy as np
from interface import lines


def loops_of(name, network, **others):
    """x after all steps, and the gradients of a node, by the loops of tests/methods."""
    import loops
    import test_reference
    import test_zoo

    test_reference.NODES = test_zoo.NODES = cases.NODES
    test_zoo.N, test_zoo.START, test_zoo.STEPS = range(cases.NODES), cases.START, cases.STEPS
    nodes = loops.Nodes(cases.problem(), network, others.pop("seed", cases.SEED))
    zeros, grads, taken = nodes.zeros, nodes.grads, []
    first = iter(
        [list(cases.START)]
    )  # the loops of test_reference begin at the first zeros that they ask for
    nodes.grads = lambda x, sample: taken.append(len(sample[0])) or grads(x, sample)
    q = cases.METHODS[name] | others
    if name in test_reference.PARAMETERS:
        nodes.zeros = lambda: next(first, None) or zeros()
        return test_reference.naive(name, q, nodes, cases.STEPS)[-1], sum(taken)
    q |= {"l1": 0.0, "compressor": 0.5}
    return test_zoo.naive(name, SimpleNamespace(**q), nodes)[-1], sum(taken)


def loss(x):
    """F at the mean over nodes."""
    rows, mean = np.asarray(cases.problem().data.rows, dtype=float), x.mean(axis=0)
    return np.log1p(np.exp(-rows @ mean)).mean() + 0.01 * (mean**2 / (1 + mean**2)).sum()


def numbers():
    """x, gradients, rounds and bytes after all steps of every method and network, and losses of other calls."""
    found = {}
    for name in cases.METHODS:
        for place, network in cases.NETWORKS.items():
            try:
                trace = cases.run(name, place, engine="debug")
            except ValueError as error:
                print(f"{name} over {place}: {error}")
                continue
            last = trace.table.iloc[-1]
            x = trace.x
            if place != "faults":
                x, gradients = loops_of(name, network)
                assert np.abs(x - trace.x).max() < 1e-13, (name, place)
                assert gradients == last["gradients"], (name, place)
            books = {column: last[column] for column in ("gradients", "rounds", "bytes")}
            found[f"{name} {place}"] = {"x": x.tolist(), **books}
    ring = cases.NETWORKS["ring"]
    for row in cases.PERIODS:
        found[f"sweep {row}"] = loss(loops_of("d-get", ring, **row)[0])
    for name in cases.COMPARED:
        found[f"compare {name}"] = [
            loss(loops_of(name, ring, seed=seed)[0]) for seed in cases.SEEDS
        ]
    for name in cases.TRAINED:
        found[f"torch {name}"] = descent(name, *cases.bowls()).tolist()
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    cases.NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def descent(name, matrices, slopes):
    """Exact descent on quadratics, as loops over nodes: what the PyTorch optimizer does with the whole loss."""
    w, q = cases.NETWORKS["ring"].W, cases.METHODS[name]
    nodes = range(cases.NODES)

    def grads(x):
        return [matrices[i] @ x[i] + slopes[i] for i in nodes]

    def mix(x):
        return [sum(w[i, j] * x[j] for j in nodes) for i in nodes]

    alpha, x = cases.ALPHA, [np.zeros(3) for _ in nodes]
    y, before, old = [np.zeros(3) for _ in nodes], [np.zeros(3) for _ in nodes], None
    for t in range(cases.STEPS):
        g = grads(x)
        v = g
        if name == "gt-hsgd" and t:
            h = grads(old)
            v = [g[i] + (1 - q["beta"]) * (before[i] - h[i]) for i in nodes]
        old = x
        if name == "dsgd":
            m = mix(x)
            x = [m[i] - alpha * v[i] for i in nodes]
        else:
            y = mix([y[i] + v[i] - before[i] for i in nodes])
            x = mix([x[i] - alpha * y[i] for i in nodes])
        before = v
    return np.array(x)


if __name__ == "__main__":
    if "numbers" in sys.argv:
        numbers()
    if "interface" in sys.argv:
        cases.INTERFACE.write_text("\n".join(lines()) + "\n")
