"""The fields of `Options` as typer options of commands, and the folder of `--out`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from peerdescent import files
from peerdescent.errors import require
from peerdescent.experiment import KINDS, Options

Command = Callable[..., int]
HELD = ExitStack()
"""The folders that a command works in, as the only process, until it ends."""
METAVARS = {bool: "", int: "<int>", float: "<float>", Path: "<dir>"}
"""How the help page shows a type; typer would show `<bool>`, `<int range>`, `<float range>` and `<path>`."""


def with_options(*chosen: str) -> Callable[[Command], Command]:
    """Give a command an option for each chosen field of `Options`, or for all of them.

    `chosen` are names of fields and of panels, such as "nodes" or "Data". The command receives the options that the
    user gave as `given`, a dictionary by field name.
    """
    shown = [f for f in fields(Options) if not chosen or {f.name, f.metadata["panel"]} & set(chosen)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**values: Any) -> int:
            flags = {f.name: values.pop(f.name) for f in shown}
            return command(**values, given={name: value for name, value in flags.items() if value is not None})

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        wrapper.__signature__ = inspect.Signature([*own, *map(_parameter, shown)])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameter(option: Field[Any]) -> inspect.Parameter:
    """The parameter that typer reads for a field. Its default is None, which means that the user did not give it."""
    kind, about = KINDS[option.name], option.metadata
    info = typer.Option(
        "--" + option.name.replace("_", "-"),
        help=about["help"] + (f" [dim]\\[default: {about['shown']}][/dim]" if about["shown"] else ""),
        rich_help_panel=about["panel"],
        metavar=None if about["choices"] else METAVARS.get(kind),
        min=about["least"],
    )
    typed: Any = Literal.__getitem__(about["choices"]) if about["choices"] else kind
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info]
    )


def folder(options: Options) -> Path | None:
    """The folder of `--out`. It is created before the work begins, so that an unusable path is an error at once."""
    if options.out is None:
        return None
    require(not options.out.is_file(), f"--out {options.out} is a file: give a folder")
    return HELD.enter_context(files.alone(files.claim(options.out, options.force)))
