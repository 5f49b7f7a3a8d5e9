r"""A kernel matrix solved for many ridges at once, by one eigendecomposition, with leave-one-out in closed form.

With weights $W$ of the rows and $W^{1/2} K W^{1/2} = Q S Q^\top$ the inverse is, for every ridge,

$$ A^{-1} = (K + \lambda W^{-1})^{-1} = B\,(S + \lambda I)^{-1} B^\top, \qquad B = W^{1/2} Q, $$

and with a constant trend, $u = A^{-1}1$, it becomes $P = A^{-1} - u u^\top / 1^\top u$. The residual of row $i$ in a fit without it
is $[Py]_i / P_{ii}$, and the weight of row $j$ in that fit is $-P_{ij} / P_{ii}$.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KernelSpectrum:
    """Eigendecomposition of a float64 kernel matrix; serves every ridge.

    Args:
        gram: `(N, N)`.
        weights: `(N,)`, how many rows each row counts as.
        trend: whether the weights of a prediction sum to one.

    Example:
        >>> x = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
        >>> spectrum = KernelSpectrum(Exponential()(x, x), torch.ones(6, dtype=torch.float64))
        >>> expected = torchkrr.functional.leave_one_out(x, x.sin(), kernel=Exponential(), ridge=0.1, trend="constant")
        >>> torch.allclose(x.sin() - spectrum.leave_one_out(x.sin(), 0.1), expected)
        True
    """

    def __init__(self, gram: Tensor, weights: Tensor, *, trend: bool = True) -> None:
        root = weights.sqrt()
        self.eigenvalues, vectors = torch.linalg.eigh(root.unsqueeze(1) * gram * root)
        self.basis, self.trend = root.unsqueeze(1) * vectors, trend

    def inverse(self, ridge: float) -> Tensor:
        """$P$, or $A^{-1}$ without a trend, `(N, N)`."""
        inverse = self.basis @ (self.basis / (self.eigenvalues.clamp_min(0) + ridge)).T
        if not self.trend:
            return inverse
        solved = inverse.sum(1)
        return inverse - torch.outer(solved, solved / solved.sum())

    def leave_one_out(self, values: Tensor, ridge: float) -> Tensor:
        """Residuals `(N, C)` of every row in the fit without it."""
        inverse = self.inverse(ridge)
        return (inverse @ values) / inverse.diagonal().unsqueeze(1)
