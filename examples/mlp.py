"""A small neural network on ten nodes, each of which holds nearly one digit only; test accuracy is a metric.

No node could learn the other digits from its own data. Trained with GT-HSGD over the exponential graph, every node
ends with a model that knows all ten. DSGD, with the same step size, batch and number of gradients, is drawn beside it.
Any JAX function `loss(params, batch)` can stand in for `cross_entropy`.
Run: python examples/mlp.py; the figure is mlp.png.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import peerdescent as peer

NODES, HIDDEN, EPOCHS = 10, 32, 160


def logits(params: dict[str, Any], features: jax.Array) -> jax.Array:
    """Scores of the ten digits (batch, 10)."""
    hidden = jnp.tanh(features @ params["W1"] + params["b1"])
    return hidden @ params["W2"] + params["b2"]


def cross_entropy(params: dict[str, Any], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The mean loss of a batch of features (batch, 64) and labels (batch,)."""
    features, labels = batch
    scores = jax.nn.log_softmax(logits(params, features))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def main() -> None:
    """Train on 1,500 rows; at every record, test the mean model and every node's own on the other 297."""
    data = peer.datasets.load("digits", labels="classes")
    train = peer.datasets.Dataset(data.features[:1500], data.labels[:1500], "digits")
    unseen = data.features[1500:], data.labels[1500:]
    rng = np.random.default_rng(0)
    params = {
        "W1": rng.normal(size=(64, HIDDEN)) / 8,
        "b1": np.zeros(HIDDEN),
        "W2": rng.normal(size=(HIDDEN, 10)) / HIDDEN**0.5,
        "b2": np.zeros(10),
    }
    problem = peer.problems.loss(
        cross_entropy, params, train.partition(NODES, by="label"), name="mlp"
    )
    network = peer.Network(peer.topology.exponential(NODES))
    metrics = [
        peer.accuracy(logits, *unseen),
        peer.accuracy(logits, *unseen, "accuracy at the worst node", worst=True),
    ]
    methods = {
        "gt-hsgd": peer.methods.gt_hsgd(alpha=0.5, beta=0.1, batch=8, initial_batch=64),
        "dsgd": peer.methods.dsgd(alpha=0.5, batch=8),
    }
    traces = {
        name: [peer.run(method, problem, network, epochs=EPOCHS, record=30, metrics=metrics)]
        for name, method in methods.items()
    }
    print(f"{problem.dimension:,} parameters, {network}")
    for name, (trace,) in traces.items():
        last = trace.table.iloc[-1]
        print(
            f"{name}: loss {last['loss']:.4f}, accuracy on unseen rows {last['test accuracy']:.1%} for the mean model,"
        )
        print(f"  {last['accuracy at the worst node']:.1%} at the worst node")
    panels = [("epoch", "test accuracy"), ("epoch", "accuracy at the worst node")]
    print(peer.figures.save(peer.figures.curves(traces, panels), "mlp.png"))


if __name__ == "__main__":
    main()
