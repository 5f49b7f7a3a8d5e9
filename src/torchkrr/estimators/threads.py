"""How many threads an estimator uses: scikit-learn's `n_jobs`."""

from __future__ import annotations

import numbers
import os
from contextlib import AbstractContextManager, nullcontext

from .. import _threads
from ..errors import InputError


def threads(n_jobs: int | None) -> AbstractContextManager[None]:
    """As many threads as asked for, while it lasts; `None` leaves torch's setting, -1 is one for each core."""
    if n_jobs is None:
        return nullcontext()
    if not isinstance(n_jobs, numbers.Integral) or n_jobs == 0:
        raise InputError(f"n_jobs must be None, a positive int, or negative to leave cores free, got {n_jobs!r}.")
    return _threads.threads(n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs))
