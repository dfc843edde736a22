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
        for reader in ("read_csv", "read_libsvm", "read_idx", "read_openml", "read_file"):
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


@pytest.mark.parametrize(
    ("text", "target", "features", "labels"),
    [
        ("1,2,0\n3,4,1\n", -1, [[1, 2], [3, 4]], [0, 1]),
        ("a,b,y\n1,2,0\n3,4,1\n", -1, [[1, 2], [3, 4]], [0, 1]),
        ("y,a,b\n0,1,2\n1,3,4\n", "y", [[1, 2], [3, 4]], [0, 1]),
        ("y,a,b\n0,1,2\n1,3,4\n", 0, [[1, 2], [3, 4]], [0, 1]),
        ("0,1,y\n1,2,5\n3,4,6\n", -1, [[1, 2], [3, 4]], [5, 6]),
        ("1,2,cat\n3,4,dog\n", -1, [[1, 2], [3, 4]], ["cat", "dog"]),
        ("a,b,y\n1,2,cat\n3,4,dog\n", -1, [[1, 2], [3, 4]], ["cat", "dog"]),
        ("a,b,y\n1,True,3\n3,False,1\n", -1, [[1, 1], [3, 0]], [3, 1]),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_csv(tmp_path, text, target, features, labels, ending):
    path = tmp_path / f"some{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    data = load(path, target=target, labels="classes", normalise=False)
    assert data.name == path.name
    assert data.features.tolist() == features
    assert [data.classes[k] for k in data.labels] == labels


@pytest.mark.parametrize(
    "text", ["0,1,2\n5,6,0\n7,8,1\n", "3,9,4\n5.5,6.5,0\n7.5,8.5,1\n", "1,2\n3,0\n4,1\n"]
)
def test_csv_whose_first_line_may_be_names(tmp_path, text):
    path = write(tmp_path / "some.csv", text)
    with pytest.raises(
        ValueError, match="which may be names of columns or numbers; say which by header="
    ):
        load(path)
    assert len(load(path, header=True)) == 2
    assert len(load(path, header=False, labels="classes")) == 3


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        (",0,1,2", ["0,0.5,1.5,0", "1,2.5,3.5,1"]),
        (",0,1,2", ["8,5,1,cat", "3,2,3,dog"]),
        (",10,30", ["0,5,0", "1,7,1"]),
    ],
)
def test_csv_whose_names_are_numbers_behind_an_index(tmp_path, head, rows):
    """As pandas writes a frame without names."""
    path = write(tmp_path / "some.csv", "\n".join([head, *rows]))
    with pytest.raises(ValueError, match=r"its first line is \(empty\), .* say which by header="):
        load(path, index=0)
    assert len(load(path, index=0, header=True, labels="classes")) == 2


@pytest.mark.parametrize(
    ("head", "rows", "size"),
    [
        ("0,1,2,label", ["0.5,1.5,2.5,cat", "2.5,3.5,1.5,dog", "1.5,0.5,0.5,cat"], 4),
        (",0,1,label", ["8,1.5,2.5,cat", "3,3.5,1.5,dog", "9,0.5,0.5,cat"], 2),
        ("2018,2019,outcome", ["5,7,cat", "2,3,dog", "1,0,cat"], 3),
        ("30,10,label", ["0.5,2.5,True", "2.5,1.5,True", "1.5,0.5,False"], 3),
        ("9,label", ["0.5,cat", "2.5,dog", "1.5,cat"], 2),
        ("0,1,2", ["5,7,cat", "2,3,dog", "1,0,cat"], 3),
    ],
)
def test_csv_whose_names_are_numbers_beside_texts(tmp_path, head, rows, size):
    path = write(tmp_path / "some.csv", "\n".join([head, *rows]))
    options = {"target": -1, "index": 0 if head[0] == "," else None}
    with pytest.raises(
        ValueError, match=r"its first line is .* which may be names .* say which by header="
    ):
        load(path, **options)
    data = load(path, header=True, **options)
    assert (len(data), data.dimension + 1, len(data.classes)) == (3, size + (head[0] == ","), 2)


@pytest.mark.parametrize(
    "text",
    [
        "1,2,cat\n3,4,dog\n5,6,cat\n",
        "5,3,True\n4.5,3.5,False\n4.5,2.5,true\n",
        "7,9,cat\n5,6,dog\n3,4,dog\n",
    ],
    ids=["the text comes again", "truth values", "numbers that are no names"],
)
def test_csv_whose_first_line_is_a_row_with_a_text(tmp_path, text):
    assert len(load(write(tmp_path / "some.csv", text), labels="classes")) == 3


@pytest.mark.parametrize(
    "texts",
    [
        ["1.1", "1.10", "1.2"],
        ["01", "1", "2"],
        ["1e1", "10", "2"],
        [f"123456789012345678901{k}" for k in "123"],
    ],
)
def test_texts_that_are_one_number_are_several_labels_and_groups(tmp_path, texts):
    lines = "".join(f"{texts[k % 3]},{k}.5,{k % 2}\n" for k in range(9))
    for head, roles in (("g,a,y\n", ("g", "y", "a")), ("", (0, -1, 1))):
        path = write(tmp_path / "some.csv", head + lines)
        for _ in range(2):
            data = load(path, groups=roles[0], target=roles[1])
            assert data.partition(by=str(roles[0])).names == tuple(sorted(texts))
        data = load(path, target=roles[0])
        assert (data.kind, data.classes) == ("classes", tuple(sorted(texts)))
    path = write(tmp_path / "last.csv", "".join(f"{k}.5,{texts[k % 3]}\n" for k in range(9)))
    assert load(path).classes == tuple(sorted(texts))


def test_numbers_stay_numbers(tmp_path):
    rows = [(" 3", "True"), ("4 ", "False"), ("3", "TRUE")]
    path = write(tmp_path / "some.csv", "g,a,y\n" + "".join(f"{g},0.5,{y}\n" for g, y in rows))
    data = load(path, groups="g")
    assert (data.partition(by="g").names, data.classes) == ((3, 4), (False, True))


def test_real_targets_may_be_written_in_several_ways(tmp_path):
    path = write(
        tmp_path / "some.csv", "a,y\n" + "".join(f"{k % 7}.5,{k % 2}.{k}\n" for k in range(10, 130))
    )
    assert load(path).labels[0] == np.float32(0.1)
    few = write(tmp_path / "few.csv", "a,y\n1,0.5\n2,0.50\n3,1.5\n")
    assert load(few, labels="real").labels.tolist() == [0.5, 0.5, 1.5]


def test_a_number_of_one_column_that_is_the_name_of_another_is_refused(tmp_path):
    path = write(tmp_path / "some.csv", ",0,1,2\n0,0.5,8.5,1\n1,2.5,7.5,0\n")
    named = {"header": True, "index": 0, "normalise": False}
    with pytest.raises(
        ValueError, match=r"target=2 is the number of the column called '1' .* target=-2 or -1"
    ):
        load(path, target=2, **named)
    for target, columns in ((-1, ("0", "1")), ("2", ("0", "1")), (-2, ("0", "2")), (3, ("0", "1"))):
        assert load(path, target=target, labels="real", **named).columns == columns
    assert (
        len(load(write(tmp_path / "other.csv", "0,1,2\n5,6,0\n7,8,1\n"), header=True, target=2))
        == 2
    )


def test_csv_of_texts_behind_an_index(tmp_path):
    path = write(tmp_path / "some.csv", ",a,y\nu,cat,no\nv,dog,yes\n")
    data = load(path, index=0, target=2)
    assert (data.columns, data.classes, len(data)) == (("a=cat", "a=dog"), ("no", "yes"), 2)
    with pytest.warns(UserWarning, match="1 missing value "):
        assert len(load(write(tmp_path / "other.csv", ",2.5,0\n7,5.5,1\n"))) == 2


@pytest.mark.parametrize("first", [",a,y", "id,a,y", "0,7,1"])
def test_csv_with_an_index(tmp_path, first):
    lines = [first, *(f"{k},{k % 3},{k % 2}" for k in range(1, 12))]
    path = write(tmp_path / "some.csv", "\n".join(lines))
    with pytest.raises(
        ValueError,
        match=r"the first column of some\.csv (has no name|counts the rows), so it is an index",
    ):
        load(path)
    with pytest.raises(ValueError, match=r"so it is an index"):
        load(write(tmp_path / "some.csv", "\n".join([lines[0], *lines[:0:-1]])))
    path = write(tmp_path / "some.csv", "\n".join([lines[0].replace(",a", "k,a"), *lines[1:9]]))
    assert load(path).dimension == 2, "few rows"


def test_csv_with_an_index_elsewhere_or_a_name_twice(tmp_path):
    lines = ["a,id,y", *(f"{k % 3},{k},{k % 2}" for k in range(1, 12))]
    with pytest.raises(
        ValueError, match=r"column 'id' of some\.csv counts the rows, so it is an index"
    ):
        load(write(tmp_path / "some.csv", "\n".join(lines)))
    with pytest.raises(
        ValueError, match=r"some\.csv has several columns called 'y': rename all but one"
    ):
        load(write(tmp_path / "some.csv", "x,y,y\n1,2,0\n3,4,1"))


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


def test_the_cache_knows_the_target(tmp_path):
    path = write(tmp_path / "some.csv", "y,a,z\n0,5,2\n1,5,4\n")
    assert load(path, labels="classes").classes == (2, 4)
    assert load(path, labels="classes", target=0).classes == (0, 1)


def test_missing_values_become_zero_with_a_warning(tmp_path):
    path = write(tmp_path / "some.csv", "1,,0\n3,4,1\n")
    for _ in range(2):
        with pytest.warns(
            UserWarning,
            match=r"some\.csv: 1 missing value \(25\.0%\) is read as 0, in feature 1; if 0 is far",
        ) as caught:
            assert load(path, normalise=False).features.tolist() == [[1, 0], [3, 4]]
        assert caught[0].filename == __file__


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


CSV, SVM = "1,2,0\n3,4,1\n", "1 1:1\n-1 2:1\n"
BAD_FILES = [
    (
        "some.csv",
        "a,city,y\n1,Paris,0\n2,Rome,1\n",
        {},
        "column 'city' of some.csv holds 'Paris': name the column of labels by target=",
    ),
    ("some.csv", "a,b,y\n1,2,0\n2,x,1\n", {}, "column 'b' of some.csv holds 'x'"),
    ("some.csv", "1,2,0\n2,x,1\n", {}, "column 1 of some.csv holds 'x'"),
    ("some.csv", "1\n2\n", {}, "some.csv has 2 rows of 1 columns: give features and labels"),
    ("some.csv", "", {}, "as comma-separated text"),
    ("some.csv", "1,2\n3,4,5\n", {}, "as comma-separated text"),
    ("some.csv", "a,y\n", {}, "some.csv has 0 rows of 2 columns"),
    ("some.csv", "a,y\n1,\n2,1\n", {}, "some.csv has rows without a label"),
    ("some.csv", "1,inf,1\n1,2,0\n", {"normalise": False}, "holds infinite or missing values"),
    (
        "some.csv",
        CSV,
        {"target": "z"},
        "target='z' is no column of some.csv: its columns are 0, 1, 2",
    ),
    ("some.csv", CSV, {"target": 3}, "target=3 is not one of the 3 columns"),
    (
        "some.csv",
        "1,2,0.5\n3,4,1.5\n",
        {"labels": "classes"},
        "has labels such as 0.5: classes are whole numbers",
    ),
    (
        "some.csv",
        "1,2,0\n3,4,1\n5,6,2\n",
        {"labels": "binary"},
        "has 3 classes (0, 1, 2), and binary labels need two",
    ),
    (
        "some.csv",
        "1,2,0\n3,4,0\n",
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
    ("some.svm", SVM, {"target": 0}, "target=0 is about columns, and some.svm is not a .csv file"),
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
    dense = load(
        write(tmp_path / "some.csv", "5,0,7,0\n9,4,7,1\n7,0,7,0\n"), scale=True, normalise=False
    )
    text = "0 1:5 3:7\n1 1:9 2:4 3:7\n0 1:7 3:7\n"
    sparse = load(write(tmp_path / "some.svm", text), scale=True, normalise=False)
    assert dense.features.tolist() == [[0, 0, 0], [1, 1, 0], [0.5, 0, 0]]
    assert sparse.features.toarray().tolist() == dense.features.tolist()


def test_scale_looks_at_the_whole_set(tmp_path):
    path = write(tmp_path / "some.csv", "0,0\n10,1\n5,0\n")
    values = {
        load(path, scale=True, normalise=False, rows=1, seed=seed).features.item()
        for seed in range(20)
    }
    assert values == {0.0, 0.5, 1.0}


@pytest.mark.parametrize("name", ["some.csv", "some.svm"])
def test_rows_are_normalised_and_zero_rows_stay(tmp_path, name):
    text = "3,4,0\n0,0,1\n" if name.endswith("csv") else "0 1:3 2:4\n1\n"
    features = load(write(tmp_path / name, text)).features
    dense = features if isinstance(features, np.ndarray) else features.toarray()
    np.testing.assert_allclose(dense, [[0.6, 0.8], [0, 0]], rtol=1e-6)


# The cache.


def test_parsed_once_and_again_when_the_file_changes(tmp_path, no_parsing, cache_folder):
    path = write(tmp_path / "some.csv", CSV)
    first = load(path)
    assert [file.suffix for file in cache_folder.iterdir()] == [".npz"]
    no_parsing()
    again = load(path)
    assert np.array_equal(first.features, again.features)
    assert np.array_equal(first.labels, again.labels)
    write(path, "1,2,0\n3,4,1\n5,6,1\n")
    with pytest.raises(AssertionError, match="parsed again"):
        load(path)


def test_another_file_of_the_same_size_and_time_is_parsed_again(tmp_path):
    path, other = (
        write(tmp_path / "some.csv", "7,2,0\n3,4,1\n"),
        write(tmp_path / "other.csv", "9,2,0\n3,4,1\n"),
    )
    assert load(path, normalise=False).features[0, 0] == 7
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.copy2(other, path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load(path, normalise=False).features[0, 0] == 9


def test_the_cache_is_for_one_version_of_the_parser(tmp_path, monkeypatch, no_parsing):
    path = write(tmp_path / "some.csv", CSV)
    load(path)
    no_parsing()
    monkeypatch.setattr(cache, "PARSER_VERSION", cache.PARSER_VERSION + 1)
    with pytest.raises(AssertionError, match="parsed again"):
        load(path)


@pytest.mark.parametrize("name", ["some.csv", "some.svm"])
@pytest.mark.parametrize("damage", ["empty", "text", "half", "flipped"])
def test_a_damaged_cache_is_rebuilt(tmp_path, cache_folder, name, damage, no_parsing):
    path = write(tmp_path / name, CSV if name.endswith("csv") else SVM)
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
    assert len(load(write(tmp_path / "some.csv", CSV))) == 2


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, cache_folder):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(load(write(tmp_path / "some.csv", CSV))) == 2
    assert list(cache_folder.iterdir()) == []


def test_the_cache_is_the_users_unless_moved(monkeypatch):
    monkeypatch.delenv("PEERDESCENT_CACHE")
    assert cache.cache_folder().name == "peerdescent"


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("header", ["age{}dose{}ill\n", ""])
def test_semicolons_and_tabs_separate_too(tmp_path, separator, header):
    text = header.format(*separator * 2) + "".join(
        f"{age};0.5;{'yes' if age > 50 else 'no'}\n" for age in (61, 47, 52)
    )
    data = load(write(tmp_path / "some.csv", text.replace(";", separator)), normalise=False)
    assert data.features.tolist() == [[61, 0.5], [47, 0.5], [52, 0.5]]
    assert data.classes == ("no", "yes")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"age;dose;ill\n61;1,5;yes\n47;2;no\n",
            "'dose' of some.csv holds numbers with a comma, such as '1,5': read",
        ),
        (
            b"age,city,ill\n61,Z\xfcrich,yes\n",
            "can't decode byte 0xfc .*; save it as UTF-8, or read it by pandas",
        ),
    ],
)
def test_other_ways_to_write_a_table_say_the_remedy(tmp_path, content, message):
    path = tmp_path / "some.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(path, target="ill")


def test_semicolons_with_decimal_commas_are_no_texts(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("2,1;0,5;1\n3,5;1,5;0\n2,5;1,0;1\n")
    with pytest.raises(
        ValueError, match=r"x.csv.* its separator may be , or ;: read it by pandas.read_csv"
    ):
        load(path, target=-1)
    path.write_text("a;b;y\n2,1;0,5;1\n3,5;1,5;0\n")
    with pytest.raises(ValueError, match="numbers with a comma"):
        load(path, target="y")
