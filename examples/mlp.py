"""A small neural network on ten nodes, each with nearly one digit only. Test accuracy is recorded as a metric.

No node could learn the other digits from its own data. With GT-HSGD on the exponential graph, every node ends with a
model that recognises all ten. The figure also shows DSGD with the same step size and batch. Any JAX function
`loss(params, batch)` can replace `cross_entropy`, and any function of the parameters `accuracy`.
Run: python examples/mlp.py; the figure is mlp.png.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import peerdescent as peer

NODES, HIDDEN, STEPS = 10, 32, 3000


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
    unseen, truth = jnp.asarray(data.features[1500:]), data.labels[1500:]

    def accuracy(params: Any) -> float:
        """The share of test rows that a model classifies correctly."""
        return float(np.mean(np.argmax(logits(params, unseen), axis=1) == truth))

    def worst_node(x_mean: np.ndarray, x: np.ndarray, problem: peer.problems.Problem) -> float:
        """The smallest accuracy of a node's own model."""
        return min(accuracy(problem.unflatten(own)) for own in x)

    rng = np.random.default_rng(0)
    params = {
        "W1": rng.normal(size=(64, HIDDEN)) / 8,
        "b1": np.zeros(HIDDEN),
        "W2": rng.normal(size=(HIDDEN, 10)) / HIDDEN**0.5,
        "b2": np.zeros(10),
    }
    problem = peer.problems.loss(cross_entropy, params, train.partition(NODES, by="label"), name="mlp")
    network = peer.Network(peer.topology.exponential(NODES))
    metrics = [
        peer.metric(accuracy, "test accuracy", model=True, format=".1%"),
        peer.metric(worst_node, "accuracy at the worst node", format=".1%"),
    ]
    methods = {
        "gt-hsgd": peer.methods.gt_hsgd(alpha=0.5, beta=0.1, batch=8, initial_batch=64),
        "dsgd": peer.methods.dsgd(alpha=0.5, batch=8),
    }
    traces = {
        name: [peer.run(method, problem, network, steps=STEPS, record=30, metrics=metrics)]
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
