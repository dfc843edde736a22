"""Progress in notebooks: one place that is drawn anew, not too often, and empty at the end."""

import sys
from types import SimpleNamespace

import pytest

from peerdescent.runs import progress


class Notebook:
    """What IPython's `display` does with what it is given."""

    def __init__(self, monkeypatch):
        self.drawn, self.now = [], 100.0
        monkeypatch.setitem(
            sys.modules, "IPython", SimpleNamespace(display=SimpleNamespace(display=self.display))
        )
        monkeypatch.setattr(progress, "Console", lambda: SimpleNamespace(is_jupyter=True))
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def display(self, content, raw, display_id):
        assert raw
        assert display_id
        assert not self.drawn, "one place"
        self.drawn.append(content)
        return self

    def update(self, content, raw):
        assert raw
        self.drawn.append(content)


@pytest.fixture
def notebook(monkeypatch):
    return Notebook(monkeypatch)


@pytest.mark.parametrize("asked", [None, True])
def test_a_bar_in_a_notebook(notebook, asked):
    bar = progress.choose(asked)
    bar.begin("<i>dsgd", 1000)
    notebook.now += 60  # the program is compiled
    for step in range(1001):
        bar.update(step, 1 / (1 + step))
        notebook.now += 1 / 64
    bar.end()
    assert len(notebook.drawn) == 28 + 1, "two in each of 13.6 seconds, and the last"
    first = {"text/plain": "<i>dsgd  13%  loss 0.00775194  0:01:02  left 0:00:14"}
    assert notebook.drawn[0] == first
    assert notebook.drawn[-1] == {"text/plain": ""}


def test_a_quick_run_shows_none(notebook):
    bar = progress.choose(None)
    bar.begin("dsgd", 10)
    notebook.now += 60
    bar.update(0, float("nan"))
    notebook.now += 1.9
    bar.update(10, 0.5)
    bar.end()
    assert not notebook.drawn


def test_what_is_asked_for(notebook):
    assert isinstance(progress.choose(False), progress.Silent)
    own = progress.Silent()
    assert progress.choose(own) is own


def test_a_file_has_no_bar():
    assert isinstance(progress.choose(None), progress.Silent)
    assert isinstance(progress.choose(True), progress.Lines)
