"""How many threads torch uses, for a while."""

from __future__ import annotations

import numbers
import os

import torch

from ..errors import InputError


class threads:
    """As many threads as asked for, while it lasts; `None` leaves torch's setting, -1 is one for each core."""

    def __init__(self, n_jobs: int | None) -> None:
        if n_jobs is not None and (not isinstance(n_jobs, numbers.Integral) or n_jobs == 0):
            raise InputError(f"n_jobs must be None, a positive int, or negative to leave cores free, got {n_jobs!r}.")
        self.n_jobs = n_jobs

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self.n_jobs is not None:
            cores = os.cpu_count() or 1
            torch.set_num_threads(self.n_jobs if self.n_jobs > 0 else max(1, cores + 1 + self.n_jobs))

    def __exit__(self, *error: object) -> None:
        if self.n_jobs is not None:
            torch.set_num_threads(self._before)
