"""What notebooks show of objects: every fact, nothing of a name but its text, and no drawing that nobody could read."""

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import peerdescent as peer
from made_traces import make
from peerdescent.runs.metrics import Metric
from peerdescent.runs.trace import Status

NASTY = "<script>alert(1)</script> & \"quotes\" 'too'"


def shown(thing):
    """The card of an object, as a tree; it is refused where a tag is open."""
    return ElementTree.fromstring(thing._repr_html_())


def words(tree):
    return [text.strip() for text in tree.itertext() if text.strip()]


def value(tree, name):
    """The fact of this name."""
    (row,) = (row for row in tree.iter("tr") if row[0].text == name)
    return row[1].text


def charts(tree):
    """The charts and drawings, without XML's prefix for SVG."""
    return list(tree.iter("{http://www.w3.org/2000/svg}svg"))


def parts(tree, tag):
    return list(tree.iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


@pytest.fixture(scope="module")
def problem():
    return peer.problems.logistic(peer.datasets.load("digits").partition(4))


def test_a_method():
    method = peer.methods.gt_hsgd(alpha=0.5, beta=0.25)
    assert repr(method) == "Method(gt-hsgd[beta=0.25,batch=1,initial_batch=1,alpha=0.5,atc=True])"
    tree = shown(method)
    assert words(tree)[0] == "Method: gt-hsgd"
    assert value(tree, "estimator").startswith("hybrid: ")
    assert value(tree, "fusion").startswith("tracking: Gradient tracking: y_{t+1} = ")
    assert (value(tree, "alpha"), value(tree, "beta"), value(tree, "batch")) == ("0.5", "0.25", "1")
    assert "in [0, 1]" in words(tree)


def test_a_method_of_two_functions():
    method = peer.Method(lambda x, net: x, lambda state, net: state, name=NASTY)
    assert repr(method) == f"Method({NASTY})"
    assert words(shown(method))[0] == f"Method: {NASTY}"


def test_a_problem(problem):
    assert repr(problem) == "Problem(logistic(digits), n=4, p=64, 449 samples each)"
    tree = shown(problem)
    assert (value(tree, "nodes"), value(tree, "parameters"), value(tree, "data")) == (
        "4",
        "64",
        "449 samples each",
    )
    assert value(tree, "partition") == "uniform"
    assert not charts(tree), "all nodes have as many"
    assert repr(problem.only(2)).endswith("449 samples each, data of node 2 only)")
    part = peer.datasets.load("digits").partition(2, indices=[[0], [1, 2, 3]])
    uneven = peer.problems.logistic(part)
    assert repr(uneven) == "Problem(logistic(digits), n=2, p=64, 1 to 3 samples each)"
    assert len(charts(shown(uneven))) == 1


def test_a_stream_and_a_penalty(problem):
    assert repr(peer.problems.streaming(4, features=5)).endswith("n=4, p=5, endless samples)")
    penalised = peer.problems.composite(problem, group=(0.25, np.arange(64) % 8))
    assert (
        repr(penalised)
        == "Problem(logistic(digits), n=4, p=64, 449 samples each, group=0.25 of 8 groups)"
    )
    assert value(shown(penalised), "non-smooth term") == "group=0.25 of 8 groups"
    assert len(penalised._repr_html_()) < 3000


def test_data():
    data = peer.datasets.Dataset(np.eye(4), [1, -1, 1, 1], NASTY)
    tree = shown(data)
    assert words(tree)[0] == f"Dataset: {NASTY}"
    assert (value(tree, "rows"), value(tree, "nonzero"), value(tree, "labels")) == (
        "4",
        "25.0%",
        "-1: 25.0%, 1: 75.0%",
    )


def test_groups_have_names_and_no_bare_checksums():
    owners = ["Basel", "Bern", "Graz", "Linz", "Ulm", "Wien"] * 2
    data = peer.datasets.load((np.eye(12), [0.5, 1, 2] * 4), groups=owners)
    part = data.partition(by="groups")
    assert (
        repr(part)
        == "Partition('data' over 6 nodes (Basel, Bern, Graz, Linz, Ulm, Wien), 2 rows each)"
    )
    for thing in (data, part, peer.problems.linear(part)):
        found = {row[0].text: row[1].text for row in shown(thing).iter("tr")}
        bare = {
            name
            for name, text in found.items()
            if len(text) == 16 and set(text) <= set("0123456789abcdef")
        }
        assert bare <= {"checksum"}
        assert thing is data or found["groups"] == "groups"


def test_a_partition_shows_the_labels_of_every_node():
    data = peer.datasets.Dataset(np.eye(6), [0, 0, 0, 1, 1, 2], "six")
    tree = shown(data.partition(2, indices=[[0, 1, 2, 3], [4, 5]]))
    (chart,) = charts(tree)
    assert {"0", "1", "2", "node", "rows by label"} <= set(words(chart))
    pieces = [path.get("d") for path in parts(chart, "path") if path.get("d").endswith("z")]
    assert len(pieces) == 3
    heights = np.array([[height(bar) for bar in piece.split("M")[1:]] for piece in pieces])
    np.testing.assert_allclose(
        heights / heights[0, 0], [[1, 0], [1 / 3, 1 / 3], [0, 1 / 3]], atol=2e-3
    )


def height(bar):
    start, end = re.match(r"[\d.]+ ([\d.]+)V([\d.]+)h", bar).groups()
    return float(start) - float(end)


def test_a_partition_of_many():
    data = peer.datasets.Dataset(np.eye(200), np.arange(200) / 7, "real targets")
    tree = shown(data.partition(100))
    assert not charts(tree)
    assert "The 100 bars of a chart of rows by label by node would be too many here." in words(tree)
    assert len(charts(shown(data.partition(10)))) == 1


@pytest.mark.parametrize("name", peer.topology.TOPOLOGIES)
def test_a_network_has_all_nodes_and_links(name):
    network = peer.Network(peer.topology.build(name, 12))
    tree = shown(network)
    assert words(tree)[0] == f"Network: {name}"
    drawings = charts(tree)
    assert len(drawings) == min(len(network.examples), 4)
    for W, drawing in zip(network.examples, drawings, strict=False):
        assert len(parts(drawing, "circle")) == 12
        lines = sum(path.get("d").count("M") for path in parts(drawing, "path"))
        both = (W != 0).multiply(W.T != 0).tocoo()
        mutual = int((both.row < both.col).sum())
        one_way = int((W.nonzero()[0] != W.nonzero()[1]).sum()) - 2 * mutual
        stubs = 7 if name == "torus" else 0  # of 3 x 4 nodes: 4 + 3 links close it
        assert lines == mutual + stubs + 2 * one_way, "an arrow has a line and a head"


def test_networks_that_nobody_could_read():
    tree = shown(peer.Network(peer.topology.ring(1000)))
    assert not charts(tree)
    assert any(text.startswith("1,000 nodes are too many to draw here") for text in words(tree))
    assert any(
        text.startswith("780 links are too")
        for text in words(shown(peer.Network(peer.topology.complete(40))))
    )


def test_what_a_network_says():
    faulty = peer.Network(peer.topology.ring(8), faults=[peer.faults.drop(0.1)])
    tree = shown(faulty)
    assert (value(tree, "faults"), value(tree, "neighbours"), value(tree, "λ")) == (
        "drop=0.1",
        "2",
        f"{faulty.lam:.4g}",
    )
    long = shown(peer.Network(peer.topology.one_peer_exponential(64)))
    assert value(long, "changes") == "every step, with period 6"
    plenty = peer.Network(peer.topology.ring(8), rounds=3, accelerate=True)
    assert value(shown(plenty), "rounds of a mix") == "3, accelerated"
    assert value(shown(peer.Network(peer.topology.star(5))), "neighbours") == "1 to 4"


def test_a_trace():
    trace = make(np.linspace(1, 0.5, 20), accuracy=np.linspace(0, 1, 20))
    trace = dataclasses.replace(
        trace, metrics=(Metric("accuracy", title="accuracy <b>", format=".1%"),)
    )
    tree = shown(trace)
    assert words(tree)[0] == "Trace: dsgd"
    assert (value(tree, "problem"), value(tree, "status")) == ("logistic(digits)", "done, 19 steps")
    head, ends = ([cell.text for cell in row] for row in list(tree.iter("tr"))[-2:])
    assert dict(zip(head, ends, strict=True)) == {
        "loss F(x̄)": "0.500000",
        "gradient norm ‖∇F(x̄)‖": "5.00e-01",
        "consensus error": "5.00e-05",
        "accuracy <b>": "100.0%",
        "bytes sent by a node, on average": "1.9 MB",
    }
    assert [chart.get("aria-label") for chart in charts(tree)] == [
        f"{name} by epochs" for name in head[:4]
    ]


def test_a_trace_without_epochs_goes_by_steps():
    assert charts(shown(make(epoch=np.nan)))[0].get("aria-label") == "loss F(x̄) by steps"


def seeded(losses, seed, **changes):
    trace = make(losses, **changes)
    return dataclasses.replace(trace, identity=dataclasses.replace(trace.identity, seed=seed))


def test_traces_of_several_seeds():
    traces = peer.runs.Traces([seeded([1.0, 0.5], 3), seeded([1.0, 0.7], 7)])
    tree = shown(traces)
    assert words(tree)[0] == "Traces: dsgd"
    assert (value(tree, "seeds"), value(tree, "status")) == ("3, 7", "2 done, 1 step")
    assert list(tree.iter("tr"))[-1][0].text == "0.60 ± 0.14"
    assert (
        len([path for path in parts(charts(tree)[0], "path") if path.get("opacity") == "0.2"]) == 1
    ), "a band"
    gone = peer.runs.Traces([traces[0], seeded([1.0, 50.0, np.nan], 8, status=Status.diverged)])
    assert value(shown(gone), "status") == "1 done, 1 step; 1 diverged, 2 steps"
    assert value(shown(gone), "curves") == "means of the 1 that did not diverge"
    assert list(shown(gone).iter("tr"))[-1][0].text == "-", "no mean without all seeds"
    assert value(shown(gone[1:]), "status") == "diverged, 2 steps"


def test_a_comparison():
    """What the user measures has a chart if all traces have it."""

    def measured(*names):
        made = make(**{name: np.linspace(0, 1, 20) for name in names})
        return peer.Traces(
            [dataclasses.replace(made, metrics=tuple(Metric(name) for name in names))]
        )

    found = peer.Comparison({"one": measured("accuracy", "width"), "two": peer.Traces([make()])})
    assert [chart.get("aria-label")[:4] for chart in charts(shown(found))] == ["loss", "cons"]
    worse = dataclasses.replace(
        measured("accuracy")[0], table=make(1 + np.zeros(20), accuracy=1.0).table
    )
    tree = shown(
        peer.Comparison({"worse": peer.Traces([worse]), "best": measured("accuracy", "width")})
    )
    assert charts(tree)[-1].get("aria-label") == "accuracy by epochs of worse, best"
    assert len(charts(tree)) == 3
    bold = [[cell.find("strong") is not None for cell in row] for row in list(tree.iter("tr"))[-2:]]
    assert bold == [[False] * len(bold[0])] * 2, "one seed gives no verdict"


def test_one_thing_is_not_called_several():
    one = peer.Traces([seeded([1.0, 0.5], 0)])
    assert "1 step, " in repr(one[0])
    assert "1 seed, " in repr(one)
    assert repr(peer.Comparison({"dsgd": one})).startswith("Comparison(1 method, 1 seed, loss: ")


@pytest.mark.parametrize(
    "losses",
    [
        [1.0, 50.0, 1e30, np.inf, np.nan],
        [np.nan, np.nan],
        [-np.inf, 1.0],
        [0.5],
        [0.0, 0.0],
        [-1e308, 1e308],
    ],
)
def test_a_trace_that_diverged(losses):
    trace = dataclasses.replace(make(losses, status=Status.diverged), message=NASTY)
    tree = shown(trace)
    assert value(tree, "message") == NASTY
    assert value(tree, "status").startswith("diverged, ")
    for each in tree.iter():
        numbers = " ".join(
            text for name, text in each.attrib.items() if name not in ("aria-label", "style")
        )
        assert not re.search(r"nan|inf", numbers), numbers
