"""Nearest neighbors in the embedded space, exact or approximate, behind one small interface."""

from .base import NeighborIndex, Neighbors
from .exact import ExactIndex, nearest
from .faiss_index import FaissIndex

__all__ = ["ExactIndex", "FaissIndex", "NeighborIndex", "Neighbors", "nearest"]
