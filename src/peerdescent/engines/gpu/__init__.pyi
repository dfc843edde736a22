from .kernel import Kernel as Kernel
from .kernel import supports as supports
