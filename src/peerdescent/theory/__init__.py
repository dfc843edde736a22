"""The paper's theory: Theorem 1, Corollary 1, Table 1, and the constants they need of a problem."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
