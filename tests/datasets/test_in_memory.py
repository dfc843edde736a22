"""Data in memory: arrays, pandas, SciPy, scikit-learn and Hugging Face; and the columns of tables."""

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import sklearn.utils
from scipy.sparse import coo_array, csc_matrix, csr_array

from peerdescent.datasets import Dataset, Partition, load


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path / "cache"))


def dense(data):
    return data.features if isinstance(data.features, np.ndarray) else data.features.toarray()


# Arrays.

FEATURES = np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
NORM = "rows were scaled to norm 1; normalise=False keeps them"


@pytest.mark.parametrize(
    "features",
    [
        FEATURES,
        FEATURES.tolist(),
        FEATURES.astype(np.float32),
        FEATURES.astype(int),
        np.asfortranarray(FEATURES),
        csr_array(FEATURES),
        csr_array(FEATURES.astype(np.float32)),
        coo_array(FEATURES),
        csc_matrix(FEATURES),
        pd.DataFrame(FEATURES),
        FEATURES.astype(object),
    ],
    ids=lambda one: type(one).__name__,
)
def test_features_of_any_kind_stay_as_they_are(features):
    before = features.copy()
    data = load((features, ["no", "yes", "no"]), scale=True)
    assert isinstance(data.features, csr_array) == hasattr(features, "tocsr")
    expected = FEATURES / FEATURES.max(axis=0)
    np.testing.assert_allclose(
        dense(data), expected / np.linalg.norm(expected, axis=1)[:, None], rtol=1e-6
    )
    assert data.labels.tolist() == [-1, 1, -1]
    assert data.classes == ("no", "yes")
    assert data.notes == ("labels: -1 is no; +1 is yes", NORM)
    same = (
        (features != before).sum() == 0
        if hasattr(features, "tocsr")
        else np.array_equal(features, before)
    )
    assert same, "the data of the user have changed"


@pytest.mark.parametrize(
    "labels",
    [
        [7, 8, 9],
        np.array([[7], [8], [9]]),
        pd.Series([7.0, 8.0, 9.0]),
        pd.Series([7, 8, 9], index=[5, 1, 3], dtype="Int64"),
        pd.DataFrame({"y": [7, 8, 9]}),
        np.array([7, 8, 9], dtype=object),
        ["7", "8", "9"],
    ],
    ids=lambda one: type(one).__name__,
)
def test_labels_of_any_kind(labels):
    data = load((FEATURES, labels), name="mine")
    assert (data.name, data.kind, data.labels.tolist(), data.classes) == (
        "mine",
        "classes",
        [0, 1, 2],
        (7, 8, 9),
    )


def test_real_targets():
    data = load((FEATURES, [0.5, 1.5, 2.0]))
    assert (data.kind, data.labels.dtype, data.labels.tolist()) == (
        "real",
        np.float32,
        [0.5, 1.5, 2.0],
    )
    assert data.notes == ()
    assert data.features.tolist() == FEATURES.tolist(), "another row would mean another target"
    scaled = load((FEATURES, [0.5, 1.5, 2.0]), normalise=True)
    np.testing.assert_allclose(np.linalg.norm(scaled.features, axis=1), 1, rtol=1e-6)
    assert scaled.notes == (NORM,)


def test_who_has_rows_of_norm_1():
    own = [load((FEATURES, labels)) for labels in ((0, 1, 0), (0, 1, 2), (0.5, 1, 2))]
    assert [data.about["normalised"] for data in own] == [True, True, False]
    assert [NORM in data.notes for data in own] == [True, True, False]
    ours = [load("digits", labels=kind) for kind in ("binary", "classes", "real")] + [
        load("synthetic-20x3")
    ]
    assert all(data.about["normalised"] and data.notes == () for data in ours)
    assert not load((FEATURES, (0, 1, 0)), normalise=False).about["normalised"]


TARGETS = [0.5, 1.5, 2.5]
SIZES = pd.DataFrame(
    {"age": [30.0, 50, 40], "income": [-5e4, 1e4, 0], "ill": [0, 1, 1], "none": 0, "y": TARGETS}
)


@pytest.mark.parametrize("make", [lambda one: one, csr_array], ids=["dense", "sparse"])
def test_columns_of_different_units_are_noted(make):
    said = "columns differ in size, income up to 50,000 and ill up to 1: scale=True brings them to [0, 1]"
    assert load(SIZES, target="y").notes == (said,)
    array = SIZES.drop(columns="y").to_numpy()
    unnamed = said.replace("income", "feature 1").replace("ill", "feature 2")
    assert load((make(array), TARGETS)).notes == (unnamed,)
    assert load((make(array[:, :3] / [1, 1e3, 1]), TARGETS)).notes == (), "50 beside 1"
    assert load((make(abs(array)), TARGETS), scale=True).notes == ()
    assert load((make(array), TARGETS), scale=False).notes == (), "somebody has thought of it"
    assert load((make(0 * array), TARGETS)).notes == ()


def test_a_run_knows_what_load_did():
    for scale in (True, False):
        data = load((FEATURES, (0, 1, 0)), scale=scale)
        assert data.facts["scaled"] is data.partition(2).facts["scaled"] is scale
    assert load((FEATURES, (0, 1, 0))).facts["scaled"] is False


def test_facts_tell_data_apart():
    def facts(features=FEATURES, labels=(0, 1, 0), **options):
        return str(load((features, labels), **options).facts)

    found = {
        facts(),
        facts(FEATURES + 1),
        facts(labels=(0, 1, 1)),
        facts(normalise=False),
        facts(scale=True),
        facts(csr_array(FEATURES)),
        facts(rows=2),
        facts(rows=2, seed=1),
        facts(labels=(0.5, 1, 2)),
        facts(labels=(0, 1, 2)),
    }
    assert len(found) == 10
    some = [str(load((FEATURES, (0, 1, 0)))[rows].facts) for rows in ([0, 1], [1, 2])]
    assert len({*found, *some}) == 12
    assert facts() == facts(FEATURES.tolist()) == facts(labels=("a", "b", "a")), "the same numbers"


def test_rows_keep_their_groups():
    features, labels, owners = (
        np.arange(40.0).reshape(20, 2),
        [0, 1] * 10,
        [f"node {k // 10}" for k in range(20)],
    )
    data = load((features, labels), groups=owners, rows=11, seed=3, normalise=False)
    part = data.partition(by="groups")
    assert part.names == ("node 0", "node 1")
    for place, rows in enumerate(part.indices):
        assert {int(row) // 20 for row in data.features[rows, 0]} == {place}


BAD = {
    "a tuple of 3: give two, (features, labels)": ((1, 2, 3), {}),
    "features without labels: give both, as in load((features, labels))": (FEATURES, {}),
    "data has features of shape (3,): give (N, p), as by reshape(len(features), -1)": (
        (FEATURES[:, 0], [0, 1, 0]),
        {},
    ),
    "data has features of 3 rows and labels of shape (2,): give one label for each row": (
        (FEATURES, [0, 1]),
        {},
    ),
    "labels of shape (3, 2): give one label for each row": ((FEATURES, FEATURES), {}),
    "cannot load a int: give a name, a path, (features, labels), a DataFrame, or": (3, {}),
    "cannot load a dict": ({"features": FEATURES}, {}),
    "data has rows without a label: leave them out": ((FEATURES, ["a", None, "b"]), {}),
    "data holds infinite or missing values": ((FEATURES * 1e300, [0, 1, 0]), {"normalise": False}),
    "target='y' names a column, and data has its labels: leave it out": (
        (FEATURES, [0, 1, 0]),
        {"target": "y"},
    ),
    "groups='y' names a column, and the features of data have no names": (
        (FEATURES, [0, 1, 0]),
        {"groups": "y"},
    ),
    "data_dir='.' is for files: leave it out": ((FEATURES, [0, 1, 0]), {"data_dir": "."}),
    "name='mine' is for data in memory: digits has its own": ("digits", {"name": "mine"}),
    "groups of shape (2,) for 3 rows: give one for each row": (
        (FEATURES, [0, 1, 0]),
        {"groups": [1, 2]},
    ),
    "groups is missing in 1 rows: fill it in, or leave them out": (
        (FEATURES, [0, 1, 0]),
        {"groups": [1, None, 2]},
    ),
    "the indices of features and labels differ: give labels.loc[features.index], or arrays": (
        (pd.DataFrame(FEATURES), pd.Series([0, 1, 0], index=[2, 1, 0])),
        {},
    ),
    "data has labels such as Timestamp": (
        (FEATURES, pd.Series(pd.date_range("2020-01-01", periods=3))),
        {},
    ),
    "column 0 of data holds '3.0', which is no number": (
        (FEATURES.astype(str), [0, 1, 0]),
        {},
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_data(message):
    source, options = BAD[message]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(source, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Tables.

PATIENTS = pd.DataFrame(
    {
        "hospital": ["Ulm", "Bern", "Ulm", "Bern", "Ulm"],
        "age": [30, 41, 52, 63, 74],
        "dose": pd.array([1, 2, 3, 4, 5], "Int64"),
        "smokes": [True, False, False, True, True],
        "ill": ["yes", "no", "no", "yes", "no"],
    },
    index=pd.Index([11, 22, 33, 44, 55], name="patient"),
)
EXPECTED = [[30, 1, 1], [41, 2, 0], [52, 3, 0], [63, 4, 1], [74, 5, 1]]


@pytest.mark.parametrize("kind", ["frame", "pair", "to_pandas"])
def test_a_table(kind):
    options = {"groups": "hospital", "target": "ill", "normalise": False}
    source = PATIENTS
    if kind == "pair":
        source = (PATIENTS.drop(columns="ill"), PATIENTS["ill"])
        del options["target"]
    elif kind == "to_pandas":
        source = SimpleNamespace(to_pandas=lambda: PATIENTS)
    data = load(source, **options)
    assert data.columns == ("age", "dose", "smokes")
    assert data.features.tolist() == EXPECTED
    assert data.labels.tolist() == [1, -1, -1, 1, -1]
    assert data.classes == ("no", "yes")
    assert data.notes == ("labels: -1 is no; +1 is yes",)
    part = data.partition(by="hospital")
    assert part.names == ("Bern", "Ulm")
    assert [rows.tolist() for rows in part.indices] == [[1, 3], [0, 2, 4]]
    assert PATIENTS.columns.tolist() == ["hospital", "age", "dose", "smokes", "ill"]


def test_labels_are_in_the_order_of_their_categories():
    data = load(frame(x=1.0).assign(y=pd.Categorical(["b", "a"] * 6, ["b", "a"])), target="y")
    assert (data.classes, data.labels[:2].tolist()) == (("b", "a"), [-1, 1])


def frame(**columns):
    return pd.DataFrame({**columns, "y": [0, 1] * 6})


BAD_TABLES = {
    "say which column of data has the labels by target=: its columns are x, y": (frame(x=1.0), {}),
    "target='z' is no column of data: its columns are x, y": (frame(x=1.0), {"target": "z"}),
    "target=-1 is no column of data": (frame(x=1.0), {"target": -1}),
    "target=['y'] is no column of data": (frame(x=1.0), {"target": ["y"]}),
    "groups='z' is no column of data": (frame(x=1.0), {"target": "y", "groups": "z"}),
    "data has 12 rows of 1 columns: give features and labels": (frame(), {"target": "y"}),
    **{
        f"column 'x' of data holds {shown}, which is no number: turn texts into columns of numbers, "
        "as by pandas.get_dummies(frame, columns=['x']), or leave it out": (
            frame(x=pd.Series(cells * 6)),
            {"target": "y"},
        )
        for shown, cells in {
            "Timestamp('2020-01-01 00:00:00')": [pd.Timestamp("2020-01-01")] * 2,
            "'02139'": ["02139", "10115"],
            "'?'": [12, "?"],
            "'1,000'": ["1,000", "2,500"],
            "['a']": [["a"], [2]],
            "1j": [1j, 2],
            "'object'": [10**400, 1],
        }.items()
    },
    "column 'x' of data holds 'category', which is no number": (
        frame(x=pd.Categorical([7, 8] * 6)),
        {"target": "y"},
    ),
    "data has missing values in x, z: fill them in, as by frame.fillna(frame.median()), or": (
        frame(w=1.0, x=[1.0, None] * 6, z=pd.array([True, None] * 6, "boolean")),
        {"target": "y"},
    ),
    "the first column of data has no name, as an index in a file: read it by pandas.read_csv": (
        frame(**{"Unnamed: 0": 2.0}),
        {"target": "y"},
    ),
    "data has several columns of one name: rename all but one of x, x, y": (
        pd.DataFrame([[1, 2, 0], [3, 4, 1]], columns=["x", "x", "y"]),
        {"target": "y"},
    ),
    "hospital is missing in 6 rows": (
        frame(x=1.0, hospital=["Ulm", None] * 6),
        {"target": "y", "groups": "hospital"},
    ),
    "a column of groups cannot be called 'label'": (
        frame(x=1.0, label="a"),
        {"target": "y", "groups": "label"},
    ),
}


@pytest.mark.parametrize("message", BAD_TABLES)
def test_bad_table(message):
    source, options = BAD_TABLES[message]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(source, **options)
    assert message in str(caught.value)


def test_the_remedies_of_refused_columns_work():
    sexes = pd.get_dummies(frame(x=["f", "m"] * 6, z=1.0), columns=["x"])
    assert load(sexes, target="y").columns == ("z", "x_f", "x_m")
    holes = frame(x=[1.0, None, 3.0, 3.0] * 3)
    assert load(holes.fillna(holes.median()), target="y").features.tolist() == [[1.0]] * 12
    assert len(load(holes.dropna(), target="y")) == 9


def test_features_without_labels_say_what_is_for_pca():
    message = r"features without labels: .*; for pca, any will do with normalise=False, as in "
    message += r"load\(\(features, np\.zeros"
    for source in (FEATURES, csr_array(FEATURES), (FEATURES, None), (pd.DataFrame(FEATURES), None)):
        with pytest.raises(ValueError, match=message):
            load(source)
    data = load((FEATURES, np.zeros(3)), normalise=False)
    assert data.features.tolist() == FEATURES.tolist()


# scikit-learn.


@pytest.mark.parametrize("as_frame", [False, True])
def test_scikit_learn(as_frame):
    bunch = sklearn.datasets.load_breast_cancer(as_frame=as_frame)
    data = load(bunch, normalise=False)
    assert (data.name, data.kind, data.classes) == (
        "breast_cancer",
        "binary",
        ("malignant", "benign"),
    )
    assert data.columns == tuple(map(str, bunch.feature_names))
    np.testing.assert_allclose(data.features, np.asarray(bunch.data), rtol=1e-6)
    assert np.array_equal(data.labels == 1, np.asarray(bunch.target) == 1)
    assert {type(name) for name in data.classes} == {str}
    other = load(bunch, positive="malignant")
    assert np.array_equal(other.labels, -data.labels)


def test_scikit_learn_with_classes_and_real_targets():
    iris = load(sklearn.datasets.load_iris())
    assert (iris.kind, iris.classes) == ("classes", ("setosa", "versicolor", "virginica"))
    assert iris.notes == ("labels: 0 is setosa; 1 is versicolor; 2 is virginica", NORM)
    diabetes = sklearn.datasets.load_diabetes()
    assert load(diabetes).kind == "real"
    assert load(diabetes).labels.tolist() == diabetes.target.tolist()
    assert load(sklearn.datasets.load_digits()).classes == tuple(range(10))
    text = sklearn.utils.Bunch(data=["some text", "more"], target=[0, 1])
    with pytest.raises(ValueError, match=r"data has features of shape \(2,\)"):
        load(text)
    with pytest.raises(ValueError, match=r"labels of shape \(20, 3\): give one label for each row"):
        load(sklearn.datasets.load_linnerud())
    regression = sklearn.utils.Bunch(data=FEATURES, target=[0.5, 1.5, 2.5], target_names=["price"])
    assert load(regression).kind == "real"


# Hugging Face: an object with the interface that its documentation gives, and the library where it is installed.


class Value:
    """A plain column."""


class ClassLabel:
    """A column of numbers with names."""

    def __init__(self, names):
        self.names = names


class List:
    """A column of lists."""


class HuggingFace:
    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def select_columns(self, names):
        return HuggingFace(
            {name: self.columns[name] for name in names},
            {name: self.features[name] for name in names},
        )

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def to_pandas(self):
        return pd.DataFrame(self.columns)

    def __getitem__(self, rows):
        return {
            name: [np.array(value) for value in values[rows]]
            for name, values in self.columns.items()
        }


def stand_in(columns, names):
    kinds = {
        name: List() if isinstance(values[0], list) else Value() for name, values in columns.items()
    }
    return HuggingFace(columns, kinds | {"label": ClassLabel(names)})


def installed(columns, names):
    import datasets

    return datasets.Dataset.from_dict(columns).cast_column(
        "label", datasets.ClassLabel(names=names)
    )


spec = find_spec("datasets")
REAL = spec is not None and spec.origin is not None
"""Without the library, Python takes this folder for it."""
real = pytest.param(
    installed, marks=pytest.mark.skipif(not REAL, reason="Hugging Face's datasets is not installed")
)


@pytest.mark.parametrize("make", [stand_in, real])
def test_hugging_face(make):
    columns = {
        "age": [30.5, 41.0, 52.0, 63.0],
        "picture": [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]],
        "label": [1, 0, 2, 2],
    }
    data = load(make(columns, ["ham", "spam", "eggs"]), target="label", normalise=False)
    assert (data.name, data.kind, data.classes) == ("data", "classes", ("ham", "spam", "eggs"))
    assert data.columns == (
        "age",
        "picture[0]",
        "picture[1]",
        "picture[2]",
        "picture[3]",
    )
    assert data.features[:2].tolist() == [[30.5, 1, 2, 3, 4], [41, 5, 6, 7, 8]]
    assert data.labels.tolist() == [1, 0, 2, 2]
    two = load(
        make({"x": [1.0, 2.0], "label": [1, 0]}, ["ham", "spam"]), target="label", positive="ham"
    )
    assert two.labels.tolist() == [-1, 1]
    with pytest.raises(ValueError, match="rows without a label"):
        load(make({"x": [1.0, 2.0], "label": [1, -1]}, ["ham", "spam"]), target="label")
    with pytest.raises(ValueError, match=r"several parts: give one, as in load\(data\['train'\]\)"):
        load({"train": make({"x": [1.0], "label": [1]}, ["ham", "spam"])})


def test_pictures_of_several_shapes_are_refused():
    kinds = {"image": List(), "label": Value()}
    made = HuggingFace({"image": [np.ones((2, 3)), np.ones((3, 2))], "label": [0, 1]}, kinds)
    with pytest.raises(
        ValueError,
        match=r"column 'image' has cells of shapes \(2, 3\), \(3, 2\): give all of them one",
    ):
        load(made, target="label")


@pytest.mark.skipif(not REAL, reason="Hugging Face's datasets is not installed")
def test_pictures_and_streams_of_hugging_face():
    from PIL import Image

    import datasets

    pictures = [Image.fromarray(np.full((2, 2), k, np.uint8)) for k in range(3)]
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    made = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 2]}, features=kinds)
    data = load(made, target="label", normalise=False)
    assert data.features.tolist() == [[0] * 4, [1] * 4, [2] * 4]
    with pytest.raises(ValueError, match="a stream of rows: take some into memory"):
        load(made.to_iterable_dataset(), target="label")
    with pytest.raises(ValueError, match="has several parts"):
        load(datasets.DatasetDict({"train": made}), target="label")


def test_series_and_frames_belong_to_the_rows_by_their_index():
    features = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]}, index=[7, 3, 5, 9])
    labels = pd.Series([0, 1, 0, 1], index=features.index, name="y")
    owners = pd.Series(["u", "u", "v", "w"], index=features.index)
    for own in (labels, labels.to_frame()):
        assert load((features, own), normalise=False).labels.tolist() == [-1, 1, -1, 1]
        with pytest.raises(ValueError, match="the indices of features and labels differ"):
            load((features, own.sort_index()))
    whole = features.assign(y=labels)
    for groups in (owners, owners.to_numpy()):
        data = load(whole, target="y", groups=groups)
        assert data.groups["groups"].tolist() == ["u", "u", "v", "w"]
        assert [rows.tolist() for rows in data.partition(groups=groups).indices] == [
            [0, 1],
            [2],
            [3],
        ]
        assert [rows.tolist() for rows in data[2:].partition(groups=groups[2:]).indices] == [
            [0],
            [1],
        ]
    some = load(whole, target="y", rows=3)
    kept = some.partition(groups=owners.loc[some.index]).indices
    assert sum(map(len, kept)) == 3
    arrays = load((features.to_numpy(), labels.to_numpy()))
    assert arrays.partition(groups=owners.reset_index(drop=True)).sizes.tolist() == [2, 1, 1]
    for refused in (
        lambda: load(whole, target="y", groups=owners.sort_index()),
        lambda: load((features, labels), groups=owners.sort_index()),
        lambda: load(whole, target="y").partition(groups=owners.sort_index()),
        lambda: load(whole, target="y")[2:].partition(groups=owners.reset_index(drop=True)[:2]),
        lambda: some.partition(groups=owners[:3]),
        lambda: arrays.partition(groups=owners),
        lambda: arrays[2:].partition(groups=owners.reset_index(drop=True)[:2]),
    ):
        with pytest.raises(
            ValueError, match=r"groups is a Series whose index is not that of the rows: .*to_numpy"
        ):
            refused()


def test_names_of_rows_are_no_row_numbers():
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "y": [0, 1, 0, 1]}, index=[3, 2, 1, 0])
    data, plain = (
        load(one, target="y", normalise=False) for one in (frame, frame.reset_index(drop=True))
    )
    high = frame["a"] > 2
    for rows in (high, high.to_numpy(), np.flatnonzero(high), [2, 3]):
        assert data[rows].features.tolist() == [[3], [4]]
    for rows in (pd.Index([2, 3]), pd.Series([2, 3])):
        assert plain[rows].features.tolist() == [[3], [4]]
        assert plain.partition(indices=[rows]).indices[0].tolist() == rows.tolist()
        for refused in (
            lambda rows=rows: data[rows],
            lambda rows=rows: data.partition(indices=[[0], rows]),
        ):
            with pytest.raises(
                ValueError,
                match=r"rows are given as an? (Index|Series), .* not called 0, 1, .*\.to_numpy\(\)",
            ):
                refused()
    with pytest.raises(ValueError, match="rows are given as an Index, "):
        Partition(data, (frame.index[high],))
    with pytest.raises(
        ValueError,
        match=r"the mask is a Series whose index is not that of the rows: .*\.to_numpy\(\)",
    ):
        data[high.sort_index()]
    with pytest.raises(ValueError, match="rows are given as an Index, "):
        plain[1:][frame.index[high]]
    by = frame.groupby("y")
    assert [rows.tolist() for rows in data.partition(indices=by.indices.values()).indices] == [
        [0, 2],
        [1, 3],
    ]
    with pytest.raises(ValueError, match=r"indices= is a dict: give its values\(\)"):
        data.partition(indices=by.indices)


def test_entries_that_are_stored_twice_are_summed():
    twice = csr_array(
        (np.array([1.0, 1.0, 2.0, 3.0]), np.array([0, 0, 1, 0]), np.array([0, 3, 4])), shape=(2, 2)
    )
    rows = np.array([[2.0, 2.0], [3.0, 0.0]])
    np.testing.assert_allclose(
        dense(load((twice, [0, 1]))), rows / np.linalg.norm(rows, axis=1, keepdims=True)
    )
    np.testing.assert_allclose(
        dense(load((twice, [0, 1]), scale=True, normalise=False)), [[0, 1], [1, 0]]
    )
    made = Dataset(twice, [0, 1], "some")
    assert made.features.data.tolist() == [2, 2, 3]
    assert twice.data.tolist() == [1, 1, 2, 3]


# What float32 cannot hold.

SECONDS = 1.7e9 + np.random.default_rng(0).permutation(40)


def timed(kind):
    """Features with a column of times, as a source of some kind, and the options to load it."""
    other, labels = np.arange(1.0, 41), np.arange(40) % 2
    if kind == "frame":
        return pd.DataFrame({"time": SECONDS, "other": other[::-1], "y": labels}), {"target": "y"}
    array = np.stack([SECONDS, other], axis=1)
    return (
        {"array": array, "sparse": csr_array(array), "whole": array.astype(int)}[kind],
        labels,
    ), {}


@pytest.mark.parametrize("kind", ["frame", "array", "sparse", "whole"])
def test_columns_are_scaled_before_they_are_rounded(kind):
    source, options = timed(kind)
    found = dense(load(source, scale=True, normalise=False, **options))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], (SECONDS - 1.7e9) / 39, rtol=1e-6)
    name = "time" if kind == "frame" else "column 0"
    with pytest.warns(
        UserWarning,
        match=rf"data: float32 cannot tell values of {name} apart, .* 1700000039: load it",
    ):
        load(source, **options)


def test_a_file_is_scaled_before_it_is_rounded(tmp_path):
    times = (SECONDS - 1.7e9) / 39
    (tmp_path / "some.svm").write_text(
        "".join(f"{k % 2} 1:{t:.0f} 2:1\n" for k, t in enumerate(SECONDS))
    )
    for _ in range(2):  # the second time from the cache
        found = dense(load(tmp_path / "some.svm", scale=True, normalise=False))
        np.testing.assert_allclose(found[:, 0], times, rtol=1e-6)


def test_rounding_that_leaves_little_is_told_of():
    targets = 1e9 + np.random.default_rng(0).normal(size=40)
    message = r"float32 cannot tell values of its targets apart, .*: subtract a constant"
    with pytest.warns(UserWarning, match=message):
        load((np.eye(40), targets))
    with pytest.warns(UserWarning, match=message):
        Dataset(np.eye(40), targets, "some")
    with pytest.warns(
        UserWarning,
        match=r"some: float32 cannot tell values of column 0 apart, .*: subtract its least",
    ):
        Dataset(SECONDS[:, None], np.arange(40) % 2, "some")


def test_rounding_that_leaves_enough_is_not_told_of():
    """A year of seconds, whole numbers that float32 has, a constant, and noise of float64."""
    k = np.arange(40)[::-1]
    columns = [
        1.7e9 + 8e5 * k,
        16_000_000 + k % 5,
        0 * k + 1.7e9 + 1,
        1 + k * 2e-16,
        0.1 * k,
    ]
    load((np.stack(columns, axis=1), k % 2))


# What would be wrong without a word.


def test_what_a_mask_hides_is_missing():
    hidden = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    with pytest.raises(ValueError, match="data has missing values in feature 1: fill them in"):
        load((hidden, [0, 1]))
    with pytest.raises(ValueError, match="data has rows without a label, which a mask hides"):
        load(([[1.0], [2.0]], np.ma.masked_array([0, 1], mask=[1, 0])))


@pytest.mark.parametrize("kind", [np.array, csr_array])
def test_rows_that_float32_cannot_square_have_norm_1(kind):
    data = load((kind([[1e25, 1e25], [3e-30, 4e-30], [3.0, 4.0]]), [0, 1, 0]))
    np.testing.assert_allclose(
        dense(data), [[0.5**0.5, 0.5**0.5], [0.6, 0.8], [0.6, 0.8]], rtol=1e-6
    )


@pytest.mark.parametrize("kind", [np.array, csr_array])
def test_whole_numbers_that_lose_digits_are_warned_of(kind):
    with pytest.warns(
        UserWarning, match=r"data: feature 1 has whole numbers beyond 2\^53, which lose digits"
    ):
        load((kind([[1, 2**60 + 7 * k] for k in range(5)]), [0, 1, 0, 1, 0]), scale=True)


def test_loaded_arrays_cannot_change_and_other_arrays_have_other_facts():
    data = load((FEATURES, ["no", "yes", "no"]))
    for array in (data.features, data.labels, load((csr_array(FEATURES), [0, 1, 0])).features.data):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    assert replace(data, name="other").facts == data.facts
    assert replace(data, labels=-data.labels).facts != data.facts
    assert (
        replace(data, features=3 * data.features).facts
        == Dataset(3 * data.features, data.labels, "x").facts
    )
    assert data[:2].facts == data.facts | {"kept": data[:2].facts["kept"]}
    own = FEATURES.astype(np.float32)
    made = Dataset(own, [1.0, -1.0, 1.0], "own")
    before = made.facts
    own[:] = 0
    assert made.facts != before, "the arrays of a user stay theirs"
