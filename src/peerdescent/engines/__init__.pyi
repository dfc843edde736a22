from . import registry as registry
from .contract import Engine as Engine
from .registry import ENGINES as ENGINES
from .registry import connect as connect
