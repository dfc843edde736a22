"""What the nodes minimise: logistic regression, quadratics, an endless stream, or any JAX loss."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
