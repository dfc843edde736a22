"""Gradients needed: on curves whose answer is known, and on tiny runs."""

from __future__ import annotations

import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent import theory
from peerdescent.cli.main import main
from peerdescent.studies import gradients as study
from pictures import colours

DOCS = Path(__file__).parents[2] / "docs" / "theory"


def command(*arguments):
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return left.value.code


def curve(scale: float, power: float, seeds: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Gradients, and gaps whose root is (scale / gradients)^power."""
    gradients = np.geomspace(10, 1e6, 12)
    return gradients, np.repeat(((scale / gradients) ** power)[:, None] ** 2, seeds, axis=1)


@pytest.mark.parametrize("power", [1 / 3, 1.0])
def test_the_gradients_needed_are_where_the_curve_crosses(power):
    assert study._needed(*curve(100.0, power), 0.5) == pytest.approx(
        100 / 0.5 ** (1 / power), rel=1e-9
    )
    assert math.isnan(study._needed(*curve(100.0, power), 1e-9))  # never reached
    assert math.isnan(study._needed(*curve(1e-3, power), 0.5))  # reached before the first


def test_the_gap_is_averaged_before_its_root_is_taken():
    gradients, gaps = curve(100.0, 1.0, seeds=2)
    gaps = gaps * np.array([0.5, 1.5])
    assert study._needed(gradients, gaps, 0.5) == pytest.approx(200, rel=1e-9)


def test_the_published_slopes_are_those_of_the_published_measurements():
    """Also that a slope and its interval do not depend on the library that draws the bootstrap samples."""
    published = pd.read_csv(DOCS / "slopes.csv")
    gaps = pd.read_csv(DOCS / "speedup-gaps.csv")
    for row in published.iloc[[0, -1]].to_dict("records"):
        found = study._slope(
            {n: study._curve(gaps, row["topology"], n) for n in (1, 2, 4, 8, 16, 32, 64)},
            row["epsilon"],
        )
        assert found == pytest.approx(
            {name: row[name] for name in ("slope", "low", "high", "sizes")}, rel=1e-12
        )


def test_an_epsilon_that_is_never_reached_has_no_slope():
    found = study._slope({n: curve(100.0 / n, 1 / 3) for n in (1, 2, 4)}, 1e-9)
    assert [math.isnan(found[name]) for name in ("slope", "low", "high")] == [True] * 3
    assert found["sizes"] == 0


def test_a_linear_speedup_has_slope_minus_one_and_noise_widens_the_interval():
    sizes = (1, 2, 4, 8, 16)
    exact = study._slope({n: curve(100.0 / n, 1 / 3) for n in sizes}, 0.2)
    assert [exact[k] for k in ("slope", "low", "high")] == pytest.approx([-1.0] * 3, abs=1e-9)
    assert exact["sizes"] == 5
    none = study._slope({n: curve(100.0, 1 / 3) for n in sizes}, 0.2)
    assert none["slope"] == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    noisy = {
        n: (g, v * np.exp(0.3 * rng.normal(size=v.shape)))
        for n in sizes
        for g, v in [curve(100.0 / n, 1 / 3, 10)]
    }
    found = study._slope(noisy, 0.2)
    assert found["low"] < found["slope"] < found["high"]
    assert 0.02 < found["high"] - found["low"] < 0.5


SMALL = study.SCALES["tiny"]._replace(
    nodes=(1, 4), budgets=(2**8, 2**12), steps=(64, 400), independence_epsilons=(0.88,)
)
"""On 20 nodes b_0 is 1 for both T, so that they share a program."""
GRAPHS = study.GRAPHS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(study.SCALES, "tiny", SMALL)
    monkeypatch.setattr(study, "GRAPHS", ("ring", "exponential", "complete"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What both studies write, by their name on the command line."""
    found = {what: tmp_path_factory.mktemp(what) for what in ("speedup", "topology")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.SCALES, "tiny", SMALL)
        patch.setattr(study, "GRAPHS", ("ring", "exponential", "complete"))
        for what, folder in found.items():
            assert (
                command("reproduce", what, "--scale", "tiny", "--out", str(folder), "--quiet") == 0
            )
    return found


@pytest.fixture
def copies(folders, tmp_path, monkeypatch):
    """Copies of these folders, and no measuring any more."""

    def fail(*_, **__):
        raise AssertionError("measured twice")

    monkeypatch.setattr(study, "_gap", fail)
    return {what: shutil.copytree(folder, tmp_path / what) for what, folder in folders.items()}


def test_the_graphs_are_those_of_the_published_table():
    published = pd.read_csv(DOCS / "topology.csv").groupby("topology", sort=False)["lambda"].first()
    found = {name: peer.Network(peer.topology.build(name, study.NODES)).lam for name in GRAPHS}
    assert found == pytest.approx(published.to_dict(), abs=1e-9)


@pytest.mark.parametrize("what", ["speedup", "topology"])
@pytest.mark.long
def test_tables_and_figures_are_written(what, folders):
    for name in (f"{what}.csv", "gaps.csv", "gaps.json", f"{what}.pdf"):
        assert (folders[what] / name).stat().st_size > 0
    assert colours(folders[what] / f"{what}.png") > 50


def test_the_speedup_and_the_ring_show_on_tiny_runs(folders):
    slopes = pd.read_csv(folders["speedup"] / "slopes.csv")
    assert slopes["slope"].dropna().between(-2, -0.3).all()
    assert len(slopes["slope"].dropna()) > 0
    found = pd.read_csv(folders["topology"] / "topology.csv").set_index(["topology", "epsilon"])[
        "ratio"
    ]
    assert found["ring", 0.88] > 1.5 > found["exponential", 0.88] > 0.9


def test_what_is_measured_is_not_measured_again(folders, copies):
    for what, measure in (("speedup", study.speedup), ("topology", study.independence)):
        measure("tiny", copies[what], progress=False)
        for name in (f"{what}.csv", "gaps.csv"):
            assert (copies[what] / name).read_bytes() == (folders[what] / name).read_bytes()


def test_measurements_of_another_problem_are_not_taken_for_ones_own(copies, monkeypatch):
    """The table of gaps says which problem they are of."""
    with pytest.raises(
        ValueError,
        match=r"gaps.csv is about something else: spread is 1\.0 here and was 0\.0 there",
    ):
        study.speedup("tiny", copies["speedup"], spread=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(study, "NOISE", 2.0)
        with pytest.raises(ValueError, match=r"noise is 2\.0 here and was 1\.0 there"):
            study.speedup("tiny", copies["speedup"])
    (copies["speedup"] / "gaps.json").unlink()
    with pytest.raises(ValueError, match="does not say what it is about"):
        study.speedup("tiny", copies["speedup"])


def test_nodes_may_differ_and_runs_be_mapped_by_another_function(folders, tmp_path, monkeypatch):
    monkeypatch.setitem(study.SCALES, "tiny", SMALL._replace(budgets=(2**8,)))
    sent = []

    def each(function, keys):
        for key in keys:
            sent.append(key)
            yield pickle.loads(pickle.dumps(function))(key)

    found = study.speedup("tiny", tmp_path, spread=1.0, each=each, progress=False).gaps
    graphs, key = ("complete", "exponential"), ["topology", "nodes", "steps", "seed"]
    assert sent == [
        (graph, 4, 64, seed, SMALL.points) for graph in graphs for seed in (1, 2)
    ]  # one node cannot differ
    alike = pd.read_csv(folders["speedup"] / "gaps.csv").set_index(key)["gap"]
    assert (found.set_index(key)["gap"] / alike).dropna().min() > 1.05
    with pytest.raises(ValueError, match="spread = -1: must be a number of at least 0"):
        study.speedup("tiny", tmp_path, spread=-1.0)


def test_the_spread_is_a_flag(copies, capsys):
    """Of which the folder of a measurement knows another value."""
    arguments = [
        "reproduce",
        "speedup",
        "--scale",
        "tiny",
        "--out",
        str(copies["speedup"]),
        "--quiet",
    ]
    assert command(*arguments, "--spread", "0") == 0
    assert command(*arguments, "--spread", "1.5") == 2
    assert "spread is 1.5 here and was 0.0 there" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("nodes", [2, 3, 64])
def test_the_spread_is_the_same_for_every_number_of_nodes(nodes):
    """So are F and, by the stream's fourth moments, the mean variance at any x."""
    problem, common = study._problem(nodes, 0.7, exact=True), study._problem(1, 0.0).data.planted
    assert np.mean((problem.data.planted - common) ** 2) == pytest.approx(0.49, rel=1e-12)
    x = np.linspace(-1, 2, study.FEATURES)
    assert np.allclose(problem.grad(x), study._problem(1, 0.0).grad(x), rtol=0, atol=1e-12)
    about = peer.problems.streaming(nodes, 10, spread=0.7).data.planted
    assert np.array_equal(study._problem(nodes, 0.7).data.planted, about)


def test_a_diverged_seed_leaves_the_others_of_its_length_in_place():
    rows = [
        {
            "topology": "ring",
            "nodes": 4,
            "lambda": 0.5,
            "steps": steps,
            "seed": k,
            "gradients": 2 * steps,
            "gap": gap,
        }
        for steps, gap in ((10, 1.0), (100, 0.01))
        for k in (1, 2)
    ]
    rows[0] |= {"gradients": 3, "gap": math.inf}
    gradients, gaps = study._curve(pd.DataFrame(rows), "ring", 4)
    assert gradients.tolist() == [20, 200]
    assert gaps.tolist() == [[math.inf, 1.0], [0.01, 0.01]]
    assert study._needed(gradients, gaps, 0.5) == 200
    assert study._means(pd.DataFrame(rows))["gradients"].tolist() == [20, 200]


def test_the_prediction_is_the_corollarys(folders):
    found = pd.read_csv(folders["topology"] / "topology.csv").set_index(["topology", "epsilon"])[
        "predicted"
    ]
    known = theory.constants(study._problem(20, 1.0))
    lam = peer.Network(peer.topology.ring(20)).lam
    expected = theory.steps_for(known, 20, lam, 0.88) / theory.steps_for(known, 20, 0.0, 0.88)
    assert found["ring", 0.88] == pytest.approx(expected, rel=1e-9)
    assert found["complete", 0.88] == 1


def test_a_run_that_diverges_reaches_nothing(monkeypatch):
    monkeypatch.setattr(theory, "parameters", lambda *_: theory.Parameters(50.0, 0.1, 1))
    problem = study._problem(4, 0.0)
    assert study._gap(problem, peer.Network(peer.topology.ring(4)), 500, 0, 10)[1] == math.inf
