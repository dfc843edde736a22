"""The options of an experiment: one table that the flags, the config files and `config.toml` all come from.

A field of `Options` is a flag of `run` and `compare` and a key of their TOML files, with one name, type, default and
help text. Values are settled once: a flag beats the file, the file beats the default.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from peerdescent.engines import ENGINES
from peerdescent.errors import require, unknown

if TYPE_CHECKING:
    from peerdescent.networks.network import Network
    from peerdescent.problems import Problem

EPOCHS = 30.0
METAVARS = {int: "INT", float: "NUMBER", str: "TEXT", bool: None}
KINDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}


def _option(default: Any, panel: str, text: str, choices: tuple[Any, ...] = (), shown: str | None = None) -> Any:
    shown = shown if shown is not None else "" if default is None or default is False else str(default)
    return field(default=default, metadata={"panel": panel, "help": text, "choices": choices, "shown": shown})


@dataclass(frozen=True)
class Options:
    """All that `run` and `compare` can be told, besides methods."""

    data: str = _option("digits", "Data", "A named set (see `list data`), or a LIBSVM, CSV or NPZ file.")
    data_dir: str | None = _option(None, "Data", "Folder to look for data in.")
    rows: int | None = _option(None, "Data", "Keep that many rows, chosen by the seed.", shown="all")
    positive: str | None = _option(None, "Data", "Classes counted as +1, as in 1,3,5.", shown="the set's own")
    partition: str = _option(
        "uniform", "Data", "How nodes share the rows: evenly, skewed or sorted.", ("uniform", "dirichlet", "label")
    )
    concentration: float | None = _option(None, "Data", "Of the Dirichlet: small is skewed.", shown="0.5")
    data_seed: int | None = _option(None, "Data", "For rows and partition alone.", shown="the seed")
    strength: float = _option(1e-4, "Problem", "Weight of the regulariser.")
    regulariser: str = _option("nonconvex", "Problem", "The paper's, or another.", ("nonconvex", "l2", "none"))
    topology: str = _option("exponential", "Network", "See `list topologies`.")
    weights: str | None = _option(
        None, "Network", "Weight rule.", ("lazy", "metropolis", "equal"), shown="the network's own"
    )
    nodes: int = _option(20, "Network", "Number of nodes.")
    epochs: float | None = _option(None, "Run", "Length, in passes over the local data.", shown=f"{EPOCHS:g}")
    steps: int | None = _option(None, "Run", "Length in iterations, instead of epochs.")
    seed: int = _option(0, "Run", "For rows, partition and samples.")
    engine: str = _option("stacked", "Run", "See `list engines`.", tuple(ENGINES))
    precision: int = _option(32, "Run", "Bits of a number.", (32, 64))
    record: int = _option(100, "Run", "Number of points recorded.")
    grid: str = _option("even", "Run", "Spacing of those points.", ("even", "log"))
    skip_stationarity: bool = _option(False, "Run", "Leave that column empty, for cheaper records.")
    out: str | None = _option(None, "Output", "Folder for files and figures; replaces what a run left there.")
    format: str = _option("table", "Output", "What goes to standard output.", ("table", "csv", "json"))
    quiet: bool = _option(False, "Output", "No progress and no notes.")


def _kinds() -> dict[str, type]:
    hints = get_type_hints(Options)
    return {name: next(t for t in get_args(hint) or (hint,) if t is not NoneType) for name, hint in hints.items()}


def with_options(command: Callable[..., int] | None = None, *, without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Give a command a flag for every field of `Options` but some; it receives in `given` those that were used."""
    if command is None:
        return functools.partial(with_options, without=without)
    kinds = {name: kind for name, kind in _kinds().items() if name not in without}

    @functools.wraps(command)
    def wrapper(**values: Any) -> int:
        flags = {name: values.pop(name) for name in kinds}
        given = {name: number(name, text, kinds[name]) for name, text in flags.items() if text is not None}
        return command(**values, given=given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    shared = []
    for f in fields(Options):
        if f.name in without:
            continue
        shown, kind = f.metadata["shown"], kinds[f.name]
        info = typer.Option(
            "--" + f.name.replace("_", "-"),
            help=f.metadata["help"] + (f" [dim](default: {shown})[/dim]" if shown else ""),
            rich_help_panel=f.metadata["panel"],
            metavar="|".join(map(str, f.metadata["choices"])) or METAVARS[kind],
        )
        # Numbers are read by `number`, whose complaints name the value.
        annotation: Any = Annotated[bool | None, info] if kind is bool else Annotated[str | None, info]
        shared.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    wrapper.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return wrapper


def number(name: str, text: Any, kind: type) -> Any:
    """`text` as an int or float, or a ValueError that names the flag; other kinds pass."""
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{name.replace('_', '-')} {text}: must be {KINDS[kind]}") from None


def read(file: str | Path | None, key: str) -> dict[str, Any]:
    """The values in a TOML file (none: none), by field name; `key` gives its methods: "method" or "methods"."""
    if file is None:
        return {}
    path = Path(file)
    require(path.is_file(), f"no config file {path}: give the path of a TOML file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    kinds = _kinds()
    known = {name.replace("_", "-"): name for name in kinds} | {key: key}
    values: dict[str, Any] = {}
    for written, value in table.items():
        if written not in known:
            raise unknown(f"key in {path}", written, known)
        values[known[written]] = _typed(
            f"{written} = {json.dumps(value, default=str)} in {path}", value, kinds, written
        )
    return values


def _typed(shown: str, value: Any, kinds: Mapping[str, type], key: str) -> Any:
    if key == "methods":
        listed = isinstance(value, list) and all(isinstance(item, str) for item in value)
        require(listed, f'{shown}: must be a list of texts, as in ["dsgd", "gt-hsgd[alpha=0.5]"]')
        return value
    if key == "positive":  # a list reads better in a file, and a class may be a number
        return ",".join(map(str, value if isinstance(value, list) else [value]))
    kind = kinds.get(key.replace("-", "_"), str)
    right = isinstance(value, bool) if kind is bool else isinstance(value, kind) and not isinstance(value, bool)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    require(right, f"{shown}: must be {KINDS[kind]}")
    return value


def settle(file: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
    """The options that a file and the flags give together; a flag beats the file."""
    lengths = {"steps", "epochs"}
    for source in (file, given):
        both = ", ".join(f"{name} = {source[name]:g}" for name in sorted(lengths & source.keys()))
        require(not lengths <= source.keys(), f"{both}: give one of them")
    if lengths & given.keys():
        file = {name: value for name, value in file.items() if name not in lengths}
    values = {**file, **given}
    if not lengths & values.keys():
        values["epochs"] = EPOCHS
    for f in fields(Options):
        value, choices = values.get(f.name, f.default), f.metadata["choices"]
        if isinstance(value, str) and choices and value not in choices:
            raise unknown(f.name, value, choices)
        if isinstance(value, float):
            require(math.isfinite(value), f"{f.name} = {value}: must be {KINDS[float]}")
    return Options(**values)


def experiment(options: Options, node: int | None = None) -> tuple[Problem, Network]:
    """The problem and the network that the options describe; with `node`, of the data that node's alone."""
    from peerdescent import datasets, problems
    from peerdescent.networks import topology
    from peerdescent.networks.network import Network

    seed = options.seed if options.data_seed is None else options.data_seed
    network = Network(topology.build(options.topology, options.nodes), options.weights)
    data = datasets.load(
        options.data,
        data_dir=options.data_dir,
        rows=options.rows,
        seed=seed,
        positive=options.positive and [_class(text) for text in options.positive.split(",")],
    )
    partition = data.partition(options.nodes, by=options.partition, seed=seed, concentration=options.concentration)
    if node is None:
        return problems.logistic(partition, options.strength, options.regulariser), network
    own = problems.logistic(partition.only(node), options.strength, options.regulariser)
    return replace(own, nodes=partition.nodes, samples=float(partition.sizes.mean()), held=node), network


def _class(text: str) -> int | str:
    return int(text) if re.fullmatch(r"\s*[-+]?\d+\s*", text) else text.strip()


def text(options: Options, **methods: Any) -> str:
    """A TOML file that gives the same run again; where its output goes is left to the flags."""
    lines = [f"{key} = {_toml(value)}" for key, value in methods.items()]
    for f in fields(Options):
        value = getattr(options, f.name)
        if value is not None and f.metadata["panel"] != "Output":
            lines.append(f"{f.name.replace('_', '-')} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def write(path: Path, options: Options, **methods: Any) -> None:
    """Write such a file."""
    path.write_text(text(options, **methods), encoding="utf-8")


def _toml(value: Any) -> str:
    """Numbers, booleans, texts and lists of texts are written alike in TOML and JSON."""
    return json.dumps(value, ensure_ascii=False)
