"""`Dataset`, its partitions (what every division of rows over nodes must satisfy), and synthetic sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from peerdescent.datasets import Dataset, Partition, synthetic


def make(labels):
    labels = np.asarray(labels)
    features = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    return Dataset(features, labels, "made")


DATA = make([1.0, -1.0] * 5)
STRATEGIES = ["uniform", "label", "shards", "classes", "dirichlet", "quantity"]
cases = st.lists(st.integers(0, 3), min_size=1, max_size=60).flatmap(
    lambda labels: st.tuples(st.just(labels), st.integers(1, len(labels)), st.integers(0, 2**32))
)
concentrations = st.floats(1e-6, 1e6)


@given(cases, st.sampled_from(["uniform", "label"]))
def test_equal_pieces_are_disjoint_and_leave_out_fewer_rows_than_nodes(case, by):
    labels, nodes, seed = case
    part = make(labels).partition(nodes, by=by, seed=seed)
    rows = np.concatenate(part.indices)
    assert part.nodes == len(part.indices) == nodes
    assert part.sizes.tolist() == [len(labels) // nodes] * nodes
    assert len(set(rows.tolist())) == len(rows) > len(labels) - nodes


@given(cases, concentrations, st.sampled_from(["dirichlet", "quantity"]))
def test_dirichlet_uses_every_row_once_and_leaves_no_node_empty(case, concentration, by):
    labels, nodes, seed = case
    part = make(labels).partition(nodes, by=by, concentration=concentration, seed=seed)
    assert sorted(np.concatenate(part.indices).tolist()) == list(range(len(labels)))
    assert part.nodes == nodes
    assert part.sizes.min() >= 1


@pytest.mark.parametrize("by", STRATEGIES)
def test_the_seed_decides(by):
    data = make([0, 1, 2] * 100)
    first, again, other = (data.partition(4, by=by, seed=seed).indices for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 5), min_size=48, max_size=99),
)
def test_shards_are_runs_of_the_sorted_rows(nodes, each, seed, labels):
    data = make(labels)
    part = data.partition(nodes, by="shards", each=each, seed=seed)
    size = len(labels) // (nodes * each)
    shards = np.concatenate(part.indices).reshape(nodes * each, size)
    rows = shards.ravel().tolist()
    assert part.sizes.tolist() == [each * size] * nodes
    assert len(set(rows)) == len(rows) > len(labels) - nodes * each
    order = sorted(
        range(nodes * each),
        key=lambda k: (data.labels[shards[k]].min(), data.labels[shards[k]].max()),
    )
    assert (np.diff(data.labels[shards[order].ravel()]) >= 0).all(), (
        "in some order the shards are all rows, sorted"
    )


def test_two_shards_give_two_classes_at_most_where_classes_are_shards():
    data = make(np.repeat(np.arange(10), 20))
    part = data.partition(10, by="shards", seed=3)
    held = [set(data.labels[rows].tolist()) for rows in part.indices]
    assert {len(each) for each in held} <= {1, 2}
    assert sum(len(each) == 2 for each in held) > 5, "shards are dealt at random"


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32))
def test_classes_a_node(nodes, each, seed):
    data = make(np.repeat(np.arange(6), np.arange(12, 18)))
    if nodes * each < 6:
        with pytest.raises(
            ValueError, match=f"{nodes} nodes with each={each} cannot share 6 classes: give at"
        ):
            data.partition(nodes, by="classes", each=each)
        return
    part = data.partition(nodes, by="classes", each=each, seed=seed)
    assert sorted(np.concatenate(part.indices).tolist()) == list(range(len(data))), "every row once"
    counts = np.array([np.bincount(data.labels[rows], minlength=6) for rows in part.indices])
    assert ((counts > 0).sum(axis=1) == each).all(), "every node has that many classes"
    owners = (counts > 0).sum(axis=0)
    assert set(owners.tolist()) <= {nodes * each // 6, -(-nodes * each // 6)}, (
        "classes have as many nodes as others"
    )
    shares = [column[column > 0] for column in counts.T]
    assert all(share.max() - share.min() <= 1 for share in shares), (
        "the nodes of a class share it evenly"
    )


def test_quantity_changes_sizes_and_not_classes():
    data = make([0, 1] * 2000)
    part = data.partition(5, by="quantity", seed=1)
    assert part.sizes.max() > 3 * part.sizes.min()
    assert all(
        abs(data.labels[rows].mean() - 0.5) < 0.1 for rows in part.indices if len(rows) > 200
    )
    assert data.partition(5, by="quantity", concentration=1e6).sizes.tolist() == pytest.approx(
        [800] * 5, abs=10
    )


def test_a_node_for_each_group():
    data = make([1.0, -1.0] * 3)
    part = data.partition(groups=["Ulm", "Bern", "Ulm", "Basel", "Bern", "Ulm"])
    assert part.names == ("Basel", "Bern", "Ulm")
    assert [rows.tolist() for rows in part.indices] == [[3], [1, 4], [0, 2, 5]]
    assert repr(part) == "Partition('made' over 3 nodes (Basel, Bern, Ulm), 1 to 3 rows each)"
    assert part.only(1).names == ("Bern",)
    assert data.partition(by="groups", groups=[7, 7, 3, 3, 3, 3]).names == (3, 7)


def test_groups_of_the_data_are_divided_by_their_name():
    values = np.array(["Ulm", "Bern", "Ulm"])
    rows, labels, columns = np.ones((3, 2)), np.array([1.0, -1.0, 1.0]), ("age", "city=Ulm")
    data = Dataset(rows, labels, "made", columns=columns, groups={"hospital": values})
    assert data.partition(by="hospital").names == ("Bern", "Ulm")
    assert data.partition(2, by="hospital").nodes == 2
    assert data[[2, 0]].partition(by="hospital").names == ("Ulm",)
    for by, nodes, message in [
        ("hospitl", None, "unknown partition 'hospitl': did you mean 'hospital'"),
        (
            "uniform",
            None,
            "the number of nodes is not given: say by='hospital', whose values are the nodes, or nodes=",
        ),
        (
            "age",
            None,
            r"by='age' is a feature of made: load\(..., groups='age'\) makes its values the nodes",
        ),
        ("city", None, r"by='city' is a feature of made: load\(..., groups='city'\) makes"),
        (values, None, "by is a ndarray: give a name, or the values of all rows as groups="),
        ("hospital", 3, "hospital has 2 different values, which are the nodes: leave out nodes=3"),
    ]:
        with pytest.raises(ValueError, match=message):
            data.partition(nodes, by=by)
    with pytest.raises(ValueError, match="groups= has no meaning with by='hospital'"):
        data.partition(by="hospital", groups=[1, 2, 3])
    with pytest.raises(ValueError, match="made: a column of groups cannot be called 'label'"):
        Dataset(np.ones((3, 1)), np.array([1.0, -1.0, 1.0]), "made", groups={"label": values})


def test_facts_tell_partitions_apart():
    data = make([0, 1, 2] * 20)
    parts = [
        *(data.partition(4, by=by) for by in STRATEGIES),
        data.partition(4, by="shards", each=3),
        data.partition(4, by="classes", each=3),
        data.partition(4, by="quantity", concentration=2.0),
        data.partition(4, seed=1),
        data.partition(groups=[0, 1] * 30),
        data.partition(groups=[1, 0] * 30),
        data.partition(indices=[[0], [1]]),
        data[:30].partition(4),
    ]
    assert len({repr(part.facts) for part in parts}) == len(parts)


def test_real_targets_have_no_classes():
    data = make([0.5, 1.5, 2.5, 3.5, 4.5, 5.5])
    assert data.kind == "real"
    assert data.labels[np.array(data.partition(2, by="label").indices)].tolist() == [
        [0.5, 1.5, 2.5],
        [3.5, 4.5, 5.5],
    ]
    for by in ("classes", "dirichlet"):
        with pytest.raises(
            ValueError, match=f"by='{by}' needs classes, and made has real targets: say by='label'"
        ):
            data.partition(2, by=by)
    assert all(data.partition(2, by=by).nodes == 2 for by in ("uniform", "shards", "quantity"))


@given(cases)
def test_by_label_is_sorted_over_nodes(case):
    labels, nodes, seed = case
    data = make(labels)
    seen = data.labels[np.concatenate(data.partition(nodes, by="label", seed=seed).indices)]
    assert (np.diff(seen) >= 0).all()


def test_by_label_leaves_out_rows_at_random():
    data = make([0] * 10 + [1] * 9)
    left_out = [
        set(range(19)) - set(np.concatenate(data.partition(2, by="label", seed=s).indices))
        for s in range(20)
    ]
    assert {data.labels[rows.pop()] for rows in left_out} == {0, 1}


def test_uniform_shuffles():
    (rows,) = make([1.0] * 100).partition(1).indices
    assert rows.tolist() != list(range(100))


def test_uniform_leaves_out_what_the_paper_does():
    part = make(np.ones(48_842)).partition(20)
    assert part.sizes.sum() == 48_840


def test_concentration_sets_the_skew():
    data = make([0, 1] * 1000)

    def spread(**kwargs):
        part = data.partition(10, by="dirichlet", **kwargs)
        return np.std([data.labels[rows].mean() for rows in part.indices])

    assert spread(concentration=0.05) > spread(concentration=0.5) > 3 * spread(concentration=1000.0)
    assert spread() == spread(concentration=0.5)


def test_indices_are_taken_as_given_and_may_overlap():
    for by in ("uniform", "indices"):
        part = DATA.partition(2, by=by, indices=[[0, 1], np.array([1, 2, 9], np.uint8)])
        assert [rows.tolist() for rows in part.indices] == [[0, 1], [1, 2, 9]]
        assert {rows.dtype for rows in part.indices} == {np.dtype(np.int64)}


@given(cases, concentrations, st.booleans())
def test_stacked_holds_the_rows_of_each_node_and_zeros(case, concentration, sparse):
    labels, nodes, seed = case
    dense = make(labels)
    data = Dataset(csr_array(dense.features), labels, "sparse") if sparse else dense
    part = data.partition(nodes, by="dirichlet", concentration=concentration, seed=seed)
    features, stacked_labels, sizes = part.stacked()
    assert features.shape == (nodes, part.sizes.max(), 2)
    assert stacked_labels.shape == features.shape[:2]
    assert (features.dtype, stacked_labels.dtype) == (np.float32, np.int64)
    assert np.array_equal(sizes, part.sizes)
    for node, rows in enumerate(part.indices):
        assert np.array_equal(features[node, : len(rows)], dense.features[rows])
        assert np.array_equal(stacked_labels[node, : len(rows)], dense.labels[rows])
        assert not features[node, len(rows) :].any()


@pytest.mark.parametrize(
    ("labels", "pad"), [([1.0, -1.0, -1.0], 1), ([1, -1, -1], 1), ([0, 1, 2], 0), ([3, 4, 5], 0)]
)
def test_padding_is_a_label_of_the_set(labels, pad):
    _, stacked, _ = make(labels).partition(2, indices=[[0], [1, 2]]).stacked()
    assert stacked[0, 1] == pad


def test_stacked_refuses_what_does_not_fit():
    wide = Dataset(csr_array((10_000, 2_000_000_000), dtype=np.float32), np.ones(10_000), "wide")
    part = wide.partition(10)
    with pytest.raises(
        ValueError,
        match=r"wide stacked as \(10, 1000, 2000000000\) would take about 298,023 GiB, and ",
    ):
        part.stacked()


BAD_PARTITIONS = {
    "nodes = 0: must be a whole number of at least 1": {"nodes": 0},
    "nodes = -3: must be": {"nodes": -3},
    "nodes = 2.0: must be": {"nodes": 2.0},
    "nodes = True: must be": {"nodes": True},
    "11 nodes cannot share 10 rows: use at most 10 nodes": {"nodes": 11},
    "seed = -1: must be a whole number of at least 0": {"nodes": 2, "seed": -1},
    "seed = None: must be": {"nodes": 2, "seed": None},
    "unknown partition 'unifrom': did you mean 'uniform'": {"nodes": 2, "by": "unifrom"},
    "concentration=0 must be a finite number above 0": {
        "nodes": 2,
        "by": "dirichlet",
        "concentration": 0,
    },
    "concentration=-1.0 must be": {"nodes": 2, "by": "dirichlet", "concentration": -1.0},
    "concentration=nan must be": {"nodes": 2, "by": "dirichlet", "concentration": float("nan")},
    "concentration=inf must be": {"nodes": 2, "by": "dirichlet", "concentration": float("inf")},
    "concentration=1.0 has no meaning with by='uniform'": {"nodes": 2, "concentration": 1.0},
    "concentration=2.0 has no meaning with by='label'": {
        "nodes": 2,
        "by": "label",
        "concentration": 2.0,
    },
    "concentration=3.0 has no meaning with by='indices'": {
        "nodes": 1,
        "indices": [[0]],
        "concentration": 3.0,
    },
    "concentration=1.0 has no meaning with by='shards': leave it out, or say by='dirichlet' or by='quantity'": {
        "nodes": 2,
        "by": "shards",
        "concentration": 1.0,
    },
    "each=2 has no meaning with by='dirichlet'": {"nodes": 2, "by": "dirichlet", "each": 2},
    "each = 0: must be": {"nodes": 2, "by": "shards", "each": 0},
    "2 nodes with each=6 need 12 shards, and there are 10 rows": {
        "nodes": 2,
        "by": "shards",
        "each": 6,
    },
    "2 nodes with each=3 cannot share 2 classes": {"nodes": 2, "by": "classes", "each": 3},
    "class -1 of made has 5 rows for 6 nodes: use fewer nodes, or smaller each=": {
        "nodes": 6,
        "by": "classes",
    },
    "nodes = None: must be": {},
    "by='groups' needs groups=": {"by": "groups"},
    "groups of shape (3,) for 10 rows: give one for each row": {"groups": [1, 2, 3]},
    "groups has 5 different values, which are the nodes: leave out nodes=2": {
        "nodes": 2,
        "groups": [0, 1, 2, 3, 4] * 2,
    },
    "by='indices' needs indices=": {"nodes": 2, "by": "indices"},
    "indices= has no meaning with by='label'": {"nodes": 1, "by": "label", "indices": [[0]]},
    "1 index arrays for 2 nodes: give one per node": {"nodes": 2, "indices": [[0]]},
    "node 1 has no rows": {"nodes": 2, "indices": [[0], []]},
    "node 0 has row numbers 3..10: they must lie in 0..9": {"nodes": 1, "indices": [[3, 10]]},
    "node 0 has row numbers -1..4": {"nodes": 1, "indices": [[-1, 4]]},
    "the row numbers of node 0 are of type float64": {"nodes": 1, "indices": [[0.0, 1.0]]},
    "the row numbers of node 0 are of type bool": {"nodes": 1, "indices": [[True] * 10]},
}


@pytest.mark.parametrize("message", BAD_PARTITIONS)
def test_bad_partition(message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        DATA.partition(**BAD_PARTITIONS[message])
    assert message in str(caught.value)


def test_a_partition_has_nodes():
    with pytest.raises(ValueError, match="a partition of 0 nodes"):
        Partition(DATA, ())


def test_dataset_converts():
    data = Dataset([[1, 2], [3, 4]], [True, False], "list")
    assert (data.features.dtype, data.labels.dtype, len(data), data.dimension) == (
        np.float32,
        np.int64,
        2,
        2,
    )
    sparse = Dataset(coo_array(np.eye(3)), np.ones(3), "coo")
    assert (sparse.features.format, sparse.features.dtype, sparse.labels.dtype) == (
        "csr",
        np.float32,
        np.float32,
    )


def test_repr_says_what_it_is():
    assert (
        repr(DATA)
        == "Dataset('made', 10 rows x 2 features, 95.0% nonzero, labels -1: 50.0%, 1: 50.0%)"
    )
    assert "labels of 11 classes" in repr(make(range(11)))
    assert repr(DATA.partition(3)) == "Partition('made' over 3 nodes, 3 rows each)"


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([1.0, 2.0], [1.0, 1.0], r"features of shape \(2,\)"),
        ([[1.0]], [[1.0]], r"labels of shape \(1, 1\) do not fit"),
        ([[1.0], [2.0]], [1.0], "do not fit"),
        (np.zeros((0, 3)), [], "with N and p at least 1"),
        (np.zeros((3, 0)), [1, 1, 1], "with N and p at least 1"),
        ([[1.0]], ["yes"], "must be numbers: .* maps any values"),
        ([[np.nan]], [1.0], "holds infinite or missing values"),
        ([[1.0]], [-5], "labels -5 to -5 are not classes 0, 1, ...: .* numbers any values"),
        ([[1.0]], [10**9], "are not classes"),
        ([[1.0]], [np.inf], "holds infinite or missing values"),
        (csr_array([[np.inf]]), [1.0], "holds infinite or missing values"),
    ],
)
def test_bad_dataset(features, labels, message):
    with pytest.raises(ValueError, match=message):
        Dataset(features, np.asarray(labels), "bad")


# Synthetic sets.


@pytest.mark.parametrize("density", [1.0, 0.5, 0.25, 0.05, 1e-300])
def test_synthetic(density):
    data = synthetic(2000, 40, density=density, seed=3)
    assert (data.name, len(data), data.dimension) == ("synthetic-2000x40", 2000, 40)
    assert isinstance(data.features, csr_array) == (density <= 0.25)
    dense = data.features if density > 0.25 else data.features.toarray()
    np.testing.assert_allclose(np.linalg.norm(dense, axis=1), 1, atol=1e-6)
    assert np.mean(dense != 0) == pytest.approx(max(density, 1 / 40), abs=0.012)
    assert set(data.labels.tolist()) == {-1, 1}
    assert data.labels.dtype == np.float32
    again, other = (
        synthetic(2000, 40, density=density, seed=3),
        synthetic(2000, 40, density=density, seed=4),
    )
    assert (again.features != data.features).sum() == 0
    assert (other.features != data.features).sum() > 0


def test_synthetic_labels_come_from_a_hyperplane():
    data = synthetic(4000, 10)
    w, *_ = np.linalg.lstsq(data.features, data.labels)
    accuracy = np.mean(np.sign(data.features @ w) == data.labels)
    assert 0.75 < accuracy < 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "samples = 0: must be a whole number of at least 1"),
        ((5, 0), "features = 0: must be"),
        ((5, 2.5), "features = 2.5: must be"),
        ((5, 5, 0.0), r"density=0.0 must lie in \(0, 1\]"),
        ((5, 5, 1.5), "density=1.5 must lie"),
        ((5, 5, float("nan")), "density=nan must lie"),
        ((5, 5, 1.0, -1), "seed = -1: must be"),
    ],
)
def test_bad_synthetic(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic(*arguments)
