"""The fields of `Options` as typer options of commands, and the folder of `--out`."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer

from peerdescent import experiment, files
from peerdescent.cli import completion, console
from peerdescent.errors import require
from peerdescent.experiment import KINDS, Options

Command = Callable[..., int]
HELD = ExitStack()
"""The folders that a command works in, as the only process, until it ends."""
METAVARS = {tuple[str, ...]: "NAME=NUMBER", bool: "", int: "<int>", float: "<float>", Path: "<dir>"}
"""How the help page shows a type; typer would show `<bool>`, `<int range>`, `<float range>` and `<path>`."""

REPLACED = {
    "drop(..., one_way=True)": "--fault drop=0.1,one-way",
    "without one_way": "without one-way",
    "numbers; use a problem for classes": "numbers; use --problem logistic for two classes, or softmax",
    "a problem for real targets": "--problem linear",
    "a problem for classes": "--problem softmax",
}
"""What messages of the library say in Python, and the same for the command line."""


def with_options(*chosen: str) -> Callable[[Command], Command]:
    """Give a command an option for each chosen field of `Options`, or for all of them.

    `chosen` are names of fields and of panels, such as "nodes" or "Data". The command receives the
    options that the user gave as `given`, a dictionary by field name.
    """
    shown = [
        f for f in fields(Options) if not chosen or {f.name, f.metadata["panel"]} & set(chosen)
    ]

    def decorate(command: Command) -> Command:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.name != "given"
        ]
        known = [f.name for f in shown] + [p.name for p in own]

        @functools.wraps(command)
        def wrapper(**values: Any) -> int:
            flags = {f.name: values.pop(f.name) for f in shown}
            flags = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in flags.items()
            }
            given = experiment.located(
                {name: value for name, value in flags.items() if value not in (None, ())}
            )
            try:
                return command(**values, given=given)
            except KeyboardInterrupt as error:  # typer would end the command without a word
                console.say(f"interrupted; {error}" if str(error) else "interrupted")
                return 130
            except ValueError as error:
                raise ValueError(with_flags(str(error), known)) from error
            except MemoryError as error:
                raise ValueError(
                    f"out of memory: fewer rows, nodes or records need less ({error})"
                ) from error
            except (RuntimeError, AssertionError):  # both are what JAX raises without a device
                _check_device()
                raise

        wrapper.__signature__ = inspect.Signature([*own, *map(_parameter, shown)])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameter(option: Field[Any]) -> inspect.Parameter:
    """The parameter that typer reads for a field. Its default is None, which means that the user did not give it."""
    kind, about = KINDS[option.name], option.metadata
    many = len(about["choices"]) > 5  # they would make the first column of the help page too wide
    text = f"{about['help']} {', '.join(about['choices'])}." if many else about["help"]
    info = typer.Option(
        _flag(option.name)
        + (f"/--no-{option.name}" if kind is bool and option.default is None else ""),
        help=text + (f" [dim]\\[default: {about['shown']}][/dim]" if about["shown"] else ""),
        rich_help_panel=about["panel"],
        metavar="<name>"
        if many
        else None
        if about["choices"]
        else f"<{about['parser'].__name__}>"
        if about["parser"]
        else METAVARS.get(kind),
        parser=about["parser"],
        autocompletion=completion.OPTIONS.get(option.name),
        min=about["least"],
        max=about["most"],
    )
    typed: Any = (
        Literal.__getitem__(about["choices"])
        if about["choices"]
        else str
        if about["parser"]
        else kind
    )
    if get_origin(kind) is tuple and not about["parser"]:
        typed = list[str]
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[typed | None, info],
    )


def with_flags(message: str, names: Iterable[str]) -> str:
    """A message about arguments, as the command line has them; those of TOML files have keys instead.

    `names` are the options that the command has; others keep their names.

    >>> with_flags("data_dir='x' is not a folder", ["data_dir"])
    '--data-dir x is not a folder'
    >>> with_flags("scale=False or positive=[1, 3], and rows = 3", ["scale", "positive", "rows"])
    '--no-scale or --positive 1,3, and --rows 3'
    """
    if ".toml" in message:
        return message
    for python, here in REPLACED.items():
        message = message.replace(python, here)
    flags = {name: _flag(name) for name in names}
    if "partition" in flags:
        flags["by"] = flags["partition"]  # of Dataset.partition
    value = r"""True|False|None|'[^']*'|"[^"]*"|\[[^\]]*\]|[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)(?!\w)"""
    argument = rf"(?<![\w.\[-])({'|'.join(flags)})(?:=| = )({value})?"
    return re.sub(argument, lambda found: _written(flags[found[1]], found[2]), message)


def _written(flag: str, value: str | None) -> str:
    """A flag with a value that a Python message gives it."""
    if value in (None, "None", "True"):
        return flag
    if value == "False":
        return flag.replace("--", "--no-", 1)
    if value.startswith("["):
        value = ",".join(str(one) for one in ast.literal_eval(value))
    elif value[0] in "'\"":
        value = str(ast.literal_eval(value))
    return f"{flag} {shlex.quote(value)}"


def _check_device() -> None:
    """Refuse a device in JAX_PLATFORMS that JAX does not find."""
    import jax

    try:
        jax.devices()
    except Exception:
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise ValueError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device; leave it out, or install JAX for it"
        ) from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def folder(options: Options) -> Path | None:
    """The folder of `--out`. It is created before the work begins, so that an unusable path is an error at once."""
    if options.out is None:
        return None
    require(not options.out.is_file(), f"--out {options.out} is a file: give a folder")
    try:
        return HELD.enter_context(files.alone(files.claim(options.out, options.force)))
    except ValueError as error:
        raise ValueError(
            str(error).replace("give a new or empty one", "give another folder, or --force")
        ) from error
