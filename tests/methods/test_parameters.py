"""Hyperparameters are declared once, and everything reads the declaration."""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path

import jax
import numpy as np
import pytest

import peerdescent as peer
from conftest import small_logistic
from peerdescent.methods.contract import Needs
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from peerdescent.methods.parameters import (
    Kind,
    Part,
    choice,
    count,
    declared,
    number,
    size,
    step_size,
    switch,
)
from peerdescent.sweeps import tuning_grid

PARTS = {**ESTIMATORS, **FUSIONS}
RING = peer.Network(peer.topology.ring(6))


@dataclass(frozen=True)
class every_kind(Part):
    rho: float = number(0.5, low=0, high=1, above=True, note="1 is all")
    eta: float = step_size(0.1)
    shift: float = number(-2.0)
    period: int = count(3)
    batch: int = size(1)
    large: int | None = size(None, optional=True)
    fast: bool = switch(False)
    kind: str = choice("plain", "plain", "fancy")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rho": 0}, r"rho = 0: must lie in \(0, 1\] \(1 is all\)"),
        ({"rho": 1.5}, r"rho = 1.5: must lie in \(0, 1\]"),
        ({"rho": float("nan")}, "rho = nan: must lie in"),
        ({"rho": True}, "rho = True: must lie in"),
        ({"eta": 0}, "eta = 0: must be a positive finite number"),
        ({"eta": float("inf")}, "eta = inf: must be a positive finite number"),
        ({"shift": "a"}, "shift = a: must be a finite number"),
        ({"period": 0}, "period = 0: must be a whole number of at least 1"),
        ({"period": 2.5}, "period = 2.5: must be a whole number"),
        ({"batch": 2**31}, r"batch = 2147483648: must be below 2\^31"),
        ({"large": 0}, "large = 0: must be a whole number"),
        ({"fast": 1}, "fast = 1: must be true or false"),
        ({"kind": "fncy"}, "unknown kind 'fncy': did you mean 'fancy'"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        every_kind(**values)


def test_values_in_range_and_those_not_known_yet_pass():
    every_kind(rho=1, eta=1e-9, shift=-1e9, period=2**31 - 1, large=None, fast=True, kind="fancy")
    every_kind(rho=object(), period=np.ones((3, 1)))  # a traced value, a column of values


def test_an_undeclared_field_is_refused():
    @dataclass(frozen=True)
    class vague(Part):
        rho: float = 0.1

    with pytest.raises(
        ValueError, match=r"rho of vague is not declared: write rho: float = number\(\.\.\.\)"
    ):
        vague()


@pytest.mark.parametrize(
    ("tuned", "message"),
    [
        ((0.5, 0.1), "give positive values, the smallest first"),
        ((0, 0.1), "give positive values, the smallest first"),
        ((0.1, 1.5), r"a value of tuned = 1.5: must lie in \[0, 1\]"),
    ],
)
def test_a_tuning_grid_that_would_not_be_searched_is_refused(tuned, message):
    with pytest.raises(ValueError, match=message):
        number(0.5, low=0, high=1, tuned=tuned)


def test_a_fusion_says_what_it_needs():
    @dataclass(frozen=True)
    class mute(Part):
        alpha: float = step_size(0.1)

    with pytest.raises(ValueError, match="mute does not say what it needs of W"):
        peer.compose(peer.estimators.sgd(), mute())


def test_kinds_decide_what_is_traced_whatever_the_type_of_a_default_or_value():
    @dataclass(frozen=True)
    class odd(Part):
        alpha: float = step_size(1)  # a whole number as the default of a real one
        needs = Needs()

        def init(self, x, v, net):
            return net.mix(x - self.alpha * v), ()

        def step(self, x, v, memory, net):
            return self.init(x, v, net)

    method = peer.compose(peer.estimators.spider(period=np.int64(7)), odd(2))
    assert method.numbers == {"period": 7, "alpha": 2.0}
    assert isinstance(method.numbers["alpha"], float)
    assert type(method.numbers["period"]) is int
    assert method.sizes == {"batch": 1, "large_batch": None}
    assert method.step_size == "alpha"
    assert peer.methods.d_pd_sgd().step_size == "eta"


def test_all_parts_declare_everything_and_have_one_step_size():
    for name, kind in PARTS.items():
        assert list(declared(kind)) == [field.name for field in fields(kind)], name
        roles = [p.role for p in declared(kind).values() if p.role]
        assert roles == (["step size"] if name in FUSIONS else []), name


def test_defaults_of_named_methods_are_those_that_parts_declare():
    for name, entry in peer.methods.METHODS.items():
        method = entry.build()
        for parameter, value in method.parameters.items():
            own = {("d-get", "large_batch"), ("d-spider-sfo", "large_batch")}
            own |= {
                (other, "atc") for other in ("d-get", "gt-sarah", "dsgdm", "d-adam", "deepstorm")
            }
            assert value == method.declared[parameter].default or (name, parameter) in own, (
                name,
                parameter,
            )


def test_a_registered_estimator_is_tuned_over_its_own_parameter(monkeypatch):
    """The estimator of CONTRIBUTING.md: `rho` is declared in the estimator and nowhere else."""

    @dataclass(frozen=True)
    class momentum(Part):
        rho: float = number(0.1, low=0, high=1, above=True, tuned=(0.05, 0.5))
        batch: int = size(1)

        def init(self, x, net):
            v = net.grad(x, net.sample(self.batch))
            return v, v

        def step(self, x, v, net):
            v = v + self.rho * (net.grad(x, net.sample(self.batch)) - v)
            return v, v

    monkeypatch.setitem(ESTIMATORS, "momentum", momentum)
    found = peer.tune("momentum*tracking", small_logistic(), RING, epochs=2, fresh=())
    assert {0.05, 0.5} < set(found.table["rho"])
    assert list(found.best) == ["alpha", "rho"], "a batch without values is not tuned"
    assert "rho=" in found.selector
    with pytest.raises(ValueError, match="rho = 2"):
        peer.methods.parse("momentum*tracking[rho=2]")


def test_grids_in_units_of_other_parameters():
    assert round(100 / 32) in {row["period"] for row in tuning_grid("d-get", 100, batch=32)}
    for row in tuning_grid("d-pd-sgd", 100):
        assert min(abs(row["alpha"] * row["eta"] - c) for c in (0.25, 0.5, 1.0)) < 1e-12
        assert min(abs(row["kappa"] * row["eta"] - c) for c in (0.1, 0.35, 0.7)) < 1e-12
    with pytest.raises(
        ValueError, match="periods are tuned as parts of an epoch, and the problem has none"
    ):
        tuning_grid("d-get", None)
    fixed = tuning_grid("d-get", None, period=5)
    assert {row["period"] for row in fixed} == {5}


def test_no_name_of_a_parameter_stands_elsewhere():
    """No code outside estimators, fusions and named methods has the name of a hyperparameter.

    Exceptions: the theory of GT-HSGD and its commands are about alpha, beta and b_0; alpha is also matplotlib's name of
    transparency, a network has a period too, faults have probabilities, theory has an epsilon; a compressor is a kind.
    """
    names = {name for kind in PARTS.values() for name in declared(kind)} - {
        "probability",
        "compressor",
        "epsilon",
    }
    home = Path(peer.__file__).parent
    allowed = {home / "methods" / f"{name}.py" for name in ("estimators", "fusions", "named")}
    allowed |= {
        home / "cli/theory.py",
        home / "cli/networks.py",
        home / "cli/networks.py",
        *(home / "theory").glob("*.py"),
        *(home / "figures").glob("*.py"),
    }
    seen = []
    for path in home.rglob("*.py"):
        if path in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value in names
            ):
                seen.append(f"{path.relative_to(home)}:{node.lineno} {node.value}")
    assert not seen


def test_ranges_read_well():
    shown = {name: parameter.range for name, parameter in declared(every_kind).items()}
    assert shown["rho"] == "in (0, 1]"
    assert shown["eta"] == "a positive finite number"
    assert shown["large"] == "a whole number of at least 1 or none"
    assert shown["kind"] == "one of plain, fancy"
    assert declared(every_kind)["fast"].kind == Kind.switch


def test_a_choice_is_read_from_a_selector(monkeypatch):
    @dataclass(frozen=True)
    class picky(Part):
        kind: str = choice("plain", "plain", "heavy")

        def init(self, x, net):
            return net.grad(x, net.sample(1)), ()

        def step(self, x, memory, net):
            return self.init(x, net)

    monkeypatch.setitem(ESTIMATORS, "picky", picky)
    method = peer.methods.parse("picky*consensus[kind=heavy]")
    assert method.parameters["kind"] == "heavy"
    assert peer.methods.parse(str(method)) == method
    with pytest.raises(ValueError, match="unknown kind 'hevy': did you mean 'heavy'"):
        peer.methods.parse("picky*consensus[kind=hevy]")


@pytest.mark.parametrize("value", [0.1 + 5j, Decimal("-0.1"), np.True_, (0.1,), "x"])
def test_what_is_no_real_number_is_refused(value):
    with pytest.raises(ValueError, match="must be a positive finite number"):
        peer.methods.dsgd(alpha=value)


def test_one_sided_ranges_read_well():
    for field, words in (
        (number(3.0, low=2), "a finite number of at least 2"),
        (number(3.0, low=2, above=True), "a finite number above 2"),
        (number(0.0, high=1), "a finite number of at most 1"),
    ):
        assert field.metadata["parameter"].range == words


def test_values_that_a_table_cannot_tell_apart_are_refused():
    def build(kind):
        return peer.methods.dsgd(alpha={"1": 0.1, "01": 5.0}[kind])

    with pytest.raises(ValueError, match="under values that a table cannot tell apart"):
        peer.sweep(build, {"kind": ["1", "01"]}, small_logistic(), RING, steps=2)


def test_a_smallest_eigenvalue_at_the_bound_is_not_above_it():
    edge = peer.Network(peer.topology.ring(20), "equal")  # -1/3 up to rounding
    with pytest.raises(ValueError, match=r"needs the smallest eigenvalue of W above -0\.333"):
        peer.run(peer.methods.d2(), small_logistic(nodes=20), edge, steps=2)


@pytest.mark.parametrize("kind", [np.array, np.float32, jax.numpy.array])
def test_arrays_without_axes_are_numbers(kind):
    for good in (peer.methods.dsgd(alpha=kind(0.5)), peer.methods.dsgd().replace(alpha=kind(0.5))):
        assert type(good.parameters["alpha"]) is float
        assert str(good) == str(peer.methods.dsgd(alpha=0.5))
    with pytest.raises(ValueError, match=r"alpha = -5.0: must be a positive finite number"):
        peer.methods.dsgd(alpha=kind(-5.0))
    with pytest.raises(ValueError, match=r"batch = 2.5: must be a whole number"):
        peer.methods.dsgd(batch=kind(2.5))


def test_replacing_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown parameter of dsgd 'alpah': did you mean 'alpha'"):
        peer.methods.dsgd().replace(alpah=99)


def test_classes_are_not_parts():
    with pytest.raises(ValueError, match="hybrid is a class: call it"):
        peer.compose(peer.estimators.hybrid, peer.fusions.tracking())
    with pytest.raises(ValueError, match="tracking is a class: call it"):
        peer.compose(peer.estimators.hybrid(), peer.fusions.tracking)


class Plain:
    """An ordinary class, which has the functions of an estimator."""

    def __init__(self):
        self.alpha = 1

    def init(self, x, net):
        return x, None

    def step(self, x, memory, net):
        return x, None


def test_other_parts_than_dataclasses_are_refused():
    for parts in ((Plain(), peer.fusions.tracking()), (peer.estimators.sgd(), Plain())):
        with pytest.raises(
            ValueError,
            match=r"Plain is no dataclass: write @dataclass\(frozen=True\) above the class",
        ):
            peer.compose(*parts)
    with pytest.raises(ValueError, match="str is no dataclass"):
        peer.compose("sgd", peer.fusions.tracking())


def test_a_fusion_before_its_estimator_is_refused():
    with pytest.raises(
        ValueError, match="tracking is a fusion, and stands first: give the estimator first"
    ):
        peer.compose(peer.fusions.tracking(), peer.estimators.sgd())


@pytest.mark.parametrize("engine", ["stacked", "debug"])
def test_a_part_that_returns_one_value_is_named(engine):
    @dataclass(frozen=True)
    class alone(Part):
        batch: int = size(1)

        def init(self, x, net):
            return net.grad(x, net.sample(self.batch))

        step = init

    method = peer.compose(alone(), peer.fusions.tracking())
    with pytest.raises(
        ValueError, match=r"alone returned .*: return a pair, the estimate and the memory"
    ):
        peer.run(method, small_logistic(), RING, steps=3, engine=engine)


def test_an_array_is_not_a_hyperparameter():
    with pytest.raises(ValueError, match=r"alpha = \[-5\.\]: give one number"):
        peer.methods.dsgd(alpha=np.array([-5.0]))
