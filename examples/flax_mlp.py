"""A model of flax on ten nodes, each of which holds nearly one digit only: GT-HSGD beside DSGD.

An nnx module is a pytree of its parameters, so it is given to `problems.loss` as it is, and `unflatten` gives one back
that can be called. A module with other state, such as random keys, is split: see docs/problems.md.
One seed and one step size, chosen among two, are no comparison: with 0.4, GT-HSGD ends at loss 2.30 and DSGD at 0.07.
Run: python examples/flax_mlp.py; the figure is flax_mlp.png.
"""

import jax
import jax.numpy as jnp
import pandas as pd
from flax import nnx

import peerdescent as peer

NODES, EPOCHS = 10, 160


class MLP(nnx.Module):
    """Two hidden layers."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.last = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Scores of the ten digits (rows, 10)."""
        return self.last(nnx.relu(self.second(nnx.relu(self.first(features)))))


def cross_entropy(model: MLP, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The mean loss of a batch of features (rows, 64) and labels (rows,)."""
    features, labels = batch
    scores = jax.nn.log_softmax(model(features))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def main() -> None:
    """Train on 1,500 rows, and test the mean model and the worst node's own on the other 297."""
    data = peer.datasets.load("digits", labels="classes")
    train = peer.datasets.Dataset(data.features[:1500], data.labels[:1500], "digits")
    problem = peer.problems.loss(
        cross_entropy, MLP(32, nnx.Rngs(0)), train.partition(NODES, by="label"), name="mlp"
    )
    network = peer.Network(peer.topology.exponential(NODES))
    unseen = data.features[1500:], data.labels[1500:]
    metrics = [
        peer.accuracy(MLP.__call__, *unseen),
        peer.accuracy(MLP.__call__, *unseen, "accuracy at the worst node", worst=True),
    ]
    methods = {
        "gt-hsgd": peer.methods.gt_hsgd(alpha=0.2, beta=0.1, batch=8, initial_batch=64),
        "dsgd": peer.methods.dsgd(alpha=0.2, batch=8),
    }
    traces = {
        name: [peer.run(method, problem, network, epochs=EPOCHS, record=20, metrics=metrics)]
        for name, method in methods.items()
    }
    print(f"{problem.dimension:,} parameters, {network}")
    columns = ["epoch", "loss", "consensus", "test accuracy", "accuracy at the worst node"]
    print(
        pd.DataFrame(
            {name: trace.table[columns].iloc[-1] for name, (trace,) in traces.items()}
        ).T.round(4)
    )
    panels = [("epoch", "test accuracy"), ("epoch", "accuracy at the worst node")]
    print(peer.figures.save(peer.figures.curves(traces, panels), "flax_mlp.png"))


if __name__ == "__main__":
    main()
