"""Rows that are loaded like others: by the columns, ranges and classes of those, whatever they have themselves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

import peerdescent as peer
from peerdescent.datasets import load

FRAME = pd.DataFrame(
    {
        "age": [20.0, 80.0, 50.0, 35.0],
        "city": [3, 1, 2, 3],
        "flat": [7, 7, 7, 7],
        "kind": ["cat", "dog", "fox", "dog"],
    }
)
TRAIN = load(FRAME, target="kind", scale=True, normalise=False, name="train")


def test_the_same_rows_are_the_same():
    for options in ({}, {"scale": True}, {"normalise": True}, {"scale": True, "normalise": True}):
        for source, more in (
            (FRAME, {"target": "kind"}),
            ((csr_array(np.eye(4) * 3), [1, 2, 1, 2]), {}),
        ):
            first = load(source, **more, **options)
            again = load(source, like=first, **more)
            assert (abs(first.features - again.features)).sum() == 0
            assert first.labels.tolist() == again.labels.tolist()
            assert (first.classes, first.kind, first.columns) == (
                again.classes,
                again.kind,
                again.columns,
            )
            assert first.facts == again.facts


def test_ranges_columns_and_classes_are_those_of_the_others():
    test = load(FRAME[2:][["kind", "city", "age", "flat"]], target="kind", like=TRAIN)
    assert test.columns == TRAIN.columns == ("age", "city", "flat")
    assert test.features.tolist() == TRAIN.features[2:].tolist()
    assert test.labels.tolist() == [2, 1]
    assert test.classes == ("cat", "dog", "fox")
    beyond = load(FRAME[:1].assign(age=140, flat=9), target="kind", like=TRAIN[:2])
    assert beyond.features.tolist() == [[2, 1, 2]]


def test_binary_labels_and_real_targets():
    binary = load(FRAME, target="kind", positive=["dog", "fox"], normalise=False)
    assert load(FRAME[1:3], target="kind", like=binary).labels.tolist() == [1, 1]
    signs = peer.datasets.Dataset([[1.0], [2.0]], [-1.0, 1.0], "signs")
    assert load(([[3.0]], [1]), like=signs).labels.tolist() == [1]
    real = load(FRAME[["age", "flat"]], target="age", labels="real")
    assert load(FRAME[["age", "flat"]][:2], target="age", like=real).labels.tolist() == [20, 80]


def test_sparse_rows_without_the_last_columns_are_widened():
    train = load((csr_array(np.diag([2.0, 4.0, 8.0])), [0, 1, 0]), scale=True, normalise=False)
    test = load((csr_array([[1.0, 1.0]]), [1]), like=train)
    assert test.features.toarray().tolist() == [[0.5, 0.25, 0]]
    full = load((csr_array([[1.0, 2.0], [3.0, 0.0]]), [0, 1]), scale=True)
    with pytest.raises(
        ValueError,
        match=r"rare is sparse, .* would fill column 0, whose smallest value is 1: .* dense",
    ):
        load((csr_array([[0.0, 1.0]]), [1]), like=full, name="rare")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAME.assign(size=1), {}, "only one of test and train has size: give the same columns"),
        (
            FRAME.drop(columns=["age", "flat"]),
            {},
            "only one of test and train has age, flat: give the same columns",
        ),
        (
            FRAME.assign(kind="cow"),
            {},
            r"test has labels 'cow', which train has not: its classes are cat, dog, fox",
        ),
        (
            FRAME,
            {"scale": True},
            "scale=True has no meaning with like=, whose own is taken: leave it out",
        ),
        (FRAME, {"positive": "cat"}, "positive='cat' has no meaning with like="),
    ],
)
def test_what_the_others_do_not_know_is_refused(frame, options, message):
    with pytest.raises(ValueError, match=message):
        load(frame, target="kind", like=TRAIN, name="test", **options)


def test_what_is_no_data_set_is_refused():
    with pytest.raises(ValueError, match=r"like=3 is no data set: give what load returned"):
        load(FRAME, target="kind", like=3)
    with pytest.raises(ValueError, match=r"data has 1 features, and train 3: give the same"):
        load(([[1.0]], ["cat"]), like=TRAIN)


def written(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_file_counts_features_as_the_others_do(folder):
    """A file in which the first feature does not occur may count from 0 or 1."""
    zero = load(written(folder / "zero", "1 0:1 2:1\n-1 1:1\n"), normalise=False)
    one = load(written(folder / "one", "1 1:1 3:1\n-1 2:1\n"), normalise=False)
    assert (zero.features != one.features).sum() == 0
    assert zero.notes[0] == "features are counted from 0 in the file"
    assert not any("counted" in note for note in one.notes)
    part = written(folder / "part", "1 1:5 2:7\n")
    for _ in range(2):  # the second time from the cache
        assert load(part, like=zero).features.toarray().tolist() == [[0, 5, 7]]
        assert load(part, like=one).features.toarray().tolist() == [[5, 7, 0]]
    assert load(part, like=load(part, like=zero)).features.toarray().tolist() == [[0, 5, 7]]
    memory = load((csr_array(np.eye(3)), [1, -1, 1]), like=zero)
    assert load(part, like=memory).features.toarray().tolist() == [[0, 5, 7]]
    none = written(folder / "none", "1\n-1\n")
    assert load(none, like=zero).features.toarray().tolist() == [[0, 0, 0]] * 2
    with pytest.raises(
        ValueError, match=r"zero and one may count features from 0 and from 1: .*load_svmlight_file"
    ):
        load(folder / "zero", like=one)


def test_a_file_that_may_count_from_0_or_1_is_refused_where_the_others_do_not_say(folder):
    memory = load((csr_array(np.eye(3)), [1, -1, 1]), normalise=False, name="memory")
    for text in ("1 0:5\n", "1 1:5\n"):
        with pytest.raises(
            ValueError, match=r"some and memory may count features from 0 and .*zero_b"
        ):
            load(written(folder / "some", text), like=memory)


def test_how_others_were_read_is_kept(folder):
    rows, labels = FRAME[["age", "flat"]].to_numpy(), [1, 0, 0, 1]
    for options in ({"normalise": True}, {"normalise": False}, {"scale": True}):
        train = load((rows, labels), **options)
        for other in (
            train,
            replace(train, labels=-train.labels),
            replace(train, name="other")[1:],
        ):
            assert load((rows, labels), like=other).features.tolist() == train.features.tolist()
    changed = replace(train, features=2 * train.features)
    for other in (changed, changed[:2]):
        with pytest.raises(
            ValueError,
            match=r"features of data are others than load gave, .*: give like= what load",
        ):
            load((rows, labels), like=other)


@pytest.mark.parametrize("options", [{}, {"normalise": False}, {"scale": True}])
def test_rows_like_those_of_a_named_set_are_divided_by_its_unit(options):
    raw, digits = load_digits(), load("digits", **options)
    same = load((raw.data[:5], raw.target[:5]), like=digits)
    assert same.features.tolist() == digits.features[:5].tolist()
