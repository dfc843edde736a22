from .grids import GRIDS as GRIDS
from .grids import tuning_grid as tuning_grid
from .seeds import best as best
from .sweeping import sweep as sweep
from .tuning import Tuned as Tuned
from .tuning import tune as tune
