"""One run: the loop, what it records, what it costs, and what it leaves behind."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
