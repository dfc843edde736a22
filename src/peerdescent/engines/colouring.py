"""Rounds of messages, such that in each round a device sends at most one message and receives at most one.

This is a proper edge colouring of a bipartite graph, with senders on the left and receivers on the
right. The least number of colours is its largest degree (König 1916).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Message = tuple[int, int]


def colours(messages: Sequence[Message]) -> list[list[Message]]:
    """Divide messages (source, target) into rounds, as few as possible: the most messages of one sender or receiver.

    Each message in turn takes the first colour that is free at its source. If that colour is taken
    at the target, the two colours of an alternating path from the target are exchanged: this colour
    and one that is free at the target. In a bipartite graph the path never reaches the source. The
    first messages share the first rounds.

    >>> colours([(0, 1), (1, 2), (2, 0), (0, 2)])
    [[(0, 1), (1, 2), (2, 0)], [(0, 2)]]
    """
    ends = [Counter(source for source, _ in messages), Counter(target for _, target in messages)]
    rounds = max((count for side in ends for count in side.values()), default=0)
    # For each vertex and colour, the other end of the edge of that colour.
    edges: dict[tuple[str, int], dict[int, tuple[str, int]]] = defaultdict(dict)
    for source, target in messages:
        left, right = ("sends", source), ("hears", target)
        free, spare = (
            next(c for c in range(rounds) if c not in edges[end]) for end in (left, right)
        )
        path, end, colour = [], right, free
        while colour in edges[end]:
            path.append((end, edges[end][colour], colour))
            end, colour = edges[end][colour], free + spare - colour
        for one, other, colour in path:
            del edges[one][colour], edges[other][colour]
        # Set the exchanged colours, and that of the new edge, which is now free at both its ends.
        for one, other, colour in [*path, (left, right, spare)]:
            edges[one][free + spare - colour], edges[other][free + spare - colour] = other, one
    found: list[list[Message]] = [[] for _ in range(rounds)]
    for source in ends[0]:
        for colour, (_, target) in edges["sends", source].items():
            found[colour].append((source, target))
    return found
