"""Labels of any values: -1 and +1, classes 0 to C - 1, or real targets."""

import numpy as np
import pandas as pd
import pytest

from peerdescent.datasets import Dataset, load
from peerdescent.datasets.labelling import labelled

TWO = {
    "texts": (["no", "yes", "no"], ("no", "yes")),
    "truth": ([False, True, False], (False, True)),
    "0 and 1": ([0, 1, 0], (0, 1)),
    "1 and 2": ([1, 2, 1], (1, 2)),
    "-1 and +1": ([-1.0, 1.0, -1.0], (-1, 1)),
    "fractions": ([0.25, 0.5, 0.25], (0.25, 0.5)),
    "categories": (
        pd.Categorical(["low", "high", "low"], ["low", "unused", "high"]),
        ("low", "high"),
    ),
}


@pytest.mark.parametrize("case", TWO)
def test_any_two_values_are_binary(case):
    raw, classes = TWO[case]
    raw = raw if isinstance(raw, pd.Categorical) else np.array(raw)
    found = labelled(raw, "some")
    assert found.values.tolist() == [-1, 1, -1]
    assert found.values.dtype == np.float32
    assert found.classes == classes
    assert [type(one) for one in found.classes] == [type(one) for one in classes]
    flipped = labelled(raw, "some", positive=classes[0])
    assert flipped.values.tolist() == [1, -1, 1]
    assert flipped.classes == classes[::-1]


def test_several_classes_are_numbered_and_known():
    for raw, classes in (
        (np.array(["b", "a", "c", "a"]), ("a", "b", "c")),
        (np.array([7.0, 3.0, 9.0, 3.0]), (3, 7, 9)),
        (
            pd.Categorical(["mid", "low", "high", "low"], ["low", "mid", "high"]),
            ("low", "mid", "high"),
        ),
    ):
        found = labelled(raw, "some")
        assert found.values.tolist() == [1, 0, 2, 0]
        assert found.values.dtype == np.int64
        assert found.classes == classes


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (np.arange(100), "classes"),
        (np.arange(101), "real"),
        (np.arange(100.0), "classes"),
        (np.arange(100) + 0.5, "real"),
        (np.array([f"class {k}" for k in range(500)]), "classes"),
        (np.array([3]), "classes"),
    ],
)
def test_the_kind_follows_from_the_values(raw, kind):
    found = labelled(raw, "some")
    data = Dataset(np.ones((len(raw), 1)), found.values, "some", classes=found.classes)
    assert data.kind == kind
    if kind == "real":
        assert data.labels.tolist() == raw.tolist()
        assert data.classes == ()


def test_a_kind_that_is_asked_for():
    assert labelled(np.array([0, 1, 1]), "some", "real").values.tolist() == [0, 1, 1]
    two = labelled(np.array([5, 9, 9]), "some", "classes")
    assert (two.values.tolist(), two.classes) == ([0, 1, 1], (5, 9))
    found = labelled(np.arange(500), "some", "classes")
    assert (found.values.dtype, len(found.classes)) == (np.int64, 500)
    for raw, kind, message in (
        (
            np.array(["a", "b", "c"]),
            "real",
            "some has labels such as 'a': real targets are numbers",
        ),
        (
            np.array([1, 2, 3]),
            "binary",
            r"some has 3 classes \(1, 2, 3\), and binary labels need two",
        ),
        (
            np.array([1.5, 2, 3]),
            "classes",
            "some has labels such as 1.5: classes are whole numbers or text",
        ),
        (np.array([1, 2], "datetime64[D]"), None, "some has labels of type datetime64"),
        (np.array([1, 2]), "clases", "unknown labels 'clases': did you mean 'classes'"),
    ):
        with pytest.raises(ValueError, match=message):
            labelled(raw, "some", kind)


def test_positive_is_found_by_value_or_by_text():
    raw = np.array(["1", "2", "x"])
    assert labelled(raw, "some", positive=[1, "x"]).values.tolist() == [1, -1, 1]
    assert labelled(np.array([True, False]), "some", positive="False").values.tolist() == [-1, 1]
    assert labelled(raw, "some", positive=2).classes == (("1", "x"), "2")
    with pytest.raises(
        ValueError,
        match=r"positive=\[1, 3\] must be some, but not all, of the classes of some: '1', '2'",
    ):
        labelled(raw, "some", positive=[1, 3])


def test_repr_says_what_labels_stand_for():
    def shown(labels, classes):
        data = Dataset(np.ones((4, 1)), np.array(labels), "some", classes=classes)
        return repr(data).partition("nonzero, ")[2][:-1]

    assert shown([1.0, -1.0, 1.0, 1.0], ("no", "yes")) == "labels -1 (no): 25.0%, 1 (yes): 75.0%"
    assert (
        shown([1.0, -1.0, 1.0, 1.0], ((0, 2), (1, 3))) == "labels -1 (0, 2): 25.0%, 1 (1, 3): 75.0%"
    )
    assert shown([0, 1, 2, 2], ("a", "b", "c")) == "labels 0 (a): 25.0%, 1 (b): 25.0%, 2 (c): 50.0%"
    assert shown([0, 1, 2, 2], None) == "labels 0: 25.0%, 1: 25.0%, 2: 50.0%"
    assert shown([0.5, 1.0, 2.0, -3.0], None) == "targets -3 to 2"


def test_a_data_set_takes_labels_as_they_are():
    def made(labels, classes=None):
        data = Dataset(np.ones((len(labels), 1)), np.array(labels), "some", classes=classes)
        return data.kind, data.classes, data.labels.dtype

    assert made([1, -1]) == ("binary", (-1, 1), np.float32)
    assert made([1.0, 1.0]) == ("binary", (-1, 1), np.float32)
    assert made([0, 3]) == ("classes", (0, 1, 2, 3), np.int64)
    assert made([1, 1]) == ("classes", (0, 1), np.int64)
    assert made([0.0, 1.0]) == ("real", (), np.float32)
    assert made([1.0, -1.0], ()) == ("real", (), np.float32)
    assert made([0, 0], ("a", "b", "c")) == ("classes", ("a", "b", "c"), np.int64)
    for labels, classes in (
        ([0, 3], ("a", "b")),
        ([0.0, 1.0], ("a", "b")),
        ([1.0, -1.0], ("a", "b", "c")),
    ):
        with pytest.raises(ValueError, match="some: "):
            made(labels, classes)


def test_rows_of_a_data_set():
    data = Dataset(
        np.arange(6).reshape(3, 2),
        np.array([2, 0, 1]),
        "some",
        classes=("a", "b", "c"),
        columns=("u", "v"),
    )
    for rows in (slice(1, None), [1, 2], np.array([False, True, True])):
        some = data[rows]
        assert (some.classes, some.columns, some.name) == (data.classes, data.columns, data.name)
        assert (some.features.tolist(), some.labels.tolist()) == ([[2, 3], [4, 5]], [0, 1])
    with pytest.raises(ValueError, match="one row is no data set"):
        data[1]


@pytest.mark.parametrize(
    "texts", [["0", "00", "1"], ["1", "01", "2"], ["1e3", "1000", "3"], [" 1", "1", "2"]]
)
def test_texts_that_are_one_number_are_several_classes(texts):
    data = load(([[1.0]] * 6, texts * 2))
    assert data.classes == tuple(sorted(texts))
    assert len(set(data.labels.tolist())) == 3


def test_texts_that_are_numbers_are_numbers():
    assert load(([[1.0]] * 3, ["10", "9", "2"])).classes == (2, 9, 10)
