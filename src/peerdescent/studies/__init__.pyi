from . import comparison as comparison
from . import faults as faults
from . import gradients as gradients
from . import paper as paper
