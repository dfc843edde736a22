from . import faults as faults
from . import network as network
from . import topology as topology
from .network import Network as Network
from .network import described as described
