"""Decentralized stochastic optimization: nodes with private data descend together, with no server.

import peerdescent as peer

data = peer.datasets.load("digits")
problem = peer.problems.logistic(data.partition(20), strength=1e-4)
network = peer.Network(peer.topology.exponential(20))
method = peer.methods.gt_hsgd(alpha=0.5, beta=0.01, initial_batch=32)
trace = peer.run(method, problem, network, epochs=30, seed=0)
trace.table
"""

import lazy_loader

import peerdescent.engines.environment  # noqa: F401  before JAX compiles anything

__version__ = "0.1.0"

# Loaded on first use, so that `peerdescent --help` does not wait for JAX; `__init__.pyi` lists the
# names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
