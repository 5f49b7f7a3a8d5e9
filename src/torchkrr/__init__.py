"""Differentiable kernel ridge regression for PyTorch."""

from . import functional, kernels, neighbors, transforms
__version__ = "0.1.0.dev0"
