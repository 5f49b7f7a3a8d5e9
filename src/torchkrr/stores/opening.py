"""Stores by one line of text, as at the command line."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from ..errors import InputError
from .base import Store
from .lance import LanceStore
from .pgvector import PgVectorStore

POSTGRES = re.compile(r"postgres(ql)?://")
DEFAULT_TABLE = "torchkrr"


def open_store(uri: str, **options: Any) -> Store:
    """The store that a URI names: `postgresql://USER@HOST/DATABASE#SCHEMA.TABLE`, or `FOLDER#TABLE` of LanceDB.

    The schema is `public` and the table `torchkrr` where they are left out. A password is best left to `PGPASSWORD`, or
    to the password file of PostgreSQL.

    Args:
        uri: in its last part, behind `#`, percent signs are for what is no letter, as in the rest.
        options: of `PgVectorStore` or `LanceStore`, such as `kernel` and `where`.

    Example:
        >>> import tempfile
        >>> from torchkrr.stores import open_store
        >>> open_store(tempfile.mkdtemp() + "#questions", kernel=Exponential())
        LanceStore('questions')
    """
    place, _, name = uri.rpartition("#") if "#" in uri else (uri, "", "")
    table = unquote(name) or DEFAULT_TABLE
    if not place:
        raise InputError("A store is postgresql://USER@HOST/DATABASE#TABLE, or FOLDER#TABLE, got nothing before the #.")
    if not POSTGRES.match(place):
        return LanceStore(place, table, **options)
    schema, dot, rest = table.partition(".")
    return PgVectorStore(place, rest, schema=schema, **options) if dot else PgVectorStore(place, table, **options)


def without_password(uri: str) -> str:
    """A URI as it may be shown."""
    if not POSTGRES.match(uri):
        return uri
    uri = re.sub(r"^(\w+://[^:@/?#]*):[^/?#]*@", r"\1@", uri)
    return re.sub(r"(?i)([?&](ssl)?password=)[^&#]*", r"\1***", uri)
