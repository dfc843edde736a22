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
