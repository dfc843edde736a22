"""Bad input on the command line: always one line on standard error that says what and why, and exit status 2."""

from pathlib import Path

import pytest
import typer

import peerdescent
from peerdescent.cli.main import app
from peerdescent.experiment import KINDS

BAD = {
    "run": "no method: name one",
    "run gt-hsdg": "unknown method 'gt-hsdg': did you mean 'gt-hsgd'?",
    "run gt-hsgd[alpha=0.5": "not of the form name[parameter=value,...]",
    "run gt-hsgd[gamma=1]": "unknown parameter of gt-hsgd 'gamma'",
    "run gt-hsgd[alpha=-1]": "alpha = -1: must be a positive finite number",
    "run hybrid*nothing": "unknown fusion 'nothing'",
    "run dsgd --nodes 0": "--nodes 0: must be greater than or equal to 1",
    "run dsgd --nodes many": "--nodes many: must be a valid integer",
    "run dsgd --data-dir nowhere": "is not a folder",
    "run dsgd --nodes 5000": "5000 nodes cannot share 1797 rows",
    "run dsgd --steps 0": "--steps 0: must be greater than or equal to 1",
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
    "run dsgd --partition it's": 'unknown partition "it\'s"',
    "run dsgd --partition lable": "did you mean 'label'?",
    "run dsgd --concentration 0.1": "has no meaning",
    "run dsgd --strength -1": "--strength -1: must be greater than or equal to 0",
    "run dsgd --regulariser l1": "did you mean 'l2'?",
    "run dsgd --seed -1": "--seed -1: must be greater than or equal to 0",
    "run dsgd --engine stackd": "unknown engine 'stackd': did you mean 'stacked'?",
    "run dsgd --engine gpu": "unknown engine 'gpu': known: debug, processes, sharded, stacked",
    "run dsgd --precision 16": "Known: 32, 64",
    "run dsgd --record 0": "--record 0: must be greater than or equal to 1",
    "run dsgd --grid cubic": "unknown grid 'cubic'",
    "run dsgd --format xml": "unknown format 'xml'",
    "run dsgd --config none.toml": "no config file none.toml",
    "run dsgd --out taken": "--out taken is a file",
    "run --resume": "--resume needs --out DIR",
    "run --resume --out .": ". is not a run folder",
    "run --resume --out . --config a.toml": "leave out --config",
    "run dsgd d2": "d2",
    "run dsgd --epoch 3": "--epochs",
    "frobnicate": "No such command 'frobnicate'",
    "rnu dsgd": "Did you mean 'run'?",
    "run dsgd --nodes": "--nodes",
    "run dsgd --quiet=3": "--quiet",
    "compare": "compare needs two methods or more",
    "compare dsgd": "compare needs two methods or more",
    "compare dsgd dsgd[alpha=0.1]": "dsgd[alpha=0.1] is given twice",
    "compare gt-hsgd d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "network": "TOPOLOGY",
    "network rnig": "did you mean 'ring'?",
    "network ring --nodes x": "--nodes x: must be a valid integer",
    "network ring --weights heavy": "unknown weights 'heavy'",
    "network ring --out ring.gif": "end its name in .png, .pdf, .svg",
    "network ring --out taken/ring.png": "taken",
    "list thods": "unknown section 'thods': did you mean 'methods'?",
    "tune": "METHOD",
    "tune gt-hsdg": "unknown method 'gt-hsdg'",
    "tune dsgd --grid large": "unknown grid 'large'",
    "tune dsgd --grid none.toml": "no file none.toml",
    "tune dsgd --search luck": "unknown search 'luck'",
    "tune dsgd --finalists 0": "--finalists 0: must be greater than or equal to 1",
    "tune dsgd --out taken": "--out taken is a file",
    "report nowhere": "nowhere",
    "plot nowhere --out a.png": "nowhere has no run folders",
    "plot . --heatmap alpha --out a.png": "give two parameters",
    "plot . --heatmap alpha,beta --out a.png": "has no sweep.csv",
    "reproduce": "Choose from: lambda, table1",
    "reproduce figur1": "unknown study 'figur1': did you mean 'figure1'?",
    "reproduce lambda --format xml": "unknown format 'xml'",
    "reproduce figure1 --scale large": "unknown scale 'large'",
    "theory nothing": "nothing",
    "theory table1 --lam 1": "lam = 1.0: must lie in [0, 1)",
    "theory parameters --epsilon 0": "--epsilon 0: must be positive",
    "theory bound --seeds 0": "--seeds 0: must be greater than or equal to 1",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input(refusal, command):
    Path("taken").write_text("")
    assert BAD[command] in refusal(*command.split())


def commands():
    """The words before the options of every command, and the command."""
    group = typer.main.get_command(app)
    needed = {"tune": ["dsgd"], "network": ["ring"], "reproduce": ["lambda"]}
    for name, command in group.commands.items():
        if name == "theory":
            yield from (([name, inner], each) for inner, each in command.commands.items())
        else:
            yield [name, *needed.get(name, [])], command


NUMBERS = {name for name, kind in KINDS.items() if kind in (int, float)} - {"precision"}
NUMBERS |= {"finalists", "seeds", "lam", "epsilon", "exponent", "alpha", "initial_batch"}
WRONG = [
    ([*words, option.opts[-1]]) for words, command in commands() for option in command.params if option.name in NUMBERS
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_number_of_the_wrong_type_is_named_with_its_option(refusal, words):
    message = refusal(*words, "ten")
    assert f"{words[-1]} ten: must be a valid " in message


def test_the_numbers_of_all_commands_are_tried():
    assert {words[-1] for words in WRONG} == {"--" + name.replace("_", "-") for name in NUMBERS}
    assert {words[0] for words in WRONG} == {"run", "compare", "tune", "network", "reproduce", "theory"}


def test_out_of_memory(refusal, monkeypatch):
    def run(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 528000000000128 bytes.")

    monkeypatch.setattr(peerdescent, "run", run)
    assert "smaller batches" in refusal("run", "dsgd", "--nodes", "4")
