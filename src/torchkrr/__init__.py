"""Differentiable kernel ridge regression for PyTorch: a lazy head that needs no training.

Namespaces: `functional` (the mathematics), `nn` (the same as layers), `kernels`, `transforms`, `neighbors`, `errors`.
"""

from . import errors, functional, kernels, neighbors, nn, transforms

__all__ = ["__version__", "errors", "functional", "kernels", "neighbors", "nn", "transforms"]
__version__ = "0.1.0.dev0"
