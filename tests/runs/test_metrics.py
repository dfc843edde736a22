"""Metrics: the columns of every trace, and the user's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

import peerdescent as peer
from conftest import PROBLEMS, small_logistic, small_loss
from peerdescent.runs.metrics import METRICS

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
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"] == [
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

    with pytest.raises(ValueError, match="metric 'loss' has the name of a column that every trace has"):
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
