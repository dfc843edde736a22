from .loop import run as run
from .record import Grid as Grid
from .trace import Status as Status
from .trace import Trace as Trace
