"""Which code solves the cells here: the fused solver or torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import native
from ._tensors import working_dtype
from .core import fused
from .core.cells import CellOptions
from .kernels import Exponential, Kernel, check_kernel

__all__ = ["BackendReport", "backend_report"]


class BackendReport(NamedTuple):
    """What `backend="auto"` does, and why."""

    backend: str  # "fused" or "torch"
    reason: str | None  # why it is not the fused solver
    instruction_set: str | None  # of the fused solver that is installed: "avx512", "avx2", "baseline"
    library: str | None  # its file
    threads: int

    def __str__(self) -> str:
        if self.reason is not None:
            return f"torch, {self.threads} threads; not the fused solver: {self.reason}"
        return f"fused ({self.instruction_set}), {self.threads} threads"


def backend_report(
    kernel: Kernel | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    fade: bool = False,
    normalize: str | None = None,
) -> BackendReport:
    """Which solver local functions and layers use for such a problem.

    Args:
        kernel: `None` is `Exponential`.
        dtype, device: of the tensors.
        fade, normalize: as in `torchkrr.functional.local_kernel_ridge`.

    Example:
        >>> backend_report(fade=True).backend
        'torch'
        >>> backend_report(fade=True).reason
        'it has no fade'
    """
    kernel = Exponential() if kernel is None else kernel
    check_kernel(kernel)
    probe = torch.empty(0, dtype=working_dtype(dtype), device=device)
    options = CellOptions(kernel, fade=fade, normalize=normalize is not None)
    reason = fused.obstacle((probe,), options, kernel.learned_in_profile())
    found = native.library()
    return BackendReport(
        "fused" if reason is None else "torch",
        reason,
        None if found is None else found.instruction_set,
        None if found is None else str(found.path),
        torch.get_num_threads(),
    )
