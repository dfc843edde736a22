from . import datasets as datasets
from . import engines as engines
from . import figures as figures
from . import methods as methods
from . import networks as networks
from . import problems as problems
from . import report as report
from . import runs as runs
from . import studies as studies
from . import sweeps as sweeps
from . import theory as theory
from . import torch as torch
from .methods import Method as Method
from .methods import compose as compose
from .methods import estimators as estimators
from .methods import fusions as fusions
from .networks import Network as Network
from .networks import topology as topology
from .runs import Grid as Grid
from .runs import Metric as Metric
from .runs import Status as Status
from .runs import Trace as Trace
from .runs import metric as metric
from .runs import run as run
from .sweeps import sweep as sweep
from .sweeps import tune as tune

__version__: str
