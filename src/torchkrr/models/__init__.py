"""Networks with kernels: a backbone and a readout, stages, features by layer name, pooling to vectors, agents."""

from .features import Depths, Tapped, features_at, pool, tap
from .networks import KernelQNetwork, KernelReadout, QNetwork, typical_scales
from .stages import Staged, cut_stages, known_layers

__all__ = [
    "Depths",
    "KernelQNetwork",
    "KernelReadout",
    "QNetwork",
    "Staged",
    "Tapped",
    "cut_stages",
    "features_at",
    "known_layers",
    "pool",
    "tap",
    "typical_scales",
]
