"""Centers sharded over the ranks of `torch.distributed`: the same layer and numbers, past the memory of one machine."""

import importlib

from .launch import Launched, is_launched, launched
from .local import ShardedLocalKernelRidge
from .shards import Shards, even_shards, own_rows

__all__ = [
    "Launched",
    "ShardedLocalKernelRidge",
    "Shards",
    "checkpoint",
    "even_shards",
    "is_launched",
    "launched",
    "own_rows",
]


def __getattr__(name: str) -> object:
    """`checkpoint`, imported when it is first asked for: torch's own takes a second."""
    if name == "checkpoint":
        return importlib.import_module(".checkpoint", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
