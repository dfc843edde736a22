"""The named methods: a table of estimator x fusion, with the papers they come from.

Each function returns a `Method`; `parse` reads the command line's `name[parameter=value,...]`, in which
`estimator*fusion` names any other cell of the grid. What a method needs of W is what its fusion needs.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from peerdescent.errors import require, unknown
from peerdescent.methods.contract import Method, compose
from peerdescent.methods.estimators import ESTIMATORS, hybrid, sgd, spider
from peerdescent.methods.fusions import FUSIONS, consensus, exact_diffusion, primal_dual, tracking


def dsgd(alpha: float = 0.1, batch: int = 1) -> Method:
    """Decentralized SGD: x_{t+1} = W x_t - alpha g(x_t).

    Biased by the differences between nodes. Lian et al. 2017.

    >>> print(dsgd(alpha=0.5))
    dsgd[batch=1,alpha=0.5,atc=False]
    """
    return compose(sgd(batch), consensus(alpha), "dsgd")


def d2(alpha: float = 0.1, batch: int = 1) -> Method:
    """D2: stochastic gradients with exact diffusion, which removes the bias of `dsgd`.

    Needs W symmetric with its smallest eigenvalue above -1/3. Tang et al. 2018.
    """
    return compose(sgd(batch), exact_diffusion(alpha), "d2")


def gt_dsgd(alpha: float = 0.1, batch: int = 1) -> Method:
    """GT-DSGD: stochastic gradients with gradient tracking, on any primitive doubly stochastic W.

    Pu and Nedich 2020; Lu et al. 2019; Xin et al. 2020.
    """
    return compose(sgd(batch), tracking(alpha), "gt-dsgd")


def d_pd_sgd(eta: float = 0.1, alpha: float = 1.0, kappa: float = 1.0, batch: int = 1) -> Method:
    """D-PD-SGD: stochastic gradients in a primal-dual recursion with step size `eta`.

    `alpha` weighs the disagreement and `kappa` the dual variable. Needs W symmetric. Yi et al. 2020.
    """
    return compose(sgd(batch), primal_dual(eta, alpha, kappa), "d-pd-sgd")


def d_get(alpha: float = 0.1, period: int = 100, batch: int = 1, large_batch: int = 64) -> Method:
    """D-GET: the spider estimator with gradient tracking (combine-then-adapt).

    A large batch every `period` iterations, batches at two points between. Sun, Lu and Hong 2020.
    """
    return compose(spider(period, batch, large_batch), tracking(alpha, atc=False), "d-get")


def d_spider_sfo(alpha: float = 0.1, period: int = 100, batch: int = 1, large_batch: int = 64) -> Method:
    """D-SPIDER-SFO: the spider estimator with exact diffusion.

    Needs W symmetric with its smallest eigenvalue above -1/3. Pan, Liu and Wang 2020.
    """
    return compose(spider(period, batch, large_batch), exact_diffusion(alpha), "d-spider-sfo")


def gt_sarah(alpha: float = 0.1, period: int = 100, batch: int = 1) -> Method:
    """GT-SARAH: spider with exact local gradients at its restarts, and gradient tracking; finite sums only.

    Xin, Khan and Kar 2020.
    """
    return compose(spider(period, batch, None), tracking(alpha), "gt-sarah")


def gt_hsgd(alpha: float = 0.1, beta: float = 0.01, batch: int = 1, initial_batch: int = 1) -> Method:
    """GT-HSGD: the hybrid variance-reduced estimator with gradient tracking; Algorithm 1 of the paper.

    v_t = g(x_t, xi) + (1 - beta)(v_{t-1} - g(x_{t-1}, xi)), y_{t+1} = W(y_t + v_t - v_{t-1}),
    x_{t+1} = W(x_t - alpha y_{t+1}). Single loop, batch 1 after an `initial_batch` at t = 0. Xin, Khan and Kar 2021.

    >>> print(gt_hsgd(alpha=0.5, beta=0.01, initial_batch=32))
    gt-hsgd[beta=0.01,batch=1,initial_batch=32,alpha=0.5,atc=True]
    """
    return compose(hybrid(beta, batch, initial_batch), tracking(alpha), "gt-hsgd")


class Entry(NamedTuple):
    """A row of the table of named methods."""

    build: Callable[..., Method]
    citation: str


METHODS = {
    "dsgd": Entry(dsgd, "Lian et al., NeurIPS 2017"),
    "d2": Entry(d2, "Tang et al., ICML 2018"),
    "gt-dsgd": Entry(gt_dsgd, "Pu & Nedich 2020; Lu et al. 2019; Xin et al. 2020"),
    "d-pd-sgd": Entry(d_pd_sgd, "Yi et al. 2020"),
    "d-get": Entry(d_get, "Sun, Lu & Hong, ICML 2020"),
    "d-spider-sfo": Entry(d_spider_sfo, "Pan, Liu & Wang 2020"),
    "gt-sarah": Entry(gt_sarah, "Xin, Khan & Kar 2020"),
    "gt-hsgd": Entry(gt_hsgd, "Xin, Khan & Kar, ICML 2021"),
}

_SELECTOR = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<values>[^\[\]]*)\])?")
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


def parse(selector: str) -> Method:
    """The method that `name[parameter=value,...]` or `estimator*fusion[...]` selects.

    >>> parse("gt-hsgd[alpha=0.5,beta=0.01]").numbers
    {'beta': 0.01, 'alpha': 0.5}
    >>> parse("hybrid*primal-dual[eta=0.2]").name
    'hybrid*primal-dual'
    """
    name, values = split(selector)
    if "*" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "estimator*fusion"])
        build, settled = METHODS[name].build, METHODS[name].build().parameters
        known = list(inspect.signature(build).parameters)
        # What makes the method this one may be said, so that str(method) can be read back, but not changed.
        for key in [key for key in values if key in settled and key not in known]:
            given = values.pop(key)
            require(
                given == settled[key], f"{key} = {given}: {name} has {settled[key]}; compose estimator*fusion instead"
            )
        _check_names(name, values, known)
        return build(**values)
    left, _, right = (part.strip() for part in name.partition("*"))
    if left not in ESTIMATORS:
        raise unknown("estimator", left, ESTIMATORS)
    if right not in FUSIONS:
        raise unknown("fusion", right, FUSIONS)
    kinds = ESTIMATORS[left], FUSIONS[right]
    fields = [[f.name for f in dataclasses.fields(kind)] for kind in kinds]
    _check_names(name, values, fields[0] + fields[1])
    parts = [kind(**{k: v for k, v in values.items() if k in own}) for kind, own in zip(kinds, fields, strict=True)]
    return compose(*parts)


def split(selector: str) -> tuple[str, dict[str, Any]]:
    """The name and the values in `name[parameter=value,...]`.

    >>> split("gt-hsgd[batch=1]")
    ('gt-hsgd', {'batch': 1})
    """
    match = _SELECTOR.fullmatch(selector.strip())
    require(match is not None, f"{selector!r} is not of the form name[parameter=value,...]")
    assert match is not None
    return match["name"].strip(), _values(match["values"] or "", selector)


def _values(text: str, selector: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        require(bool(equals), f"{item!r} in {selector!r} is not of the form parameter=value")
        key = key.replace("-", "_")
        require(key not in values, f"{key} is given twice in {selector!r}: leave one out")
        values[key] = _value(value, key)
    return values


def _value(text: str, key: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{key} = {text!r}: must be a number, true, false or none")


def _check_names(name: str, values: dict[str, Any], known: list[str]) -> None:
    for key in values:
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
