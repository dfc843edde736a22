"""What notebooks show of an object: a card of HTML with its facts, small charts and graphs, made without matplotlib."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
