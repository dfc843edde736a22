"""Training loops of Accelerate, Transformers and Lightning, with processes that torchrun starts once.

`libraries_program` runs in them. Each library is alone in its process, and makes the steps of the same loop by hand.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from children import SOURCE, TESTS, free_port, run
from small import LONG

NODES, LIMIT = 4 if LONG else 2, 280
LIBRARIES = ("accelerate", "transformers", "lightning") if LONG else ("accelerate",)
PROGRAM = Path(__file__).with_name("libraries_program.py")
LOOPS = [
    "accelerate",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            "transformers",
            "lightning gt-dsgd 1",
            "lightning gt-dsgd 2",
            "lightning gt-hsgd 1",
        )
    ),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The results of all processes (NODES, ...), by name."""
    folder = tmp_path_factory.mktemp("libraries")
    np.savez(
        folder / "digits.npz", *load_digits(return_X_y=True)
    )  # each process would import scikit-learn
    options = [
        "--nproc-per-node",
        NODES,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
    ]
    quiet = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "PEERDESCENT_TIMEOUT": "60",
    }
    # Transformers would take the folder of tests for data sets for a library.
    paths = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(TESTS)
    ]
    quiet["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *paths])
    command = [sys.executable, "-m", "torch.distributed.run", *options, PROGRAM, folder, *LIBRARIES]
    ended = run(command, LIMIT, env=os.environ | quiet)
    assert ended.returncode == 0, ended.stderr[-4000:]
    ranks = [np.load(folder / f"{rank}.npz") for rank in range(NODES)]
    return {name: np.stack([each[name] for each in ranks]) for name in ranks[0].files}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_a_library_is_the_one_by_hand_bit_for_bit(name, seen):
    assert (seen[f"{name} processes"] == 1).all(), "it knows nothing of the others"
    assert np.array_equal(seen[f"{name} x"], seen[f"{name} x by hand"])
    logged = {} if name != "transformers" else {"atol": 1e-3}  # it rounds what it logs
    assert np.allclose(
        seen[f"{name} losses"], seen[f"{name} losses by hand"], rtol=0, **({"atol": 0} | logged)
    )


@pytest.mark.parametrize("name", LOOPS)
def test_the_loss_falls_and_nodes_come_close(name, seen):
    losses, x = seen[f"{name} losses"], seen[f"{name} x"]
    assert (losses[:, -4:].mean(axis=1) < 0.8 * losses[:, :4].mean(axis=1)).all(), losses
    apart = np.abs(x - x.mean(axis=0)).max()
    assert 0 < apart < 0.1 * np.abs(x).max(), "they agree, but not exactly"


def test_accelerate_stores_and_loads_everything(seen):
    assert seen["accelerate loaded"].all()


def test_a_wrapper_of_accelerate_is_refused_with_a_remedy(seen):
    for said in seen["wrapped"]:
        assert re.search(
            r"DistributedDataParallel, .* call peerdescent\.torch\.alone\(\) first", str(said)
        ), said


@pytest.mark.long
def test_a_trainer_goes_on_from_its_checkpoint_bit_for_bit(seen):
    assert np.array_equal(seen["transformers x resumed"], seen["transformers x"])


@pytest.mark.long
def test_lightning_counts_steps_not_evaluations(seen):
    steps = {
        key.removesuffix(" steps"): value.tolist()
        for key, value in seen.items()
        if key.endswith(" steps")
    }
    batches = seen["lightning gt-dsgd 1 losses"].shape[1]
    assert steps["lightning gt-dsgd 1"] == steps["lightning gt-hsgd 1"] == [batches] * NODES
    assert steps["lightning gt-dsgd 2"] == [batches // 2] * NODES
