"""The settings of a sweep: the problems and networks that its configurations run on, with names for the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from peerdescent.errors import require
from peerdescent.networks.network import Network
from peerdescent.problems.problem import Problem
from peerdescent.runs.checks import check_is_network, check_is_problem, check_kinds
from peerdescent.runs.labels import differing_part, slugs, told_apart
from peerdescent.sweeps.seeds import SETTING


class Setting(NamedTuple):
    """A problem and a network with as many nodes."""

    problem: Problem
    network: Network
    names: dict[str, Any]
    """The values of the columns `SETTING`; empty where there is one setting, which needs no name."""
    folder: str
    """The folder of its results, in that of the sweep."""


def settings_of(problem: Any, network: Any) -> list[Setting]:
    """Every problem with every network that has as many nodes, from the arguments `problem` and `network`.

    Either is one object, a list, or a mapping from names to objects.
    """
    if not _is_several(problem) and not _is_several(network):
        check_kinds(problem, network)
        return [Setting(problem, network, {}, "")]
    problems, networks = (
        _named(problem, "problem", check_is_problem),
        _named(network, "network", check_is_network),
    )
    counts = {one.nodes for _, one in problems}, {other.n for _, other in networks}
    for what, name, nodes, others in [
        *(("problem", name, one.nodes, counts[1]) for name, one in problems),
        *(("network", name, other.n, counts[0]) for name, other in networks),
    ]:
        known = " or ".join(map(str, sorted(others)))
        require(
            nodes in others,
            f"the {what} {name} has {nodes} nodes, and no {'network' if what == 'problem' else 'problem'} has: each "
            f"goes with those of as many nodes, so leave it out, or make it one of {known}",
        )
    pairs = [(p, n) for p in problems for n in networks if p[1].nodes == n[1].n]
    named = [dict(zip(SETTING, (p[0], n[0], n[1].n), strict=True)) for p, n in pairs]
    places = slugs([" ".join(map(str, one.values())) for one in named])
    return [
        Setting(p[1], n[1], names, place)
        for (p, n), names, place in zip(pairs, named, places, strict=True)
    ]


def _is_several(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str)


def _named(given: Any, what: str, check: Callable[[Any], None]) -> list[tuple[Any, Any]]:
    """Pairs of a name and an object; two of one name must differ in their number of nodes."""
    several = list(
        given.values() if isinstance(given, Mapping) else given if _is_several(given) else [given]
    )
    require(len(several) > 0, f"{what} = {given}: give at least one")
    for one in several:
        check(one)
    names: list[Any] = list(given) if isinstance(given, Mapping) else _names(several)
    if isinstance(given, Mapping):
        for name in names:
            good = isinstance(name, str | Real) and name == name and name != ""
            require(good, f"{name!r} as the name of a {what}: give a text or a number")
    keys = [(name, _nodes(one)) for name, one in zip(names, several, strict=True)]
    for k, (name, _) in enumerate(keys):
        require(
            keys[k] not in keys[:k],
            f"two of {what} are {name}, and rows of the table would not tell them apart: give names, as in "
            f"{what}={{'first': ..., 'second': ...}}",
        )
    return list(zip(names, several, strict=True))


def _nodes(one: Problem | Network) -> int:
    return one.nodes if isinstance(one, Problem) else one.n


def _names(several: list[Any]) -> list[str]:
    """Their own names, with what else differs between those with equal names and as many nodes."""
    names = [str(one.name) for one in several]
    alike: dict[Any, list[int]] = defaultdict(list)
    for k, one in enumerate(several):
        alike[one.name, _nodes(one)].append(k)
    for places in (places for places in alike.values() if len(places) > 1):
        own = [several[k] for k in places]
        if isinstance(own[0], Problem):
            found = told_apart([one.name for one in own], [one.facts for one in own])
        else:
            texts = [str(one) for one in own]
            different = len(set(texts)) > 1
            found = [
                f"{own[0].name} ({differing_part(text, texts)})" if different else own[0].name
                for text in texts
            ]
        for k, name in zip(places, found, strict=True):
            names[k] = name
    return names
