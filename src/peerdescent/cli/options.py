"""The fields of `Options` as typer options of commands, and the folder of `--out`."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer

from peerdescent import experiment, files
from peerdescent.errors import require
from peerdescent.experiment import KINDS, Options

Command = Callable[..., int]
HELD = ExitStack()
"""The folders that a command works in, as the only process, until it ends."""
METAVARS = {tuple[str, ...]: "NAME=NUMBER", bool: "", int: "<int>", float: "<float>", Path: "<dir>"}
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
            flags = {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}
            given = experiment.located({name: value for name, value in flags.items() if value not in (None, ())})
            try:
                return command(**values, given=given)
            except ValueError as error:
                raise ValueError(_with_flags(str(error))) from error
            except MemoryError as error:
                raise ValueError(f"out of memory: fewer rows, nodes or records need less ({error})") from error
            except (RuntimeError, AssertionError):  # both are what JAX raises without a device
                _check_device()
                raise

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        wrapper.__signature__ = inspect.Signature([*own, *map(_parameter, shown)])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameter(option: Field[Any]) -> inspect.Parameter:
    """The parameter that typer reads for a field. Its default is None, which means that the user did not give it."""
    kind, about = KINDS[option.name], option.metadata
    info = typer.Option(
        _flag(option.name) + (f"/--no-{option.name}" if kind is bool and option.default is None else ""),
        help=about["help"] + (f" [dim]\\[default: {about['shown']}][/dim]" if about["shown"] else ""),
        rich_help_panel=about["panel"],
        metavar=None
        if about["choices"]
        else f"<{about['parser'].__name__}>"
        if about["parser"]
        else METAVARS.get(kind),
        parser=about["parser"],
        min=about["least"],
        max=about["most"],
    )
    typed: Any = Literal.__getitem__(about["choices"]) if about["choices"] else str if about["parser"] else kind
    if get_origin(kind) is tuple and not about["parser"]:
        typed = list[str]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info]
    )


def _with_flags(message: str) -> str:
    """A message about arguments, with the names of the command line: `--rows 3` for `rows=3`; files have keys instead.

    >>> _with_flags("data_dir='x' is not a folder")
    "--data-dir 'x' is not a folder"
    """
    if ".toml" in message:
        return message
    known = "|".join(KINDS)
    message = re.sub(rf"(?<![\w.-])({known})(?: = |=)(?=\S)", lambda found: _flag(found[1]) + " ", message)
    return re.sub(rf"(?<![\w.-])({known})=(?!\S)", lambda found: _flag(found[1]), message)


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
    return HELD.enter_context(files.alone(files.claim(options.out, options.force)))
