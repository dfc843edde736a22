from . import comparison as comparison
from . import equal_loss as equal_loss
from . import faults as faults
from . import gradients as gradients
from . import paper as paper
from . import zoo as zoo
