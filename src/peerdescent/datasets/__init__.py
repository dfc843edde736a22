"""Data, and its division over nodes: named sets, files, planted sets, partitions.

Everything a problem needs to know about data passes through `Dataset` and `Partition`; nothing here knows of
problems, networks or methods, nor imports JAX.
"""

from peerdescent.datasets.dataset import Dataset, Partition
from peerdescent.datasets.loader import load
from peerdescent.datasets.planted import synthetic
from peerdescent.datasets.sets import SETS, NamedSet

__all__ = ["SETS", "Dataset", "NamedSet", "Partition", "load", "synthetic"]
