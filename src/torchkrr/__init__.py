"""Differentiable kernel ridge regression for PyTorch."""

from . import functional, kernels, transforms
__version__ = "0.1.0.dev0"
