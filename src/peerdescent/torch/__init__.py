"""Decentralized training of PyTorch models, with one process per node."""

from importlib.util import find_spec

import lazy_loader

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "peerdescent.torch needs PyTorch, which is not installed: pip install 'peerdescent[torch]'",
        name="torch",
    )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
