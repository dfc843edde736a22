"""The entry point of the command line. The commands are in the other modules of this package.

Results go to standard output, as a table, CSV or JSON, so that they can be piped. Progress, notes
and errors go to standard error. NumPy, pandas and Rich are imported inside functions, so that
`--help` is fast.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

import peerdescent
from peerdescent.cli import (
    console,
    listing,
    networks,
    results,
    running,
    signals,
    studies,
    theory,
    tuning,
)
from peerdescent.cli.options import HELD, with_flags
from peerdescent.errors import PeerLost, unknown

HELP = ["-h", "--help"]
app = typer.Typer(
    help="Decentralized stochastic optimization: nodes with private data descend together, with no server.",
    epilog="""[bold]Start with[/bold]
peerdescent compare dsgd gt-dsgd gt-hsgd
peerdescent run 'gt-hsgd\\[alpha=4,beta=0.1]' --out runs/first""",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP},
)
for group in (running, tuning, results, networks, listing, studies):
    app.add_typer(group.app)
app.add_typer(theory.app, name="theory")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", metavar="")
    ] = False,
) -> None:
    """Handle `--version`, and show the help without a command."""
    if version:
        print(f"peerdescent {peerdescent.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Bad input prints one line on standard error and exits with status 2."""
    usage_error: Any = typer.BadParameter.__bases__[0]  # typer does not export it
    with warnings.catch_warnings(), signals.handled(), HELD:
        warnings.showwarning = lambda message, *_, **__: console.say(str(message), "warning")
        try:
            command = _without_types(typer.main.get_command(app))
            code = command(args=arguments, prog_name="peerdescent", standalone_mode=False)
        except usage_error as error:
            code = _refuse(_explained(error))
        except PeerLost as error:
            console.say(str(error), "lost")
            code = 3
        except OSError as error:
            code = _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except ValueError as error:
            code = _refuse(
                with_flags(str(error), ["force"])
            )  # other options: where a command is called
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except ModuleNotFoundError as error:
            if "peerdescent[" not in str(error):
                raise
            code = _refuse(str(error))
        except MemoryError:
            code = _refuse("out of memory: smaller batches, fewer rows or fewer nodes need less")
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            code = _refuse("out of memory: smaller batches, fewer rows or fewer nodes need less")
    sys.exit(code)


def _without_types(command: Any) -> Any:
    """A command whose help page does not say `<bool>` of the options that typer adds: --help and those for shells."""
    for option in command.get_params(typer.Context(command, help_option_names=HELP)):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _without_types(inner)
    return command


def _explained(error: Any) -> str:
    """Typer's message, with the closest choice, and with the value, which some of typer's messages omit."""
    parameter, message = getattr(error, "param", None), error.message.removeprefix("Value error, ")
    value, refused, choices = message.rpartition(" is not one of ")
    if parameter is not None and refused:
        return str(
            unknown(parameter.name, ast.literal_eval(value), re.findall(r"'([^']*)'", choices))
        )
    asked = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if hint := _elsewhere(asked):
        return f"no option --{asked.replace('_', '-')} here: {hint}"
    # Some versions of typer use pydantic, with messages such as "Input should be a valid integer,
    # unable to parse ...".
    faults = getattr(error.__cause__, "errors", None)
    if parameter is not None and faults is not None and message.startswith("Input should be "):
        rule = message.removeprefix("Input should be ").partition(",")[0]
        return f"{parameter.opts[-1]} {faults()[0]['input']}: must be {rule}"
    # The message of a parser of ours says what is wrong by itself.
    return message if error.message.startswith("Value error, ") else str(error.format_message())


def _elsewhere(name: str) -> str:
    """Where a user finds what is no option of a command, if that is known."""
    if name == "seeds":
        return "peerdescent compare and tune take several seeds, as in --seed 0-4"
    if name in ("header", "no_header", "index"):
        return "a .csv file is what pandas.read_csv makes of it; load other frames in Python"
    from peerdescent.methods.estimators import ESTIMATORS
    from peerdescent.methods.fusions import FUSIONS

    if any(
        name == own.name
        for part in (*ESTIMATORS.values(), *FUSIONS.values())
        for own in fields(part)
    ):
        return f"hyperparameters are given with the method, as in 'gt-hsgd[{name}=...]'"
    return ""


def _refuse(reason: str) -> int:
    console.say(reason, "error")
    return 2
