"""The store of computed results: results are returned only if the facts about them agree."""

from __future__ import annotations

import json

import pytest

from peerdescent.runs.store import Store, key_of, recall


def test_rows_come_back_by_the_values_they_were_stored_under(tmp_path):
    store = Store(tmp_path, "gaps", {"noise": 1.0}, ["graph", "nodes", "seed"])
    store.add({"graph": "ring", "nodes": 4, "seed": 0, "gap": 0.1 + 0.2})
    store.add({"graph": "ring", "nodes": 8, "seed": 0, "gap": float("nan")})
    store.save()
    again = Store(tmp_path, "gaps", {"noise": 1.0}, ["graph", "nodes", "seed"])
    assert float(again.get(["ring", 4, 0])["gap"]) == 0.1 + 0.2
    assert again.get(["ring", 4.0, 0]) is not None
    assert again.get(["ring", 4, 1]) is None
    assert again.get(["ring", 8, 0])["gap"] == ""
    again.add({"graph": "ring", "nodes": 2, "seed": 0, "gap": 1.0})
    again.save(order=[key_of(["ring", 2, 0])])
    assert (tmp_path / "gaps.csv").read_text().splitlines()[1] == "ring,2,0,1.0"


@pytest.mark.parametrize("about", [{"noise": 2.0}, {"noise": 1.0, "spread": 0.5}])
def test_other_facts_are_refused(tmp_path, about):
    Store(tmp_path, "gaps", {"noise": 1.0}, ["nodes"])
    with pytest.raises(
        ValueError,
        match=r"gaps.csv is about something else: .* here and was .* there: give another folder",
    ):
        Store(tmp_path, "gaps", about, ["nodes"])


def test_a_table_that_does_not_say_what_it_is_about_is_refused(tmp_path):
    (tmp_path / "gaps.csv").write_text("nodes,gap\n4,0.5\n")
    with pytest.raises(
        ValueError, match=r"gaps.csv does not say what it is about, since gaps.json is missing"
    ):
        Store(tmp_path, "gaps", {"noise": 1.0}, ["nodes"])


def test_damaged_facts_are_refused(tmp_path):
    (tmp_path / "gaps.json").write_text('{"noise": ')
    with pytest.raises(ValueError, match=r"gaps.json is not JSON"):
        Store(tmp_path, "gaps", {"noise": 1.0}, ["nodes"])


def test_one_result_is_computed_again_where_it_is_about_something_else(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"value": len(calls)}

    place = tmp_path / "deep" / "optimum.json"
    assert recall(place, {"data": "a", "starts": 4}, compute)["value"] == 1
    assert recall(place, {"data": "a", "starts": 4}, compute)["value"] == 1
    assert recall(place, {"data": "b", "starts": 4}, compute)["value"] == 2
    assert json.loads(place.read_text()) == {"value": 2, "about": {"data": "b", "starts": 4}}


@pytest.mark.parametrize("value", [0.1, 1e-300, 3, None, True, "a,b", 'quo"te'])
def test_keys_survive_a_file(tmp_path, value):
    Store(tmp_path, "t", {}, ["k"]).add({"k": value})
    store = Store(tmp_path, "t", {}, ["k"])
    store.add({"k": value, "result": 1})
    store.save()
    assert Store(tmp_path, "t", {}, ["k"]).get([value]) is not None
