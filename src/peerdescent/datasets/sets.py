"""The named data sets: sources, meaning of labels, and citations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NamedSet:
    """One named data set.

    `shape` is (N, p). `files`, plain or compressed, must be in one folder, and have the format
    `form`. `openml` is the data id at OpenML. `positive` are the classes that become +1 (if empty,
    the larger of two). Features are divided by `unit`. `scale` is the default of `load(...,
    scale=)`.
    """

    name: str
    description: str
    citation: str
    shape: tuple[int, int]
    files: tuple[str, ...] = ()
    form: Literal["embedded", "libsvm", "csv", "idx"] | None = None
    openml: int | None = None
    positive: tuple[int, ...] = ()
    unit: float = 1.0
    scale: bool = False


ODD = (1, 3, 5, 7, 9)

SETS = {
    each.name: each
    for each in (
        NamedSet(
            "digits",
            "8 x 8 handwritten digits, odd against even; comes with scikit-learn, needs no download",
            "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
            shape=(1797, 64),
            form="embedded",
            positive=ODD,
            unit=16.0,
        ),
        NamedSet(
            "a9a",
            "census income above 50,000 dollars, binary features; the train part, then the test part",
            "Becker & Kohavi, Adult, UCI, 1996; binarised by Platt, LIBSVM data, 1998",
            shape=(48_842, 123),
            files=("a9a", "a9a.t"),
            form="libsvm",
            openml=1430,
        ),
        NamedSet(
            "covertype",
            "forest cover from maps, lodgepole pine (class 2) against the rest; columns in [0, 1]",
            "Blackard & Dean, Computers and Electronics in Agriculture 24, 1999",
            shape=(581_012, 54),
            files=("covtype.csv",),
            form="csv",
            openml=1596,
            positive=(2,),
            scale=True,
        ),
        NamedSet(
            "mnist",
            "28 x 28 handwritten digits, odd against even; 60,000 train rows, then 10,000 test rows",
            "LeCun, Bottou, Bengio & Haffner, Proceedings of the IEEE 86, 1998",
            shape=(70_000, 784),
            files=(
                "train-images-idx3-ubyte",
                "train-labels-idx1-ubyte",
                "t10k-images-idx3-ubyte",
                "t10k-labels-idx1-ubyte",
            ),
            form="idx",
            openml=554,
            positive=ODD,
            unit=255.0,
        ),
        NamedSet(
            "kdd98",
            "who answers a charity's letter; categories as codes, missing values as 0, columns in [0, 1]",
            "Parsa, KDD Cup 1998 Data, UCI, 1998",
            shape=(82_318, 477),
            openml=23513,
            scale=True,
        ),
        NamedSet(
            "miniboone",
            "electron neutrinos (signal) against muon neutrinos (background); columns in [0, 1]",
            "Roe et al., Nuclear Instruments and Methods in Physics Research A 543, 2005",
            shape=(130_064, 50),
            openml=41150,
            scale=True,
        ),
    )
}
