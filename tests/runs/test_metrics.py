"""Metrics: the columns of every trace, and the user's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

import peerdescent as peer
from conftest import PROBLEMS, small_logistic, small_loss
from peerdescent.runs.metrics import METRICS, Cost

RING = peer.Network(peer.topology.ring(6))
GT = peer.methods.gt_hsgd(alpha=0.5, beta=0.1)


def largest(x_mean, x, problem):
    return np.abs(x_mean).max() + 0 * x.sum() + 0 * problem.nodes


@pytest.mark.parametrize("engine", ["stacked", "debug"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_columns_are_what_the_definitions_say(engine, kind):
    """The definitions are written out here, with the iterates and the problem's own float64 functions."""
    problem = PROBLEMS[kind]()
    trace = peer.run(GT, problem, RING, steps=9, record=[4, 9], engine=engine, precision=64)
    x, last = trace.x, trace.table.iloc[-1]
    mean = x.mean(axis=0)
    assert last["loss"] == pytest.approx(problem.loss(mean), rel=1e-12)
    assert last["grad_norm"] == pytest.approx(np.linalg.norm(problem.grad(mean)), rel=1e-11)
    assert last["stationarity"] == pytest.approx(np.mean([(problem.grad(own) ** 2).sum() for own in x]), rel=1e-11)
    assert last["consensus"] == pytest.approx(np.mean([((own - mean) ** 2).sum() for own in x]), rel=1e-9)
    assert list(trace.table.columns) == list(METRICS)


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_a_function_is_a_metric(engine):
    trace = peer.run(GT, small_logistic(), RING, steps=20, record=4, engine=engine, metrics=[largest])
    assert list(trace.table.columns) == [*METRICS, "largest"]
    assert trace.table["largest"].iloc[0] == 0
    assert trace.table["largest"].iloc[-1] == np.abs(trace.x_mean).max()
    assert "largest" in repr(trace)


def test_a_metric_of_a_model_gets_the_parameters_at_the_mean():
    problem, seen = small_loss(), []

    def size(params):
        seen.append(sorted(params))
        return sum(float((leaf**2).sum()) for leaf in params.values()) ** 0.5

    trace = peer.run(GT, problem, RING, steps=5, record=1, metrics=[peer.metric(size, "norm", model=True)])
    assert seen[0] == ["bias", "in", "out"]
    assert trace.table["norm"].iloc[-1] == pytest.approx(np.linalg.norm(trace.x_mean), rel=1e-6)
    plain = peer.run(GT, small_logistic(), RING, steps=5, record=1, metrics=[peer.metric(np.linalg.norm, model=True)])
    assert plain.table["norm"].iloc[-1] == pytest.approx(np.linalg.norm(plain.x_mean))


def test_metrics_change_nothing_else():
    bare, more = (peer.run(GT, small_logistic(), RING, steps=30, record=3, metrics=m).table for m in ([], [largest]))
    columns = [name for name in METRICS if name != "seconds"]
    assert bare[columns].equals(more[columns])


def test_a_run_folder_says_what_its_columns_are(tmp_path):
    own = peer.metric(largest, "largest entry", label=r"$\max_k|x_k|$", title="largest |x|", log=True, format=".3f")
    trace = peer.run(GT, small_logistic(), RING, steps=10, record=2, metrics=[own])
    trace.save(tmp_path)
    [stored] = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert len(stored.pop("code")) == 16
    assert [stored] == [
        {"name": "largest entry", "label": r"$\max_k|x_k|$", "title": "largest |x|", "log": True, "format": ".3f"}
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
    rest = peer.run(GT, small_logistic(), RING, steps=40, record=4, metrics=[largest], resume=tmp_path)
    assert rest.table["largest"].tolist() == whole.table["largest"].tolist()
    with pytest.raises(ValueError, match=r"the metrics added are \[\] here and were \['largest'\] in the earlier run"):
        peer.run(GT, small_logistic(), RING, steps=40, resume=tmp_path)


def test_wrong_metrics_are_refused():
    def run(metrics):
        return peer.run(GT, small_logistic(), RING, steps=2, metrics=metrics)

    with pytest.raises(ValueError, match="metric 'loss' has the name of a column that traces or figures have"):
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
    with pytest.raises(ValueError, match=r"the function returned an array of shape \(5,\): return one number"):
        peer.run(GT, small_logistic(), RING, steps=2, metrics=[peer.metric(lambda m, x, p: m, "vector")])
    with pytest.raises(ValueError, match="format = 'zz' of metric 'a'"):
        peer.metric(largest, "a", format="zz")
    with pytest.raises(ValueError, match="a metric is called 7: give it a text"):
        peer.metric(largest, 7)
    with pytest.raises(ValueError, match="metric 'a' has no function"):
        peer.run(GT, small_logistic(), RING, steps=2, metrics=[peer.Metric("a")])


def test_ones_own_metric_of_the_nodes_is_not_left_out_with_stationarity():
    own = peer.Metric("worst", cost=Cost.nodes, function=lambda seen: float(seen.values[1:].max()))
    trace = peer.run(GT, small_logistic(), RING, steps=4, record=peer.Grid(2, stationarity=False), metrics=[own])
    assert trace.table["stationarity"].isna().all()
    assert (trace.table["worst"] >= trace.table["loss"] - 1e-3).all()


def test_a_metric_of_bytes_can_be_shown():
    weight = peer.metric(lambda x_mean, x, problem: x.nbytes, "weight", format="B")
    trace = peer.run(peer.methods.dsgd(), small_logistic(), RING, steps=2, metrics=[weight])
    assert "weight 120" in repr(trace)


def test_the_name_of_the_gap_is_taken():
    with pytest.raises(ValueError, match="metric 'gap' has the name of a column that traces or figures have"):
        peer.run(peer.methods.dsgd(), small_logistic(), RING, steps=2, metrics=[peer.metric(lambda *_: 42.0, "gap")])
