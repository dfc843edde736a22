"""A model of equinox on ten nodes, each of which holds nearly one digit only: GT-DSGD beside DSGD.

An equinox module has leaves that are not trained, such as activation functions. `eqx.partition` splits them off, and
`predict` puts them back.
One seed and one of a few settings tried are no comparison: on a ring, with step size 0.3 and 80 epochs, the mean model
of DSGD is the better one, with 81 % of the unseen rows against 72 %.
Run: python examples/equinox_mlp.py; the figure is equinox_mlp.png.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pandas as pd

import peerdescent as peer

NODES, EPOCHS = 10, 160


def main() -> None:
    """Train on 1,500 rows, and test the mean model and the worst node's own on the other 297."""
    model = eqx.nn.MLP(
        in_size=64,
        out_size=10,
        width_size=32,
        depth=2,
        activation=jax.nn.gelu,
        key=jax.random.key(0),
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def predict(params: Any, features: jax.Array) -> jax.Array:
        """Scores of the ten digits (rows, 10)."""
        return jax.vmap(eqx.combine(params, static))(features)

    def cross_entropy(params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The mean loss of a batch of features (rows, 64) and labels (rows,)."""
        features, labels = batch
        scores = jax.nn.log_softmax(predict(params, features))
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    data = peer.datasets.load("digits", labels="classes")
    train = peer.datasets.Dataset(data.features[:1500], data.labels[:1500], "digits")
    problem = peer.problems.loss(
        cross_entropy, params, train.partition(NODES, by="label"), name="mlp"
    )
    network = peer.Network(peer.topology.exponential(NODES))
    unseen = data.features[1500:], data.labels[1500:]
    metrics = [
        peer.accuracy(predict, *unseen),
        peer.accuracy(predict, *unseen, "accuracy at the worst node", worst=True),
    ]
    methods = {
        "gt-dsgd": peer.methods.gt_dsgd(alpha=0.2, batch=8),
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
    print(peer.figures.save(peer.figures.curves(traces, panels), "equinox_mlp.png"))


if __name__ == "__main__":
    main()
