"""Samples from Python iterators on the host, one for each node: any stream that no JAX function can draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peerdescent.errors import require
from peerdescent.problems.custom import Averaged, check_mean, flattened
from peerdescent.problems.definition import digest
from peerdescent.problems.problem import Problem


@dataclass(frozen=True)
class Form:
    """The form of rows: the tree of their arrays, and the shape and type of a row in each.

    A type is "f" for floating-point numbers, "i" for integers with a sign, or the name of another
    one.
    """

    structure: Any
    rows: tuple[tuple[tuple[int, ...], str], ...]

    @staticmethod
    def of(item: Any, what: str) -> tuple[Form, list[np.ndarray]]:
        """The form of an item with arrays (k, ...), and these arrays."""
        leaves, structure = jax.tree.flatten(_tupled(item))
        arrays = [np.array(leaf) for leaf in leaves]  # copies: an iterator may use its memory again
        lengths = {a.shape[:1] for a in arrays}
        require(
            len(lengths) == 1
            and lengths != {()}
            and lengths != {(0,)}
            and all(a.dtype.kind in "biuf" for a in arrays),
            f"{what} has arrays of shapes {[a.shape for a in arrays]} and types {[str(a.dtype) for a in arrays]}: give "
            "numbers, with the same number of rows first in every array; one row is an array of shape (1, ...)",
        )
        kinds = [a.dtype.kind if a.dtype.kind in "if" else a.dtype.name for a in arrays]
        return Form(
            structure, tuple((a.shape[1:], kind) for a, kind in zip(arrays, kinds, strict=True))
        ), arrays


def _tupled(item: Any) -> Any:
    """The same with tuples for lists: data loaders yield lists of what was a tuple."""
    if isinstance(item, dict):
        return {name: _tupled(part) for name, part in item.items()}
    return tuple(map(_tupled, item)) if type(item) in (list, tuple) else item


class Source:
    """Where the rows of one node come from: a function that returns iterators, an iterable, or one iterator."""

    def __init__(self, given: Any, node: int) -> None:
        self.node = node
        self.is_single = not callable(given) and isinstance(given, Iterator)
        known = callable(given) or isinstance(given, Iterable)
        require(
            known,
            f"node {node} has a {type(given).__name__}: give an iterable, or a function that returns one",
        )
        self.given, self.begun = given, False
        self.form, self.first, items = self._new()
        self.peeked: Iterator[Any] | None = items

    def begin(self) -> Iterator[Any]:
        """The items from the first on."""
        require(
            not (self.begun and self.is_single),
            f"the iterator of node {self.node} has been read already, by another run: give a function that returns a "
            "new one",
        )
        items, self.peeked, self.begun = self.peeked, None, True
        if items is None:
            _, first, items = self._new()
            require(
                digest(first) == digest(self.first),
                f"the first item of node {self.node} has changed: every run reads the same rows from the beginning, so "
                "give a function that returns a new iterator with them; give a shuffle a seed",
            )
        return items

    def _new(self) -> tuple[Form, list[np.ndarray], Iterator[Any]]:
        """The form and the arrays of the first item, and the items from that one on."""
        self.items = items = iter(self.given() if callable(self.given) else self.given)
        try:
            first = next(items)
        except StopIteration:
            raise ValueError(
                f"the iterator of node {self.node} has no items: give one that has"
            ) from None
        except ValueError as error:
            require(
                "already executing" not in str(error),
                f"the iterator of node {self.node} is read by another run: give a function that returns a new iterator",
            )
            raise
        return *Form.of(first, f"the first item of node {self.node}"), chain([first], items)


@dataclass(frozen=True)
class Fed:
    """The oracle of a stream from the host: samples are rows that an engine has read, and F is that of test rows."""

    value_and_grad: Averaged
    form: Form
    finite: bool = False

    def blank(self, batch: int) -> Any:
        """A sample of zeros, for its form."""
        kinds = {"f": float, "i": int}
        leaves = [
            jnp.zeros((batch, *shape), kinds.get(kind, kind)) for shape, kind in self.form.rows
        ]
        return jax.tree.unflatten(self.form.structure, leaves)

    def draw(self, key: jax.Array, data: Any, batch: int) -> Any:
        """Refused: the next sample is known to the iterators alone."""
        raise ValueError(
            "samples come from iterators, and can only be read in a run, by engine stacked or debug"
        )

    def grad(self, x: Any, sample: Any, data: Any) -> Any:
        """The gradient of the loss of those rows."""
        return self.value_and_grad(x, sample, None, ())[1]

    def exact(self, x: Any, data: Any) -> tuple[jax.Array, Any]:
        """The loss of the test rows, and its gradient."""
        return self.value_and_grad(x, data, None, ())


def stream(
    function: Callable[[Any, Any], Any],
    params: Any,
    iterators: Sequence[Any],
    test: Any,
    name: str | None = None,
) -> Problem:
    """A problem whose samples come from Python iterators, one for each node: files, queues, simulators, data loaders.

    f_i(x) = E loss(x, xi_i), where the xi_i are what node i reads. A step takes the next rows of
    every node, as many as its batch; a method with two gradients on one sample takes both on the
    same rows. Rows are read ahead in a thread, while the steps before are computed. F cannot be
    computed, since nobody has the stream: losses and gradients in records are those of the `test`
    rows, which you hold out.

    Args:
        function: A JAX function of parameters and a batch, which has the form of an item. It
            returns the mean over the batch of the losses of its rows.
        params: The initial parameters, a pytree of floating-point arrays.
        iterators: For each node a function that returns a new iterator, or an iterable, such as a
            list or a `DataLoader` of PyTorch: every run reads it from the beginning, and is refused
            if the first item has changed, as by a shuffle without a seed. A single iterator serves
            for one run. Items are pytrees of arrays (k, ...) with k rows, of any k, and are cut
            into batches. Iterators share no state.
        test: Rows in one pytree of arrays (m, ...), of the form of an item. Up to nodes - 1 of them
            are left out.
        name: The problem's name; by default the function's.

    Returns:
        The problem. It has no epochs, so runs need `steps`. Engines `stacked` and `debug` run it.

    >>> def rows(node):
    ...     rng = np.random.default_rng(node)
    ...     while True:
    ...         a = rng.normal(size=(16, 2))
    ...         yield a, a @ [1.0, 2.0]
    >>> def squared(w, batch):
    ...     return jnp.mean((batch[0] @ w - batch[1]) ** 2) / 2
    >>> import peerdescent as peer
    >>> problem = stream(squared, np.zeros(2), [lambda node=node: rows(node) for node in range(4)], next(rows(9)))
    >>> network = peer.Network(peer.topology.ring(4))
    >>> trace = peer.run(peer.methods.gt_hsgd(alpha=0.2, beta=0.1), problem, network, steps=300)
    >>> trace.x_mean.round(2).tolist()
    [1.0, 2.0]
    """
    given = isinstance(iterators, Sequence) and len(iterators) > 0
    require(given, f"iterators is a {type(iterators).__name__}: give a list with one for each node")
    sources = tuple(Source(one, node) for node, one in enumerate(iterators))
    form, nodes = sources[0].form, len(sources)
    for source in sources[1:]:
        other = next(one for one in sources if one.items is source.items)
        require(
            other is source,
            f"nodes {other.node} and {source.node} have the same {type(source.items).__name__}, and would take each "
            "other's rows: give each an iterator of its own, or a function that returns a new one",
        )
        check_form(source.form, form, f"the first item of node {source.node}")
    _warn_of_one(sources)
    own, arrays = Form.of(test, "test")
    check_form(own, form, "test")
    m = len(arrays[0]) // nodes
    require(
        m > 0,
        f"test has {len(arrays[0])} rows for {nodes} nodes, which evaluate them together: give more",
    )
    start, unflatten = flattened(params)
    held = jax.tree.unflatten(
        form.structure, [np.array(a[: nodes * m]).reshape(nodes, m, *a.shape[1:]) for a in arrays]
    )
    check_mean(function, unflatten, start, held)
    return Problem(
        name=name or str(getattr(function, "__name__", "stream")),
        oracle=Fed(Averaged(function, unflatten).now(), form),
        data=held,
        nodes=nodes,
        dimension=start.size,
        start=start,
        unflatten=unflatten,
        parts=unflatten.sizes,
        streams=sources,
        about={
            "first samples": digest([source.first for source in sources]),
            "test rows": digest(held),
        },
    )


def _warn_of_one(sources: Sequence[Source]) -> None:
    """Warn of nodes that begin with the same rows: most likely they read one stream."""
    begins: dict[str, int] = {}
    for source in sources:
        other = begins.setdefault(digest(source.first), source.node)
        if other != source.node:
            warnings.warn(
                f"nodes {other} and {source.node} begin with the same rows, as if they read one stream. A lambda in a "
                "loop sees the loop's last value: write lambda node=node: rows(node)",
                stacklevel=3,
            )
            return


def check_form(found: Form, form: Form, what: str) -> None:
    """Refuse rows of another form, and say which array differs."""
    if found == form:
        return
    first, rule = "the first item of node 0", "all rows must have one form"
    shapes, known = (
        jax.tree.unflatten(one.structure, [shape for shape, _ in one.rows]) for one in (found, form)
    )
    same = found.structure == form.structure
    require(same, f"{what} has rows of shapes {shapes}, and {first} of {known}: {rule}")
    words: dict[Any, str] = {"f": "floating-point numbers", "i": "integers with a sign"}
    paths = jax.tree.leaves_with_path(jax.tree.unflatten(form.structure, range(len(form.rows))))
    for (path, _), row, other in zip(paths, found.rows, form.rows, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        where = f"{name!r} of {what}" if name else what
        for kind, here, there in zip(("rows of shape", "values of type"), row, other, strict=True):
            text = f"{where} has {kind} {words.get(here, here)}, and {words.get(there, there)} in {first}: {rule}"
            require(here == there, text)
