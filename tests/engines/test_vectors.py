"""Vectors whose memory is used again: whatever is computed and dropped in whatever order, nobody's values change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdescent.engines.vectors import Pool, combine
from small import assert_close

FACTORS = (1.0, -1.0, 0.0, 2.0)
SIGNS = np.array([1.0, -1.0, 1.0])
KINDS = (
    "add",
    "subtract",
    "scale",
    "negate",
    "multiply",
    "fused",
    "drop",
    "read",
    "lend",
    "later",
    "twice",
)
STEP = st.tuples(st.sampled_from(KINDS), *[st.integers(0, 100)] * 3, st.sampled_from(FACTORS))


def computed(kind, a, b, c, factor, pool):
    """The same of vectors and of arrays."""
    if kind in ("lend", "later") and pool is None:
        return a * factor
    made = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "scale": lambda: factor * a,
        "negate": lambda: -a,
        "multiply": lambda: a * (SIGNS if pool is None else pool.copy(torch.from_numpy(SIGNS))),
        "fused": lambda: a + factor * b - c,
        "twice": lambda: factor * a + a - a,
        "lend": lambda: pool.lent(a.tensor * factor),
        "later": lambda: pool.later(lambda: torch.mul(a.tensor, factor, out=pool.take())),
    }
    return made[kind]()


@settings(max_examples=300)
@given(st.lists(STEP, max_size=30))
def test_no_value_ever_changes(steps):
    pool, rng = Pool(torch.empty(3, dtype=torch.float64)), np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, size=3).astype(float) for _ in range(3)]  # so all sums are exact
    vectors = [pool.copy(torch.from_numpy(a)) for a in arrays]
    for kind, i, j, k, factor in steps:
        i, j, k = (number % len(vectors) for number in (i, j, k))
        if kind == "read":
            np.testing.assert_array_equal(vectors[i].tensor.numpy(), arrays[i])
        elif kind == "drop":
            if len(vectors) > 1:
                del vectors[i], arrays[i]
        else:
            arrays.append(computed(kind, arrays[i], arrays[j], arrays[k], factor, None))
            vectors.append(computed(kind, vectors[i], vectors[j], vectors[k], factor, pool))
    for vector, array in zip(vectors, arrays, strict=True):
        np.testing.assert_array_equal(vector.tensor.numpy(), array)
    memory = [vector.tensor.data_ptr() for vector in vectors] + [
        tensor.data_ptr() for tensor in pool.free
    ]
    assert len(set(memory)) == len(memory)


def test_a_sum_is_computed_in_the_memory_of_a_term_that_nobody_else_has():
    pool = Pool(torch.empty(2))
    kept, g = (pool.copy(torch.tensor([value, 2.0])) for value in (1.0, 3.0))
    first = kept * g
    memory = first.tensor.data_ptr()
    found = first - 0.5 * g
    del first
    assert found.tensor.data_ptr() == memory
    held = kept * g
    other = held - 0.5 * g
    assert other.tensor.data_ptr() != held.tensor.data_ptr()


@pytest.mark.parametrize("place", [None, 0, 1])
def test_sums_may_be_written_over_a_term(place):
    tensors = [torch.tensor([float(k), 1.0], dtype=torch.float64) for k in range(1, 4)]
    factors = [1.0 if place == 1 else 0.25, 0.75, -2.0]
    for count in (1, 2, 3):
        if place is not None and place >= count:
            continue
        terms = [
            (factor, tensor.clone())
            for factor, tensor in zip(factors[:count], tensors, strict=False)
        ]
        expected = sum(factor * tensor.numpy().copy() for factor, tensor in terms)
        out = torch.empty(2, dtype=torch.float64) if place is None else terms[place][1]
        assert_close(combine(out, terms).numpy(), expected)
