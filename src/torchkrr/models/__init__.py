"""Networks with kernels: a backbone and a readout, features by layer name, pooling to vectors, agents."""

from .pooling import pool
from .q_network import KernelQNetwork, QNetwork
from .readout import KernelReadout
from .taps import Tapped, features_at, tap

__all__ = ["KernelQNetwork", "KernelReadout", "QNetwork", "Tapped", "features_at", "pool", "tap"]
