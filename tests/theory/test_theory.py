"""The paper's formulas: they agree with one another where the paper says that they do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import peerdescent as peer
from peerdescent import theory
from peerdescent.runs.costs import Costs
from peerdescent.theory import Constants
from peerdescent.theory.theorem import corollary_at

LAMBDAS = st.floats(0, 0.99)
SIZES = st.integers(1, 200)


@given(lam=LAMBDAS, nodes=SIZES, smoothness=st.floats(0.01, 100), power=st.floats(0.01, 8))
def test_the_corollarys_parameters_are_those_of_the_theorem(lam, nodes, smoothness, power):
    """alpha lies in the range and beta is its weight, for all T that the corollary allows and for few others."""
    steps = math.ceil(theory.least_steps(nodes, lam) * 1.001 * 10**power) + 1
    chosen = theory.parameters(smoothness, nodes, steps)
    assert chosen.alpha < theory.largest_step_size(smoothness, nodes, lam)
    assert chosen.beta == pytest.approx(theory.weight(chosen.alpha, smoothness, nodes), rel=1e-6)
    assert chosen.initial_batch >= steps ** (1 / 3) / nodes ** (2 / 3) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("nodes", "lam"), [(20, 0.0), (20, 0.75), (20, 0.97), (1, 0.0), (200, 0.1)]
)
def test_the_condition_on_the_number_of_steps_is_needed(nodes, lam):
    """A little below it, the step size is outside the theorem's range: constants are rounded up by at most 2 %."""
    steps = math.floor(theory.least_steps(nodes, lam) * 0.94)
    if steps >= 1:
        assert theory.parameters(1.0, nodes, steps).alpha > theory.largest_step_size(
            1.0, nodes, lam
        )


@given(
    lam=LAMBDAS, nodes=SIZES, power=st.floats(0.1, 4), values=st.tuples(*[st.floats(0.01, 100)] * 4)
)  # fmt: skip
def test_the_corollary_is_the_theorem_at_its_parameters(lam, nodes, power, values):
    constants = Constants(*values)
    steps = max(2, math.ceil(theory.least_steps(nodes, lam) * 10**power))
    alpha, _, first = theory.parameters(constants.smoothness, nodes, steps)
    exact = theory.bound(constants, nodes, lam, alpha, steps, first)
    rounded = theory.corollary(constants, nodes, lam, steps)
    assert sum(exact.values()) <= sum(rounded.values()) * (1 + 1e-6)
    # The first part is the theorem's, but for 16/3 + 6 = 11.3 having become 12.
    without = exact["optimality"] + exact["noise"] + exact["start noise"]
    assert without > 0.3 * rounded["optimality and noise"]


def test_six_terms_by_hand():
    # L = 2, nu^2 = 3, ||grad f||^2 = 5, gap = 7, n = 4, lambda = 1/2, alpha = 1/100, T = 1000, b_0 = 6.
    terms = theory.bound(Constants(2.0, 3.0, 5.0, 7.0), 4, 0.5, 0.01, 1000, 6)
    beta, third = 48 * 4 * 1e-4 / 4, 0.75**3
    assert list(terms) == list(theory.TERMS)
    assert list(terms.values()) == pytest.approx(
        [
            4 * 7 / 10,
            8 * beta * 3 / 4,
            4 * 3 / (beta * 6 * 4 * 1000),
            64 / 16 * 5 / (third * 4 * 1000),
            96 / 4 * 3 / (third * 6 * 1000),
            256 / 4 * beta**2 * 3 / third,
        ],
        rel=1e-12,
    )
    # A larger weight has the factors of the proof, before beta <= (1 - l^2) / (14 l^2) is used.
    wider = theory.bound(Constants(2.0, 3.0, 5.0, 7.0), 4, 0.5, 0.01, 1000, 6, beta=0.6)
    assert list(wider.values()) == pytest.approx(
        [
            terms["optimality"],
            8 * 0.6 * 3 / 4,
            4 * 3 / (0.6 * 6 * 4 * 1000),
            terms["network start"],
            64 / 16 * (7 * 0.6 / 0.75 + 1) * 3 / (third * 6 * 1000),
            64 / 16 * (14 * 0.6 / 0.75 + 3) * 0.36 * 3 / third,
        ],
        rel=1e-12,
    )
    left = terms["noise"] + terms["network noise"]
    assert theory.steady_state(3.0, 4, 0.5, beta) == pytest.approx(left, rel=1e-12)


@given(lam=LAMBDAS, nodes=SIZES, share=st.floats(0.01, 0.999), larger=st.floats(0, 1))
def test_the_proofs_factors_are_the_theorems_up_to_a_weight_and_larger_beyond(
    lam, nodes, share, larger
):
    """Up to beta = (1 - l^2) / (14 l^2), which the theorem's step size keeps the theorem's beta below."""
    alpha, known = share * theory.largest_step_size(1.0, nodes, lam), Constants(1.0, 1.0, 1.0, 1.0)
    least = theory.weight(alpha, 1.0, nodes)
    exact = theory.bound(known, nodes, lam, alpha, 100)
    same = theory.bound(known, nodes, lam, alpha, 100, beta=least)
    assert all(same[name] <= exact[name] * (1 + 1e-12) for name in theory.TERMS)
    beta = least + larger * (0.999 - least)
    found = theory.bound(known, nodes, lam, alpha, 100, beta=beta)["network noise"]
    of_the_theorem = 256 * lam**2 * beta**2 / (1 - lam**2) ** 3
    if beta <= (1 - lam**2) / max(14 * lam**2, 1e-300):
        assert found <= of_the_theorem * (1 + 1e-12)
    assert found >= theory.bound(known, nodes, lam, alpha, 100, beta=least)["network noise"]


@pytest.mark.parametrize(("nodes", "lam"), [(20, 0.0), (20, 0.75), (1, 0.24)])
def test_weights_outside_their_ranges_are_refused(nodes, lam):
    known, largest = Constants(2.0, 1.0, 1.0, 1.0), theory.largest_step_size(2.0, nodes, lam)
    alpha = largest / 2
    least = theory.weight(alpha, 2.0, nodes)
    theory.bound(known, nodes, lam, alpha, 100, beta=0.999)
    for beta in (0.99 * least, 1.0, -3.0, math.nan):
        with pytest.raises(ValueError, match="beta = "):
            theory.bound(known, nodes, lam, alpha, 100, beta=beta)
    # Equation (3) is for Theorem 1's weights: 48 L^2 alpha^2 / n of its step sizes, for any L.
    most = theory.weight(largest, 2.0, nodes)
    theory.steady_state(1.0, nodes, lam, 0.999 * most)
    for beta in (-3.0, 0.0, 1.001 * most, 7.0, math.nan):
        with pytest.raises(ValueError, match="beta = "):
            theory.steady_state(1.0, nodes, lam, beta)


@pytest.mark.parametrize(("nodes", "lam", "expected"), [
    (20, 0.75, (1 - 0.5625) ** 2 / (90 * 0.5625)),  # the first of the three is the smallest
    (20, 0.1, 1 / (4 * 3**0.5) / 2),
])  # fmt: skip
def test_the_step_size_range_by_hand(nodes, lam, expected):
    smoothness = 1.0 if nodes == 20 and lam == 0.75 else 2.0
    assert theory.largest_step_size(smoothness, nodes, lam) == pytest.approx(expected, rel=1e-12)


def test_the_second_of_the_three_limits_can_be_the_smallest():
    # sqrt(n (1 - l)) / (26 l) against (1 - l^2)^2 / (90 l^2) and 0.1443: with one node and l = 0.3.
    limits = [(1 - 0.09) ** 2 / (90 * 0.09), math.sqrt(0.7) / (26 * 0.3), 1 / (4 * math.sqrt(3))]
    assert min(limits) == limits[0]
    limits = [
        (1 - 0.0576) ** 2 / (90 * 0.0576),
        math.sqrt(0.76) / (26 * 0.24),
        1 / (4 * math.sqrt(3)),
    ]
    assert min(limits) == limits[1]
    assert theory.largest_step_size(1.0, 1, 0.24) == pytest.approx(limits[1], rel=1e-12)


def test_least_steps_by_hand():
    assert theory.least_steps(20, 0.75) == pytest.approx(
        1424 * 0.75**6 * 400 / (1 - 0.5625) ** 6, rel=1e-12
    )
    assert theory.least_steps(1, 0.25) == pytest.approx(35 / 64 / 0.75**1.5, rel=1e-12)
    assert theory.least_steps(20, 0.0) == pytest.approx(0.75**1.5 * 400, rel=1e-12)


def test_the_corollarys_parameters_by_hand():
    # n = 27, T = 10^6, L = 2: cbrt(T) = 100, n^(2/3) = 9.
    found = theory.parameters(2.0, 27, 10**6)
    assert found == (pytest.approx(9 / 1600), pytest.approx(3 * 3 / (4 * 10**4)), 12)
    assert (
        theory.parameters(2.0, 20, 10_800).initial_batch == 3
    )  # T = 3^3 20^2: whole, so nothing to round up
    with pytest.raises(ValueError, match="smoothness = 0: must be positive"):
        theory.parameters(0, 2, 10)


@given(nodes=SIZES, first=st.integers(1, 10**5), steps=st.integers(1, 10**18))
def test_the_corollarys_first_batch_is_the_smallest_that_is_large_enough(nodes, first, steps):
    """ceil(T^(1/3) / n^(2/3)), in integers: where T = b^3 n^2 it is b, and b + 1 for the next T."""
    exact = first**3 * nodes**2
    assert [theory.parameters(1.0, nodes, T).initial_batch for T in (exact, exact + 1)] == [
        first,
        first + 1,
    ]
    found = theory.parameters(1.0, nodes, steps).initial_batch
    assert (found - 1) ** 3 * nodes**2 < steps <= found**3 * nodes**2


def test_the_corollarys_bound_by_hand():
    # L = 2, nu^2 = 3, ||grad f||^2 = 5, gap = 7, n = 8, lambda = 1/2, T = 10^6.
    known, third = Constants(2.0, 3.0, 5.0, 7.0), 0.75**3
    found = theory.corollary(known, 8, 0.5, 10**6)
    assert list(found.values()) == pytest.approx(
        [
            (32 * 14 + 36) / 40_000,
            64 / 16 * 5 / (third * 8 * 10**6),
            240 / 4 * 4 * 3 / (third * 10**8),
        ],
        rel=1e-12,
    )
    # Where b_0 need not be rounded its network noise is the theorem's two, 96 + 256 * 9 / 16 = 240, to the last digit.
    steps = 40**3 * 64
    alpha, _, first = theory.parameters(2.0, 8, steps)
    exact, rounded = (
        theory.bound(known, 8, 0.5, alpha, steps, first),
        theory.corollary(known, 8, 0.5, steps),
    )
    assert rounded["network noise"] == pytest.approx(
        exact["network start noise"] + exact["network noise"], rel=1e-9
    )
    assert rounded["network start"] == pytest.approx(exact["network start"], rel=1e-9)
    without = exact["optimality"] + exact["noise"] + exact["start noise"]
    assert rounded["optimality and noise"] - without == pytest.approx(
        (12 - 6 - 16 / 3) * 3 / (8 * steps) ** (2 / 3)
    )


def test_the_corollarys_bound_warns_where_it_does_not_hold():
    """Up to 14,456,701 steps for n = 20 and lambda = 0.75, and not beyond; what only uses its formula is silent."""
    known, least = Constants(2.0, 3.0, 5.0, 7.0), 14_456_701
    assert least < theory.least_steps(20, 0.75) < least + 1
    with pytest.warns(
        UserWarning, match=r"^steps = 14,456,701: Corollary 1 holds for more than 14,456,701"
    ) as seen:
        theory.corollary(known, 20, 0.75, least)
    assert [warning.filename for warning in seen] == [__file__]
    theory.corollary(known, 20, 0.75, least + 1)  # a warning would be an error in these tests
    assert theory.steps_for(known, 20, 0.75, 10.0) < least


def test_queries_are_iterations_and_a_first_batch():
    # n = 8 and H = 64,000: H^(1/3) = 40 and n^(2/3) = 4.
    assert theory.Complexity(64_000.0, 3.0, 8).queries == 64_010
    assert theory.Complexity(3.0, 64_000.5, 8).queries == 64_011
    assert theory.gradients_for(8, 64_000) == 10 + 2 * 63_999
    assert theory.gradients_for(20, 1) == 1


@pytest.mark.parametrize("steps", [3, 700, 10_800])
def test_gradients_are_those_that_a_run_is_charged(steps):
    method = peer.methods.gt_hsgd(**theory.parameters(1.0, 20, steps)._asdict())
    costs = Costs(method, samples=None, degrees=[1.0])
    assert theory.gradients_for(20, steps) == int(costs.gradients(steps))


def test_the_complexities_by_hand():
    # scale = 2 * 7 + 3 = 17, n = 4, lambda = 1/2, 1 - lambda^2 = 3/4.
    known = Constants(2.0, 3.0, 5.0, 7.0)
    start = 5 / 16 / (0.75**3 * 4 * 0.01)
    noise = 0.5**1.5 * 2 * 3**0.75 / (0.75**2.25 * 0.1**1.5)
    assert noise > start
    assert theory.complexity(known, 4, 0.5, 0.1) == (
        pytest.approx(17**1.5 / 0.004),
        pytest.approx(noise),
        4,
    )
    steep = known._replace(gradient=5000.0)
    assert theory.complexity(steep, 4, 0.5, 0.1).network == pytest.approx(1000 * start)


@pytest.mark.parametrize("known", [Constants(2.0, 3.0, 5.0, 7.0), Constants(2.0, 1e-6, 5e4, 7.0)])
def test_with_its_constants_the_regime_begins_where_both_complexities_are_equal(known):
    epsilon = theory.independent_below(20, 0.9, known)
    found = theory.complexity(known, 20, 0.9, epsilon)
    assert found.optimal == pytest.approx(found.network, rel=1e-9)
    assert theory.independent_below(20, 0.0, known) == math.inf


def test_the_regimes_order_by_hand():
    assert theory.independent_below(20, 0.9) == pytest.approx(0.1**3 / 0.9**4 / 20)
    assert theory.independent_below(20, 0.3) == pytest.approx(0.7**1.5 / 0.3 / 20)


@given(lam=st.sampled_from([0.0, 0.5, 0.95]), nodes=SIZES, epsilon=st.floats(1e-4, 1))
@settings(deadline=None)
def test_the_steps_for_an_epsilon_are_where_the_bound_falls_to_it(lam, nodes, epsilon):
    known = Constants(2.0, 3.0, 5.0, 7.0)
    steps = theory.steps_for(known, nodes, lam, epsilon)
    if steps > 1e4:  # so that a whole number is near enough
        reached = corollary_at(known, nodes, lam, round(steps))
        assert sum(reached.values()) == pytest.approx(epsilon**2, rel=1e-3)


def test_table_1_by_hand():
    # n = 4, lambda = 1/2: first where the network is the larger term, then where it is not.
    large = theory.table1(4, 0.5, 2.0, {"b": 3, "c": 4, "d": 5, "h": 6}).set_index("method")[
        "complexity"
    ]
    assert large.to_dict() == pytest.approx(
        {
            "dsgd": 0.25 * 4 / (0.25 * 4), "d2": 4 * 8 / 4, "gt-dsgd": 0.25 * 4 / (0.125 * 4), "d-pd-sgd": 4 * 16 / 4,
            "d-get": 32 / 8, "d-spider-sfo": 64 / 8, "gt-hsgd": 0.5**1.5 * 2 / (0.5**2.25 * 2**1.5),
        },
        rel=1e-12,
    )  # fmt: skip
    assert theory.table1(1, 0.5, 0.1).set_index("method")["complexity"]["gt-hsgd"] == pytest.approx(
        1000
    )
    middle = theory.table1(1, 0.9, 0.5).set_index("method")["complexity"]["gt-hsgd"]
    assert middle == pytest.approx(0.9**4 / (0.001 * 0.25), rel=1e-9)
    small = theory.table1(4, 0.5, 0.01).set_index("method")["complexity"]
    assert (
        small["dsgd"]
        == small["d2"]
        == small["gt-dsgd"]
        == small["d-pd-sgd"]
        == pytest.approx(2.5e7)
    )


def test_the_network_terms_vanish_on_a_complete_graph():
    terms = theory.bound(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.0, 0.01, 100)
    assert [terms[name] for name in theory.TERMS[3:]] == [0.0, 0.0, 0.0]
    found = theory.complexity(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.0, 0.1)
    assert found.network == 0
    assert found.total == found.optimal == pytest.approx(2**1.5 / (20 * 0.1**3))


@pytest.mark.parametrize("lam", [0.3, 0.75, 0.97])
def test_below_the_threshold_the_topology_no_longer_matters(lam):
    epsilon = theory.independent_below(20, lam)
    low, high = (
        theory.table1(20, lam, e).set_index("method")["complexity"]["gt-hsgd"]
        for e in (epsilon / 20, epsilon * 20)
    )
    assert low == pytest.approx(1 / (20 * (epsilon / 20) ** 3))
    assert high > 1 / (20 * (epsilon * 20) ** 3)


def test_table_1_orders_methods_as_the_paper_does():
    table = theory.table1(20, 0.75, 1e-6).set_index("method")["complexity"]
    assert table.idxmin() == "gt-hsgd"
    assert table["d-get"] / table["gt-hsgd"] == pytest.approx(20 / 0.25**2)
    assert table["gt-dsgd"] / table["gt-hsgd"] == pytest.approx(1e6)


def test_table_1_says_what_methods_need():
    table = theory.table1(20, 0.75, 1e-6, {"c": 1.5}).set_index("method")
    assert table.index[table["MSS"]].tolist() == ["d-get", "d-spider-sfo", "gt-hsgd"]
    remarks = table["remarks"]
    assert remarks["dsgd"] == "bounded heterogeneity"
    assumed = {
        "d2": "b not explicit, 2",
        "d-pd-sgd": "c not explicit, 1.5",
        "d-get": "d not",
        "d-spider-sfo": "h not",
    }
    assert all(remarks[name].startswith(text) for name, text in assumed.items())
    assert remarks.index[remarks.str.contains("λ_n")].tolist() == ["d2", "d-spider-sfo"]
    assert remarks["gt-dsgd"] == remarks["gt-hsgd"] == ""
    for wrong in ({"b": 0}, {"h": math.inf}, {"a": 2}):
        with pytest.raises(ValueError, match="exponents"):
            theory.table1(20, 0.75, 1e-6, wrong)


def test_refusals():
    with pytest.raises(ValueError, match=r"must be positive, and below 0\.00378"):
        theory.bound(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.75, 0.1, 100)
    with pytest.raises(ValueError, match=r"lam = 1: must lie in \[0, 1\)"):
        theory.least_steps(20, 1)
    with pytest.raises(ValueError, match="epsilon = 0"):
        theory.complexity(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.5, 0)
