from .custom import loss as loss
from .minimise import Optimum as Optimum
from .minimise import optimum as optimum
from .problem import Oracle as Oracle
from .problem import Problem as Problem
from .quadratics import quadratic as quadratic
from .regression import logistic as logistic
from .streams import streaming as streaming
