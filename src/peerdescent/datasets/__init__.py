"""Data, and its division over nodes: named sets, files, planted sets, partitions.

Nothing here knows of problems, networks or methods, nor imports JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
