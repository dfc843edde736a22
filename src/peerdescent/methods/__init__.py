"""Methods: gradient estimators, fusion rules, their composition, and the named methods of the literature."""

import difflib
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__ or name.startswith("__"):
        return _load(name)
    close = ", ".join(difflib.get_close_matches(name.lower(), __all__))
    hint = f"did you mean {close}?" if close else "see dir(peer.methods)"
    raise AttributeError(f"{__name__} has no {name!r}: {hint}", name=name)
