"""Data sets and their partition over nodes: named sets, files, synthetic sets.

Nothing here depends on problems, networks or methods, or imports JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
