"""Networks with kernel heads: a backbone and a readout, features by layer name, pooling to vectors."""

from .pooling import pool
from .readout import KernelReadout
from .taps import Tapped, features_at, tap

__all__ = ["KernelReadout", "Tapped", "features_at", "pool", "tap"]
