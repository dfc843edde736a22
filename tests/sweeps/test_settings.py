"""Sweeps over problems and networks: every pair of as many nodes, told apart in the table, never mixed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import peerdescent as peer
from peerdescent.engines import fleet
from peerdescent.figures import heatmap
from peerdescent.sweeps import best, winners
from small import Spy, small_logistic, small_quadratic

GRID, OPTIONS = {"alpha": [0.1, 0.4]}, {"steps": 9, "seed": [0, 1]}
RINGS = {n: peer.Network(peer.topology.ring(n)) for n in (4, 6)}
PROBLEMS = {n: small_logistic(n, 48 // n) for n in (4, 6)}  # one data set


def names_of(table):
    return table[["problem", "network", "nodes"]].drop_duplicates().to_numpy().tolist()


def test_every_setting_has_the_rows_of_a_sweep_of_its_own():
    star = peer.Network(peer.topology.star(6))
    table = peer.sweep("dsgd", GRID, list(PROBLEMS.values()), [*RINGS.values(), star], **OPTIONS)
    assert table.columns[:5].tolist() == ["problem", "network", "nodes", "alpha", "seed"]
    name = PROBLEMS[4].name
    assert names_of(table) == [[name, "ring", 4], [name, "ring", 6], [name, "star", 6]]
    for (_, network, nodes), own in table.groupby(["problem", "network", "nodes"]):
        alone = peer.sweep(
            "dsgd", GRID, PROBLEMS[nodes], star if network == "star" else RINGS[nodes], **OPTIONS
        )
        pd.testing.assert_frame_equal(
            own.iloc[:, 3:].reset_index(drop=True), alone, check_exact=True
        )
    assert table["loss"].nunique() == len(table) == 12


def test_names_are_those_that_were_given_or_say_what_differs():
    strengths = {s: small_logistic(strength=s) for s in (0.1, 1.0)}
    given = peer.sweep("dsgd", GRID, strengths, {"mine": RINGS[6]}, **OPTIONS)
    assert names_of(given) == [[0.1, "mine", 6], [1.0, "mine", 6]]
    name = strengths[0.1].name
    found = peer.sweep("dsgd", GRID, list(strengths.values()), RINGS[6], **OPTIONS)
    assert names_of(found) == [[f"{name} (strength {s})", "ring", 6] for s in (0.1, 1.0)]
    twice = [RINGS[6], peer.Network(peer.topology.ring(6), rounds=3)]
    found = peer.sweep("dsgd", GRID, PROBLEMS[6], twice, **OPTIONS)
    assert [network for _, network, _ in names_of(found)] == [
        "ring (lam=0.750)",
        "ring (3 rounds, lam=0.422)",
    ]
    one = peer.sweep("dsgd", GRID, [PROBLEMS[6]], RINGS[6], **OPTIONS)
    assert names_of(one) == [[PROBLEMS[6].name, "ring", 6]], "a list of one has the same columns"
    assert best(one) == {"alpha": 0.4}


def test_refusals():
    def refused(message, problem, network, grid=GRID):
        with pytest.raises(ValueError, match=message):
            peer.sweep("dsgd", grid, problem, network, **OPTIONS)

    refused(
        "the problem .* has 4 nodes, and no network has: .*make it one of 6",
        list(PROBLEMS.values()),
        RINGS[6],
    )
    refused("the network ring has 4 nodes, and no problem has", PROBLEMS[6], list(RINGS.values()))
    refused(
        r"two of problem are .*give names, as in problem=\{'first'",
        [PROBLEMS[6], PROBLEMS[6]],
        RINGS[6],
    )
    refused("two of problem are quadratic", [small_quadratic(seed=s) for s in (0, 1)], RINGS[6])
    refused("two of network are ring", PROBLEMS[6], [RINGS[6], RINGS[6]])
    refused("problem = .*: give at least one", [], RINGS[6])
    refused("problem is a tuple: give a Problem", [(PROBLEMS[6], RINGS[6])], RINGS[6])
    refused("network is a Problem: give a Network", PROBLEMS[6], [PROBLEMS[6]])
    refused("None as the name of a network: give a text or a number", PROBLEMS[6], {None: RINGS[6]})
    refused("unknown parameter of dsgd 'nodes'", [PROBLEMS[6]], RINGS[6], {"nodes": [1]})

    def build(nodes):
        return peer.methods.dsgd(alpha=nodes)

    with pytest.raises(
        ValueError, match="'nodes' has the name of a column of the table: rename it"
    ):
        peer.sweep(build, {"nodes": [0.1]}, [PROBLEMS[6]], RINGS[6], **OPTIONS)
    with pytest.raises(ValueError, match="problem is a list: give a Problem"):
        peer.tune("dsgd", list(PROBLEMS.values()), list(RINGS.values()), epochs=1)


def test_all_settings_are_checked_before_the_first_is_run(monkeypatch):
    monkeypatch.setattr(fleet.Fleet, "follow", None)
    networks = [RINGS[6], peer.Network(peer.topology.directed_exponential(6))]
    with pytest.raises(ValueError, match="d2 needs a symmetric weight matrix"):
        peer.sweep("d2", GRID, PROBLEMS[6], networks, **OPTIONS)


def test_winners_and_best_never_mix_settings():
    table = peer.sweep(
        "dsgd",
        GRID,
        PROBLEMS[6],
        {"a": RINGS[6], "b": peer.Network(peer.topology.star(6))},
        **OPTIONS,
    )
    with pytest.raises(ValueError, match=r"the table has 2 settings, .*winners\(table\)"):
        best(table)
    found = winners(table)
    assert found["network"].tolist() == ["a", "b"]
    for name, row in found.set_index("network").iterrows():
        own = table[table["network"] == name]
        assert best(own) == {"alpha": row["alpha"]}
        assert row["loss"] == own[own["alpha"] == row["alpha"]]["loss"].mean()
    table.loc[table["network"] == "b", "status"] = "diverged"
    assert winners(table)["loss"].isna().tolist() == [False, True]
    alone = peer.sweep("dsgd", GRID, PROBLEMS[6], RINGS[6], **OPTIONS)
    assert winners(alone).to_dict("records") == [
        best(alone) | {"loss": alone.groupby("alpha")["loss"].mean().min()}
    ]


def test_heat_maps_have_one_setting_a_cell():
    networks = {"a": RINGS[6], "b": peer.Network(peer.topology.star(6))}
    grid = {"alpha": [0.1, 0.4], "batch": [1, 2]}
    table = peer.sweep("dsgd", grid, PROBLEMS[6], networks, **OPTIONS)
    with pytest.raises(
        ValueError,
        match=r"cells of alpha and batch have several values of network: make it an axis",
    ):
        heatmap(table, "alpha", "batch")
    figure = heatmap(table, "alpha", "network")
    means = (
        table.groupby(["network", "alpha", "batch"])["loss"]
        .mean()
        .groupby(["network", "alpha"])
        .min()
    )
    np.testing.assert_allclose(figure.axes[0].collections[0].get_array(), means.unstack())
    assert figure.get_suptitle() == "loss for each network"
    frames = {patch.get_xy() for patch in figure.axes[0].patches if not patch.get_fill()}
    assert frames == {(int(means[name].argmin()), k) for k, name in enumerate("ab")}
    alone = heatmap(table[table["network"] == "b"], "alpha", "batch")
    assert alone.get_suptitle().startswith("best loss"), (
        "one setting is drawn as a sweep of its own"
    )
    assert not [p for p in heatmap(table, "problem", "network").axes[0].patches if not p.get_fill()]


def test_a_folder_for_each_setting_and_all_go_on(tmp_path):
    problems, networks = list(PROBLEMS.values()), list(RINGS.values())
    whole = peer.sweep("dsgd", GRID, problems, networks, **OPTIONS)

    class Impatient(Spy):
        def update(self, step, loss):
            super().update(step, loss)
            if list(tmp_path.rglob("sweep.csv")):
                raise KeyboardInterrupt

    part = peer.sweep(
        "dsgd", GRID, problems, networks, out=tmp_path, progress=Impatient(), **OPTIONS
    )
    assert len(part) == len(whole)
    assert set(part.loc[part["nodes"] == 6, "status"]) == {"interrupted"}, (
        "what comes later is not begun"
    )
    again = peer.sweep("dsgd", GRID, problems, networks, out=tmp_path, **OPTIONS)
    pd.testing.assert_frame_equal(again, whole, check_exact=True)
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    slug = PROBLEMS[4].name.replace("(", "-").replace(")", "")
    assert names == [f"{slug}-ring-4", f"{slug}-ring-6"]
    page = peer.report.write(tmp_path).read_text(encoding="utf-8")
    assert all(name in page for name in names)
    with pytest.raises(ValueError, match="is about something else: budget"):
        peer.sweep("dsgd", GRID, problems, networks, out=tmp_path, steps=10)


def test_progress_says_where_it_is():
    spy, labels = Spy(), []
    spy.begin = lambda label, total: labels.append(label)
    peer.sweep(
        "dsgd",
        GRID,
        PROBLEMS[6],
        [RINGS[6], peer.Network(peer.topology.star(6))],
        progress=spy,
        **OPTIONS,
    )
    assert labels == [
        f"dsgd, 4 configurations, {PROBLEMS[6].name}, {name}" for name in ("ring", "star")
    ]
