r"""Ridge regression on given features, for every ridge from one eigendecomposition, with leave-one-out in closed form.

With centered features $Z$ (rows $z_i$), weights $w_i$ of the rows, $W=\mathrm{diag}(w)$ and $Z^\top W Z = V S V^\top$,

$$ f(z) = \bar y + z^\top V (S + \lambda I)^{-1} V^\top Z^\top W (y - \bar y), \qquad
   h_{ii} = w_i \Bigl( \textstyle\sum_k \frac{(z_i^\top v_k)^2}{s_k + \lambda} + \frac{1}{\sum_j w_j} \Bigr), $$

and the residual of row $i$ in a fit without it is $(y_i - f(z_i)) / (1 - h_{ii})$: the intercept is not penalized, so the
means need no correction of their own. Everything is in float64, the features are read in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._chunking import ranges
from .factor import eigh

BLOCK = 8192  # rows of features in float64 at a time
MOST_LEVERAGE = 0.5  # uncapped, the correction of a residual doubles as the leverage goes to one
Features = Callable[[slice | Tensor], Tensor]


def inverse_root(gram: Tensor) -> Tensor:
    r"""$U S^{-1/2}$ `(n, n)` of a kernel matrix $K = U S U^\top$, without eigenvalues that are mere rounding.

    With it $k(x, x^0)\,U S^{-1/2}$ are features of $x$ whose norm is that of the kernel on the span of the points $x^0$.
    """
    eigenvalues, vectors = eigh(gram)
    smallest = eigenvalues[-1:] * len(gram) * torch.finfo(gram.dtype).eps
    root: Tensor = vectors * torch.where(eigenvalues > smallest, eigenvalues, torch.inf).rsqrt()
    return root


class LinearFit(NamedTuple):
    """A linear function of features; `predict` takes them as they are given."""

    coefficients: Tensor  # (P, C)
    intercept: Tensor  # (C,)

    def predict(self, features: Tensor) -> Tensor:
        """`(Q, P)` to `(Q, C)`, float64."""
        return features.double() @ self.coefficients + self.intercept


class RidgeSpectrum:
    """Moments of features and values, and their eigendecomposition; serves every ridge.

    Args:
        features: `(N, P)`, or a function that gives the rows of a slice or of row numbers, for features that are made as
            they are used.
        values: `(N, C)`.
        weights: `(N,)`, how many rows each row counts as; `None` is one. Rows of weight zero are predicted only.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
        >>> spectrum = RidgeSpectrum(x, 2 * x + 1)
        >>> spectrum.solve(0.0).predict(torch.tensor([[5.0]])).round(decimals=6)
        tensor([[11.]], dtype=torch.float64)
        >>> spectrum.leave_one_out(0.0).abs().max() < 1e-12
        tensor(True)
    """

    def __init__(self, features: Tensor | Features, values: Tensor, weights: Tensor | None = None) -> None:
        self._block: Features = (lambda rows: features[rows]) if isinstance(features, Tensor) else features
        self.values = values.double()
        self.weights = self.values.new_ones(len(values)) if weights is None else weights.double()
        self.total = self.weights.sum()
        self.mean_value = self.weights @ self.values / self.total
        self.mean = (
            torch.stack([self.weights[rows] @ self._block(rows).double() for rows in self._rows()]).sum(0) / self.total
        )
        self.eigenvalues, self.vectors, self.products = self._decompose()
        self._residuals: dict[float, tuple[Tensor, Tensor]] = {}

    def solve(self, ridge: float) -> LinearFit:
        """The fit with this ridge."""
        coefficients = self.vectors @ (self.products / self._denominator(ridge))
        return LinearFit(coefficients, self.mean_value - self.mean @ coefficients)

    def inverse(self, ridge: float) -> Tensor:
        r"""$(Z^\top W Z + \lambda I)^{-1}$, `(P, P)`, in the directions in which something varies."""
        return self.vectors @ (self.vectors / self._denominator(ridge).T).T

    def leave_one_out(self, ridge: float, most_leverage: float = MOST_LEVERAGE) -> Tensor:
        """Residuals `(N, C)` of every row in the fit without it; its leverage is taken to be at most `most_leverage`."""
        residuals, leverages = self.residuals(ridge)
        return residuals / (1 - leverages.clamp_max(most_leverage)).unsqueeze(1)

    def residuals(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Residuals `(N, C)` of the fit, and leverages `(N,)`."""
        return self.residuals_of((ridge,))[0]

    def residuals_of(self, ridges: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
        """The same of several fits. To project all rows takes seconds where they are many: it is done once, and kept."""
        missing = [ridge for ridge in ridges if ridge not in self._residuals]
        found = [(torch.empty_like(self.values), torch.empty_like(self.weights)) for _ in missing]
        for rows in self._rows() if missing else ():
            projected = self.project(rows)
            for ridge, (residuals, leverages) in zip(missing, found, strict=True):
                residuals[rows], own = self.some_residuals(ridge, rows, projected)
                leverages[rows] = self.weights[rows] * own.square().sum(1)
        self._residuals |= zip(missing, found, strict=True)
        return [self._residuals[ridge] for ridge in ridges]

    def hat_column(self, ridge: float, row: int) -> Tensor:
        """How far the fitted values of all rows follow the value of one, `(N,)`."""
        one = torch.tensor([row])
        solved = self.vectors @ (self.project(one).T / self._denominator(ridge))  # (P, 1)
        products = torch.cat([self.centered(rows) @ solved for rows in self._rows()]).squeeze(1)
        return (products + 1 / self.total) * self.weights[row]

    def project(self, rows: slice | Tensor) -> Tensor:
        """Rows in the eigenvectors, `(n, K)`; they serve every ridge."""
        return self.centered(rows) @ self.vectors

    def some_residuals(self, ridge: float, rows: slice | Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        r"""Residuals `(n, C)` of some rows, and $a$ `(n, K + 1)` with the hat matrix $h_{ij} = a_i^\top a_j\,w_j$."""
        denominator = self._denominator(ridge)
        residuals = self.values[rows] - self.mean_value - projected @ (self.products / denominator)
        scaled = projected * denominator.T.rsqrt()
        return residuals, torch.cat((scaled, self.total.rsqrt().expand(len(scaled), 1)), dim=1)

    def _decompose(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues `(K,)`, vectors `(P, K)`, and the products of projected features with values, `(K, C)`."""
        centered_values = (self.values - self.mean_value) * self.weights.unsqueeze(1)
        if len(self.values) < len(self.mean):  # in the span of the rows
            rows = self.centered(slice(0, len(self.values)))
            root = self.weights.sqrt().unsqueeze(1)
            directions = torch.linalg.qr((root * rows).T).Q  # (P, N)
            rows = rows @ directions
            moment, products = rows.T @ (self.weights.unsqueeze(1) * rows), rows.T @ centered_values
        else:
            directions, moment, products = None, 0, 0
            for block in self._rows():
                rows = self.centered(block)
                moment = moment + rows.T @ (self.weights[block].unsqueeze(1) * rows)
                products = products + rows.T @ centered_values[block]
        eigenvalues, vectors = eigh(moment)
        return eigenvalues.clamp_min(0), vectors if directions is None else directions @ vectors, vectors.T @ products

    def _denominator(self, ridge: float) -> Tensor:
        """`(K, 1)`; directions in which nothing varies count for nothing, whatever the ridge."""
        smallest = self.eigenvalues[-1:] * len(self.eigenvalues) * torch.finfo(torch.float64).eps
        return torch.where(self.eigenvalues > smallest, self.eigenvalues + ridge, torch.inf).unsqueeze(1)

    def centered(self, rows: slice | Tensor) -> Tensor:
        """Features less their mean, float64."""
        return self._block(rows).double() - self.mean

    def _rows(self) -> list[slice]:
        return ranges(len(self.values), BLOCK)
