"""The policy of `unresolved` for dense problems, where queries share one Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from .._precision import working_dtype
from ..errors import SolveError
from ..kernels import Kernel
from .dense import DenseProblem, Evaluate
from .unresolved import ladder, overflow_text, singular_text, warn_raised


def solve_dense(
    evaluate: Evaluate,
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    *,
    kernel: Kernel,
    ridge: Tensor,
    trend: bool,
    on_singular: str,
) -> Tensor:
    """`evaluate` in the working dtype; what is unresolved there in float64; what is unresolved there with a larger ridge."""
    dtype = working_dtype(query.dtype)

    def pose(dtype: torch.dtype) -> DenseProblem:
        return DenseProblem(
            kernel.embed(query.to(dtype)),
            kernel.embed(centers.to(dtype)),
            values.to(dtype),
            ridge.to(dtype),
            kernel,
            trend,
        )

    result, resolved = evaluate(pose(dtype))
    if bool(resolved.all()):
        return result
    problem = pose(torch.float64)
    if dtype != torch.float64:
        again, resolved_again = evaluate(problem)
        result = torch.where(resolved, result, again.to(dtype))
        resolved = resolved | resolved_again
        if bool(resolved.all()):
            return result
    count = int((~resolved).sum())
    if on_singular == "raise":
        what = f"{count} {'prediction needs' if count == 1 else 'predictions need'} a Gram matrix"
        raise SolveError(singular_text(what, f"N={centers.shape[-2]}", ridge, torch.float64, ""))
    for rung in ladder(torch.float64, float(ridge.detach().min())):
        again, resolved_again = evaluate(problem._replace(ridge=problem.ridge.clamp_min(rung)))
        result = torch.where(resolved | ~resolved_again, result, again.to(dtype))
        resolved = resolved | resolved_again
        if bool(resolved.all()):
            warn_raised(count, rung, torch.float64)
            return result
    raise SolveError(overflow_text(int((~resolved).sum()), torch.float64))
