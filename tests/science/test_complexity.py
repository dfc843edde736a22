"""Bounds beside measurements, and gradients needed: on curves whose answer is known, and on tiny runs."""

from __future__ import annotations

import json
import math

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from conftest import small_logistic
from peerdescent import theory
from peerdescent.cli.main import main
from peerdescent.studies import gradients as complexity
from peerdescent.theory import measured as bounds


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
    assert complexity._needed(*curve(100.0, power), 0.5) == pytest.approx(100 / 0.5 ** (1 / power), rel=1e-9)
    assert math.isnan(complexity._needed(*curve(100.0, power), 1e-9))  # never reached
    assert math.isnan(complexity._needed(*curve(1e-3, power), 0.5))  # reached before the first


def test_the_gap_is_averaged_before_its_root_is_taken():
    gradients, gaps = curve(100.0, 1.0, seeds=2)
    gaps = gaps * np.array([0.5, 1.5])
    assert complexity._needed(gradients, gaps, 0.5) == pytest.approx(200, rel=1e-9)


def test_a_linear_speedup_has_slope_minus_one_and_noise_widens_the_interval():
    sizes = (1, 2, 4, 8, 16)
    exact = complexity._slope({n: curve(100.0 / n, 1 / 3) for n in sizes}, 0.2)
    assert [exact[k] for k in ("slope", "low", "high")] == pytest.approx([-1.0] * 3, abs=1e-9)
    assert exact["sizes"] == 5
    none = complexity._slope({n: curve(100.0, 1 / 3) for n in sizes}, 0.2)
    assert none["slope"] == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    noisy = {
        n: (g, v * np.exp(0.3 * rng.normal(size=v.shape))) for n in sizes for g, v in [curve(100.0 / n, 1 / 3, 10)]
    }
    found = complexity._slope(noisy, 0.2)
    assert found["low"] < found["slope"] < found["high"]
    assert 0.02 < found["high"] - found["low"] < 0.5


def test_the_mean_gap_of_few_records_is_that_of_all_steps():
    problem = peer.problems.streaming(4, 6, noise=1.0, spread=1.0, strength=4.0)
    network, method = peer.Network(peer.topology.ring(4)), peer.methods.gt_hsgd(alpha=0.01, beta=0.02)
    every = peer.run(method, problem, network, steps=2000, record=range(2001)).table["stationarity"].mean()
    some = peer.run(method, problem, network, steps=2000, record=bounds.marks(2000, 100)).table
    assert bounds.running_gap(some)[-1] == pytest.approx(every, rel=0.02)
    # Evenly spaced records alone miss how fast the gap falls at first.
    even = peer.run(method, problem, network, steps=2000, record=10).table
    assert bounds.running_gap(even)[-1] > 1.1 * every


def test_the_bound_stands_beside_the_measured_gap(tmp_path, capsys):
    code = command(
        "theory",
        "bound",
        "--rows",
        "300",
        "--nodes",
        "8",
        "--steps",
        "3000",
        "--seeds",
        "2",
        "--format",
        "json",
        "--out",
        str(tmp_path),
    )
    assert code == 0
    printed = capsys.readouterr()
    table = pd.DataFrame(json.loads(printed.out)).set_index("term")["value"]
    assert list(table.index) == [*theory.TERMS, "bound", "measured"]
    assert table["bound"] == pytest.approx(table[list(theory.TERMS)].sum())
    assert 0 < table["measured"] < table["bound"]
    assert f"the bound is {table['bound'] / table['measured']:.3g} times the gap" in " ".join(printed.err.split())
    largest = table[list(theory.TERMS)].idxmax()
    assert f"{largest} is the largest term" in " ".join(printed.err.split())
    all_lengths = pd.read_csv(tmp_path / "bound.csv")
    assert all_lengths["steps"].iloc[[0, -1]].tolist() == [2, 3000]
    assert (all_lengths["bound"] > all_lengths["most"]).all()
    assert (all_lengths["least"] <= all_lengths["measured"]).all()
    pixels = matplotlib.image.imread(tmp_path / "bound.png")[..., :3].reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 50
    assert (tmp_path / "bound.pdf").read_bytes().startswith(b"%PDF")


def test_the_bound_is_that_of_the_theorem_at_the_runs_parameters():
    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    found = bounds.measure(problem, network, 500, alpha=0.1, initial_batch=3, seeds=2)
    assert found.lam == 0
    alpha, beta, first = found.parameters
    assert (alpha, first) == (0.1, 3)
    assert beta == theory.weight(0.1, found.constants.smoothness, 6)
    expected = theory.bound(found.constants, 6, 0.0, 0.1, 500, 3)
    assert found.curve.iloc[-1][list(theory.TERMS)].to_dict() == pytest.approx(expected)
    trace = peer.run(
        peer.methods.gt_hsgd(alpha, beta, 1, first), problem, network, steps=500, record=range(501), seed=1
    )
    assert found.curve["least"].iloc[-1] <= trace.table["stationarity"].mean() * 1.02
    assert found.curve["most"].iloc[-1] >= trace.table["stationarity"].mean() * 0.98


def test_a_step_size_outside_the_theorem_is_refused(capsys):
    assert command("theory", "bound", "--rows", "200", "--alpha", "500", "--steps", "100") == 2
    assert "for Theorem 1 to hold" in capsys.readouterr().err
    assert command("theory", "bound", "--rows", "200", "--topology", "one-peer-exponential", "--nodes", "8") == 2
    assert "changes with t" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_constants_and_parameters_on_the_command_line(capsys):
    assert command("theory", "constants", "--rows", "200", "--nodes", "4", "--format", "csv") == 0
    shown = dict(line.rsplit(",", 1) for line in capsys.readouterr().out.replace('"', "").splitlines()[1:])
    problem = peer.problems.logistic(peer.datasets.load("digits", rows=200).partition(4))
    found = theory.constants(problem)
    assert float(shown["L, mean-squared smoothness"]) == pytest.approx(found.smoothness)
    assert float(shown["F(x_0) - F*"]) == pytest.approx(found.gap)
    assert (
        command("theory", "parameters", "--rows", "200", "--nodes", "4", "--topology", "complete", "--steps", "5000")
        == 0
    )
    printed = capsys.readouterr()
    assert f"{theory.parameters(found.smoothness, 4, 5000).alpha:.6g}" in printed.out
    assert "warning" not in printed.err
    assert command("theory", "parameters", "--rows", "200", "--nodes", "4", "--topology", "ring", "--steps", "50") == 0
    assert "Corollary 1 holds for more than" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("theory", "table1"), ("reproduce", "table1")])
def test_table1_for_given_sizes(words, capsys):
    assert command(*words, "--nodes", "50", "--lam", "0.9", "--epsilon", "1e-4", "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    expected = theory.table1(50, 0.9, 1e-4)
    assert len(lines) == 8
    assert lines[-1].startswith("gt-hsgd")
    assert float(lines[-1].split(",")[-2]) == pytest.approx(expected["complexity"].iloc[-1])
    assert command(*words, "--lam", "1.5") == 2
    assert "lam = 1.5: must lie in [0, 1)" in capsys.readouterr().err


@pytest.fixture
def small(monkeypatch):
    tiny = complexity.SCALES["tiny"]
    monkeypatch.setitem(complexity.SCALES, "tiny", tiny._replace(nodes=(1, 4), budgets=(2**8, 2**12), steps=(64, 1024)))


def test_speedup_and_topology_write_and_continue(tmp_path, monkeypatch, capsys, small):
    for what in ("speedup", "topology"):
        assert command("reproduce", what, "--scale", "tiny", "--out", str(tmp_path / what), "--quiet") == 0
        for name in (f"{what}.csv", "gaps.csv", f"{what}.pdf"):
            assert (tmp_path / what / name).stat().st_size > 0
        pixels = matplotlib.image.imread(tmp_path / what / f"{what}.png")[..., :3].reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 50
    slopes = pd.read_csv(tmp_path / "speedup" / "slopes.csv")
    assert slopes["slope"].dropna().between(-2, -0.3).all()
    assert len(slopes["slope"].dropna()) > 0
    found = pd.read_csv(tmp_path / "topology" / "topology.csv").set_index(["topology", "epsilon"])["ratio"]
    assert found["ring", 0.8] > 1.5 > found["exponential", 0.8] > 0.9
    capsys.readouterr()

    def fail(*_, **__):
        raise AssertionError("measured twice")

    monkeypatch.setattr(complexity, "_gap", fail)
    assert command("reproduce", "topology", "--scale", "tiny", "--out", str(tmp_path / "topology"), "--quiet") == 0


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
    gradients, gaps = complexity._curve(pd.DataFrame(rows), "ring", 4)
    assert gradients.tolist() == [20, 200]
    assert gaps.tolist() == [[math.inf, 1.0], [0.01, 0.01]]
    assert complexity._needed(gradients, gaps, 0.5) == 200
    assert complexity._means(pd.DataFrame(rows))["gradients"].tolist() == [20, 200]


def test_the_prediction_is_the_corollarys(small, tmp_path):
    found = complexity.topology("tiny", tmp_path).table.set_index(["topology", "epsilon"])["predicted"]
    known = theory.constants(complexity._problem(20, 1.0))
    lam = peer.Network(peer.topology.ring(20)).lam
    expected = theory.steps_for(known, 20, lam, 0.8) / theory.steps_for(known, 20, 0.0, 0.8)
    assert found["ring", 0.8] == pytest.approx(expected, rel=1e-9)
    assert found["complete", 0.8] == 1


def test_given_constants_are_used_as_they_are_and_own_ones_visit_the_ends():
    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    given = theory.Constants(1.0, 0.9, 2.0, 0.5)
    assert bounds.measure(problem, network, 50, seeds=1, constants=given).constants == given
    quiet = theory.constants(problem, starts=1)._replace(variances=(1e-9,) * 6)
    found = bounds.measure(problem, network, 50, seeds=1, constants=quiet)
    assert min(found.constants.variances) > 1e-3
    # By default 99 % of the range, or the corollary's where that is smaller.
    L, lam = theory.smoothness_of(problem), peer.Network(peer.topology.ring(6)).lam
    on_ring = bounds.measure(problem, peer.Network(peer.topology.ring(6)), 50, seeds=1)
    assert on_ring.parameters.alpha == pytest.approx(0.99 * theory.largest_step_size(L, 6, lam))
    long = bounds.measure(problem, network, 5000, seeds=1)
    assert long.parameters.alpha == pytest.approx(theory.parameters(L, 6, 5000).alpha)


def test_a_smoothness_that_is_too_small_is_named():
    problem, network = small_logistic(strength=50.0, regulariser="l2"), peer.Network(peer.topology.complete(6))
    with pytest.raises(ValueError, match=r"diverged, which Theorem 1 rules out: L = 0\.1 is too small"):
        bounds.measure(problem, network, 500, seeds=1, constants=theory.Constants(0.1, 1.0, 1.0, 1.0), alpha=1.4)


def test_the_measured_curve_is_in_the_figure():
    from peerdescent.figures import theory as charts

    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    found = bounds.measure(problem, network, 3000, seeds=2)
    axes = charts.bound(found).axes[0]
    line = next(line for line in axes.get_lines() if line.get_label() == "measured")
    assert line.get_ydata().tolist() == found.curve["measured"].tolist()
    low, high = axes.get_ylim()
    assert low < found.curve["least"].min()
    assert high > found.curve["bound"].max()


def test_a_run_that_diverges_reaches_nothing(monkeypatch):
    monkeypatch.setattr(theory, "parameters", lambda *_: theory.Parameters(50.0, 0.1, 1))
    problem = complexity._problem(4, 0.0)
    assert complexity._gap(problem, peer.Network(peer.topology.ring(4)), 500, 0, 10)[1] == math.inf
