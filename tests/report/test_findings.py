"""The content of a report about a folder, without its appearance."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerdescent
from peerdescent import Network, figures, report, topology
from peerdescent import experiment as config
from peerdescent.methods import METHODS
from peerdescent.problems.definition import digest
from peerdescent.report import findings
from peerdescent.runs.bands import VERTICAL
from peerdescent.runs.metrics import METRICS as COLUMNS
from peerdescent.runs.metrics import Metric
from peerdescent.runs.trace import Status
from peerdescent.sweeps import best, tuning_grid
from run_folders import contents, fill, save_sweep, small_sweep, trace, words
from small import small_logistic


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = fill(tmp_path_factory.mktemp("experiment"))
    report.write(folder)
    return folder


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_text("step\n0\n")
    with pytest.raises(ValueError, match=r"nothing to report in .*with checkpoints.*sweep.csv"):
        report.write(tmp_path)
    with pytest.raises(ValueError, match=r"no folder .*nowhere: give one"):
        report.write(tmp_path / "nowhere")
    trace().save(tmp_path)
    with pytest.raises(
        ValueError, match=r"is a folder: give the name of a file, such as .*report.html"
    ):
        report.write(tmp_path, tmp_path)
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("optimum.json", "{}", r"a.optimum.json lacks value"),
        (
            "sweep.csv",
            "a,b\n1,2\n",
            r"a.sweep.csv is not the table of a sweep: it lacks seed, loss, status, method",
        ),
        ("sweep.csv", "alpha,seed,loss,status,method\n", r"a.sweep.csv has no rows"),
        ("sweep.csv", "", r"a.sweep.csv is not the table of a sweep"),
    ],
)
def test_damaged_files_are_named(file, text, message, tmp_path):
    trace().save(tmp_path / "a")
    (tmp_path / "a" / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        report.write(tmp_path)


def test_a_page_is_made_from_checkpoints(tmp_path):
    """What is for people in a run folder, and foreign files of those names, change nothing."""
    trace().save(tmp_path / "a")
    before = contents(report.write(tmp_path))
    (tmp_path / "a" / "trace.csv").write_text("step,loss\n0,much\n")
    (tmp_path / "a" / "summary.json").write_text("[]")
    (tmp_path / "foreign").mkdir()
    for name in ("trace.csv", "summary.json"):
        (tmp_path / "foreign" / name).write_text("{}")
    with pytest.warns(
        UserWarning, match=r"foreign is left out: it has no checkpoint that is whole"
    ):
        assert contents(report.write(tmp_path)) == before
    (stored,) = (tmp_path / "a" / "checkpoint").iterdir()
    stored.write_bytes(stored.read_bytes()[:-1])
    shutil.rmtree(tmp_path / "foreign")
    (tmp_path / "report.html").unlink()
    with (
        pytest.warns(UserWarning, match=r"a is left out"),
        pytest.raises(ValueError, match="nothing to report"),
    ):
        report.write(tmp_path)


def test_the_page_goes_where_it_is_asked_to(tmp_path):
    folder = trace().save(tmp_path / "runs")
    config.write(folder / "config.toml", config.Options(topology="ring", nodes=6), method="dsgd")
    assert report.write(folder) == folder / "report.html"
    asked = report.write(str(folder), str(tmp_path / "new" / "page.html"))
    assert asked.read_bytes() == (folder / "report.html").read_bytes(), (
        "the same files make the same page"
    )


def test_files_of_others_are_not_replaced(tmp_path):
    folder = trace().save(tmp_path)
    before = (folder / "trace.csv").read_bytes()
    with pytest.raises(
        ValueError,
        match=r"trace.csv is not a page of peerdescent: give another name, or force=True",
    ):
        report.write(folder, folder / "trace.csv")
    assert (folder / "trace.csv").read_bytes() == before
    (folder / "report.html").write_text("<p>mine</p>")
    with pytest.raises(ValueError, match=r"report.html is not a page of peerdescent"):
        report.write(folder)
    assert report.write(folder, force=True) == report.write(folder)


def test_runs_that_differ_only_in_seed_are_one_line(experiment):
    groups = contents(experiment / "report.html")["groups"]
    assert [group["label"] for group in groups] == [
        "d-get[alpha=9]",
        "d2[batch=1,alpha=0.5]",
        "DSGD",
        "GT-HSGD",
    ]
    assert [group["diverged"] for group in groups] == [True, False, False, False]
    assert len({(group["colour"], group["dash"]) for group in groups}) == 4
    assert "low" not in groups[1]["lines"]["epoch"]["y"]["loss"]
    np.testing.assert_allclose(groups[3]["lines"]["epoch"]["x"], np.arange(21) / 4)
    line, losses = groups[3]["lines"]["epoch"]["y"], np.exp(-np.arange(21) / 2)
    np.testing.assert_allclose(line["loss"]["mid"], 0.3 + 1.2 * losses, rtol=1e-6)
    np.testing.assert_allclose(line["loss"]["low"], 0.3 + losses, rtol=1e-6)
    np.testing.assert_allclose(line["loss"]["high"], 0.3 + 1.4 * losses, rtol=1e-6)
    np.testing.assert_allclose(line["gap"]["mid"], 0.05 + 1.2 * losses, rtol=1e-5)


def test_bands_are_those_of_figures(tmp_path):
    traces = [trace(seed=seed) for seed in (0, 1, 2, 9)]
    for seed, one in enumerate(traces):
        one.save(tmp_path / f"seed-{seed}")
    (line,) = [group["lines"]["epoch"]["y"] for group in contents(report.write(tmp_path))["groups"]]
    panels = figures.curves(
        peerdescent.Traces(traces), [("epoch", "loss"), ("epoch", "grad_norm")]
    ).axes
    for axes, name in zip(panels, ("loss", "grad_norm"), strict=True):
        (area,) = axes.collections
        outline = {(round(x, 5), round(y, 5)) for x, y in area.get_paths()[0].vertices}
        edges = {
            (k / 4, round(y, 5)) for side in ("low", "high") for k, y in enumerate(line[name][side])
        }
        assert edges <= outline, name
    spread = np.std([0, 0.01, 0.02, 0.09], ddof=1)
    np.testing.assert_allclose(
        np.subtract(line["loss"]["high"], line["loss"]["mid"]), spread, rtol=1e-4
    )


def test_lines_of_a_comparison_have_the_order_and_the_colours_of_its_figure(tmp_path):
    """The page once went by the names of folders, and so gave each method the colour of another."""
    names = ("gt-hsgd", "d2", "dsgd")
    found = peerdescent.Comparison(
        {name: peerdescent.Traces([trace(f"{name}[alpha=1]")]) for name in names}
    )
    drawn = [(line.get_label(), line.get_color()) for line in found.figure().axes[0].get_lines()]
    assert [name for name, _ in drawn] == list(names)
    assert [
        (one["label"], one["colour"]) for one in contents(found.report(tmp_path))["groups"]
    ] == drawn


def test_a_page_in_the_folder_of_a_comparison_is_kept_up_to_date(tmp_path):
    """With a seed more, an earlier page once still showed those before."""
    one, both = (
        peerdescent.Comparison(
            {"dsgd": peerdescent.Traces([trace(seed=seed) for seed in range(count)])}
        )
        for count in (1, 2)
    )
    page = one.report(tmp_path)
    assert "1 run of 1 method" in words(page)
    both.save(tmp_path)
    assert "2 runs of 1 method" in words(page)
    page.write_text("<p>mine</p>")
    both.save(tmp_path)
    assert page.read_text() == "<p>mine</p>", "others are left alone"
    page.unlink()
    both.save(tmp_path)
    assert not page.exists()


def test_seeds_are_interpolated_to_common_places_and_end_with_the_first():
    tables = [
        pd.DataFrame({"seconds": [0, 2, 4], "loss": [4, 2, 0]}),
        pd.DataFrame({"seconds": [0, 3], "loss": [6, 3]}),
    ]
    tables = [table.reindex(columns=list(COLUMNS)).astype(float) for table in tables]
    lines = findings.Group(
        "", [findings.Run("", None, {}, table, dict(VERTICAL)) for table in tables]
    ).lines()
    assert lines == {
        "seconds": {
            "x": [0, 2, 3],
            "y": {"loss": {"mid": [5, 3, 2], "low": [4, 2, 1], "high": [6, 4, 3]}},
        }
    }


def labels(folder):
    return [group.label for group in findings.grouped(findings.runs(folder))]


def test_labels_that_would_be_the_same_tell_their_folder(tmp_path):
    for place in ("one/a", "two/a"):
        trace("dsgd").save(tmp_path / place)
    trace("d2").save(tmp_path / "two" / "b")
    assert labels(tmp_path) == ["dsgd (one)", "dsgd (two)", "d2"]
    trace("dsgd").save(tmp_path / "two" / "c")
    assert labels(tmp_path) == ["dsgd (one)", "dsgd (two/a)", "dsgd (two/c)", "d2"], (
        "the same seed is another run"
    )
    trace("dsgd", seed=1).save(tmp_path / "one" / "b")
    assert labels(tmp_path)[0] == "dsgd (one)"


def test_only_seeds_may_differ_in_a_group(tmp_path):
    """Runs of other problems, networks or precisions are other lines, and their labels say what differs."""

    def save(place, seed=0, **changes):
        facts = {
            "data": "1234",
            "strength": 0.1,
            "partition": "uniform",
            "data seed": seed,
            "weights": "5678",
        }
        facts |= changes.pop("facts", {})
        trace("dsgd", seed=seed, facts=facts, **changes).save(tmp_path / place)

    for seed in range(3):
        save(f"first-{seed}", seed, values=f"{seed}")
    assert labels(tmp_path) == ["dsgd"], "the seed also divides the data"
    save("strong", facts={"strength": 0.5}, seed=1)
    assert labels(tmp_path) == ["dsgd (strength 0.1)", "dsgd (strength 0.5)"]
    save("double", precision=64, seed=2)
    expected = ["dsgd (precision 64, strength 0.1)", "dsgd (precision 32, strength 0.1)"]
    assert labels(tmp_path)[:2] == expected
    save("other-data", facts={"data": "4321"}, seed=3)
    assert len(labels(tmp_path)) == len(set(labels(tmp_path))) == 4
    groups = findings.grouped(findings.runs(tmp_path))
    assert sorted(len(group.runs) for group in groups) == [1, 1, 1, 3]
    assert len({group.problem for group in groups}) == 3, "precision is not of the problem"


def test_long_traces_are_thinned_with_their_ends(tmp_path):
    trace(losses=np.linspace(2, 1, 5001)).save(tmp_path)
    line = contents(report.write(tmp_path))["groups"][0]["lines"]["step"]
    assert len(line["x"]) == findings.POINTS
    assert (line["x"][0], line["x"][-1], line["y"]["loss"]["mid"][-1]) == (0, 50000, 1)


def test_the_nearest_optimum_counts(tmp_path):
    for place, value in (("", 0.1), ("b", 0.2)):
        trace(f"d2[alpha={value}]").save(tmp_path / place / "run")
        (tmp_path / place / "optimum.json").write_text(json.dumps({"value": value}))
    gaps = [run.table["gap"].iloc[0] for run in findings.runs(tmp_path)]
    np.testing.assert_allclose(gaps, [1.1, 1.2])


def test_without_an_optimum_there_is_no_gap(tmp_path):
    assert "gap" not in contents(report.write(trace().save(tmp_path)))["quantities"]


def with_accuracy(*args, described=True, **changes):
    """A trace with a user's own metric, with or without its description."""
    found = trace(*args, **changes)
    table = found.table.assign(
        accuracy=np.linspace(0.1, 0.9, len(found.table)) + 0.01 * found.identity.seed, x=2e6
    )
    accuracy = Metric("accuracy", "accuracy $a$", "test accuracy", log=True, format=".1%")
    about = (accuracy, Metric("x", format="B")) if described else ()
    return dataclasses.replace(found, table=table, metrics=about)


def test_a_metric_of_the_user_is_drawn_and_in_the_table(tmp_path):
    for seed in range(2):
        with_accuracy("dsgd", seed=seed).save(tmp_path / "runs" / "DSGD" / f"seed-{seed}")
    trace("d2").save(tmp_path / "d2")
    page = report.write(tmp_path)
    data = contents(page)
    names = ["loss", "grad_norm", "stationarity", "consensus", "accuracy", "x"]
    assert list(data["quantities"]) == names, "and neither tracking nor costs"
    assert data["quantities"]["accuracy"] == {"title": "test accuracy", "log": True, "falls": False}
    assert data["quantities"]["x"] == {"title": "x", "log": False, "falls": False}
    assert data["quantities"]["loss"] == {"title": "loss F(x̄)", "log": False, "falls": True}
    alone, seeds = data["groups"]
    assert "accuracy" not in alone["lines"]["epoch"]["y"]
    accuracy = seeds["lines"]["epoch"]["y"]["accuracy"]
    np.testing.assert_allclose(accuracy["mid"], np.linspace(0.1, 0.9, 21) + 0.005)
    np.testing.assert_allclose(accuracy["high"], np.linspace(0.1, 0.9, 21) + 0.01)
    text = words(page)
    assert "gradient norm ‖∇F(x̄)‖ test accuracy x epochs" in text
    assert "90.50% ± 0.71% 2.0 MB" in text
    assert re.search(r"d2 done 1 0.31\d+ 1.01e-01 – – 5", text), "a run without it has a dash"


def test_a_metric_that_nobody_describes_goes_by_its_name(tmp_path):
    file = with_accuracy(described=False).save(tmp_path) / "trace.csv"
    pd.read_csv(file).assign(note="words").to_csv(file, index=False)
    quantities = contents(report.write(tmp_path))["quantities"]
    assert quantities["accuracy"] == {"title": "accuracy", "log": False, "falls": False}
    assert "note" not in quantities, "numbers alone"


def test_the_status_is_where_it_is_seen(experiment):
    assert "method status seeds loss F(x̄)" in words(experiment / "report.html"), (
        "a narrow window hides what is last"
    )


def test_what_is_not_finite(tmp_path):
    for seed in range(2):
        gone = trace("gone", losses=[1, np.nan, np.inf], status=Status.diverged, seed=seed)
        gone.save(tmp_path / f"gone-{seed}")
    trace("empty", losses=[1, 0.5, np.nan]).save(tmp_path / "empty")
    trace("lucky", losses=[1, 0.5, 0.1], status=Status.diverged).save(tmp_path / "lucky")
    endless = trace("endless", losses=[1, 0.9, 0.8])
    endless.table["epoch"] = np.nan
    endless.save(tmp_path / "endless")
    page = report.write(tmp_path)
    data = {group["label"]: group["lines"] for group in contents(page)["groups"]}
    assert data["gone"]["step"]["y"]["loss"]["mid"] == [1, None, None]
    assert "epoch" in data["gone"]
    assert "epoch" not in data["endless"]
    assert '<option value="step" selected>' in page.read_text(), "epochs are not there for all"
    text = words(page)
    assert "Smallest final loss: endless with 0.800000. 3 runs diverged." in text
    table = text[text.index("Where they ended") :]
    order = [table.index(f" {name} ") for name in ("endless", "empty", "lucky", "gone")]
    assert order == sorted(order), "what diverged comes last"
    assert "endless done 1 0.800000 6.40e-01 – 40" in table
    assert "gone diverged 2 ∞ ∞" in table


def test_nothing_finite_at_all(tmp_path):
    page = report.write(trace(losses=[np.nan]).save(tmp_path))
    assert "–" in words(page)


def test_the_text_above_and_the_table(experiment):
    text = words(experiment / "report.html")
    assert (
        "8 runs of 4 methods and 1 sweep over 20 configurations. Smallest final loss: GT-HSGD with 0.3000545 ± "
        "0.0000091, the mean over 3 seeds. 1 run diverged." in text
    )
    table = text[text.index("Where they ended") : text.index("Sweeps")]
    order = [
        table.index(name) for name in ("GT-HSGD", "d2[batch=1,alpha=0.5]", "DSGD", "d-get[alpha=9]")
    ]
    assert order == sorted(order), "by loss, and what diverged last"
    assert np.std([0.01 * seed for seed in range(3)], ddof=1) == pytest.approx(0.010)
    assert "3 0.328 ± 0.010" in table
    assert "GT-HSGD gt-hsgd[beta=0.01,alpha=0.5] done 3 0.3000545 ± 0.0000091" in table
    assert "400 2.0 MB 20.00" in table
    assert "diverged loss inf at step 30" in table
    assert (experiment / "report.html").read_text().count('<tr class="best">') == 1


def test_several_problems_each_have_their_best(tmp_path):
    for method, problem, scale in [
        ("a", "one", 1),
        ("b", "one", 2),
        ("a", "two", 9),
        ("b", "two", 8),
    ]:
        for seed in range(2):
            one = trace(method, losses=[scale, scale], problem=problem, seed=seed)
            one.save(tmp_path / problem / f"{method}-{seed}")
    page = report.write(tmp_path)
    assert (
        "8 runs of 2 methods on 2 problems. Smallest final loss on one: a (problem one)"
        in words(page)
    )
    assert "on two: b (problem two) with 8." in words(page)
    assert page.read_text().count('<tr class="best">') == 2
    assert '<select id="problem">' in page.read_text()
    colours = [group["colour"] for group in contents(page)["groups"]]
    assert colours[:2] == colours[2:]


def test_citations_of_what_occurs(experiment):
    text = (experiment / "report.html").read_text(encoding="utf-8")
    cited = [entry.citation.replace("&", "&amp;") in text for entry in METHODS.values()]
    assert cited == [name in ("dsgd", "d2", "d-get", "gt-hsgd") for name in METHODS]
    assert "@software{peerdescent," in text


# Sweeps


def test_the_table_of_sweeps(experiment, tmp_path):
    text, table = words(experiment / "report.html"), small_sweep()
    done = table[table["status"] == "done"]
    assert best(table) == {"alpha": 0.5, "beta": 0.1, "batch": 16}
    gone = (table["status"] == "diverged").sum()
    row = f"30 epochs 1 20 {gone} {done['loss'].min():.6g} alpha = 0.5, beta = 0.1, batch = 16"
    assert "tuning/gt-hsgd logistic(digits) gt-hsgd 30 epochs" in text
    assert row in text
    save_sweep(tmp_path / "gone", table[table["status"] == "diverged"])
    assert "none: no configuration is done for every seed" in words(report.write(tmp_path))


def test_heat_maps_hold_the_smallest_loss(experiment):
    table, heat = small_sweep(), contents(experiment / "report.html")["sweeps"][0]
    names = [parameter["name"] for parameter in heat["parameters"]]
    assert names == ["alpha", "beta", "batch"]
    assert heat["parameters"][0]["levels"] == ["0.1", "0.5", "2", "8"]
    assert set(heat["cells"]) == {"0,1", "0,2", "1,2"}
    for key, cells in heat["cells"].items():
        first, second = (names[int(k)] for k in key.split(","))
        for (i, a), (j, b) in itertools.product(
            enumerate(sorted(table[first].unique())), enumerate(sorted(table[second].unique()))
        ):
            here = table[(table[first] == a) & (table[second] == b)]
            done = here.loc[here["status"] == "done", "loss"]
            expected = (
                pytest.approx(done.min(), rel=1e-6)
                if len(done)
                else "diverged"
                if len(here)
                else None
            )
            assert cells[i][j] == expected
    assert "diverged" in heat["cells"]["0,1"][3]
    assert heat["cells"]["1,2"][2][1] is None


def test_a_configuration_counts_by_its_mean_over_all_seeds(tmp_path):
    losses = {0.1: [0.2, 0.6], 0.2: [0.3, 0.3], 0.4: [0.1, np.inf], 0.8: [0.05]}
    rows = [
        (alpha, 1, seed, loss) for alpha, both in losses.items() for seed, loss in enumerate(both)
    ]
    table = pd.DataFrame(rows, columns=["alpha", "batch", "seed", "loss"])
    table["status"] = np.where(np.isfinite(table["loss"]), "done", "diverged")
    save_sweep(tmp_path / "s", table)
    (found,) = findings.sweeps(tmp_path)
    assert (found.seeds, found.configurations, found.diverged) == (2, 4, 1)
    assert (found.best, found.loss) == ({"alpha": 0.2, "batch": 1}, pytest.approx(0.3))
    assert [parameter["name"] for parameter in found.heat["parameters"]] == ["alpha", "batch"]
    assert found.heat["cells"]["0,1"] == [
        [pytest.approx(0.4)],
        [pytest.approx(0.3)],
        ["diverged"],
        [None],
    ]


@pytest.mark.parametrize("parameters", [[], ["alpha"]])
def test_sweeps_without_two_hyperparameters_have_no_map(parameters, tmp_path):
    rows = {name: [0.1, 0.2] for name in parameters} | {"seed": [0, 0] if parameters else [0, 1]}
    table = pd.DataFrame(rows | {"loss": [0.4, 0.3], "status": ["done", "done"]})
    save_sweep(tmp_path / "s", table)
    page = report.write(tmp_path)
    assert 'id="heat"' not in page.read_text()
    assert ("alpha = 0.2" if parameters else "the method's own") in words(page)


def test_empty_cells_of_a_hyperparameter_are_none(tmp_path):
    table = pd.DataFrame(
        {
            "alpha": [0.1, 0.1, 0.2],
            "large_batch": [64, None, None],
            "seed": 0,
            "loss": [0.3, 0.2, 0.4],
        }
    )
    save_sweep(tmp_path / "s", table.assign(status="done"))
    (found,) = findings.sweeps(tmp_path)
    assert found.best == {"alpha": 0.1, "large_batch": None}
    assert found.heat["parameters"][1]["levels"] == ["64", "none"]
    assert found.heat["cells"]["0,1"] == [[0.3, 0.2], [None, 0.4]]


def test_levels_of_a_map_can_be_told_apart(tmp_path):
    alphas = [0.1, 0.1 + 1e-9, 1 / 3]
    table = pd.DataFrame(
        {"alpha": alphas * 2, "batch": [1, 1, 1, 4, 4, 4], "seed": 0, "loss": np.arange(6.0)}
    )
    save_sweep(tmp_path / "s", table.assign(status="done"))
    (found,) = findings.sweeps(tmp_path)
    assert found.heat["parameters"][0]["levels"] == ["0.1", "0.100000001", "0.333333333"]


def test_a_cell_is_not_diverged_while_a_part_of_it_is_unfinished(tmp_path):
    table = pd.DataFrame(
        {"alpha": [1, 1, 2, 2], "beta": 1, "batch": [1, 4, 1, 4], "seed": 0, "loss": np.inf}
    )
    save_sweep(
        tmp_path / "s", table.assign(status=["diverged", "interrupted", "diverged", "diverged"])
    )
    (found,) = findings.sweeps(tmp_path)
    names = [parameter["name"] for parameter in found.heat["parameters"]]
    assert names == ["alpha", "batch"]
    table["beta"] = [1, 2, 1, 2]
    save_sweep(
        tmp_path / "t", table.assign(status=["diverged", "interrupted", "diverged", "diverged"])
    )
    (_, found) = findings.sweeps(tmp_path)
    assert found.heat["cells"]["0,1"] == [["diverged", None], ["diverged", "diverged"]]
    save_sweep(
        tmp_path / "u",
        table.assign(beta=[1, 1, 2, 2], status=["diverged", "interrupted", "diverged", "diverged"]),
    )
    assert findings.sweeps(tmp_path)[2].heat["cells"]["0,1"] == [[None, None], [None, "diverged"]]


def test_the_paper_grid_does_not_bloat_the_page(tmp_path):
    table = pd.DataFrame(tuning_grid("d-get", 2442))
    assert len(table) == 42_900
    loss = 0.3 + np.log(table["period"]) ** 2 + np.log(table["alpha"]) ** 2 + 1 / table["batch"]
    assert table.duplicated(keep=False)[loss.idxmin()], (
        "the best is in the grid twice, and still counts"
    )
    save_sweep(tmp_path / "d-get", table.assign(seed=0, loss=loss, status="done"), "d-get")
    page = report.write(tmp_path)
    assert page.stat().st_size < 8e6
    assert f"{len(table.drop_duplicates()):,} 42,900 rows" in words(page), (
        "rounded periods coincide"
    )
    heat = contents(page)["sweeps"][0]
    assert len(json.dumps(heat)) < 4e5
    assert max(len(parameter["levels"]) for parameter in heat["parameters"]) == findings.LEVELS
    for cells in heat["cells"].values():
        assert min(v for row in cells for v in row if v is not None) == pytest.approx(
            loss.min(), rel=1e-6
        )


# The configuration and the network


def test_the_network_is_drawn(experiment):
    text = (experiment / "report.html").read_text(encoding="utf-8")
    assert re.search(
        r'class="drawing">\s*<div role="img" aria-label="ring, 6 nodes[^>]*><svg', text
    )
    assert "methods gt-hsgd dsgd" in words(experiment / "report.html")
    assert "problem logistic" in words(experiment / "report.html")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            None,
            "problem logistic(digits) network Network(ring, n=6, lazy weights, lam=0.750) nodes 6",
        ),
        (
            None,
            "lam=0.750) nodes 6 dimension 2 precision 32 engine stacked From the runs. How to cite",
        ),
        ("nodes = ", "The config.toml cannot be read:"),
        ("nodes = 6", "cannot be rebuilt from the configuration: it has no 'topology'"),
        (
            'topology = "rnig"\nnodes = 6',
            "cannot be rebuilt from the configuration: unknown topology 'rnig'",
        ),
        (
            'topology = "ring"\nnodes = "six"',
            "cannot be rebuilt from the configuration: 'six' is no number",
        ),
        ('topology = "ring"\nnodes = 6\nweights = [1]', "cannot be rebuilt from the configuration"),
        ('topology = "star"\nnodes = 6', "No run was made on the network of this configuration"),
    ],
)
def test_a_network_that_is_not_there(text, sentence, tmp_path):
    folder = trace().save(tmp_path / "a")
    if text is not None:
        (folder / "config.toml").write_text(text)
    page = report.write(tmp_path)
    assert sentence in words(page)
    assert 'class="drawing"' not in page.read_text()


NAMED = [
    Network(topology.ring(6)),
    Network(topology.one_peer_exponential(6)),
    Network(
        topology.star(6),
        "metropolis",
        rounds=3,
        accelerate=True,
        faults=[peerdescent.faults.drop(0.1)],
    ),
    Network(
        topology.ring(6),
        faults=[peerdescent.faults.burst(0.1, 0.5), peerdescent.faults.noise(0.01)],
    ),
    Network(topology.random_matching(6)),
    Network(topology.directed_exponential(6), "push-pull"),
]
FOREIGN = [
    Network(
        nx.relabel_nodes(topology.star(6), {0: 1, 1: 0})
    ),  # a star still, and so its name and lambda say
    Network(topology.watts_strogatz(6, seed=7)),
    Network(np.full((6, 6), 1 / 6)),
]


@pytest.mark.parametrize("network", NAMED, ids=str)
def test_a_network_is_drawn_from_what_runs_say(network, tmp_path):
    trace(network=str(network), facts={"weights": digest(network.arrays)}).save(tmp_path / "a")
    page = report.write(tmp_path)
    assert re.search(
        rf'<div role="img" aria-label="{network.name}, 6 nodes[^>]*><svg', page.read_text()
    )
    assert "config.toml" not in words(page)


@pytest.mark.parametrize("network", FOREIGN, ids=str)
def test_a_network_that_its_name_does_not_describe_is_left_out(network, tmp_path):
    trace(network=str(network), facts={"weights": digest(network.arrays)}).save(tmp_path / "a")
    page = report.write(tmp_path)
    assert 'class="drawing"' not in page.read_text()
    assert "From the runs. How to cite" in words(page)


def test_of_sweeps_alone_there_is_no_setting(tmp_path):
    save_sweep(tmp_path / "s", small_sweep())
    assert "Configuration and network" not in words(report.write(tmp_path))


def test_the_configuration_of_the_first_run_will_do(tmp_path):
    config.write(
        trace().save(tmp_path / "a") / "config.toml",
        config.Options(topology="ring", nodes=6),
        method="dsgd",
    )
    page = report.write(tmp_path)
    assert "From a/config.toml." in words(page)
    assert re.search(r'class="drawing">\s*<div role="img"', page.read_text())


def test_a_network_of_very_many_links_is_not_drawn(tmp_path):
    network = Network(topology.complete(80))
    config.write(
        trace(network=str(network)).save(tmp_path) / "config.toml",
        config.Options(topology="complete", nodes=80),
        method="dsgd",
    )
    page = report.write(tmp_path)
    assert (
        "complete, 80 nodes, equal weights, λ = 0. It has too many links for a drawing."
        in words(page)
    )
    assert page.stat().st_size < 5.5e6


def test_what_was_interrupted_is_not_the_best(tmp_path):
    trace("dsgd", losses=[1, 0.1], status=Status.interrupted).save(tmp_path / "a")
    trace("d2", losses=[1, 0.5]).save(tmp_path / "b")
    groups = findings.grouped(findings.runs(tmp_path))
    assert findings.smallest(groups).label == "d2"
    assert findings.leaders(groups) == [], "one seed gives no verdict"


def test_seeds_are_paired_by_their_numbers(tmp_path):
    """In the order of folders, which is not that of seeds, the two would be level."""
    for name, shift in (("a", 0.0), ("b", 0.01)):
        for seed in range(3):
            place = seed if name == "a" else 2 - seed
            trace(name, losses=[9, seed + shift], seed=seed).save(tmp_path / f"{name}-{place}")
    assert [one.label for one in findings.leaders(findings.grouped(findings.runs(tmp_path)))] == [
        "a"
    ]


def test_runs_of_different_lengths_are_not_seeds_of_one(tmp_path):
    problem, ring, dsgd = small_logistic(), Network(topology.ring(6)), peerdescent.methods.dsgd
    for name, steps, seed in (("a", 10, 0), ("b", 40, 1), ("c", 40, 2)):
        peerdescent.run(dsgd(), problem, ring, steps=steps, seed=seed, record=2).save(
            tmp_path / name
        )
    groups = findings.grouped(findings.runs(tmp_path))
    assert sorted((group.label, len(group.runs)) for group in groups) == [
        (f"{dsgd()} (steps 10)", 1),
        (f"{dsgd()} (steps 40)", 2),
    ]


def test_a_foreign_summary_is_left_out_with_a_warning(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"other is left out: it has no checkpoint"):
        assert not findings.runs(tmp_path)
