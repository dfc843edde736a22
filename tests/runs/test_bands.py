"""Values of several seeds at common points, for the curves of figures and reports."""

import numpy as np
import pandas as pd
import pytest

from peerdescent.runs.bands import HORIZONTAL, VERTICAL, add_gap, at_records, band, quantities
from peerdescent.runs.metrics import METRICS, NONZEROS, Metric


def table(x, y):
    return pd.DataFrame({"epoch": np.array(x, float), "loss": np.array(y, float)})


def test_the_same_points_are_kept_as_they_are():
    found = band(
        [table([0, 1, 1, 3], [4, 2, 1, 0]), table([0, 1, 1, 3], [6, 2, 3, 0])], "epoch", "loss"
    )
    assert found.x.tolist() == [0, 1, 1, 3], "also two at one place"
    assert found.mean.tolist() == [5, 2, 2, 0]
    assert found.low.tolist() == [4, 2, 1, 0]
    assert found.high.tolist() == [6, 2, 3, 0]
    assert found.deviation.tolist() == pytest.approx([2**0.5, 0, 2**0.5, 0])


def test_other_points_are_interpolated_as_far_as_all_go():
    found = band([table([0, 2, 4], [4, 2, 0]), table([1, 3], [6, 3])], "epoch", "loss")
    assert found.x.tolist() == [1, 2, 3]
    assert found.values.tolist() == [[3, 2, 1], [6, 4.5, 3]]


def test_at_records_nothing_is_interpolated():
    found = at_records([table([0, 2, 4], [4, np.inf, 0]), table([1, 4], [6, 3])], "epoch", "loss")
    assert found.x.tolist() == [0, 1, 2, 4]
    np.testing.assert_array_equal(found.values, [[4, np.nan, np.nan, 0], [np.nan, 6, np.nan, 3]])
    np.testing.assert_array_equal(found.mean, [np.nan, np.nan, np.nan, 1.5])


def test_one_run_has_no_deviation():
    found = band([table([0, 1], [4, 2])], "epoch", "loss")
    assert found.deviation.tolist() == [0, 0]
    assert found.low is not found.high
    assert found.low.tolist() == found.high.tolist() == [4, 2]


def test_edges_are_a_deviation_within_the_range_or_the_range():
    found = band([table([0, 1], y) for y in ([1, 0], [2, 0], [3, 0], [6, 4])], "epoch", "loss")
    (low, high), deviation = (
        found.edges(log=False),
        np.std([[1, 2, 3, 6], [0, 0, 0, 4]], axis=1, ddof=1),
    )
    assert low.tolist() == pytest.approx([max(3 - deviation[0], 1), 0]), "no value is below 0"
    assert high.tolist() == pytest.approx([3 + deviation[0], 1 + deviation[1]])
    assert [edge.tolist() for edge in found.edges(log=True)] == [[1, 0], [6, 4]]


def test_what_is_not_finite_has_no_value():
    found = band(
        [table([0, 1, 2], [1, np.inf, 0]), table([0, 1, 2], [1, 1, np.nan])], "epoch", "loss"
    )
    np.testing.assert_array_equal(found.mean, [1, np.nan, np.nan])
    found = band([table([0, np.nan, 2], [1, 5, 0])], "epoch", "loss")
    assert (found.x.tolist(), found.mean.tolist()) == ([0, 2], [1, 0])


def test_there_may_be_no_points():
    nothing = table([np.nan], [1])
    for tables in (
        [nothing],
        [nothing, table([0, 1], [1, 0])],
        [table([0, 1], [1, 0]), table([2, 3], [1, 0])],
    ):
        found = band(tables, "epoch", "loss")
        assert found.x.shape == (0,)
        assert found.values.shape == (len(tables), 0)


def test_axes_have_the_names_of_their_columns():
    assert all(name == metric.name for name, metric in (HORIZONTAL | VERTICAL).items())
    assert not set(HORIZONTAL) & set(VERTICAL)
    assert set(HORIZONTAL) | set(VERTICAL) - {"gap"} < set(METRICS)
    assert add_gap(table([0], [3]), 1.0)["gap"].tolist() == [2]


def test_quantities_of_a_user_come_last_and_as_described():
    about = Metric("accuracy", "accuracy $a$", log=True)
    found = quantities(["step", "loss", "gap", "accuracy", "cost", "accuracy"], [about])
    assert list(found) == [*VERTICAL, "accuracy", "cost"]
    assert found["accuracy"] is about
    assert (found["cost"].label, found["cost"].title, found["cost"].log) == ("cost", "cost", False)


def test_composite_problems_have_labels_of_their_own():
    """The norm is that of the proximal mapping there; a user's metric of the same name changes nothing."""
    composite = quantities(["nonzeros"], [NONZEROS])
    assert composite["grad_norm"].title == "norm of the proximal mapping at x̄"
    assert composite["consensus"] == VERTICAL["consensus"]
    assert quantities(["nonzeros"], [Metric("nonzeros")])["grad_norm"] == VERTICAL["grad_norm"]
