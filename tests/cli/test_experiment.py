import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdescent import experiment as config
from peerdescent.engines import ENGINES


def test_choices_are_those_of_the_library():
    from peerdescent.datasets.partitions import PARTITIONS
    from peerdescent.networks.weighing import RULES
    from peerdescent.problems.regularisers import REGULARISERS

    choices = {f.name: f.metadata["choices"] for f in config.fields(config.Options)}
    assert set(choices["partition"]) == set(PARTITIONS) - {"indices", "groups"}
    assert set(choices["weights"]) == set(RULES)
    assert set(choices["regulariser"]) == set(REGULARISERS)
    assert set(choices["engine"]) == set(ENGINES)


def test_a_file_may_give_whole_numbers_for_numbers():
    Path("c.toml").write_text("strength = 1\nquiet = true\n")
    options = config.settle(config.read("c.toml", "method"), {})
    assert options.strength == 1.0
    assert options.quiet is True
    assert options.epochs == config.EPOCHS


STRANGE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
"""Any text that a UTF-8 file can contain."""


@given(
    data=STRANGE,
    folder=STRANGE,
    method=STRANGE,
    strength=st.floats(0, 1e300),
    steps=st.integers(1, 2**31 - 1),
)
def test_what_is_written_is_what_is_read(data, folder, method, strength, steps):
    given = {
        "data": data,
        "data_dir": Path(folder),
        "strength": strength,
        "steps": steps,
        "skip_stationarity": True,
    }
    options = config.settle({}, given)
    config.write(Path("c.toml"), options, method=method)
    values = config.read("c.toml", "method")
    assert values.pop("method") == method
    assert config.settle(values, {}) == options


def test_lists_of_methods_and_classes_are_read_back():
    options = config.settle({}, {"positive": (1, 3, 'odd "one"')})
    config.write(Path("c.toml"), options, methods=["dsgd", "gt-hsgd[alpha=0.5]"])
    values = config.read("c.toml", "methods")
    assert values.pop("methods") == ["dsgd", "gt-hsgd[alpha=0.5]"]
    assert config.settle(values, {}) == options
    Path("c.toml").write_text("positive = [1, 3]")
    assert config.read("c.toml", "method") == {"positive": (1, 3)}
    Path("c.toml").write_text('positive = "1,odd"\ntarget = "y"\ngroups = "site"\nscale = true')
    read = {"positive": (1, "odd"), "target": "y", "groups": "site", "scale": True}
    assert config.read("c.toml", "method") == read
    for wrong in (
        "positive = []",
        "positive = [1.5]",
        "target = [1]",
        "target = true",
        "target = 3",
        "groups = []",
    ):
        Path("c.toml").write_text(wrong)
        with pytest.raises(ValueError, match="must be"):
            config.read("c.toml", "method")


def test_where_output_goes_is_not_written():
    assert (
        not {"out", "format", "quiet"}
        & tomllib.loads(config.text(config.Options(out=Path("a")))).keys()
    )


def test_a_partition_that_is_not_made_is_not_written():
    options = config.settle({}, {"groups": "site", "nodes": 3})
    config.write(Path("c.toml"), options, method="dsgd")
    values = config.read("c.toml", "method")
    assert "partition" not in values
    assert values.pop("method") == "dsgd"
    assert config.settle(values, {}) == options
    assert tomllib.loads(config.text(config.Options()))["partition"] == "uniform"


def test_a_config_is_written_in_one_move(monkeypatch):
    config.write(Path("c.toml"), config.Options(), method="dsgd")
    before = Path("c.toml").read_text()
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("moved"))
    with pytest.raises(pytest.fail.Exception):
        config.write(Path("c.toml"), config.Options(nodes=3), method="dsgd")
    assert Path("c.toml").read_text() == before


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("nodes", 0, "nodes = 0: must be at least 1"),
        ("data_seed", -1, "data_seed = -1: must be at least 0"),
        ("strength", -0.5, "strength = -0.5: must be at least 0"),
        ("strength", float("nan"), "strength = nan: must be a finite number"),
        ("engine", "stackd", "unknown engine 'stackd': did you mean 'stacked'?"),
        ("precision", 16, "Known: 32, 64"),
    ],
)
def test_options_keep_their_rules(name, value, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        config.Options(**{name: value})


FILES = {
    "epoch = 3": "unknown key in c.toml 'epoch': did you mean 'epochs'?",
    'methods = ["dsgd"]': "unknown key in c.toml 'methods': did you mean 'method'?",
    'nodes = "many"': 'nodes = "many" in c.toml: must be a whole number',
    "nodes = true": "nodes = true in c.toml: must be a whole number",
    "nodes = 2.5": "nodes = 2.5 in c.toml: must be a whole number",
    'strength = "x"': "must be a number",
    "nodes = 0": "nodes = 0: must be at least 1",
    "data-dir = 3": "data-dir = 3 in c.toml: must be text",
    "strength = nan": "strength = nan: must be a finite number",
    "data = 3": "data = 3 in c.toml: must be text",
    "quiet = 1": "quiet = 1 in c.toml: must be true or false",
    "steps = 3\nepochs = 3": "epochs = 3, steps = 3: give one of them",
    "nodes = = 3": "c.toml is not TOML",
    'engine = "gpu"': "unknown engine 'gpu'",
}


@pytest.mark.parametrize("text", FILES)
def test_bad_files(text):
    Path("c.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(FILES[text])):
        config.settle(config.read("c.toml", "method"), {})
