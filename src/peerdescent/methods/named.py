"""The named methods of the literature: each is an estimator with a fusion.

Each function returns a `Method`. Defaults are those of the parts, unless the paper of the method says otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

from peerdescent.methods import fusions
from peerdescent.methods.contract import Method, compose
from peerdescent.methods.estimators import hybrid, sgd, spider
from peerdescent.methods.fusions import consensus, exact_diffusion, primal_dual, tracking


def dsgd(alpha: float = consensus.alpha, batch: int = sgd.batch) -> Method:
    """Decentralized SGD: x_{t+1} = W x_t - alpha g(x_t).

    Its limit is biased if the local costs differ between nodes. Lian et al. 2017.

    >>> print(dsgd(alpha=0.5))
    dsgd[batch=1,alpha=0.5,atc=False]
    """
    return compose(sgd(batch), consensus(alpha), "dsgd")


def d2(alpha: float = exact_diffusion.alpha, batch: int = sgd.batch) -> Method:
    """D2: stochastic gradients with exact diffusion, which removes the bias of `dsgd`.

    Needs W symmetric, static, with its smallest eigenvalue above -1/3. Tang et al. 2018.
    """
    return compose(sgd(batch), exact_diffusion(alpha), "d2")


def gt_dsgd(alpha: float = tracking.alpha, batch: int = sgd.batch) -> Method:
    """GT-DSGD: stochastic gradients with gradient tracking, on any primitive doubly stochastic W.

    Pu and Nedich 2020; Lu et al. 2019; Xin et al. 2020.
    """
    return compose(sgd(batch), tracking(alpha), "gt-dsgd")


def d_pd_sgd(
    eta: float = primal_dual.eta,
    alpha: float = primal_dual.alpha,
    kappa: float = primal_dual.kappa,
    batch: int = sgd.batch,
) -> Method:
    """D-PD-SGD: stochastic gradients in a primal-dual recursion with step size `eta`.

    Needs W symmetric. Yi et al. 2020.

    Args:
        eta: The step size.
        alpha: The weight of the disagreement between neighbours.
        kappa: The weight of the dual variable.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), primal_dual(eta, alpha, kappa), "d-pd-sgd")


def d_get(
    alpha: float = tracking.alpha, period: int = spider.period, batch: int = spider.batch, large_batch: int = 64
) -> Method:
    """D-GET: the spider estimator with gradient tracking (combine-then-adapt).

    Sun, Lu and Hong 2020.

    Args:
        alpha: The step size.
        period: A large batch is drawn every `period` iterations.
        batch: The minibatch size in between, where gradients are taken at two points.
        large_batch: The size of the large batch.

    Returns:
        The method.
    """
    return compose(spider(period, batch, large_batch), tracking(alpha, atc=False), "d-get")


def d_spider_sfo(
    alpha: float = exact_diffusion.alpha, period: int = spider.period, batch: int = spider.batch, large_batch: int = 64
) -> Method:
    """D-SPIDER-SFO: the spider estimator with exact diffusion.

    Needs W symmetric, static, with its smallest eigenvalue above -1/3. Pan, Liu and Wang 2020.

    Args:
        alpha: The step size.
        period: A large batch is drawn every `period` iterations.
        batch: The minibatch size in between, where gradients are taken at two points.
        large_batch: The size of the large batch.

    Returns:
        The method.
    """
    return compose(spider(period, batch, large_batch), exact_diffusion(alpha), "d-spider-sfo")


def gt_sarah(alpha: float = tracking.alpha, period: int = spider.period, batch: int = spider.batch) -> Method:
    """GT-SARAH: spider with exact local gradients at its restarts, and gradient tracking; finite sums only.

    Xin, Khan and Kar 2020.

    Args:
        alpha: The step size.
        period: The exact local gradient is taken every `period` iterations.
        batch: The minibatch size in between, where gradients are taken at two points.

    Returns:
        The method.
    """
    return compose(spider(period, batch, None), tracking(alpha), "gt-sarah")


def gt_hsgd(
    alpha: float = tracking.alpha,
    beta: float = hybrid.beta,
    batch: int = hybrid.batch,
    initial_batch: int = hybrid.initial_batch,
) -> Method:
    """GT-HSGD: the hybrid variance-reduced estimator with gradient tracking; Algorithm 1 of the paper.

    v_t = g(x_t, xi) + (1 - beta)(v_{t-1} - g(x_{t-1}, xi)), y_{t+1} = W(y_t + v_t - v_{t-1}),
    x_{t+1} = W(x_t - alpha y_{t+1}). Xin, Khan and Kar 2021.

    Args:
        alpha: The step size.
        beta: The weight of the new stochastic gradient: 1 gives `gt_dsgd`, 0 a recursion without restarts.
        batch: The minibatch size for t >= 1.
        initial_batch: The minibatch size b_0 at t = 0.

    Returns:
        The method.

    >>> print(gt_hsgd(alpha=0.5, beta=0.01, initial_batch=32))
    gt-hsgd[beta=0.01,batch=1,initial_batch=32,alpha=0.5,atc=True]
    """
    return compose(hybrid(beta, batch, initial_batch), tracking(alpha), "gt-hsgd")


def push_pull(alpha: float = fusions.push_pull.alpha, batch: int = sgd.batch) -> Method:
    """Push-pull, or S-AB: stochastic gradients, tracked on any strongly connected directed graph.

    y_t = B y_{t-1} + v_t - v_{t-1}, x_{t+1} = A(x_t - alpha y_t), for networks with push-pull weights and all others.
    Xin, Sahu, Khan and Kar 2019; Pu et al. 2020.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), fusions.push_pull(alpha), "push-pull")


class Entry(NamedTuple):
    """An entry of the table of named methods."""

    build: Callable[..., Method]
    citation: str

    @property
    def parameters(self) -> list[str]:
        """The hyperparameters that its function takes."""
        return list(inspect.signature(self.build).parameters)


ALGORITHM_1 = "gt-hsgd[batch=1]"
"""GT-HSGD as in Algorithm 1; the paper tunes every other batch and is silent on this one."""

METHODS = {
    "dsgd": Entry(dsgd, "Lian et al., NeurIPS 2017"),
    "d2": Entry(d2, "Tang et al., ICML 2018"),
    "gt-dsgd": Entry(gt_dsgd, "Pu & Nedich 2020; Lu et al. 2019; Xin et al. 2020"),
    "d-pd-sgd": Entry(d_pd_sgd, "Yi et al. 2020"),
    "d-get": Entry(d_get, "Sun, Lu & Hong, ICML 2020"),
    "d-spider-sfo": Entry(d_spider_sfo, "Pan, Liu & Wang 2020"),
    "gt-sarah": Entry(gt_sarah, "Xin, Khan & Kar 2020"),
    "gt-hsgd": Entry(gt_hsgd, "Xin, Khan & Kar, ICML 2021"),
    "push-pull": Entry(push_pull, "Xin, Sahu, Khan & Kar 2019; Pu et al. 2020"),
}
