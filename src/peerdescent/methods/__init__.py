"""Methods: gradient estimators, fusion rules, their composition, and the named methods of the literature."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
