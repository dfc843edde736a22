from .hiding import alone as alone
from .optimizer import DecentralizedOptimizer as DecentralizedOptimizer
