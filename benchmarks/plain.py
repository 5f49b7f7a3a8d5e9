"""The same formula in plain torch: cdist, Cholesky, autograd. What somebody would write without this library."""

from __future__ import annotations

import torch
from torch import Tensor


def local_kernel_ridge(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, lengthscale: float, ridge: float, chunk: int
) -> Tensor:
    query, centers = query / lengthscale, centers / lengthscale
    identity = ridge * torch.eye(indices.shape[1], dtype=query.dtype)
    parts = []
    for rows, points in zip(indices.split(chunk), query.split(chunk), strict=True):
        local = centers[rows]  # (q, M, D)
        gram = torch.exp(-torch.cdist(local, local)) + identity
        cross = torch.exp(-torch.cdist(points.unsqueeze(1), local))  # (q, 1, M)
        factor = torch.linalg.cholesky(gram)
        parts.append((cross @ torch.cholesky_solve(values[rows], factor)).squeeze(1))
    return torch.cat(parts)
