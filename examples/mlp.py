"""A small neural network on ten nodes, each of which holds nearly one digit only.

No node could learn the other digits from its own data. Trained with GT-HSGD over the exponential graph, every node
ends with a model that knows all ten. Any JAX function `loss(params, batch)` can stand in for `cross_entropy`.
Run: python examples/mlp.py
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
    """Train on 1,500 rows, then test every node's model on the other 297."""
    data = peer.datasets.load("digits", labels="classes")
    train = peer.datasets.Dataset(data.features[:1500], data.labels[:1500], "digits")
    rng = np.random.default_rng(0)
    params = {
        "W1": rng.normal(size=(64, HIDDEN)) / 8,
        "b1": np.zeros(HIDDEN),
        "W2": rng.normal(size=(HIDDEN, 10)) / HIDDEN**0.5,
        "b2": np.zeros(10),
    }
    problem = peer.problems.loss(cross_entropy, params, train.partition(NODES, by="label"), name="mlp")
    network = peer.Network(peer.topology.exponential(NODES))
    method = peer.methods.gt_hsgd(alpha=0.5, beta=0.1, batch=8, initial_batch=64)
    trace = peer.run(method, problem, network, steps=STEPS, record=6)
    print(f"{problem.dimension:,} parameters, {network}")
    print(trace.table[["step", "epoch", "loss", "grad_norm", "consensus"]].to_string(index=False))
    unseen = jnp.asarray(data.features[1500:])
    guesses = [np.argmax(logits(problem.unflatten(x), unseen), axis=1) for x in trace.x]
    right = [np.mean(guess == data.labels[1500:]) for guess in guesses]
    print(f"accuracy on unseen rows: {min(right):.1%} at the worst node, {max(right):.1%} at the best")


if __name__ == "__main__":
    main()
