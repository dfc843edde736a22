"""The time of a GT-HSGD step in this checkout, over that in another one, side by side.

    git worktree add ../before COMMIT && python benchmarks/versions.py ../before

A process of each checkout, in the same environment, measures in turn, so that a noisy machine disturbs both alike. With
`--serve` this file is such a process: it reads what to measure from standard input, and writes seconds a step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 41
ASKED = ("one 1", "sweep 1", "one 32", "sweep 32", "one 1024", "sweep 1024")


def serve() -> None:
    """Measure what is asked for."""
    import step  # that of the checkout in PYTHONPATH

    problem, network = step.setting()
    made: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        if line not in made:
            kind, batch = line.split()[0], int(line.split()[1])
            _, _, one, sweep = step.LENGTHS[batch]
            make, chunks = (step.one, one) if kind == "one" else (step.Sweep, sweep)
            made[line] = make(problem, network, batch, chunks)
        print(made[line](), flush=True)


def compare(other: Path) -> None:
    """Print a table of both."""
    from common import Times, machine, table

    def start(tree: Path) -> subprocess.Popen[str]:
        paths = f"{tree / 'benchmarks'}{os.pathsep}{tree / 'src'}"
        command = [sys.executable, __file__, "--serve"]
        env = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
        return subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(process: subprocess.Popen[str], what: str) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print(what, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    both = [start(tree.resolve()) for tree in (other, HERE)]
    rows = []
    for what in ASKED:
        for process in both:
            ask(process, what)
        rounds = []
        for number in range(ROUNDS):  # who measures first changes from round to round
            first = number % 2
            times = {process: ask(process, what) for process in (both[first], both[1 - first])}
            rounds.append([times[process] for process in both])
        before, after = (Times(tuple(each)) for each in zip(*rounds, strict=True))
        kind, batch = what.split()
        label = f"{'one configuration' if kind == 'one' else 'sweep'}, batch {batch}"
        rows.append(
            [
                label,
                before.text(1e6),
                after.text(1e6),
                after.over(before).text(digits=2),
                f"{after.best / before.best:.2f}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    for process in both:
        process.communicate()
    head = ("", "us a step, there", "here", "here over there", "of best times")
    print(
        "",
        f"Median (range) of {ROUNDS} rounds in which both take turns. {machine()}.",
        "",
        sep="\n",
    )
    print("\n".join(table(head, rows)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    serve() if sys.argv[1] == "--serve" else compare(Path(sys.argv[1]))
