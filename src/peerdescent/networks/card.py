"""What a notebook shows of a network: its facts, and a drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

import numpy as np

from peerdescent.display import card, facts, graph, note
from peerdescent.networks import layout

if TYPE_CHECKING:
    from peerdescent.networks.network import Network

NODES, LINKS = 60, 600
"""The most nodes and links that are drawn; more would not be legible."""
TURNS = 4
"""The most matrices of a sequence that are drawn."""


def html(network: Network) -> str:
    """The card of a network."""
    lam = f"{network.lam:.4g}" if network.gap > 5e-4 else f"1 - {network.gap:.1e}"
    if network.lam_interval is not None:
        lam += " ({:.4g} to {:.4g} at 95 %)".format(*network.lam_interval)
    low, high = float(network.degree.min()), float(network.degree.max())
    neighbours = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    about = {
        "nodes": f"{network.n:,}",
        "neighbours": neighbours,
        "links": "one way" if network.is_directed else "both ways",
        "weights": network.rule,
        "changes": f"every step, with period {network.period}" if network.period > 1 else None,
        "random": None if network.graph is None else ", ".join(map(str, network.graph.about)),
        "rounds of a mix": f"{network.rounds}{', accelerated' if network.momentum else ''}"
        if network.rounds > 1
        else None,
        "faults": ", ".join(map(str, network.faults)),
        "λ": lam,
    }
    return card(f"Network: {network.name}", facts(about), *_drawings(network))


def _drawings(network: Network) -> list[Element]:
    every = [layout.links(W) for W in network.examples[:TURNS]]
    most = max(map(len, every)) // (1 if network.is_directed else 2)
    if network.n > NODES or most > LINKS:
        many = f"{network.n:,} nodes" if network.n > NODES else f"{most:,} links"
        return [
            note(
                f"{many} are too many to draw here; peer.figures.drawing(network) draws them in a figure."
            )
        ]
    places, drawn = layout.places(network.name, network.n), []
    for turn, pairs in enumerate(every):
        both, name = set(pairs), network.name
        lines = [
            s
            for j, i in pairs
            if j < i and (i, j) in both
            for s in layout.segments(name, places[j], places[i])
        ]
        arrows = [np.stack([places[j], places[i]]) for j, i in pairs if (i, j) not in both]
        if len(every) == 1:
            title = ""
        else:
            title = (
                f"t mod {network.period} = {turn}"
                if network.graph is None
                else f"a draw, t = {turn}"
            )
        drawn.append(graph(places, lines, arrows, 220 if len(every) == 1 else 160, title))
    if network.period > TURNS:
        drawn.append(note(f"and {network.period - TURNS} more"))
    return drawn
