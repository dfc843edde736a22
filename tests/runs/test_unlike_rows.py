"""Rows to test on are like those to train on, and graphs name nodes as data do, or both are refused."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"a": RNG.normal(size=60), "b": RNG.normal(size=60), "c": 9 * RNG.normal(size=60)}
)
TABLE["kind"] = np.where(TABLE["a"] > 0, "ill", np.where(TABLE["b"] > 0, "well", "fine"))
TABLE["sick"] = np.where(TABLE["a"] > 0, "yes", "no")
TABLE["home"] = np.tile(["Basel", "Bern", "Ulm"], 20)


def measured(train, test, problem=peer.problems.logistic):
    made = problem(train.partition(by="home"))
    metrics = [peer.accuracy(made.predict, test)]
    ring = peer.Network(peer.topology.ring(3))
    return peer.run("dsgd[alpha=1]", made, ring, steps=3, metrics=metrics).table["test accuracy"]


def load(table=TABLE, **options):
    options = {"target": "sick", "groups": "home", "name": "rows", **options}
    return peer.datasets.load(table.drop(columns={"sick", "kind"} - {options["target"]}), **options)


UNLIKE = {
    "flipped": ({"positive": "no"}, "classes yes, no, and those of rows are no, yes"),
    "columns": (
        {"table": TABLE[[*"cba", "sick", "home"]].assign(kind=0)},
        "columns c, b, a, and those of rows are a",
    ),
    "not normalised": ({"normalise": False}, "no norm of 1, unlike those of rows"),
    "scaled": ({"scale": True}, "columns that were scaled otherwise than those of rows"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_rows_of_another_kind_are_refused(name):
    options, said = UNLIKE[name]
    with pytest.raises(
        ValueError, match=f"test accuracy: the rows to test on have {said}.* load.rows, like=train"
    ):
        measured(load(), load(**options))


def test_ranges_of_their_own_and_missing_classes_are_refused():
    with pytest.raises(ValueError, match="scaled otherwise"):
        measured(load(TABLE[:30], scale=True), load(TABLE[30:], scale=True))
    few = TABLE[TABLE["kind"] != "fine"]
    with pytest.raises(
        ValueError, match="classes ill, well, and those of rows are fine, ill, well"
    ):
        measured(
            load(target="kind"), load(few, target="kind", labels="classes"), peer.problems.softmax
        )


def test_rows_that_are_alike_are_taken():
    train = load(TABLE[:30], scale=True)
    for test in (load(TABLE[30:], scale=None, like=train), train[5:]):
        assert measured(train, test).between(0, 1).all()
    raw = load(normalise=False)
    plain = peer.datasets.Dataset(raw.features, raw.labels, "made by hand", classes=raw.classes)
    assert measured(raw, plain).equals(measured(raw, raw))


STAR = nx.Graph([("Ulm", "Basel"), ("Ulm", "Bern")])


def test_a_graph_has_the_names_of_the_data_in_their_order():
    partition = load().partition(by="home")
    problem = peer.problems.logistic(partition)
    network = peer.Network(STAR)
    assert network.names == ("Ulm", "Basel", "Bern")
    with pytest.raises(
        ValueError,
        match=r"node 0 is Basel in the problem and Ulm in graph: .*nodes=partition.names",
    ):
        peer.run("dsgd[alpha=1]", problem, network, steps=2)
    ordered = peer.Network(STAR, nodes=partition.names)
    np.testing.assert_array_equal(ordered.degree, [1, 1, 2])
    by_number = peer.Network(nx.Graph([(2, 0), (2, 1)]))
    traces = [
        peer.run("dsgd[alpha=1]", problem, one, steps=5, record=1) for one in (ordered, by_number)
    ]
    np.testing.assert_array_equal(*(trace.x for trace in traces))
    assert by_number.names == peer.Network(STAR, nodes=["Ulm", "Bern", "Basel"]).names[:0]
    with pytest.raises(
        ValueError, match="node 0 is Basel in the problem and Rome in graph: name the nodes"
    ):
        peer.run(
            "dsgd[alpha=1]", problem, peer.Network(nx.star_graph(["Rome", "Oslo", "Bern"])), steps=2
        )
    grid = peer.Network(nx.convert_node_labels_to_integers(STAR, first_label=1))
    peer.run("dsgd[alpha=1]", problem, grid, steps=2)
    with pytest.raises(
        ValueError,
        match=r"nodes = \['Ulm', 'Bern'\]: must be the labels of all nodes .* 'Ulm', 'Basel'",
    ):
        peer.Network(STAR, nodes=["Ulm", "Bern"])


def test_numbers_that_name_nodes_meet_in_their_order():
    owners = np.repeat([7, 3, 9], 20)
    data = peer.datasets.load((TABLE[["a", "b"]], TABLE["sick"]), groups=owners)
    problem = peer.problems.logistic(data.partition(by="groups"))
    with pytest.raises(ValueError, match=r"node 0 is 3 in the problem and 9 in graph"):
        peer.run("dsgd[alpha=1]", problem, peer.Network(nx.path_graph([9, 3, 7])), steps=2)


def test_two_values_that_stand_for_others_are_no_real_targets():
    doses = peer.datasets.load((TABLE[["a", "b"]], np.where(TABLE["a"] > 0, 20.0, 10.0)))
    for make in (peer.problems.linear, peer.problems.robust):
        with pytest.raises(
            ValueError,
            match=r"labels of data are -1 and [+]1 for 10 and 20, .* labels='real', or use log",
        ):
            make(doses.partition(4))
    signs = peer.datasets.load((TABLE[["a", "b"]], np.sign(TABLE["a"])))
    assert peer.problems.linear(signs.partition(4)).loss(np.zeros(2)) == pytest.approx(0.5)
