"""Named methods and selectors: names, defaults, parameters, and errors."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import peerdescent as peer
from peerdescent import estimators, fusions
from peerdescent.engines.outline import outline
from peerdescent.methods import METHODS, parse
from peerdescent.methods.parameters import choice

SIGNATURES = {
    "dsgd": ["alpha", "batch"],
    "d2": ["alpha", "batch"],
    "gt-dsgd": ["alpha", "batch"],
    "d-pd-sgd": ["eta", "alpha", "kappa", "batch"],
    "d-get": ["alpha", "period", "batch", "large_batch"],
    "d-spider-sfo": ["alpha", "period", "batch", "large_batch"],
    "gt-sarah": ["alpha", "period", "batch"],
    "gt-hsgd": ["alpha", "beta", "batch", "initial_batch"],
    "push-pull": ["alpha", "batch"],
    "sgp": ["alpha", "batch"],
    "add-opt": ["alpha", "batch"],
    "nids": ["alpha", "batch"],
    "dsgdm": ["alpha", "rho", "batch"],
    "gt-momentum": ["alpha", "rho", "batch"],
    "edm": ["alpha", "rho", "batch"],
    "gt-svrg": ["alpha", "period", "batch"],
    "gt-page": ["alpha", "probability", "batch", "large_batch"],
    "extra": ["alpha", "batch"],
    "qg-dsgdm": ["alpha", "mu", "batch"],
    "decentlam": ["alpha", "mu", "batch"],
    "d-adam": ["alpha", "beta1", "beta2", "epsilon", "batch"],
    "gt-adam": ["alpha", "decay", "decay_square", "epsilon", "batch"],
    "choco-sgd": ["alpha", "gamma", "compressor", "batch"],
    "beer": ["alpha", "gamma", "compressor", "batch"],
    "motef": ["alpha", "gamma", "compressor", "rho", "batch"],
    "docom": ["alpha", "gamma", "compressor", "beta", "batch", "initial_batch"],
    "k-gt": ["alpha", "outer", "interval", "batch"],
    "led": ["alpha", "dual", "interval", "batch"],
    "proxskip": ["alpha", "dual", "chi", "probability", "batch"],
    "proxgt": ["alpha", "batch"],
    "deepstorm": ["alpha", "beta", "batch", "initial_batch"],
    "gt-nsgdm": ["alpha", "rho", "batch"],
}
PARTS = {
    "dsgd": ("sgd", "consensus"),
    "d2": ("sgd", "exact_diffusion"),
    "gt-dsgd": ("sgd", "tracking"),
    "d-pd-sgd": ("sgd", "primal_dual"),
    "d-get": ("spider", "tracking"),
    "d-spider-sfo": ("spider", "exact_diffusion"),
    "gt-sarah": ("spider", "tracking"),
    "gt-hsgd": ("hybrid", "tracking"),
    "push-pull": ("sgd", "push_pull"),
    "sgp": ("sgd", "push_sum"),
    "add-opt": ("sgd", "push_sum_tracking"),
    "nids": ("sgd", "nids"),
    "dsgdm": ("momentum", "consensus"),
    "gt-momentum": ("momentum", "tracking"),
    "edm": ("momentum", "exact_diffusion"),
    "gt-svrg": ("svrg", "tracking"),
    "gt-page": ("page", "tracking"),
    "extra": ("sgd", "extra"),
    "qg-dsgdm": ("sgd", "quasi_global"),
    "decentlam": ("sgd", "decentlam"),
    "d-adam": ("adam", "consensus"),
    "gt-adam": ("sgd", "adaptive_tracking"),
    "choco-sgd": ("sgd", "choco"),
    "beer": ("sgd", "compressed_tracking"),
    "motef": ("momentum", "compressed_tracking"),
    "docom": ("hybrid", "compressed_tracking"),
    "k-gt": ("sgd", "local_tracking"),
    "led": ("sgd", "local_diffusion"),
    "proxskip": ("sgd", "skip"),
    "proxgt": ("sgd", "proximal_tracking"),
    "deepstorm": ("hybrid", "proximal_tracking"),
    "gt-nsgdm": ("momentum", "normalized_tracking"),
}


@pytest.mark.parametrize("name", METHODS)
def test_named_methods(name):
    build = getattr(peer.methods, name.replace("-", "_"))
    assert METHODS[name].build is build
    assert list(inspect.signature(build).parameters) == SIGNATURES[name]
    method = build()
    assert tuple(type(part).__name__ for part in method.parts) == PARTS[name]
    assert method.name == name
    assert METHODS[name].citation
    assert METHODS[name].purpose in peer.methods.PURPOSES
    assert METHODS[name].build.__doc__


def test_options_that_tell_relatives_apart():
    assert parse("d-get").parameters["atc"] is False
    assert parse("gt-sarah").parameters["atc"] is False
    assert parse("gt-sarah").parameters["large_batch"] is None
    assert parse("dsgd").parameters["atc"] is False
    assert parse("dsgdm").parameters["atc"] is parse("d-adam").parameters["atc"] is True
    assert parse("proxgt").parameters["atc"] is True
    assert parse("deepstorm").parameters["atc"] is False


@pytest.mark.parametrize("name", METHODS)
def test_the_text_of_a_method_selects_it(name):
    method = METHODS[name].build(**{"eta" if name == "d-pd-sgd" else "alpha": 0.123456789})
    again = parse(str(method))
    assert again == method
    assert again.name == name


def test_selectors_round_trip():
    method = peer.compose(
        estimators.spider(7, 2, None), fusions.consensus(0.123456789012, atc=True)
    )
    assert parse(str(method)) == method
    assert (
        parse(" hybrid * tracking [ alpha = 1e-3 , initial-batch = 8 ] ").parameters[
            "initial_batch"
        ]
        == 8
    )
    assert parse("gt-hsgd[]") == peer.methods.gt_hsgd()


def test_replace_and_equality():
    method = peer.methods.gt_hsgd(alpha=0.5, batch=4)
    other = method.replace(alpha=0.25)
    assert other.parameters == {**method.parameters, "alpha": 0.25}
    assert other != method
    assert other == peer.methods.gt_hsgd(alpha=0.25, batch=4)
    assert hash(other) == hash(peer.methods.gt_hsgd(alpha=0.25, batch=4))
    assert set(method.numbers) == {"alpha", "beta"}
    assert peer.methods.gt_dsgd(alpha=1).numbers == {"alpha": 1.0}


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("gt-hsg", "unknown method 'gt-hsg': did you mean 'gt-hsgd'"),
        ("gt_hsgd", "unknown method 'gt_hsgd': did you mean 'gt-hsgd'"),
        ("hybird*tracking", "unknown estimator 'hybird': did you mean 'hybrid'"),
        ("hybrid*traking", "unknown fusion 'traking': did you mean 'tracking'"),
        ("gt-hsgd[alpa=1]", "unknown parameter of gt-hsgd 'alpa': did you mean 'alpha'"),
        ("sgd*tracking[beta=1]", r"unknown parameter of sgd\*tracking 'beta'"),
        ("gt-hsgd[alpha]", "'alpha' in 'gt-hsgd\\[alpha\\]' is not of the form parameter=value"),
        ("gt-hsgd[alpha=x]", "alpha = x: must be a positive finite number"),
        ("gt-hsgd[alpha=0.5", "is not of the form name"),
        ("gt-hsgd[alpha=-1]", "alpha = -1: must be a positive finite number"),
        ("gt-hsgd[alpha=0]", "alpha = 0: must be a positive finite number"),
        ("gt-hsgd[alpha=inf]", "alpha = inf: must be a positive finite number"),
        ("gt-hsgd[alpha=nan]", "alpha = nan: must be a positive finite number"),
        ("gt-hsgd[alpha=none]", "alpha = None: must be a positive finite number"),
        ("gt-hsgd[beta=1.5]", r"beta = 1.5: must lie in \[0, 1\]"),
        ("gt-hsgd[beta=none]", r"beta = None: must lie in \[0, 1\]"),
        ("gt-hsgd[batch=0]", "batch = 0: must be a whole number of at least 1"),
        ("gt-hsgd[batch=1.5]", "batch = 1.5: must be a whole number of at least 1"),
        ("gt-hsgd[batch=true]", "batch = True: must be a whole number of at least 1"),
        ("gt-hsgd[batch=none]", "batch = None: must be a whole number of at least 1"),
        ("gt-hsgd[initial_batch=-2]", "initial_batch = -2: must be a whole number"),
        ("d-get[period=0]", "period = 0: must be a whole number"),
        ("d-get[period=10000000000]", r"period = 10000000000: must be below 2\^31"),
        ("gt-hsgd[alpha=0.1,alpha=0.5]", "alpha is given twice"),
        ("gt-hsgd[alpha=true]", "alpha = True: must be a positive finite number"),
        ("d-get[large_batch=0]", "large_batch = 0: must be a whole number"),
        ("d-pd-sgd[eta=-1]", "eta = -1: must be a positive"),
        ("d-pd-sgd[kappa=0]", "kappa = 0: must be a positive"),
        ("dsgd[atc=true]", r"atc = True: dsgd has False; compose estimator\*fusion instead"),
        (
            "gt-sarah[large_batch=5]",
            r"large_batch = 5: gt-sarah has None; compose estimator\*fusion instead",
        ),
        ("", "is not of the form name"),
    ],
)
def test_bad_selectors_are_refused(selector, message):
    with pytest.raises(ValueError, match=message):
        parse(selector)


def test_numpy_numbers_are_checked_like_others():
    import numpy as np

    with pytest.raises(ValueError, match=r"alpha = -1.0: must be a positive"):
        peer.methods.gt_dsgd(alpha=np.float32(-1))
    with pytest.raises(ValueError, match=r"batch = .*-3.*: must be a whole number"):
        peer.methods.gt_dsgd(batch=np.int64(-3))
    assert peer.methods.gt_dsgd(alpha=np.int64(2)).numbers == {"alpha": 2.0}


def test_methods_that_do_more_than_arithmetic_are_told_so():
    from small import small_quadratic

    method = peer.Method(lambda x, net: x, lambda x, net: abs(x), "folded")
    with pytest.raises(
        ValueError, match=r"folded does more than \+, -, \*, / and \*\* with its vectors"
    ):
        peer.run(method, small_quadratic(), peer.Network(peer.topology.ring(6)), steps=3)


def test_a_name_that_both_parts_have_is_preceded_by_that_of_its_part():
    method = parse("page*skip[page_probability=0.3]")
    assert method.parts[0].probability == 0.3
    assert method.parts[1].probability == fusions.skip.probability
    other = method.replace(skip_probability=0.4, alpha=0.5)
    assert (other.parts[0].probability, other.parts[1].probability, other.parts[1].alpha) == (
        0.3,
        0.4,
        0.5,
    )
    assert parse(str(other)) == other
    assert set(method.numbers) == {"page_probability", "alpha", "dual", "chi", "skip_probability"}
    with pytest.raises(ValueError, match=r"unknown parameter of page\*skip 'probability'"):
        parse("page*skip[probability=0.3]")
    assert "epsilon" not in parse("adam*adaptive-tracking").parameters


def test_methods_made_by_hand_have_no_parameters():
    method = peer.Method(lambda x, net: x, lambda x, net: x)
    assert method.numbers == {}
    assert method == method.replace()
    with pytest.raises(
        ValueError, match="custom was made by hand and has no parameters to replace"
    ):
        method.replace(alpha=1.0)


def test_a_method_does_what_its_parts_do():
    """Engines make a method again from its parts, so functions of another kind would be lost."""
    method = peer.methods.dsgd()
    with pytest.raises(ValueError, match="dsgd has other functions than its parts"):
        dataclasses.replace(method, step=lambda state, net: state)
    with pytest.raises(ValueError, match="has other functions than its parts"):
        peer.Method(lambda x, net: x, lambda s, net: s, "mine", method.parts)
    assert dataclasses.replace(method, name="other") == method


def test_choices_that_are_equal_are_refused():
    with pytest.raises(ValueError, match="are equal in part, as 1 and True are"):
        choice(1, 1, True)


def test_a_branch_with_too_many_samples_is_refused():
    def step(state, net):
        return net.every(
            2,
            lambda: sum((net.grad(state, net.sample(1)) for _ in range(65)), state),
            lambda: state,
        )

    with pytest.raises(ValueError, match="has more than 64 samples"):
        outline(peer.Method(lambda x, net: x, step))


def test_misspelled_names_get_the_closest():
    message = r"^unknown parameter of gt_hsgd 'alpa': did you mean 'alpha'\? Known: alpha, batch, beta, initial_batch$"
    with pytest.raises(ValueError, match=message):
        peer.methods.gt_hsgd(alpa=1)
    with pytest.raises(
        AttributeError, match=r"^peerdescent.methods has no 'gthsgd': did you mean gt_hsgd, gt_dsgd"
    ):
        peer.methods.gthsgd  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"^peerdescent.methods has no 'zzz': see dir\(peer.methods\)$"
    ):
        peer.methods.zzz  # noqa: B018
    assert not hasattr(peer.methods, "__wrapped__")
    assert {"gt_hsgd", "parse", "named"} <= set(dir(peer.methods))
