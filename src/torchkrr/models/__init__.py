"""Networks with kernel parts."""

from .q_network import KernelQNetwork, QNetwork

__all__ = ["KernelQNetwork", "QNetwork"]
