"""Interpolation of scattered data in scipy's vocabulary."""

from .rbf import RBFInterpolator, SingularError

__all__ = ["RBFInterpolator", "SingularError"]
