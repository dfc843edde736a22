"""Estimators of scikit-learn that are trained by nodes with private rows, over a network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
