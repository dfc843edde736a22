"""The named methods of the literature: each is an estimator with a fusion.

Each function returns a `Method`. Defaults are those of the parts, unless the paper of the method says otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple, ParamSpec

from peerdescent.compressors import Compressor
from peerdescent.errors import unknown
from peerdescent.methods import fusions
from peerdescent.methods.contract import Method, compose
from peerdescent.methods.estimators import adam, hybrid, momentum, page, sgd, spider, svrg
from peerdescent.methods.fusions import (
    adaptive_tracking,
    choco,
    compressed_tracking,
    consensus,
    exact_diffusion,
    local_diffusion,
    local_tracking,
    normalized_tracking,
    primal_dual,
    proximal_tracking,
    push_sum,
    push_sum_tracking,
    quasi_global,
    skip,
    tracking,
)

_P = ParamSpec("_P")


def _spelled(function: Callable[_P, Method]) -> Callable[_P, Method]:
    """A function that refuses a misspelled parameter with the closest name."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def made(*arguments: _P.args, **values: _P.kwargs) -> Method:
        for name in values:
            if name not in known:
                raise unknown(f"parameter of {function.__name__}", name, known)
        return function(*arguments, **values)

    return made


@_spelled
def dsgd(alpha: float = consensus.alpha, batch: int = sgd.batch) -> Method:
    """Decentralized SGD: x_{t+1} = W x_t - alpha g(x_t).

    Its limit is biased if the local costs differ between nodes. Lian et al. 2017.

    >>> print(dsgd(alpha=0.5))
    dsgd[batch=1,alpha=0.5,atc=False]
    """
    return compose(sgd(batch), consensus(alpha), "dsgd")


@_spelled
def d2(alpha: float = exact_diffusion.alpha, batch: int = sgd.batch) -> Method:
    """D2: stochastic gradients with exact diffusion, which removes the bias of `dsgd`.

    Needs W symmetric, static, with its smallest eigenvalue above -1/3. Tang et al. 2018.
    """
    return compose(sgd(batch), exact_diffusion(alpha), "d2")


@_spelled
def gt_dsgd(alpha: float = tracking.alpha, batch: int = sgd.batch) -> Method:
    """GT-DSGD: stochastic gradients with gradient tracking, on any primitive doubly stochastic W.

    Pu and Nedich 2020; Lu et al. 2019; Xin et al. 2020.
    """
    return compose(sgd(batch), tracking(alpha), "gt-dsgd")


@_spelled
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


@_spelled
def d_get(
    alpha: float = tracking.alpha,
    period: int = spider.period,
    batch: int = spider.batch,
    large_batch: int = 64,
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


@_spelled
def d_spider_sfo(
    alpha: float = exact_diffusion.alpha,
    period: int = spider.period,
    batch: int = spider.batch,
    large_batch: int = 64,
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


@_spelled
def gt_sarah(
    alpha: float = tracking.alpha, period: int = spider.period, batch: int = spider.batch
) -> Method:
    """GT-SARAH: spider with exact local gradients at its restarts, and gradient tracking; finite sums only.

    It mixes before it descends, as Algorithm 2.1 of Xin, Khan and Kar 2020 does: y_{t+1} = W y_t + v_t - v_{t-1},
    x_{t+1} = W x_t - alpha y_{t+1}.

    Args:
        alpha: The step size.
        period: The exact local gradient is taken every `period` iterations.
        batch: The minibatch size in between, where gradients are taken at two points.

    Returns:
        The method.
    """
    return compose(spider(period, batch, None), tracking(alpha, atc=False), "gt-sarah")


@_spelled
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


@_spelled
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


@_spelled
def sgp(alpha: float = push_sum.alpha, batch: int = sgd.batch) -> Method:
    """Stochastic gradient push: DSGD on any strongly connected directed graph, and biased like it.

    u_{t+1} = B(u_t - alpha v_t), w_{t+1} = B w_t, x_{t+1} = u_{t+1} / w_{t+1}.
    Nedich and Olshevsky 2016; Assran et al. 2019.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), push_sum(alpha), "sgp")


@_spelled
def add_opt(alpha: float = push_sum_tracking.alpha, batch: int = sgd.batch) -> Method:
    """ADD-OPT: gradient tracking by push-sum, on any strongly connected directed graph.

    y_t = B y_{t-1} + v_t - v_{t-1}, u_{t+1} = B u_t - alpha y_t, w_{t+1} = B w_t, x_{t+1} = u_{t+1} / w_{t+1}.
    Xi, Xin and Khan 2018; with stochastic gradients Qureshi et al. 2021.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), push_sum_tracking(alpha), "add-opt")


@_spelled
def nids(alpha: float = fusions.nids.alpha, batch: int = sgd.batch) -> Method:
    """NIDS: stochastic gradients with exact diffusion by (I + W)/2, for any symmetric W that stays.

    Li, Shi and Yan 2019, the smooth case.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), fusions.nids(alpha), "nids")


@_spelled
def dsgdm(
    alpha: float = consensus.alpha, rho: float = momentum.rho, batch: int = momentum.batch
) -> Method:
    """Decentralized SGD with momentum: x_{t+1} = W(x_t - alpha v_t), with v_t a moving average of gradients.

    Lian et al. 2017 with momentum, which stays at its node; Yu et al. 2019 average it too.

    Args:
        alpha: The step size.
        rho: The weight of the new stochastic gradient; 1 forgets all others.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(momentum(rho, batch), consensus(alpha, atc=True), "dsgdm")


@_spelled
def gt_momentum(
    alpha: float = tracking.alpha, rho: float = momentum.rho, batch: int = momentum.batch
) -> Method:
    """Moving averages of gradients with gradient tracking.

    Up to the start it is DSMT without its acceleration: Huang, Pu and Nedich 2024. Takezawa et al. 2022 have the form
    with `atc=False`, and another start. See also Gao et al. 2023.

    Args:
        alpha: The step size.
        rho: The weight of the new stochastic gradient; 1 forgets all others.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(momentum(rho, batch), tracking(alpha), "gt-momentum")


@_spelled
def edm(
    alpha: float = exact_diffusion.alpha, rho: float = momentum.rho, batch: int = momentum.batch
) -> Method:
    """EDM: moving averages of gradients with exact diffusion.

    Hu et al. 2025.

    Args:
        alpha: The step size.
        rho: The weight of the new stochastic gradient; 1 forgets all others.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(momentum(rho, batch), exact_diffusion(alpha), "edm")


@_spelled
def gt_svrg(
    alpha: float = tracking.alpha, period: int = svrg.period, batch: int = svrg.batch
) -> Method:
    """GT-SVRG: gradients corrected by an exact one at an earlier point, with gradient tracking; finite sums only.

    It adapts before it combines; `svrg*tracking[atc=false]`, whose y is v_0 at first, combines before it adapts. We
    could not read which of the two the paper has. Xin, Khan and Kar 2020.

    Args:
        alpha: The step size.
        period: The exact local gradient is taken every `period` iterations.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(svrg(period, batch), tracking(alpha), "gt-svrg")


@_spelled
def gt_page(
    alpha: float = tracking.alpha,
    probability: float = page.probability,
    batch: int = page.batch,
    large_batch: int | None = page.large_batch,
) -> Method:
    """GT-PAGE: restarts by a coin that all nodes share, with gradient tracking.

    DEAREST is close to it, with several rounds a mix. Luo and Ye 2022; Li et al. 2021.

    Args:
        alpha: The step size.
        probability: How likely a restart is.
        batch: The minibatch size.
        large_batch: The size of the batch of a restart; None for the exact local gradient.

    Returns:
        The method.
    """
    return compose(page(probability, batch, large_batch), tracking(alpha), "gt-page")


@_spelled
def extra(alpha: float = fusions.extra.alpha, batch: int = sgd.batch) -> Method:
    """EXTRA: x_{t+1} = x_t + W x_t - (x_{t-1} + W x_{t-1})/2 - alpha (v_t - v_{t-1}).

    Shi et al. 2015.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), fusions.extra(alpha), "extra")


@_spelled
def qg_dsgdm(
    alpha: float = quasi_global.alpha, mu: float = quasi_global.mu, batch: int = sgd.batch
) -> Method:
    """QG-DSGDm: momentum by what neighbours agreed on, for data that differ between nodes.

    Lin et al. 2021.

    Args:
        alpha: The step size.
        mu: The weight of what is remembered.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), quasi_global(alpha, mu), "qg-dsgdm")


@_spelled
def decentlam(
    alpha: float = fusions.decentlam.alpha, mu: float = fusions.decentlam.mu, batch: int = sgd.batch
) -> Method:
    """DecentLaM: momentum without the bias that it adds to DSGD, for large batches.

    Yuan et al. 2021.

    Args:
        alpha: The step size.
        mu: The weight of what is remembered.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), fusions.decentlam(alpha, mu), "decentlam")


@_spelled
def d_adam(
    alpha: float = consensus.alpha,
    beta1: float = adam.beta1,
    beta2: float = adam.beta2,
    epsilon: float = adam.epsilon,
    batch: int = adam.batch,
) -> Method:
    """D-Adam: every node's own Adam, then a round.

    In this form in the code of Lin et al. 2021. Nazari et al. 2019 mix before the step, and take a maximum of squares.

    Args:
        alpha: The step size.
        beta1: The weight of earlier gradients.
        beta2: The weight of earlier squares.
        epsilon: Added to the root of the squares.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(adam(beta1, beta2, epsilon, batch), consensus(alpha, atc=True), "d-adam")


@_spelled
def gt_adam(
    alpha: float = adaptive_tracking.alpha,
    decay: float = adaptive_tracking.decay,
    decay_square: float = adaptive_tracking.decay_square,
    epsilon: float = adaptive_tracking.epsilon,
    batch: int = sgd.batch,
) -> Method:
    """GT-Adam: Adam on gradient trackers.

    Carnevale et al. 2020.

    Args:
        alpha: The step size.
        decay: The weight of earlier trackers.
        decay_square: The weight of their squares.
        epsilon: Added to the squares.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), adaptive_tracking(alpha, decay, decay_square, epsilon), "gt-adam")


@_spelled
def choco_sgd(
    alpha: float = choco.alpha,
    gamma: float = choco.gamma,
    compressor: Compressor = choco.compressor,
    batch: int = sgd.batch,
) -> Method:
    """CHOCO-SGD: DSGD with compressed messages and error feedback.

    Koloskova et al. 2019.

    Args:
        alpha: The step size.
        gamma: The step towards the neighbours.
        compressor: What compresses messages.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), choco(alpha, gamma, compressor), "choco-sgd")


@_spelled
def beer(
    alpha: float = compressed_tracking.alpha,
    gamma: float = compressed_tracking.gamma,
    compressor: Compressor = compressed_tracking.compressor,
    batch: int = sgd.batch,
) -> Method:
    """BEER: gradient tracking with compressed messages and error feedback.

    Zhao et al. 2022.

    Args:
        alpha: The step size.
        gamma: The step towards the neighbours.
        compressor: What compresses messages.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), compressed_tracking(alpha, gamma, compressor), "beer")


@_spelled
def motef(
    alpha: float = compressed_tracking.alpha,
    gamma: float = compressed_tracking.gamma,
    compressor: Compressor = compressed_tracking.compressor,
    rho: float = momentum.rho,
    batch: int = momentum.batch,
) -> Method:
    """MoTEF: BEER with momentum.

    Islamov et al. 2024.

    Args:
        alpha: The step size.
        gamma: The step towards the neighbours.
        compressor: What compresses messages.
        rho: The weight of the new stochastic gradient; 1 forgets all others.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(momentum(rho, batch), compressed_tracking(alpha, gamma, compressor), "motef")


@_spelled
def docom(
    alpha: float = compressed_tracking.alpha,
    gamma: float = compressed_tracking.gamma,
    compressor: Compressor = compressed_tracking.compressor,
    beta: float = hybrid.beta,
    batch: int = hybrid.batch,
    initial_batch: int = hybrid.initial_batch,
) -> Method:
    """DoCoM: BEER with the hybrid estimator, up to the order of the two halves of a step.

    Yau and Wai 2022.

    Args:
        alpha: The step size.
        gamma: The step towards the neighbours.
        compressor: What compresses messages.
        beta: The weight of the new stochastic gradient.
        batch: The minibatch size.
        initial_batch: The minibatch size at t = 0.

    Returns:
        The method.
    """
    return compose(
        hybrid(beta, batch, initial_batch), compressed_tracking(alpha, gamma, compressor), "docom"
    )


@_spelled
def k_gt(
    alpha: float = local_tracking.alpha,
    outer: float = local_tracking.outer,
    interval: int = local_tracking.interval,
    batch: int = sgd.batch,
) -> Method:
    """K-GT: local steps with tracked corrections, and two rounds at the end of each interval.

    Liu et al. 2023.

    Args:
        alpha: The step size.
        outer: The share of the local steps that is kept.
        interval: Nodes communicate every `interval` iterations.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), local_tracking(alpha, outer, interval), "k-gt")


@_spelled
def led(
    alpha: float = local_diffusion.alpha,
    dual: float = local_diffusion.dual,
    interval: int = local_diffusion.interval,
    batch: int = sgd.batch,
) -> Method:
    """LED: local steps, and a round of exact diffusion at the end of each interval.

    Alghunaim 2023.

    Args:
        alpha: The step size.
        dual: The step of the dual variable.
        interval: Nodes communicate every `interval` iterations.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), local_diffusion(alpha, dual, interval), "led")


@_spelled
def proxskip(
    alpha: float = skip.alpha,
    dual: float = skip.dual,
    chi: float = skip.chi,
    probability: float = skip.probability,
    batch: int = sgd.batch,
) -> Method:
    """ProxSkip: local steps, and a round when a coin says so, the same for all nodes.

    Mishchenko et al. 2022; Guo et al. 2023.

    Args:
        alpha: The step size.
        dual: The step of the dual variable.
        chi: Divides the step towards the neighbours.
        probability: How likely a round is.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), skip(alpha, dual, chi, probability), "proxskip")


@_spelled
def proxgt(alpha: float = proximal_tracking.alpha, batch: int = sgd.batch) -> Method:
    """ProxGT: gradient tracking with proximal steps, for composite problems.

    Xin, Das, Khan and Kar 2021.

    Args:
        alpha: The step size.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(sgd(batch), proximal_tracking(alpha), "proxgt")


@_spelled
def deepstorm(
    alpha: float = proximal_tracking.alpha,
    beta: float = hybrid.beta,
    batch: int = hybrid.batch,
    initial_batch: int = hybrid.initial_batch,
) -> Method:
    """DEEPSTORM: the hybrid estimator with gradient tracking and proximal steps, for composite problems.

    Mancino-Ball et al. 2023.

    Args:
        alpha: The step size.
        beta: The weight of the new stochastic gradient.
        batch: The minibatch size.
        initial_batch: The minibatch size at t = 0.

    Returns:
        The method.
    """
    return compose(
        hybrid(beta, batch, initial_batch), proximal_tracking(alpha, atc=False), "deepstorm"
    )


@_spelled
def gt_nsgdm(
    alpha: float = normalized_tracking.alpha, rho: float = momentum.rho, batch: int = momentum.batch
) -> Method:
    """GT-NSGDm: momentum and gradient tracking with steps of one length, for noise with heavy tails.

    Yu et al. 2025.

    Args:
        alpha: The step size.
        rho: The weight of the new stochastic gradient; 1 forgets all others.
        batch: The minibatch size.

    Returns:
        The method.
    """
    return compose(momentum(rho, batch), normalized_tracking(alpha), "gt-nsgdm")


class Entry(NamedTuple):
    """An entry of the table of named methods."""

    build: Callable[..., Method]
    citation: str
    purpose: str = "ideal links"
    """What it is for: one of `PURPOSES`."""

    @property
    def parameters(self) -> list[str]:
        """The hyperparameters that its function takes."""
        return list(inspect.signature(self.build).parameters)


ALGORITHM_1 = "gt-hsgd[batch=1]"
"""GT-HSGD as in Algorithm 1; the paper tunes every other batch and is silent on this one."""

PURPOSES = (
    "ideal links",
    "few bytes",
    "few rounds",
    "heavy tails",
    "directed graphs",
    "composite problems",
)
"""What methods are for."""

METHODS = {
    "dsgd": Entry(dsgd, "Lian et al., NeurIPS 2017"),
    "d2": Entry(d2, "Tang et al., ICML 2018"),
    "gt-dsgd": Entry(gt_dsgd, "Pu & Nedich 2020; Lu et al. 2019; Xin et al. 2020"),
    "d-pd-sgd": Entry(d_pd_sgd, "Yi et al. 2020"),
    "d-get": Entry(d_get, "Sun, Lu & Hong, ICML 2020"),
    "d-spider-sfo": Entry(d_spider_sfo, "Pan, Liu & Wang 2020"),
    "gt-sarah": Entry(gt_sarah, "Xin, Khan & Kar 2020"),
    "gt-hsgd": Entry(gt_hsgd, "Xin, Khan & Kar, ICML 2021"),
    "push-pull": Entry(push_pull, "Xin, Sahu, Khan & Kar 2019; Pu et al. 2020", "directed graphs"),
    "sgp": Entry(sgp, "Nedich & Olshevsky 2016; Assran et al. 2019", "directed graphs"),
    "add-opt": Entry(add_opt, "Xi, Xin & Khan 2018; Qureshi et al. 2021", "directed graphs"),
    "nids": Entry(nids, "Li, Shi & Yan 2019"),
    "dsgdm": Entry(dsgdm, "Lian et al. 2017 with momentum; Yu et al. 2019 average it too"),
    "gt-momentum": Entry(
        gt_momentum,
        "Huang et al. 2024 (not accelerated); Takezawa et al. 2022 (atc=False); Gao et al. 2023",
    ),
    "edm": Entry(edm, "Hu et al. 2025"),
    "gt-svrg": Entry(gt_svrg, "Xin, Khan & Kar 2020"),
    "gt-page": Entry(gt_page, "Luo & Ye 2022; Li et al. 2021"),
    "extra": Entry(extra, "Shi et al. 2015"),
    "qg-dsgdm": Entry(qg_dsgdm, "Lin et al. 2021"),
    "decentlam": Entry(decentlam, "Yuan et al. 2021"),
    "d-adam": Entry(d_adam, "Lin et al. 2021 (their code); Nazari et al. 2019 differ"),
    "gt-adam": Entry(gt_adam, "Carnevale et al. 2020"),
    "choco-sgd": Entry(choco_sgd, "Koloskova et al. 2019", "few bytes"),
    "beer": Entry(beer, "Zhao et al. 2022", "few bytes"),
    "motef": Entry(motef, "Islamov et al. 2024", "few bytes"),
    "docom": Entry(docom, "Yau & Wai 2022", "few bytes"),
    "k-gt": Entry(k_gt, "Liu et al. 2023", "few rounds"),
    "led": Entry(led, "Alghunaim 2023", "few rounds"),
    "proxskip": Entry(proxskip, "Mishchenko et al. 2022; Guo et al. 2023", "few rounds"),
    "proxgt": Entry(proxgt, "Xin, Das, Khan & Kar 2021", "composite problems"),
    "deepstorm": Entry(deepstorm, "Mancino-Ball et al. 2023", "composite problems"),
    "gt-nsgdm": Entry(gt_nsgdm, "Yu et al. 2025", "heavy tails"),
}


def by_purpose() -> dict[str, dict[str, Entry]]:
    """The named methods that are registered now, by what they are for, in the order of `PURPOSES`.

    >>> list(by_purpose()["few bytes"])
    ['choco-sgd', 'beer', 'motef', 'docom']
    """
    purposes = dict.fromkeys([*PURPOSES, *(entry.purpose for entry in METHODS.values())])
    groups = {
        what: {name: one for name, one in METHODS.items() if one.purpose == what}
        for what in purposes
    }
    return {what: own for what, own in groups.items() if own}
