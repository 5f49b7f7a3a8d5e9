"""Kernel ridge regression as layers: they register tensors, search, and call `torchkrr.functional`."""

from .local import Explanation, LocalKernelRidge
from .ridge import KernelRidge
from .transport import GromovMongeLoss, MongeLoss

__all__ = ["Explanation", "GromovMongeLoss", "KernelRidge", "LocalKernelRidge", "MongeLoss"]
