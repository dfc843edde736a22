"""Processes that are one group for the optimizer, and each alone for the libraries that run its training loop."""

from __future__ import annotations

import os

import torch.distributed as dist

from peerdescent.engines.joining import connect

HIDDEN = (
    *(
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    ),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *(
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "PMI_SIZE",
        "PMI_RANK",
        "MV2_COMM_WORLD_SIZE",
    ),
    *(
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "JSM_NAMESPACE_RANK",
    ),
)
"""Variables by which libraries find out that there are several processes."""


def alone() -> tuple[int, int]:
    """Join the processes that `torchrun` has started, and hide them from other libraries; returns (rank, processes).

    Accelerate, the Trainer of Transformers and Lightning take several processes for copies of one:
    they average gradients over all of them and divide the data. After this call each process is
    alone for them, and communicates by its optimizer only. Call it first, before such a library is
    imported. If the program has called `torch.distributed.init_process_group`, that group is taken.

    >>> import os
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # `torchrun` starts several
    >>> rank, processes = alone()
    >>> rank, processes, "WORLD_SIZE" in os.environ
    (0, 1, False)
    >>> dist.destroy_process_group()
    """
    connect()
    for name in HIDDEN:
        os.environ.pop(name, None)
    return dist.get_rank(), dist.get_world_size()
