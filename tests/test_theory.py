"""The paper's formulas: they agree with one another where the paper says that they do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdescent import theory
from peerdescent.theory import Constants

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


@pytest.mark.parametrize(("nodes", "lam"), [(20, 0.0), (20, 0.75), (20, 0.97), (1, 0.0), (200, 0.1)])
def test_the_condition_on_the_number_of_steps_is_needed(nodes, lam):
    """A little below it, the step size is outside the theorem's range: constants are rounded up by at most 2 %."""
    steps = math.floor(theory.least_steps(nodes, lam) * 0.94)
    if steps >= 1:
        assert theory.parameters(1.0, nodes, steps).alpha > theory.largest_step_size(1.0, nodes, lam)


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
    left = terms["noise"] + terms["network noise"]
    assert theory.steady_state(3.0, 4, 0.5, beta) == pytest.approx(left, rel=1e-12)


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
        theory.table1(20, lam, e).set_index("method")["complexity"]["gt-hsgd"] for e in (epsilon / 20, epsilon * 20)
    )
    assert low == pytest.approx(1 / (20 * (epsilon / 20) ** 3))
    assert high > 1 / (20 * (epsilon * 20) ** 3)


def test_table_1_orders_methods_as_the_paper_does():
    table = theory.table1(20, 0.75, 1e-6).set_index("method")["complexity"]
    assert table.idxmin() == "gt-hsgd"
    assert table["d-get"] / table["gt-hsgd"] == pytest.approx(20 / 0.25**2)
    assert table["gt-dsgd"] / table["gt-hsgd"] == pytest.approx(1e6)
    assert theory.table1(20, 0.75, 1e-6)["exponent assumed"].sum() == 4


def test_refusals():
    with pytest.raises(ValueError, match=r"Theorem 1 holds below 0\.00378"):
        theory.bound(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.75, 0.1, 100)
    with pytest.raises(ValueError, match=r"lam = 1: must lie in \[0, 1\)"):
        theory.least_steps(20, 1)
    with pytest.raises(ValueError, match="epsilon = 0"):
        theory.complexity(Constants(1.0, 1.0, 1.0, 1.0), 20, 0.5, 0)
