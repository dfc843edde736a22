from .seeds import best as best
from .sweeping import BATCHES as BATCHES
from .sweeping import GRIDS as GRIDS
from .sweeping import sweep as sweep
from .sweeping import tuning_grid as tuning_grid
from .tuning import Tuned as Tuned
from .tuning import tune as tune
