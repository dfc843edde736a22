"""Properties of pairs of estimator and fusion, each on one problem and one network.

These rotate over the pairs. `make test-long` has all pairs; `make test` has a third of them, with every estimator and
every fusion on at least two problems and two networks.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.engines import debug
from peerdescent.methods.contract import State
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from small import LONG, PROBLEMS, assert_close, compiled, states

NETWORKS = {
    "ring": peer.Network(peer.topology.ring(6)),
    "directed-exponential": peer.Network(peer.topology.directed_exponential(6)),
    "one-peer": peer.Network(peer.topology.one_peer_exponential(6)),
    "star": peer.Network(peer.topology.star(6)),
    "taking turns": peer.Network([peer.topology.ring(6), peer.topology.star(6)]),
    "grid": peer.Network(peer.topology.grid(6)),
}
DIRECTED = ("directed-exponential", "one-peer")
STEPS = 6
OPTIONS = {
    "period": 3, "large_batch": 4, "interval": 3, "compressor": "random-k(0.5)", "mu": 0.3, "decay": 0.3,
    "decay_square": 0.9,
}  # fmt: skip


def networks(fusion):
    """Three networks for every fusion, those that need a symmetric or a static W included."""
    needs = FUSIONS[fusion].needs
    if needs.symmetric:
        return "ring", "star", "grid" if needs.static else "taking turns"
    return ("ring", "grid", "directed-exponential") if needs.static else ("ring", *DIRECTED)


def cells(long=LONG):
    """Pairs of parts, each with a problem and a network."""
    for j, estimator in enumerate(ESTIMATORS):
        for k, fusion in enumerate(FUSIONS):
            if long or (j + k) % 6 == 0:
                names = [name for name in PROBLEMS if (estimator, name) != ("svrg", "streaming")]
                turn = j + k if long else (j + k) // 6 + j
                yield (
                    estimator,
                    fusion,
                    names[turn % len(names)],
                    networks(fusion)[(j // 3 + k // 3) % 3],
                )


@pytest.mark.parametrize("long", [False, True])
def test_every_part_meets_several_problems_and_networks(long):
    pairs, least = list(cells(long)), 3 if long else 1
    assert not long or len(pairs) == len(ESTIMATORS) * len(FUSIONS)
    for place, parts in enumerate((ESTIMATORS, FUSIONS)):
        for part in parts:
            own = [pair for pair in pairs if pair[place] == part]
            assert len({problem for *_, problem, _ in own}) >= least, part
            assert len({network for *_, network in own}) >= least, part


def cell(estimator, fusion):
    method = peer.compose(ESTIMATORS[estimator](batch=2), FUSIONS[fusion]())
    options = {name: value for name, value in OPTIONS.items() if name in method.parameters}
    return method.replace(
        **options, **{name: 0.4 for name in method.parameters if name.endswith("probability")}
    )


@pytest.fixture(scope="module")
def problems():
    return {name: compiled(build()) for name, build in PROBLEMS.items()}


@pytest.mark.parametrize("network", DIRECTED)
@pytest.mark.parametrize("fusion", [name for name in FUSIONS if FUSIONS[name].needs.symmetric])
def test_fusions_that_need_symmetry_refuse_other_networks(fusion, network, problems):
    with pytest.raises(ValueError, match="needs a symmetric weight matrix"):
        peer.run(cell("sgd", fusion), problems["quadratic"], NETWORKS[network], steps=STEPS)


@pytest.mark.parametrize("fusion", [name for name in FUSIONS if FUSIONS[name].needs.static])
def test_fusions_that_need_one_matrix_refuse_networks_that_change(fusion, problems):
    with pytest.raises(
        ValueError, match="needs weights that do not change; sequence has a period of 2"
    ):
        peer.run(cell("sgd", fusion), problems["quadratic"], NETWORKS["taking turns"], steps=STEPS)


@pytest.mark.parametrize(("estimator", "fusion", "problem", "network"), list(cells()))
def test_cell(estimator, fusion, problem, network, problems):
    method, problem, network = cell(estimator, fusion), problems[problem], NETWORKS[network]
    options = {"steps": STEPS, "precision": 64, "record": 1, "x0": problem.start}
    trace = peer.run(method, problem, network, seed=1, **options)
    shape = (problem.nodes, problem.dimension)
    assert trace.x.shape == shape
    shapes = shape, (problem.nodes, 1)  # vectors, and a number a node
    assert all(
        leaf.shape in shapes and leaf.dtype == np.float64 for leaf in jax.tree.leaves(trace.state)
    )
    assert trace.status == "done"
    assert np.isfinite(trace.x).all()
    assert np.ptp(trace.x - trace.x.mean(axis=0)) > 0, (
        "the nodes never differed: their data or their draws are shared"
    )

    again = peer.run(method, problem, network, seed=1, **options)
    assert np.array_equal(trace.x, again.x), "the same seed gave another run"
    other = peer.run(method, problem, network, seed=2, **options)
    assert not np.array_equal(trace.x, other.x), "another seed gave the same run"

    slow = peer.run(method, problem, network, seed=1, engine="debug", **options)
    assert_close(slow.x, trace.x)
    for name in ("loss", "grad_norm", "stationarity", "consensus", "gradients", "rounds", "bytes"):
        assert_close(slow.table[name], trace.table[name], 1e-11)


@pytest.mark.parametrize(("estimator", "fusion"), [pair[:2] for pair in cells()])
def test_steps_are_pure(estimator, fusion, problems):
    """A step does not change its arguments, and is deterministic; with NumPy, where mutation would be possible."""
    method, problem, network = cell(estimator, fusion), problems["quadratic"], NETWORKS["ring"]
    with jax.enable_x64(True):
        engine = debug.Debug(method, problem, network, 0, np.dtype("float64"))
        state = engine.start(np.ones((6, problem.dimension)))
        for t in range(1, 5):
            before = jax.tree.map(np.copy, state)
            jax.tree.map(lambda leaf: leaf.setflags(write=False), state)
            once, twice = (method.step(state, debug.Net(engine, t, ())) for _ in range(2))
            for left, right in zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True):
                assert np.array_equal(left, right)
            for left, right in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
                assert np.array_equal(left, right)
            state = once


class Tensors:
    """The verbs in plain NumPy, without JAX, with one quadratic shared by all nodes."""

    def __init__(self, w, t):
        self.w, self.t = w, t

    def sample(self, batch):
        return np.full((len(self.w), 3), 1.0 / (1 + self.t))

    def grad(self, x, sample):
        return x - sample

    def full_grad(self, x):
        return x

    def mix(self, x):
        return self.w @ x

    def disagree(self, x):
        return x - self.w @ x

    def push(self, x, w=None):
        return self.w @ x if w is None else (self.w @ x, self.w @ (w * (0 * x[:, :1] + 1)))

    def every(self, period, then, otherwise, phase=0):
        return then() if (self.t - phase) % period == 0 else otherwise()

    def chance(self, probability, then, otherwise):
        return then() if self.t * probability % 1 < probability else otherwise()

    def compress(self, x, operator):
        return 0.8 * x

    def prox(self, x, step):
        return x

    def dot(self, x, y):
        return (x * y).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_same_text_runs_over_plain_numpy(estimator, fusion):
    method, w = cell(estimator, fusion), NETWORKS["ring"].W
    state = method.init(np.zeros((6, 3)), Tensors(w, 0))
    for t in range(1, 300):
        state = method.step(state, Tensors(w, t))
    assert isinstance(state.x, np.ndarray)
    # Every cell descends on x'x/2 with vanishing noise; steps of one length, or about one, end at about alpha.
    limit = (
        0.5
        if estimator == "adam" or fusion in ("normalized-tracking", "adaptive-tracking")
        else 0.1
    )
    assert np.abs(state.x).max() < limit


def test_methods_import_no_framework():
    """Methods are arithmetic and verbs: their modules import no framework."""
    for path in (Path(peer.__file__).parent / "methods").glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert imported, path
        assert not {
            module for module in imported if module.split(".")[0] in ("jax", "numpy", "torch")
        }, path


def test_methods_are_made_without_a_framework():
    """Nor do they load one on their way."""
    text = "import sys, peerdescent as p; p.methods.beer(); p.methods.parse('dsgd[alpha=0.5*cosine(9)]'); "
    text += "p.methods.dsgd(alpha='0.5/(t+10)^(1/3)'); print(sorted({'jax', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_samples_after_every_do_not_depend_on_the_side_taken():
    """A method that samples after `every` draws the same there on all engines, though the branches draw differently."""
    problem, network = PROBLEMS["logistic"](), NETWORKS["ring"]

    def init(x, net):
        return State(x, (), ())

    def step(state, net):
        def two():
            return net.grad(state.x, net.sample(1)) + net.grad(state.x, net.sample(3))

        g = net.every(3, two, lambda: net.full_grad(state.x))
        return State(net.mix(state.x - 0.1 * (g + net.grad(state.x, net.sample(2)))), (), ())

    method = peer.Method(init, step)
    fast = states(method, problem, network, 10)[-1].x
    assert_close(states(method, problem, network, 10, engine="debug")[-1].x, fast)
    assert np.abs(fast).max() > 0


def test_branches_inside_of_branches_are_the_same_on_all_engines():
    def init(x, net):
        return State(x, (), ())

    def step(state, net):
        def told():
            mixed = net.mix(state.x)
            return net.chance(
                0.5, lambda: mixed - 0.1 * net.grad(mixed, net.sample(2)), lambda: net.mix(mixed)
            )

        x = net.every(2, told, lambda: state.x - 0.1 * net.grad(state.x, net.sample(2)))
        return State(
            net.chance(0.3, lambda: net.mix(x), lambda: x) - 0.01 * net.grad(x, net.sample(1)),
            (),
            (),
        )

    method, problem, network = (
        peer.Method(init, step, "nested"),
        PROBLEMS["logistic"](),
        NETWORKS["ring"],
    )
    ends = [
        peer.run(method, problem, network, steps=20, engine=engine, precision=64, record=1).x
        for engine in ("stacked", "debug")
    ]
    assert_close(*ends)

    def deep(state, net):
        def branch(depth):
            return (
                net.mix(state.x)
                if depth == 0
                else net.every(2, lambda: branch(depth - 1), lambda: state.x)
            )

        return State(branch(4), (), ())

    with pytest.raises(ValueError, match="have another branch: use fewer"):
        peer.run(peer.Method(init, deep, "deep"), problem, network, steps=3)
