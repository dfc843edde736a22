"""Named sets, where their files are found, and what becomes of labels, rows and columns."""

import bz2
import dataclasses
import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from scipy.sparse import csr_array, csr_matrix

import children
import peerdescent.errors
from peerdescent.datasets import SETS, formats, load

DATA = os.environ.get("PEERDESCENT_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="PEERDESCENT_DATA is not set: no files of the named sets here"
)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real(monkeypatch, cache_folder, shared_cache, room):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(shared_cache))
    monkeypatch.setenv("PEERDESCENT_DATA", DATA)


@pytest.fixture
def offline(monkeypatch):
    def fetch(**_):
        raise URLError("no network")

    monkeypatch.setattr("peerdescent.datasets.formats.fetch_openml", fetch)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def small_a9a(folder, monkeypatch, value=1):
    """The two files of a9a with two rows and one, and the registry told so."""
    monkeypatch.setitem(SETS, "a9a", dataclasses.replace(SETS["a9a"], shape=(3, 123)))
    write(folder / "a9a", f"-1 3:{value}\n+1 123:{value}\n")
    write(folder / "a9a.t", f"-1 1:{value} 2:{value}\n")


def norms(data):
    return np.sqrt(np.asarray((data.features**2).sum(axis=1))).ravel()


# The real files, against the counts of their sources.


@needs_data
@pytest.mark.usefixtures("real")
def test_a9a():
    data = load("a9a", normalise=False)
    assert (len(data), data.dimension) == (48_842, 123)
    assert isinstance(data.features, csr_array)
    assert data.features[:32_561].nnz == 451_592
    assert set(data.features.data.tolist()) == {1.0}
    train, test = data.labels[:32_561], data.labels[32_561:]
    assert [(train == s).sum() for s in (1, -1)] == [7_841, 24_720]
    assert [(test == s).sum() for s in (1, -1)] == [3_846, 12_435]
    assert data.features[:, [122]].nnz > 0
    assert data.features[32_561:, [122]].nnz == 0
    assert data.partition(20).sizes.sum() == 48_840


@needs_data
def test_a9a_test_part_shows_122_columns_on_its_own():
    path = next(Path(DATA).rglob("a9a.t*"))
    assert load(path).dimension == 122
    assert formats.read_libsvm([path], features=123)[0].shape == (16_281, 123)


def test_names_may_be_written_in_capitals():
    assert load("Digits").name == "digits"


@needs_data
@pytest.mark.usefixtures("real")
def test_covertype():
    data = load("covertype", normalise=False, scale=False, labels="classes")
    assert (len(data), data.dimension) == (581_012, 54)
    classes, counts = np.unique(data.labels, return_counts=True)
    assert classes.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert data.classes == (1, 2, 3, 4, 5, 6, 7)
    assert counts.tolist() == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    elevation = data.features[:, 0]
    assert elevation.mean(dtype=float) == pytest.approx(2959.3653, abs=1e-4)
    assert (elevation.min(), elevation.max()) == (1859, 3858)
    assert (data.features[:, 10:14].sum(axis=1) == 1).all()
    assert (data.features[:, 14:].sum(axis=1) == 1).all()
    del data, elevation  # each has hundreds of megabytes

    scaled = load("covertype", normalise=False)
    assert scaled.features.min(axis=0).tolist() == [0.0] * 54
    assert scaled.features.max(axis=0).tolist() == [1.0] * 54
    assert [(scaled.labels == s).sum() for s in (1, -1)] == [283_301, 297_711]
    del scaled

    subset = load("covertype", rows=100_000)
    assert np.mean(subset.labels == 1) == pytest.approx(0.488, abs=0.005)
    np.testing.assert_allclose(norms(subset), 1, atol=1e-6)


@needs_data
@pytest.mark.usefixtures("real")
def test_mnist():
    data = load("mnist", labels="classes", normalise=False)
    assert (len(data), data.dimension) == (70_000, 784)
    counts = np.bincount(data.labels[:60_000])
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert (data.features.min(), data.features.max()) == (0, 1)
    binary = load("mnist")
    assert np.array_equal(binary.labels == 1, data.labels % 2 == 1)
    np.testing.assert_allclose(norms(binary), 1, atol=1e-5)


def test_digits():
    data = load("digits", normalise=False)
    bunch = sklearn.datasets.load_digits()
    np.testing.assert_allclose(data.features, bunch.data / 16)
    assert np.array_equal(data.labels == 1, bunch.target % 2 == 1)
    assert np.array_equal(load("digits", labels="classes").labels, bunch.target)


def test_every_set_says_what_it_is():
    for name, each in SETS.items():
        assert name == each.name
        assert len(each.description) > 20
        assert any(char.isdigit() for char in each.citation)
        assert each.openml or (each.form == "embedded" and not each.files)


# OpenML, played by a stand-in.


def openml(monkeypatch, data, target):
    asked = []

    def fetch(**kwargs):
        asked.append(kwargs)
        return SimpleNamespace(data=data, target=target)

    monkeypatch.setattr("peerdescent.datasets.formats.fetch_openml", fetch)
    return asked


def test_kdd98_codes_categories_and_counts_missing_values(monkeypatch):
    frame = pd.DataFrame(
        {
            "age": [60.0, np.nan, 20.0],
            "gifts": [1, 2, 3],
            "state": pd.Categorical(["NY", None, "CA"], categories=["CA", "NY"]),
            "flag": pd.Categorical(["1", "0", "1"]),
            "text": ["b", "a", "b"],
            "seen": [True, False, True],
        }
    )
    asked = openml(monkeypatch, frame, pd.Series(["0", "1", "0"], dtype="category"))
    with pytest.warns(UserWarning, match=r"kdd98: 2 missing values \(11\.1%\) are read as 0"):
        data = load("kdd98", normalise=False, scale=False)
    assert asked[0]["data_id"] == 23513
    assert data.features.tolist() == [[60, 1, 2, 1, 2, 1], [0, 2, 0, 0, 1, 0], [20, 3, 1, 1, 2, 1]]
    assert data.labels.tolist() == [-1, 1, -1]

    with pytest.warns(UserWarning, match="2 missing values"):
        scaled = load("kdd98", normalise=False)
    assert len(asked) == 1
    assert (scaled.features.min(), scaled.features.max()) == (0, 1)


def test_miniboone_signal_is_positive(monkeypatch):
    asked = openml(
        monkeypatch,
        pd.DataFrame({"a": [1.0, 2.0], "b": [-999.0, 0.5]}),
        pd.Series(["True", "False"]),
    )
    data = load("miniboone")
    assert asked[0]["data_id"] == 41150
    assert data.labels.tolist() == [1, -1]
    assert load("miniboone", labels="classes").labels.tolist() == [1, 0]


def test_a9a_from_openml_is_sparse_and_cached(monkeypatch):
    asked = openml(monkeypatch, csr_matrix(np.eye(3)), np.array(["-1", "1", "-1"], dtype=object))
    data = load("a9a")
    assert asked[0]["data_id"] == 1430
    again = load("a9a")
    assert len(asked) == 1
    for each in (data, again):
        assert isinstance(each.features, csr_array)
        assert each.features.toarray().tolist() == np.eye(3).tolist()
        assert each.labels.tolist() == [-1, 1, -1]


def test_covertype_from_openml_is_the_seven_classes(monkeypatch):
    asked = openml(
        monkeypatch, pd.DataFrame({"Elevation": [1, 2, 3]}), pd.Categorical(["2", "7", "2"])
    )
    assert load("covertype").labels.tolist() == [1, -1, 1]
    assert asked[0]["data_id"] == 1596


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "a9a",
            [
                "no files a9a, a9a.t (plain, .gz or .bz2) in ",
                "cache",
                "data 1430",
                "no network",
                "data_dir=",
            ],
        ),
        ("kdd98", ["no cached copy", "data 23513", "load it by its path"]),
    ],
)
def test_without_network_one_line_says_where_it_looked(name, parts, tmp_path):
    with pytest.raises(ValueError, match=f"cannot get {name}") as caught:
        load(name, data_dir=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert all(part in str(caught.value) for part in parts)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_what_openml_refuses_is_told(monkeypatch):
    def fetch(**_):
        raise ValueError("data set is deactivated")

    monkeypatch.setattr("peerdescent.datasets.formats.fetch_openml", fetch)
    with pytest.raises(
        ValueError, match=r"OpenML did not give data 41150 \(ValueError: data set is deactivated\)"
    ):
        load("miniboone")


# Where files are found.


@pytest.mark.usefixtures("offline")
def test_search_order(tmp_path, monkeypatch, cache_folder):
    places = [tmp_path / "given", tmp_path / "environment", cache_folder]
    for value, place in enumerate(places, start=1):
        small_a9a(place / "a9a" if value == 2 else place, monkeypatch, value=value)
    monkeypatch.setenv("PEERDESCENT_DATA", str(places[1]))

    def value(**kwargs):
        return load("a9a", normalise=False, **kwargs).features.max()

    assert value(data_dir=places[0]) == 1
    assert value() == 2
    monkeypatch.delenv("PEERDESCENT_DATA")
    assert value() == 3
    assert value(data_dir=tmp_path) == 3


def test_a_name_is_not_a_path(tmp_path, monkeypatch):
    small_a9a(tmp_path / "data", monkeypatch)
    write(tmp_path / "a9a", "1 1:1\n-1 2:1\n")
    monkeypatch.chdir(tmp_path)
    assert len(load("a9a", data_dir="data")) == 3
    assert len(load("./a9a")) == len(load(Path("a9a"))) == 2


def test_paths_are_looked_for_in_the_folders_too(tmp_path, monkeypatch):
    write(tmp_path / "mine" / "some.svm", "1 1:1\n-1 1:2\n")
    monkeypatch.setenv("PEERDESCENT_DATA", str(tmp_path))
    assert len(load("mine/some.svm")) == 2


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_compressed_parts(tmp_path, monkeypatch, pack):
    small_a9a(tmp_path, monkeypatch)
    ending = ".gz" if pack is gzip.compress else ".bz2"
    for name in ("a9a", "a9a.t"):
        (tmp_path / (name + ending)).write_bytes(pack((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    data = load("a9a", data_dir=tmp_path)
    assert data.features.nonzero()[1].tolist() == [2, 122, 0, 1]
    assert data.labels.tolist() == [-1, 1, -1]
    np.testing.assert_allclose(norms(data), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["a9a", "a9a.t"])
def test_half_a_set_is_an_error(tmp_path, monkeypatch, name):
    small_a9a(tmp_path, monkeypatch)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"but not {name} .*add the missing"):
        load("a9a", data_dir=tmp_path)


def test_a_set_of_the_wrong_shape_is_an_error(tmp_path, monkeypatch):
    small_a9a(tmp_path, monkeypatch)
    write(tmp_path / "a9a.t", "-1 1:1\n1 1:1\n")
    with pytest.raises(
        ValueError, match=r"shape \(4, 123\) with 4 labels, and should have \(3, 123\): download"
    ):
        load("a9a", data_dir=tmp_path)
    monkeypatch.setitem(SETS, "covertype", dataclasses.replace(SETS["covertype"], shape=(2, 54)))
    write(tmp_path / "covtype.csv", "1,2,1\n3,4,2\n")
    with pytest.raises(
        ValueError, match=r"shape \(2, 2\) with 2 labels, and should have \(2, 54\): download"
    ):
        load("covertype", data_dir=tmp_path)
    write(tmp_path / "a9a.t", "-1 124:1\n")
    with pytest.raises(
        ValueError,
        match=r"a9a as found in .* has shape \(3, 124\) with 3 labels, and should have \(3, 123\)",
    ):
        load("a9a", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a9", {}, "unknown data set 'a9': did you mean 'a9a'? Known: a9a, "),
        ("some.csv", {}, "no file some.csv, looked for in "),
        ("./a9a", {}, "give its whole path, or a named set: digits, a9a"),
        (".", {}, "no file ., looked for"),
        (
            "digits",
            {"target": "y"},
            "target='y' is for tables, such as .csv files, and digits is none",
        ),
        ("digits", {"positive": 11}, "of the classes of digits: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
    ],
)
def test_bad_name(tmp_path, monkeypatch, name, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(name, **options)
    assert message in str(caught.value)


# Labels, scaling, rows.


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"positive": 2}, [-1, 1, -1, 1]),
        ({"positive": [1, 3]}, [1, -1, 1, -1]),
        ({"positive": 3.0}, [-1, -1, 1, -1]),
        ({"labels": "classes"}, [0, 1, 2, 1]),
        ({}, [0, 1, 2, 1]),
        ({"labels": "real"}, [1, 2, 3, 2]),
    ],
)
def test_label_mapping(options, labels):
    data = load(([[1]] * 4, [1, 2, 3, 2]), **options)
    kind = "binary" if "positive" in options else options.get("labels", "classes")
    assert data.labels.tolist() == labels
    assert data.kind == kind
    assert data.labels.dtype == (np.int64 if kind == "classes" else np.float32)


def test_two_classes_and_text(tmp_path):
    texts = ([[1], [1]], ["signal", "background"])
    assert load(texts).labels.tolist() == [1, -1]
    assert load(texts, positive="background").labels.tolist() == [-1, 1]
    assert load(write(tmp_path / "flipped", "1 1:1\n0 1:1\n")).labels.tolist() == [1, -1]


def test_positive_beats_the_set():
    assert np.array_equal(
        load("digits", positive=0).labels == 1, load("digits", labels="classes").labels == 0
    )


def test_rows_are_a_seeded_sample_of_the_whole():
    whole = load("digits")
    some, again, other = (load("digits", rows=100, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(some.features, again.features)
    assert not np.array_equal(some.features, other.features)
    assert {tuple(row) for row in some.features} <= {tuple(row) for row in whole.features}
    order = np.random.default_rng(0).permutation(1797)[:100]
    assert np.array_equal(some.labels, whole.labels[order])
    assert np.array_equal(some.features, whole.features[order])


def test_looking_imports_nothing_heavy():
    # The package's own __init__ is left out: this is about the room, not the house.
    folder = Path(peerdescent.errors.__file__).parent
    program = f"""
import sys, types
house = types.ModuleType("peerdescent")
house.__path__ = [{str(folder)!r}]
sys.modules["peerdescent"] = house
import peerdescent.datasets
print([name for name in ("jax", "pandas", "platformdirs", "scipy", "sklearn") if name in sys.modules])
"""
    done = children.python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
