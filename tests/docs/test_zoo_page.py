"""The generated page of the zoo: everything that is registered is on it, and what it says is so."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import peerdescent as peer
from peerdescent.methods import METHODS, Entry, by_purpose
from peerdescent.methods.contract import Net, Vector
from peerdescent.methods.parameters import Part, number, size

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def zoo():
    spec = importlib.util.spec_from_file_location("zoo_page", DOCS / "zoo_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(zoo):
    return zoo.expanded((DOCS / "zoo.md").read_text())


def sections(page):
    """The text of each method's section, by name."""
    found = re.split(r"^### `(.+?)`$", page, flags=re.M)
    return {
        name: re.split(r"^## ", text, flags=re.M)[0]
        for name, text in zip(found[1::2], found[2::2], strict=True)
    }


def test_every_method_is_on_the_page(page):
    assert "{zoo}" not in page
    assert list(sections(page)) == [name for entries in by_purpose().values() for name in entries]
    assert re.findall(r"^## For (.+)$", page, re.M) == list(peer.methods.PURPOSES)
    for name, text in sections(page).items():
        entry = METHODS[name]
        assert entry.citation.partition(" (")[0] in text.splitlines()[2]
        assert all(f"(`{type(part).__name__}`): " in text for part in entry.build().parts)
        table = re.findall(r"^\| `(\w+)` \|", text, re.M)
        assert table == entry.parameters
        assert (
            "symmetric" in re.search(r"\*\*Needs\*\*.*", text)[0]
        ) == entry.build().needs.symmetric


def test_every_part_and_compressor_is_on_the_page(page):
    after = page.partition("## Every pair is a method")[2]
    first = re.findall(r"^\| `([\w-]+)(?:\([\w, ]*\))?` \|", after, re.M)
    fusions, estimators = list(peer.fusions.FUSIONS), list(peer.estimators.ESTIMATORS)
    assert first == [*fusions, *estimators, *fusions, *peer.compressors.COMPRESSORS]
    assert "7 × 19 = 133 methods, of which 32 have names." in after
    grid = after.partition("### Estimators")[0]
    assert all(grid.count(f"[`{name}`](#{name})") == 1 for name in METHODS)


@dataclass(frozen=True)
class thrice(Part):
    """The mean of three samples: v_t = (a + b + c)/3, with theta_0 = 1.

    Nobody 2029.
    """

    width: int = size(2, tuned=(1, 2))
    theta: float = number(0.5, low=0, high=1)

    def init(self, x: Vector, net: Net) -> tuple[Vector, None]:
        return self.step(x, None, net)

    def step(self, x: Vector, memory: None, net: Net) -> tuple[Vector, None]:
        a, b, c = (net.grad(x, net.sample(self.width)) for _ in range(3))
        return (a + b + c) / 3, None


def test_a_method_that_is_registered_appears(zoo, monkeypatch):
    def triple(alpha: float = 0.25, width: int = 2) -> peer.Method:
        """TRIPLE: three samples with tracking."""
        return peer.compose(thrice(width), peer.fusions.tracking(alpha), "triple")

    monkeypatch.setitem(METHODS, "triple", Entry(triple, "Nobody 2030", "few bytes"))
    monkeypatch.setitem(peer.estimators.ESTIMATORS, "thrice", thrice)
    page = zoo.expanded((DOCS / "zoo.md").read_text())
    text = sections(page)["triple"]
    assert page.index("### `docom`") < page.index("### `triple`") < page.index("## For few rounds")
    assert "TRIPLE: three samples with tracking. *Nobody 2030.*" in text
    assert (
        "The mean of three samples: v{sub}`t` = (a + b + c)/3, with θ{sub}`0` = 1. Nobody 2029."
        in text
    )
    assert "**Fixed here**: `theta=0.5`, `atc=True`." in text
    assert (
        "3 `width` gradients; 2 rounds. With the defaults on a9a over 20 nodes: 6 gradients, 2 rounds"
        in text
    )
    assert "| `width` | 2 | a whole number of at least 1 | 1, 2 |" in text
    assert 'peer.methods.METHODS["triple"].build(alpha=0.25, width=2)' in text
    assert "There is no figure of `triple` yet" in text
    assert "8 × 19 = 152 methods, of which 33 have names." in page


def test_what_a_method_is_close_to_is_on_the_page(page):
    found = {name: text.splitlines()[2] for name, text in sections(page).items()}
    differ = "Nazari et al. 2019 mix before the step, and take a maximum of squares. *Lin et al. 2021 (their code);"
    assert differ in found["d-adam"]
    assert (
        "DEAREST is close to it, with several rounds a mix. *Luo & Ye 2022; Li et al. 2021.*"
        in found["gt-page"]
    )
    assert found["beer"].endswith("error feedback. *Zhao et al. 2022.*"), (
        "a citation is not repeated"
    )
    assert "See also Gao et al. 2023. *Huang et al. 2024" in found["gt-momentum"]


def test_costs_are_counted_in_one_and_many(page):
    assert not re.findall(r"(?<!\S)1 (?:rounds|gradients)", page)
    assert (
        "1 round every `interval` iterations (1 / `interval` on average)" in sections(page)["led"]
    )
    assert "1 round with probability `probability`" in sections(page)["proxskip"]
    assert "2 rounds every `interval` iterations" in sections(page)["k-gt"]


def test_a_letter_means_one_thing_among_compressors(page):
    table = page.partition("## Compressors")[2].partition("One of your own")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) == len(peer.compressors.COMPRESSORS)
    assert not [row[2] for row in rows if re.search(r"\bs\b", row[2])]
    assert "p entries of w bytes" in " ".join(table.split())


class Counting:
    """The verbs on vectors of one number, which count what they are asked for. A coin falls once in 1/p iterations."""

    def __init__(self, samples, message):
        self.t, self.samples, self.message = 0, samples, message
        self.gradients = self.rounds = self.sent = 0
        self.squeezed = {}

    def sample(self, batch):
        return batch

    def grad(self, x, batch):
        self.gradients += batch
        return x + 1.0

    def full_grad(self, x):
        return self.grad(x, self.samples)

    def mix(self, x):
        self.rounds += 1
        operator = self.squeezed.get(id(x), (None, None))[1]
        self.sent += self.message if operator is None else operator.size(self.message // 4, 4)
        return x / 2

    push = mix

    def disagree(self, x):
        return x - self.mix(x)

    def every(self, period, then, otherwise, phase=0):
        return then() if (self.t - phase) % period == 0 else otherwise()

    def chance(self, probability, then, otherwise):
        return self.every(round(1 / probability), then, otherwise)

    def compress(self, x, operator):
        new = x * 0.5
        self.squeezed[id(new)] = new, operator  # kept, so that no other vector gets its id
        return new

    def prox(self, x, step):
        return x

    def dot(self, x, y):
        return x * y


COUNTED = (
    "dsgd",
    "gt-hsgd",
    "gt-svrg",
    "d-get",
    "gt-page",
    "beer",
    "choco-sgd",
    "k-gt",
    "led",
    "proxskip",
    "deepstorm",
)


@pytest.mark.parametrize("name", COUNTED)
def test_costs_on_the_page_are_those_that_are_counted(page, name):
    net, method, steps = Counting(2442, 123 * 4), METHODS[name].build(), 800
    state = method.init(np.zeros(1), net)
    before = np.array([net.gradients, net.rounds, net.sent])
    with np.errstate(all="ignore"):  # its numbers may grow without bound
        for net.t in range(1, steps + 1):
            state = method.step(state, net)
    counted = (np.array([net.gradients, net.rounds, net.sent]) - before) / steps
    shown = re.search(
        r"over 20 nodes: ([\d.,]+) gradients?, ([\d.]+) rounds? and ([\d.,]+) bytes?",
        sections(page)[name],
    )
    assert [float(text.replace(",", "")) for text in shown.groups()] == pytest.approx(
        counted, rel=1e-3
    )


def test_the_calls_on_the_page_make_the_methods(page):
    for name, text in sections(page).items():
        call = re.search(r"^```python\n(.+)\n```$", text, re.M)[1]
        words = shlex.split(re.search(r"^```sh\n(.+)\n```$", text, re.M)[1])
        assert words[:2] == ["peerdescent", "run"]
        made = METHODS[name].build()
        assert eval(call, {"peer": peer}) == made
        assert peer.methods.parse(words[2]) == made
        assert call.startswith(f"peer.methods.{METHODS[name].build.__name__}(")


def test_mathematics_is_typeset(zoo, page):
    assert doctest.testmod(zoo).failed == 0
    assert zoo.typeset("W(a - K alpha outer z)/(2 chi) >= ||x|| |y| <b> [c] *d*, `x_t`") == (
        r"W(a − K α outer z)/(2 χ) ≥ ‖x‖ \|y\| \<b\> \[c\] \*d\*, `x_t`"
    )
    assert (
        zoo.typeset("levels 2^(bits - 1), x' = -1/3, the node's s_0")
        == "levels 2{sup}`bits − 1`, x′ = −1/3, the node's s{sub}`0`"
    )
    recursions = "".join(re.findall(r"^- \*\*(?:Estimate|Step)\*\*.*$", page, re.M))
    plain = re.sub(r"`[^`]*`", "", recursions)
    assert not re.findall(
        r"\w_\w|\w_\{|\^|\b(?:alpha|beta|gamma|rho|mu|eta|kappa|xi|tau|chi)\b| - ", plain
    )


def test_a_figure_is_shown_where_there_is_one(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "FIGURES", tmp_path)
    assert "`peerdescent reproduce zoo` makes it" in zoo.picture()
    (tmp_path / "zoo.csv").write_text(
        "line,purpose,method,seeds,diverged,gap,deviation,epoch\n"
        'dsgd,ideal links,"dsgd[alpha=4.0,batch=16]",3,0,0.000123,0.00001,29.99\n'
        'd2,ideal links,"d2[alpha=4.0]",3,2,,,29.99\n'
    )
    for name in ("dsgd", "d2", "gt-dsgd", "all"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    shown = {name: zoo.method_section(name, METHODS[name]) for name in ("dsgd", "d2", "gt-dsgd")}
    assert "```{figure} zoo/dsgd.png" in shown["dsgd"]
    assert (
        "Tuned to `dsgd[alpha=4.0,batch=16]`: gap 0.000123 ± 1e-05 after 30 epochs."
        in shown["dsgd"]
    )
    assert "2 of 3 runs diverged" in shown["d2"]
    assert "There is no figure of `gt-dsgd` yet" in shown["gt-dsgd"], "it has no results"
    assert "zoo/all.png" in zoo.picture()
