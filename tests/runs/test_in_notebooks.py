"""What notebooks show: of runs the last rows and a curve, of networks a drawing, of all else the text."""

import dataclasses
import re
from base64 import b64decode
from xml.etree import ElementTree

import numpy as np
import pytest

import peerdescent as peer
from made_traces import make
from peerdescent.runs.trace import Status

PNG = b"\x89PNG"
NASTY = "<script>alert(1)</script>"


def pictures(shown):
    return [b64decode(each)[:4] for each in re.findall(r'src="data:image/png;base64,(.*?)"', shown)]


def test_a_trace_shows_its_last_rows_and_its_curve():
    trace = dataclasses.replace(make(np.linspace(1, 0.5, 20)), message=NASTY)
    shown = trace._repr_html_()
    assert trace.table.tail().to_html() in shown
    assert pictures(shown) == [PNG]
    assert NASTY not in shown
    assert "&lt;script&gt;" in shown


def test_several_seeds_show_their_mean():
    one, other = make([1.0, 0.5]), make([1.0, 0.7])
    other = dataclasses.replace(other, identity=dataclasses.replace(other.identity, seed=7))
    traces = peer.Traces([one, other])
    assert traces.mean.to_html() in traces._repr_html_()
    assert pictures(traces._repr_html_()) == [PNG]


@pytest.mark.parametrize(
    "losses", [[1.0, 50.0, 1e30, np.inf, np.nan], [np.nan, np.nan], [0.5], [0, 0]]
)
def test_a_trace_that_diverged_is_shown_too(losses):
    trace = make(losses, status=Status.diverged)
    assert "diverged" in trace._repr_html_()
    assert len(pictures(trace._repr_html_())) == np.isfinite(losses).any()


def test_a_network_shows_its_drawing_if_it_is_small():
    drawn = ElementTree.fromstring(peer.Network(peer.topology.ring(4))._repr_svg_())
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert peer.Network(peer.topology.complete(40))._repr_svg_() is None


def test_one_thing_is_not_called_several():
    one = peer.Traces([make([1.0, 0.5])])
    assert "1 step, " in repr(one[0])
    assert "1 seed, " in repr(one)
    assert repr(peer.Comparison({"dsgd": one})).startswith("Comparison(1 method, 1 seed, loss: ")


def test_a_comparison_of_nothing_shows_its_text():
    assert peer.Comparison({}, missing=("dsgd",))._repr_html_() is None
