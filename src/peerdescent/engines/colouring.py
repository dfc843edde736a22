"""Rounds of messages: a proper edge colouring, so that in a round each device sends at most one and hears at most one.

Messages are the edges of a bipartite graph, senders on the left and receivers on the right. Such a graph needs no more
colours than its largest degree (König 1916), and no fewer will do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Message = tuple[int, int]


def colours(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages (source, target) in as many rounds as the busiest sender or receiver has messages.

    One message after the other takes the first colour that is free at its source. Where that colour is taken at the
    target, the path of edges that alternate between it and a colour free at the target changes the two colours over;
    in a bipartite graph this path never comes to the source. Messages that come early share the early rounds.

    >>> colours([(0, 1), (1, 2), (2, 0), (0, 2)])
    [[(0, 1), (1, 2), (2, 0)], [(0, 2)]]
    """
    ends = [Counter(source for source, _ in messages), Counter(target for _, target in messages)]
    rounds = max((count for side in ends for count in side.values()), default=0)
    # The edge of each colour at each end, by its other end.
    edges: dict[tuple[str, int], dict[int, tuple[str, int]]] = defaultdict(dict)
    for source, target in messages:
        left, right = ("sends", source), ("hears", target)
        free, spare = (next(c for c in range(rounds) if c not in edges[end]) for end in (left, right))
        path, end, colour = [], right, free
        while colour in edges[end]:
            path.append((end, edges[end][colour], colour))
            end, colour = edges[end][colour], free + spare - colour
        for one, other, colour in path:
            del edges[one][colour], edges[other][colour]
        # The new edge goes with them, in the colour that is now free at both its ends.
        for one, other, colour in [*path, (left, right, spare)]:
            edges[one][free + spare - colour], edges[other][free + spare - colour] = other, one
    found: list[list[Message]] = [[] for _ in range(rounds)]
    for source in ends[0]:
        for colour, (_, target) in edges["sends", source].items():
            found[colour].append((source, target))
    return found
