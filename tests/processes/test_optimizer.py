"""The PyTorch optimizer: it runs the method itself, for any model, in processes that communicate with neighbours only.

`optimizer_worker` runs in four processes, which are started once. The tests check the results that they wrote.
"""

from __future__ import annotations

import re

import jax
import numpy as np
import optimizer_worker
import pytest
import torch
from optimizer_worker import HYBRID, NODES, RING, STEPS, P, cases
from ranks import group
from torch import nn

import peerdescent as peer
from peerdescent.engines.registry import engine_class
from peerdescent.runs.costs import Books, Costs
from peerdescent.torch import DecentralizedOptimizer
from small import assert_close, small_quadratic, states

CASES = {name: (method, network) for name, method, network in cases()}
LIMIT = 240


@pytest.fixture(scope="module")
def problem():
    return small_quadratic(NODES, P)


@pytest.fixture(scope="module")
def seen(problem, tmp_path_factory):
    """The results of four processes (NODES, ...), by name."""
    folder = tmp_path_factory.mktemp("torch")
    slopes = np.stack([problem.stochastic_grads(np.zeros(P), draw=t) for t in range(STEPS)])
    np.savez(folder / "inputs.npz", matrices=problem.data.matrix, slopes=slopes)
    with group(NODES, folder, optimizer_worker.main, folder) as started:
        codes, said = started.wait(LIMIT)
    assert all((folder / f"{rank}.npz").exists() for rank in range(NODES)), said
    ranks = [np.load(folder / f"{rank}.npz") for rank in range(NODES)]
    found = {name: np.stack([each[name] for each in ranks]) for name in ranks[0].files}
    return {**found, "codes": codes, "logs": said}


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_the_one_of_the_debug_engine(name, seen, problem):
    method, network = CASES[name]
    kept = states(method, problem, network, STEPS, x0=seen["start"], engine="debug")
    for t, state in enumerate(kept):
        assert_close(seen[f"{name} x"][:, t], state.x)


def test_the_loss_of_a_step_is_that_of_its_batch_before_it(seen, problem):
    before = np.concatenate([seen["start"][:, None], seen["gt-hsgd ring x"][:, :-1]], axis=1)
    slopes = np.stack([problem.stochastic_grads(np.zeros(P), draw=t) for t in range(STEPS)])
    expected = np.einsum("ntp,npq,ntq->nt", before, problem.data.matrix, before) / 2
    expected += np.einsum("ntp,tnp->nt", before, slopes)
    assert_close(seen["gt-hsgd ring loss"], expected)


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_rounds_times_degree_times_size(name, seen, problem):
    method, network = CASES[name]
    assert (network.degree == np.ravel(network.degree)[0]).all(), "all send as much"
    books = Books(Costs.of(method, problem, network, itemsize=8), problem, network, seed=0)
    assert (seen[f"{name} bytes"] == books.at(STEPS)[2]).all()


@pytest.mark.parametrize("name", CASES)
def test_buffers_change_once_a_step(name, seen):
    assert (seen[f"{name} calls"] == STEPS).all()


def test_all_start_from_what_rank_0_has(seen):
    names = [name.removeprefix("before ") for name in seen if name.startswith("before ")]
    assert len(names) == 9
    for name in names:
        before, after = seen[f"before {name}"], seen[f"after {name}"]
        assert np.array_equal(after, np.broadcast_to(before[0], before.shape)), name
        constant = name in ("1.weight", "1.bias", "1.running_var")  # PyTorch's initial values
        assert constant or not np.array_equal(before, after), name


def test_both_points_see_one_mask_and_one_set_of_buffers(seen):
    first, masks = seen["masks"][:, 0], seen["masks"][:, 1:]
    here, there = masks[:, ::2], masks[:, 1::2]
    assert np.array_equal(here, there)
    drawn = np.concatenate([first[:, None], here], axis=1)
    assert len(np.unique(drawn.reshape(-1, 64), axis=0)) == NODES * 6, "masks repeat"
    # With beta = 0 the two gradients cancel, so the estimate does not change: it is twice the first mask.
    assert np.array_equal(seen["estimates"], np.repeat(2.0 * first[:, None], 6, axis=1))
    assert (seen["dropped"] == 6).all()


def test_the_random_state_goes_on_as_after_one_evaluation(seen):
    assert np.array_equal(seen["drawn"], seen["expected draw"])


def test_normalisation_sees_each_batch_once(seen):
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert np.array_equal(seen[f"statistics {name}"], seen[f"plain {name}"]), name
    assert (seen["statistics num_batches_tracked"] == 8).all()


def test_the_average_is_that_of_all_processes(seen):
    names = [name.removeprefix("own ") for name in seen if name.startswith("own ")]
    assert len(names) == 9
    for name in names:
        own, averaged = seen[f"own {name}"], seen[f"averaged {name}"]
        if name in ("2.bias", "1.num_batches_tracked"):
            assert np.array_equal(own, averaged), "it is frozen, or no real number"
        else:
            assert np.ptp(own, axis=0).max() > 0
            assert_close(averaged, np.broadcast_to(own.mean(axis=0), own.shape), 1e-15)
            assert np.ptp(averaged, axis=0).max() == 0, "not alike in all processes"


def test_frozen_parameters_stay(seen):
    expected = seen["frozen"] + np.arange(NODES)[:, None]
    assert np.array_equal(seen["own 2.bias"], expected), "what the worker added, and nothing else"
    assert np.array_equal(seen["averaged 2.bias"], expected)


@pytest.mark.parametrize("name", ["d-get", "gt-hsgd", "d-adam"])
def test_a_loaded_state_goes_on_bit_for_bit(name, seen):
    assert np.array_equal(seen[f"whole {name}"], seen[f"resumed {name}"])
    assert (np.diff(seen[f"whole {name}"], axis=1) != 0).any(axis=2).all()


def test_schedules_set_the_step_size(seen, problem):
    with jax.enable_x64(True):
        machine = engine_class("debug")(HYBRID, problem, RING, 0, np.dtype("float64"))
        state = machine.start(seen["start"])
        assert_close(seen["scheduled"][:, 0], state.x)
        for t in range(1, STEPS):
            machine.method = HYBRID.replace(alpha=0.1 * 0.5 ** (t // 4))
            state = machine.advance(state, t, t + 1)
            assert_close(seen["scheduled"][:, t], state.x)


def test_a_step_size_of_0_only_mixes(seen):
    apart = seen["apart"]
    assert np.ptp(apart, axis=0).max() == NODES - 1
    for t in range(2):
        apart = RING.W @ apart
        assert_close(seen["mixed"][:, t], apart, 1e-15)


def test_other_numbers_are_in_the_group_too(seen):
    """With beta = 1, gt-hsgd is gt-dsgd."""
    assert_close(seen["beta 1"], seen["gt-dsgd ring x"])


def test_a_closure_may_call_backward_itself(seen):
    assert np.array_equal(seen["backward x"], seen["gt-hsgd ring x"][:, -1])
    assert np.array_equal(seen["backward loss"], seen["gt-hsgd ring loss"])


def test_a_step_that_fails_changes_nothing(seen):
    assert seen["unharmed"].tolist() == [[True] * 3] * NODES
    assert np.array_equal(seen["recovered"], seen["gt-hsgd ring x"][:, -1])


@pytest.mark.parametrize(
    ("name", "method"), {"one point": "gt-dsgd", "two points": "gt-hsgd"}.items()
)
def test_a_process_that_has_sent_nothing_may_try_again_alone(name, method, seen):
    assert np.array_equal(seen[f"recovered alone {name}"], seen[f"{method} ring x"][:, -1])


def test_layouts_do_not_matter(seen):
    names = [name.removeprefix("odd ") for name in seen if name.startswith("odd ")]
    for name in names:
        assert_close(seen[f"odd {name}"], seen[f"plain {name}"])
    for kind in ("plain", "odd"):
        assert np.array_equal(seen[f"{kind} unused before"], seen[f"{kind} unused.weight"])


@pytest.mark.parametrize(
    ("name", "message"),
    {
        "nodes": "the network has 6 nodes and there are 4 processes.* start torchrun with 6 processes",
        "alpha": "method is .*alpha=0.2.*alpha=0.1",
        "wrapped": "DistributedDataParallel, which averages gradients itself: give model.module",
        "group": "make a new optimizer when they change",
        "closure": r"gradient of one batch at two points.* step\(lambda: criterion\(model\(inputs\), targets\)\)",
        "number": "the closure returned a float: return the loss, a tensor",
        "rank": "the state is of rank 9, and this is rank .: every process saves and loads its own",
        "method": "the state is of gt-hsgd, and this optimizer runs d2: make it with the method of the state",
        "resumed": "rank . expected '.*step [02],.*', and rank . sent '.*step [02],",
        "loaded early": "of other parameters than the model has: make the optimizer first, then load the model's",
        "twice": "draws two samples in one step, .* use a method that draws one per step",
        "rate": "lr = nan: must be finite and not negative",
        "nested": "has a DistributedDataParallel, which averages gradients itself: give model.module",
        "around": "has a DistributedDataParallel, which averages gradients itself: .* call that in the closure",
        "gradients": r"2 parameters have gradients before the step, which would be lost.* or call zero_grad\(\) first",
        "frozen": "left was trained then, and is frozen now; .* make a new optimizer .* start='keep'",
        "frozen average": "left was trained then, and is frozen now",
        "unfrozen": "right was not trained then, and is now; .* make a new optimizer .* start='keep'",
        "replaced": r"left is another one, as load_state_dict\(..., assign=True\) makes it; load without assign",
        "shapes": r"rank 2 has another model than ranks 0, 1, 3: 1.weight \(5, 4\) where the others have 1.weight "
        r"\(2, 4\), 1.bias \(5,\) where the others have 1.bias \(2,\); make the same model in all processes",
        "shapes far behind": r"rank 0 has another model than ranks 1, 2, 3: 59.weight \(7, 3\) where the others have",
        "more layers": r"rank 3 .*: 2.weight \(3, 3\) where the others have nothing, 2.bias \(3,\) where the others "
        "have nothing; make the same",
        "frozen in one": r"rank 2 .*: 1.weight \(2, 4\) frozen where the others have 1.weight \(2, 4\), .* to train",
        "decay": "weight_decay = 0.1 in the parameter group: gt-hsgd knows only lr and beta; remove it",
        "alias": "alpha = 0.1 in the parameter group: gt-hsgd knows only lr and beta; remove it",
        "computes": "the state is of another gt-hsgd, which computes something else: make it with the method",
        "network": r"the state is of Network\(ring, n=4.*, and this optimizer has Network\(complete, n=4",
        "model": "the state is of (5 and 6|6 and 5|6) parameters, and the model has 5 to train: load the state of",
        "start": "start = 'mine': must be 'rank 0' or 'keep'",
    }.items(),
)
def test_what_cannot_work_is_refused_in_every_process(name, message, seen):
    for refusal in seen[f"refusal {name}"]:
        assert re.search(message, str(refusal)), refusal


def test_a_model_that_is_loaded_after_the_optimizer_was_made_goes_on(seen):
    """Also after the refusal of the other order, in which rank 0 alone has the parameters of its state."""
    assert np.array_equal(seen["loaded late"], seen["gt-hsgd ring x"][:, 2:5])


AVERAGE, MIX = "average_parameters", "mix, lr = 0.1, beta = 0.3"


@pytest.mark.parametrize(
    ("name", "one", "other", "alone"),
    [
        (
            "fewer steps",
            rf"step 5, .*: {AVERAGE}, 5 of torch.float64",
            f"step 6, message 0, 5 of float64: {MIX}",
            0,
        ),
        (
            "single tensor",
            rf"step 5, .*: {AVERAGE}, 64 of torch.float64",
            f"step 6, message 0, 64 of float64: {MIX}",
            0,
        ),
        ("one way", rf"step 5, .*: {AVERAGE}", "step 6, message 0, 5 of float64: mix, lr = 0.1", 0),
        ("order", rf"optimizer \d+, step 2, .*: {MIX}", rf"optimizer \d+, step 2, .*: {MIX}", 1),
        ("rate", "step 3, .* lr = 0.1", "step 3, .* lr = 0.2", 2),
    ],
)
def test_what_is_not_expected_is_an_error_that_names_both_sides(name, one, other, alone, seen):
    """The process that is alone, and its neighbours, have both sides; the one opposite to it learns from them."""
    for rank, said in enumerate(seen[f"crossed {name}"]):
        assert said.startswith("ValueError: rank "), said
        found = re.search(r"rank (\d) expected '(.*?)', and rank (\d) sent '(.*?)'(:|$)", str(said))
        assert found, said
        assert alone in (int(found[1]), int(found[3]))
        assert found[2] != found[4]
        assert any(
            re.search(a, found[2]) and re.search(b, found[4])
            for a, b in ((one, other), (other, one))
        ), said
        if rank == (alone + 2) % NODES:
            assert said.startswith(f"ValueError: rank {rank} stops in step "), said
        else:
            assert int(found[1]) == rank, said
            assert "all processes must make the same steps and calls, in the same order" in said


def test_what_has_stopped_does_not_go_on(seen):
    for said in seen["crossed again"]:
        assert re.search(
            r"ValueError: optimizer \d+ has stopped, so make a new one; the cause was: rank \d",
            str(said),
        )


def test_an_error_that_nobody_catches_ends_all_processes(seen):
    assert seen["codes"] == [1] * NODES
    for rank, text in enumerate(seen["logs"]):
        assert re.search(
            rf"ValueError: rank {rank} (expected|stops in step 6, since rank \d expected) .* sent",
            text,
        ), text


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_what_is_not_finite_is_never_mixed(kind, seen):
    count = {"loss": "1 of 1", "gradient": "5 of 5"}[kind]
    cause = f"rank 1: {count} numbers of the {kind} are not finite in step 3, and nobody has mixed them: look at"
    for rank, said in enumerate(seen[f"not finite {kind}"]):
        assert said.startswith(
            f"NotFinite: {'' if rank == 1 else f'rank {rank} stops in step 3, since '}{cause}"
        ), said
    assert seen[f"same {kind}"].all(), "parameters, buffers and random state"


def test_a_new_optimizer_may_keep_what_each_process_has(seen):
    kept, before = seen["kept"][:, 0], seen["kept"][:, 1]
    assert np.array_equal(kept, before)
    assert np.ptp(kept, axis=0).min() > 0
    assert np.isfinite(seen["after all"]).all()


def test_small_steps_of_parameters_in_half_precision_add_up(seen):
    """Each of 64 steps is 1/64 of what bfloat16 can tell from 1."""
    assert (seen["half after 1"] == 1).all()
    assert np.array_equal(seen["half after 64"], np.full((NODES, 3), 1 - 2.0**-7, "f4")), seen[
        "half after 64"
    ]
    assert (seen["half resumed"] == 1 - 2.0**-7).all(), "the state has what was rounded away"


@pytest.mark.parametrize("name", ["gt-dsgd", "d2", "choco-sgd"])
def test_large_messages_arrive_in_pieces(name, seen):
    assert np.array_equal(seen[f"pieces {name}"], seen[f"whole {name}"])
    for way in ("pieces", "whole"):
        shelves = seen[f"shelves {way} {name}"]
        assert (shelves[:, 1:] == shelves[:, 1:2]).all(), "memory for messages is used again"
    assert np.ptp(seen[f"pieces {name}"], axis=0).max() > 0


def test_schedulers_may_keep_their_own_numbers_in_the_group(seen):
    assert (np.diff(seen["cycled"], axis=1) != 0).any(axis=2).all()


def test_only_a_lost_connection_is_a_lost_process(seen):
    assert (seen["broken"] == "RuntimeError: Invalid scalar type").all()


@pytest.fixture(scope="module")
def sharded():
    """Models that are divided over processes, by the name of what does it."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    # It wants a GPU to be made, but not to be recognised.
    first = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(first)
    first.inner = nn.Linear(2, 2)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    mesh = init_device_mesh("cpu", (1,))
    yield {
        "FullyShardedDataParallel": first,
        "FSDPModule": fully_shard(nn.Linear(2, 2), mesh=mesh),
        "DTensor": Mixed(distribute_tensor(torch.ones(2), mesh)),
    }
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "FSDPModule", "DTensor"])
def test_what_divides_parameters_is_refused_by_name(name, sharded):
    model = nn.Sequential(nn.ReLU(), nn.Sequential(sharded[name]))
    with pytest.raises(
        ValueError, match=f"the model has a {name}, which divides .* over the processes.*: give"
    ):
        DecentralizedOptimizer(model, HYBRID, peer.Network([[1.0]]))


class Mixed(nn.Module):
    def __init__(self, *tensors):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(tensor) for tensor in tensors])


BY_HAND = peer.Method(lambda x, net: x, lambda x, net: x, "by-hand")


@pytest.mark.parametrize(
    ("model", "method", "network", "message"),
    [
        (
            Mixed(torch.ones(2), torch.ones(2).double()),
            HYBRID,
            RING,
            r"of float32 and float64: .* model\.to\(torch",
        ),
        (
            Mixed(torch.ones(2) * 1j),
            HYBRID,
            RING,
            "of complex64: all must be of one real floating type",
        ),
        (
            Mixed(torch.ones(2), torch.ones(2, device="meta")),
            HYBRID,
            RING,
            r"on cpu and meta: .* model\.to\(device\)",
        ),
        (
            Mixed(torch.ones(2, device="meta")),
            HYBRID,
            RING,
            "on meta: all must be on the CPU or on one GPU",
        ),
        (nn.ReLU(), HYBRID, RING, "no trainable parameter: set requires_grad"),
        (
            nn.Linear(2, 2).requires_grad_(False),
            HYBRID,
            RING,
            "no trainable parameter: set requires_grad",
        ),
        (
            nn.Linear(2, 2),
            peer.methods.gt_sarah(),
            RING,
            "gt-sarah takes exact local gradients.*such as d-get",
        ),
        (
            nn.Linear(2, 2),
            BY_HAND,
            RING,
            r"by-hand has no step size that a schedule could set.*peer\.compose",
        ),
        (
            nn.Linear(2, 2),
            peer.methods.d2(),
            peer.Network(peer.topology.directed_exponential(4)),
            "use gt-dsgd",
        ),
        (nn.Linear(2, 2).parameters(), HYBRID, RING, "model is a generator: give a Module"),
        (nn.Linear(2, 2), RING, HYBRID, "method is a Network: give a Method"),
        (nn.Linear(2, 2), HYBRID, peer.topology.ring(4), "network is a Graph: give a Network"),
    ],
)
def test_what_cannot_work_is_refused_before_anyone_is_asked(model, method, network, message):
    with pytest.raises(ValueError, match=message):
        DecentralizedOptimizer(model, method, network)
