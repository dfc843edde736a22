"""Files of every format, valid and invalid, the scaling of columns and rows, and the cache of parsed data."""

import bz2
import dataclasses
import gzip
import io
import os
import re
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest

from peerdescent.datasets import SETS, cache, formats, load


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def no_parsing(monkeypatch):
    """A function that makes every reader fail, so that only cached data can be loaded."""

    def forbid(*_, **__):
        raise AssertionError("parsed again")

    def arm():
        for reader in ("read_libsvm", "read_idx", "read_openml"):
            monkeypatch.setattr(formats, reader, forbid)

    return arm


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def idx(array):
    return (
        b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    )


def test_idx(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "mnist", dataclasses.replace(SETS["mnist"], shape=(3, 4)))
    images, labels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.array([4, 9, 1], np.uint8)
    parts = [images[:2], labels[:2], images[2:], labels[2:]]
    for name, part in zip(SETS["mnist"].files, parts, strict=True):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(part)))
    data = load("mnist", data_dir=tmp_path, normalise=False)
    np.testing.assert_allclose(data.features * 255, images.reshape(3, 4), rtol=1e-6)
    assert data.labels.tolist() == [-1, 1, 1]
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"not an image")
    with pytest.raises(
        ValueError, match="train-images-idx3-ubyte as an IDX file: it does not start with the mark"
    ):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_csv_is_what_pandas_reads(tmp_path, ending):
    path = tmp_path / f"some{ending}"
    frame = pd.DataFrame({"a": [1, 3], "b": [True, False], "y": ["cat", "dog"], "g": ["u", "v"]})
    frame.to_csv(path, index=False)
    data = load(path, target="y", groups="g", normalise=False)
    same = load(pd.read_csv(path), target="y", groups="g", normalise=False)
    assert data.name == path.name
    assert data.columns == same.columns == ("a", "b")
    assert data.features.tolist() == same.features.tolist() == [[1, 1], [3, 0]]
    assert (data.classes, data.facts) == (("cat", "dog"), same.facts)
    assert data.partition(by="g").names == ("u", "v")


@pytest.mark.parametrize("name", ["some.csv.gz", "some.svm.bz2", "some.csv"])
def test_what_does_not_fit_into_memory_is_refused_before_it_is_parsed(tmp_path, name, monkeypatch):
    monkeypatch.setattr("peerdescent.errors.memory", lambda: 1e6)
    text = ("1,2,0\n3,4,1\n" if ".csv" in name else "1 1:1\n0 2:1\n").encode() * 10_000
    path = tmp_path / name
    path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text))
    with pytest.raises(
        ValueError, match=r"what it has would take about .* GiB, and there are 0\.0 GiB of memory"
    ):
        load(path)


def claiming(shape, kind="<f8"):
    """The start of an array in NumPy's format that claims a shape, and not the rest."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue() + bytes(64)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (claiming((2_000_000_000, 1000)), "is not all there"),
        (claiming((2, 4)), "it holds (2,) rows of features and (8,) labels"),
        (claiming((1, 8), "|O"), "holds Python objects, which would run code"),
        (b"hello there", "the magic string is not correct"),
        (b"", "as a NumPy archive"),
    ],
)
def test_npz_that_lies(tmp_path, member, message):
    path = tmp_path / "some.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", member)
        archive.writestr("labels.npy", claiming((8,)))
    with pytest.raises(ValueError, match="cannot read") as caught:
        load(path)
    assert message in str(caught.value)


def test_npz_with_an_unknown_compression(tmp_path):
    path = tmp_path / "some.npz"
    np.savez_compressed(path, features=np.eye(2), labels=np.ones(2))
    raw = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        for place in re.finditer(re.escape(mark), bytes(raw)):
            raw[place.start() + offset] = 77
    path.write_bytes(raw)
    with pytest.raises(
        ValueError, match="as a NumPy archive: That compression method is not supported"
    ):
        load(path)


def test_missing_values_are_refused(tmp_path):
    message = r"missing values in {}: fill them in, as by frame.fillna.* frame.dropna"
    with pytest.raises(ValueError, match=r"some\.csv has " + message.format("b")):
        load(write(tmp_path / "some.csv", "a,b,y\n1,,0\n3,4,1\n"), target="y")
    with pytest.raises(ValueError, match=r"some\.svm has " + message.format("feature 1")):
        load(write(tmp_path / "some.svm", "1 1:1 2:nan\n-1 2:1\n"))


def test_npz(tmp_path, cache_folder):
    path = tmp_path / "some.npz"
    np.savez(path, features=np.eye(2) * 5, labels=np.array([3, 8]))
    data = load(path)
    assert data.features.tolist() == [[1, 0], [0, 1]]
    assert data.labels.tolist() == [-1, 1]
    assert not cache_folder.exists()


def test_half_an_npz(tmp_path):
    path = tmp_path / "some.npz"
    np.savez(path, features=np.eye(2), labels=np.ones(2))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(
        ValueError, match=r"cannot read .*some\.npz as a NumPy archive: File is not a zip file"
    ):
        load(path)


def test_libsvm_counts_from_zero_or_one(tmp_path):
    assert load(write(tmp_path / "zero", "1 0:1\n-1 2:1\n")).dimension == 3
    assert load(write(tmp_path / "one", "1 1:1\n-1 3:1\n")).dimension == 3


CSV, SVM = "a,b,y\n1,2,0\n3,4,1\n", "1 1:1\n-1 2:1\n"
BAD_FILES = [
    (
        "some.csv",
        "a,city,y\n1,Paris,0\n2,Rome,1\n",
        {},
        "column 'city' of some.csv holds 'Paris', which is no number: turn texts into columns of "
        "numbers, as by pandas.get_dummies(frame, columns=['city']), or leave it out",
    ),
    ("some.csv", "a,b,y\n1,2,0\n2,x,1\n", {}, "column 'b' of some.csv holds '2', which"),
    ("some.csv", "y\n1\n2\n", {}, "some.csv has 2 rows of 1 columns: give features and labels"),
    ("some.csv", "", {}, "as comma-separated text"),
    ("some.csv", "a,y\n1,2\n3,4,5\n", {}, "with its options, and load the frame"),
    ("some.csv", "a,y\n", {}, "some.csv has 0 rows of 2 columns"),
    ("some.csv", ",a,y\n0,6,0\n1,8,1\n", {}, "the first column of some.csv has no name, as an"),
    ("some.csv", "a,y\n1,\n2,1\n", {}, "some.csv has rows without a label"),
    ("some.csv", "a,b,y\n1,inf,1\n1,2,0\n", {"normalise": False}, "holds infinite or missing"),
    ("some.csv", CSV, {"target": None}, "say which column of some.csv has the labels by target="),
    ("some.csv", CSV, {"target": "z"}, "target='z' is no column of some.csv: its columns are a, b"),
    (
        "some.csv",
        "a;b;y\n1;2;0\n",
        {},
        "target='y' is no column of some.csv: its columns are a;b;y",
    ),
    (
        "some.csv",
        "a,b,y\n1,2,0.5\n3,4,1.5\n",
        {"labels": "classes"},
        "has labels such as 0.5: classes are whole numbers",
    ),
    (
        "some.csv",
        "a,b,y\n1,2,0\n3,4,1\n5,6,2\n",
        {"labels": "binary"},
        "has 3 classes (0, 1, 2), and binary labels need two",
    ),
    (
        "some.csv",
        "a,b,y\n1,2,0\n3,4,0\n",
        {"labels": "binary"},
        "has 1 classes (0), and binary labels need two",
    ),
    (
        "some.csv",
        CSV,
        {"positive": 5},
        "positive=5 must be some, but not all, of the classes of some.csv: 0, 1",
    ),
    ("some.csv", CSV, {"positive": [0, 1]}, "positive=[0, 1] must be some, but not all"),
    ("some.csv", CSV, {"positive": []}, "positive=[] must be some"),
    (
        "some.csv",
        CSV,
        {"positive": 1, "labels": "classes"},
        "positive=1 has no meaning with labels='classes'",
    ),
    ("some.csv", CSV, {"labels": "binry"}, "unknown labels 'binry': did you mean 'binary'"),
    ("some.csv", CSV, {"rows": 3}, "rows=3 is more than the 2 rows of some.csv"),
    ("some.csv", CSV, {"rows": 0}, "rows = 0: must be a whole number of at least 1"),
    ("some.csv", CSV, {"rows": 1.5}, "rows = 1.5: must be a whole number"),
    ("some.csv", CSV, {"seed": "x"}, "seed = 'x': must be a whole number of at least 0"),
    ("some.csv", CSV, {"data_dir": "nowhere"}, "data_dir='nowhere' is not a folder"),
    ("some.csv.gz", CSV, {}, "as comma-separated text"),
    ("some.svm", SVM, {"target": "y"}, "target='y' is for tables, such as .csv files, and "),
    (
        "some.svm",
        "1 1:-1\n-1 2:1\n",
        {"scale": True},
        "some.svm is sparse, and scale=True would fill column 0, whose smallest value is -1",
    ),
    ("some.data", CSV, {}, "as LIBSVM text"),
    ("some", "", {}, "give at least one row and one feature"),
    ("some.svm.gz", SVM, {}, "as LIBSVM text"),
    ("some.npz", "", {}, "as a NumPy archive"),
    ("some.npz", "text", {}, "as a NumPy archive"),
]


@pytest.mark.parametrize(("name", "text", "options", "message"), BAD_FILES)
def test_bad_file(tmp_path, name, text, options, message):
    path = write(tmp_path / name, text)
    options = {"target": "y"} | options if ".csv" in name else options
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(path, **options)
    assert message in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.eye(2)}, "some.npz as a NumPy archive: it holds x: save features and labels"),
        ({"features": np.eye(2), "labels": np.ones(3)}, "one label per row"),
        ({"features": np.ones(2), "labels": np.ones(2)}, "give numbers (N, p)"),
        ({"features": np.array([["a"], ["b"]]), "labels": np.ones(2)}, "give numbers (N, p)"),
        ({"features": np.array([[None]]), "labels": np.ones(1)}, "cannot read"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "some.npz", **arrays)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(tmp_path / "some.npz", rows=1)
    assert message in str(caught.value)


def test_scale_dense_and_sparse_agree(tmp_path):
    rows = [[5, 0, 7], [9, 4, 7], [7, 0, 7]]
    dense = load((rows, [0, 1, 0]), scale=True, normalise=False)
    text = "0 1:5 3:7\n1 1:9 2:4 3:7\n0 1:7 3:7\n"
    sparse = load(write(tmp_path / "some.svm", text), scale=True, normalise=False)
    assert dense.features.tolist() == [[0, 0, 0], [1, 1, 0], [0.5, 0, 0]]
    assert sparse.features.toarray().tolist() == dense.features.tolist()


def test_scale_looks_at_the_whole_set():
    source = ([[0], [10], [5]], [0, 1, 0])
    values = {
        load(source, scale=True, normalise=False, rows=1, seed=seed).features.item()
        for seed in range(20)
    }
    assert values == {0.0, 0.5, 1.0}


def test_rows_are_normalised_and_zero_rows_stay(tmp_path):
    file = write(tmp_path / "some.svm", "0 1:3 2:4\n1\n")
    for source in (([[3, 4], [0, 0]], [0, 1]), file):
        features = load(source).features
        dense = features if isinstance(features, np.ndarray) else features.toarray()
        np.testing.assert_allclose(dense, [[0.6, 0.8], [0, 0]], rtol=1e-6)


# The cache.


def test_parsed_once_and_again_when_the_file_changes(tmp_path, no_parsing, cache_folder):
    path = write(tmp_path / "some.svm", SVM)
    first = load(path)
    assert [file.suffix for file in cache_folder.iterdir()] == [".npz"]
    no_parsing()
    again = load(path)
    assert (first.features != again.features).sum() == 0
    assert np.array_equal(first.labels, again.labels)
    write(path, SVM + "1 1:2\n")
    with pytest.raises(AssertionError, match="parsed again"):
        load(path)


def test_another_file_of_the_same_size_and_time_is_parsed_again(tmp_path):
    path, other = (
        write(tmp_path / "some.svm", "1 1:7\n"),
        write(tmp_path / "other.svm", "1 1:9\n"),
    )
    assert load(path, normalise=False).features[0, 0] == 7
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.copy2(other, path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load(path, normalise=False).features[0, 0] == 9


def test_the_cache_is_for_one_version_of_the_parser(tmp_path, monkeypatch, no_parsing):
    path = write(tmp_path / "some.svm", SVM)
    load(path)
    no_parsing()
    monkeypatch.setattr(cache, "PARSER_VERSION", cache.PARSER_VERSION + 1)
    with pytest.raises(AssertionError, match="parsed again"):
        load(path)


@pytest.mark.parametrize("damage", ["empty", "text", "half", "flipped"])
def test_a_damaged_cache_is_rebuilt(tmp_path, cache_folder, damage, no_parsing):
    path = write(tmp_path / "some.svm", SVM)
    first = load(path)
    (file,) = cache_folder.iterdir()
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 255
    file.write_bytes(
        {"empty": b"", "text": b"hello", "half": good[: len(good) // 2], "flipped": bytes(flipped)}[
            damage
        ]
    )
    assert (load(path).features != first.features).sum() == 0
    no_parsing()
    assert (load(path).features != first.features).sum() == 0


def test_without_a_cache_it_just_loads(tmp_path, monkeypatch):
    blocked = write(tmp_path / "blocked", "a file, where the folder should be")
    monkeypatch.setenv("PEERDESCENT_CACHE", str(blocked))
    assert len(load(write(tmp_path / "some.svm", SVM))) == 2


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, cache_folder):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(load(write(tmp_path / "some.svm", SVM))) == 2
    assert list(cache_folder.iterdir()) == []


def test_the_cache_is_the_users_unless_moved(monkeypatch):
    monkeypatch.delenv("PEERDESCENT_CACHE")
    assert cache.cache_folder().name == "peerdescent"
