"""Nearest neighbors in the embedded space, exact or approximate, behind one small interface."""

from .auto import AutoIndex, Choice, recall
from .base import NeighborIndex, Neighbors
from .exact import ExactIndex, nearest
from .faiss_index import FaissIndex
from .streamed import StreamedIndex
from .tree import TreeIndex

__all__ = [
    "AutoIndex",
    "Choice",
    "ExactIndex",
    "FaissIndex",
    "NeighborIndex",
    "Neighbors",
    "StreamedIndex",
    "TreeIndex",
    "nearest",
    "recall",
]
