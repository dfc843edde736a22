import re
from pathlib import Path

import pytest

from peerdescent import experiment as config
from peerdescent.engines import ENGINES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_choices_are_those_of_the_library():
    from peerdescent.datasets.dataset import PARTITIONS
    from peerdescent.networks.network import RULES
    from peerdescent.problems.regression import REGULARISERS

    choices = {f.name: f.metadata["choices"] for f in config.fields(config.Options)}
    assert set(choices["partition"]) == set(PARTITIONS) - {"indices"}
    assert set(choices["weights"]) == set(RULES)
    assert set(choices["regulariser"]) == set(REGULARISERS)
    assert set(choices["engine"]) == set(ENGINES)


def test_a_file_may_give_whole_numbers_for_numbers():
    Path("c.toml").write_text("strength = 1\nquiet = true\n")
    options = config.settle(config.read("c.toml", "method"), {})
    assert options.strength == 1.0
    assert options.quiet is True
    assert options.epochs == config.EPOCHS


def test_what_is_written_is_what_is_read():
    options = config.settle(
        {}, {"data": 'odd "name"\\ü.csv', "strength": 1e-17, "steps": 3, "data_dir": "d", "positive": "a"}
    )
    config.write(Path("c.toml"), options, method="dsgd[alpha=0.5]")
    values = config.read("c.toml", "method")
    assert values.pop("method") == "dsgd[alpha=0.5]"
    assert config.settle(values, {}) == options


FILES = {
    "epoch = 3": "unknown key in c.toml 'epoch': did you mean 'epochs'?",
    'methods = ["dsgd"]': "unknown key in c.toml 'methods': did you mean 'method'?",
    'nodes = "many"': 'nodes = "many" in c.toml: must be a whole number',
    "nodes = true": "nodes = true in c.toml: must be a whole number",
    "nodes = 2.5": "nodes = 2.5 in c.toml: must be a whole number",
    'strength = "x"': "must be a finite number",
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
