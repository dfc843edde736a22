"""What the command line refuses: always one line on standard error that says what and why, and exit status 2."""

from pathlib import Path

import pytest

import peerdescent
from peerdescent.cli.main import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEERDESCENT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)


@pytest.fixture
def refusal(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err

    return call


BAD = {
    "run": "no method: name one",
    "run gt-hsdg": "unknown method 'gt-hsdg': did you mean 'gt-hsgd'?",
    "run gt-hsgd[alpha=0.5": "not of the form name[parameter=value,...]",
    "run gt-hsgd[gamma=1]": "unknown parameter of gt-hsgd 'gamma'",
    "run gt-hsgd[alpha=-1]": "alpha = -1: must be a positive finite number",
    "run hybrid*nothing": "unknown fusion 'nothing'",
    "run dsgd --nodes 0": "at least 1",
    "run dsgd --nodes many": "--nodes many: must be a whole number",
    "run dsgd --data-dir nowhere": "is not a folder",
    "run dsgd --nodes 5000": "5000 nodes cannot share 1797 rows",
    "run dsgd --steps 0": "steps = 0: must be a whole number of at least 1",
    "run dsgd --steps 3 --epochs 3": "epochs = 3, steps = 3: give one of them",
    "run dsgd --epochs inf": "epochs = inf: must be a finite number",
    "run dsgd --topology rnig": "did you mean 'ring'?",
    "run dsgd --weights heavy": "unknown weights 'heavy'",
    "run d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "run dsgd --data nope": "unknown data set 'nope'",
    "run dsgd --data ./nope.csv": "no file nope.csv",
    "run dsgd --rows 99999999": "more than the 1797 rows",
    "run dsgd --positive 77": "must be some, but not all, of the classes",
    "run dsgd --partition random": "unknown partition 'random'",
    "run dsgd --concentration 0.1": "has no meaning",
    "run dsgd --strength -1": "must not be negative",
    "run dsgd --regulariser l1": "did you mean 'l2'?",
    "run dsgd --seed -1": "seed = -1",
    "run dsgd --engine gpu": "unknown engine 'gpu'",
    "run dsgd --precision 16": "must be 32, 64",
    "run dsgd --record 0": "record = 0",
    "run dsgd --grid cubic": "unknown grid 'cubic'",
    "run dsgd --format xml": "unknown format 'xml'",
    "run dsgd --config none.toml": "no config file none.toml",
    "run dsgd --out taken": "--out taken is a file",
    "run --resume": "--resume needs --out DIR",
    "run --resume --out .": ". is not a run folder",
    "run --resume --out . --config a.toml": "leave out --config",
    "run dsgd d2": "d2",
    "run dsgd --epoch 3": "--epochs",
    "frobnicate": "frobnicate",
    "compare": "compare needs two methods or more",
    "compare dsgd": "compare needs two methods or more",
    "compare dsgd dsgd[alpha=0.1]": "dsgd[alpha=0.1] is given twice",
    "compare gt-hsgd d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "network": "TOPOLOGY",
    "network rnig": "did you mean 'ring'?",
    "network ring --nodes x": "--nodes x: must be a whole number",
    "network ring --weights heavy": "unknown weight rule 'heavy'",
    "network ring --out ring.gif": "end its name in .png, .pdf, .svg",
    "network ring --out taken/ring.png": "taken",
    "list nothing": "unknown section 'nothing'",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input(refusal, command):
    Path("taken").write_text("")
    assert BAD[command] in refusal(*command.split())


def test_out_of_memory(refusal, monkeypatch):
    def run(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 528000000000128 bytes.")

    monkeypatch.setattr(peerdescent, "run", run)
    assert "smaller batches" in refusal("run", "dsgd", "--nodes", "4")
