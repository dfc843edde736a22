"""The script of a report's page as a file: it is linted, and its functions are tested with Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*command):
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def node():
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    return program


def test_the_script_is_linted(node):
    eslint = HERE / "node_modules" / "eslint" / "bin" / "eslint.js"
    if not eslint.is_file():
        pytest.skip("ESLint is not installed: tests/browser/setup.sh does that")
    run(
        node,
        eslint,
        "--max-warnings=0",
        "--config",
        HERE / "eslint.config.js",
        "src/peerdescent/report",
        HERE,
    )


def test_its_functions(node):
    assert "# fail 0" in run(node, "--test", "--test-reporter=tap", HERE / "page.test.js")
