"""Whole numbers that 32 bits do not hold are refused in a run of 32 bits, and are themselves in one of 64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from small import some

pytestmark = pytest.mark.filterwarnings(
    "ignore:nodes 0 and 1 begin with the same rows"
)  # here they do
RING = peer.Network(peer.topology.ring(4))
SMALL = np.arange(4)
LARGE = {
    "int64": (
        np.array([2**32 + 1, 2**32 + 2, 3, 4]),
        "4,294,967,298",
        "-2,147,483,648 to 2,147,483,647",
    ),
    "the next int64": (
        np.array([2**31, 0, 3, 4]),
        "2,147,483,648",
        "-2,147,483,648 to 2,147,483,647",
    ),
    "negative": (
        np.array([-(2**31) - 1, 2**33, 3, 4]),
        "-2,147,483,649",
        "-2,147,483,648 to 2,147,483,647",
    ),
    "uint64": (
        np.array([2**32, 2**32 + 2, 3, 4], np.uint64),
        "4,294,967,298",
        "0 to 4,294,967,295",
    ),
}
FIT = {
    "int64": np.array([2**31 - 1, -(2**31), 3, 4]),
    "uint64": np.array([2**32 - 1, 0, 3, 4], np.uint64),
    "uint32": np.array([2**32 - 1, 0, 3, 4], np.uint32),
    "int8": np.array([127, -128, 3, 4], np.int8),
    "bool": np.array([True, False, True, True]),
}


def squared(w, batch):
    """At 0, the share of large identifiers."""
    return jnp.mean((w[0] - batch["y"] * (batch["id"] > 100)) ** 2)


def held(ids):
    return peer.problems.loss(
        squared, np.zeros(1), {"id": np.tile(ids, (4, 1)), "y": np.ones((4, 4))}
    )


def fed(ids, test=SMALL):
    def items():
        yield {"id": SMALL.astype(ids.dtype), "y": np.ones(4)}
        while True:
            yield {"id": ids, "y": np.ones(4)}

    return peer.problems.stream(
        squared, np.zeros(1), [items] * 4, {"id": test.astype(ids.dtype), "y": np.ones(4)}
    )


def run(problem, **options):
    return peer.run(
        "dsgd[alpha=0.5,batch=4]", problem, RING, **{"steps": 2, "progress": False, **options}
    )


def refused(what, ids):
    _, value, between = LARGE[ids]
    said = f"^{what} has {value}, and whole numbers of a run with precision=32 lie in {between}: use precision=64, or "
    return pytest.raises(ValueError, match=said)


@pytest.mark.parametrize("name", LARGE)
def test_data_that_do_not_fit_are_refused(name):
    with refused(r"data.*\['id'\]", name):
        run(held(LARGE[name][0]))


@pytest.mark.parametrize("name", LARGE)
def test_items_that_do_not_fit_are_refused_when_they_are_read(name):
    with refused("item 2 of node 0", name):
        run(fed(LARGE[name][0]))


def test_all_that_runs_refuses_them():
    ids = LARGE["int64"][0]
    with refused(r"data.*\['id'\]", "int64"):
        peer.sweep("dsgd", {"alpha": [0.1]}, held(ids), RING, steps=5)
    for engine, what in {"debug": r"data.*\['id'\]", "sharded": "data"}.items():
        with refused(what, "int64"):
            run(held(ids), engine=engine)
    with refused("item 2 of node 0", "int64"):
        run(fed(ids), engine="debug")
    with refused(r"data.*\['id'\]", "int64"):
        run(fed(FIT["int64"], ids))


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_they_are_themselves_in_64_bits(engine):
    ids = LARGE["int64"][0]
    assert held(ids).loss(np.zeros(1)) == 0.5
    assert run(held(ids), engine=engine, precision=64).table["loss"].iloc[0] == 0.5
    # The first rows are small, and the step of the second ones leads half of the way to their share.
    assert run(fed(ids), engine=engine, precision=64).x_mean == 0.5


@pytest.mark.parametrize("name", FIT)
def test_numbers_that_fit_are_taken(name):
    expected = float((FIT[name] > 100).mean())
    for engine in some(("stacked", "sharded"), 2):
        assert run(held(FIT[name]), engine=engine).table["loss"].iloc[0] == expected
    assert run(fed(FIT[name], FIT[name])).x_mean == expected
