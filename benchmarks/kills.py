"""Kill commands at random instants, continue them, and compare the results with those of unbroken ones, bit for bit.

    python benchmarks/kills.py run --kills 100
    python benchmarks/kills.py run compare tune reproduce theory --kills 100 --seed 1
    python benchmarks/kills.py tune --kills 20 --data a9a --length 4

A command is started in a folder, stopped by SIGKILL, SIGTERM, SIGHUP or SIGINT after a random time, and continued until
it ends by itself. Every line says how many kills there were, how many results equal the unbroken one, and how many
temporary files were left.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from peerdescent import Trace
from peerdescent.cli.main import main as program
from peerdescent.datasets import loader  # noqa: F401  (imported before the forks, which are quicker then)
from peerdescent.figures import lines  # noqa: F401

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Command(NamedTuple):
    """How a command is begun and continued in a folder, and what of the folder must be the same in the end."""

    begin: list[str]
    again: list[str] | None
    result: Callable[[Path], Any]


def run_of(folder: Path) -> Any:
    """All of a run but its clock."""
    trace = Trace.load(folder)
    arrays = [trace.x, trace.x_tilde, *trace.state]
    return (
        trace.table.drop(columns="seconds").to_json(double_precision=15),
        [a.tobytes() for a in arrays],
        trace.status,
    )


def runs_of(folder: Path) -> Any:
    """All runs below a folder, by place."""
    places = sorted({path.parent.parent for path in folder.rglob("step-*.safetensors")})
    return {place.relative_to(folder).as_posix(): run_of(place) for place in places}


def table_of(name: str) -> Callable[[Path], Any]:
    """A table in the folder, sorted, as text."""
    return lambda folder: sorted((folder / name).read_text().splitlines())


NAMES = ("run", "compare", "tune", "reproduce", "theory")


def commands(data: str | None, length: float) -> dict[str, Command]:
    """The commands: on 400 rows of digits or on all of other data, with lengths by a factor."""
    on = ["--nodes", "4", "--rows", "400"] if data is None else ["--data", data]
    on = [*on, "--quiet"]

    def steps(usual: int) -> list[str]:
        return ["--steps", str(int(length * usual))]

    longest = ["--epochs", str(60 * length), "--fresh", "0-1"]
    name = "figure1" if length >= 1 else "figure2"  # the latter takes a third of the time
    figure = ["reproduce", name, "--data", data or "digits", "--scale", "tiny", "--quiet"]
    found = (
        Command(
            ["run", "gt-hsgd", *on, *steps(1_500_000), "--record", "4"], ["run", "--resume"], run_of
        ),
        Command(
            ["compare", "dsgd", "gt-hsgd", "--defaults", *on, *steps(400_000), "--record", "4"],
            ["compare", "--resume"],
            runs_of,
        ),
        Command(["tune", "gt-dsgd", *longest, *on], None, table_of("sweep.csv")),
        Command(figure, None, table_of(f"{name}.csv")),
        Command(
            ["theory", "bound", *on, *steps(200_000), "--seeds", "2"], None, table_of("bound.csv")
        ),
    )
    return dict(zip(NAMES, found, strict=True))


def start(words: list[str]) -> int:
    """Fork a process that runs the program; nothing has used JAX before, so its threads do not exist yet."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        program(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    finally:
        os._exit(code)


def attempt(words: list[str], after: float | None, rng: random.Random) -> int | None:
    """Run the program, and send it a signal after a time; its exit status, or None if it was ended by the signal."""
    child = start(words)
    if after is not None:
        end = time.monotonic() + after
        while time.monotonic() < end:
            if os.waitpid(child, os.WNOHANG)[0]:
                return 0
            time.sleep(0.005)
        os.kill(child, rng.choice(SIGNALS))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = (0, 130, *(-number for number in SIGNALS))  # by itself, or by a signal
    assert after is None or code in ended, f"{' '.join(words)} ended with {code} after a signal"
    return None if after is not None and code != 0 else code


def torment(name: str, command: Command, kills: int, seed: int) -> tuple[int, int, int, int]:
    """Kills, results, results that equal the unbroken one, and temporary files that were left."""
    rng, home = random.Random(seed), Path(tempfile.mkdtemp())
    whole = home / "whole"
    measured = kills > 9
    for _ in range(1 + measured):  # the first time its programs are compiled, so it takes longer
        shutil.rmtree(whole, ignore_errors=True)
        clock = time.monotonic()
        assert attempt([*command.begin, "--out", str(whole)], None, rng) == 0, (
            f"{name} fails by itself"
        )
        length = time.monotonic() - clock
    expected = read_in_child(command.result, whole)
    done, results, same, stray = 0, 0, 0, 0
    while done < kills:
        folder = home / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        words = command.begin
        for again in range(4):  # at most as many kills of one, then it may end
            after = rng.uniform(0, length) if done < kills else None
            clock = time.monotonic()
            code = attempt([*words, "--out", str(folder)], after, rng)
            if code == 0:
                if not (
                    again or measured
                ):  # it ended before the signal, as its programs are compiled by now
                    length = time.monotonic() - clock
                break
            done += after is not None
            begun = (folder / "config.toml").is_file()
            words = command.again if command.again is not None and begun else command.begin
        else:
            code = attempt([*words, "--out", str(folder)], None, rng)
        results += 1
        same += code == 0 and read_in_child(command.result, folder) == expected
        stray += sum(1 for path in folder.rglob(".*") if path.name != ".peerdescent")
        print(
            f"{name}: {done} kills, {same} of {results} as unbroken, {stray} stray files",
            flush=True,
        )
    shutil.rmtree(home)
    return done, results, same, stray


def read_in_child(result: Callable[[Path], Any], folder: Path) -> str:
    """The result as text, computed by another process, since reading a trace starts JAX."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, hashlib.sha256(repr(result(folder)).encode()).hexdigest().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        found = file.read().decode()
    os.waitpid(child, 0)
    return found or f"unreadable {time.monotonic_ns()}"


def main() -> None:
    """Torment the commands that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="+", choices=NAMES)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="the name of a data set; 400 rows of digits by default")
    parser.add_argument("--length", type=float, default=1.0, help="a factor of the lengths of runs")
    given = parser.parse_args()
    each = commands(given.data, given.length)
    rows = [(name, *torment(name, each[name], given.kills, given.seed)) for name in given.commands]
    table = pd.DataFrame(
        rows, columns=["command", "kills", "results", "as unbroken", "stray files"]
    )
    print(table.to_string(index=False))
    sys.exit(bool((table["results"] != table["as unbroken"]).any() or table["stray files"].any()))


if __name__ == "__main__":
    main()
