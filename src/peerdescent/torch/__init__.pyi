from .libraries import alone as alone
from .optimizer import DecentralizedOptimizer as DecentralizedOptimizer
