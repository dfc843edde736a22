"""Damaged inputs for all parsers, for a given time; prints how many were tried, refused, and crashed a parser.

    python benchmarks/fuzz.py 600             # seconds; new seeds every time
    python benchmarks/fuzz.py 600 --atheris   # inputs that atheris finds by coverage, where it is installed

The targets are those of `tests/datasets/test_fuzz.py`. A crash is printed with its input.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

import fuzzing  # noqa: E402


def tried(name: str, content: bytes, counts: Counter[str]) -> None:
    """Try one input, and count what became of it."""
    counts["executions"] += 1
    try:
        counts[fuzzing.outcome(name, content)] += 1
    except Exception as error:
        counts["crashes"] += 1
        print(
            f"crash of {name}: {type(error).__name__}: {str(error)[:200]}, input {content[:300]!r}",
            flush=True,
        )


def show(name: str, counts: Counter[str]) -> None:
    """Print the counts of a parser."""
    print(
        name,
        *(f"{what} {counts[what]:,}" for what in ("executions", "refused", "accepted", "crashes")),
        flush=True,
    )


def seeded(name: str, seconds: float) -> None:
    """Inputs by random seeds."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tried(name, fuzzing.damaged(name, random.getrandbits(64)), counts)
    show(name, counts)


def guided(name: str, seconds: float) -> None:
    """Inputs by atheris, which ends the process."""
    import atheris

    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def one(content: bytes) -> None:
        tried(name, content, counts)
        if time.monotonic() > end:
            show(name, counts)
            shutil.rmtree(fuzzing.home())
            os._exit(0)

    for module in (
        "peerdescent.datasets.formats",
        "peerdescent.methods.selectors",
        "peerdescent.experiment",
        "tomllib",
    ):
        for value in vars(import_module(module)).values():
            if (
                callable(value)
                and getattr(value, "__module__", None) == module
                and hasattr(value, "__code__")
            ):
                atheris.instrument_func(value)
    corpus = fuzzing.home() / "corpus"
    corpus.mkdir()
    for place, content in enumerate(fuzzing.TARGETS[name][1]()):
        (corpus / str(place)).write_bytes(content)
    atheris.Setup([sys.argv[0], "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    """Give every parser its share of the time."""
    seconds, *rest = sys.argv[1:]
    fuzzing.prepare()
    if len(rest) == 2:
        return guided(rest[1], float(seconds))
    share = float(seconds) / len(fuzzing.TARGETS)
    for name in fuzzing.TARGETS:
        if rest:
            subprocess.run([sys.executable, __file__, str(share), "--atheris", name], check=True)
        else:
            seeded(name, share)
    return None


if __name__ == "__main__":
    main()
