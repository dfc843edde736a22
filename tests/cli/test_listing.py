"""The commands `network` and `list`."""

from io import StringIO

import numpy as np
import pytest

import peerdescent
from cli.conftest import is_drawn
from peerdescent.cli import listing
from peerdescent.engines import registry
from peerdescent.methods import METHODS
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from peerdescent.networks.topology import TOPOLOGIES


def test_network(peer):
    answer = peer("network", "exponential", "--nodes", "20", "--out", "figures/e.png")
    facts = dict(line.rsplit(maxsplit=1) for line in answer.out.splitlines() if len(line.split()) > 1)
    assert facts["lambda"] == "0.75"
    assert facts["spectral gap"] == "0.25"
    assert facts["weights"] == "lazy"
    network = peerdescent.Network(peerdescent.networks.topology.exponential(20))
    assert float(facts["smallest eigenvalue"]) == pytest.approx(network.smallest_eigenvalue, rel=1e-5)
    assert all(facts[name] == "yes" for name in METHODS)
    assert is_drawn("figures/e.png")


def test_network_says_why_not(peer):
    out = peer("network", "directed-exponential").out
    assert "d2            no, it needs a symmetric weight matrix" in out
    assert "smallest eigenvalue" not in out


def test_network_matrix_is_csv(peer):
    answer = peer("network", "star", "--nodes", "5", "--weights", "metropolis", "--matrix")
    W = np.loadtxt(StringIO(answer.out), delimiter=",")
    network = peerdescent.Network(peerdescent.networks.topology.star(5), "metropolis")
    np.testing.assert_array_equal(W, network.W)


SECTIONS = {
    "methods": METHODS,
    "estimators": ESTIMATORS,
    "fusions": FUSIONS,
    "compressors": peerdescent.compressors.COMPRESSORS,
    "topologies": TOPOLOGIES,
    "faults": peerdescent.faults.FAULTS,
    "data": peerdescent.datasets.SETS,
    "engines": registry.ENGINES,
}


def test_list_names_everything(peer):
    whole = peer("list").out
    for section, names in SECTIONS.items():
        one = peer("list", section).out
        assert {line.partition(" ")[0] for line in one.splitlines()} >= set(names)
        assert one in whole
    assert set(SECTIONS) == set(listing.SECTIONS)


def test_list_of_methods_has_parts_defaults_and_sources(peer):
    shown = peer("list", "methods").out
    assert "Xin, Khan & Kar, ICML 2021" in shown
    assert "alpha=0.1, beta=0.01" in shown
    assert "'hybrid*exact-diffusion[alpha=0.5]'" in shown


GROUPS = {
    "ideal links": ("dsgd", "gt-hsgd", "gt-adam"),
    "few bytes": ("choco-sgd", "beer", "motef", "docom"),
    "few rounds": ("k-gt", "led", "proxskip"),
    "heavy tails": ("gt-nsgdm",),
    "directed graphs": ("push-pull",),
    "composite problems": ("proxgt", "deepstorm"),
}


@pytest.mark.parametrize("columns", ["80", "140", None])
def test_list_groups_methods_by_what_they_are_for(peer, monkeypatch, columns):
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    lines = peer("list", "methods").out.splitlines()
    assert max(map(len, lines)) <= int(columns or 140)
    first = [line.strip() if line.startswith("For ") else line.partition(" ")[0] for line in lines]
    found = [word for word in first if word.startswith("For ") or word in METHODS]
    assert [word[4:] for word in found if word.startswith("For ")] == list(GROUPS)
    assert len(found) == len(GROUPS) + len(METHODS), "every method once"
    for purpose, some in GROUPS.items():
        here = found[found.index(f"For {purpose}") + 1 :]
        end = next((k for k, word in enumerate(here) if word.startswith("For ")), len(here))
        assert set(some) <= set(here[:end])
    assert not [line for line in lines if line.startswith(" ") and "*" in line], "no method is cut"


def test_a_method_that_is_registered_is_listed(peer, monkeypatch):
    new = peerdescent.methods.Entry(peerdescent.methods.dsgd, "Nobody 2030", "few bytes")
    monkeypatch.setitem(METHODS, "new-method", new)
    shown = peer("list", "methods").out
    assert shown.index("docom") < shown.index("new-method") < shown.index("For few rounds")
    monkeypatch.setitem(METHODS, "new-method", new._replace(purpose="days of rain"))
    assert peer("list", "methods").out.partition("For days of rain")[2].split()[0] == "new-method"
