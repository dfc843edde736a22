"""What the naive loops over nodes share, without any code of the methods; only the samples are the package's."""

from __future__ import annotations

import numpy as np

from small import drawn

STEPS, STRENGTH = 200, 0.01


class Nodes:
    """Arithmetic node by node: the oracle of non-convex logistic regression, and the sum over neighbours."""

    def __init__(self, problem, network, seed):
        w = network.W
        self.rows, self.n = np.asarray(problem.data.rows, dtype=float), problem.nodes
        self.ws = w if w.ndim == 3 else [w]
        self.bs = self.ws if network.pushed is None else [network.pushed.toarray()]
        self.w, self.b = self.ws[0], self.bs[0]
        self.p, self.m, self.seed = problem.dimension, self.rows.shape[1], seed

    def zeros(self):
        return [np.zeros(self.p) for _ in range(self.n)]

    def draw(self, t, batch):
        return drawn(self.seed, self.n, self.m, batch, STEPS)[t]

    def grads(self, x, sample):
        result = []
        for i in range(self.n):
            total = np.zeros(self.p)
            for j in sample[i]:
                row = self.rows[i, j]
                total += -row / (1 + np.exp(row @ x[i]))
            result.append(total / len(sample[i]) + STRENGTH * 2 * x[i] / (1 + x[i] ** 2) ** 2)
        return result

    def exact(self, x):
        return self.grads(x, [range(self.m)] * self.n)

    def mix(self, x):
        return [sum(self.w[i, j] * x[j] for j in range(self.n)) for i in range(self.n)]

    def push(self, x):
        return [sum(self.b[i, j] * x[j] for j in range(self.n)) for i in range(self.n)]

    def combine(self, function, *vectors):
        return [function(*parts) for parts in zip(*vectors, strict=True)]


def sgd(nodes, x, t, batch):
    """The minibatch gradients at x_t."""
    return nodes.grads(x[t], nodes.draw(t, batch))


def recursion(nodes, x, v, t, batch, keep):
    """The gradients at x_t, and `keep` times what v_{t-1} had besides those of the same sample at x_{t-1}."""
    xi = nodes.draw(t, batch)
    new, old = nodes.grads(x[t], xi), nodes.grads(x[t - 1], xi)
    return nodes.combine(lambda g, h, w: g + keep * (w - h), new, old, v[t - 1])
