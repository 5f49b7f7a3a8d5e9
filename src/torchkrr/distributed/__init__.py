"""Centers sharded over the ranks of `torch.distributed`: the same layer and numbers, past the memory of one machine."""

import importlib
import sys

from .launch import Launched, Shards, even_shards, is_launched, launched, own_rows
from .local import ShardedLocalKernelRidge
from .search import operations_per_query, traffic_per_query

__all__ = [
    "Launched",
    "ShardedLocalKernelRidge",
    "Shards",
    "checkpoint",
    "even_shards",
    "is_launched",
    "launched",
    "operations_per_query",
    "own_rows",
    "traffic_per_query",
]
costs = sys.modules[f"{__name__}.costs"] = sys.modules[__name__]  # their module in 0.1.0


def __getattr__(name: str) -> object:
    """Import `checkpoint` on first use: torch's own takes a second."""
    if name == "checkpoint":
        return importlib.import_module(".checkpoint", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
