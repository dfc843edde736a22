"""Metrics: objects with a name, a label, an axis, a format, a cost and a function.

Each column of a trace is a metric, and users can add their own. The trace, the console, figures and
the report read these objects; the columns are listed nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.datasets.dataset import Dataset
from peerdescent.datasets.described import Described, difference
from peerdescent.digests import fingerprint
from peerdescent.errors import require, require_memory
from peerdescent.problems.problem import Problem


@dataclass(frozen=True)
class Snapshot:
    """The input of a metric: the iterates, the drift of trackers, values and gradients of F, and the costs so far."""

    problem: Problem
    step: int
    x: np.ndarray
    """The iterates (n, p)."""
    x_mean: np.ndarray
    """Their mean (p,)."""
    drift: np.ndarray | None
    """The mean over nodes (p,) of `untracked`; None before iteration 0, and for a fusion without a tracker."""
    values: np.ndarray
    """F (k,), or F + h, at the mean and, if a metric asked for it, at each node's iterate."""
    grads: np.ndarray
    """The gradients of F (k, p) at the same points; proximal gradient mappings, if there is an h."""
    gradients: float
    rounds: float
    bytes: float
    seconds: float
    clock: float = math.nan


class Cost(IntEnum):
    """The points at which a metric needs F and its gradient."""

    nothing = 0
    mean = 1
    """The mean of the iterates."""
    nodes = 2
    """Also the iterate of every node."""


@dataclass(frozen=True)
class Metric:
    """A column of a trace."""

    name: str
    label: str = ""
    """The label of its axis in figures, which may have matplotlib's mathtext; by default the name."""
    title: str = ""
    """The same in plain text, for pages and tables; by default the name."""
    log: bool = False
    """Whether its axis is logarithmic."""
    format: str = ".2e"
    """The format specification of printed values; "B" is for bytes, with a prefix such as M."""
    cost: Cost = Cost.nothing
    function: Callable[[Snapshot], float] | None = field(default=None, compare=False, repr=False)
    """Computes the value; None for a metric that was read from a file."""
    rising: bool = field(default=False, compare=False, repr=False)
    """Whether a larger value is better, as of an accuracy."""
    code: str = field(default="", compare=False, repr=False)
    """A checksum of a user's function."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.name, str) and bool(self.name),
            f"a metric is called {self.name!r}: give it a text",
        )
        try:
            format(0.5, "" if self.format == "B" else self.format)
        except ValueError:
            raise ValueError(
                f"format = {self.format!r} of metric {self.name!r}: give one such as '.3g' or '.1%'"
            ) from None
        for attribute in ("label", "title"):
            object.__setattr__(self, attribute, getattr(self, attribute) or self.name)

    def text(self, value: float) -> str:
        """A value in the metric's format; a dash where there is none.

        >>> METRICS["bytes"].text(1.5e6), METRICS["epoch"].text(float("nan"))
        ('1.5 MB', '-')
        """
        if value != value:
            return "-"
        scale, unit = self.unit(value)
        return f"{value / scale:.3g}{unit}" if self.format == "B" else format(value, self.format)

    def unit(self, value: float) -> tuple[float, str]:
        """The unit in which a value is written: its size and its name, which is empty for plain numbers.

        >>> METRICS["bytes"].unit(1.5e6), METRICS["loss"].unit(0.5)
        ((1000000, ' MB'), (1, ''))
        """
        if self.format.endswith("%"):
            return 0.01, "%"
        power = next((k for k in range(4) if value < 1000 ** (k + 1)), 4)
        return (
            (1000**power, f" {('B', 'kB', 'MB', 'GB', 'TB')[power]}")
            if self.format == "B"
            else (1, "")
        )

    def look(self) -> dict[str, Any]:
        """All fields but cost and function, as a run folder stores them."""
        names = ("name", "label", "title", "log", "format", "code")
        return {name: getattr(self, name) for name in names}


def metric(
    function: Callable[..., Any],
    name: str | None = None,
    *,
    model: bool = False,
    label: str = "",
    title: str = "",
    log: bool = False,
    format: str = ".4g",
    rising: bool = False,
) -> Metric:
    """Make a metric of your own, for `peer.run(..., metrics=[...])`.

    Args:
        function: Returns a number. Its arguments are the mean iterate (p,), the iterates (n, p) and
            the problem; with `model`, its only argument is the pytree of parameters at the mean
            iterate.
        name: The column's name; by default the function's.
        model: Whether the function takes parameters, as `problem.unflatten` returns them.
        label: The label of its axis in figures.
        title: The label in plain text, for pages and tables.
        log: Whether its axis is logarithmic.
        format: The format specification of printed values.
        rising: Whether a larger value is better.

    Returns:
        The metric, a column of the trace.

    >>> import peerdescent as peer
    >>> problem = peer.problems.logistic(peer.datasets.load("digits").partition(4))
    >>> largest = peer.metric(lambda x_mean, x, problem: abs(x_mean).max(), "largest entry")
    >>> network = peer.Network(peer.topology.ring(4))
    >>> trace = peer.run(peer.methods.dsgd(), problem, network, steps=10, record=1, metrics=[largest])
    >>> bool(trace.table["largest entry"].iloc[-1] == abs(trace.x_mean).max())
    True
    """
    require(
        callable(function), f"{function!r} is no metric: give a function of (x_mean, x, problem)"
    )
    name = str(getattr(function, "__name__", "")) if name is None else name
    require(
        bool(name) and name != "<lambda>",
        "the metric has no name: give one, as in metric(function, 'accuracy')",
    )

    def value(seen: Snapshot) -> float:
        if not model:
            return float(_number(function(seen.x_mean, seen.x, seen.problem)))
        unflatten = seen.problem.unflatten
        return float(
            _number(function(seen.x_mean if unflatten is None else unflatten(seen.x_mean)))
        )

    return Metric(name, label, title, log, format, function=value, rising=rising)


def accuracy(
    predict: Callable[[Any, Any], Any],
    features: Any,
    labels: Any = None,
    name: str = "test accuracy",
    *,
    worst: bool = False,
) -> Metric:
    """A metric: the share of rows that a model classifies correctly, for `peer.run(..., metrics=[...])`.

    Scores (rows, classes) are for labels 0, 1, ..., classes - 1, and the largest score of a row
    decides. Scores (rows,) are for labels -1 and 1, or 0 and 1: a score above 0 is for 1, so
    subtract 0.5 from a probability. A row with a score that is NaN counts as wrong.

    Args:
        predict: A JAX function of parameters and features that returns scores. It is compiled once.
            The parameters are those that `problem.unflatten` returns; a vector (p,) if the problem
            has none, as `logistic`.
        features: An array (rows, ...), or a sparse matrix, which becomes dense; or a `Dataset`,
            which has the labels.
        labels: Whole numbers (rows,).
        name: The column's name.
        worst: Whether to measure the models of all nodes and take the smallest share, not that of
            the mean model.

    Returns:
        The metric, a column of the trace.

    >>> import peerdescent as peer
    >>> data = peer.datasets.load("digits")
    >>> problem, network = peer.problems.logistic(data[:1500].partition(4)), peer.Network(peer.topology.ring(4))
    >>> unseen = peer.accuracy(problem.predict, data[1500:])
    >>> trace = peer.run(peer.methods.gt_dsgd(alpha=4), problem, network, epochs=5, metrics=[unseen])
    >>> bool(trace.table["test accuracy"].iloc[-1] > 0.8)
    True
    """
    require(
        callable(predict), f"{predict!r} predicts nothing: give a function of (params, features)"
    )
    about = None
    if isinstance(features, Dataset):
        about = Described.of(features)
        remedy = (
            f"write name={labels!r} if it is a name"
            if isinstance(labels, str)
            else "leave them out"
        )
        require(labels is None, f"labels beside a data set, which has its own: {remedy}")
        features, labels = features.features, features.labels
    if hasattr(features, "toarray"):
        size = features.dtype.itemsize * math.prod(features.shape)
        require_memory(
            f"features of shape {features.shape} as a dense array", size, "give fewer rows"
        )
        features = features.toarray()
    features, labels = np.array(features), np.array(labels)
    require(
        labels.ndim == 1 and len(labels) > 0 and features.shape[:1] == labels.shape,
        f"features of shape {features.shape} and labels of shape {labels.shape} do not fit: give (rows, ...) and "
        "(rows,), with at least one row",
    )
    whole = labels.dtype.kind in "biuf" and bool(np.all(labels == np.round(labels)))
    remedy = "for real targets, write the metric as a function of (x_mean, x, problem)"
    require(
        whole,
        f"labels such as {labels[0]}: accuracy is for classes, which are whole numbers; {remedy}",
    )

    @partial(jax.jit, static_argnums=(0, 1))
    def right(
        code: str, unflatten: Callable[[Any], Any] | None, x: jax.Array, features: jax.Array
    ) -> jax.Array:
        """The number of right rows of each model (k,); compiled again if the `code` of `predict` has changed."""

        def count(x: jax.Array) -> jax.Array:
            return _is_right(
                jnp.asarray(predict(x if unflatten is None else unflatten(x), features)), labels
            ).sum()

        return jax.lax.map(count, x)

    def value(seen: Snapshot) -> float:
        other = (
            difference(about, seen.problem.described) if about and seen.problem.described else ""
        )
        require(
            not other,
            f"{name}: the rows to test on have {other}; load them like those, by load(rows, like=train)",
        )
        x = seen.x if worst else seen.x_mean[None]
        try:
            return int(
                right(fingerprint(predict), seen.problem.unflatten, x, features).min()
            ) / len(labels)
        except TypeError as error:  # most likely of other shapes than those of the problem
            error.add_note(
                f"in the metric {name!r}, on features of shape {features.shape}: give as many columns as in"
            )
            error.add_note("training; peer.datasets.load(rows, like=train) does")
            raise

    return Metric(name, format=".1%", function=value, rising=True)


def _is_right(scores: jax.Array, labels: np.ndarray) -> jax.Array:
    """Whether each row's scores are for its label (rows,)."""
    low, high = labels.min(), labels.max()
    if scores.shape == labels.shape:
        require(
            set(labels.tolist()) <= {-1, 1} or set(labels.tolist()) <= {0, 1},
            f"one score a row, and labels from {low:g} to {high:g}: labels must then be -1 and 1, or 0 and 1; return "
            "scores (rows, classes) for others",
        )
        return ((scores > 0) == (labels > 0)) & ~jnp.isnan(scores)
    require(
        scores.ndim == 2 and len(scores) == len(labels) and scores.shape[1] > 1,
        f"scores of shape {scores.shape} for {len(labels)} rows: return (rows, classes), with two classes or more, or "
        "(rows,) for two labels",
    )
    classes = scores.shape[1]
    require(
        low >= 0 and high < classes,
        f"{classes} scores a row, and labels from {low:g} to {high:g}: labels must then be 0 to {classes - 1}; number "
        "them so, or return scores (rows,) for labels -1 and 1",
    )
    return (scores.argmax(axis=1) == labels) & ~jnp.isnan(scores).any(axis=1)


def _squares(grads: np.ndarray) -> np.ndarray:
    """The squared norms of rows, summed in float64."""
    return np.einsum("kp,kp->k", grads, grads, dtype=float)


def _consensus(seen: Snapshot) -> float:
    away = seen.x - seen.x.mean(axis=0, dtype=float)
    return float(np.einsum("np,np->", away, away) / len(away))


def untracked(state: Any) -> np.ndarray | None:
    """y_{t+1} - v_t of nodes, in float64, from a method's state; None for a fusion without a tracker."""
    tracked: Any = getattr(state, "fusion", None)
    return np.subtract(tracked.y, tracked.v, dtype=float) if hasattr(tracked, "y") else None


def _tracking(seen: Snapshot) -> float:
    """||mean(y_{t+1} - v_t)||; NaN for a fusion without a tracker."""
    return math.nan if seen.drift is None else float(np.linalg.norm(seen.drift))


def _epoch(seen: Snapshot) -> float:
    return seen.gradients / seen.problem.samples if seen.problem.samples else math.nan


METRICS: Mapping[str, Metric] = {
    each.name: each
    for each in (
        Metric("step", "steps", "steps", format=",.0f", function=lambda seen: seen.step),
        Metric("epoch", "epochs", "epochs", format=".2f", function=_epoch),
        Metric(
            "loss", r"loss $F(\bar{x})$", "loss F(x̄)", format="#.6g", cost=Cost.mean,
            function=lambda seen: float(seen.values[0]),
        ),
        Metric(
            "grad_norm", r"gradient norm $\|\nabla F(\bar{x})\|$", "gradient norm ‖∇F(x̄)‖", log=True, cost=Cost.mean,
            function=lambda seen: math.sqrt(_squares(seen.grads[:1])[0]),
        ),
        Metric(
            "stationarity", r"stationarity $\frac{1}{n}\sum_i\|\nabla F(x^i)\|^2$", "stationarity mean ‖∇F(xⁱ)‖²",
            log=True, cost=Cost.nodes,
            function=lambda seen: float(_squares(seen.grads[1:]).mean()),
        ),
        Metric(
            "consensus", r"consensus error $\frac{1}{n}\sum_i\|x^i-\bar{x}\|^2$", "consensus error", log=True,
            function=_consensus,
        ),
        Metric("tracking", "tracking error", "tracking error", log=True, function=_tracking),
        Metric("gradients", "gradients of a node", "gradients of a node", format=",.0f",
               function=lambda seen: seen.gradients),
        Metric("rounds", "rounds of communication", "rounds of communication", format=",.0f",
               function=lambda seen: seen.rounds),
        Metric("bytes", "sent by a node, on average", "bytes sent by a node, on average", format="B",
               function=lambda seen: seen.bytes),
        Metric("seconds", "seconds", "seconds", format=".2f", function=lambda seen: seen.seconds),
        Metric("clock", "simulated seconds", "simulated seconds", format=".4g", function=lambda seen: seen.clock),
    )
}  # fmt: skip
"""The columns of every trace, in their order."""


NONZEROS = Metric(
    "nonzeros",
    "entries that are not 0",
    "entries that are not 0",
    format=",.0f",
    function=lambda seen: float(np.count_nonzero(seen.x_mean)),
)
"""How many entries of the mean model are not zero: a column of runs on composite problems."""


def own_metrics(
    given: Iterable[Metric | Callable[..., Any]], more: Sequence[Metric] = ()
) -> tuple[Metric, ...]:
    """The user's own metrics, and more: functions become metrics, and names are checked."""
    require(
        not callable(given) and not isinstance(given, Metric) and isinstance(given, Iterable),
        "metrics is not a list: give metrics=[...]",
    )
    found = [*(one if isinstance(one, Metric) else metric(one) for one in given), *more]
    names = [one.name for one in found]
    for one in found:
        require(
            one.function is not None,
            f"metric {one.name!r} has no function: make it with peer.metric(function, name)",
        )
    for name in names:
        taken = name in METRICS or name == "gap"
        require(
            not taken,
            f"metric {name!r} has the name of a column that traces or figures have: give another",
        )
        require(
            names.count(name) == 1,
            f"two metrics are called {name!r}: give one of them another name",
        )
    return tuple(replace(one, code=fingerprint(one.function)) for one in found)


def _number(value: Any) -> float:
    shape = np.shape(value)
    require(shape == (), f"the function returned an array of shape {shape}: return one number")
    return value if isinstance(value, int) and not isinstance(value, bool) else float(value)


def measure(metrics: Sequence[Metric], seen: Snapshot) -> dict[str, float]:
    """The value of each metric. An error in a user's function is raised with the metric and the step."""
    row = {}
    for one in metrics:
        try:
            assert one.function is not None
            row[one.name] = _number(one.function(seen))
        except Exception as error:
            error.add_note(f"in metric {one.name!r}, at step {seen.step}")
            if isinstance(error, TypeError) and "positional argument" in str(error):
                error.add_note(
                    "it is called with (x_mean, x, problem); with a model, if made by metric(f, model=True); with "
                    "(params, features), if given to accuracy"
                )
            raise
    return row
