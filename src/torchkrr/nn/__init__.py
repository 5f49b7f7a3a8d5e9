"""Kernel ridge regression as layers: they register tensors, search, and call `torchkrr.functional`."""

from .blended import BlendedKernelRidge
from .hierarchical import HierarchicalKernelRidge
from .local import Explanation, LocalKernelRidge
from .prior import PriorExplanation, PriorKernelRidge
from .ridge import KernelRidge
from .transport import GromovMongeLoss, MongeLoss

__all__ = [
    "BlendedKernelRidge",
    "Explanation",
    "GromovMongeLoss",
    "HierarchicalKernelRidge",
    "KernelRidge",
    "LocalKernelRidge",
    "MongeLoss",
    "PriorExplanation",
    "PriorKernelRidge",
]
