"""Bad input on the command line: always one line on standard error that says what and why, and exit status 2."""

import os
import subprocess
import sys
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
    "run dsgd --data-dir nowhere": "--data-dir 'nowhere' is not a folder",
    "run dsgd --nodes 5000": "5000 nodes cannot share 1797 rows",
    "run dsgd --steps 0": "--steps 0: must be greater than or equal to 1",
    "run dsgd --steps 3 --epochs 3": "--epochs 3, --steps 3: give one of them",
    "run dsgd --epochs inf": "--epochs inf: must be less than or equal to 1000000000",
    "run dsgd --epochs 1e300": "--epochs 1e300: must be less than or equal to 1000000000",
    "run dsgd --epochs nan": "--epochs nan: must be",
    "run dsgd --steps 999999999999999999999": "--steps 999999999999999999999: must be less than or equal to 2147483647",
    "run dsgd --record 99999999999": "--record 99999999999: must be less than or equal to 1000000",
    "run dsgd --seed 99999999999": "--seed 99999999999: must be less than or equal to 4294967295",
    "run dsgd --nodes 1000000 --rows 200": "1000000 nodes cannot share 200 rows",
    "run dsgd --data synthetic-10000000x10000000": "10,000,000 features would take about 7,450,582 GiB, and there",
    "run dsgd --data synthetic-1x1" + "0" * 100: "GiB of memory: make fewer rows or features",
    "run dsgd --header": "--header True is for .csv files",
    "run dsgd --target y": "--target 'y' is for .csv files",
    "network ring --nodes 1000000000": "a network of 1,000,000,000 nodes would take about 931 GiB, and there are ",
    "network ring --nodes 1" + "0" * 400: "GiB of memory: use fewer nodes",
    "network complete --nodes 2000000": "GiB of memory: use fewer nodes",
    "network exponential --nodes 1000000000": "GiB of memory: use fewer nodes",
    "network erdos-renyi --nodes 1000000000": "GiB of memory: use fewer nodes",
    "network torus --nodes 999999999999999989": "GiB of memory: use fewer nodes",
    "network ring --nodes 10000000 --matrix": "10,000,000 x 10,000,000 weights as text would take about",
    "tune dsgd --seeds 99999999999": "--seeds 99999999999: must be less than or equal to 1000000",
    "run dsgd --topology rnig": "did you mean 'ring'?",
    "run dsgd --weights heavy": "unknown weights 'heavy'",
    "run d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "run dsgd --data ~nobody-here": "unknown data set '~nobody-here'",
    "run dsgd --data-dir ~nobody-here": "is not a folder",
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


BAD_FILES = {
    "alpha = [[1, 2]]": ("tune dsgd --grid x.toml", "alpha = [[1, 2]] in x.toml: give numbers"),
    "nodes = 99999999999999999999": ("run dsgd --config x.toml", "nodes cannot share 1797 rows"),
    "nodes = " + "[" * 20_000: ("run dsgd --config x.toml", "x.toml is not TOML: maximum recursion depth exceeded"),
    "alpha = " + "[" * 20_000: ("tune dsgd --grid x.toml", "x.toml is not TOML: maximum recursion depth exceeded"),
    "strength = 1" + "0" * 400: ("run dsgd --config x.toml", "in x.toml: must be a number below 1e308"),
    "1 99999999999999:1\n-1 1:1\n": ("run dsgd --data x.svm --nodes 2", "x.svm as LIBSVM text"),
    "1 2000000000:1\n-1 1:1\n": (
        "run dsgd --data x.svm --nodes 2",
        "2,000,000,000 features at 2 nodes would take about",
    ),
    "0,1,2\n5,6,0\n7,8,1\n": (
        "run dsgd --data x.csv --nodes 2",
        "may be names of columns or numbers; say which by --header",
    ),
    ",a,y\n0,6,0\n1,8,1\n": (
        "run dsgd --data x.csv --nodes 2",
        "the first column of x.csv has no name, so it is an index",
    ),
    "a,b,y\n1,2,0\n3,4,1\n5,6,2\n": (
        "run dsgd --data x.csv --nodes 2",
        "say which become +1, as in --positive 2, or name another column of labels by --target",
    ),
    "a,b,y\n" + "1" * 400 + ",2,0\n3,4,1\n": ("run dsgd --data x.csv --nodes 2", "x.csv"),
}


@pytest.mark.parametrize("content", BAD_FILES, ids=[text[:20] for text in BAD_FILES])
def test_bad_files(refusal, content):
    command, message = BAD_FILES[content]
    Path(next(word for word in command.split() if word.startswith("x."))).write_text(content)
    assert message in refusal(*command.split())


def test_a_device_that_is_not_there():
    command = [sys.executable, "-m", "peerdescent", "run", "dsgd", "--nodes", "4", "--steps", "2"]
    ended = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "abacus"}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "JAX_PLATFORMS=abacus: JAX finds no such device" in ended.stderr


def test_config_has_absolute_paths_of_data(peer):
    Path("x.csv").write_text("1,2,0\n3,4,1\n5,7,0\n9,8,1\n")
    assert peer("run", "dsgd", "--data", "x.csv", "--nodes", "2", "--steps", "2", "--out", "a", "--quiet").code == 0
    assert f'data = "{Path("x.csv").absolute()}"' in Path("a/config.toml").read_text()
    assert peer("run", "--resume", "--data", "./x.csv", "--steps", "3", "--out", "a", "--quiet").code == 0


@pytest.mark.parametrize(("flags", "rows"), [("--header --target 0", 4), ("--no-header --target 0", 5)])
def test_header_and_target(peer, flags, rows):
    Path("x.csv").write_text("0,1,2\n1,5,6\n0,7,9\n1,8,3\n0,7,7\n")
    command = f"run dsgd --data x.csv {flags} --nodes 2 --steps 1 --quiet"
    assert peer(*command.split(), "--rows", rows).code == 0
    assert f"the {rows} rows of x.csv" in peer(*command.split(), "--rows", rows + 1).err


def commands():
    """The words before the options of every command, and the command."""
    group = typer.main.get_command(app)
    needed = {"tune": ["dsgd"], "network": ["ring"], "reproduce": ["lambda"]}
    for name, command in group.commands.items():
        if name == "theory":
            yield from (([name, inner], each) for inner, each in command.commands.items())
        else:
            yield [name, *needed.get(name, [])], command


NUMBERS = {name for name, kind in KINDS.items() if kind in (int, float)} - {"precision", "target"}
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
