r"""A kernel matrix solved for many ridges at once, by one eigendecomposition, with leave-one-out in closed form.

With weights $W$ of the rows and $W^{1/2} K W^{1/2} = Q S Q^\top$ the inverse is, for every ridge,

$$ A^{-1} = (K + \lambda W^{-1})^{-1} = B\,(S + \lambda I)^{-1} B^\top, \qquad B = W^{1/2} Q, $$

and with a constant trend, $u = A^{-1}1$, it becomes $P = A^{-1} - u u^\top / 1^\top u$. The residual of row $i$ in a fit
without it is $[Py]_i / P_{ii}$.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import trust
from .factor import eigh


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
        >>> torch.allclose(x.sin() - spectrum.leave_one_out(x.sin(), [0.1])[:, 0], expected)
        True
    """

    def __init__(self, gram: Tensor, weights: Tensor, *, trend: bool = True) -> None:
        root = weights.sqrt()
        self.eigenvalues, vectors = eigh(root.unsqueeze(1) * gram * root)
        self.basis, self.trend = root.unsqueeze(1) * vectors, trend
        self._size, self._most = trust.size_of(gram), weights.amax()

    def resolves(self, ridge: float) -> bool:
        """Whether float64 can be trusted with this ridge, for queries not yet known."""
        inverse = self._most / (self.eigenvalues[0].clamp_min(0) + ridge)
        return bool(trust.serves_any_query(self._size, len(self.eigenvalues), inverse))

    def leave_one_out(self, values: Tensor, ridges: Sequence[float]) -> Tensor:
        """Residuals `(N, R, C)` of every row in the fits without it, with R ridges."""
        inverse = 1 / (self.eigenvalues.clamp_min(0).unsqueeze(1) + torch.tensor(ridges, dtype=torch.float64))  # (N, R)
        diagonal = self.basis.square() @ inverse
        solved = self._solve(inverse, values)
        if self.trend:
            trend = self._solve(inverse, torch.ones_like(values[:, :1])).squeeze(2)
            total = trend.sum(0)
            solved = solved - trend.unsqueeze(2) * (solved.sum(0) / total.unsqueeze(1))
            diagonal = diagonal - trend.square() / total
        residuals: Tensor = solved / diagonal.unsqueeze(2)
        return residuals

    def _solve(self, inverse: Tensor, rhs: Tensor) -> Tensor:
        """$A^{-1} B$ for every ridge, `(N, R, C)`."""
        projected = inverse.unsqueeze(2) * (self.basis.T @ rhs).unsqueeze(1)
        solved: Tensor = (self.basis @ projected.flatten(1)).unflatten(1, projected.shape[1:])
        return solved
