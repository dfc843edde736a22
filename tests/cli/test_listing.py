"""The commands `network` and `list`, and what a shell completes."""

import csv
import json
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
    facts = dict(
        line.rsplit(maxsplit=1) for line in answer.out.splitlines() if len(line.split()) > 1
    )
    assert facts["lambda"] == "0.75"
    assert facts["spectral gap"] == "0.25"
    assert facts["weights"] == "lazy"
    network = peerdescent.Network(peerdescent.networks.topology.exponential(20))
    assert float(facts["smallest eigenvalue"]) == pytest.approx(
        network.smallest_eigenvalue, rel=1e-5
    )
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


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_as_json_and_csv(peer, section):
    rows = json.loads(peer("list", section, "--format", "json").out)
    table = list(csv.DictReader(StringIO(peer("list", section, "--format", "csv").out)))
    first = next(iter(rows[0]))
    assert (
        sorted(row[first] for row in rows)
        == sorted(row[first] for row in table)
        == sorted(SECTIONS[section])
    )
    assert all(list(row) == list(rows[0]) for row in [*rows, *table])
    assert not [row for row in table if row.get("what") == ""]


def test_what_is_listed_as_json_is_what_the_library_has(peer):
    everything = json.loads(peer("list", "--format", "json").out)
    assert list(everything) == list(SECTIONS)
    by_name = {row["method"]: row for row in everything["methods"]}
    for name, entry in METHODS.items():
        row, built = by_name[name], entry.build()
        assert [row["estimator"], row["fusion"]] == [
            type(p).__name__.replace("_", "-") for p in built.parts
        ]
        values = {own: str(value) for own, value in row["parameters"].items()}
        assert values == {own: str(built.parameters[own]) for own in entry.parameters}
        assert (row["purpose"], row["source"]) == (entry.purpose, entry.citation)
    sizes = {row["data"]: (row["rows"], row["features"]) for row in everything["data"]}
    assert sizes == {name: each.shape for name, each in peerdescent.datasets.SETS.items()}
    hybrid = next(row for row in everything["estimators"] if row["estimator"] == "hybrid")
    assert hybrid["parameters"]["beta"]["default"] == 0.01


def test_network_as_json_and_csv(peer):
    words = ["network", "directed-exponential", "--nodes", "6", "--format"]
    facts = json.loads(peer(*words, "json").out)
    network = peerdescent.Network(peerdescent.networks.topology.directed_exponential(6))
    assert (facts["nodes"], facts["lambda"], facts["symmetric"]) == (6, network.lam, False)
    assert facts["smallest_eigenvalue"] is None
    assert facts["methods"]["gt-hsgd"] == {"runs": True, "reason": ""}
    assert facts["methods"]["d2"]["reason"].startswith("needs a symmetric weight matrix")
    assert set(facts.pop("methods")) == set(METHODS)
    (row,) = csv.DictReader(StringIO(peer(*words, "csv").out))
    assert list(row) == [*facts, *METHODS]
    assert (float(row["lambda"]), row["gt-hsgd"], row["d2"]) == (network.lam, "True", "False")
    faulty = json.loads(
        peer("network", "ring", "--fault", "drop=0.1", "--rounds", "2", "--format", "json").out
    )
    assert (faulty["faults"], faulty["rounds"]) == (["drop=0.1"], 2)
    (W,) = json.loads(peer("network", "ring", "--nodes", "5", "--matrix", "--format", "json").out)
    np.testing.assert_array_equal(W, peerdescent.Network(peerdescent.networks.topology.ring(5)).W)


@pytest.fixture
def completed(peer, monkeypatch):
    """What a shell is told for a line that ends where the cursor is."""

    def call(line, shell="bash"):
        monkeypatch.setenv("_PEERDESCENT_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        answer = peer()
        assert (answer.code, answer.err) == (0, "")
        return [line for line in answer.out.splitlines() if line]

    return call


COMPLETED = {
    "run gt-": [name for name in METHODS if name.startswith("gt-")],
    "compare dsgd gt-h": ["gt-hsgd"],
    "tune ": list(METHODS),
    "run dsgd --data ": list(peerdescent.datasets.SETS),
    "reproduce figure1 --data a": ["a9a"],
    "run dsgd --topology r": ["ring", "random-matching", "random-regular"],
    "network ": list(TOPOLOGIES),
    "run dsgd --engine ": list(registry.ENGINES),
    "run dsgd --partition ": ["uniform", "label", "shards", "classes", "dirichlet", "quantity"],
    "list m": ["methods"],
    "list --format ": ["table", "csv", "json"],
    "run dsgd --norm": ["--normalise"],
    "theory ": ["constants", "parameters", "bound", "table1"],
    "net": ["network"],
    "run dsgd --data ./": [],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_completion(completed, line):
    assert completed(f"peerdescent {line}") == COMPLETED[line]


@pytest.mark.parametrize("columns", ["70", "200"])
def test_completion_with_notes(completed, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = completed("peerdescent run ", "fish")
    assert [line.partition("\t")[0] for line in lines] == list(METHODS)
    assert "gt-hsgd\tXin, Khan & Kar, ICML 2021" in lines
    assert '"dsgd":"Lian et al., NeurIPS 2017"' in " ".join(completed("peerdescent run d", "zsh"))


def test_completion_is_installed_for_the_shell(peer, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    assert (
        "complete -o default -F _peerdescent_completion peerdescent"
        in peer("--show-completion").out
    )
    assert "bash completion installed in " in peer("--install-completion").out
    assert (
        "_PEERDESCENT_COMPLETE=complete_bash"
        in (tmp_path / ".bash_completions/peerdescent.sh").read_text()
    )
