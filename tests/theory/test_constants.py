"""The constants of real problems: against definitions, written out again here, and against what samples say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import peerdescent as peer
from conftest import small_logistic, small_loss, small_quadratic, small_streaming
from peerdescent import theory
from peerdescent.datasets import Dataset


def per_sample(problem, node, x):
    """All sample gradients (m, p) of a dense logistic problem with the paper's regulariser, by hand."""
    held = problem.data
    rows = np.asarray(held.rows[node, : held.size[node]], dtype=float)
    slopes = -1 / (1 + np.exp(rows @ x))
    return slopes[:, None] * rows + held.numbers.strength[node] * 2 * x / (1 + x * x) ** 2


def test_a_quadratics_constants_are_exact():
    problem = small_quadratic(noise=0.3)
    x0 = np.arange(5.0)
    found = theory.constants(problem, x0)
    Q, c = problem.data.matrix, problem.data.linear
    assert found.smoothness == pytest.approx(
        max(np.abs(np.linalg.eigvalsh(q)).max() for q in Q), rel=1e-12
    )
    assert found.variances == pytest.approx([0.09] * 6)
    assert found.uncertainty == 0
    assert found.gradient == pytest.approx(
        sum(np.sum((q @ x0 - b) ** 2) for q, b in zip(Q, c, strict=True)), rel=1e-12
    )
    mean, b = Q.mean(axis=0), c.mean(axis=0)
    lowest = -0.5 * b @ np.linalg.solve(mean, b)
    assert found.gap == pytest.approx(0.5 * x0 @ mean @ x0 - b @ x0 - lowest, rel=1e-9)


@given(
    seed=st.integers(0, 10**6), scale=st.floats(0.1, 10), strength=st.sampled_from([0.0, 0.1, 1.0])
)
@settings(max_examples=40, deadline=None)
def test_logistic_regression_is_mean_squared_smooth_with_its_constant(seed, scale, strength):
    """E||g(x) - g(y)||^2 <= L^2 ||x - y||^2 at random pairs, near and far."""
    problem, rng = LOGISTIC[strength], np.random.default_rng(seed)
    x = scale * rng.normal(size=5)
    y = x + 10 ** rng.uniform(-3, 1) * rng.normal(size=5)
    bound = SMOOTHNESS[strength] ** 2 * np.sum((x - y) ** 2)
    for node in range(problem.nodes):
        difference = per_sample(problem, node, x) - per_sample(problem, node, y)
        assert np.mean(np.sum(difference**2, axis=1)) <= bound * (1 + 1e-9)


LOGISTIC = {strength: small_logistic(strength=strength) for strength in (0.0, 0.1, 1.0)}
SMOOTHNESS = {s: theory.smoothness_of(problem) for s, problem in LOGISTIC.items()}


def test_the_constant_of_logistic_regression_is_attained():
    """With one sample at a node and no regulariser, the slope at 0 is L: a smaller constant would be wrong."""
    rows = np.array([[3.0, 4.0], [1.0, 0.0]])
    problem = peer.problems.logistic(
        Dataset(rows, np.array([1, -1]), "two").partition(2, indices=[[0], [1]]), 0.0
    )
    L = theory.constants(problem).smoothness
    assert pytest.approx(25 / 4, rel=1e-6) == L
    step = 1e-4 * rows[0]
    slope = np.linalg.norm(
        problem.local_grads(step)[0] - problem.local_grads(0 * step)[0]
    ) / np.linalg.norm(step)
    assert slope == pytest.approx(L, rel=1e-4)


@pytest.mark.parametrize(("regulariser", "curvature"), [("nonconvex", 2), ("l2", 1), ("none", 0)])
def test_the_regulariser_adds_its_own_smoothness(regulariser, curvature):
    alone = theory.constants(small_logistic(strength=0.0), starts=1).smoothness
    found = theory.constants(
        small_logistic(strength=0.5, regulariser=regulariser), starts=1
    ).smoothness
    assert found - alone == pytest.approx(0.5 * curvature, rel=1e-9)


def test_sparse_rows_have_the_constant_of_dense_ones():
    from scipy import sparse

    rng = np.random.default_rng(0)
    rows = sparse.random_array((40, 300), density=0.01, rng=rng) + sparse.eye_array(40, 300)
    labels = rng.choice([-1, 1], 40)
    thin = peer.problems.logistic(Dataset(sparse.csr_array(rows), labels, "thin").partition(4))
    assert type(thin.data.rows).__name__ == "Nonzeros"
    by_hand = 0.0
    for node in range(4):
        own = np.zeros((10, 300))
        held = thin.data.rows
        np.add.at(own, (np.arange(10)[:, None], held.columns[node]), held.values[node])
        squares = (own**2).sum(axis=1)
        by_hand = max(by_hand, np.linalg.eigvalsh((own.T * squares) @ own / 10)[-1])
    found = theory.smoothness_of(thin)
    assert found == pytest.approx(np.sqrt(by_hand) / 4 + 2e-4, rel=1e-6)


def test_the_variance_of_a_finite_sum_is_enumerated():
    data = peer.datasets.synthetic(60, 5, seed=3)
    problem = peer.problems.logistic(data.partition(3, by="dirichlet", concentration=0.5), 0.1)
    assert len(set(problem.data.size.tolist())) > 1  # so that padding would show
    x = np.linspace(-1, 1, 5)
    found = theory.constants(problem, x, variance="start", starts=1)
    for node, value in enumerate(found.variances):
        samples = per_sample(problem, node, x)
        assert value == pytest.approx(
            np.mean(np.sum((samples - samples.mean(axis=0)) ** 2, axis=1)), rel=1e-9
        )
    assert found.variance == pytest.approx(np.mean(found.variances))
    further = theory.constants(problem, x, variance="start", points=[3 * x], starts=1)
    assert all(a >= b for a, b in zip(further.variances, found.variances, strict=True))
    assert further.variance > found.variance


ROWS = np.random.default_rng(1).normal(size=(60, 4)) * [1, 2, 3, 4]


def rows(labels) -> Dataset:
    """Data whose rows have norms of all sizes."""
    return Dataset(ROWS, labels, "rows").partition(3, "quantity", 0, concentration=1.0)


SIGNS, NUMBERS = np.where(ROWS[:, 0] > 0, 1, -1), ROWS @ np.arange(4.0) + 5
PLACES = np.arange(60) % 3
BOUNDED = {
    "logistic": (1.0, peer.problems.logistic(rows(SIGNS), 0.3)),
    "intercept": (1.0, peer.problems.logistic(rows(SIGNS), 0.3, intercept=True)),
    "svm": (1.0, peer.problems.svm(rows(SIGNS), smoothing=0.1)),
    "softmax": (2.0, peer.problems.softmax(Dataset(ROWS, PLACES, "three").partition(3), 0.3)),
    "huber": (9.0, peer.problems.robust(rows(NUMBERS), "huber", scale=3.0)),
    "welsch": (9 / math.e, peer.problems.robust(rows(NUMBERS), "welsch", scale=3.0)),
    "geman-mcclure": (
        9 * 27 / 256,
        peer.problems.robust(rows(NUMBERS), "geman-mcclure", scale=3.0),
    ),
}
"""The square of the steepest slope of a loss, and a problem with it."""


@pytest.mark.parametrize("name", BOUNDED)
def test_the_variance_everywhere_is_the_steepest_slope_times_the_rows(name):
    square, problem = BOUNDED[name]
    found = theory.constants(problem, starts=1)
    assert found == theory.constants(problem, variance="everywhere", starts=1)
    held, outputs = problem.data, 3 if name == "softmax" else 1
    features = getattr(held.rows, "features", held.rows)
    for node, value in enumerate(found.variances):
        own = np.asarray(features[node, : held.size[node]], dtype=float)
        assert own.shape[1] == problem.dimension / outputs == (5 if name == "intercept" else 4)
        assert value == pytest.approx(square * (own**2).sum() / len(own), rel=1e-6)
    assert found.variance == pytest.approx(np.mean(found.variances))
    assert found.uncertainty == 0
    assert found.bounded


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 30.0])
def test_the_variance_everywhere_is_none_that_a_point_exceeds(name, scale):
    """Nor does the heterogeneity exceed its bound, near or far."""
    problem = BOUNDED[name][1]
    known = theory.constants(problem, starts=1)
    most, rng = theory.heterogeneity_bound(problem), np.random.default_rng(0)
    for _ in range(5):
        x = scale * rng.normal(size=problem.dimension)
        there = theory.constants(problem, x, variance="start", starts=1).variances
        assert (np.array(there) <= known.variances).all()
        assert theory.heterogeneity(problem, x) <= most


@pytest.mark.parametrize("name", ["logistic", "svm", "huber", "welsch", "geman-mcclure"])
def test_the_steepest_slope_is_attained(name):
    """At some prediction, so that a smaller bound would be wrong: the gradient of one row is slope times row."""
    rows = np.array([[3.0], [3.0]])
    signs, numbers = (
        Dataset(rows, np.array(labels), "two").partition(2) for labels in ([1, -1], [0.5, 1.5])
    )
    kinds = {"logistic": peer.problems.logistic, "svm": peer.problems.svm}
    problem = (
        kinds[name](signs, 0.0) if name in kinds else peer.problems.robust(numbers, name, scale=2.0)
    )
    slopes = [problem.local_grads([x])[0, 0] ** 2 for x in np.linspace(-10, 10, 801)]
    assert max(slopes) == pytest.approx(theory.constants(problem, starts=1).variance, rel=1e-3)


def test_without_a_bound_the_variance_is_that_at_the_start():
    least_squares = peer.problems.linear(rows(NUMBERS))
    for problem in (least_squares, small_streaming()):
        found = theory.constants(problem, starts=1)
        assert not found.bounded
        assert "no bound" in found.basis
        assert found == theory.constants(problem, variance="start", starts=1)
        with pytest.raises(ValueError, match="variance = 'everywhere'"):
            theory.constants(problem, variance="everywhere")
    assert theory.constants(small_loss(), smoothness=1.0, starts=1).basis == found.basis


def test_the_variance_may_be_given():
    found = theory.constants(small_streaming(), variance=3, starts=1)
    assert (found.variance, found.variances, found.bounded) == (3.0, (3.0,) * 6, True)
    for wrong in ("nowhere", -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="variance = "):
            theory.constants(small_logistic(), variance=wrong)


def test_heterogeneity_by_hand_and_along_a_run():
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    zeta = peer.metric(
        lambda x_mean, x, problem: theory.heterogeneity(problem, x_mean), "heterogeneity"
    )
    trace = peer.run(
        peer.methods.gt_dsgd(alpha=0.5),
        problem,
        network,
        steps=20,
        record=2,
        metrics=[zeta],
        precision=64,
    )
    for x, seen in (
        (np.zeros(5), trace.table["heterogeneity"].iloc[0]),
        (trace.x_mean, trace.table["heterogeneity"].iloc[-1]),
    ):
        local = np.array([per_sample(problem, node, x).mean(axis=0) for node in range(6)])
        by_hand = np.mean([np.sum((own - local.mean(axis=0)) ** 2) for own in local])
        assert seen == pytest.approx(by_hand, rel=1e-6)
        assert theory.heterogeneity(problem, x) == pytest.approx(by_hand, rel=1e-6)
    assert theory.heterogeneity(problem) == pytest.approx(trace.table["heterogeneity"].iloc[0])


def test_heterogeneity_has_a_bound_where_it_is_the_same_everywhere_or_slopes_are_bounded():
    stream, far = small_streaming(), 1e3 * np.ones(5)
    assert theory.heterogeneity_bound(stream) == pytest.approx(theory.heterogeneity(stream, far))
    assert theory.heterogeneity_bound(stream) == pytest.approx(
        stream.data.planted.var(axis=0).sum()
    )
    alike = peer.problems.quadratic(np.broadcast_to(np.eye(2), (3, 2, 2)), [[0, 0], [3, 0], [0, 3]])
    assert (
        theory.heterogeneity_bound(alike)
        == pytest.approx(theory.heterogeneity(alike, [7.0, 1e3]))
        == 4.0
    )
    assert theory.heterogeneity(small_quadratic(), far) > 1e4  # without limit, as there is no bound
    for problem in (small_quadratic(), peer.problems.linear(rows(NUMBERS)), small_loss()):
        assert theory.heterogeneity_bound(problem) == math.inf


def test_a_sampled_variance_comes_with_an_interval_that_holds():
    problem = small_logistic()
    exact = theory.constants(problem, np.ones(5), variance="start", starts=1)
    unknown = exact._replace(variances=(), uncertainties=())
    found = [
        theory.visiting(unknown, problem, [np.ones(5)], samples=400, seed=k) for k in range(40)
    ]
    assert found[7] == theory.constants(
        problem, np.ones(5), variance="start", samples=400, seed=7, starts=1
    )
    inside = sum(abs(one.variance - exact.variance) <= one.uncertainty for one in found)
    assert (
        inside >= 33
    )  # of 40 intervals that hold with 95 %, fewer than 33 do with probability below 1e-3
    # And they are no wider than they need be: 1.96 deviations of the mean over nodes.
    deviation = np.std([one.variance for one in found], ddof=1)
    assert np.mean([one.uncertainty for one in found]) == pytest.approx(1.96 * deviation, rel=0.3)
    wide, narrow = (
        theory.constants(small_logistic(), variance="start", samples=k, starts=1).uncertainty
        for k in (400, 40_000)
    )
    assert wide / narrow == pytest.approx(10, rel=0.3)


def test_a_streams_constants_are_those_of_its_moments():
    problem = small_streaming()
    x0 = np.ones(5)
    found = theory.constants(problem, x0)
    away = np.sum((x0 - problem.data.planted) ** 2, axis=1)
    expected = (5 + 1) * away + 5 * 0.01  # E||(aa' - I) d||^2 = (p + 1)||d||^2, and p noise^2
    assert np.abs(np.array(found.variances) - expected).max() <= 3 * max(found.uncertainties)
    assert abs(found.variance - expected.mean()) <= 2 * found.uncertainty
    # E||aa'd||^2 = (p + 2)||d||^2, by samples; and the regulariser's slope is at most 2.
    a = np.random.default_rng(0).normal(size=(200_000, 5))
    d = np.ones(5) / np.sqrt(5)
    assert np.mean((a @ d) ** 2 * (a**2).sum(axis=1)) == pytest.approx(7, rel=0.03)
    assert found.smoothness == pytest.approx(np.sqrt(7) + 2)


def test_f_is_the_same_for_any_number_of_nodes_of_a_stream():
    x = np.linspace(-1, 2, 10)
    few, many = (peer.problems.streaming(n, spread=2.0, strength=4.0) for n in (1, 64))
    assert np.allclose(few.grad(x), many.grad(x), rtol=0, atol=1e-12)


def test_a_loss_of_ones_own_needs_its_smoothness():
    with pytest.raises(ValueError, match="nobody knows the smoothness of _mlp: give it"):
        theory.constants(small_loss())
    assert theory.constants(small_loss(), smoothness=7, starts=1).smoothness == 7


def test_what_cannot_be_is_refused():
    with (
        pytest.raises(ValueError, match="has no smallest value, which Assumption 2 asks for"),
        np.errstate(all="ignore"),
    ):
        theory.constants(peer.problems.quadratic(-np.eye(2)[None]), np.ones(2))
    with pytest.raises(ValueError, match="smoothness = -3: must be positive"):
        theory.constants(small_logistic(), smoothness=-3)
    with pytest.raises(ValueError, match=r"a point has shape \(2,\): must be \(5,\)"):
        theory.constants(small_logistic(), points=[np.zeros(2)])


def test_nodes_must_start_together():
    with pytest.raises(ValueError, match="x0 differs between nodes"):
        theory.constants(small_quadratic(), np.arange(30.0).reshape(6, 5))


def test_the_parameters_of_a_problem_warn_below_the_corollarys_steps():
    problem, network = small_logistic(), peer.Network(peer.topology.ring(6))
    needed = theory.least_steps(6, network.lam)
    with pytest.warns(
        UserWarning, match=rf"Corollary 1 holds for more than {math.floor(needed):,} steps"
    ):
        found = theory.gt_hsgd_parameters(problem, network, 1000)
    L = theory.constants(problem, starts=1).smoothness
    assert found == theory.parameters(L, 6, 1000)
    peer.methods.gt_hsgd(**found._asdict())
    theory.gt_hsgd_parameters(
        problem, network, int(needed) + 1
    )  # a warning would be an error in these tests
    with pytest.raises(ValueError, match="the problem has 6 nodes and the network 4"):
        theory.gt_hsgd_parameters(problem, peer.Network(peer.topology.ring(4)), 1000)


OUTSIDE = {
    "drop": peer.Network(peer.topology.ring(6), faults=[peer.faults.drop(0.3)]),
    "noise": peer.Network(peer.topology.ring(6), faults=[peer.faults.noise(0.3)]),
    "quantize": peer.Network(peer.topology.ring(6), faults=[peer.faults.quantize(2)]),
    "inactive": peer.Network(peer.topology.ring(6), faults=[peer.faults.inactive(0.2)], rounds=2),
    "random": peer.Network(peer.topology.random_matching(6)),
    "push-pull": peer.Network(peer.topology.directed_exponential(6), "push-pull"),
    "a sequence": peer.Network([peer.topology.ring(6), peer.topology.complete(6)]),
}
"""Networks that Assumption 3 does not cover."""


@pytest.mark.parametrize("name", OUTSIDE)
def test_networks_outside_assumption_3_are_refused(name):
    """As a W that is drawn, fails, changes or is not doubly stochastic has no bound."""
    problem, network = small_logistic(), OUTSIDE[name]
    with pytest.raises(ValueError, match=network.name):
        theory.gt_hsgd_parameters(problem, network, 1000)
    with pytest.raises(ValueError, match=network.name):
        theory.measured.measure(problem, network, 10)


def test_several_rounds_a_mix_and_faults_that_do_nothing_are_within_it():
    problem, once = small_logistic(), peer.Network(peer.topology.ring(6)).lam
    for options, power in (({"rounds": 3}, 3), ({"faults": [peer.faults.drop(0.0)]}, 1)):
        network = peer.Network(peer.topology.ring(6), **options)
        theory.gt_hsgd_parameters(problem, network, 10**9)
        assert theory.measured.measure(problem, network, 10, seeds=1).lam == pytest.approx(
            once**power
        )


def test_a_problem_with_a_non_smooth_term_is_refused():
    problem = peer.problems.composite(small_logistic(), l1=0.05)
    network = peer.Network(peer.topology.ring(6))
    with pytest.raises(ValueError, match="non-smooth"):
        peer.theory.constants(problem)
    with pytest.raises(ValueError, match="non-smooth"):
        peer.theory.gt_hsgd_parameters(problem, network, steps=1000)


def test_a_variance_of_ones_own_is_one_number():
    problem = small_logistic()
    assert peer.theory.constants(problem, variance=np.float32(0.5)).variance == 0.5
    for wrong in (np.array(-1.0), np.ones(6), -1, math.nan):
        with pytest.raises(ValueError, match="variance"):
            peer.theory.constants(problem, variance=wrong)
    assert not peer.theory.constants(problem, samples=10).bounded, "samples are of an estimate"


def test_heterogeneity_is_at_one_point():
    with pytest.raises(ValueError, match="x0 differs between nodes"):
        peer.theory.heterogeneity(small_logistic(), np.arange(30.0).reshape(6, 5))
