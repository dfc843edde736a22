"""The engines: each supplies the five verbs in its own way, and nothing else differs between them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
