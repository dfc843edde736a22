"""The parsers refuse what they cannot read, and give no wrong numbers: damaged inputs, the same ones every time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzzing


@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_valid_inputs_are_accepted(name):
    assert {fuzzing.outcome(name, content) for content in fuzzing.TARGETS[name][1]()} == {
        "accepted"
    }


@pytest.mark.parametrize("name", fuzzing.TARGETS)
@settings(max_examples=100)
@given(seed=st.integers(0, 2**64 - 1))
def test_damaged_inputs_are_refused_or_right(name, seed):
    fuzzing.outcome(name, fuzzing.damaged(name, seed))


@pytest.mark.parametrize("name", fuzzing.TARGETS)
@settings(max_examples=50)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused_or_right(name, content):
    fuzzing.outcome(name, content)
