"""Statistics of a sweep's table over seeds, shared by sweeps, figures and reports."""

import numpy as np
import pandas as pd
import pytest

from peerdescent import figures
from peerdescent.report import findings
from peerdescent.sweeps.seeds import best, levels, ranked, smallest, summary


def table(*rows, names=("alpha",)):
    return pd.DataFrame(rows, columns=[*names, "seed", "loss", "status"])


MANY = table(
    (2.0, 0, 0.4, "done"),
    (1.0, 0, 0.5, "done"),
    (1.0, 1, 0.7, "done"),
    (2.0, 1, np.inf, "diverged"),
    (3.0, 0, 0.1, "done"),
    (4.0, 0, np.nan, "interrupted"),
    (4.0, 1, 0.2, "done"),
)


def test_a_row_for_each_configuration_in_the_order_of_the_table():
    each = summary(MANY)
    assert each["alpha"].tolist() == [2, 1, 3, 4]
    assert each["done"].tolist() == [False, True, False, False], "for every seed of the table"
    assert each["diverged"].tolist() == [True, False, False, False]
    assert each["loss"][1] == pytest.approx(0.6)
    assert best(MANY) == {"alpha": 1.0}


def test_a_configuration_listed_twice_counts_once():
    twice = pd.concat([MANY, MANY.iloc[[1, 1]]], ignore_index=True)
    pd.testing.assert_frame_equal(summary(twice), summary(MANY))


def test_the_finished_one_of_two_rows_counts():
    again = pd.concat([MANY, table((4.0, 0, 0.3, "done"))], ignore_index=True)
    each = summary(again)
    assert each["done"].tolist() == [False, True, False, True]
    assert best(again) == {"alpha": 4.0}


def test_the_index_of_a_table_means_nothing():
    pd.testing.assert_frame_equal(summary(MANY.set_axis([7] * len(MANY))), summary(MANY))


def test_values_come_back_as_they_were_given():
    names = ("alpha", "batch", "period", "rule", "atc")
    found = table(
        (0.5, 8, 3, "b", True, 0, 0.2, "done"),
        (0.5, 8, None, None, False, 0, 0.1, "done"),
        names=names,
    )
    assert best(found) == {"alpha": 0.5, "batch": 8, "period": None, "rule": None, "atc": False}
    assert [type(value) for value in best(found.iloc[:1]).values()] == [
        float,
        int,
        float,
        str,
        bool,
    ]
    assert best(found.assign(loss=[0.1, 0.2]))["period"] == 3
    assert type(best(found.assign(loss=[0.1, 0.2]))["period"]) is int, (
        "which an empty cell made a float"
    )


def test_no_hyperparameters():
    found = table((0, 0.3, "done"), (1, 0.5, "done"), names=())
    assert summary(found)["loss"].tolist() == [0.4]
    assert best(found) == {}


def test_another_column():
    found = MANY.assign(**{"loss@5": [1, 3, 3, 1, 1, 1, 1], "grad_norm": 1.0})
    assert summary(found, "loss@5").columns.tolist() == ["alpha", "loss@5", "done", "diverged"]
    with pytest.raises(ValueError, match="unknown value 'los@5': did you mean 'loss@5'"):
        best(found, "los@5")
    with pytest.raises(ValueError, match="the table has no column seed"):
        best(found.drop(columns="seed"))


def test_levels_in_order_and_apart():
    places, names = levels(
        pd.Series([0.1 + 1e-9, 3, "b", None, 0.1, True, float("nan")], dtype=object)
    )
    assert names == ["0.1", "0.100000001", "3", "True", "b", "none"]
    assert places.tolist() == [1, 2, 4, 5, 0, 3, 5]
    assert levels(pd.Series([1 / 3, 1e-4]))[1] == ["0.0001", "0.333333"]


def test_a_cell_is_the_smallest_of_what_is_done_and_diverged_where_all_is():
    each = pd.DataFrame(
        {
            "loss": [3.0, 1.0, 0.5, np.inf, np.inf, np.inf],
            "done": [True, True, False, False, False, False],
            "diverged": [False, False, False, True, True, True],
        }
    )
    cells, gone = smallest(
        each, "loss", np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 0, 0]), (2, 2)
    )
    np.testing.assert_array_equal(cells, [[1, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(gone, [[False, True], [True, False]])
    each.loc[5, "diverged"] = False
    assert not smallest(
        each, "loss", np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 0, 0]), (2, 2)
    )[1][1, 0]


def test_tables_figures_and_pages_agree_on_the_best(tmp_path):
    """One configuration leads by the loss of a seed, one is unfinished, one diverged, two are equal."""
    rows = [
        (alpha, 1, seed, loss, status, f"dsgd[alpha={alpha}]")
        for alpha, losses, status in (
            (0.1, (0.01, 0.9), "done"),
            (0.2, (0.05, 0.05), "interrupted"),
            (0.3, (0.3, 0.2), "done"),
            (0.4, (0.2, 0.3), "done"),
            (0.5, (0.0, 0.0), "diverged"),
        )
        for seed, loss in enumerate(losses)
    ]
    found = pd.DataFrame(rows, columns=["alpha", "batch", "seed", "loss", "status", "method"])
    found.to_csv(tmp_path / "sweep.csv", index=False)
    assert best(found) == {"alpha": 0.3, "batch": 1}
    assert [summary(found)["alpha"][place] for place in ranked(summary(found))] == [0.3, 0.4, 0.1]
    title = figures.heatmap(found, "alpha", "batch").get_suptitle()
    assert title.replace("\u00a0", " ") == "best loss 0.25 at alpha = 0.3, batch = 1"
    [page] = findings.sweeps(tmp_path)
    assert (page.best, page.loss) == ({"alpha": 0.3, "batch": 1}, 0.25)
    assert [(own["name"], own["levels"][own["best"]]) for own in page.heat["parameters"]] == [
        ("alpha", "0.3"),
        ("batch", "1"),
    ]
