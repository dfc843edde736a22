"""A whole experiment as data: its options, the TOML files that hold them, and the problem and network they describe.

A field of `Options` is a flag of `peerdescent run` and `compare` and a key of their TOML files,
with one name, type, default, rule and help text. A flag overrides the file, and the file overrides
the default.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import tomli_w

from peerdescent import datasets, files, networks, problems, runs
from peerdescent.engines import registry
from peerdescent.errors import require, unknown

EPOCHS = 30.0
"""The default length of a run, when neither epochs nor steps are given."""
PROBLEMS: dict[str, Literal["binary", "classes", "real"] | None] = {
    "logistic": "binary",
    "svm": "binary",
    "softmax": "classes",
    "perceptron": "classes",
    "linear": "real",
    "robust": "real",
    "pca": None,
}
"""The problems by name, and the labels that each of them is for."""
REGULARISED = ("logistic", "svm", "softmax", "linear", "robust")
"""The problems with a regulariser and an intercept."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "text",
}


def _option(
    default: Any,
    panel: str,
    text: str,
    *,
    choices: tuple[Any, ...] = (),
    least: int | None = None,
    most: int | None = None,
    shown: str | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    shown = (
        shown if shown is not None else "" if default is None or default is False else str(default)
    )
    about = {
        "panel": panel,
        "help": text,
        "choices": choices,
        "least": least,
        "most": most,
        "shown": shown,
    }
    return field(default=default, metadata=about | {"parser": parser})


def label(text: str) -> int | str:
    """A class: a whole number, or a name.

    >>> label("3"), label(" odd ")
    (3, 'odd')
    """
    return int(text) if re.fullmatch(r"\s*[-+]?\d+\s*", text) else text.strip()


def labels(text: str) -> tuple[int | str, ...]:
    """Several classes, as in `1,3,5`."""
    return tuple(map(label, text.split(",")))


def numbers(text: str) -> tuple[int, ...]:
    """Seeds: one, or several as a range or a list.

    >>> numbers("3"), numbers("0-4"), numbers("0,2,5-6")
    ((3,), (0, 1, 2, 3, 4), (0, 2, 5, 6))
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+))?\s*", part)
        require(
            match is not None,
            f"{text!r} is no seed: give a whole number, or several as 0-4 or 0,2,5",
        )
        assert match is not None
        first, last = int(match[1]), int(match[2] or match[1])
        require(first <= last < 2**32, f"{text!r}: a range goes up, and seeds are below 2^32")
        require(last - first < 10**4, f"{text!r}: these are {last - first + 1:,} seeds: give fewer")
        found += range(first, last + 1)
    return tuple(found)


@dataclass(frozen=True)
class Options:
    """The options of commands, without the methods.

    The metadata of a field: its `help` text, the `panel` of the help page that shows it, the
    `choices` or the `least` and `most` that it allows, the default as `shown` on the help page, and
    the `parser` of a flag that is not plain.

    >>> Options(topology="ring", nodes=8).nodes
    8
    """

    data: str = _option(
        "digits", "Data", "A named set (see `list data`), or a LIBSVM, CSV or NPZ file."
    )
    data_dir: Path | None = _option(None, "Data", "Folder to look for data in.")  # noqa: RUF009
    rows: int | None = _option(
        None, "Data", "Keep that many rows, chosen by the data seed.", least=1, shown="all"
    )
    positive: tuple[int | str, ...] | None = _option(
        None, "Data", "Classes counted as +1, as in 1,3,5.", shown="the set's own", parser=labels
    )
    target: str | None = _option(None, "Data", "Column of a CSV that has the labels.")
    scale: bool | None = _option(None, "Data", "Scale columns to \\[0, 1].", shown="the set's own")
    normalise: bool | None = _option(
        None, "Data", "Scale rows to norm 1.", shown="yes, but for a file's real targets"
    )
    partition: str = _option(
        "uniform",
        "Data",
        "How nodes share the rows:",
        choices=("uniform", "label", "shards", "classes", "dirichlet", "quantity"),
    )
    concentration: float | None = _option(
        None, "Data", "Of dirichlet and quantity: small is skewed.", shown="0.5"
    )
    each: int | None = _option(None, "Data", "Shards or classes a node.", least=1, shown="2")
    groups: str | None = _option(None, "Data", "Column of a CSV whose values are the nodes.")
    data_seed: int = _option(0, "Data", "For rows and partition.", least=0, most=2**32 - 1)
    problem: str = _option("logistic", "Problem", "What is minimised:", choices=tuple(PROBLEMS))
    strength: float | None = _option(
        None, "Problem", "Weight of the regulariser.", least=0, shown="the problem's own"
    )
    regulariser: str | None = _option(
        None,
        "Problem",
        "The paper's, or another.",
        choices=("nonconvex", "l2", "none"),
        shown="the problem's own",
    )
    intercept: bool = _option(False, "Problem", "Add a constant to the model.")
    topology: str = _option("exponential", "Network", "See `list topologies`.")
    weights: str | None = _option(
        None,
        "Network",
        "Weight rule.",
        choices=("lazy", "metropolis", "equal", "push-pull"),
        shown="the network's own",
    )
    nodes: int | None = _option(20, "Network", "Number of nodes.", least=1)
    fault: tuple[str, ...] | None = _option(
        None, "Network", "What goes wrong, as in drop=0.1; may be repeated. See `list faults`."
    )
    rounds: int = _option(1, "Network", "Rounds of communication a mix.", least=1, most=1000)
    accelerate: bool = _option(False, "Network", "Combine these rounds with Chebyshev's weights.")
    epochs: float | None = _option(
        None, "Run", "Length, in passes over the local data.", most=10**9, shown=f"{EPOCHS:g}"
    )
    steps: int | None = _option(
        None, "Run", "Length in iterations, instead of epochs.", least=1, most=2**31 - 1
    )
    stop: tuple[str, ...] | None = _option(
        None,
        "Run",
        "End earlier, as in loss=0.2; may be repeated: loss, grad-norm, patience (in records), seconds.",
    )
    seed: tuple[int, ...] | None = _option(
        None,
        "Run",
        "Of samples, coins and faults; several as 0-4 or 0,2,5.",
        shown="0; tune 100-102, compare 0-4",
        parser=numbers,
    )
    budget: float | None = _option(
        None,
        "Comparison",
        "Of the search for each method, in passes over the data.",
        shown="150 configurations",
    )
    by: str = _option("loss", "Comparison", "The column that methods are tuned by and compared in.")
    defaults: bool = _option(False, "Comparison", "Do not tune parameters that are not given.")
    engine: str = _option(
        registry.DEFAULT, "Run", "See `list engines`.", choices=tuple(registry.ENGINES)
    )
    precision: int = _option(32, "Run", "Bits of a number.", choices=(32, 64))
    record: int = _option(100, "Run", "Number of points recorded.", least=1, most=10**6)
    grid: str = _option("even", "Run", "Spacing of those points.", choices=("even", "log"))
    clock: str | None = _option(
        None, "Run", "Simulated seconds: datacentre, campus, continent, phones or a TOML file."
    )
    test: str | None = _option(
        None, "Run", "A file of rows like the data, for the column test accuracy."
    )
    skip_stationarity: bool = _option(False, "Run", "Leave that column empty, for cheaper records.")
    out: Path | None = _option(  # noqa: RUF009
        None, "Output", "Folder for files and figures; replaces what a run left there."
    )
    force: bool = _option(False, "Output", "Use that folder also if it has files of others in it.")
    format: str = _option(
        "table", "Output", "What goes to standard output.", choices=("table", "csv", "json")
    )
    quiet: bool = _option(False, "Output", "No progress and no notes.")

    @property
    def one_seed(self) -> int:
        """The seed of a command that takes one."""
        seeds = self.seed or (0,)
        require(
            len(seeds) == 1, f"seed = {list(seeds)}: several are for compare and tune: give one"
        )
        return seeds[0]

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                _check(each, value)
        for one in self.fault or ():
            networks.faults.parse(one)  # a wrong one is an error at once
        rules(self)


def _check(option: Field[Any], value: Any) -> None:
    """Refuse a value that is none of the choices, below the least or above the most, or not finite."""
    choices, least, most = (option.metadata[rule] for rule in ("choices", "least", "most"))
    if choices and value not in choices:
        raise unknown(option.name, value, map(str, choices))
    if isinstance(value, float):
        require(math.isfinite(value), f"{option.name} = {value}: must be a finite number")
    require(least is None or value >= least, f"{option.name} = {value}: must be at least {least}")
    require(most is None or value <= most, f"{option.name} = {value}: must be at most {most}")


def _kind(hint: Any) -> type:
    """The type in `int` or `int | None`."""
    return next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)


KINDS: dict[str, type] = {name: _kind(hint) for name, hint in get_type_hints(Options).items()}
"""The type of every option that is given: int for `rows: int | None`."""


def read(file: str | Path | None, key: str) -> dict[str, Any]:
    """The values in a TOML file by field name; empty without a file. `key` for methods: "method" or "methods"."""
    if file is None:
        return {}
    path = Path(file)
    require(path.is_file(), f"no config file {path}: give the path of a TOML file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    known = {name.replace("_", "-"): name for name in KINDS} | {key: key}
    values: dict[str, Any] = {}
    for written, value in table.items():
        if written not in known:
            raise unknown(f"key in {path}", written, known)
        values[known[written]] = _typed(
            known[written], value, f"{written} = {json.dumps(value, default=str)[:100]} in {path}"
        )
    return located(values)


def located(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with absolute paths of data, so that they mean the same in another folder; names of sets stay.

    >>> located({"data": "digits", "nodes": 8})
    {'data': 'digits', 'nodes': 8}
    """
    found = dict(values)
    folder, path = (
        Path(os.path.expanduser(found.get(key, ""))).absolute() for key in ("data_dir", "data")
    )
    if "data_dir" in found and folder.is_dir():
        found["data_dir"] = folder
    if found.get("data") not in datasets.SETS and path.is_file():
        found["data"] = str(path)
    if "test" in found and (file := Path(found["test"]).expanduser().absolute()).is_file():
        found["test"] = str(file)
    if "clock" in found and (file := Path(found["clock"]).expanduser().absolute()).is_file():
        found["clock"] = str(file)
    return found


def _typed(name: str, value: Any, shown: str) -> Any:
    """A value of a TOML file, converted to the type of its field; `shown` begins the message about a wrong type."""
    if name == "methods":
        listed = isinstance(value, list) and all(isinstance(item, str) for item in value)
        require(listed, f'{shown}: must be a list of texts, as in ["dsgd", "gt-hsgd[alpha=0.5]"]')
        return value
    if name == "seed":
        each = value if isinstance(value, list) else [value]
        good = all(type(one) in (int, str) for one in each)
        require(good, f'{shown}: must be a whole number, a list of them, or a text such as "0-4"')
        return numbers(",".join(map(str, each)))
    if name in ("fault", "stop"):
        words, example = (
            [value] if isinstance(value, str) else value,
            {"fault": "drop=0.1", "stop": "loss=0.2"}[name],
        )
        good = isinstance(words, list) and all(isinstance(item, str) for item in words)
        require(good, f'{shown}: must be a list of texts, as in ["{example}"]')
        return tuple(words)
    if name == "positive":
        if isinstance(value, str):
            return labels(value)
        given = value if isinstance(value, list) else [value]
        good = len(given) > 0 and all(type(item) in (int, str) for item in given)
        require(good, f"{shown}: must be classes, as in [1, 3]")
        return tuple(given)
    kind = KINDS.get(name, str)
    accepted = {float: (float, int), Path: (str,)}.get(kind, (kind,))
    require(type(value) in accepted, f"{shown}: must be {_WORDS[kind]}")
    with suppress(OverflowError):  # a whole number too large for a float
        return kind(value)
    raise ValueError(f"{shown}: must be {_WORDS[kind]} below 1e308")


def settle(file: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
    """Combine the values of a file and of the flags. A flag overrides the file.

    >>> settle({"nodes": 8, "epochs": 5.0}, {"steps": 100}).steps
    100
    """
    lengths = {"steps", "epochs"}
    for source in (file, given):
        both = ", ".join(f"{name} = {source[name]:g}" for name in sorted(lengths & source.keys()))
        require(not lengths <= source.keys(), f"{both}: give one of them")
    if lengths & given.keys():
        file = {name: value for name, value in file.items() if name not in lengths}
    values = {**file, **given}
    if not lengths & values.keys():
        values["epochs"] = EPOCHS
    if "groups" in values:
        values.setdefault("nodes", None)  # they follow from the data
    return Options(**values)


def build(
    options: Options,
    node: int | None = None,
    note: Callable[[str], None] = lambda text: None,
    partition: datasets.Partition | None = None,
) -> tuple[problems.Problem, networks.Network]:
    """The problem and the network that the options describe. With `node`, the problem has only that node's data.

    `note` is told what was done to a file. `partition` is what `partition_of` returned, if it was
    called before.
    """
    partition = partition or partition_of(options)
    network = network_of(options, partition.nodes)
    held = partition if node is None else partition.only(node)
    given = {
        "strength": options.strength,
        "regulariser": options.regulariser,
        "intercept": options.intercept or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items() if options.problem not in REGULARISED else ():
        raise ValueError(
            f"{name}={value!r} has no meaning with problem={options.problem!r}: leave it out"
        )
    problem: problems.Problem = getattr(problems, options.problem)(held, **given)
    for text in partition.dataset.notes:
        note(f"{partition.dataset.name}: {text}")
    if node is None:
        return problem, network
    return replace(problem, nodes=partition.nodes, sizes=partition.sizes, held=node), network


def partition_of(options: Options) -> datasets.Partition:
    """The data that the options describe, shared over the nodes."""
    kind = PROBLEMS[options.problem]
    if options.positive is not None:
        two = kind == "binary" or options.problem not in REGULARISED
        shown = list(options.positive)
        require(
            two,
            f"positive={shown} has no meaning with problem={options.problem!r}: leave one of them out",
        )
        kind = "binary"
    data = datasets.load(
        options.data,
        data_dir=options.data_dir,
        rows=options.rows,
        seed=options.data_seed,
        normalise=options.normalise,
        scale=options.scale,
        labels=kind,
        positive=options.positive,
        target=options.target,
        groups=options.groups,
    )
    by = options.partition
    if options.groups is not None:
        require(
            by == "uniform",
            f"partition={by!r} has no meaning with groups=, which are the nodes: leave one out",
        )
        by = next(iter(data.groups))
    return data.partition(
        options.nodes, by, options.data_seed, concentration=options.concentration, each=options.each
    )


def metrics_of(
    options: Options, problem: problems.Problem, data: datasets.Dataset
) -> list[runs.Metric]:
    """The accuracy on the rows of `test`, if there are any; they are loaded like the data."""
    if options.test is None:
        return []
    classes = PROBLEMS[options.problem] in ("binary", "classes")
    require(
        classes,
        f"test={options.test!r} has no meaning with problem={options.problem!r}: leave it out",
    )
    rows = datasets.load(
        options.test,
        data_dir=options.data_dir,
        like=data,
        target=options.target,
        groups=options.groups,
    )
    return [runs.accuracy(problem.predict, rows)]


def network_of(options: Options, nodes: int | None = None) -> networks.Network:
    """The network that the options describe, with another number of nodes if that is given."""
    count = options.nodes if nodes is None else nodes
    assert count is not None  # only data with groups have no number of nodes of their own
    return networks.described(
        options.topology,
        count,
        options.weights,
        options.fault or (),
        options.rounds,
        options.accelerate,
    )


def clock(options: Options) -> runs.Clock | None:
    """The clock that the options name, if they do."""
    return None if options.clock is None else runs.clocks.read(options.clock)


def rules(options: Options) -> list[runs.stop.Rule]:
    """The rules of `stop` that end a run earlier."""
    return [runs.stop.parse(one) for one in options.stop or ()]


def text(options: Options, **methods: str | list[str]) -> str:
    """The options as TOML, so that `--config` repeats the run. Options that are not about it are left out.

    >>> print(text(Options(nodes=8), method="dsgd").splitlines()[0])
    method = "dsgd"
    """
    values: dict[str, Any] = dict(methods)
    # Groups are the nodes, and no other partition of the rows is made.
    unused = {"partition"} if options.groups is not None else set()
    for each in (one for one in fields(Options) if one.name not in unused):
        value, panel = getattr(options, each.name), each.metadata["panel"]
        if (
            value is not None
            and panel != "Output"
            and (panel != "Comparison" or "methods" in methods)
        ):
            plain: Any = (
                str(value)
                if isinstance(value, Path)
                else list(value)
                if isinstance(value, tuple)
                else value
            )
            if each.name == "seed" and len(plain) == 1:
                plain = plain[0]
            values[each.name.replace("_", "-")] = plain
    return tomli_w.dumps(values)


def write(path: Path, options: Options, **methods: str | list[str]) -> None:
    """Write `text` to a file atomically."""
    files.write(path, text(options, **methods).encode())
