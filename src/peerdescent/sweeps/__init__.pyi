from .grids import tuning_grid as tuning_grid
from .seeds import best as best
from .seeds import winners as winners
from .sweeping import sweep as sweep
from .tuning import Tuned as Tuned
from .tuning import tune as tune
