"""Metrics: the columns of every trace, and the user's own."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array

import peerdescent as peer
from conftest import PROBLEMS, small_logistic, small_loss
from peerdescent.runs.metrics import METRICS, Cost
from small import compilations, some

RING = peer.Network(peer.topology.ring(6))
GT = peer.methods.gt_hsgd(alpha=0.5, beta=0.1)


def largest(x_mean, x, problem):
    return np.abs(x_mean).max() + 0 * x.sum() + 0 * problem.nodes


@pytest.mark.parametrize(
    ("engine", "kind"),
    some([(engine, kind) for kind in PROBLEMS for engine in ("stacked", "debug")], 3),
)
def test_the_columns_are_what_the_definitions_say(engine, kind):
    """The definitions are written out here, with the iterates and the problem's own float64 functions."""
    problem = PROBLEMS[kind]()
    trace = peer.run(GT, problem, RING, steps=9, record=[4, 9], engine=engine, precision=64)
    x, last = trace.x, trace.table.iloc[-1]
    mean = x.mean(axis=0)
    assert last["loss"] == pytest.approx(problem.loss(mean), rel=1e-12)
    assert last["grad_norm"] == pytest.approx(np.linalg.norm(problem.grad(mean)), rel=1e-11)
    assert last["stationarity"] == pytest.approx(
        np.mean([(problem.grad(own) ** 2).sum() for own in x]), rel=1e-11
    )
    assert last["consensus"] == pytest.approx(
        np.mean([((own - mean) ** 2).sum() for own in x]), rel=1e-9
    )
    assert list(trace.table.columns) == list(METRICS)


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_a_function_is_a_metric(engine):
    trace = peer.run(
        GT, small_logistic(), RING, steps=20, record=4, engine=engine, metrics=[largest]
    )
    assert list(trace.table.columns) == [*METRICS, "largest"]
    assert trace.table["largest"].iloc[0] == 0
    assert trace.table["largest"].iloc[-1] == np.abs(trace.x_mean).max()
    assert "largest" in repr(trace)


def test_a_metric_of_a_model_gets_the_parameters_at_the_mean():
    problem, seen = small_loss(), []

    def size(params):
        seen.append(sorted(params))
        return sum(float((leaf**2).sum()) for leaf in params.values()) ** 0.5

    trace = peer.run(
        GT, problem, RING, steps=5, record=1, metrics=[peer.metric(size, "norm", model=True)]
    )
    assert seen[0] == ["bias", "in", "out"]
    assert trace.table["norm"].iloc[-1] == pytest.approx(np.linalg.norm(trace.x_mean), rel=1e-6)
    plain = peer.run(
        GT,
        small_logistic(),
        RING,
        steps=5,
        record=1,
        metrics=[peer.metric(np.linalg.norm, model=True)],
    )
    assert plain.table["norm"].iloc[-1] == pytest.approx(np.linalg.norm(plain.x_mean))


def test_metrics_change_nothing_else():
    bare, more = (
        peer.run(GT, small_logistic(), RING, steps=30, record=3, metrics=m).table
        for m in ([], [largest])
    )
    columns = [name for name in METRICS if name != "seconds"]
    assert bare[columns].equals(more[columns])


def test_a_run_folder_says_what_its_columns_are(tmp_path):
    own = peer.metric(
        largest,
        "largest entry",
        label=r"$\max_k|x_k|$",
        title="largest |x|",
        log=True,
        format=".3f",
    )
    trace = peer.run(GT, small_logistic(), RING, steps=10, record=2, metrics=[own])
    trace.save(tmp_path)
    [stored] = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert len(stored.pop("code")) == 16
    assert [stored] == [
        {
            "name": "largest entry",
            "label": r"$\max_k|x_k|$",
            "title": "largest |x|",
            "log": True,
            "format": ".3f",
        }
    ]
    again = peer.Trace.load(tmp_path)
    assert again.metrics == (own,)
    assert again.metric("largest entry").log
    assert again.metric("loss") is METRICS["loss"]
    assert np.allclose(again.table["largest entry"], trace.table["largest entry"])


def test_a_resumed_run_has_the_metrics_of_its_first_part(tmp_path):
    first = peer.run(GT, small_logistic(), RING, steps=20, record=2, metrics=[largest])
    whole = peer.run(GT, small_logistic(), RING, steps=40, record=4, metrics=[largest])
    first.save(tmp_path)
    rest = peer.run(
        GT, small_logistic(), RING, steps=40, record=4, metrics=[largest], resume=tmp_path
    )
    assert rest.table["largest"].tolist() == whole.table["largest"].tolist()
    with pytest.raises(
        ValueError,
        match=r"the metrics added are \[\] here and were \['largest'\] in the earlier run",
    ):
        peer.run(GT, small_logistic(), RING, steps=40, resume=tmp_path)


def test_wrong_metrics_are_refused():
    def run(metrics):
        return peer.run(GT, small_logistic(), RING, steps=2, metrics=metrics)

    with pytest.raises(
        ValueError, match="metric 'loss' has the name of a column that traces or figures have"
    ):
        run([peer.metric(largest, "loss")])
    with pytest.raises(ValueError, match="two metrics are called 'largest'"):
        run([largest, largest])
    with pytest.raises(ValueError, match=r"metrics is not a list: give metrics=\[...\]"):
        run(largest)
    with pytest.raises(ValueError, match="3 is no metric: give a function"):
        run([3])
    with pytest.raises(ValueError, match="the metric has no name"):
        run([lambda x_mean, x, problem: 0.0])


def test_an_error_in_a_metric_names_it():
    def broken(x_mean, x, problem):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        peer.run(GT, small_logistic(), RING, steps=2, metrics=[broken])
    assert caught.value.__notes__ == ["in metric 'broken', at step 0"]


def test_a_metric_cannot_change_the_run():
    def spread(x_mean, x, problem):
        x -= x_mean
        return abs(x).max()

    with pytest.raises(ValueError, match="read-only"):
        peer.run(GT, small_logistic(), RING, steps=2, metrics=[spread])


def test_a_metric_returns_one_number_and_has_a_format():
    with pytest.raises(
        ValueError, match=r"the function returned an array of shape \(5,\): return one number"
    ):
        peer.run(
            GT, small_logistic(), RING, steps=2, metrics=[peer.metric(lambda m, x, p: m, "vector")]
        )
    with pytest.raises(ValueError, match="format = 'zz' of metric 'a'"):
        peer.metric(largest, "a", format="zz")
    with pytest.raises(ValueError, match="a metric is called 7: give it a text"):
        peer.metric(largest, 7)
    with pytest.raises(ValueError, match="metric 'a' has no function"):
        peer.run(GT, small_logistic(), RING, steps=2, metrics=[peer.Metric("a")])


def test_ones_own_metric_of_the_nodes_is_not_left_out_with_stationarity():
    own = peer.Metric("worst", cost=Cost.nodes, function=lambda seen: float(seen.values[1:].max()))
    trace = peer.run(
        GT, small_logistic(), RING, steps=4, record=peer.Grid(2, stationarity=False), metrics=[own]
    )
    assert trace.table["stationarity"].isna().all()
    assert (trace.table["worst"] >= trace.table["loss"] - 1e-3).all()


def test_a_metric_of_bytes_can_be_shown():
    weight = peer.metric(lambda x_mean, x, problem: x.nbytes, "weight", format="B")
    trace = peer.run(peer.methods.dsgd(), small_logistic(), RING, steps=2, metrics=[weight])
    assert "weight 120" in repr(trace)


def test_the_name_of_the_gap_is_taken():
    with pytest.raises(
        ValueError, match="metric 'gap' has the name of a column that traces or figures have"
    ):
        peer.run(
            peer.methods.dsgd(),
            small_logistic(),
            RING,
            steps=2,
            metrics=[peer.metric(lambda *_: 42.0, "gap")],
        )


ROWS = np.random.default_rng(1).normal(size=(400, 5))
SIGNS = np.where(ROWS[:, 0] + ROWS[:, 1] > 0, 1.0, -1.0)
FACTOR = 1.0


def linear(x, features):
    return features @ x


def measured(*metrics, problem=None, **more):
    return peer.run(
        GT, problem or small_logistic(), RING, steps=20, record=4, metrics=metrics, **more
    )


@pytest.mark.parametrize("precision", [32, 64])
@pytest.mark.parametrize(
    "labels",
    [SIGNS, SIGNS.astype(int), SIGNS > 0, (SIGNS + 1) / 2],
    ids=["±1", "int", "bool", "01"],
)
def test_accuracy_with_one_score_a_row(labels, precision):
    """By hand, with the iterates of the last record; the worst node's is another one."""
    metrics = (
        peer.accuracy(linear, ROWS, labels),
        peer.accuracy(linear, ROWS, labels, "worst", worst=True),
    )
    trace = measured(*metrics, precision=precision)
    last = trace.table.iloc[-1]
    right = [np.mean((ROWS @ x > 0) == (SIGNS > 0)) for x in (trace.x_mean, *trace.x)]
    assert last["test accuracy"] == pytest.approx(right[0], abs=1e-12)
    assert last["worst"] == pytest.approx(min(right[1:]), abs=1e-12)
    assert last["worst"] < last["test accuracy"]
    assert trace.table["test accuracy"].iloc[0] == pytest.approx(
        np.mean(SIGNS < 0), abs=1e-12
    )  # all scores are 0
    assert trace.metrics[0].format == ".1%"


def test_accuracy_with_a_score_for_every_class():
    """`predict` gets the parameters as they were given."""

    def scores(params, features):
        hidden = jnp.tanh(features @ params["in"] + params["bias"])
        return jnp.stack(
            [-hidden @ params["out"], 0 * hidden[:, 0], hidden @ params["out"]], axis=1
        )

    problem, rows = small_loss(), ROWS[:, :4]
    labels = np.arange(400) % 3
    trace = measured(peer.accuracy(scores, rows, labels), problem=problem)
    params = problem.unflatten(trace.x_mean)
    out = np.tanh(rows @ params["in"] + params["bias"]) @ params["out"]
    value = trace.table["test accuracy"].iloc[-1]
    assert value == pytest.approx(np.mean(np.where(out > 0, 2, 0) == labels), abs=1e-12)
    assert 0 < value < 1


def test_a_row_without_a_number_is_wrong():
    def scores(x, features):
        return jnp.where(jnp.arange(400) < 100, jnp.nan, -1.0)

    table = measured(
        peer.accuracy(scores, ROWS, -np.ones(400)),
        peer.accuracy(
            lambda x, f: jnp.stack([scores(x, f)] * 2, axis=1), ROWS, np.zeros(400), "two"
        ),
    ).table
    assert table["test accuracy"].tolist() == [0.75] * 5
    assert table["two"].tolist() == [0.75] * 5


def test_sparse_features_are_made_dense():
    table = measured(
        peer.accuracy(linear, ROWS, SIGNS), peer.accuracy(linear, csr_array(ROWS), SIGNS, "sparse")
    ).table
    assert table["sparse"].tolist() == table["test accuracy"].tolist()


def test_predict_is_compiled_once():
    metric, seen = peer.accuracy(linear, ROWS, SIGNS), []
    with compilations(seen):
        measured(metric)
        measured(metric)
    assert seen.count("jit(right)") == 1


def test_a_stored_accuracy_is_not_continued_with_another_model_or_other_data(tmp_path):
    def scaled(factor):
        return lambda x, features: factor * linear(x, features)

    measured(peer.accuracy(scaled(2.0), ROWS, SIGNS)).save(tmp_path)

    def again(metric):
        return peer.run(
            GT, small_logistic(), RING, steps=40, record=4, metrics=[metric], resume=tmp_path
        )

    assert again(peer.accuracy(scaled(2.0), ROWS.copy(), SIGNS.copy())).steps == 40
    others = [
        peer.accuracy(scaled(3.0), ROWS, SIGNS),
        peer.accuracy(lambda x, features: linear(x, features), ROWS, SIGNS),
        peer.accuracy(scaled(2.0), ROWS + 1e-3, SIGNS),
        peer.accuracy(scaled(2.0), ROWS, -SIGNS),
        peer.accuracy(scaled(2.0), ROWS, SIGNS, worst=True),
    ]
    for other in others:
        with pytest.raises(ValueError, match="metric 'test accuracy' computes something else here"):
            again(other)


def test_accuracy_is_of_what_predict_does_now_and_of_the_data_as_they_were(monkeypatch):
    features, labels = ROWS.copy(), SIGNS.copy()
    metric = peer.accuracy(lambda x, features: FACTOR * linear(x, features), features, labels)
    first = measured(metric).table["test accuracy"].iloc[-1]
    features[:], labels[:] = 0, 1
    assert measured(metric).table["test accuracy"].iloc[-1] == first
    monkeypatch.setitem(globals(), "FACTOR", -1.0)
    assert measured(metric).table["test accuracy"].iloc[-1] == pytest.approx(1 - first)


@pytest.mark.parametrize(
    ("predict", "labels", "message"),
    [
        (3, SIGNS, r"3 predicts nothing: give a function of \(params, features\)"),
        (
            linear,
            SIGNS[:9],
            r"features of shape \(400, 5\) and labels of shape \(9,\) do not fit: give",
        ),
        (linear, SIGNS[:, None], r"labels of shape \(400, 1\) do not fit"),
        (
            linear,
            SIGNS / 2,
            "labels such as .*: accuracy is for classes, which are whole numbers; for real targets",
        ),
        (linear, np.full(400, "a"), "labels such as a: accuracy is for classes"),
        (
            linear,
            SIGNS + 2,
            "one score a row, and labels from 1 to 3: labels must then be -1 and 1, or 0 and 1",
        ),
        (
            linear,
            np.sign(ROWS[:, 0].round()),
            "one score a row, and labels from -1 to 1: labels must",
        ),
        (
            lambda x, f: f[:, :2],
            SIGNS,
            "2 scores a row, and labels from -1 to 1: labels must then be 0 to 1",
        ),
        (
            lambda x, f: f,
            np.arange(400) % 6,
            "5 scores a row, and labels from 0 to 5: labels must then be 0 to 4",
        ),
        (
            lambda x, f: f[:, :1],
            SIGNS,
            r"scores of shape \(400, 1\) for 400 rows: return \(rows, classes\)",
        ),
        (lambda x, f: f.T, SIGNS, r"scores of shape \(5, 400\) for 400 rows"),
        (lambda x, f: x.sum(), SIGNS, r"scores of shape \(\) for 400 rows"),
    ],
)
def test_what_no_accuracy_can_be_computed_of_is_refused(predict, labels, message):
    with pytest.raises(ValueError, match=message):
        measured(peer.accuracy(predict, ROWS, labels))


def test_a_data_set_is_features_and_labels():
    data = peer.datasets.Dataset(ROWS, SIGNS.astype(float), "rows")
    one, other = (
        measured(peer.accuracy(linear, *rows)).table["test accuracy"]
        for rows in ((data,), (ROWS, SIGNS))
    )
    assert one.tolist() == other.tolist()
    with pytest.raises(ValueError, match="labels beside a data set"):
        peer.accuracy(linear, data, SIGNS)
    with pytest.raises(ValueError, match="write name='unseen' if it is a name"):
        peer.accuracy(linear, data, "unseen")


def test_rows_with_other_columns_name_the_metric():
    with pytest.raises(TypeError) as caught:
        measured(peer.accuracy(linear, ROWS[:, :4], SIGNS, "unseen"))
    assert any(
        "in the metric 'unseen', on features of shape (400, 4)" in note
        for note in caught.value.__notes__
    )
