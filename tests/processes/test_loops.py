"""Training loops of the PyTorch optimizer as users write them, with four processes that are started once.

`loops_worker` runs in them. Where it matters what is computed, it is computed here once more, in NumPy, node by node.
"""

from __future__ import annotations

import math
import re

import loops_worker
import numpy as np
import pytest
import torch
from loops_worker import (
    AHEAD,
    COMPRESSED,
    DECAYS,
    DIRECTED,
    DIVIDES,
    EXACT,
    GROUPED,
    LENGTHS,
    ONE_POINT,
    RATES,
    RESUMED,
    SITES,
    STEPS,
    TWO_POINTS,
    ZERO,
    build,
)
from optimizer_worker import NODES, RING, P
from ranks import group
from torch import nn

import peerdescent as peer
from peerdescent import compressors
from peerdescent.threefry import COMPRESSION, source
from peerdescent.torch import DecentralizedOptimizer
from small import assert_close, small_quadratic

LIMIT = 240
W = RING.W.toarray() if hasattr(RING.W, "toarray") else np.asarray(RING.W)


@pytest.fixture(scope="module")
def problem():
    return small_quadratic(NODES, P)


@pytest.fixture(scope="module")
def slopes(problem):
    return np.stack([problem.stochastic_grads(np.zeros(P), draw=t) for t in range(STEPS)])


@pytest.fixture(scope="module")
def seen(problem, slopes, tmp_path_factory):
    """The results of four processes (NODES, ...), by name."""
    folder = tmp_path_factory.mktemp("loops")
    np.savez(folder / "inputs.npz", matrices=problem.data.matrix, slopes=slopes)
    with group(NODES, folder, loops_worker.main, folder) as started:
        codes, said = started.wait(LIMIT)
    assert all((folder / f"{rank}.npz").exists() for rank in range(NODES)), said
    ranks = [np.load(folder / f"{rank}.npz") for rank in range(NODES)]
    found = {
        name: np.stack([each[name] for each in ranks])
        for name in ranks[0].files
        if "together" not in name
    }
    uneven = {
        name: [each[name].tolist() for each in ranks]
        for name in ranks[0].files
        if "together" in name
    }
    ends = [(folder / f"{rank}.txt").read_text() for rank in range(NODES)]
    return {**found, **uneven, "codes": codes, "logs": said, "ends": ends}


@pytest.fixture
def gradient(problem, slopes):
    """What gives the gradients (NODES, P) of batch t at points (NODES, P)."""
    return lambda x, t: np.stack(
        [problem.data.matrix[i] @ x[i] + slopes[t, i] for i in range(NODES)]
    )


@pytest.mark.parametrize("name", dict.fromkeys([*ONE_POINT, *AHEAD]))
def test_a_step_without_a_closure_is_the_one_with_it_bit_for_bit(name, seen):
    assert np.array_equal(seen[f"free {name}"], seen[f"closure {name}"])
    assert (np.diff(seen[f"free {name}"], axis=1) != 0).any(axis=2).all()
    assert seen[f"kept {name}"].all(), "as in PyTorch, gradients stay until zero_grad"


@pytest.mark.parametrize("name", dict.fromkeys([*ONE_POINT, *AHEAD]))
def test_rounds_of_known_vectors_begin_with_the_forward_pass(name, seen):
    """In the first step nobody knows yet how the program calls the model."""
    begun = seen[f"begun {name}"]
    assert not begun[:, 0].any()
    assert (begun[:, 1:] == (name in AHEAD)).all()


def test_numbers_beyond_the_end_of_a_line_are_compared_too(seen):
    assert (seen["many groups"] == "no refusal").all()
    assert all("expected 'optimizer" in str(said) for said in seen["refusal many groups"]), seen[
        "refusal many groups"
    ]


@pytest.mark.parametrize("name", TWO_POINTS)
def test_methods_that_need_two_points_say_so(name, seen):
    expected = f"{name} needs the gradient of one batch at two points, .* use step\\(closure\\), as in step\\(lambda"
    for said in seen[f"refusal {name}"]:
        assert re.search(expected, str(said)), said


def test_named_methods_are_of_one_point_or_two_or_exact(seen):
    assert {*ONE_POINT, *TWO_POINTS, *EXACT} == {*peer.methods.METHODS}
    for name in EXACT:
        assert all("takes exact local gradients" in str(said) for said in seen[f"refusal {name}"])


@pytest.mark.parametrize("name", ZERO)
def test_a_step_size_of_0_is_refused_where_something_is_divided_by_it(name, seen):
    """Schedules that warm up begin there."""
    divides = name in DIVIDES
    expected = f"lr = 0: {name} divides by its step size, so let schedules begin and end above 0"
    assert (seen[f"zero {name}"] == (expected if divides else "no refusal")).all()
    compresses = name in COMPRESSED  # each node's messages are rounded by its own draws
    assert_close(seen[f"zero x {name}"], seen["start"], 0.1 if compresses else 1e-15)


def test_a_step_before_backward_is_refused(seen):
    for name in ("no backward", "no backward since"):
        for said in seen[name]:
            assert "there is none: call loss.backward() first, or give a closure" in str(said), said
    assert np.array_equal(seen["after refusals"], seen["free dsgd"])


def test_gradients_can_be_clipped(seen):
    assert np.array_equal(seen["clipped"], seen["clipped by closure"])
    assert np.abs(seen["clipped"] - seen["free gt-dsgd"]).max() > 1e-3


def test_gradients_add_up(seen):
    """Three small batches are one large one: by backward, by the closure, and by a closure for the last of them."""
    points = seen["accumulated"]
    assert_close(points[:, :, 0], points[:, :, 1], 1e-14)
    assert np.array_equal(points[:, :, 0], points[:, :, 2])
    for said in seen["refusal lost"]:
        assert "2 parameters have gradients before the step, which would be lost" in str(said), said


def test_who_forgets_zero_grad_adds_up_as_in_pytorch(seen, gradient):
    x, total = seen["start"], 0.0
    for t in range(STEPS):
        total = total + gradient(x, t)
        x = W @ x - 0.1 * total
        assert_close(seen["never zero"][:, t], x)


def test_a_graph_from_before_a_step_is_refused_as_in_pytorch(seen):
    assert all("modified by an inplace operation" in str(said) for said in seen["stale graph"])


@pytest.mark.parametrize("kind", ["dsgd", "gt-dsgd", "dsgd clipped", "gt-dsgd clipped"])
def test_a_batch_beyond_all_numbers_is_skipped_by_all(kind, seen):
    scaled = seen[f"scaled {kind}"]
    assert np.array_equal(scaled[:, 4], scaled[:, 3]), "parameters stay"
    assert np.array_equal(np.delete(scaled, 4, axis=1), seen[f"unscaled {kind}"])
    assert (seen[f"scaled steps {kind}"] == STEPS - 1).all()
    assert seen[f"scale {kind}"].tolist() == [1024, 512, 1024, 1024]


def by_hand(name, x, alpha, decay, gradient):
    """x_{t+1} (NODES, P) for every t, by equations of the papers and loops over nodes."""
    n, points = len(x), []
    zero = np.zeros_like(x)
    m, s, y, v_before, a, c, x_before, v, u = zero, zero, zero, zero, x, zero, x, zero, zero

    def mixed(z):
        return np.stack([sum(W[i, j] * z[j] for j in range(n)) for i in range(n)])

    for t in range(STEPS):
        g = gradient(x, t)
        if name == "dsgdm":
            m = g if t == 0 else 0.9 * m + 0.1 * g
            g = m
        if name == "d-adam":
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
            g = (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(s / (1 - 0.999 ** (t + 1))) + 1e-8)
        if name == "gt-hsgd":
            v = g if t == 0 else g + (1 - 0.01) * (v - gradient(x_before, t))
            g = v
        g, now = g + decay * x, x
        if name == "dsgd":
            x = mixed(x) - alpha * g
        elif name in ("dsgdm", "d-adam"):
            x = mixed(x - alpha * g)
        elif name in ("gt-dsgd", "gt-hsgd"):
            y = mixed(y + g - v_before)
            x = mixed(x - alpha * y)
        elif name == "gt-adam":
            y = g if t == 0 else mixed(y) + g - v_before
            m, s = 0.9 * m + 0.1 * y, 0.999 * s + 0.001 * y * y
            x = mixed(x) - alpha * m / np.sqrt(s + 1e-8)
        elif name == "qg-dsgdm":
            x = mixed(x - alpha * (g + 0.9 * m))
            m = 0.9 * m + 0.1 * (now - x) / alpha
        elif name == "extra":
            x = mixed(x) - alpha * g - u
            u = u + (now - mixed(now)) / 2
        elif name == "k-gt":
            x = x - alpha * (g + c)
            if (t + 1) % 3 == 0:
                z = (a - x) / (3 * alpha)
                x, c = mixed(x), c - z + mixed(z)
                a = x
        v_before, x_before = g, now
        points.append(x)
    return np.stack(points, axis=1)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_have_step_sizes_and_weight_decays_of_their_own(name, seen, gradient):
    alpha, decay = (np.array([pair[0]] * 4 + [pair[1]]) for pair in (RATES, DECAYS))
    assert_close(seen[f"groups {name}"], by_hand(name, seen["start"], alpha, decay, gradient))


@pytest.mark.parametrize("name", GROUPED)
def test_weight_decay_is_added_to_estimates(name, seen, gradient):
    assert_close(seen[f"decay {name}"], by_hand(name, seen["start"], 0.1, 0.2, gradient))


def test_weight_decay_works_with_estimators_of_users(seen, gradient):
    """Twice the gradient and decay, and half the step size."""
    assert_close(seen["decay own"], seen["decay dsgd"])


def test_schedules_know_groups(seen):
    assert (seen["scheduled rates"] == [0.1, 0.05]).all()
    assert np.array_equal(seen["groups scheduled"], seen["groups dsgdm"])
    assert (seen["later rates"] == [0.1, 0.0125]).all()


@pytest.mark.parametrize(
    ("name", "message"),
    {
        "left out": "right is trained and in no group of params: put it into one, or freeze it",
        "betas": "beta1 = 0.5 in one group and 0.9 in another: groups may differ in lr and weight_decay only",
        "decay loaded": "the state is of another gt-momentum, which computes something else",
        "decay not loaded": "the state is of another gt-momentum, which computes something else",
        "empty": "the loader is empty, or cannot begin anew: give one that can",
        "end": "end = 'middle': must be 'shortest' or 'longest'",
        "between": "a state cannot be loaded between a forward pass and its step: make the step first",
        "late load": "changed between the forward pass and the step, .*: change them after a step",
        "late replace": "changed between the forward pass and the step, .*: change them after a step",
        "late fill": "changed between the forward pass and the step, .*: change them after a step",
        "assign": r"left is another one, as load_state_dict\(..., assign=True\) makes it; load without assign, .* "
        "or make a new optimizer in all processes, with start='keep'",
        "single": r"was float64 \(2, 2\) on cpu when the optimizer was made, and is float32 \(2, 2\) on cpu now",
        "around": r"a DistributedDataParallel, which averages gradients itself: .* call peerdescent.torch.alone\(\)",
        "compresses": "choco-sgd compresses whole vectors, and each process of a site has a piece",
    }.items(),
)
def test_what_cannot_work_is_refused_in_every_process(name, message, seen):
    for said in seen[f"refusal {name}"]:
        assert re.search(message, str(said)), said


def test_messages_of_half_the_bytes_keep_the_mean(seen):
    full = seen["rounded bytes None"]
    assert (full == 2 * STEPS * 2 * 4 * P).all(), (
        "two rounds a step, two neighbours, four bytes a number"
    )
    for kind in ("torch.bfloat16", "torch.float16"):
        assert (seen[f"rounded bytes {kind}"] * 2 == full).all()
        y, v = seen[f"rounded tracker {kind}"].mean(axis=0)
        assert np.abs(y - v).max() <= 1e-6 * np.abs(v).max()
        apart = np.abs(seen[f"rounded {kind}"] - seen["rounded None"]).max()
        assert 1e-5 < apart < 0.1, "they are rounded, and do not matter much"


def test_rounded_messages_keep_the_sum_where_only_columns_have_it(seen):
    degrees = dict(DIRECTED.in_degree), dict(DIRECTED.out_degree)
    assert degrees[0] != degrees[1], "else rows and columns are alike"
    y, v = seen["pushed tracker"].sum(axis=0)
    assert_close(y, v, 1e-12)


def test_rounded_disagreements_cancel(seen):
    assert np.abs(seen["rounded dual"]).max() > 0.01
    assert np.abs(seen["rounded dual"].sum(axis=0)).max() < 1e-12


def test_what_rounds_to_infinity_is_never_mixed(seen):
    cause = "rank 2: 4 of 5 numbers of the vector to mix, as float16, are not finite in step 0"
    assert all(
        said.startswith("NotFinite: ") and cause in said for said in map(str, seen["too large"])
    )


@pytest.mark.parametrize("name", ["dsgd", "d-adam"])
def test_parameters_in_half_precision_have_a_master_in_single(name, seen):
    """The gradient does not depend on x, so nothing but the parameters themselves is rounded."""
    x, target = seen[f"half start {name}"].astype("f8"), seen[f"half target {name}"].astype("f8")
    zero = np.zeros_like(x)
    m, s = zero, zero
    for t in range(STEPS):
        v = target
        if name == "d-adam":
            m, s = 0.9 * m + 0.1 * v, 0.999 * s + 0.001 * v * v
            v = (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(s / (1 - 0.999 ** (t + 1))) + 1e-8)
        v = v + 0.25 * x
        x = W @ x - 2.0**-10 * v if name == "dsgd" else W @ (x - 2.0**-10 * v)
    assert_close(seen[f"half master {name}"], x, 1e-6)
    rounded = torch.from_numpy(seen[f"half master {name}"]).to(torch.bfloat16).float().numpy()
    assert np.array_equal(seen[f"half {name}"], rounded)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_messages_are_counted_as_they_are_packed(name, seen):
    p = 20 * 10 + 10
    draw = source(np, 0, 0, COMPRESSION, 0).of(np.array([0]))
    size = (
        compressors.parse(COMPRESSED[name])
        .encode(np.random.default_rng(0).normal(size=p).astype("f4"), draw)
        .nbytes
    )
    assert size < 4 * p / 3
    rounds = STEPS if name == "choco-sgd" else 2 * STEPS - 1
    assert (seen[f"compressed {name}"] == rounds * 2 * size).all()


@pytest.mark.parametrize(("name", "rounds"), {"k-gt": 2, "led": 1}.items())
def test_local_steps_send_nothing(name, rounds, seen):
    """Every third step communicates: led one vector, k-gt that and its correction."""
    expected = [t // 3 * rounds * 2 * 8 * P for t in range(STEPS + 1)]
    assert (seen[f"rare {name}"] == expected).all()


def test_loaders_of_different_lengths_end_together(seen):
    assert seen["together shortest"] == [[0, 1, 2] * 2] * NODES
    assert seen["together longest"] == [
        [k % length for k in range(max(LENGTHS))] * 2 for length in LENGTHS
    ]
    assert seen["together steps"] == [2 * (3 + 5)] * NODES


@pytest.mark.parametrize("name", RESUMED)
def test_a_state_from_the_middle_goes_on_bit_for_bit(name, seen):
    assert np.array_equal(seen[f"whole {name}"], seen[f"resumed {name}"])
    if name in ONE_POINT or name in AHEAD:
        assert np.array_equal(seen[f"whole {name}"], seen[f"free {name}"][:, 4:])


@pytest.mark.parametrize("name", ["load", "replace", "fill", "fill data"])
def test_parameters_that_others_change_after_a_step_are_seen(name, seen, gradient):
    x = np.repeat(1.0 + np.arange(NODES)[:, None], P, axis=1)
    assert_close(seen[f"changed {name}"], W @ x - 0.1 * gradient(x, 2))


def test_copies_of_a_model_have_no_part_in_its_optimizer(seen):
    assert seen["copies begin nothing"].all()
    assert np.array_equal(seen["beside copies"], seen["free dsgd"][:, 2:])
    assert seen["hooks"].tolist() == [[1, 1, 1]] * NODES, (
        "a new optimizer takes the place of an earlier one"
    )


def test_parameters_have_storages_of_their_own(seen):
    """Else safetensors, and what uses it, would take them for copies of each other and store one of them."""
    assert seen["storages"].all()
    assert seen["storages fit"].all()


def test_layouts_do_not_matter(seen):
    for kind in ("plain", "channels last"):
        assert seen[f"layout order {kind}"].all()
    assert_close(seen["layout channels last"], seen["layout plain"], 1e-10)


def test_tied_and_frozen_parameters(seen):
    assert np.array_equal(seen["tied True"], seen["tied False"])
    assert (seen["tied True"][:, 1] == 1).all(), "frozen"
    assert (seen["tied unused True"] == 1).all(), "without a gradient"
    for tied in (True, False):
        first, second = seen[f"tied average {tied}"][0]
        assert np.array_equal(first, second)
        assert_close(first, seen[f"tied {tied}"][:, 0].mean(axis=0), 1e-15)


def test_forward_passes_that_train_nothing_disturb_nobody(seen):
    assert np.array_equal(seen["validated"], seen["free dsgd"])
    assert seen["validated quietly"].all()


def test_what_was_refused_once_can_go_on(seen):
    assert (seen["after around"] == "no refusal").all()


@pytest.mark.parametrize("name", SITES)
def test_a_site_of_several_processes_is_one_node_with_their_batches(name, seen):
    site, alone = seen[f"site {name}"], seen[f"site alone {name}"]
    assert_close(site, alone)
    assert np.array_equal(site[::2], site[1::2]), "processes of a site have the same parameters"
    assert np.abs(site[0] - site[2]).max() > 1e-6, "sites do not"
    p = site.shape[1]
    assert p % 2 == ("odd" in name), "at an odd number, one number of a piece is of no parameter"
    pieces, whole = seen[f"site bytes {name}"].T
    assert (pieces * p == whole * math.ceil(p / 2)).all()


def test_the_state_of_a_site_goes_on_bit_for_bit(seen):
    assert np.array_equal(seen["site whole"], seen["site resumed"])
    for rank, said in enumerate(seen["refusal piece"]):
        site, piece = rank // 2, rank % 2
        expected = f"the state is of rank {site}, piece 1, and this is rank {site}, piece 0: every process saves"
        assert (expected in str(said)) if piece == 0 else said == "no refusal", said


def test_other_parameters_in_one_process_are_refused_in_all_sites(seen):
    assert all(
        "the state is of other parameters than the model" in str(said)
        for said in seen["refusal site state"]
    )


def test_loaders_of_a_site_end_together(seen):
    assert seen["site together"] == [[3, 5]] * NODES


def test_the_average_of_sites_is_that_of_all(seen):
    whole = seen["site resumed"]
    assert_close(seen["site average"], np.broadcast_to(whole.mean(axis=0), whole.shape), 1e-14)


def test_a_site_skips_a_batch_beyond_all_numbers(seen):
    assert (seen["site steps"] == 2).all()


def test_a_process_that_ends_before_the_others_is_named_with_what_may_have_happened(seen):
    assert seen["ends"][2] == "no error"
    for rank in (0, 1, 3):
        assert re.match(
            r"PeerLost: rank \d: rank \d is gone, in step [23]; it may have failed",
            seen["ends"][rank],
        )
        assert "fewer batches than the others: where loaders differ" in seen["ends"][rank]
        assert "iterate over optimizer.together(loader)" in seen["ends"][rank]
    assert all("rank 2 is gone" in seen["ends"][rank] for rank in (1, 3))


def test_a_forward_pass_at_the_end_does_not_hold_up_the_exit(seen):
    assert seen["codes"] == [0] * NODES, seen["logs"]


@pytest.fixture
def single_process():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_trains_as_any_other(when, single_process):
    """Compiled before the optimizer is made, or after; without a break of its graph."""
    rows = torch.randn(STEPS, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def trained(compiles):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True) if compiles else model
        given = compiled if when == "before" else model
        optimizer = DecentralizedOptimizer(given, build("dsgd"), peer.Network([[1.0]]))
        for batch in rows:
            optimizer.zero_grad()
            (compiled(batch) - batch[:, :1]).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()

    torch.compiler.reset()
    assert_close(trained(True), trained(False), 1e-14)
