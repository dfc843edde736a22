"""Deep learning in simulation: what a step of n nodes costs on a GPU, over a step of one plain JAX model.

Both see as many samples a step: one model a batch of 512, sixteen nodes 32 each. Plain JAX is written as one would
write it, in float32 at full precision, as our default is. Run it on a machine where JAX has a GPU; it writes
`benchmarks/results/gpu_deep.md`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import peerdescent as peer
from peerdescent.engines import mixing, program, stacked
from peerdescent.engines.products import by_three

NODES, BATCH, ROWS, STEPS, ROUNDS = 16, 32, 1024, 480, 7
SINGLE = np.dtype("float32")


def perceptron(params: Any, batch: Any) -> Any:
    """The loss of a perceptron 784-512-512-10."""
    x, labels = batch
    for k, (w, b) in enumerate(params):
        x = x @ w + b
        x = jax.nn.relu(x) if k < len(params) - 1 else x
    return _cross_entropy(x, labels)


def convolutional(params: Any, batch: Any) -> Any:
    """The loss of two convolutions 3 x 3 with 16 and 32 channels, each with pooling, and two layers."""
    x, labels = batch
    x = x.reshape(-1, 28, 28, 1)
    for w, b in params[:2]:
        x = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = lax.reduce_window(
            jax.nn.relu(x + b), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    x = x.reshape(len(x), -1)
    (w, b), (out, c) = params[2:]
    return _cross_entropy(jax.nn.relu(x @ w + b) @ out + c, labels)


def _cross_entropy(scores: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


def _layers(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=s).astype("f4") / np.sqrt(np.prod(s[:-1])), np.zeros(s[-1], "f4"))
        for s in shapes
    ]


MODELS: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
    "perceptron": (perceptron, _layers((784, 512), (512, 512), (512, 10))),
    "convolutional": (
        convolutional,
        _layers((3, 3, 1, 16), (3, 3, 16, 32), (7 * 7 * 32, 128), (128, 10)),
    ),
}

MEANS = {
    "perceptron": ("parts", "three products", "blocks", "sums"),
    "convolutional": ("three products", "convolutions as products"),
}
"""What is switched off, too, one at a time."""


def plain(
    function: Callable[[Any, Any], Any], params: Any, features: Any, labels: Any
) -> Callable[[], Any]:
    """SGD for one model with the batches of all nodes."""
    features, labels = jnp.asarray(features.reshape(-1, 784)), jnp.asarray(labels.reshape(-1))

    def step(i: Any, params: Any) -> Any:
        places = jax.random.randint(
            jax.random.fold_in(jax.random.key(0), i), (NODES * BATCH,), 0, NODES * ROWS
        )
        grads = jax.grad(function)(params, (features[places], labels[places]))
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    params = jax.tree.map(jnp.asarray, params)
    loop = jax.jit(lambda params: lax.fori_loop(0, STEPS, step, params))
    return lambda: jax.block_until_ready(loop(params))


def ours(
    method: peer.Method, problem: peer.problems.Problem, network: peer.Network
) -> Callable[[], Any]:
    """The engine's own loop."""
    engine = stacked.Stacked(method, problem, network, 0, SINGLE)
    assert problem.start is not None
    now = [engine.start(np.tile(problem.start.astype("f4"), (NODES, 1))), 1]

    def advance() -> None:
        now[0] = engine.advance(now[0], now[1], now[1] + STEPS)
        now[1] += STEPS

    return advance


def microseconds(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of a step of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for again in range(ROUNDS + 1):
        for name, run in runs.items():
            clock = time.perf_counter()
            run()
            if again:
                times[name].append((time.perf_counter() - clock) / STEPS * 1e6)
    return {name: float(np.median(each)) for name, each in times.items()}


def without(what: str) -> Callable[[], None]:
    """Switch one of the means off; the result switches it on again."""
    off: dict[str, tuple[Any, str, Any]] = {
        "parts": (stacked, "IN_PARTS_FROM", 1 << 60),
        "three products": (program, "by_three", lambda function: function),
        "blocks": (program, "BLOCK", 1 << 30),
        "sums": (mixing, "SUMMED_UP_TO", 0),
        "convolutions as products": (program, "by_products", lambda oracle: oracle),
    }
    jax.clear_caches()
    if not what:
        return lambda: None
    module, name, value = off[what]
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


def errors(function: Callable[[Any, Any], Any], params: Any, features: Any, labels: Any) -> str:
    """How far gradients are from those in float64."""

    def gradient(how: Callable[..., Any], dtype: str, precision: str) -> Any:
        with jax.enable_x64(True), jax.default_matmul_precision(precision):
            values = jax.tree.map(lambda a: jnp.asarray(a, dtype), (params, features))
            found = jax.jit(how(jax.grad(function)))(values[0], (values[1], jnp.asarray(labels)))
            return np.concatenate([np.asarray(a, float).ravel() for a in jax.tree.leaves(found)])

    exact = gradient(lambda f: f, "float64", "highest")
    ways = {
        "three products": (by_three, "highest"),
        "float32": (lambda f: f, "highest"),
        "TF32": (lambda f: f, "tensorfloat32"),
    }
    apart = {
        name: gradient(how, "float32", precision) - exact for name, (how, precision) in ways.items()
    }
    found = ", ".join(
        f"{np.linalg.norm(d) / np.linalg.norm(exact):.1e} by {name}" for name, d in apart.items()
    )
    return f"A gradient of the perceptron differs from that in float64, relative to its norm, by {found}."


def main() -> None:
    """Measure, print and write."""
    gpu = jax.devices()[0]
    if gpu.platform == "cpu":
        sys.exit("JAX sees no GPU here: nothing to measure")
    rng = np.random.default_rng(1)
    features = rng.normal(size=(NODES, ROWS, 784)).astype("f4")
    labels = rng.integers(0, 10, size=(NODES, ROWS)).astype("i4")
    network = peer.Network(peer.topology.exponential(NODES))
    methods = {
        "dsgd": peer.methods.dsgd(alpha=0.01, batch=BATCH),
        "gt-dsgd": peer.methods.gt_dsgd(alpha=0.01, batch=BATCH),
        "gt-hsgd": peer.methods.gt_hsgd(alpha=0.01, batch=BATCH, initial_batch=BATCH),
    }
    lines = [
        f"{gpu.device_kind}, JAX {jax.__version__}, float32 at full precision: microseconds a step, and times a plain "
        f"JAX model with batch {NODES * BATCH}; {NODES} nodes with batch {BATCH} each, exponential graph.",
        "",
        "| model | what | us a step | over the plain model |",
        "|---|---|---|---|",
    ]
    with jax.default_matmul_precision("highest"):
        for model, (function, params) in MODELS.items():
            problem = peer.problems.loss(function, params, (features, labels))
            for what in ("", *MEANS[model]):
                restore = without(what)
                chosen = methods if not what else {"dsgd": methods["dsgd"]}
                runs = {name: ours(method, problem, network) for name, method in chosen.items()}
                found = microseconds({"plain": plain(function, params, features, labels), **runs})
                restore()
                for name, value in found.items():
                    note = f"{name}, without {what}" if what and name != "plain" else name
                    if not what or name != "plain":
                        lines.append(
                            f"| {model} | {note} | {value:.0f} | {value / found['plain']:.2f} |"
                        )
                        print(lines[-1], flush=True)
    lines += ["", errors(*MODELS["perceptron"], features[0, :BATCH], labels[0, :BATCH])]
    print(lines[-1])
    (Path(__file__).parent / "results" / "gpu_deep.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
