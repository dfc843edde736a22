"""The colouring of messages: proper, complete and with the least number of rounds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import peerdescent as peer
from peerdescent.engines.colouring import colours

DEVICES = st.integers(0, 7)


def busiest(messages):
    return max(
        [*Counter(s for s, _ in messages).values(), *Counter(t for _, t in messages).values()],
        default=0,
    )


def check(messages):
    rounds = colours(messages)
    for together in rounds:
        assert together, "a round without a message"
        for end in zip(*together, strict=True):
            assert len(set(end)) == len(end), "a device sends or hears two messages in one round"
    assert Counter(m for together in rounds for m in together) == Counter(messages), (
        "a message is lost or repeated"
    )
    assert len(rounds) == busiest(messages)


@given(st.lists(st.tuples(DEVICES, DEVICES), max_size=120))
def test_any_messages_take_as_many_rounds_as_the_busiest_device_has(messages):
    """Parallel messages and messages to oneself included."""
    check(messages)


@pytest.mark.parametrize("n", [2, 5, 16, 33])
@pytest.mark.parametrize(
    "name", ["ring", "exponential", "directed-exponential", "complete", "star", "erdos-renyi"]
)
def test_topologies(name, n):
    options = {"seed": 0} if name == "erdos-renyi" else {}
    check(list(peer.topology.build(name, n, **options).to_directed().edges))
