"""What a shell completes: names of methods, data sets and topologies. Choices of options it knows by itself.

A completion is a name with a note, which some shells show. Nothing heavy is imported, so that
completion is quick.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping

Completions = list[tuple[str, str]]
WIDTH = 45
"""The width of a note. One that is broken into lines would be taken for several completions."""


def methods(incomplete: str) -> Completions:
    """The named methods, with citations."""
    from peerdescent.methods import METHODS

    return _beginning(incomplete, {name: entry.citation for name, entry in METHODS.items()})


def data(incomplete: str) -> Completions:
    """The named sets, with descriptions; a shell completes the names of files if there are none."""
    from peerdescent.datasets import SETS

    return _beginning(incomplete, {name: each.description for name, each in SETS.items()})


def topologies(incomplete: str) -> Completions:
    """The topologies, with descriptions."""
    from peerdescent.networks.topology import TOPOLOGIES

    notes = {
        name: (inspect.getdoc(function) or "").partition("\n")[0]
        for name, function in TOPOLOGIES.items()
    }
    return _beginning(incomplete, notes)


OPTIONS: dict[str, Callable[[str], Completions]] = {"data": data, "topology": topologies}
"""Options whose values are completed, by field of `Options`."""


def _beginning(incomplete: str, notes: Mapping[str, str]) -> Completions:
    short = {
        name: textwrap.shorten(note, WIDTH, placeholder=" ...") for name, note in notes.items()
    }
    return [(name, note) for name, note in short.items() if name.startswith(incomplete)]
