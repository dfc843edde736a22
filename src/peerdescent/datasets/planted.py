"""Synthetic data of any size, from a known model."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from peerdescent.datasets.dataset import Dataset
from peerdescent.datasets.partitions import generator
from peerdescent.errors import require, require_memory, whole

SPARSE_BELOW = 0.25
LOGIT_SCALE = 4.0
ENTRY_BYTES = 80
"""Memory that a nonzero takes while it is made: its gap, place, row, column, value and copies of them."""


def synthetic(samples: int, features: int, density: float = 1.0, seed: int = 0) -> Dataset:
    """A synthetic binary data set from a logistic model.

    Each entry is nonzero with probability `density`, and then standard normal. A row that would be
    empty gets one entry. Rows x are scaled to unit norm. Labels follow P(+1) = 1 / (1 + exp(-4
    x'w)), with w ~ N(0, I).

    Args:
        samples: The number of rows.
        features: The number of columns.
        density: The probability that an entry is nonzero. At most 0.25, the features are stored as
            CSR.
        seed: For all random numbers.

    Returns:
        The data set.

    >>> synthetic(1000, 20, seed=1)
    Dataset('synthetic-1000x20', 1,000 rows x 20 features, 100.0% nonzero, labels -1: 46.7%, 1: 53.3%)
    """
    samples, features = whole("samples", samples, least=1), whole("features", features, least=1)
    require(0 < density <= 1, f"density={density!r} must lie in (0, 1]: 1 is dense")
    rng = generator(seed)
    size = ENTRY_BYTES * (min(samples * features, 1e300) * density + min(samples + features, 1e300))
    require_memory(f"{samples:,} rows x {features:,} features", size, "make fewer rows or features")

    # The gaps between nonzeros are geometric, so only nonzeros take memory. Ten standard deviations
    # more gaps than expected are drawn, so that they reach the last cell.
    cells = samples * features
    expected = cells * density
    gaps = rng.geometric(density, int(expected + 10 * expected**0.5) + 10)
    cell = (
        np.cumsum(np.minimum(gaps, cells)) - 1
    )  # without this limit, sums of long gaps could overflow
    cell = cell[cell < cells]
    empty = np.setdiff1d(np.arange(samples), cell // features)
    cell = np.sort(
        np.concatenate([cell, empty * features + rng.integers(features, size=len(empty))])
    )

    row, column = np.divmod(cell, features)
    values = rng.standard_normal(len(cell))
    values /= np.sqrt(np.bincount(row, values**2, minlength=samples))[row]
    margin = np.bincount(row, values * rng.standard_normal(features)[column], minlength=samples)
    labels = np.where(rng.random(samples) < 1 / (1 + np.exp(-LOGIT_SCALE * margin)), 1, -1).astype(
        np.float32
    )
    starts = np.searchsorted(row, np.arange(samples + 1))
    table = csr_array((values.astype(np.float32), column, starts), shape=(samples, features))
    return Dataset(
        table if density <= SPARSE_BELOW else table.toarray(),
        labels,
        f"synthetic-{samples}x{features}",
    )
