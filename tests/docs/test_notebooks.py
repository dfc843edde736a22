"""The notebooks run, in a real kernel, and what is stored in them is what they give.

All share one kernel, which imports JAX and PyTorch once, and forgets its names before each. `make notebooks` stores
their outputs anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from small import alike

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))
FORGET = "for _name in [n for n in globals() if n not in _kept and not n.startswith('_')]: del globals()[_name]"
LARGEST = 600_000
"""Bytes of a notebook with its outputs."""


class Kernel(NotebookClient):
    """A kernel that runs cells, and keeps the messages that it sends."""

    def process_message(self, message, cell, place):
        self.messages.append((message["msg_type"], message["content"]))
        return super().process_message(message, cell, place)

    def run(self, *sources):
        """The cells with these sources, with their outputs."""
        self.messages = []
        self.nb = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in sources]
        )
        for place, cell in enumerate(self.nb.cells):
            self.execute_cell(cell, place)
        return self.nb.cells


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    manager = AsyncKernelManager(
        kernel_name="python3", transport="ipc", ip=str(folder / "socket")
    )  # not a port
    place = {"metadata": {"path": str(folder)}}
    client = Kernel(
        nbformat.v4.new_notebook(), km=manager, resources=place, timeout=200, startup_timeout=120
    )
    with client.setup_kernel(cleanup_kc=True):
        client.run(
            "import gc; gc.set_threshold(100_000, 50, 100); _kept = set(globals())"
        )  # as in `conftest`
        yield client


def test_a_figure_is_shown_without_pyplot(kernel):
    code = "import peerdescent as peer\npeer.figures.drawing(peer.Network(peer.topology.ring(4)))"
    ((shown,), (printed,)) = (
        cell["outputs"]
        for cell in kernel.run(code, "print('pyplot' in str(__import__('sys').modules))")
    )
    assert shown["data"]["image/png"].startswith("iVBORw0KGgo")
    assert shown["metadata"] == {"image/png": {"width": 576, "height": 605}}
    assert printed["text"] == "False\n"


def test_progress_is_one_place_that_is_empty_at_the_end(kernel):
    code = """
import numpy as np
import peerdescent as peer
from peerdescent.runs import progress

usual = progress.PATIENCE, progress.PAUSE
progress.PATIENCE = progress.PAUSE = 0
problem = peer.problems.quadratic(np.stack([np.eye(3)] * 6))
trace = peer.run(peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(6)), steps=20, record=20)
progress.PATIENCE, progress.PAUSE = usual
trace
"""
    bar, trace = kernel.run(code)[0]["outputs"]
    sent = [(kind, content["data"]) for kind, content in kernel.messages if "display_data" in kind]
    assert [kind for kind, _ in sent] == ["display_data"] + ["update_display_data"] * 21
    assert "  100%  loss " in sent[-2][1]["text/plain"]
    assert bar["data"] == sent[-1][1] == {"text/plain": ""}
    assert "Trace(dsgd" in trace["data"]["text/html"]


def outputs(cell):
    """What a cell has printed and shown: the kinds of each output, and its plain text."""
    printed = "".join(each["text"] for each in cell["outputs"] if each["output_type"] == "stream")
    shown = [each["data"] for each in cell["outputs"] if "data" in each]
    shown = [data for data in shown if any(data.values())]  # a progress bar leaves an empty one
    return [printed, *(f"{sorted(data)} {data.get('text/plain')}" for data in shown)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_those_stored(path, kernel):
    stored = [
        cell for cell in nbformat.read(path, as_version=4).cells if cell["cell_type"] == "code"
    ]
    found = kernel.run(FORGET, *(cell["source"] for cell in stored))[1:]
    for old, new in zip(stored, found, strict=True):
        for left, right in zip(outputs(old), outputs(new), strict=True):
            assert alike(left, right), f"{path.name} has changed: make notebooks\n{left}\n{right}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_whole_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), (
        "run from top to bottom"
    )
    every = [each for cell in code for each in cell["outputs"]]
    assert not [
        each for each in every if each["output_type"] == "error" or each.get("name") == "stderr"
    ]
    assert all(any(each["data"].values()) for each in every if "data" in each), (
        "an empty output: make notebooks"
    )
    assert any("image/png" in each.get("data", {}) for each in every), "a figure"
    assert notebook.cells[0]["source"].startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    prose = "\n".join(
        c["source"] for c in nbformat.read(path, as_version=4).cells if c["cell_type"] == "markdown"
    )
    targets = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose)
        if not target.startswith("https://")
    ]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_texts_that_are_alike():
    assert alike("loss 0.2031, 1,234 steps", "loss 0.2033, 1,234 steps")
    assert not alike("loss 0.20", "loss 0.30")
    assert not alike("loss 0.2", "gap 0.2")
    assert not alike("[1 2]", "[1 2 3]")
