"""Measure the speed-up in several processes at once: `peerdescent reproduce speedup` for a machine with many cores.

    python studies/speedup.py --spread 1 --scale full --processes 16 --out runs/speedup-spread-1

The runs are those of the command, each in a process of its own with one thread, and so are the files. Runs that are in
the folder already are not repeated, so an interrupted measurement goes on where it stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

# Before JAX starts, here and in the processes: a run's vectors are too short to share among threads.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from peerdescent.studies import gradients


def main() -> None:
    """Read the flags, measure, and print the slopes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=0.0,
        help="how far apart the nodes' planted coefficients are",
    )
    parser.add_argument("--scale", default="full", help=", ".join(gradients.SCALES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", required=True, help="folder")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        found = gradients.speedup(
            given.scale, given.out, spread=given.spread, each=pool.map, note=print
        )
    assert found.slopes is not None
    print(found.slopes.to_string(index=False))


if __name__ == "__main__":
    main()
