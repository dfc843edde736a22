"""The methods: a gradient estimator composed with a fusion rule, and the named pairs of the literature."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
