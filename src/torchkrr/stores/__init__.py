"""Examples that live in a database: the layer and the heads of this library on rows of PostgreSQL or LanceDB."""

import importlib
from typing import TYPE_CHECKING

from .base import Condition, Found, Store
from .lance import LanceStore
from .layer import StoredExplanation, StoredKernelRidge
from .opening import open_store, without_password
from .pgvector import Existing, PgVectorStore

if TYPE_CHECKING:
    from .heads import open_head

__all__ = [
    "Condition",
    "Existing",
    "Found",
    "LanceStore",
    "PgVectorStore",
    "Store",
    "StoredExplanation",
    "StoredKernelRidge",
    "open_head",
    "open_store",
    "without_password",
]


def __getattr__(name: str) -> object:
    """Heads are estimators, which need scikit-learn; the layer does without."""
    if name == "open_head":
        return importlib.import_module(".heads", __name__).open_head
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
