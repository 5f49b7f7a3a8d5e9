"""Kernel ridge regression as layers: they register tensors, search, and call `torchkrr.functional`."""

from .local import Explanation, LocalKernelRidge
from .ridge import KernelRidge

__all__ = ["Explanation", "KernelRidge", "LocalKernelRidge"]
