"""Bad input on the command line: always one line on standard error that says what and why, and exit status 2."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import peerdescent
from peerdescent import experiment
from peerdescent.cli.main import app
from peerdescent.cli.options import with_flags
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
    "run dsgd --data-dir nowhere": "--data-dir nowhere is not a folder",
    "run dsgd --nodes 5000": "5000 nodes cannot share 1797 rows",
    "run dsgd --steps 0": "--steps 0: must be greater than or equal to 1",
    "run dsgd --steps 3 --epochs 3": "--epochs 3, --steps 3: give one of them",
    "run dsgd --epochs inf": "--epochs inf: must be less than or equal to 1000000000",
    "run dsgd --epochs 1e300": "--epochs 1e300: must be less than or equal to 1000000000",
    "run dsgd --epochs nan": "--epochs nan: must be",
    "run dsgd --steps 999999999999999999999": "--steps 999999999999999999999: must be less than or equal to 2147483647",
    "run dsgd --record 99999999999": "--record 99999999999: must be less than or equal to 1000000",
    "run dsgd --seed 99999999999": "seeds are below 2^32",
    "run dsgd --nodes 1000000 --rows 200": "1000000 nodes cannot share 200 rows",
    "run dsgd --data synthetic-10000000x10000000": "10,000,000 features would take about 7,450,582 GiB, and there",
    "run dsgd --data synthetic-1x1" + "0" * 100: "GiB of memory: make fewer rows or features",
    "run dsgd --target y": "--target y is for tables, such as .csv files, and digits is none: leave",
    "run dsgd --groups hospital": "--groups hospital is for tables, such as .csv files",
    "run dsgd --data synthetic-100x5 --target 3": "--target 3 is for tables, such as .csv files, and",
    "run dsgd --each 3": "--each 3 has no meaning with --partition uniform: leave it out, or say --partition shards or",
    "run dsgd --partition shards --each 0": "--each 0: must be greater than or equal to 1",
    "run dsgd --partition shards --each 1000": "20 nodes with --each 1000 need 20,000 shards, and there are 1,797 rows",
    "run dsgd --partition classes --each 3": "20 nodes with --each 3 cannot share 2 classes",
    "run dsgd --partition label --concentration 0.1": "--concentration 0.1 has no meaning with --partition label",
    "run dsgd --partition quantity --concentration 0": "--concentration 0.0 must be a finite number above 0",
    "run dsgd --positive 1,77": "--positive 1,77 must be some, but not all, of the classes of digits: 0, 1, 2, 3",
    "run dsgd --topology directed-exponential --weights lazy": "is directed: use --weights equal",
    "run dsgd --accelerate": "--accelerate with --rounds 1: give two rounds or more",
    "run choco-sgd --rounds 2": "compressed: use --rounds 1, or another method",
    "run dsgd --topology directed-exponential --fault drop=0.1": "graph, --fault drop=0.1,one-way, or push-pull",
    "run dsgd --problem ridge": "unknown problem 'ridge'",
    "run dsgd --problem pca --strength 1": "--strength 1.0 has no meaning with --problem pca: leave it out",
    "run dsgd --problem perceptron --intercept": "--intercept has no meaning with --problem perceptron",
    "run dsgd --problem softmax --positive 1,3": "--positive 1,3 has no meaning with --problem softmax: leave one of",
    "run dsgd --rows 5": "20 nodes cannot share 5 rows",
    "network ring --nodes 1000000000": "a network of 1,000,000,000 nodes would take about 931 GiB, and there are ",
    "network ring --nodes 1" + "0" * 400: "GiB of memory: use fewer nodes",
    "network complete --nodes 2000000": "GiB of memory: use fewer nodes",
    "network exponential --nodes 1000000000": "GiB of memory: use fewer nodes",
    "network erdos-renyi --nodes 1000000000": "GiB of memory: use fewer nodes",
    "network torus --nodes 999999999999999989": "GiB of memory: use fewer nodes",
    "network ring --nodes 10000000 --matrix": "10,000,000 x 10,000,000 weights as text would take about",
    "tune dsgd --seed 3-99999999999": "seeds are below 2^32",
    "run dsgd --topology rnig": "did you mean 'ring'?",
    "run dsgd --weights heavy": "unknown weights 'heavy'",
    "run d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "run dsgd --data ~nobody-here": "unknown data set '~nobody-here'",
    "run dsgd --data-dir ~nobody-here": "is not a folder",
    "run dsgd --data nope": "unknown data set 'nope'",
    "run dsgd --data ./nope.csv": "no file nope.csv",
    "run dsgd --rows 99999999": "more than the 1797 rows",
    "run dsgd --positive 77": "--positive 77 must be some, but not all, of the classes",
    "run dsgd --partition random": "unknown partition 'random'",
    "run dsgd --partition it's": 'unknown partition "it\'s"',
    "run dsgd --partition lable": "did you mean 'label'?",
    "run dsgd --concentration 0.1": "--concentration 0.1 has no meaning with --partition uniform: leave it out, or say",
    "run dsgd --strength -1": "--strength -1: must be greater than or equal to 0",
    "run dsgd --regulariser l1": "did you mean 'l2'?",
    "run dsgd --seed -1": "'-1' is no seed: give a whole number",
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
    "compare": "compare needs a method or more",
    "run dsgd --seeds 3": "no option --seeds here: peerdescent compare and tune take several seeds, as in --seed 0-4",
    "run dsgd --alpha 3": "no option --alpha here: hyperparameters are given with the method, as in 'gt",
    "compare dsgd dsgd": "dsgd is given twice",
    "run dsgd --seed 0-4": "several are for compare and tune: give one",
    "compare dsgd d2 --seed 4-0": "a range goes up",
    "run dsgd --header": "pandas.read_csv",
    "compare dsgd d2 --seeds 5": "--seeds",
    "compare gt-hsgd d2 --topology directed-exponential": "d2 needs a symmetric weight matrix",
    "network": "TOPOLOGY",
    "network rnig": "did you mean 'ring'?",
    "network ring --nodes x": "--nodes x: must be a valid integer",
    "network ring --weights heavy": "unknown weights 'heavy'",
    "network ring --out ring.gif": "end its name in .png, .pdf, .svg",
    "network ring --out taken/ring.png": "taken",
    "list --format csv": "--format csv is for one section: name it, as in peerdescent list methods",
    "list methods --format xml": "unknown format 'xml'",
    "network ring --format xml": "unknown format 'xml'",
    "list thods": "unknown section 'thods': did you mean 'methods'?",
    "tune": "METHOD",
    "tune gt-hsdg": "unknown method 'gt-hsdg'",
    "tune dsgd --grid large": "unknown grid 'large'",
    "tune dsgd --grid none.toml": "no file none.toml",
    "tune dsgd --seed 3-5 --fresh 0-4": "searched and evaluated",
    "tune dsgd --budget 5 --epochs 2": "--budget 5: must be finite; one configuration takes 6 passes",
    "tune dsgd --by accuracy": "unknown metric 'accuracy'",
    "compare dsgd --by los": "did you mean 'loss'",
    "tune dsgd --out taken": "--out taken is a file",
    "report nowhere": "nowhere",
    "plot nowhere --out a.png": "nowhere has no run folders",
    "plot . --heatmap alpha --out a.png": "give two parameters",
    "plot . --heatmap alpha,beta --out a.png": "has no sweep.csv",
    "reproduce": "Choose from: lambda, table1",
    "reproduce figur1": "unknown study 'figur1': did you mean 'figure1'?",
    "reproduce lambda --format xml": "unknown format 'xml'",
    "reproduce figure1 --scale large": "unknown scale 'large'",
    **{
        f"reproduce {study} {flag}": f"{flag} has no meaning with {study}"
        for flag, wrong in {
            "--nodes 8": "lambda table2 speedup topology",
            "--strength 0.1": "lambda table1 table2 speedup topology",
            "--lam 0.5": "lambda table2 figure1 figure2 heterogeneity speedup topology",
            "--epsilon 0.5": "lambda table2 figure1 figure2 heterogeneity speedup topology",
            "--exponents b=3": "lambda table2 figure1 figure2 heterogeneity speedup topology",
            "--spread 0.5": "lambda table1 table2 figure1 figure2 heterogeneity topology",
            "--data a9a": "lambda table1 table2 speedup topology",
            "--data-dir /tmp": "lambda table1 speedup topology",
            "--tuning 0.5": "lambda table1 table2 speedup topology",
            "--scale tiny": "lambda table1 table2",
            "--out /tmp/none": "lambda table1 table2",
        }.items()
        for study in wrong.split()
    },
    "theory nothing": "nothing",
    "theory table1 --lam 1": "--lam 1.0: must lie in [0, 1)",
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
    "nodes = " + "[" * 20_000: (
        "run dsgd --config x.toml",
        "x.toml is not TOML: maximum recursion depth exceeded",
    ),
    "alpha = " + "[" * 20_000: (
        "tune dsgd --grid x.toml",
        "x.toml is not TOML: maximum recursion depth exceeded",
    ),
    "strength = 1" + "0" * 400: (
        "run dsgd --config x.toml",
        "in x.toml: must be a number below 1e308",
    ),
    "1 99999999999999:1\n-1 1:1\n": ("run dsgd --data x.svm --nodes 2", "x.svm as LIBSVM text"),
    "1 2000000000:1\n-1 1:1\n": (
        "run dsgd --data x.svm --nodes 2",
        "2,000,000,000 features at 2 nodes would take about",
    ),
    "a,b,y\n0,6,0\n1,8,1\n": (
        "run dsgd --data x.csv --nodes 2",
        "say which column of x.csv has the labels by --target: its columns are a, b, y",
    ),
    ",a,y\n0,6,0\n1,8,1\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "the first column of x.csv has no name, as an index in a file: read it by pandas.read_csv",
    ),
    "a,b,y\n1,,0\n3,4,1\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "x.csv has missing values in b: fill them in, as by frame.fillna(frame.median()), or leave",
    ),
    "a,b,y\n1,2,0\n3,4,1\n5,6,2\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "(0, 1, 2), and binary labels need two: say which become +1, as in --positive 2, name another column of labels "
        "by --target, or use --problem softmax",
    ),
    "a,y\n1,0.5\n3,1.5\n5,2.25\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "x.csv has 3 different labels (0.5, 1.5, 2.25), and binary labels need two: say which become +1, as in "
        "--positive 2.25, name another column of labels by --target, or use --problem linear",
    ),
    "a,y\n1,0.5\n3,1.5\n5,2.75\n": (
        "run dsgd --data x.csv --target y --nodes 2 --problem softmax",
        "x.csv has labels such as 0.5: classes are whole numbers or text; use --problem linear",
    ),
    "a,y\n1,no\n3,yes\n5,no\n": (
        "run dsgd --data x.csv --target y --nodes 2 --problem linear",
        "x.csv has labels such as 'no': real targets are numbers; use --problem logistic for two classes, or softmax",
    ),
    "a,site,y\n1,Ulm,0\n3,Bern,1\n5,Ulm,1\n": (
        "run dsgd --data x.csv --target y --groups site --nodes 3",
        "site has 2 different values, which are the nodes: leave out --nodes 3",
    ),
    "a,site,y\n2,Ulm,0\n3,Bern,1\n5,Ulm,1\n": (
        "run dsgd --data x.csv --target y --groups site --partition label",
        "--partition label has no meaning with --groups, which are the nodes: leave one out",
    ),
    "a,site,y\n3,Ulm,0\n3,Bern,1\n5,Ulm,1\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "column 'site' of x.csv holds 'Ulm', which is no number: turn texts into columns of numbers",
    ),
    "a,site,y\n4,Ulm,0\n3,Bern,1\n5,Ulm,1\n": (
        "run dsgd --data x.csv --nodes 2 --target z",
        "--target z is no column of x.csv: its columns are a, site, y",
    ),
    "a,site,y\n5,Ulm,0\n3,,1\n5,Ulm,1\n": (
        "run dsgd --data x.csv --target y --groups site",
        "site is missing in 1 rows: fill",
    ),
    "1 1:-2\n-1 2:1\n": (
        "run dsgd --data x.svm --nodes 2 --scale",
        "x.svm is sparse, and --scale would fill column 0, whose smallest value is -2: pass --no-scale, or load",
    ),
    "1 1:-3\n-1 2:1\n": (
        "run dsgd --data x.svm --target y",
        "--target y is for tables, such as .csv files, and",
    ),
    "a,b,y\n" + "1" * 400 + ",2,0\n3,4,1\n": (
        "run dsgd --data x.csv --target y --nodes 2",
        "x.csv",
    ),
}


@pytest.mark.parametrize("content", BAD_FILES, ids=[text[:20] for text in BAD_FILES])
def test_bad_files(refusal, content):
    command, message = BAD_FILES[content]
    Path(next(word for word in command.split() if word.startswith("x."))).write_text(content)
    assert message in refusal(*command.split())


def test_a_device_that_is_not_there():
    command = [sys.executable, "-m", "peerdescent", "run", "dsgd", "--nodes", "4", "--steps", "2"]
    ended = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "abacus"}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "JAX_PLATFORMS=abacus: JAX finds no such device" in ended.stderr


def test_config_has_absolute_paths_of_data(peer):
    Path("x.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,7,0\n9,8,1\n")
    assert (
        peer(
            "run",
            "dsgd",
            "--data",
            "x.csv",
            "--target",
            "y",
            "--nodes",
            "2",
            "--steps",
            "2",
            "--out",
            "a",
            "--quiet",
        ).code
        == 0
    )
    assert f'data = "{Path("x.csv").absolute()}"' in Path("a/config.toml").read_text()
    assert (
        peer("run", "--resume", "--data", "./x.csv", "--steps", "3", "--out", "a", "--quiet").code
        == 0
    )


MESSAGES = {
    "rows=3 and data_dir='a b'": "--rows 3 and --data-dir 'a b'",
    "rows = 3: must be": "--rows 3: must be",
    "epochs = 3, steps = 4: give": "--epochs 3, --steps 4: give",
    "say by='label', 'shards' or by=\"x's\"": """say --partition label, 'shards' or --partition 'x'"'"'s'""",
    "name it by target=, or each=-1; positive=[1, 'odd']": "name it by --target, or --each -1; --positive 1,odd",
    "scale=True, scale=False, target=None": "--scale, --no-scale, --target",
    "strength=1e-4, strength=inf, strength=nan.": "--strength 1e-4, --strength inf, --strength nan.",
    "gt-hsgd[rows=3] and x.rows=3, my_rows=3": "gt-hsgd[rows=3] and x.rows=3, my_rows=3",
    "alpha = 3: must be": "alpha = 3: must be",
    "rows = 3 in x.toml": "rows = 3 in x.toml",
    "the rows are nodes": "the rows are nodes",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_have_flags_for_arguments(message):
    assert with_flags(message, KINDS) == MESSAGES[message]


def test_messages_have_only_flags_that_the_command_has():
    assert with_flags("rows=3 and nodes=4", ["nodes"]) == "rows=3 and --nodes 4"


@pytest.mark.filterwarnings("always")
def test_what_is_done_to_a_file_is_said(peer):
    Path("x.csv").write_text("site,age,dose,ill\nUlm,30,1,no\nUlm,50,4,yes\nBern,40,2,no\n")
    command = "run dsgd --data x.csv --target ill --groups site --scale --no-normalise --steps 2 --record 1"
    answer = peer(*command.split(), "--out", "a")
    assert answer.err.splitlines()[0] == "x.csv: labels: -1 is no; +1 is yes"
    options = experiment.read("a/config.toml", "method")
    assert (options["target"], options["groups"]) == ("ill", "site")
    assert (options["nodes"], options["scale"], options["normalise"]) == (2, True, False)
    assert "+1 is" not in peer(*command.split(), "--quiet").err
    again, first = (
        pd.read_csv(StringIO(peer("run", *words, "--quiet", "--format", "csv").out)).drop(
            columns="seconds"
        )
        for words in (["--config", "a/config.toml"], command.split()[1:])
    )
    pd.testing.assert_frame_equal(again, first)
    assert peer("run", "--resume", "--out", "a", "--steps", "3", "--quiet").code == 0
    assert (
        "labels" not in peer("run", "dsgd", "--nodes", "4", "--steps", "2", "--record", "1").err
    ), "a named set"


@pytest.mark.parametrize(
    ("flags", "normalised", "said"),
    [
        ("--problem linear", False, "--scale brings them to [0, 1]"),
        ("--positive 2", True, "--no-normalise keeps them"),
    ],
)
def test_notes_about_rows_and_columns_have_flags(peer, flags, normalised, said):
    Path("x.csv").write_text("a,b,y\n1,2000,1\n2,3000,2\n0,1000,3\n")
    answer = peer(
        *f"run dsgd --data x.csv --target y --nodes 2 --steps 1 --record 1 --out a {flags}".split()
    )
    assert said in answer.err
    assert ("norm 1" in answer.err) == normalised


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"partition": "shards", "each": 3}, {"partition": "shards", "each": 3}),
        ({"partition": "classes", "each": 1}, {"partition": "classes", "each": 1}),
        (
            {"partition": "quantity", "concentration": 5.0},
            {"partition": "quantity", "concentration": 5.0},
        ),
        ({"normalise": False}, {"normalised": False, "scaled": False}),
        ({"scale": True, "problem": "linear"}, {"normalised": True, "scaled": True}),
    ],
)
def test_partitions_reach_the_problem(options, facts):
    problem, _ = experiment.build(experiment.settle({}, {"nodes": 4, **options}))
    assert facts.items() <= problem.about.items()


@pytest.mark.parametrize(("name", "labels"), experiment.PROBLEMS.items())
def test_problems(name, labels):
    problem, network = experiment.build(experiment.settle({}, {"problem": name, "nodes": 4}))
    data = peerdescent.datasets.load("digits", labels=labels)
    direct = getattr(peerdescent.problems, name)(data.partition(4))
    assert (problem.name, problem.dimension, problem.about) == (
        direct.name,
        direct.dimension,
        direct.about,
    )
    assert (
        problem.loss(problem.start if problem.start is not None else np.zeros(problem.dimension))
        > 0
    )
    assert network.n == 4


def test_labels_of_two_classes_for_a_perceptron():
    two = experiment.build(
        experiment.settle({}, {"problem": "perceptron", "nodes": 4, "positive": (1, 3)})
    )[0]
    ten = experiment.build(experiment.settle({}, {"problem": "perceptron", "nodes": 4}))[0]
    assert ten.dimension - two.dimension == 9 * 33


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
NUMBERS |= {"seeds", "lam", "epsilon", "alpha", "initial_batch"}
WRONG = [
    ([*words, option.opts[-1]])
    for words, command in commands()
    for option in command.params
    if option.name in NUMBERS
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_number_of_the_wrong_type_is_named_with_its_option(refusal, words):
    message = refusal(*words, "ten")
    assert f"{words[-1]} ten: must be a valid " in message


def test_the_numbers_of_all_commands_are_tried():
    assert {words[-1] for words in WRONG} == {"--" + name.replace("_", "-") for name in NUMBERS}
    assert {words[0] for words in WRONG} == {
        "run",
        "compare",
        "tune",
        "network",
        "reproduce",
        "theory",
    }


def test_out_of_memory(refusal, monkeypatch):
    def run(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 528000000000128 bytes.")

    monkeypatch.setattr(peerdescent, "run", run)
    assert "smaller batches" in refusal("run", "dsgd", "--nodes", "4")
