from . import gradients as gradients
from . import paper as paper
