from . import checkpoint as checkpoint
from .loop import run as run
from .metrics import METRICS as METRICS
from .metrics import Metric as Metric
from .metrics import metric as metric
from .schedule import Grid as Grid
from .trace import Status as Status
from .trace import Trace as Trace
