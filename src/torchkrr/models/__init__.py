"""Networks with kernels: a backbone and a readout, stages, features by layer name, pooling to vectors, agents."""

from .pooling import pool
from .q_network import KernelQNetwork, QNetwork
from .readout import KernelReadout
from .stages import Staged, cut_stages
from .taps import Tapped, features_at, tap

__all__ = ["KernelQNetwork", "KernelReadout", "QNetwork", "Staged", "Tapped", "cut_stages", "features_at", "pool", "tap"]
