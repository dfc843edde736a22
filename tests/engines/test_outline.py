"""Outlines: what a method does, recorded from its own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import peerdescent as peer
from peerdescent.engines.outline import Drawn, Either, Gradient, Mix, definition, flat, outline
from peerdescent.methods.parameters import Part, switch
from peerdescent.runs.costs import Costs
from small import assert_close, small_logistic


class One(NamedTuple):
    x: object


class Two(NamedTuple):
    x: object
    more: object


def test_the_outline_of_gt_hsgd():
    found = outline(peer.methods.gt_hsgd(batch=4, initial_batch=32))
    assert found.start == [Drawn(0, 32), Gradient(0, 0, Drawn(0, 32)), Mix(0), Mix(1)]
    # One sample at x_t (leaf 0) and at x_{t-1} (leaf 1), then y and x are mixed.
    assert found.step == [
        Drawn(0, 4),
        Gradient(0, 0, Drawn(0, 4)),
        Gradient(1, 1, Drawn(0, 4)),
        Mix(0),
        Mix(1),
    ]
    assert found.rounds == (0, 1)
    assert found.requests == ((0, 4),)
    assert found.aliases == (0, 1, 2, 3, 2)
    assert found.slots == 2
    assert not found.takes_exact
    assert not found.has_numbers


def test_both_sides_of_every_share_their_numbers():
    found = outline(peer.methods.gt_sarah(period=9, batch=2))
    (either,) = [event for event in found.step if isinstance(event, Either)]
    assert either.when == (9, 0)
    assert [event.slot for event in flat(either.then) if isinstance(event, Gradient)] == [0]
    assert [event.slot for event in flat(either.otherwise) if isinstance(event, Gradient)] == [0, 1]
    assert found.requests == ((0, 2),), "a restart draws its own"
    assert found.takes_exact
    assert found.periods == [9]


def test_a_gradient_at_a_vector_of_the_same_iteration_has_no_leaf():
    ahead = peer.Method(
        lambda x, net: One(x), lambda s, net: One(s.x - net.grad(s.x + s.x, net.sample(1)))
    )
    (gradient,) = outline(ahead).gradients
    assert gradient.leaf is None


def test_leaves_that_are_equal_at_first_only_are_told_apart():
    """After iteration 0 both are x_0, but a gradient at the second is not one at the first."""

    def step(state, net):
        return Two(state.x - net.grad(state.more, net.sample(1)), state.more)

    found = outline(peer.Method(lambda x, net: Two(x, x), step))
    assert found.aliases == (0, 1)
    assert [g.leaf for g in found.gradients] == [1]


def test_numbers_in_a_state_made_by_hand_are_noticed():
    counted = peer.Method(
        lambda x, net: Two(net.mix(x), 0), lambda s, net: Two(net.mix(s.x), s.more + 1)
    )
    assert outline(counted).has_numbers


def test_other_arithmetic_is_refused():
    with pytest.raises(
        ValueError, match=r"custom does more than \+, -, \*, / and \*\* with its vectors"
    ):
        outline(peer.Method(lambda x, net: One(x), lambda s, net: One(s.x @ s.x)))


def estimating(init, step=None):
    """A method whose estimator computes v_0 and v_t by these functions."""

    @dataclass(frozen=True)
    class own(Part):
        def init(self, x, net):
            return init(x, net)

        def step(self, x, memory, net):
            return (step or init)(x, net)

    return peer.compose(own(), peer.fusions.tracking())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda v: (v**2).sum(-1), r"'vector' object has no attribute 'sum'"),
        (
            lambda v: jnp.minimum(v, 1.0),
            r"minimum requires .* got <class 'vector'> at position 0\.",
        ),
        (lambda v: jnp.linalg.norm(v), r"[^\n]*<class 'vector'>[^\n]*"),
        (lambda v: max(v, 1.0), r"'>' not supported between instances of 'float' and 'vector'"),
    ],
)
def test_more_than_arithmetic_is_told_of_inner_products(wrong, said):
    rule = r"own\*tracking does more than \+, -, \*, / and \*\* with its vectors"
    remedy = r"use net\.dot\(x, y\) for inner products and norms; minima, maxima and comparisons are not available"
    with pytest.raises(ValueError, match=rf"^{rule} \({said}\): {remedy}$"):
        outline(estimating(lambda x, net: (wrong(x), None)))


def test_smooth_clipping_by_inner_products():
    """What the guide for new estimators offers in place of a minimum: directions shorter than c."""

    def clipped(x, net, c=1e-3):
        g = net.grad(x, net.sample(4))
        return g / (1 + net.dot(g, g) / c**2) ** 0.5, None

    class Plain:
        """The verbs over NumPy: the gradient is x."""

        sample = staticmethod(lambda batch: None)
        grad = staticmethod(lambda x, sample: x)
        dot = staticmethod(lambda x, y: (x * y).sum(axis=-1, keepdims=True))

    assert outline(estimating(clipped)).verbs == {"dot"}
    for size in (1e-6, 1.0, 1e6):
        g = size * np.random.default_rng(0).normal(size=(6, 3))
        v, _ = clipped(g, Plain)
        norms = np.linalg.norm(g, axis=1)
        assert_close(np.linalg.norm(v, axis=1), norms / np.sqrt(1 + norms**2 / 1e-6), 1e-12)
        assert (np.linalg.norm(v, axis=1) <= 1e-3).all()


@pytest.mark.parametrize(
    ("init", "step", "said"),
    [
        (
            lambda x, net: net.grad(x),
            None,
            r" calls net\.grad with other arguments than it takes: write net\.grad\(x, sam",
        ),
        (
            lambda x, net: net.mix(x, 2),
            None,
            r" calls net\.mix with other arguments than it takes: write net\.mix\(x\)$",
        ),
        (
            lambda x, net: net.norm(x),
            None,
            r" uses net\.norm: unknown verb 'norm': known: chance, compress, ",
        ),
        (
            lambda x, net: None + 1,
            None,
            r" fails in its init or step: unsupported operand type\(s\) for \+: 'NoneType'",
        ),
        (
            lambda x, net: (x, None),
            lambda x, net: (x, (x, x)),
            r": the memory of its estimator is None after init and \(vector, vector\) after a step: return the same",
        ),
    ],
)
def test_other_errors_are_not_blamed_on_arithmetic(init, step, said):
    with pytest.raises(ValueError, match=rf"^own\*tracking{said}"):
        outline(estimating(init, step))


def test_another_form_of_a_state_made_by_hand():
    with pytest.raises(ValueError, match="custom: the state is"):
        outline(peer.Method(lambda x, net: One(x), lambda s, net: Two(s.x, s.x)))


def test_a_state_without_x_is_refused():
    with pytest.raises(ValueError, match="custom has a tuple without x as its state"):
        peer.run(
            peer.Method(lambda x, net: (x,), lambda s, net: s), small_logistic(), RING, steps=2
        )


@pytest.mark.parametrize("batch", [1.5, 0])
def test_a_sample_of_no_whole_size_is_refused(batch):
    with pytest.raises(ValueError, match="sample of"):
        peer.run(
            by_hand(lambda x, net: x - net.grad(x, net.sample(batch))),
            small_logistic(),
            RING,
            steps=2,
        )


def test_a_plain_number_that_becomes_one_a_node_is_refused_with_a_way_out():
    def step(state, net):
        return Two(*net.push(state.x - 0.1 * net.grad(state.x, net.sample(1)), state.more))

    with pytest.raises(ValueError, match="custom: its state has a plain number"):
        peer.run(peer.Method(lambda x, net: Two(x, 1.0), step), small_logistic(), RING, steps=3)
    fine = peer.Method(lambda x, net: Two(x, 1 + 0 * net.dot(x, x)), step)
    assert peer.run(fine, small_logistic(), RING, steps=3).status == "done"


RATES = np.linspace(0.1, 0.6, 6)[:, None]
SLOW = np.array(0.5)
RING = peer.Network(peer.topology.ring(6))


def by_hand(moved, name="mine"):
    """A method of two functions, both of which compute the next iterate by `moved`."""
    return peer.Method(lambda x, net: One(moved(x, net)), lambda s, net: One(moved(s.x, net)), name)


def with_rates(alpha=1.0):
    """Every node has a step size of its own, an array (n, 1)."""
    return by_hand(lambda x, net: net.mix(x - RATES * (alpha * net.grad(x, net.sample(2)))))


@dataclass(frozen=True)
class preconditioned(Part):
    """A part that holds an array (p,)."""

    alike: bool = switch(True)

    def init(self, x, net):
        return self.step(x, None, net)

    def step(self, x, memory, net):
        return SLOW * (np.linspace(0.5, 1.5, 5) * net.grad(x, net.sample(2))), None


@pytest.mark.parametrize("precision", [32, 64])
def test_methods_that_hold_arrays_do_the_same_everywhere(precision):
    """In a run, node by node, for several seeds, in a sweep and in tuning; and after runs in the other precision."""
    problem, close = small_logistic(), {32: 1e-5, 64: 1e-12}[precision]
    options = {"steps": 30, "precision": precision}
    peer.run(with_rates(), problem, RING, steps=2, precision=96 - precision)
    runs = [
        [peer.run(with_rates(a), problem, RING, seed=s, **options) for s in (0, 1)]
        for a in (1.0, 2.0)
    ]
    expected = [[trace.table["loss"].iloc[-1] for trace in seeds] for seeds in runs]
    slow = peer.run(with_rates(), problem, RING, engine="debug", **options)
    assert_close(slow.x, runs[0][0].x, close)
    assert slow.x.dtype == runs[0][0].x.dtype
    several = peer.run(with_rates(), problem, RING, seed=[0, 1], **options)
    assert_close([trace.table["loss"].iloc[-1] for trace in several], expected[0], close)
    table = peer.sweep(with_rates, {"alpha": [1.0, 2.0]}, problem, RING, seed=[0, 1], **options)
    assert_close(table["loss"].to_numpy().reshape(2, 2), expected, close)
    method = peer.compose(preconditioned(), peer.fusions.consensus())
    for bits in (64, 32):
        assert peer.run(method, problem, RING, steps=3, precision=bits).status == "done", (
            "an array without axes"
        )
    found = peer.tune(
        lambda alpha: method.replace(alpha=alpha),
        problem,
        RING,
        grid={"alpha": [0.5, 2.0]},
        epochs=5,
    )
    for row in found.table.to_dict("records"):
        trace = peer.run(
            method.replace(alpha=row["alpha"]), problem, RING, epochs=5, seed=row["seed"]
        )
        assert_close(row["loss"], trace.table["loss"].iloc[-1], 1e-5)


@pytest.mark.parametrize("verb", ["mix", "disagree", "push"])
def test_a_number_of_each_node_crosses_as_one_number(verb):
    """Also a root, a ratio, or what a state has kept of it; all engines compute the same, and the clock follows."""

    def moved(x, net):
        g = net.grad(x, net.sample(1))
        length = (net.dot(g, g) + 1e-9) ** 0.5
        return net.mix(x - 0.1 * g / (1 + getattr(net, verb)(2.0 * length / 3) ** 2))

    problem, clock = small_logistic(), peer.clock(bandwidth=1.0)
    options = {"steps": 4, "precision": 64, "clock": clock}
    fast, slow = (
        peer.run(by_hand(moved), problem, RING, engine=e, **options) for e in ("stacked", "debug")
    )
    assert_close(fast.x, slow.x)
    for trace in (fast, slow):
        assert trace.table["rounds"].iloc[-1] == 4 * 2
        assert trace.table["bytes"].iloc[-1] == 4 * 2 * 8 * (problem.dimension + 1)
        assert trace.table["clock"].iloc[-1] == pytest.approx(4 * 8 * (problem.dimension + 1))


def test_a_number_times_an_array_with_one_a_node_is_a_number():
    def moved(x, net):
        return x - 0.1 * net.grad(x, net.sample(1)) / (1 + net.mix(RATES * net.dot(x, x)))

    costs = Costs.of(by_hand(moved), small_logistic(), RING)
    assert costs.sent([1, 2]).tolist() == [2 * 4, 2 * 2 * 4]


def test_a_number_that_a_state_keeps_is_no_vector():
    def init(x, net):
        return Two(net.mix(x), net.dot(x, x))

    def step(s, net):
        return Two(net.mix(s.x) - 0.1 * net.grad(s.x, net.sample(1)), net.mix(s.more))

    costs = Costs.of(peer.Method(init, step, "kept"), small_logistic(), RING)
    assert costs.sent([1, 2]).tolist() == [2 * 5 * 4, 2 * (5 + 5 + 1) * 4]


class Delayed(NamedTuple):
    x: object
    a: object
    b: object
    c: object
    d: object


def test_leaves_that_part_two_iterations_later_are_told_apart():
    """After iteration 0 all four memories are v_0; a and b are equal after iteration 1 too, and then no more."""

    def init(x, net):
        v = net.grad(x, net.sample(1))
        return Delayed(net.mix(x) - 0.1 * v, v, v, v, v)

    def step(s, net):
        c, d = net.grad(s.x, net.sample(1)), net.grad(s.x, net.sample(1))
        return Delayed(net.mix(s.x) - 0.1 * (2 * s.a - s.b), s.c, s.d, c, d)

    method, network = peer.Method(init, step, "delayed"), peer.Network(peer.topology.ring(6))
    assert outline(method).aliases == (0, 1, 2, 3, 4)
    fast, slow = (
        peer.run(
            method, small_logistic(), network, steps=8, precision=64, record=1, engine=engine
        ).x
        for engine in ("stacked", "debug")
    )
    assert_close(fast, slow)


def part(step, empty=(), **fields):
    """An estimator of a user whose step is a function of (self, x, memory, net)."""
    made = type(
        "mine", (Part,), {"__annotations__": dict.fromkeys(fields, float), **fields, "step": step}
    )
    made.init = lambda self, x, net: (net.grad(x, net.sample(1)), empty)
    return dataclass(frozen=True)(made)


def plain(self, x, memory, net):
    return net.grad(x, net.sample(1)), ()


def in_place(self, x, memory, net):
    g = net.grad(x, net.sample(1))
    g -= 0.1 * x
    return g, None


def growing(self, x, memory, net):
    g = net.grad(x, net.sample(1))
    m = g if memory is None else 0.9 * memory + g
    return m, m


def fractional(self, x, memory, net):
    return net.every(
        2.5, lambda: net.grad(x, net.sample(9)), lambda: net.grad(x, net.sample(1))
    ), None


def uneven(self, x, memory, net):
    return net.every(2, lambda: net.grad(x, net.sample(9)), lambda: (x, x)), None


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (in_place, "changes a vector in place, as in x [+]= y: write x = x [+] y"),
        (growing, "the memory of its estimator is None after init and vector after a step"),
        (fractional, "a period of 2.5: declare it with count"),
        (uneven, "two branches of an every return values of different forms"),
    ],
)
def test_what_engines_would_run_differently_is_refused(step, message):
    with pytest.raises(ValueError, match=message):
        outline(peer.compose(part(step, None)(), peer.fusions.consensus()))


def test_a_definition_is_what_a_method_computes():
    def of(step):
        return definition(peer.compose(part(step)(), peer.fusions.consensus(), "same name"))

    def scaled(self, x, memory, net):
        return FACTOR * net.grad(x, net.sample(1)), ()

    assert of(plain) == of(plain)
    assert of(plain) == definition(peer.methods.dsgd()), "another name for the same"
    assert of(plain) != of(scaled)
    before = of(scaled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "FACTOR", 3.0)
        assert of(scaled) != before, "a number from around the function"
    assert definition(peer.methods.gt_hsgd(beta=0.1)) == definition(peer.methods.gt_hsgd(beta=0.2))
    assert definition(peer.methods.gt_hsgd(batch=1)) != definition(peer.methods.gt_hsgd(batch=2))
    scaled_by = [
        peer.Method(lambda x, net, a=a: One(net.mix(a * x)), lambda s, net: s) for a in (0.1, 0.2)
    ]
    assert definition(scaled_by[0]) != definition(scaled_by[1])


FACTOR = 2.0


def test_constant_vectors_of_numpy_are_part_of_the_definition():
    def weighted(*weights):
        values = np.array(weights)
        return definition(
            peer.Method(lambda x, net: One(net.mix(values * x)), lambda s, net: One(values + s.x))
        )

    assert weighted(1.0, 2.0) == weighted(1.0, 2.0)
    assert weighted(1.0, 2.0) != weighted(1.0, 3.0)
