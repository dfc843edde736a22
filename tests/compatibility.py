"""Run tests with the Python and the libraries that are here, and note the result in docs/compatibility.md.

    PYTHONPATH=src python tests/compatibility.py tests/methods tests/runs

A row of the table there is one environment: the versions, what was run, and how many tests passed, failed, or were not
run, with the reason. A row of the same versions and the same tests is replaced. The table is in `--out` alone, if that
is given, for a machine from which the row has to be carried home. All that is needed besides the package is pytest,
pytest-timeout and hypothesis. Exit status: that of pytest, or 2 if one of these is missing.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
LIBRARIES = ("jax", "numpy", "scipy", "pandas", "scikit-learn", "torch")
HEAD = f"| Python | {' | '.join(LIBRARIES)} | on | tests | passed | failed | not run |"
RULE = "|" + "---|" * HEAD.count(" | ") + "---|"
NEEDED = {"pytest": "pytest", "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis"}


def found(library: str) -> str:
    """Its version, without the part that names the build."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return "none"


def device() -> str:
    """The kind of device that JAX computes on."""
    asked = [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"]
    return (
        subprocess.run(asked, check=True, capture_output=True, text=True)
        .stdout.split("\n")[0]
        .strip()
    )


def reason(case: ElementTree.Element) -> str | None:
    """Why a test was not run: it was skipped, or a module that it imports is missing. None if it ran."""
    skipped, error = case.find("skipped"), case.find("error")
    if skipped is not None:
        return skipped.get("message", "skipped")
    text = "" if error is None else f"{error.get('message')} {error.text}"
    missing = (
        text.rpartition("ModuleNotFoundError: No module named ")[2].split("\n")[0]
        if "ModuleNot" in text
        else ""
    )
    return f"no module {missing}" if missing else None


def counted(report: Path) -> tuple[int, int, Counter[str]]:
    """How many tests passed and failed, and how many were not run, by reason."""
    passed, failed, unrun = 0, 0, Counter[str]()
    cases = {
        (case.get("classname"), case.get("name")): case
        for case in ElementTree.parse(report).iter("testcase")
    }
    for case in cases.values():  # a file that cannot be read is there twice
        why = reason(case)
        if why:
            unrun[why] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
    return passed, failed, unrun


def noted(page: str, row: str) -> str:
    """The page with this row in its table: in place of one that differs in the counts only, or at the end."""
    lines = page.splitlines()
    if HEAD not in lines:
        lines += [HEAD, RULE]
    start = lines.index(HEAD) + 2
    end = next(
        (place for place in range(start, len(lines)) if not lines[place].startswith("|")),
        len(lines),
    )
    key = row.split(" | ")[:-3]
    rows = [each for each in lines[start:end] if each.split(" | ")[:-3] != key]
    return "\n".join([*lines[:start], *sorted([*rows, row]), *lines[end:]]) + "\n"


def main() -> int:
    """Run the tests and note them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "tests",
        nargs="*",
        default=["tests", "src"],
        help="files or folders; all, if none are given",
    )
    parser.add_argument("--out", type=Path, default=PAGE, help="the page whose table gets the row")
    parser.add_argument("-n", dest="workers", help="so many processes, by pytest-xdist")
    asked = parser.parse_args()
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        print(
            f"missing: {', '.join(missing)}; install them, or put them on PYTHONPATH",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
        ]
        command += ["-n", asked.workers, "--dist", "loadfile"] if asked.workers else []
        status = subprocess.run([*command, *asked.tests], cwd=ROOT).returncode
        passed, failed, unrun = counted(report)
    shown = ", ".join(f"{number}: {why}" for why, number in sorted(unrun.items())) or "0"
    versions = [platform.python_version(), *map(found, LIBRARIES), device(), " ".join(asked.tests)]
    row = "| " + " | ".join([*versions, str(passed), str(failed), shown.replace("|", "/")]) + " |"
    asked.out.write_text(noted(asked.out.read_text() if asked.out.exists() else "", row))
    print(f"{asked.out}:\n{HEAD}\n{row}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
