"""Samples from Python iterators: the rows in their order, read ahead in a thread, from the beginning in every run."""

from __future__ import annotations

import threading
from functools import partial
from itertools import islice

import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.problems.definition import digest
from peerdescent.runs.output import moves
from small import assert_close, some

NODES = 3
pytestmark = pytest.mark.filterwarnings(
    "ignore:nodes 0 and 1 begin with the same rows"
)  # as they do in some tests
RING = peer.Network(peer.topology.ring(NODES))
METHOD = peer.methods.gt_hsgd(alpha=0.1, beta=0.2, batch=2, initial_batch=5)
STEPS = 150
"""Three chunks of iterations, one of them of a single one."""


def items(node, count=None):
    """Items of 1, 2, 3, 1, 2, 3, ... rows, two arrays each."""
    rng = np.random.default_rng(node)
    for k in range(10**9 if count is None else count):
        a = rng.normal(size=(1 + k % 3, 2))
        yield {"a": a, "b": a @ [1.0, node] + 0.1 * rng.normal(size=len(a))}


def rows(node, count):
    found = list(islice(items(node), count))
    return [np.concatenate([item[name] for item in found])[:count] for name in "ab"]


TEST = dict(zip("ab", rows(99, 31), strict=True))


def squared(w, batch):
    return jnp.mean((batch["a"] @ w - batch["b"]) ** 2) / 2


def problem(*given, function=squared):
    sources = given or [partial(items, node) for node in range(NODES)]
    return peer.problems.stream(function, np.zeros(2), sources, TEST)


def run(own, steps=STEPS, **options):
    return peer.run(
        METHOD, own, RING, **{"steps": steps, "record": [0, 7, steps], "precision": 64, **options}
    )


def test_a_run_takes_the_rows_in_their_order_and_both_gradients_on_the_same():
    """GT-HSGD by hand, with a first batch of its own."""
    held = [rows(node, 5 + 2 * STEPS) for node in range(NODES)]

    def gradients(x, t):
        some = slice(0, 5) if t == 0 else slice(5 + 2 * (t - 1), 5 + 2 * t)
        return np.stack(
            [
                (a[some] @ own - b[some]) @ a[some] / len(a[some])
                for own, (a, b) in zip(x, held, strict=True)
            ]
        )

    W, x, y, v = RING.W, [np.zeros((NODES, 2))], np.zeros((NODES, 2)), np.zeros((NODES, 2))
    for t in range(STEPS):
        before, v = (
            v,
            gradients(x[t], t)
            if t == 0
            else gradients(x[t], t) + 0.8 * (v - gradients(x[t - 1], t)),
        )
        y = W @ (y + v - before)
        x.append(W @ (x[t] - 0.1 * y))
    assert_close(run(problem(), 8, engine="debug").x, x[8])
    for steps in (8, STEPS):
        trace = run(problem(), steps)
        assert_close(trace.x, x[steps])
        away = (
            TEST["a"][:30] @ trace.x_mean - TEST["b"][:30]
        )  # 30 of 31 rows are shared by three nodes
        assert trace.table["loss"].iloc[-1] == pytest.approx(np.mean(away**2) / 2, rel=1e-12)
    assert trace.table["epoch"].isna().all()


def test_every_run_begins_at_the_first_row_and_a_single_iterator_has_one_run():
    own = problem()
    assert np.array_equal(run(own).x, run(own).x)
    single = problem(*(items(node) for node in range(NODES)))
    assert np.array_equal(run(single).x, run(own).x)
    with pytest.raises(
        ValueError, match=r"iterator of node 0 has been read already, .*: give a function"
    ):
        run(single)
    lists = problem(*(list(items(node, 200)) for node in range(NODES)))
    assert np.array_equal(run(lists).x, run(own).x)
    assert np.array_equal(run(lists).x, run(own).x)


def test_a_function_that_returns_an_iterator_that_was_read_is_refused():
    given = [items(node) for node in range(NODES)]
    own = problem(*(lambda one=one: one for one in given))
    first = run(own, 8)
    for options in ({}, {"resume": first}):
        with pytest.raises(
            ValueError,
            match=r"node 0 (has changed|is read by another run): .*returns a new iterator",
        ):
            run(own, 9, **options)
    ended = problem(
        *[lambda one=one: one for one in [items(node, 3) for node in range(NODES)]]
    ).streams[0]
    assert len(list(ended.begin())) == 3
    with pytest.raises(ValueError, match="the iterator of node 0 has no items"):
        ended.begin()


def test_an_iterator_that_another_run_is_reading_is_refused():
    """Its thread may still read ahead: a generator then says that it is executing already."""
    held = []

    def executing():
        yield from items(0, 1)
        next(held[0])

    held.append(executing())
    source = problem(lambda: held[0], *(partial(items, node) for node in range(1, NODES))).streams[
        0
    ]
    source.begin()
    with pytest.raises(
        ValueError, match="the iterator of node 0 is read by another run: give a function"
    ):
        source.begin()


def test_a_resumed_run_goes_on_where_it_was(tmp_path):
    whole = run(problem())
    for before in (7, 80):  # in the first chunk that is read, and beyond it
        folder = run(problem(), before).save(tmp_path / str(before))
        assert np.array_equal(run(problem(), resume=folder).x, whole.x)
        with pytest.raises(
            ValueError, match=r"node 0 has a single iterator, .*: to resume, give a function"
        ):
            run(problem(*(items(node) for node in range(NODES))), resume=folder)
        others = problem(*(partial(items, node + 5) for node in range(NODES)))
        with pytest.raises(ValueError, match="cannot resume: first samples is"):
            run(others, resume=folder)


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_the_end_of_an_iterator_ends_the_run_with_a_record_of_where_it_is(engine):
    # 2 k rows in k items; 5 + 2 (t - 1) are read before step t. The others end later, in the same chunk.
    short = problem(partial(items, 0, 110), partial(items, 1, 100), partial(items, 2, 120))
    done = run(short, 98, record=[0, 50, 98], engine=engine)
    assert done.status.value == "done", "reading ahead does not fail a run that needs no more"
    for grid in some(
        [[0, 50, 98, 150], [0, 50, 150], [0, 97, 150], [0, 150]], 4 if engine == "debug" else 1
    ):
        trace = run(short, record=grid, engine=engine)
        assert trace.status.value == "interrupted"
        assert trace.message == (
            "the iterator of node 1 ended after 199 rows, and step 98 needs 2 more: give longer iterators, or fewer "
            "steps"
        )
        assert trace.table["step"].tolist() == [*(step for step in grid[:-1] if step < 98), 98]
        assert trace.table["loss"].iloc[-1] == done.table["loss"].iloc[-1]
        assert np.array_equal(trace.x, done.x)
        assert trace.table["seconds"].iloc[-1] > trace.table["seconds"].iloc[-2]


def test_a_run_whose_stream_ended_goes_on_with_a_longer_one(tmp_path):
    short = problem(partial(items, 0), partial(items, 1, 100), partial(items, 2))
    ended = run(short, record=[0, 150])
    folder = ended.save(tmp_path / "ended")
    again = run(short, record=[0, 150], resume=folder)
    assert (again.status, again.message) == (ended.status, ended.message)
    assert again.table["step"].tolist() == [0, 98]
    assert np.array_equal(again.x, ended.x)
    longer = run(problem(), record=[0, 150], resume=folder)
    assert (longer.status.value, longer.table["step"].tolist()) == ("done", [0, 98, 150])
    assert np.array_equal(longer.x, run(problem()).x)


def test_a_stream_that_ends_before_the_first_step_leaves_x_0():
    trace = run(problem(*(partial(items, node, 2) for node in range(NODES))))
    assert (trace.status.value, trace.table["step"].tolist()) == ("interrupted", [0])
    assert "ended after 3 rows, and step 0 needs 5 more" in trace.message


def test_a_stream_that_ends_far_away_has_diverged():
    method, short = (
        peer.methods.dsgd(alpha=100.0),
        problem(*(partial(items, node, 20) for node in range(NODES))),
    )
    assert peer.run(method, short, RING, steps=10**4, record=1).status.value == "diverged"


def test_x_tilde_of_a_stream_is_uniform_wherever_it_ends():
    """The last move up to any step e is to a step of 0..e, all equally likely: to 4.5 standard errors."""
    count, end = 4000, 12
    drawn = [[(0, 0), *(move for left, right in ((0, 5), (5, 12)) for move in moves(seed, left, right, 3))]
             for seed in range(count)]  # fmt: skip
    for e in range(1, end + 1):
        last = [max(move for move in one if move[0] <= e) for one in drawn]
        share = np.bincount([step for step, _ in last], minlength=e + 1) / count
        assert abs(share - 1 / (e + 1)).max() < 4.5 * (1 / (e + 1) / count) ** 0.5
    nodes = np.bincount([one[-1][1] for one in drawn if len(one) > 1]) / sum(
        len(one) > 1 for one in drawn
    )
    assert abs(nodes - 1 / 3).max() < 0.04


def test_rows_are_read_in_another_thread():
    seen = []

    def watched(node):
        for item in items(node):
            seen.append(threading.current_thread() is threading.main_thread())
            yield item

    run(problem(*(partial(watched, node) for node in range(NODES))))
    assert seen.count(True) < 30 < seen.count(False)


def test_rows_are_read_ahead():
    """The first 65 iterations need 133 rows, in 67 items: others are read before only to have them ready."""
    ahead = threading.Event()

    def watched(node):
        for k, item in enumerate(items(node)):
            if k > 70:
                ahead.set()
            yield item

    def was_read(x_mean, x, problem):
        return bool(x.any()) and ahead.wait(60)

    trace = run(
        problem(*(partial(watched, node) for node in range(NODES))),
        64,
        metrics=[was_read],
        record=[0, 7, 64],
    )
    assert trace.table["was_read"].tolist() == [0, 1, 1]


def test_images_and_labels_keep_their_types():
    seen = []

    def loss(w, batch):
        seen.append([a.dtype.name for a in batch])
        return jnp.mean(w * batch[0] / 255.0 * batch[1] * batch[2])

    item = np.ones((4, 1), np.uint8), np.ones((4, 1), np.int64), np.ones((4, 1), bool)
    own = peer.problems.stream(loss, np.zeros(1), [lambda: iter([item] * 10)] * 3, item)
    seen.clear()
    peer.run(peer.methods.dsgd(), own, RING, steps=5, record=1)
    assert ["uint8", "int32", "bool"] in seen
    assert all(types == ["uint8", "int32", "bool"] for types in seen[-1:])


def test_an_error_in_an_iterator_names_the_node():
    def failing(node):
        yield from items(node, 50)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone") as error:
        run(problem(*(partial(failing, node) for node in range(NODES))))
    assert error.value.__notes__[0].startswith("in the iterator of node 0, at item 51")


def test_definitions_are_those_of_the_loss():
    def doubled(w, batch):
        return 2 * squared(w, batch)

    found = [digest(problem(function=each).definition) for each in (squared, squared, doubled)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "d-get",
            "d-get draws samples in some iterations only, .*: use a method that draws in every iteration",
        ),
        ("gt-sarah", "gt-sarah takes exact local gradients, and squared has none"),
    ],
)
def test_methods_that_cannot_be_fed_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        peer.run(peer.methods.parse(method), problem(), RING, steps=10)


def test_other_engines_sweeps_and_samples_outside_of_runs_are_refused():
    own = problem()
    with pytest.raises(
        ValueError, match="come from iterators in this process, which engine sharded does not read"
    ):
        run(own, engine="sharded")
    with pytest.raises(
        ValueError, match="come from iterators in this process, which a sweep does not read"
    ):
        peer.sweep("gt-hsgd", {"alpha": [0.1]}, own, RING, steps=10)
    with pytest.raises(ValueError, match=r"has the same rows for every seed, .*: give one seed"):
        run(own, seed=[0, 1])
    with pytest.raises(
        ValueError, match="samples come from iterators, and can only be read in a run"
    ):
        own.stochastic_grads(np.zeros(2))
    with pytest.raises(ValueError, match="has no epochs, since its samples never end: give steps"):
        peer.run(METHOD, own, RING, epochs=1)


def changed(node, **other):
    """One item as the others, then one of another form."""
    yield next(items(node))
    yield next(items(node)) | other


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: problem(1, 2, 3),
            "node 0 has a int: give an iterable, or a function that returns one",
        ),
        (lambda: problem([], [], []), "the iterator of node 0 has no items"),
        (
            lambda: problem([1.0], [1.0], [1.0]),
            r"first item of node 0 has arrays of shapes \[\(\)\]",
        ),
        (lambda: problem(["a"], ["a"], ["a"]), "first item of node 0 has arrays .*: give numbers"),
        (
            lambda: problem([np.zeros((2, 3))], [np.zeros((2, 4))], [np.zeros((2, 3))]),
            r"^the first item of node 1 has rows of shape \(4,\), and \(3,\) in the first item of node 0: all rows",
        ),
        (
            lambda: problem([{"a": np.zeros((2, 3)), "b": np.zeros(3)}]),
            "the same number of rows first in every array",
        ),
        (
            lambda: problem([np.zeros((2, 3))]),
            r"test has rows of shapes {'a': \(2,\), 'b': \(\)}, and the first item of node 0 of \(3,\): all rows must",
        ),
        (
            lambda: problem(*[items(0)] * 3),
            "nodes 0 and 1 have the same generator, and would take each other's rows: give each an iterator of its own",
        ),
        (
            lambda: problem(items(0), *[partial(iter, items(1))] * 2),
            "nodes 1 and 2 have the same generator",
        ),
        (lambda: problem(*[partial(items, 0)] * 40), "test has 31 rows for 40 nodes"),
        (
            lambda: problem(function=lambda w, batch: jnp.sum(w) + len(batch["a"])),
            r"the loss of \d+ rows is",
        ),
        (
            lambda: peer.problems.stream(squared, np.zeros(2), items(0), TEST),
            "iterators is a generator: give a list",
        ),
        (
            lambda: run(problem(*[partial(changed, 0, b=np.zeros((1, 1)))] * 3)),
            r"^'b' of item 2 of node 0 has rows of shape \(1,\), and \(\) in the first item of node 0: all rows must",
        ),
        (
            lambda: run(problem(*[partial(changed, 0, b=np.zeros(1, int))] * 3)),
            "^'b' of item 2 of node 0 has values of type integers with a sign, and floating-point numbers in the first",
        ),
        (
            lambda: run(problem(*[partial(changed, 0, b=np.zeros(1, bool))] * 3)),
            "^'b' of item 2 of node 0 has values of type bool, and floating-point numbers in the first",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_an_iterator_may_use_its_memory_again():
    def rows(node, copied):
        rng, a = np.random.default_rng(node), np.zeros((1, 2))
        while True:
            a[:] = rng.normal(size=(1, 2))
            yield a.copy() if copied else a

    def found(copied):
        sources = [lambda node=node: rows(node, copied) for node in range(4)]
        problem = peer.problems.stream(
            lambda w, a: jnp.mean((a - w) ** 2), np.zeros(2), sources, np.ones((4, 2))
        )
        method = peer.methods.dsgd(alpha=0.1, batch=3)
        return peer.run(
            method, problem, peer.Network(peer.topology.ring(4)), steps=20, record=1, progress=False
        ).x

    np.testing.assert_array_equal(found(False), found(True))


def test_nodes_that_begin_with_the_same_rows_are_warned_of():
    """A lambda in a loop sees the loop's last value, so all nodes would read the last one's stream."""

    def rows(node):
        return iter([{"a": np.full((4, 3), 1.0 + node), "b": np.ones(4)}] * 9)

    test = next(rows(0))
    with pytest.warns(
        UserWarning, match="nodes 0 and 1 begin with the same rows.* write lambda node=node: rows"
    ):
        peer.problems.stream(squared, np.zeros(3), [lambda: rows(node) for node in range(3)], test)  # noqa: B023
    peer.problems.stream(
        squared, np.zeros(3), [lambda node=node: rows(node) for node in range(3)], test
    )


def test_lists_are_tuples():
    """A data loader yields lists of the arrays that a data set has as a tuple."""

    def error(w, batch):
        a, b = batch
        return ((a @ w - b) ** 2).mean()

    def rows(node, kind):
        return [kind([np.full((4, 3), 1.0 + node), np.ones(4)])] * 9

    found = [
        peer.problems.stream(
            error, np.zeros(3), [rows(node, kind) for node in range(NODES)], tuple(rows(9, list)[0])
        )
        for kind in (list, tuple)
    ]
    one, other = (peer.run("dsgd[alpha=0.1]", each, RING, steps=5, record=1) for each in found)
    np.testing.assert_array_equal(one.x, other.x)
