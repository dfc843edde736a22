"""Engines: each implements the eleven verbs that a method uses, for a simulation, a GPU or several processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
