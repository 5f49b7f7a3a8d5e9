"""Empty queries, for functions whose steps need at least one row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def with_a_row(*per_query: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function of `(query, centers, ...)` take no queries: it sees one, and its row is taken off the results.

    `per_query` are the positions of other arguments with a row of indices for each query.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def wrapped(query: Any, centers: Any, *args: Any, **kwargs: Any) -> R:
            if not isinstance(query, Tensor) or query.ndim != 2 or len(query):
                return function(query, centers, *args, **kwargs)
            given = [torch.cat((query, centers[:1].detach().to(query))), centers, *args]
            for place in per_query:
                indices = given[place]
                if isinstance(indices, Tensor) and indices.ndim == 2:
                    given[place] = torch.arange(indices.shape[1], device=indices.device).unsqueeze(0)
            found: Any = function(*given, **kwargs)
            return found[:0] if isinstance(found, Tensor) else type(found)(part[:0] for part in found)  # type: ignore[return-value]

        return wrapped

    return decorate
