"""Theorem 1's bound beside measured gaps, from Python and on the command line."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

import peerdescent as peer
from conftest import small_logistic
from peerdescent import theory
from peerdescent.cli.main import main
from peerdescent.figures import theory as charts
from peerdescent.theory import measured
from pictures import colours


def command(*arguments):
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return left.value.code


def test_the_mean_gap_of_few_records_is_that_of_all_steps():
    problem = peer.problems.streaming(4, 6, noise=1.0, spread=1.0, strength=4.0)
    network, method = (
        peer.Network(peer.topology.ring(4)),
        peer.methods.gt_hsgd(alpha=0.01, beta=0.02),
    )
    every = (
        peer.run(method, problem, network, steps=2000, record=range(2001))
        .table["stationarity"]
        .mean()
    )
    some = peer.run(method, problem, network, steps=2000, record=measured.marks(2000, 100)).table
    assert measured.running_gap(some)[-1] == pytest.approx(every, rel=0.02)
    # Evenly spaced records alone miss how fast the gap falls at first.
    even = peer.run(method, problem, network, steps=2000, record=10).table
    assert measured.running_gap(even)[-1] > 1.1 * every


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
    assert f"the bound is {table['bound'] / table['measured']:.3g} times the gap" in " ".join(
        printed.err.split()
    )
    largest = table[list(theory.TERMS)].idxmax()
    assert f"{largest} is the largest term" in " ".join(printed.err.split())
    all_lengths = pd.read_csv(tmp_path / "bound.csv")
    assert all_lengths["steps"].iloc[[0, -1]].tolist() == [2, 3000]
    assert (all_lengths["bound"] > all_lengths["most"]).all()
    assert (all_lengths["least"] <= all_lengths["measured"]).all()
    assert colours(tmp_path / "bound.png") > 50
    assert (tmp_path / "bound.pdf").read_bytes().startswith(b"%PDF")


def test_the_bound_is_that_of_the_theorem_at_the_runs_parameters():
    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    found = measured.measure(problem, network, 500, alpha=0.1, initial_batch=3, seeds=2)
    assert found.lam == 0
    alpha, beta, first = found.parameters
    assert (alpha, first) == (0.1, 3)
    assert beta == theory.weight(0.1, found.constants.smoothness, 6)
    expected = theory.bound(found.constants, 6, 0.0, 0.1, 500, 3)
    assert found.curve.iloc[-1][list(theory.TERMS)].to_dict() == pytest.approx(expected)
    trace = peer.run(
        peer.methods.gt_hsgd(alpha, beta, 1, first),
        problem,
        network,
        steps=500,
        record=range(501),
        seed=1,
    )
    assert found.curve["least"].iloc[-1] <= trace.table["stationarity"].mean() * 1.02
    assert found.curve["most"].iloc[-1] >= trace.table["stationarity"].mean() * 0.98


def test_a_step_size_outside_the_theorem_is_refused(capsys):
    assert command("theory", "bound", "--rows", "200", "--alpha", "500", "--steps", "100") == 2
    assert "for Theorem 1 to hold" in capsys.readouterr().err


SMALL = ("--data", "synthetic-80x5", "--nodes", "4")


def shown(text: str) -> dict[str, float]:
    """A table of facts that was printed as CSV."""
    rows = (line.rsplit(",", 1) for line in text.replace('"', "").splitlines()[1:])
    return {name: float(value or "nan") for name, value in rows}


@pytest.mark.filterwarnings("default")
def test_constants_and_parameters_on_the_command_line(capsys):
    assert command("theory", "constants", *SMALL, "--format", "csv") == 0
    printed = shown(capsys.readouterr().out)
    problem = peer.problems.logistic(peer.datasets.load("synthetic-80x5").partition(4))
    known = theory.constants(problem)
    assert printed["L, mean-squared smoothness"] == pytest.approx(known.smoothness)
    assert printed["F(x_0) - F*"] == pytest.approx(known.gap)
    long = (
        "theory",
        "parameters",
        *SMALL,
        "--topology",
        "complete",
        "--steps",
        "5000",
        "--format",
        "csv",
    )
    assert command(*long) == 0
    output = capsys.readouterr()
    printed = shown(output.out)
    assert printed["alpha"] == pytest.approx(theory.parameters(known.smoothness, 4, 5000).alpha)
    assert printed["gradients a node, b_0 + 2 (T - 1)"] == 7 + 2 * 4999
    assert (
        printed["queries a node for epsilon = 0.01"]
        == theory.complexity(known, 4, 0.0, 0.01).queries
    )
    assert "warning" not in output.err


@pytest.mark.filterwarnings("default")
def test_too_few_steps_for_the_corollary_are_said_once(capsys):
    assert command("theory", "parameters", *SMALL, "--topology", "ring", "--steps", "50") == 0
    warning = " ".join(capsys.readouterr().err.split())
    least = math.floor(theory.least_steps(4, peer.Network(peer.topology.ring(4)).lam))
    assert warning.count("Corollary 1 holds for more than") == 1
    assert f"Corollary 1 holds for more than {least:,} steps" in warning


@pytest.mark.parametrize("what", ["bound", "parameters"])
@pytest.mark.parametrize(
    "outside",
    ["--fault noise=0.3", "--fault drop=0.3", "--topology random-matching", "--weights push-pull"],
)
def test_commands_refuse_networks_that_the_theory_is_not_for(what, outside, capsys):
    assert command("theory", what, *SMALL, *outside.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "doubly stochastic" in printed.err


@pytest.mark.filterwarnings("ignore")
def test_beyond_theorem_1_there_is_no_steady_state(capsys):
    assert (
        command(
            "theory", "parameters", *SMALL, "--topology", "ring", "--steps", "50", "--format", "csv"
        )
        == 0
    )
    assert math.isnan(shown(capsys.readouterr().out)["steady-state error"])


def test_the_variance_is_a_flag(capsys):
    problem = peer.problems.logistic(peer.datasets.load("synthetic-80x5").partition(4))
    for flags, number in (
        ([], 1.0),
        (["start"], theory.constants(problem, variance="start").variance),
        (["3"], 3.0),
    ):
        flags = ["--variance", *flags] if flags else []
        for what in ("constants", "parameters --topology complete"):
            assert command("theory", *what.split(), *SMALL, *flags, "--format", "csv") == 0
            printed = capsys.readouterr().out
            values = [
                value for name, value in shown(printed).items() if name.startswith("variance")
            ]
            assert values[0] == pytest.approx(number)
            assert ("estimated at the start, no bound" in printed) == ("start" in flags)
            assert any(name.startswith("bound: ") for name in shown(printed)) == (
                "start" not in flags and what != "constants"
            )
    assert command("theory", "constants", *SMALL, "--variance", "nowhere") == 2
    assert "--variance nowhere" in capsys.readouterr().err
    assert (
        command(
            "theory", "constants", *SMALL, "--problem", "perceptron", "--variance", "everywhere"
        )
        == 2
    )
    assert "--variance everywhere" in capsys.readouterr().err


def test_what_is_no_bound_is_not_called_one(capsys, tmp_path):
    small = (
        "theory",
        "bound",
        *SMALL,
        "--topology",
        "complete",
        "--steps",
        "50",
        "--seeds",
        "1",
        "--format",
        "csv",
    )
    sums = {}
    for variance in ("everywhere", "start"):
        assert command(*small, "--variance", variance, "--out", str(tmp_path)) == 0
        printed = capsys.readouterr()
        lines = {
            line.rsplit(",", 3)[0].strip('"'): float(line.rsplit(",", 3)[1])
            for line in printed.out.splitlines()[1:]
        }
        sums[variance] = next(
            value for name, value in lines.items() if name not in (*theory.TERMS, "measured")
        )
        assert ("bound" in lines) == (variance == "everywhere")
        assert ("no bound" in printed.out) == ("no bound" in printed.err) == (variance == "start")
    assert sums["everywhere"] > sums["start"]


@pytest.mark.parametrize("words", [("theory", "table1"), ("reproduce", "table1")])
def test_table1_for_given_sizes(words, capsys):
    assert (
        command(*words, "--nodes", "50", "--lam", "0.9", "--epsilon", "1e-4", "--format", "csv")
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines) == theory.table1(50, 0.9, 1e-4).to_csv(index=False).strip()
    assert command(*words, "--exponents", "b=1,h=3", "--format", "csv") == 0
    assert capsys.readouterr().out == theory.table1(20, 0.75, 1e-3, {"b": 1, "h": 3}).to_csv(
        index=False
    )
    for wrong, named in (
        ("--lam 1.5", "--lam 1.5: must lie in [0, 1)"),
        ("--exponents b=0", "b = 0.0"),
        ("--exponents a=2", "a = 2.0"),
        ("--exponents b", "--exponents b:"),
        ("--exponents b=two", "--exponents b=two:"),
    ):
        assert command(*words, *wrong.split()) == 2
        assert named in capsys.readouterr().err


def test_given_constants_are_used_as_they_are_and_own_ones_visit_the_ends():
    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    given = theory.Constants(1.0, 0.9, 2.0, 0.5)
    assert measured.measure(problem, network, 50, seeds=1, constants=given).constants == given
    quiet = theory.constants(problem, variance="start", starts=1)._replace(variances=(1e-9,) * 6)
    found = measured.measure(problem, network, 50, seeds=1, constants=quiet)
    assert min(found.constants.variances) > 1e-3
    assert measured.measure(problem, network, 50, seeds=1).constants == theory.constants(problem)
    # By default 99 % of the range, or the corollary's where that is smaller.
    L, lam = theory.smoothness_of(problem), peer.Network(peer.topology.ring(6)).lam
    on_ring = measured.measure(problem, peer.Network(peer.topology.ring(6)), 50, seeds=1)
    assert on_ring.parameters.alpha == pytest.approx(0.99 * theory.largest_step_size(L, 6, lam))
    long = measured.measure(problem, network, 5000, seeds=1)
    assert long.parameters.alpha == pytest.approx(theory.parameters(L, 6, 5000).alpha)


def test_a_smoothness_that_is_too_small_is_named():
    problem, network = (
        small_logistic(strength=50.0, regulariser="l2"),
        peer.Network(peer.topology.complete(6)),
    )
    with pytest.raises(
        ValueError, match=r"diverged, which Theorem 1 rules out: L = 0\.1 is too small"
    ):
        measured.measure(
            problem,
            network,
            500,
            seeds=1,
            constants=theory.Constants(0.1, 1.0, 1.0, 1.0),
            alpha=1.4,
        )


def test_the_measured_curve_is_in_the_figure():
    problem, network = small_logistic(), peer.Network(peer.topology.complete(6))
    found = measured.measure(problem, network, 3000, seeds=2)
    axes = charts.bound(found).axes[0]
    line = next(line for line in axes.get_lines() if line.get_label() == "measured")
    assert line.get_ydata().tolist() == found.curve["measured"].tolist()
    labels = [line.get_label() for line in axes.get_lines()]
    assert "Theorem 1's bound" in labels
    start = found._replace(constants=theory.constants(problem, variance="start"))
    labels = [line.get_label() for line in charts.bound(start).axes[0].get_lines()]
    assert "Theorem 1's bound" not in labels
    assert "sum, no bound" in labels
    low, high = axes.get_ylim()
    assert low < found.curve["least"].min()
    assert high > found.curve["bound"].max()
