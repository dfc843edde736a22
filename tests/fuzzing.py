"""Damaged inputs for the parsers of files, selectors and run folders, and what each parser may do with them."""

from __future__ import annotations

import atexit
import io
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import peerdescent as peer
from peerdescent import experiment, methods
from peerdescent.datasets import formats
from peerdescent.runs import Trace

TOKENS = [
    b"",
    b"\0",
    b"\n",
    b",",
    b":",
    b"[",
    b"]",
    b"=",
    b"*",
    b'"',
    b"-",
    b"nan",
    b"1e999",
    b"\xff\xfe",
    b"9" * 30,
]
TOKENS += [
    b"\x00\x00\x08\x03",
    b"PK\x01\x02",
    b"0,1,2\n",
    b"1 1:1\n",
    b"a,b,y\n",
    b"nodes = 3\n",
    b"alpha=0.5",
]


_HOME = tempfile.mkdtemp(prefix="peerdescent-fuzz-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)


@cache
def home() -> Path:
    """A folder for the files; its cache is a file, so that nothing is cached."""
    folder = Path(_HOME)
    (folder / "cache").write_text("")
    return folder


def _load(name: str, **options: Any) -> Callable[[bytes], None]:
    def target(content: bytes) -> None:
        path = home() / name
        path.write_bytes(content)
        before, os.environ["PEERDESCENT_CACHE"] = (
            os.environ.get("PEERDESCENT_CACHE"),
            str(home() / "cache"),
        )
        try:
            data = peer.datasets.load(path, **({"labels": "classes"} | options))
        finally:
            os.environ.pop("PEERDESCENT_CACHE") if before is None else os.environ.update(
                PEERDESCENT_CACHE=before
            )
        assert len(data) > 0
        assert np.isfinite(
            data.features if isinstance(data.features, np.ndarray) else data.features.data
        ).all()

    return target


def _idx(content: bytes) -> None:
    images, labels = home() / "images", home() / "labels"
    images.write_bytes(content)
    labels.write_bytes(b"\0\0\x08\x01\0\0\0\x02\x07\x08")
    found = formats.read_idx([images, labels])
    assert len(found.features) == len(found.labels)


def _toml(content: bytes) -> None:
    path = home() / "some.toml"
    path.write_bytes(content)
    experiment.settle(
        {k: v for k, v in experiment.read(path, "methods").items() if k != "methods"}, {}
    )


def _selector(content: bytes) -> None:
    methods.parse(content.decode("utf-8", "replace"))


@cache
def _run() -> tuple[Path, pd.DataFrame]:
    """A run folder, and its records."""
    problem = peer.problems.quadratic(np.stack([np.eye(2)] * 2))
    trace = peer.run(
        peer.methods.dsgd(), problem, peer.Network(peer.topology.ring(2)), steps=4, record=2
    )
    return trace.save(home() / "run"), trace.table


def _folder(content: bytes) -> None:
    """The first byte chooses the file that gets the rest as its content."""
    whole, table = _run()
    folder = home() / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files[(content or b"\0")[0] % len(files)].write_bytes(content[1:])
    found = Trace.load(folder).table
    pd.testing.assert_frame_equal(found, table.iloc[: len(found)])


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, features=np.eye(3), labels=np.arange(3))
    return stream.getvalue()


def _checkpoints() -> list[bytes]:
    files = sorted(path for path in _run()[0].rglob("*") if path.is_file())
    return [bytes([place]) + path.read_bytes() for place, path in enumerate(files)]


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "LIBSVM": (_load("some.svm"), lambda: [b"1 1:0.5 3:2\n-1 2:1e-3\n", b"0 0:1 # note\n1 4:1\n"]),
    "CSV": (
        _load("some.csv", labels=None, target="y", groups="g"),
        lambda: [
            b"g,a,x,y\n1,7,2.5,no\n2,8,3,yes\n",
            b"g,x,y\na,True,0.5\nb,False,7\nb,True,8\n",
        ],
    ),
    "NPZ": (_load("some.npz"), lambda: [_npz()]),
    "IDX": (_idx, lambda: [b"\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02\x01\x02\x03\x04"]),
    "TOML": (
        _toml,
        lambda: [
            b'data = "digits"\nnodes = 8\nepochs = 5.0\n',
            b'methods = ["dsgd"]\npositive = [1, 3]\n',
        ],
    ),
    "selector": (
        _selector,
        lambda: [b"gt-hsgd[alpha=0.5,beta=0.01]", b"hybrid*exact-diffusion[alpha=0.5]", b"d2"],
    ),
    "run folder": (_folder, _checkpoints),
}
"""For each parser: what it does with bytes, and valid inputs. A target raises AssertionError for a wrong result."""


def damaged(name: str, seed: int) -> bytes:
    """A valid input with some bytes changed, cut out, put in or repeated."""
    rng = random.Random(seed)
    content = bytearray(rng.choice(TARGETS[name][1]()))
    first = 1 if name == "run folder" else 0
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(first, len(content)) if len(content) > first else first
        kind = rng.randrange(5)
        if kind == 0 and at < len(content):
            content[at] = rng.randrange(256)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at : at + rng.randint(1, 8)]
        elif kind == 3:
            content[at:at] = rng.choice(TOKENS)
        else:
            content[at:at] = content[first:at] * rng.randint(1, 3)
    return bytes(content)


def outcome(name: str, content: bytes) -> str:
    """What a parser does with an input: "accepted" or "refused". Any other exception is a bug."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            TARGETS[name][0](content)
        except (ValueError, OSError):
            return "refused"
    return "accepted"


def prepare() -> None:
    """Make the run folder, which takes a second, and keep JAX quiet."""
    jax.config.update("jax_platforms", "cpu")
    _run()
