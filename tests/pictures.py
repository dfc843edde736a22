"""What a picture shows, as far as a test can tell."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np


def colours(file: Path) -> int:
    """How many colours a PNG has: one where it is blank."""
    pixels = np.rint(255 * matplotlib.image.imread(file)[..., :3]).astype(np.int32)
    return len(np.unique(pixels @ [1 << 16, 1 << 8, 1]))
