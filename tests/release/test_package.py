"""The wheel and the archive of the source: what is in them, and that they work in an environment with nothing else.

`DIST` names a folder with both, for a test of the very files that will be uploaded; otherwise they are built here.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

import children
import peerdescent as peer

ROOT = children.TESTS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = {
    path.relative_to(children.SOURCE).as_posix()
    for path in (children.SOURCE / "peerdescent").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
}
"""The files of the package; a README inside it is a page of the documentation."""
NAME = f"peerdescent-{peer.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both. The wheel is made from the archive, so that this has all that a wheel needs."""
    if os.environ.get("DIST"):
        return (ROOT / os.environ["DIST"]).absolute()
    folder = tmp_path_factory.mktemp("dist")
    ran = children.python("-m", "build", "--outdir", folder, ROOT, limit=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return built / f"{NAME}-py3-none-any.whl"


def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - about == FILES
    assert {
        "peerdescent/py.typed",
        "peerdescent/__init__.pyi",
        "peerdescent/report/page.js",
    } <= names
    assert f"{NAME}.dist-info/licenses/LICENSE" in about


def test_the_archive_of_the_source_has_the_package_and_what_describes_it(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    made = {name for name in names if "egg-info" in name} | {"PKG-INFO", "setup.cfg"}
    described = {
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
    }
    assert names - made == {f"src/{name}" for name in FILES} | described


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))
    assert metadata["Version"] == peer.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Classifier")) == set(PROJECT["classifiers"])
    assert metadata.get_payload().startswith("# peerdescent\n")


def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """Nothing but the wheel and what it asks for: a run, and a clear line where an extra is missing."""
    home = tmp_path / "empty"
    assert children.python("-m", "venv", "--without-pip", home).returncode == 0
    # Compiling all modules would take longer than the rest; those that are imported here are compiled then.
    options = [
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ["-m", "pip", "--python", home / "bin/python", "install", *options, wheel]
    ran = children.python(*command, limit=280, env=environment)
    assert ran.returncode == 0, ran.stderr

    def shown(*command, status=0):
        ran = children.run(
            [home / "bin" / command[0], *command[1:]], limit=120, cwd=tmp_path, env=environment
        )
        assert ran.returncode == status, ran.stdout + ran.stderr
        return ran.stdout if status == 0 else ran.stderr

    assert shown("peerdescent", "--version") == f"peerdescent {peer.__version__}\n"
    shown("peerdescent", "run", "gt-hsgd", "--nodes", 4, "--steps", 5, "--quiet", "--out", "first")
    assert (
        json.loads((tmp_path / "first/summary.json").read_text())["versions"]["peerdescent"]
        == peer.__version__
    )
    said = shown("peerdescent", "report", "first", status=2)
    assert said.count("\n") == 1
    assert "pip install 'peerdescent[report]'" in said
    line = "ModuleNotFoundError: peerdescent.torch needs PyTorch, which is not installed: "
    line += "pip install 'peerdescent[torch]'"
    assert shown("python", "-c", "import peerdescent.torch", status=1).splitlines()[-1] == line
    where = shown("python", "-c", "import peerdescent; print(peerdescent.__file__)").strip()
    assert Path(where).is_relative_to(home), "the checkout was used, not the wheel"


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == peer.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]


def environments() -> list[dict[str, str]]:
    """The rows of the table of what was tested with which versions."""
    rows = re.findall(r"^\| (.+) \|$", (ROOT / "docs/compatibility.md").read_text(), re.M)
    head = next(row for row in rows if row.startswith("Python |")).split(" | ")
    return [
        dict(zip(head, row.split(" | "), strict=True)) for row in rows if re.match(r"3\.\d", row)
    ]


def minor(version: str) -> tuple[int, int]:
    major, second = version.split(".")[:2]
    return int(major), int(second)


def test_pythons_that_are_named_were_tested():
    named = {
        each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)
    }
    assert named == {
        "{}.{}".format(*minor(row["Python"])) for row in environments() if row["failed"] == "0"
    }
    assert PROJECT["requires-python"] == f">={min(named, key=minor)}"
    badge = re.search(r"badge/python-(\S+?)-", (ROOT / "README.md").read_text())[1]
    assert set(badge.split("%20%7C%20")) == named


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_the_ends_of_the_ranges_were_tested(library):
    """The page says what failed there, and why."""
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["torch"]
    (wanted,) = [each for each in asked if re.match(rf"{library}\b", each)]
    tested = {minor(row[library]) for row in environments() if row[library] != "none"}
    assert minor(re.search(r">=([\d.]+)", wanted)[1]) in tested
    high = re.search(r"<([\d.]+)", wanted)
    if high:
        major, second = minor(high[1])
        assert (major, second - 1) in tested
