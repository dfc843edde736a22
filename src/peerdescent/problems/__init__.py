"""What the nodes minimise: logistic regression, quadratics, an endless stream, or any JAX loss."""

from peerdescent.problems.logistic import logistic
from peerdescent.problems.loss import loss
from peerdescent.problems.minimise import Optimum, optimum
from peerdescent.problems.problem import Oracle, Problem
from peerdescent.problems.quadratic import quadratic
from peerdescent.problems.streaming import streaming

__all__ = ["Optimum", "Oracle", "Problem", "logistic", "loss", "optimum", "quadratic", "streaming"]
